"""Values as Go reads them: booleans, durations and regular expressions in the annotations of tools written in Go."""

import math
import re

from crrd.lib.jsonfields import INT64_MAX

TRUE = ("1", "t", "T", "true", "True", "TRUE")
"""What `strconv.ParseBool` takes for true."""
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_MOST_SECONDS = INT64_MAX / 1e9  # Go counts nanoseconds
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(h|ms|m|s|us|µs|ns)", re.ASCII)
_ONLY_GO = re.compile(r"\(\?(?!:)|\[[\[:]|\{,|--|&&|~~|\|\||\\[^\WdDsSwWbB_]|[*+?}]\+", re.ASCII)
"""What Go's and Python's regular expressions read, or may once read, in different ways."""


def read_seconds(given: str) -> int | None:
    """Return a duration (`time.ParseDuration`) in whole seconds, rounded up, and 0 if it is not positive.

    None if it is invalid.
    """
    size = given[given.startswith(("+", "-")) :]
    parts = _PART.findall(size)
    if size != "0" and (not parts or "".join(number + unit for number, unit in parts) != size):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _MOST_SECONDS:
        return None
    return 0 if given.startswith("-") else math.ceil(seconds)


def read_expression(given: str) -> re.Pattern[str] | None:
    """Return the expression `^GIVEN$` (package `regexp`), for `search`; None if only Go can say what it means.

    In Go, `^*` and `^?` match everywhere, so `*-config` matches what ends in -config.
    """
    start, rest = ("", given[1:]) if given.startswith(("*", "?")) else ("^", given)
    if _ONLY_GO.search(given):
        return None
    try:
        return re.compile(f"{start}{rest}$", re.ASCII)
    except re.error:
        return None
