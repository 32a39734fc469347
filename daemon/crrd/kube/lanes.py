"""Who may call the API server next: a few calls at once, those that a stop waits for before writes, events last.

A burst of calls would pay for as many TLS handshakes, and keep the API server from what matters. But a slow call holds
up no other: after a while its place is another's, though it goes on. So one object that a webhook hangs on, or one list
that hangs, costs the others nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum

PLACES = 6  # Calls that may be under way at once while all are answered soon
EVENT_PLACES = 2  # Of these, the ones that events may take
SLOW_SECONDS = 0.5  # After so many seconds without an end a call gives up its place, and goes on beside the others


class Lane(IntEnum):
    """What a call is for; a lower number goes first."""

    READ = 0  # A read, which a stop or an admission review may wait for, or the leader's lease
    WRITE = 1
    EVENT = 2


class Lanes:
    """Gives out places for calls."""

    def __init__(self) -> None:
        self._taken = 0
        self._events = 0
        self._waiting: dict[Lane, deque[asyncio.Future[None]]] = {lane: deque() for lane in Lane}

    async def take(self, lane: Lane, patience: float | None) -> Callable[[], None]:
        """Wait for a place for one call; returns what gives it back. After SLOW_SECONDS it is given back anyhow.

        TimeoutError: there was none for `patience` seconds (None for as long as it takes).
        """
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting[lane].append(granted)
        self._hand_on()
        try:
            async with asyncio.timeout(patience):
                await granted
        except BaseException:
            if granted.cancel() is False and not granted.cancelled():  # it came too late to be used
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
        """Grant free places, by lane and then in the order of asking."""
        for lane, waiting in self._waiting.items():
            while waiting and self._taken < PLACES and (lane is not Lane.EVENT or self._events < EVENT_PLACES):
                granted = waiting.popleft()
                if not granted.done():
                    self._taken += 1
                    self._events += lane is Lane.EVENT
                    granted.set_result(None)
