"""The times of a cron expression in a time zone, where clocks are changed as in Debian's cron.

Fixed times (neither minute nor hour begin with `*`) follow the clock on the wall. One in the missing hour comes as soon
as the hour is over, and one in the repeated hour comes once. All other expressions match the clock at every moment.

CronSim computes times on a clock that is never changed. With a time zone, it goes forward in whole hours, and misses
times where clocks are changed by half an hour (Australia/Lord_Howe).
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim

from crrd.lib.jsonfields import decimal

CRON_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""The names that CronJobs know, and what they stand for."""
_WEEKDAY = 4  # The index of its field
_DAY = re.compile(r"[0-6]|sun|mon|tue|wed|thu|fri|sat", re.ASCII | re.IGNORECASE)


def spelled(cron: str) -> str:
    """Return the expression in words that CronSim reads as a CronJob does (robfig/cron, `ParseStandard`).

    `?` is `*`. `N/STEP` ends with the last value of its field: as a weekday with Saturday, not with 7, Sunday.
    `N-N/STEP` is N alone, where CronSim reads `N/STEP`.
    """
    return " ".join(
        ",".join(_term(term, is_weekday=index == _WEEKDAY) for term in field.split(","))
        for index, field in enumerate(cron.split())
    )


def _term(term: str, *, is_weekday: bool) -> str:
    base, slash, step = term.partition("/")
    base = "*" if base == "?" else base
    first, dash, last = base.partition("-")
    if slash and decimal(step):
        if is_weekday and not dash and _DAY.fullmatch(base):
            first, last = base, "6"
        if first == last or (first.lower(), last) == ("sat", "6"):
            return first
        if last and not dash:
            base = f"{first}-{last}"
    return f"{base}{slash}{step}"


def next_time(cron: str, zone: tzinfo, moment: datetime) -> datetime:
    """Return the first time after `moment`, in UTC. Raises CronSimError, or StopIteration if there is none."""
    start = _local(moment, zone) - _repeated(moment, zone)
    return min([next(time for time in times if time > moment) for times in _chains(cron, zone, start, reverse=False)])


def last_time(cron: str, zone: tzinfo, moment: datetime) -> datetime:
    """Return the last time that is not after `moment`, in UTC. Raises the errors of `next_time`."""
    start = _local(moment, zone).replace(microsecond=0) + _repeated(moment, zone) + timedelta(seconds=1)
    return max([next(time for time in times if time <= moment) for times in _chains(cron, zone, start, reverse=True)])


def _chains(cron: str, zone: tzinfo, start: datetime, *, reverse: bool) -> Iterator[Iterator[datetime]]:
    """Yield the times of the first and of the second pass of repeated hours. Each of both is in order."""
    is_fixed = not any(field.startswith("*") for field in cron.split()[:2])
    for fold in (0,) if is_fixed else (0, 1):
        yield _times(CronSim(cron, start, reverse=reverse), zone, fold, is_fixed=is_fixed)


def _times(locals_: CronSim, zone: tzinfo, fold: int, *, is_fixed: bool) -> Iterator[datetime]:
    """Yield the moments at which clocks show these local times."""
    for local in locals_:
        moment = _utc(local, zone, fold)
        if _local(moment, zone) == local:
            yield moment
        elif is_fixed:
            yield _end_of_missing_hour(local, zone)


def _end_of_missing_hour(local: datetime, zone: tzinfo) -> datetime:
    """Return when clocks are put forward over a local time. With the offset after it, that time lies before."""
    before, after = _utc(local, zone, 1), _utc(local, zone, 0)
    offset, seconds = after.astimezone(zone).utcoffset(), range(round((after - before).total_seconds()))

    def is_over(second: int) -> bool:
        return (before + timedelta(seconds=second)).astimezone(zone).utcoffset() == offset

    return before + timedelta(seconds=bisect_left(seconds, x=True, key=is_over))


def _repeated(moment: datetime, zone: tzinfo) -> timedelta:
    """Return how far clocks are put back, if they show this time twice; or 0."""
    local = _local(moment, zone)
    return _utc(local, zone, 1) - _utc(local, zone, 0)


def _local(moment: datetime, zone: tzinfo) -> datetime:
    """Return what clocks show, without a time zone."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _utc(local: datetime, zone: tzinfo, fold: int) -> datetime:
    return local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
