"""Times and durations in Kubernetes' format, and for people."""

import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s?)?", re.ASCII)


_LAST_YEAR = 8999  # Durations can be added to each time that was parsed


def parse_time(timestamp: str) -> datetime | None:
    """Parse an RFC 3339 time. Return None if it is invalid, or not of a year from 1 to 8999."""
    try:
        moment = datetime.fromisoformat(timestamp)
        return moment.astimezone(UTC) if moment.tzinfo is not None and moment.year <= _LAST_YEAR else None
    except (ValueError, OverflowError):
        return None


def after(timestamp: str, seconds: int) -> datetime | None:
    """Return an RFC 3339 time plus seconds. Return None if the time is invalid or the result is out of range."""
    moment = parse_time(timestamp)
    try:
        return None if moment is None else moment + timedelta(seconds=seconds)
    except OverflowError:
        return None


def parse_duration(given: str) -> int | None:
    """Parse a duration like kubectl (30s, 5m, 1h30m, or a number of seconds). Return whole seconds, or None."""
    parts = _DURATION.fullmatch(given) if given else None
    if parts is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds


def rfc3339(moment: datetime) -> str:
    """Format a time like Kubernetes: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_duration(seconds: float) -> str:
    """Format a duration for people, with seconds below an hour: `40s`, `3m20s`, `2h5m`, `3d4h`."""
    whole = max(0, round(seconds))
    for large, small, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{large}" + (f"{rest}{small}" if rest else "")
    return f"{whole}s"
