"""The next step of a policy (start a run, continue one, or wait), and its new status. Keeps no state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from crrd.core.api.time import format_duration, parse_time, rfc3339
from crrd.core.policy.conditions import make_conditions
from crrd.core.policy.config import is_taken_back, remember
from crrd.core.policy.course import begun, ended, given_way, is_repaired, is_without, next_run
from crrd.core.policy.failures import stopped_by, stops
from crrd.core.policy.observed import Look, Observed, Stopped, UseKey
from crrd.core.policy.order import BLIND, NO_CLAIMS, Claims, circle, claims_of, wait_for_others
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.problems import Problem, problems
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.records import can_undo, last_try, run_back
from crrd.core.policy.reloads import only
from crrd.core.policy.revisions import NOTHING, DataActions, State, actions, condemn, say
from crrd.core.policy.schedule import forget_schedule, note_schedule, window_at
from crrd.core.policy.triggers import CONFIG_CHANGE, TRIGGERS, Wanted, find_wanted
from crrd.core.policy.types import OnFailure, Policy, PolicyStatus, RunRecord
from crrd.core.rollout.phases import End

FAILED_RETRY = timedelta(seconds=15)
"""Until a failed run, or a wait for another policy, is looked at again. Not all causes for its end are watched."""
BLOCKED_SECONDS = 1800
"""A run without progress for this time, and `minReady`, makes its policy unready."""
_AFTER_NO = "the configuration{template} or the policy changes"
"""Until when no run starts after one that was halted. Pods of another template can have the same bad data."""
UNSETTLED = timedelta(minutes=10)
"""A change that never settles makes its policy unready after this time, and after ten times `settle`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write, the run to carry out, and when to decide again."""

    status: PolicyStatus
    conditions: tuple[Mapping[str, Any], ...]
    run: RunRecord | None = None  # The active run, None for none; `status` already contains it
    run_until: datetime | None = None  # When its window closes
    run_only: frozenset[str] = frozenset()  # As `Run.only`
    wake_at: datetime | None = None
    unsettled: Mapping[UseKey, datetime] = field(default_factory=dict)  # As in Observed, for the next look
    data: DataActions = NOTHING  # To be done once the status is written
    claims: Claims = NO_CLAIMS  # For the other policies of the namespace


class _Step(NamedTuple):
    """What a policy does or waits for."""

    reason: PolicyReason
    message: str
    status: PolicyStatus
    wakes: tuple[datetime | None, ...] = ()  # Beside those of its triggers
    run: RunRecord | None = None
    run_until: datetime | None = None


def _step(reason: PolicyReason, status: PolicyStatus, *wakes: datetime | None, **values: object) -> _Step:
    return _Step(reason, reason.message(**values), status, wakes)


def decide(policy: Policy, found: Observed, now: datetime) -> Decision:
    """Decide the next step; `now` is the API server's time."""
    look, obstacle, wanted = Look(policy, found, now), _obstacle(policy, found), Wanted()
    recorded, data = policy.status, NOTHING
    status = _stopped(look) if obstacle else _remembered(look)
    look = look.with_status(status)
    known = problems(look)
    if obstacle:
        step = _step(obstacle.reason, status, what=obstacle.message)
    elif found.dropped:
        step = _step(PolicyReason.DROPPED, status, fields=", ".join(found.dropped))
    elif found.missing:
        step = _step(PolicyReason.MISSING, status, what=found.missing[0])
    elif (held := _held(look)) is not None:
        step = held
    else:
        wanted = find_wanted(look)
        step = _next_step(look, known, wanted)
    claims = NO_CLAIMS if found.stopped is None or found.stopped.reason is PolicyReason.TARGET else BLIND
    if not obstacle:
        data = actions(look, recorded)
        claims = claims_of(look, wanted, step.run, waits=step.reason is PolicyReason.AFTER)
    conditions = make_conditions(look, known, step.reason, step.message)
    wake_at = min(filter(None, (*wanted.wakes, *step.wakes)), default=None)
    left = frozenset[str]() if step.run is None else only(policy.with_status(step.status), step.run)
    unsettled = {key: each.unsettled or now for each in wanted.settling for key in each.keys}
    return Decision(step.status, conditions, step.run, step.run_until, left, wake_at, unsettled, data, claims)


