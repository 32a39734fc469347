"""Places for the runs of policies, shared fairly between namespaces."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from crrd.lib.looptime import loop_time

AGED_SECONDS = 60.0  # How long those that have waited in vain before let others go first


class _Waiting(NamedTuple):
    """Who waits for a place."""

    namespace: str
    idle_until: float  # The loop's time until which all others of the namespace come first
    granted: asyncio.Future[None]


class Turns:
    """A few places. The next one is for the namespace that has the fewest.

    In it, those who have waited in vain before come after all others, but not after those that come a minute later.
    """

    def __init__(self, places: int) -> None:
        self.places = self._free = places
        self._taken = Counter[str]()  # By namespace
        self._waiting: list[_Waiting] = []

    @property
    def full(self) -> bool:
        """Whether the next one has to wait."""
        return self._free <= 0

    @property
    def wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    @asynccontextmanager
    async def take(self, namespace: str, *, idle: bool) -> AsyncIterator[None]:
        """Wait for a place, and have it inside the block."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = _Waiting(namespace, loop_time() + AGED_SECONDS * idle, granted)
        self._waiting.append(own)
        self._hand_on()
        try:
            await own.granted
            yield
        finally:
            if own in self._waiting:
                self._waiting.remove(own)
            else:
                self._free += 1
                self._taken[namespace] -= 1
                self._taken += Counter()  # forgets namespaces that have none
            self._hand_on()

    def _hand_on(self) -> None:
        now = loop_time()
        while self._free > 0 and (waiting := [each for each in self._waiting if not each.granted.done()]):
            first = min(waiting, key=lambda each: (self._taken[each.namespace], now < each.idle_until))
            self._waiting.remove(first)
            self._free -= 1
            self._taken[first.namespace] += 1
            first.granted.set_result(None)
