"""The state of runs as other processes see it: what their process has recorded, or that it has stopped."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from crrd.core.api.time import parse_time
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.requests import RunRequest, last_progress
from crrd.core.rollout.rivals import age_of, with_open_requests
from crrd.core.rollout.run import Run

RUNNING, WAITING = "running", "waiting"  # Words for runs that go on


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
    waits: str  # What the run waits for; "" for nothing
    blocked: bool  # Whether it makes no progress because of that

    @property
    def word(self) -> str:
        """Its state in a word."""
        return self.end.word if self.end is not None else WAITING if self.blocked else RUNNING


def run_status(
    run: Run, requests: Sequence[RunRequest], now: datetime, is_gone: Callable[[str], bool] = lambda _: False
) -> RunStatus:
    """Return a run's state from its requests, of which there is at least one.

    `is_gone` returns whether a process (`Progress.by`) is known to have ended.
    """
    last, end = last_progress(requests), End.STOPPED
    if any(each.request.aborted for each in requests):
        end = End.ABORTED
    times = [each.request.created for each in requests] + [each.request.status.completion_time for each in requests]
    active_at = max((moment for moment in map(parse_time, times) if moment is not None), default=None)
    idle = (now - active_at).total_seconds() if active_at is not None else 0.0
    if last is None:
        return RunStatus(run, requests, RunPhase.RESTARTING, end, "", 0, 0, active_at, idle, "", blocked=False)
    goes_on = end is not End.ABORTED and last.is_live(now) and not is_gone(last.by)
    found = None if goes_on else end if end is End.ABORTED else last.end or end
    phase = RunPhase.OVER if found is not None and found.over else last.phase
    host, waits = last.by.rpartition("/")[0], last.waits if goes_on else ""
    counts = last.done, last.total, active_at, idle
    return RunStatus(run, requests, phase, found, host, *counts, waits, blocked=last.blocked)


def is_unfinished(requests: Collection[RunRequest], now: datetime) -> bool:
    """Whether a run is not over: its process has not recorded an end, or one of its requests is open."""
    if any(not each.request.completed for each in requests):
        return True
    end = run_status(next(iter(requests)).run, [*requests], now).end
    return end is None or not end.over


def unfinished(kind: Kind, now: datetime) -> Run | None:
    """Return another unfinished run on the same target, with or without open requests. A new run must wait for it.

    One that this run or another replaces is not waited for, unless it holds the controller of the workload, which it
    must release.
    """
    world, run = kind.world, kind.run
    ending = {each.run.name for each in world.requests if run.replaces(each.run)} - {kind.holder}
    names = {run.name, *ending}
    if others := [each for each in with_open_requests(world, run) if each.name not in names]:
        return min(others, key=age_of)
    same = {each.run.name: each.run for each in world.requests if each.run.target.identity == run.target.identity}
    replaced = {each.name for each in same.values() if any(other.replaces(each) for other in same.values())}
    names |= replaced - {kind.holder}
    left = (each for name, each in same.items() if name not in names)
    return next((each for each in left if is_unfinished(world.requests_of(each), now)), None)
