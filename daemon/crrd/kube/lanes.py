"""Limits and orders calls to the API server: a few at once, shared fairly between lanes and between namespaces.

Without a limit, a burst of calls would need a TLS handshake for each, and delay the calls that matter. Three rules keep
one slow object from delaying others:

- A slow call gives up its place after a while, but goes on.
- Reads and writes take turns. Events and routine reads come after both, and take few places.
- Within a lane, the namespace that has used the places least goes first. Namespaces whose last call was slow have
  places of their own. So calls of other namespaces wait for the first slow call of a namespace at most, however many
  hang there, and in however many namespaces.
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
SLOW_SECONDS = 0.5  # A call that takes longer gives up its place, and goes on without one
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

    used: float  # Seconds of places, on the scale of its lane: a flow that was idle starts where the others are
    cost: float = 0.0  # Of its last call: the estimate for the next one. It is slow if this is SLOW_SECONDS or more
    waiting: deque["asyncio.Future[float]"] = field(default_factory=deque)
    under_way: int = 0


class _Queue:
    """The calls of one lane."""

    def __init__(self) -> None:
        self.taken = {False: 0, True: 0}  # The places of namespaces that are not slow, and of slow ones
        self._flows: dict[str, _Flow] = {}
        self._scale = 0.0  # What the flow had used that was granted a place last

    def add(self, name: str, granted: "asyncio.Future[float]") -> None:
        """Let a call wait. The future's result is the estimated time of the call."""
        flow = self._flows.setdefault(name, _Flow(self._scale))
        flow.used = max(flow.used, self._scale)
        flow.waiting.append(granted)

    def grant(self, *, slow: bool) -> bool:
        """Grant a place to the next call of slow namespaces, or of others. Return False if none waits."""
        while waiting := [name for name, each in self._flows.items() if each.waiting and _is_slow(each.cost) is slow]:
            name = min(waiting, key=lambda each: self._flows[each].used)
            flow = self._flows[name]
            granted = flow.waiting.popleft()
            if not granted.done():
                self._scale = max(self._scale, flow.used)
                flow.used += flow.cost
                flow.under_way += 1
                self.taken[slow] += 1
                granted.set_result(flow.cost)
                return True
            self._forget_idle(name)
        return False

    def free(self, name: str, estimate: float, seconds: float) -> None:
        """Take back the place of a call that has used it for this time."""
        flow = self._flows[name]
        flow.used += seconds - estimate
        flow.cost = seconds
        flow.under_way -= 1
        self.taken[_is_slow(estimate)] -= 1
        self._forget_idle(name)

    def _forget_idle(self, name: str) -> None:
        flow = self._flows[name]
        kept = _is_slow(flow.cost) and len(self._flows) <= REMEMBERED
        if not flow.waiting and not flow.under_way and flow.used <= self._scale and not kept:
            del self._flows[name]


def _is_slow(seconds: float) -> bool:
    return seconds >= SLOW_SECONDS


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
        granted: asyncio.Future[float] = loop.create_future()
        queue.add(namespace, granted)
        self._hand_on()
        try:
            async with asyncio.timeout(patience):
                estimate = await granted
        except BaseException:
            if granted.cancel() is False and not granted.cancelled():  # the place was granted too late to be used
                queue.free(namespace, granted.result(), 0.0)
                self._hand_on()
            raise
        began = loop.time()
        timer: asyncio.TimerHandle | None = None

        def give_back(least: float = 0.0) -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
                queue.free(namespace, estimate, max(least, loop.time() - began))
                self._hand_on()

        timer = loop.call_later(SLOW_SECONDS, give_back, SLOW_SECONDS)
        if not wanted.get()():
            give_back(estimate)
            raise WithdrawnError("not wanted any more when its turn came")
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
