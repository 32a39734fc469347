"""The next step of a policy (start a run, continue one, or wait), and its new status. Keeps no state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.time import format_duration, parse_time, rfc3339
from crrd.core.policy.conditions import make_conditions
from crrd.core.policy.config import Due, remember
from crrd.core.policy.observed import Look, Observed, UseKey
from crrd.core.policy.problems import PolicyReason, Problem, problems
from crrd.core.policy.runs import begun, ended, is_repaired, last_try, next_run, stops
from crrd.core.policy.triggers import Wanted, find_wanted, forget_schedule, note_schedule, window_at
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord

FAILED_RETRY = timedelta(seconds=15)
"""Until a failed run is looked at again, because no watch reports what a user does about it."""
BLOCKED_SECONDS = 1800
"""A run without progress for this time, and `minReady`, makes its policy unready."""
UNSETTLED = timedelta(minutes=10)
"""A change that never settles makes its policy unready after this time, and after ten times `settle`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write, the run to carry out, and when to decide again."""

    status: PolicyStatus
    conditions: tuple[Mapping[str, Any], ...]
    run: RunRecord | None = None  # The active run, None for none; `status` already contains it
    run_until: datetime | None = None  # When its window closes
    wake_at: datetime | None = None
    unsettled: Mapping[UseKey, datetime] = field(default_factory=dict)  # As in Observed, for the next look


@dataclass(frozen=True, slots=True)
class _Step:
    """What a policy does or waits for."""

    reason: PolicyReason
    message: str
    status: PolicyStatus
    wakes: tuple[datetime | None, ...] = ()
    run: RunRecord | None = None
    run_until: datetime | None = None
    settling: tuple[Due, ...] = ()


def decide(policy: Policy, found: Observed, now: datetime) -> Decision:
    """Decide the next step; `now` is the API server's time."""
    look, obstacle = Look(policy, found, now), _obstacle(policy, found)
    status = _stopped(policy) if obstacle else _remembered(look)
    look = replace(look, policy=replace(policy, status=status))
    known = problems(look)
    step = _Step(*obstacle, status) if obstacle else _next_step(look, known)
    conditions = make_conditions(look, known, step.reason, step.message)
    wake_at = min(filter(None, step.wakes), default=None)
    unsettled = {key: each.unsettled or now for each in step.settling for key in each.keys}
    return Decision(step.status, conditions, step.run, step.run_until, wake_at, unsettled)


def _obstacle(policy: Policy, found: Observed) -> tuple[PolicyReason, str] | None:
    """Return why the policy does nothing, and notes nothing of what was observed; None if it works."""
    for reason, message in (
        (PolicyReason.INVALID, policy.error),
        (PolicyReason.SUSPENDED, "spec.suspend is true" if policy.suspended else ""),
        (PolicyReason.TARGET, found.problem),
        (PolicyReason.UNREADABLE, found.unreadable),
    ):
        if message:
            return reason, message
    return None


def _stopped(policy: Policy) -> PolicyStatus:
    return forget_schedule(policy) if policy.suspended else policy.status


def _remembered(look: Look) -> PolicyStatus:
    """Return the status with what was observed: records of configuration, the schedule, and a repair by the user."""
    status = replace(note_schedule(look), config=remember(look), tried=_tried(look))
    look, run = replace(look, policy=replace(look.policy, status=status)), status.run
    if run is not None and run.failed and is_repaired(look, run):
        what = "the pods have the images of the template" if run.image else "all containers of the run were restarted"
        message = f"{run.message}; after that, {what} and are ready"
        return ended(look.policy, run, failed=False, message=message, now=look.now)
    return status


def _tried(look: Look) -> tuple[RunRecord, ...]:
    """Return the last runs for images, without failures of a template that was set back."""
    template, lacking = look.found.template, {each.container for each in look.changes}
    if template is None or template.wait or template.problem:
        return look.status.tried
    return tuple(each for each in look.status.tried if not each.failed or lacking.intersection(each.containers))


def _next_step(look: Look, known: Sequence[Problem]) -> _Step:
    """Return what the policy does or waits for, with up-to-date records."""
    found = look.found
    if found.dropped:
        why = PolicyReason.DROPPED.say(fields=", ".join(found.dropped))
        return _Step(PolicyReason.DROPPED, ": ".join([why, *PolicyReason.DROPPED.advise()]), look.status)
    if found.missing:
        why = f"{found.missing[0]}; not restarting containers, because they could not start again"
        return _Step(PolicyReason.MISSING, why, look.status)
    wanted = find_wanted(look)
    return replace(_step_for(look, known, wanted), settling=wanted.settling)


