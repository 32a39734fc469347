"""A work queue: serial within a key, parallel across keys, and a timer per key.

A key that is woken while its handler runs is handled once more afterwards, however often it was woken. The number of
keys that run at once has no limit, because handlers mostly wait. So a slow handler delays only its own key. All log
lines of one round have the same `round`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import NamedTuple, NoReturn

import structlog
from structlog.contextvars import bound_contextvars

from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ConflictError, CrrdError
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import cancel

log = structlog.get_logger(__name__)


class QueueState(NamedTuple):
    """A queue at one moment."""

    controller: str
    depth: int  # Keys that wait or are worked on
    oldest_seconds: float  # How long one key has waited for its round


@dataclass(slots=True)
class Round:
    """A round that runs, and the loop's time of its start or its last progress."""

    key: str
    since: float


_round: ContextVar[Round] = ContextVar("round")


def waits_for_turn() -> None:
    """Record that the current round waits for others, so that it does not count as hanging before `progressed`."""
    if (current := _round.get(None)) is not None:
        current.since = inf


def progressed() -> None:
    """Record that the current round has made progress. Does nothing if no round runs."""
    if (current := _round.get(None)) is not None:
        current.since = loop_time()


class WorkQueue:
    """Runs `handler(key)` for woken keys.

    The handler returns the event loop's monotonic time at which to handle the key again, or None. An exception of a
    handler is logged, and the key is handled again with back-off. `name` is the controller's, for log lines.
    `round_seconds` is the longest time of a round without progress.
    """

    def __init__(
        self,
        handler: Callable[[str], Awaitable[float | None]],
        name: str,
        *,
        round_seconds: float = 60.0,
    ) -> None:
        self._handler, self._name, self._round_seconds = handler, name, round_seconds
        self._rounds, self._context = count(1), copy_context()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dirty: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._running: dict[str, Round] = {}
        self._closed = False

    @property
    def depth(self) -> int:
        """Number of keys that wait for their handler, or whose handler runs."""
        return len(self._dirty.keys() | self._tasks.keys())

    def state(self) -> QueueState:
        """Return what the metrics show of this queue."""
        now = loop_time()
        return QueueState(self._name, self.depth, now - min(self._dirty.values(), default=now))

    @property
    def longest(self) -> Round | None:
        """The round that has run longest without progress, None if none runs."""
        return min(self._running.values(), key=lambda each: each.since, default=None)

    def check(self) -> str:
        """For liveness: return the key whose round makes no progress, "" for none."""
        found, now = self.longest, loop_time()
        if found is None or now - found.since <= self._round_seconds:
            return ""
        return f"work on {found.key} has not finished for {now - found.since:.0f}s"

    def failing(self, key: str) -> bool:
        """Whether the key's last round failed."""
        return key in self._failures

    def pending(self, key: str) -> bool:
        """Whether the key has or will have a round."""
        return key in self._tasks or key in self._timers

    async def run(self) -> NoReturn:
        """Close the queue when cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()
        raise AssertionError("nothing sets the event")

    def wake(self, key: str) -> None:
        """Handle the key as soon as possible. Ignored after `close`, because cancelled tasks may still call it."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._dirty.setdefault(key, loop.time())
        if key not in self._tasks:
            # Not the context of who wakes it, which may say that its own calls are routine or not wanted any more.
            context, name = self._context.copy(), f"{self._name} {key}"
            self._tasks[key] = loop.create_task(self._drain(key), name=name, context=context)

    def wake_at(self, key: str, when: float) -> None:
        """Handle the key at this time at the latest; the earlier of two times wins."""
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(when, self._ring, key)

    async def settled(self) -> None:
        """Return when all handlers that run now have ended. Timers stay set."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel all timers and handlers; the queue cannot be used again."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await cancel(self._tasks.values())

    def _ring(self, key: str) -> None:
        self._timers.pop(key, None)
        self.wake(key)

    async def _drain(self, key: str) -> None:
        try:
            while key in self._dirty:
                del self._dirty[key]
                with bound_contextvars(controller=self._name, round=next(self._rounds)):
                    await self._handle(key)
                await asyncio.sleep(0)  # let tasks that the handler started run before the next round
        finally:
            del self._tasks[key]

    async def _handle(self, key: str) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        current = self._running[key] = Round(key, loop_time())
        _round.set(current)
        try:
            wake_at = await self._handler(key)
        except Exception as error:  # noqa: BLE001 - a round runs again after any failure, with a growing back-off
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = retry_delay(error, failures)
            retry_in, bug = round(delay, 1), not isinstance(error, CrrdError)
            report = log.debug if isinstance(error, ConflictError) and failures == 1 else log.warning
            report("round failed", key=key, error=str(error), retry_in=retry_in, exc_info=bug)
            self.wake_at(key, loop_time() + delay)
            return
        finally:
            del self._running[key]
        self._failures.pop(key, None)
        if wake_at is not None:
            self.wake_at(key, wake_at)
