"""The name of this process in the progress of runs, and whether another one carries a run out."""

import os
import socket
from collections.abc import Iterable
from datetime import datetime

from crrd.core.rollout.requests import RunRequest, last_progress


def this_process() -> str:
    """Return host and process ID, as `Progress.by` has them."""
    return f"{socket.gethostname()}/{os.getpid()}"


def has_other(asked: Iterable[RunRequest], run: str, now: datetime) -> bool:
    """Whether another process carries out a run, as its requests say."""
    found = last_progress(each for each in asked if each.run.name == run)
    return found is not None and found.is_live(now) and found.by != this_process()
