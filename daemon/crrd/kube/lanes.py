"""Limits and orders calls to the API server: a few at once; reads (a stop may wait for one) first, then writes, events.

Without a limit, a burst of calls would need a TLS handshake for each, and delay the calls that matter. A slow call does
not delay the others: after a while it gives up its place, but goes on. So one write that hangs in a webhook, or one
list that hangs, costs the others nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum

PLACES = 6  # Calls that may be under way at once, not counting slow ones
EVENT_PLACES = 2  # How many of these places events may take
SLOW_SECONDS = 0.5  # A call that takes longer gives up its place, and goes on without one


class Lane(IntEnum):
    """What a call is for; a lower number goes first."""

    READ = 0  # A read, which a stop or an admission review may wait for, or the leader's lease
    WRITE = 1
    EVENT = 2


class Lanes:
    """Hands out places for calls, by lane."""

    def __init__(self) -> None:
        self._taken = 0
        self._events = 0
        self._waiting: dict[Lane, deque[asyncio.Future[None]]] = {lane: deque() for lane in Lane}

    async def take(self, lane: Lane, patience: float | None) -> Callable[[], None]:
        """Wait for a place for one call. Return a function that releases it; it is also released after SLOW_SECONDS.

        TimeoutError: no place was free for `patience` seconds (None: wait without a limit).
        """
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting[lane].append(granted)
        self._hand_on()
        try:
            async with asyncio.timeout(patience):
                await granted
        except BaseException:
            if granted.cancel() is False and not granted.cancelled():  # the place was granted too late to be used
                self._free(lane)
            raise
        timer: asyncio.TimerHandle | None = None

        def give_back() -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
                self._free(lane)

        timer = loop.call_later(SLOW_SECONDS, give_back)
        return give_back

    def _free(self, lane: Lane) -> None:
        self._taken -= 1
        self._events -= lane is Lane.EVENT
        self._hand_on()

    def _hand_on(self) -> None:
        """Grant free places, by lane and then first come, first served."""
        for lane, waiting in self._waiting.items():
            while waiting and self._taken < PLACES and (lane is not Lane.EVENT or self._events < EVENT_PLACES):
                granted = waiting.popleft()
                if not granted.done():
                    self._taken += 1
                    self._events += lane is Lane.EVENT
                    granted.set_result(None)
