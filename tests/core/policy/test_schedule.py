"""Times of cron expressions."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest

from crrd.core.policy.types import Schedule


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


@pytest.mark.parametrize("cron", ["30 2 * * *", "45 23 * * *", "15 0,1,2,3 * * *", "0-59 1 * * *", "*/20 * * * *"])
@pytest.mark.parametrize(
    ("zone", "night"),
    [
        ("Europe/Berlin", "2026-10-25"),
        ("Europe/Berlin", "2026-03-29"),
        ("Africa/Cairo", "2026-10-30"),  # midnight comes twice
        ("America/Havana", "2026-03-08"),  # there is no midnight
        ("Australia/Lord_Howe", "2026-04-05"),  # half an hour comes twice
    ],
)
def test_times_stay_in_order_when_clocks_are_changed(zone: str, night: str, cron: str) -> None:
    """While an hour comes for the second time, the times of the first are over, and the next time is later than now."""
    schedule, day = Schedule(cron, zone), timedelta(days=1)
    begin, end = at(night) - 3 * day, at(night) + 3 * day
    times = sorted({*takewhile(lambda time: time < end, (time.astimezone(UTC) for time in schedule.times(begin)))})
    for minutes in range(-24 * 60, 24 * 60, 5):
        now = at(night) + timedelta(minutes=minutes)
        over = bisect_right(times, now)
        assert (schedule.latest(begin, now), schedule.next_after(now)) == (times[over - 1], times[over])
