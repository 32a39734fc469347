"""An event loop whose clock jumps to the next timer: waiting takes no real time, and order and times are exact."""

import asyncio
import selectors
from datetime import UTC, datetime, timedelta
from typing import Any

from crrd.kube.clock import ServerClock


class _Jump(selectors.DefaultSelector):
    """A selector that does not wait. It advances the loop's clock instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing is left that could ever happen: the test would hang")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time starts at 1000 s and passes only while every task waits."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return 1000.0 + self._jump.now


class LoopClock(ServerClock):
    """The API server's time goes with the loop's."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return self.at(self.monotonic())

    def at(self, moment: float) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=moment)
