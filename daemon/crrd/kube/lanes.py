"""Limits and orders calls to the API server: a few at once, shared fairly between lanes and between namespaces.

Without a limit, a burst of calls would need a TLS handshake for each, and delay the calls that matter. Three rules keep
one slow object from delaying others:

- A slow call gives up its place after a while, but goes on.
- Reads and writes take turns. Events and routine reads come after both, and take few places.
- Within a lane, the namespace with the fewest calls under way goes first, and of these the one that has used the places
  least. Namespaces whose last call was slow have places of their own. So calls of other namespaces wait for one call of
  a namespace whose calls begin to hang, and for none after that.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum

from crrd.lib.errors import WithdrawnError

PLACES = 6  # Calls that may be under way at once, not counting slow ones; and as many of slow namespaces
FEW_PLACES = 2  # How many of these places events may take, and how many routine reads
SLOW_SECONDS = 0.25  # A call that takes longer gives up its place, and goes on without one
REMEMBERED = 1000  # Slow namespaces that are known as such until their next call


routine: ContextVar[bool] = ContextVar("routine", default=False)
"""Whether the reads of this task are routine. They take the lane ROUTINE, because no work waits for them."""


wanted: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)
"""Whether this task's call is still wanted, asked when it gets its place."""


class Lane(IntEnum):
    """What a call is for."""

    READ = 0  # A read, which a stop or an admission review may wait for, or the leader's lease
    WRITE = 1
    EVENT = 2
    ROUTINE = 3  # A read that nothing waits for


_TURNS = ((Lane.READ, Lane.WRITE), (Lane.EVENT, Lane.ROUTINE))  # The lanes of one tuple take turns
_LIMITS = {Lane.EVENT: FEW_PLACES, Lane.ROUTINE: FEW_PLACES}


@dataclass(slots=True)
class _Flow:
    """The calls of one namespace in a lane."""

    slow: bool = False  # Whether its last call was slow, so that the next one gets one of the places for these
    used: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    """Seconds of both kinds of places, on the scale of its lane: a flow that was idle starts where the others are."""
    waiting: deque["asyncio.Future[bool]"] = field(default_factory=deque)
    under_way: int = 0


class _Queue:
    """The calls of one lane. There are two kinds of places: those of namespaces that are slow (True), and of others."""

    def __init__(self) -> None:
        self.taken = {False: 0, True: 0}
        self._flows: dict[str, _Flow] = {}
        self._scale = {False: 0.0, True: 0.0}  # What the flow had used that was granted a place last

    def add(self, name: str, granted: "asyncio.Future[bool]") -> None:
        """Let a call wait. The future's result is the kind of its place."""
        flow = self._flows.setdefault(name, _Flow())
        if not flow.waiting:
            flow.used = {kind: max(used, self._scale[kind]) for kind, used in flow.used.items()}
        flow.waiting.append(granted)

    def grant(self, *, slow: bool) -> bool:
        """Grant a place of this kind to the next call. Return False if none waits."""
        while flows := [(name, each) for name, each in self._flows.items() if each.waiting and each.slow is slow]:
            name, flow = min(flows, key=lambda each: (each[1].under_way, each[1].used[slow]))
            granted = flow.waiting.popleft()
            if not granted.done():
                self._scale[slow] = max(self._scale[slow], flow.used[slow])
                flow.under_way += 1
                self.taken[slow] += 1
                granted.set_result(slow)
                return True
            self._forget_idle(name)
        return False

    def free(self, name: str, seconds: float | None, *, slow: bool) -> None:
        """Take back a place of this kind after a call of this time, None if there was no call."""
        flow = self._flows[name]
        flow.under_way -= 1
        self.taken[slow] -= 1
        if seconds is not None:
            flow.used[slow] += seconds
            flow.slow = seconds >= SLOW_SECONDS
        self._forget_idle(name)

    def _forget_idle(self, name: str) -> None:
        flow = self._flows[name]
        in_debt = any(used > self._scale[kind] for kind, used in flow.used.items())
        kept = in_debt or (flow.slow and len(self._flows) <= REMEMBERED)
        if not flow.waiting and not flow.under_way and not kept:
            del self._flows[name]


class Lanes:
    """Hands out places for calls, by lane and namespace."""

    def __init__(self) -> None:
        self._queues = {lane: _Queue() for lane in Lane}
        self._turns = [deque(lanes) for lanes in _TURNS]

    async def take(self, lane: Lane, patience: float | None, namespace: str = "") -> Callable[[], None]:
        """Wait for a place for one call. Return a function that releases it; it is also released after SLOW_SECONDS.

        TimeoutError: no place was free for `patience` seconds (None: wait without a limit).
        WithdrawnError: the call was not `wanted` any more when it got its place.
        """
        loop, queue = asyncio.get_running_loop(), self._queues[lane]
        granted: asyncio.Future[bool] = loop.create_future()
        queue.add(namespace, granted)
        self._hand_on()
        try:
            async with asyncio.timeout(patience):
                slow = await granted
        except BaseException:
            if granted.cancel() is False and not granted.cancelled():  # the place was granted too late to be used
                queue.free(namespace, None, slow=granted.result())
                self._hand_on()
            raise
        if not wanted.get()():
            queue.free(namespace, None, slow=slow)
            self._hand_on()
            raise WithdrawnError("not wanted any more when its turn came")
        began = loop.time()
        timer: asyncio.TimerHandle | None = None

        def give_back(least: float = 0.0) -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
                queue.free(namespace, max(least, loop.time() - began), slow=slow)
                self._hand_on()

        timer = loop.call_later(SLOW_SECONDS, give_back, SLOW_SECONDS)
        return give_back

    def _hand_on(self) -> None:
        """Grant free places."""
        for slow in (False, True):
            while sum(queue.taken[slow] for queue in self._queues.values()) < PLACES and self._grant_one(slow=slow):
                pass

    def _grant_one(self, *, slow: bool) -> bool:
        """Grant one place. Return False if no lane can use it."""
        for turns in self._turns:
            for lane in tuple(turns):
                queue = self._queues[lane]
                if queue.taken[slow] < _LIMITS.get(lane, PLACES) and queue.grant(slow=slow):
                    turns.remove(lane)
                    turns.append(lane)  # the other one is next
                    return True
        return False
