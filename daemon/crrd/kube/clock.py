"""The API server's time, as the Date headers of its answers tell it: what objects' timestamps are compared with.

The local clock only measures what has passed since an answer (monotonic), so a wrong local time does no harm.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

STEP_SECONDS = 2.0
"""A correction above this is a step of the server's clock, if it lasts: timers that were set before are wrong."""
SKEW_SECONDS = 10.0  # By how much the clocks of several API servers behind one address may differ
PERSIST_SECONDS = 30.0  # For how long no answer may agree with the estimate before a step within that skew is believed


class ServerClock:
    """Give `observe` to KubeClient as `on_date`; `now` is then right to within a second, rather late than early.

    A header has whole seconds, so each answer bounds the server's time from both sides. The estimate is the latest
    lower bound, unless an upper bound contradicts it. Of several API servers with clocks of their own, one that agrees
    with the estimate keeps it as it is, so not each deviating answer reports a step.
    """

    def __init__(self) -> None:
        self._offset: float | None = None
        self._doubted: float | None = None
        """Monotonic time since which no answer has agreed with the estimate; None where the last one did."""
        self._watchers: list[Callable[[], None]] = []

    def observe(self, date: str, sent: float, received: float) -> None:
        """Take note of an answer that was given between two monotonic times; a missing or odd header is ignored."""
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
        if abs(after - before) > SKEW_SECONDS or received - since >= PERSIST_SECONDS:
            self._offset, self._doubted = after, None
            for watcher in tuple(self._watchers):
                watcher()

    def now(self) -> datetime:
        """The API server's time. Before the first answer, the local clock's: nothing better is known."""
        return self.at(self.monotonic())

    def at(self, moment: float) -> datetime:
        """The API server's time at a `monotonic` time, by today's estimate.

        What is kept for later is kept as a monotonic time: a step of the estimate changes no age.
        """
        if self._offset is None:
            return datetime.now(UTC) - timedelta(seconds=self.monotonic() - moment)
        return datetime.fromtimestamp(moment + self._offset, UTC)

    def monotonic(self) -> float:
        """The local monotonic time, in seconds."""
        return time.monotonic()

    def on_step(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` whenever the server's clock was set to another time; returns how to end that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)
