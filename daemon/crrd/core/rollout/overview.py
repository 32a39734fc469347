"""The state of a run as other processes see it: from its requests, and from the progress written on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from crrd.core.api.time import parse_time
from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.requests import RunRequest, last_progress
from crrd.core.rollout.run import RUNNING, STOPPED, WAITING, Run
from crrd.core.rollout.standing import count_done


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run, as `status` shows it."""

    run: Run
    requests: Sequence[RunRequest]
    state: str  # RUNNING, WAITING, STOPPED, or how it ended
    host: str  # The host where its process runs, or ran
    done: int
    total: int
    active_at: datetime | None  # When a request of the run was last created or completed
    idle: float  # Seconds since then
    waits: str  # What the run waits for; "" for nothing


def run_status(
    run: Run, requests: Sequence[RunRequest], now: datetime, is_gone: Callable[[str], bool], plan: Plan | None = None
) -> RunStatus:
    """Compute a run's state from its requests, and from its pods if `plan` (of `seen_by_others`) is given.

    `is_gone` returns whether a process (`Progress.by`) is known to have ended.
    """
    last = last_progress(requests)
    state, done, total, waits = last.state, last.done, last.total, last.waits
    if state in (RUNNING, WAITING) and (is_gone(last.by) or not last.is_live(now)):
        state = STOPPED
    if any(each.request.aborted for each in requests):
        state = End.ABORTED
    if plan is not None:
        state, (done, total), waits = _state_by_pods(plan, state), count_done(plan.rows), "; ".join(plan.waits)
    times = [each.request.created for each in requests] + [each.request.status.completion_time for each in requests]
    active_at = max((moment for moment in map(parse_time, times) if moment is not None), default=None)
    idle = (now - active_at).total_seconds() if active_at is not None else 0.0
    waits = waits if state in (RUNNING, WAITING) else ""
    return RunStatus(run, requests, state, last.by.rpartition("/")[0], done, total, active_at, idle, waits)


def _state_by_pods(plan: Plan, recorded: str) -> str:
    if plan.outcome is End.FAILED and recorded in (RUNNING, WAITING):
        return recorded  # its process retries failed requests one after the other
    if plan.outcome is End.INCOMPLETE and recorded in (RUNNING, WAITING):
        return WAITING  # its process waits for the nodes
    if plan.outcome is not None:
        return STOPPED if plan.outcome is End.RIVAL else plan.outcome
    if recorded not in (RUNNING, WAITING):
        return recorded if recorded == End.ABORTED else STOPPED
    return WAITING if plan.wait.why else RUNNING
