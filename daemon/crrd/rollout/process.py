"""The name of this process in the progress of runs."""

import os
import socket


def this_process() -> str:
    """Return host and process ID, as `Progress.by` has them."""
    return f"{socket.gethostname()}/{os.getpid()}"
