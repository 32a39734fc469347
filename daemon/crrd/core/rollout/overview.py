"""How a run stands for those who do not carry it out: by its requests, and by what its process wrote on them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from crrd.core.api.time import parse_time
from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.run import Progress, Run
from crrd.core.rollout.state import RunRequest

LIVE_SECONDS = 60.0
"""A process that has written no progress for so long is gone."""
RUNNING, WAITING, STOPPED = "running", "waiting", "stopped"
"""States of a run that has not ended."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the requests of a run say of it."""

    state: str
    """RUNNING, WAITING, STOPPED, or how it ended."""
    progress: Progress | None
    """What its process wrote last."""
    active_at: datetime | None
    """When something happened to a pod of it last."""

    @property
    def host(self) -> str:
        """Where its process runs, or ran."""
        return self.progress.by.rpartition("/")[0] if self.progress is not None else ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run, as it is shown."""

    run: Run
    requests: Sequence[RunRequest]
    state: str
    share: str
    """How many pods are done, and of how many: `2/4`; "" where nobody has said so."""
    active_at: datetime | None
    idle: float | None
    """Seconds since then."""
    waits: str
    """What it waits for; "" for nothing."""


def overview(requests: Iterable[RunRequest], now: datetime, is_gone: Callable[[str], bool]) -> Overview:
    """How a run stands by its requests alone; `is_gone` says of `Progress.by` whether it is known to have ended."""
    own = sorted(requests, key=lambda each: each.age, reverse=True)
    written = [each.mark.progress for each in own if each.mark.progress is not None]
    progress = max(written, key=lambda each: each.at, default=None)
    times = [each.request.created for each in own] + [each.request.status.completion_time for each in own]
    active_at = max((moment for moment in map(parse_time, times) if moment is not None), default=None)
    if any(each.mark.aborted for each in own):
        return Overview(End.ABORTED, progress, active_at)
    if progress is None:
        return Overview(STOPPED, None, active_at)
    state, at = progress.state, parse_time(progress.at)
    if state in (RUNNING, WAITING):
        gone = is_gone(progress.by) or at is None or (now - at).total_seconds() > LIVE_SECONDS
        state = STOPPED if gone else state
    return Overview(WAITING if state == End.ASK else state, progress, active_at)


def state_in(plan: Plan, found: Overview) -> str:
    """How a run stands by its pods, too, as others than its process see them (`seen_by_others`)."""
    match plan.end:
        case End.DONE | End.FAILED | End.ABORTED:
            return plan.end
        case End.ASK:
            return WAITING
    if found.state not in (RUNNING, WAITING):
        return STOPPED
    return WAITING if plan.waiting else RUNNING