def _obstacle(policy: Policy, found: Observed) -> Stopped | None:
    """Return why the policy does nothing, and notes nothing of what was observed; None if it works."""
    if policy.deleting:
        return Stopped(PolicyReason.SUSPENDED, "the policy is being deleted")
    if policy.error:
        return Stopped(PolicyReason.INVALID, policy.error)
    return Stopped(PolicyReason.SUSPENDED, "spec.suspend is true") if policy.suspended else found.stopped


def _stopped(look: Look) -> PolicyStatus:
    """Return the status of a policy with an obstacle: the times of its schedule count from when it was seen first.

    Without a target, data with which a run has failed is observed.
    """
    policy = look.policy
    if policy.suspended:
        return forget_schedule(policy)
    if policy.is_off:
        return policy.status
    return replace(note_schedule(look), config=remember(look) if look.found.data else policy.status.config)


def _remembered(look: Look) -> PolicyStatus:
    """Return the status with what was observed, and with a repair by the user."""
    look = given_way(look)
    for each in TRIGGERS.values():
        look = look.with_status(each.noted(look))
    run = look.status.run
    if run is not None and run.failed and is_repaired(look, run):
        how = "have reloaded or were restarted" if run.reload else "were restarted"
        what = "the pods have the images of the template" if run.image else f"all containers of the run {how}"
        if not run.image and is_taken_back(look, run):
            what = "its changes were taken back, and all containers have the data from before"
        elif is_without(look, run):
            what = "all of them were replaced by others that do not need the run"
        message = f"{run.message}; after that, {what} and are ready"
        return ended(look.policy, run, Outcome(End.DONE), message=message, now=look.now)
    for failed in look.status.failed:
        if is_repaired(look, replace(failed, image="")):  # only its data counts
            others = tuple(each for each in look.status.failed if each is not failed)
            policy = look.policy.with_status(replace(look.status, failed=others))
            look = look.with_status(TRIGGERS[failed.trigger].complete(policy, failed))
    restores = look.policy.on_failure is OnFailure.RESTORE
    if restores and run is not None and run.trigger == CONFIG_CHANGE.name and stops(look.policy, run):
        return condemn(look, run)
    return look.status


def _held(look: Look) -> _Step | None:
    """Return that nothing is restarted, because a ConfigMap has bad data; None if none has."""
    for reason, state in ((PolicyReason.RESTORING, State.RESTORING), (PolicyReason.BAD_REVISION, State.BAD)):
        objects, runs = say(look, state)
        if objects:
            more = "".join(f"; {why}" for why in look.found.refused.values())
            return _step(reason, look.status, objects=objects, run=f"run {runs}", more=more)
    return None


