"""Times of cron expressions."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim

from crrd.core.policy.schedule import window_at
from crrd.core.policy.types import Schedule, Window


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "now", "expected"),
    [
        (Schedule("0 4 * * 0", "UTC"), "2026-11-23T14:00", "2026-11-29T04:00"),
        (Schedule("0 2 * * *", "Europe/Berlin"), "2026-11-23T14:00", "2026-11-24T01:00"),
        (Schedule("0 2 * * *", "Europe/Berlin"), "2026-07-01T14:00", "2026-07-02T00:00"),
        (Schedule("0 2 * * *", "UTC"), "2026-11-23T02:00", "2026-11-24T02:00"),
        (Schedule("@hourly", "UTC"), "2026-11-23T14:00", "2026-11-23T15:00"),
        (Schedule("@daily", "Europe/Berlin"), "2026-11-23T14:00", "2026-11-23T23:00"),
        (Schedule("@midnight", "UTC"), "2026-11-23T14:00", "2026-11-24T00:00"),
        (Schedule("@weekly", "UTC"), "2026-11-23T14:00", "2026-11-29T00:00"),
        (Schedule("@monthly", "UTC"), "2026-11-23T14:00", "2026-12-01T00:00"),
        (Schedule("@yearly", "UTC"), "2026-11-23T14:00", "2027-01-01T00:00"),
        (Schedule("@annually", "UTC"), "2026-11-23T14:00", "2027-01-01T00:00"),
        (Schedule("0 0 29 2 *", "UTC"), "2026-11-23T02:00", "2028-02-29T00:00"),
        # As robfig/cron, which CronJobs use
        (Schedule("0 4 * * 1/2", "UTC"), "2026-11-28T04:00", "2026-11-30T04:00"),
        (Schedule("0 4 * * FRI/2", "UTC"), "2026-11-27T04:00", "2026-12-04T04:00"),
        (Schedule("0 4 * * 6/2", "UTC"), "2026-11-28T04:00", "2026-12-05T04:00"),
        (Schedule("0 4 * * sat/3", "UTC"), "2026-11-28T04:00", "2026-12-05T04:00"),
        (Schedule("0 4 * * 0/6", "UTC"), "2026-11-28T04:00", "2026-11-29T04:00"),
        (Schedule("0 4 1/10 * *", "UTC"), "2026-11-23T04:00", "2026-12-01T04:00"),
        (Schedule("5-5/15 4 * * *", "UTC"), "2026-11-23T04:05", "2026-11-24T04:05"),
        (Schedule("5/15 4 * * *", "UTC"), "2026-11-23T04:05", "2026-11-23T04:20"),
        (Schedule("0 4 ? * 1", "UTC"), "2026-11-23T04:00", "2026-11-30T04:00"),
        (Schedule("0 4 * * ?", "UTC"), "2026-11-23T04:00", "2026-11-24T04:00"),
        (Schedule("?/20 4 * * *", "UTC"), "2026-11-23T04:00", "2026-11-23T04:20"),
    ],
)
def test_the_next_time(schedule: Schedule, now: str, expected: str) -> None:
    assert schedule.next_after(at(now)) == at(expected)


@pytest.mark.parametrize(
    ("after", "until", "expected"),
    [
        ("2026-11-22T14:00", "2026-11-23T14:00", "2026-11-23T02:00"),
        ("2026-11-20T14:00", "2026-11-23T14:00", "2026-11-23T02:00"),
        ("2026-11-22T14:00", "2026-11-23T02:00", "2026-11-23T02:00"),
        ("2026-11-23T02:00", "2026-11-23T14:00", None),
        ("2026-11-22T14:00", "2026-11-23T01:59:59.5", None),
        ("2026-11-22T14:00", "2026-11-23T02:00:00.5", "2026-11-23T02:00"),
    ],
)
def test_the_latest_time(after: str, until: str, expected: str | None) -> None:
    assert Schedule("0 2 * * *", "UTC").latest(at(after), at(until)) == (at(expected) if expected else None)


MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def nights() -> dict[tuple[str, timedelta], tuple[str, datetime]]:
    """Return each way in which clocks are changed in any zone, with an example: its zone, and the last hour before it.

    Two nights differ if clocks are changed at another time of the day, or by another time.
    """
    found: dict[tuple[str, timedelta], tuple[str, datetime]] = {}
    for name in sorted(available_timezones()):
        zone, step, end = ZoneInfo(name), 2 * DAY, at("2027-01-01T00:00")
        day, before = at("2007-01-01T00:00"), at("2007-01-01T00:00").astimezone(zone).utcoffset()
        while (day := day + step) < end:
            offset = day.astimezone(zone).utcoffset()
            if offset is not None and before is not None and offset != before:
                hour = day
                while (hour - HOUR).astimezone(zone).utcoffset() == offset:
                    hour -= HOUR
                found.setdefault((f"{hour.astimezone(zone):%H:%M}", offset - before), (name, hour - HOUR))
            before = offset
    return found


Clock = list[tuple[datetime, datetime, list[datetime]]]


def watched(zone: ZoneInfo, begin: datetime, end: datetime) -> Clock:
    """Return each minute, what clocks show then, and the times that they left out before it."""
    found, now, before = Clock(), begin, begin.astimezone(zone).replace(tzinfo=None)
    while (now := now + MINUTE) < end:
        clock = now.astimezone(zone).replace(tzinfo=None)
        found.append((now, clock, [before + n * MINUTE for n in range(1, (clock - before) // MINUTE)]))
        before = clock
    return found


def due(cron: str, clock: Clock) -> list[datetime]:
    """Return the times of an expression, as cron finds them: it looks at the clock each minute."""
    fields = CronSim(cron, clock[0][0])
    is_fixed, shown, found = not any(each.startswith("*") for each in cron.split()[:2]), set[datetime](), []
    for now, there, missing in clock:
        seen = [there, *missing] if is_fixed else [there]
        if any(each.minute in fields.minutes and each.hour in fields.hours and each not in shown for each in seen):
            found.append(now)
        shown |= {there} if is_fixed else set()
    return found


def test_times_are_those_of_the_clock_when_clocks_are_changed() -> None:
    """In every zone, whatever the time by which clocks are changed: half an hour, two hours, or a day."""
    examples = nights()
    changes = {change for _, change in examples}
    assert {HOUR / 2, -HOUR / 2} <= changes, "Australia/Lord_Howe"
    assert {2 * HOUR, -2 * HOUR} <= changes, "Antarctica/Troll"
    assert DAY in changes, "Pacific/Apia: a day is missing"
    for name, hour in examples.values():
        begin = hour - 52 * HOUR
        clock = watched(ZoneInfo(name), begin, hour + 52 * HOUR)
        for cron in ("30 2 * * *", "45 23 * * *", "45 * * * *", "*/5 2 * * *", "5 */2 * * *"):
            schedule, times = Schedule(cron, name), due(cron, clock)
            for number in range(-13, 14):
                moment = hour + number * 119 * MINUTE + timedelta(seconds=number % 3)
                over = bisect_right(times, moment)
                found = schedule.latest(begin, moment), schedule.next_after(moment)
                assert found == (times[over - 1], times[over]), (cron, name, moment)


@pytest.mark.parametrize(
    ("cron", "moment", "opens"),
    [
        ("5 */2 * * *", "2026-04-04T13:06", "2026-04-04T15:35"),  # 02:05, after clocks went from 02:00 to 01:30
        ("45 * * * *", "2026-10-03T15:16", "2026-10-03T15:45"),  # 02:45, after they went from 02:00 to 02:30
    ],
)
def test_a_window_opens_where_clocks_are_changed_by_half_an_hour(cron: str, moment: str, opens: str) -> None:
    window = Window(Schedule(cron, "Australia/Lord_Howe"), 600)
    assert window_at(window, at(moment) + 10 * MINUTE) == (at(opens), None)
    assert window_at(window, at(opens) + 5 * MINUTE) == (None, at(opens) + 10 * MINUTE)


@pytest.mark.parametrize(
    ("cron", "duration", "closes"),
    [
        ("0 4 * * *", 3600, "2026-01-01T05:00"),
        ("0,30 4,5 * * *", 2400, "2026-01-01T06:10"),  # the next one opens before one closes
        ("0 4,5 * * *", 3600, "2026-01-01T06:00"),  # or just then
        ("0 * * * *", 3600, "2026-01-01T15:00"),  # for ever: as far as it looks
    ],
)
def test_windows_that_overlap_are_one(cron: str, duration: int, closes: str) -> None:
    """A run must not end in an open window."""
    window = Window(Schedule(cron, "UTC"), duration)
    assert window_at(window, at("2026-01-01T04:10")) == (None, at(closes))
