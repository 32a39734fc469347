"""Which runs the triggers of a policy ask for now, and when they can ask for others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crrd.core.api.time import format_duration, parse_time, rfc3339
from crrd.core.policy.config import Due, due
from crrd.core.policy.observed import Look
from crrd.core.policy.runs import Trigger, last_try, make_image_record, make_record, stops
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord, Window

RETRY = timedelta(minutes=10)
"""After a run for maxAge or for the image of the template, until what it has left is tried again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the triggers ask for."""

    runs: tuple[RunRecord, ...] = ()  # That should start, those for the earliest changes first
    wakes: tuple[datetime, ...] = ()  # When there can be others
    settling: tuple[Due, ...] = ()  # Changed configuration that settles, what does so first at the beginning
    retry_at: datetime | None = None
    """When what a run has left is tried again; None for nothing."""
    left_by: RunRecord | None = None  # That run


def find_wanted(look: Look) -> Wanted:
    """Return what the triggers of a policy with up-to-date records ask for."""
    changes, settling = due(look, look.served)
    image = _of_template(look, changes, settling)
    first = image.runs if image.retry_at is None else ()  # what is tried again comes after all else
    given = {name for run in first for name in run.containers}  # that run brings them the changed data, too
    left = [replace(each, containers=tuple(name for name in each.containers if name not in given)) for each in changes]
    runs = [make_record(look, Trigger.CONFIG, each.containers, each.limit, each) for each in left if each.containers]
    wakes = (*(each.limit for each in settling[:1]), *image.wakes)
    if first or runs:
        return Wanted((*first, *runs), wakes, tuple(settling))
    names = look.policy.containers or tuple(sorted({each.name for each in look.restartable}))
    timed = _scheduled(look, names) if names else Wanted()
    aged = _aged(look, names) if not timed.runs else Wanted()
    runs_then, retried = timed.runs or aged.runs or image.runs, aged if aged.retry_at is not None else image
    wakes = (*wakes, *timed.wakes, *aged.wakes)
    return Wanted(runs_then, wakes, tuple(settling), retried.retry_at, retried.left_by)


def _of_template(look: Look, changes: Sequence[Due], settling: Sequence[Due]) -> Wanted:
    """Return a run for the first container that lacks the image of the template. The others follow one by one.

    It waits until changed configuration of the container has settled, so that one restart brings both. A run that has
    ended and left something, for example a pod that could not start, is repeated after RETRY. One that failed
    is not, and stops the others, until the template, the policy or data of its container changes.
    """
    again, active = Wanted(), look.status.run
    for each in look.changes:
        data, last = next((due for due in changes if each.container in due.containers), None), last_try(look, each)
        if last is not None and stops(look.policy, last) and (data is None or rfc3339(data.limit) <= last.since):
            return Wanted()
        away = [node in look.found.down for _, node in each.lacking]
        if (away and all(away)) or any(each.container in other.containers for other in settling):
            continue
        run = make_image_record(look, each, data)
        goes_on = active is not None and not active.finished and active.gives == run.gives
        ended = parse_time(last.finished) if last is not None and not last.failed else None
        if ended is None or goes_on:
            return Wanted((run,))
        at = ended + RETRY
        if again.retry_at is None or at < again.retry_at:
            again = Wanted((run,) if at <= look.now else (), (at,) if at > look.now else (), retry_at=at, left_by=last)
    return again


def _scheduled(look: Look, names: tuple[str, ...]) -> Wanted:
    """Return a run for the latest time of the schedule. Late ones were skipped before (`note_schedule`)."""
    schedule, now = look.policy.schedule, look.now
    if schedule is None:
        return Wanted()
    if (time := schedule.latest(parse_time(look.status.scheduled) or now, now)) is not None:
        return Wanted((make_record(look, Trigger.SCHEDULE, names, time),))
    return Wanted(wakes=(schedule.next_after(now),))


def _aged(look: Look, names: tuple[str, ...]) -> Wanted:
    """Return a run for the containers that are too old, except those that the last such run has just left."""
    if look.policy.max_age is None:
        return Wanted()
    age, last, now = timedelta(seconds=look.policy.max_age), look.status.run, look.now
    running = sorted((each.started, each.name) for each in look.served if each.name in names)
    old = [each for each in running if each[0] <= now - age]
    wakes, retry_at = [started + age for started, _ in running if started > now - age][:1], None
    ended_at = parse_time(last.finished) if last is not None and last.trigger == Trigger.AGE else None
    if last is not None and ended_at is not None and ended_at + RETRY > now:
        untried = [each for each in old if rfc3339(each[0]) > last.since]
        if len(untried) < len(old):
            retry_at = ended_at + RETRY
            wakes.append(retry_at)
        old = untried
    too_old = tuple(dict.fromkeys(name for _, name in old))
    runs = (make_record(look, Trigger.AGE, too_old, now - age),) if old else ()
    return Wanted(runs, tuple(wakes), retry_at=retry_at, left_by=last)


def forget_schedule(policy: Policy) -> PolicyStatus:
    """Return the status during a suspension, after which the schedule counts as new."""
    scheduled = policy.status.scheduled or (policy.created if policy.schedule is not None else "")
    return replace(policy.status, schedule="", scheduled=scheduled)


def note_schedule(look: Look) -> PolicyStatus:
    """Return the status for the policy's current schedule. A time for which no run can start any more is skipped.

    Times before an edit of the schedule, or before the end of a suspension, do not count. The times of a new policy
    count from its creation.
    """
    policy, status, schedule, now = look.policy, look.status, look.policy.schedule, look.now
    if schedule is None:
        return replace(status, schedule="", scheduled="", skipped="")
    if str(schedule) != status.schedule:
        skipped = ""
        if not status.schedule and (before := parse_time(status.scheduled)) is not None:  # it was suspended
            missed = schedule.latest(before, now)
            skipped = status.skipped if missed is None else f"{rfc3339(missed)}: the policy was suspended"
        scheduled = rfc3339(now) if policy.conditions else policy.created
        status = replace(status, schedule=str(schedule), scheduled=scheduled, skipped=skipped)
    time = schedule.latest(parse_time(status.scheduled) or now, now) if look.found.running else None
    if time is None or schedule.deadline is None or not _is_late(policy, time, schedule.deadline, now):
        return status
    skipped = f"{rfc3339(time)}: no run could start within {format_duration(schedule.deadline)}"
    return replace(status, scheduled=rfc3339(time), skipped=skipped)


def _is_late(policy: Policy, time: datetime, deadline: int, now: datetime) -> bool:
    """Whether the deadline of a scheduled time is over. It begins when window and minInterval allow a run."""
    last, start, patience = policy.status.run, time, timedelta(seconds=deadline)
    began = None if last is None else parse_time(last.started)
    if began is not None and began <= time + patience:
        start = max(time, began + timedelta(seconds=policy.budget.min_interval))
    opens, _ = window_at(policy.window, start)
    return now > (opens or start) + patience


def window_at(window: Window | None, moment: datetime) -> tuple[datetime | None, datetime | None]:
    """Return when the window opens (None: it is open or there is none), and when it closes (None: never)."""
    if window is None:
        return None, None
    length = timedelta(seconds=window.duration)
    opened = window.opens.latest(moment - length, moment)
    return (window.opens.next_after(moment), None) if opened is None else (None, opened + length)
