"""The schedule and the window: how they are read, and which times of the schedule count, as the status records it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSimError

from crrd.core.api.fields import Section
from crrd.core.api.time import format_duration, parse_time, rfc3339
from crrd.core.policy.cron import CRON_NAMES
from crrd.core.policy.observed import Look
from crrd.core.policy.types import Policy, PolicyStatus, Schedule, Window
from crrd.lib.jsonfields import shown

MOST_WINDOWS = 100
"""Through how many windows a scheduled time may wait."""
_CHAINED = 10  # How many windows that overlap are looked through for the time at which the last one closes


def read_schedule(section: Section, deadline: int | None = None) -> Schedule | None:
    """Read the cron expression and the time zone of an object. None if they are invalid."""
    schedule = Schedule(section.text("cron"), section.text("timeZone"), deadline)
    if wrong := _wrong_schedule(schedule):
        section.reject(f"must be valid: {wrong}")
        return None
    return schedule


def _wrong_schedule(schedule: Schedule) -> str:
    """Return what is wrong with a schedule, "" for nothing."""
    cron, zone = schedule.cron, schedule.zone
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return f"time zone {zone!r} not found"
    if len(cron.split()) != 5 and cron not in CRON_NAMES:
        fields, names = "five fields (minute, hour, day of the month, month, weekday)", ", ".join(CRON_NAMES)
        return f"cron {cron!r} must have {fields} or be one of {names}"
    try:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        schedule.latest(moment, moment)
        schedule.next_after(moment)
    except CronSimError as error:
        return f"cron {cron!r}: {str(error).lower()}"
    except ValueError:  # Python reads no number with thousands of digits
        return f"cron {shown(cron)}: a number is too large"
    except StopIteration:
        return f"cron {cron!r} matches no time"
    return ""


def window_at(window: Window | None, moment: datetime) -> tuple[datetime | None, datetime | None]:
    """Return when the window opens (None: it is open or there is none), and when it closes (None: never)."""
    if window is None:
        return None, None
    length = timedelta(seconds=window.duration)
    opened = window.opens.latest(moment - length, moment)
    if opened is None:
        return window.opens.next_after(moment), None
    for _ in range(_CHAINED):  # it may open again before it closes
        if (again := window.opens.latest(opened, opened + length)) is None:
            break
        opened = again
    return None, opened + length


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
    """Whether the deadline of a scheduled time is over. Only time in which window and minInterval allow a run counts.

    It is over after MOST_WINDOWS in any case, because each of them takes time to find.
    """
    last, left = policy.status.run, timedelta(seconds=deadline)
    began = (parse_time(last.started) if last is not None else None) or time
    free = began + timedelta(seconds=policy.budget.min_interval if last is not None else 0)
    for _ in range(MOST_WINDOWS):
        opens, closes = window_at(policy.window, time)
        if opens is not None:
            if opens >= now:
                return False
            time, (_, closes) = opens, window_at(policy.window, opens)
        until = min(closes or now, now)
        left -= until - time - max(min(until, free) - max(time, began), timedelta())
        if until == now or left < timedelta():
            return left < timedelta()
        time = until
    return True