def _next_step(look: Look, known: Sequence[Problem], wanted: Wanted) -> _Step:
    """Return what the policy does or waits for, if nothing stops it. Its records are up to date."""
    now, last = look.now, look.status.run
    interval = timedelta(seconds=look.policy.budget.min_interval)
    next_at = now if last is None else (parse_time(last.started) or now) + interval
    opens, closes = window_at(look.policy.window, now)
    goes_back = bool(wanted.runs) and all(each.back for each in wanted.runs)  # that does not wait for minInterval
    status, run = next_run(look, wanted.runs, may_start=opens is None and (next_at <= now or goes_back))
    last = status.run
    if run is None and (failed := stopped_by(look.policy.with_status(status))) is not None:
        newer = next((each for each in known if each.reason is PolicyReason.TEMPLATE), None)
        is_same = any(each.container in failed.containers for each in look.changes)
        if failed.image and newer is not None and not is_same:  # it is another template than that of the run
            return _Step(newer.reason, newer.message, status)
        return _failed(look, status, failed, wanted)
    if run is None:
        return _idle(look, status, wanted, known)
    wakes = opens, closes, next_at if next_at > now else None
    if opens is not None:
        return _step(PolicyReason.WINDOW, status, *wakes, time=rfc3339(opens))
    if run is not last and next_at > now and not run.back:
        return _step(PolicyReason.INTERVAL, status, *wakes, time=rfc3339(next_at))
    if run is not last and run.objects and (names := circle(look)):
        return _step(PolicyReason.CIRCLE, status, circle=" after ".join(names))
    if why := wait_for_others(look, run, begun=run is last):
        return _step(PolicyReason.AFTER, status, *wakes, now + FAILED_RETRY, what=why)
    idle_for, progress = look.found.idle_for, look.found.progress or run.reason
    why = PolicyReason.RUNNING if idle_for < BLOCKED_SECONDS + look.min_ready else PolicyReason.BLOCKED
    message = why.message(run=run.name, progress=progress, time=format_duration(idle_for // 60 * 60))
    status = status if run is last else begun(look.policy.with_status(status), run)
    return _Step(why, message, status, wakes, run, closes)


def _failed(look: Look, status: PolicyStatus, last: RunRecord, wanted: Wanted) -> _Step:
    resume = f"`kubectl recreate resume {last.name} --retry-failed -n {look.policy.namespace}`"
    until = TRIGGERS[last.trigger].resumed_by.format(resume=resume)
    if last.halted:
        until = _AFTER_NO.format(template=", the template" if last.image else "")
    if last.undoes:
        command = f"kubectl recreate undo {last.undoes} -n {look.policy.namespace}"
        until = f"the template, the policy or the configuration changes; to give the image back by hand: {command}"
    for each in wanted.retries:
        if each.run is not None and each.run.undoes:  # it has left pods
            until = f"{until}, but the one that gives {each.run.image} back is repeated at {rfc3339(each.at)}"
    for run in wanted.put_off:
        until = f"{until}, but one that gives {run.image} back begins once a node of its pods is not down any more"
    at, message = look.now + FAILED_RETRY, f"{last.message}{_undone(look.policy, status, last)}"
    return _step(PolicyReason.FAILED, status, at, run=last.name, message=message, until=until)


def _undone(policy: Policy, status: PolicyStatus, failed: RunRecord) -> str:
    """Return what became of the image that a failed run has given, "" if nothing is to be said."""
    if (back := run_back(status, failed)) is not None:
        how = "failed" if back.failed else "ended"
        return f"; run {back.name}, which gives {back.image} back, has {how}: {back.message}"
    if not (policy.undoes and failed.image and failed.before) or failed.undoes or can_undo(failed):
        return ""
    why = "which has no fixed tag" if len(failed.before) == 1 else "and not one image"
    return f"; not undone, because its pods had {', '.join(failed.before)} before, {why}"


def _idle(look: Look, status: PolicyStatus, wanted: Wanted, known: Sequence[Problem]) -> _Step:
    now, patience = look.now, max(timedelta(seconds=10 * look.policy.settle), UNSETTLED)
    for each in sorted(wanted.settling, key=lambda each: each.unsettled or now)[:1]:
        if each.unsettled is not None and each.unsettled + patience <= now:
            return _step(PolicyReason.UNSETTLED, status, objects=each.objects, since=rfc3339(each.unsettled))
    for each in wanted.settling[:1]:
        return _step(PolicyReason.SETTLING, status, objects=each.objects, time=rfc3339(each.limit))
    if (blocking := next((each for each in known if each.blocking), None)) is not None:
        return _Step(blocking.reason, blocking.message, status)
    if look.found.template is not None and look.found.template.wait:
        return _step(PolicyReason.CONTROLLER, status, what=look.found.template.wait)
    tries = filter(None, (last_try(look, each) for each in look.changes))
    if (failed := next((each for each in tries if stops(look.policy, each)), None)) is not None:
        return _failed(look, status, failed, wanted)
    for at, last, _ in wanted.retries[:1]:
        values = {"message": last.message, "time": rfc3339(at), "left": TRIGGERS[last.trigger].retried}
        return _step(PolicyReason.RETRY, status, run=last.name, **values)
    skipped = f"; skipped {status.skipped}" if status.skipped else ""
    more = "; see condition Effective" if known else ""
    return _step(PolicyReason.IDLE, status, more=f"{skipped}{more}")
