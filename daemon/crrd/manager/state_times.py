"""The times since which requests have been in their state: open or completed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from crrd.core.api.time import parse_time
from crrd.core.api.types import Request
from crrd.kube.clock import ServerClock

CLOCK_SKEW_SECONDS = 120.0
"""The largest assumed difference between the clocks of API servers. A listed open request may be younger by this."""


class StateSince(NamedTuple):
    """The time since which a request has been in its state."""

    moment: float  # The clock's monotonic time
    watched: bool  # Whether a watch reported it at that time


class StateTimes:
    """The times since which requests have been in their state (open or completed)."""

    def __init__(self, clock: ServerClock) -> None:
        self._clock = clock
        self._since: dict[str, dict[tuple[str, bool], StateSince]] = {}
        """Pod -> (UID of a request, whether it is completed) -> the time since which this is so."""

    def begin(self, request: Request) -> None:
        """Record a request that a watch reports as new. It was created just now, whatever its creationTimestamp."""
        since = StateSince(self._clock.monotonic(), watched=True)
        if not request.completed:
            self._since.setdefault(request.pod_key, {})[request.uid, False] = since

    def watched_seconds(self, key: str, requests: Iterable[Request]) -> float:
        """Return for how long a watch has known the oldest open request of a pod; infinity if one came from a list."""
        known = [self._since.get(key, {}).get((request.uid, False)) for request in requests]
        first = min(each.moment if each is not None and each.watched else float("-inf") for each in known)
        return self._clock.monotonic() - first

    def of(self, key: str, requests: Sequence[Request]) -> Mapping[tuple[str, bool], StateSince]:
        """Return the times of a pod's requests that are open, or completed with a TTL. Drop those of other requests."""
        before, now = self._since.pop(key, {}), self._clock.monotonic()
        after = {}
        for request in requests:
            state = request.uid, request.completed
            if state in before:
                after[state] = before[state]
            elif not request.completed or request.ttl_seconds is not None:
                age = 0.0 if request.completed else self._least_age(request)
                after[state] = StateSince(now - age, watched=False)
        if after:
            self._since[key] = after
        return after

    def _least_age(self, request: Request) -> float:
        """Return the least age in seconds of a request that a list reported, whichever clock set its creationTimestamp.

        So a new leader does not end a young request as if its node had not responded, but soon ends an overdue one.
        """
        created = parse_time(request.created)
        age = 0.0 if created is None else (self._clock.now() - created).total_seconds()
        return max(0.0, age - CLOCK_SKEW_SECONDS)
