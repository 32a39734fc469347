"""The state of runs as other processes see it: what their process has recorded, or that it has stopped."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import End, RunPhase, phase_of
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.requests import RunRequest, last_progress
from crrd.core.rollout.rivals import age_of, with_unended_requests
from crrd.core.rollout.run import Options, Run, Target

RUNNING, WAITING = "running", "waiting"  # Words for runs that go on
UNKNOWN = "unknown"
"""The word for a run without requests, and for its target. Only requests record what a run does."""
_NOTHING = Progress("", "", RunPhase.RESTARTING, 0, 0)  # In place of a progress that no process has written yet


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run, as `status` shows it."""

    run: Run
    requests: Sequence[RunRequest]
    phase: RunPhase
    end: End | None  # How it ended, or that its process has stopped; None while it goes on
    host: str  # The host where its process runs, or ran
    done: int
    total: int
    active_at: datetime | None  # When a request of the run was last created or completed
    idle: float  # Seconds since then
    waits: str  # What the run waits for; "" for nothing. Of a halted run: why the judgement is no
    blocked: bool  # Whether it makes no progress because of that
    pulls: int = 0  # How many pull pods it has
    between_turns: bool = False  # Whether it is the run of a policy, and waits for its next turn
    undone_by: str = ""  # The run that has given its pods their image back, "" if none is known

    @property
    def word(self) -> str:
        """Its state in a word."""
        if not self.requests:
            return UNKNOWN
        if self.end is not None:
            return self.end.word
        return WAITING if self.blocked or self.between_turns else RUNNING

    def with_pulls(self, pulls: int, abort: str) -> "RunStatus":
        """Return the state of a run that has pull pods. If it is over, it says what to do about them.

        `abort` is the command that deletes them.
        """
        if not pulls or self.end is None or not self.end.over:
            return replace(self, pulls=pulls)
        left = f"{pulls} pull pod{'s' * (pulls != 1)}"
        return replace(self, pulls=pulls, waits=f"nothing, but it has left {left}; to delete what is left: {abort}")


def run_status(
    run: Run, requests: Sequence[RunRequest], now: datetime, is_gone: Callable[[str], bool] = lambda _: False
) -> RunStatus:
    """Return a run's state from its requests, of which there is at least one.

    `is_gone` returns whether a process (`Progress.by`) is known to have ended.
    """
    times = [each.request.created for each in requests] + [each.request.status.completion_time for each in requests]
    active_at = max((moment for moment in map(parse_time, times) if moment is not None), default=None)
    idle = (now - active_at).total_seconds() if active_at is not None else 0.0
    last = last_progress(requests) or _NOTHING
    end = _end_of(last, now, is_gone, is_aborted=any(each.request.aborted for each in requests))
    host, between = last.by.rpartition("/")[0], end is None and last.end is not None
    waits = last.waits if end in (None, End.YIELDED, End.HALTED) else ""
    counts = last.done, last.total, active_at, idle
    phase = phase_of(end, last.phase)
    return RunStatus(run, requests, phase, end, host, *counts, waits, blocked=last.blocked, between_turns=between)


def undone_by(run: Run, requests: Iterable[RunRequest]) -> str:
    """Return the name of the run that has undone a run, the newest one of several; "" if none is done."""
    back: dict[str, list[RunRequest]] = {}
    for each in requests:
        if each.run.undoes(run):
            back.setdefault(each.run.name, []).append(each)
    done = (each for each in back.values() if (last := last_progress(each)) is not None and last.end is End.DONE)
    return max(((each[0].run.started, each[0].run.name) for each in done), default=("", ""))[1]


def _end_of(last: Progress, now: datetime, is_gone: Callable[[str], bool], *, is_aborted: bool) -> End | None:
    """Return the end of a run: that of an abort, else the recorded one, else None while its process lives.

    A process that has recorded no end, and writes nothing any more, has stopped. The end of a turn is no end, as long
    as another one may follow.
    """
    if is_aborted:
        return End.ABORTED
    goes_on = (last.is_live(now) or last.is_between_turns(now)) and not is_gone(last.by)
    return None if goes_on else last.end or End.STOPPED


def unstarted(namespace: str, name: str, created: Collection[datetime], now: datetime, abort: str) -> RunStatus:
    """Return the state of a run that has no request, but pull pods. `created` are their times.

    A process that carries it out waits until an image is pulled, or was killed then. `abort` as in `with_pulls`.
    """
    first, last = min(created, default=now), max(created, default=now)
    run = Run(namespace, name, Target(UNKNOWN), Options(()), rfc3339(first))
    waits = f"the pull of an image; if no process carries it out, delete its pull pods: {abort}"
    idle = (now - last).total_seconds()
    return RunStatus(run, (), RunPhase.PULLING, None, "", 0, 0, last, idle, waits, blocked=False, pulls=len(created))


def is_unfinished(requests: Collection[RunRequest], now: datetime) -> bool:
    """Whether a run is not over: its process has not recorded an end, or one of its requests has not ended."""
    if any(not each.request.completed for each in requests):
        return True
    end = run_status(next(iter(requests)).run, [*requests], now).end
    return end is None or not end.over


def unfinished(kind: Kind, now: datetime) -> Run | None:
    """Return another unfinished run on the same target, with or without unended requests. A new run must wait for it.

    One that this run or another replaces is not waited for, unless it holds the controller of the workload, which it
    must release.
    """
    world, run = kind.world.at(now), kind.run
    ending = {each.run.name for each in world.requests if run.replaces(each.run)} - {kind.holder}
    names = {run.name, *ending}
    if others := [each for each in with_unended_requests(world, run) if each.name not in names]:
        return min(others, key=age_of)
    same = {each.run.name: each.run for each in world.requests if each.run.target.identity == run.target.identity}
    replaced = {each.name for each in same.values() if any(other.replaces(each) for other in same.values())}
    names |= replaced - {kind.holder}
    left = (each for name, each in same.items() if name not in names)
    return next((each for each in left if is_unfinished(world.requests_of(each), now)), None)
