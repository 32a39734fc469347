"""A few places for many runs, so that their number does not limit the manager's memory and calls."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A few places. Those who have waited in vain before come after all others."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {False: deque(), True: deque()}

    @property
    def full(self) -> bool:
        """Whether the next one has to wait."""
        return self._free <= 0

    @asynccontextmanager
    async def take(self, *, idle: bool) -> AsyncIterator[None]:
        """Wait for a place, and have it inside the block."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[idle].append(granted)
        self._hand_on()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._free += 1
            granted.cancel()
            self._hand_on()

    def _hand_on(self) -> None:
        for waiting in self._waiting.values():
            while waiting and self._free > 0:
                granted = waiting.popleft()
                if not granted.done():
                    self._free -= 1
                    granted.set_result(None)
