"""The API server's time, estimated from the Date headers of its responses, to compare with timestamps of objects.

The local monotonic clock measures the time since a response, so a wrong local wall clock does no harm.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

STEP_SECONDS = 2.0
"""A correction above this counts as a step of the server's clock if it lasts; timers set before the step are wrong."""
SKEW_SECONDS = 10.0  # By how much the clocks of several API servers behind one address may differ
CONFIRM_SECONDS = 30.0  # How long responses must contradict the estimate before a step within SKEW_SECONDS counts


class ServerClock:
    """Pass `observe` to KubeClient as `on_date`. `now` is then right to within a second, and late rather than early.

    A Date header has whole seconds, so each response gives a lower and an upper bound of the server's time. The
    estimate is the highest lower bound, unless an upper bound contradicts it. If several API servers have different
    clocks, a response that agrees with the estimate confirms it, so a deviating response does not report a step.
    """

    def __init__(self) -> None:
        self._offset: float | None = None
        self._doubted: float | None = None
        """Monotonic time since which no response has agreed with the estimate; None if the last one did."""
        self._watchers: list[Callable[[], None]] = []

    def observe(self, date: str, sent: float, received: float) -> None:
        """Use the Date header of a response, made between two monotonic times. Ignores a missing or invalid header."""
        try:
            server_time = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError):
            return
        lowest, highest = server_time - received, server_time + 1 - sent
        before = lowest if self._offset is None else self._offset
        after = min(max(before, lowest), highest)
        if abs(after - before) <= STEP_SECONDS:
            self._offset, self._doubted = after, None
            return
        since = self._doubted = received if self._doubted is None else self._doubted
        if abs(after - before) > SKEW_SECONDS or received - since >= CONFIRM_SECONDS:
            self._offset, self._doubted = after, None
            for watcher in tuple(self._watchers):
                watcher()

    def now(self) -> datetime:
        """Return the API server's time; before the first response, the local wall clock's."""
        return self.at(self.monotonic())

    def at(self, moment: float) -> datetime:
        """Return the API server's time at a `monotonic` time, by the current estimate.

        Store monotonic times and convert them here, so that a step of the estimate does not change ages.
        """
        if self._offset is None:
            return datetime.now(UTC) - timedelta(seconds=self.monotonic() - moment)
        return datetime.fromtimestamp(moment + self._offset, UTC)

    def monotonic(self) -> float:
        """Return the local monotonic time in seconds."""
        return time.monotonic()

    def on_step(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` after each step of the server's clock; returns a function that unregisters it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)