def _step_for(look: Look, known: Sequence[Problem], wanted: Wanted) -> _Step:
    """Return what the policy does or waits for, if nothing stops it."""
    now = look.now
    opens, closes = window_at(look.policy.window, now)
    next_at = _start_after(look.policy, look.status.run, now)
    status, run = next_run(look, wanted.runs, may_start=opens is None and next_at <= now)
    policy, last = replace(look.policy, status=status), status.run
    if run is None and last is not None and stops(policy, last):
        newer = next((each for each in known if each.reason is PolicyReason.TEMPLATE), None)
        is_same = any(each.container in last.containers for each in look.changes)
        if last.image and newer is not None and not is_same:  # it is another template than that of the run
            return _Step(newer.reason, newer.message, policy.status, wanted.wakes)
        return _failed(policy, last, wanted, now)
    if run is None:
        return _idle(look, policy.status, wanted, known)
    wakes = (*wanted.wakes, opens, closes, next_at if next_at > now else None)
    if opens is not None:
        return _Step(PolicyReason.WINDOW, f"the window opens at {rfc3339(opens)}", policy.status, wakes)
    if run is not last and next_at > now:
        why = f"the next run may start at {rfc3339(next_at)}"
        return _Step(PolicyReason.INTERVAL, why, policy.status, wakes)
    status = policy.status if run is last else begun(policy, run)
    why = f"run {run.name}: {look.found.progress or run.reason}"
    if look.found.idle_for < BLOCKED_SECONDS + look.min_ready:
        return _Step(PolicyReason.RUNNING, why, status, wakes, run, closes)
    why = f"{why}; {PolicyReason.BLOCKED.say(time=format_duration(look.found.idle_for // 60 * 60))}"
    return _Step(PolicyReason.BLOCKED, why, status, wakes, run, closes)


def _start_after(policy: Policy, last: RunRecord | None, now: datetime) -> datetime:
    """Return when a run may start after the last one."""
    began = parse_time(last.started) if last is not None else None
    return (began or now) + timedelta(seconds=policy.budget.min_interval if last is not None else 0)


def _failed(policy: Policy, last: RunRecord, wanted: Wanted, now: datetime) -> _Step:
    command = f"`kubectl recreate resume {last.name} --retry-failed -n {policy.namespace}`"
    until = f"no run starts until the policy or the configuration changes, or {command} succeeds"
    if last.image:  # it may have created no request that `resume` could find
        until = "no run starts until the template, the policy or the configuration changes"
        until += "; to try again, set spec.suspend to true, and back to false"
    why = f"run {last.name} failed: {last.message}; {until}"
    return _Step(PolicyReason.FAILED, why, policy.status, (*wanted.wakes, now + FAILED_RETRY))


def _idle(look: Look, status: PolicyStatus, wanted: Wanted, known: Sequence[Problem]) -> _Step:
    now, settle = look.now, look.policy.settle
    patience = max(timedelta(seconds=10 * settle), UNSETTLED)
    for each in sorted(wanted.settling, key=lambda each: each.unsettled or now)[:1]:
        if each.unsettled is not None and each.unsettled + patience <= now:
            values = {"objects": each.objects, "since": rfc3339(each.unsettled)}
            why = ": ".join([PolicyReason.UNSETTLED.say(**values), *PolicyReason.UNSETTLED.advise()])
            return _Step(PolicyReason.UNSETTLED, why, status, wanted.wakes)
    for each in wanted.settling[:1]:
        why = f"{each.objects} changed; waiting until {rfc3339(each.limit)} for more changes"
        return _Step(PolicyReason.SETTLING, why, status, wanted.wakes)
    if (blocking := next((each for each in known if each.blocking), None)) is not None:
        return _Step(blocking.reason, blocking.message, status, wanted.wakes)
    if look.found.template is not None and look.found.template.wait:
        return _Step(PolicyReason.CONTROLLER, look.found.template.wait, status, wanted.wakes)
    tries = filter(None, (last_try(look, each) for each in look.changes))
    if (failed := next((each for each in tries if stops(look.policy, each)), None)) is not None:
        return _failed(replace(look.policy, status=status), failed, wanted, now)
    if wanted.retry_at is not None and (last := wanted.left_by) is not None:
        left = "pods lack the image of the template" if last.image else "containers are older than maxAge"
        why = f"Trying again at {rfc3339(wanted.retry_at)}, because {left}"
        return _Step(PolicyReason.RETRY, f"run {last.name}: {last.message}. {why}", status, wanted.wakes)
    skipped = f"; skipped {status.skipped}" if status.skipped else ""
    more = "; see condition Effective" if known else ""
    return _Step(PolicyReason.IDLE, f"no container has to be restarted{skipped}{more}", status, wanted.wakes)
