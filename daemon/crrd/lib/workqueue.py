"""A work queue with one key per pod: serial within a key, parallel across keys, and a timer per key.

A key that is woken while its handler runs is handled once more afterwards, however often it was woken. The number of
keys that run at once has no limit, because a node has at most some hundred pods, and handlers mostly wait.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from crrd.lib.backoff import Backoff
from crrd.lib.errors import CrrdError
from crrd.lib.supervise import cancel

log = structlog.get_logger(__name__)

RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0, jitter=0.1)  # Before a failed handler runs again


class WorkQueue:
    """Runs `handler(key)` for woken keys.

    The handler returns the event loop's monotonic time at which to handle the key again, or None. An exception of a
    handler is logged, and the key is handled again with back-off.
    """

    def __init__(self, handler: Callable[[str], Awaitable[float | None]]) -> None:
        self._handler = handler
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dirty: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._closed = False

    @property
    def depth(self) -> int:
        """Number of keys that wait for their handler, or whose handler runs."""
        return len(self._dirty.keys() | self._tasks.keys())

    @property
    def oldest(self) -> float | None:
        """Monotonic time since when the longest waiting key has waited, None if none waits."""
        return min(self._dirty.values(), default=None)

    @property
    def longest(self) -> float | None:
        """Monotonic time at which the longest running handler started, None if none runs."""
        return min(self._began.values(), default=None)

    def wake(self, key: str) -> None:
        """Handle the key as soon as possible. Ignored after `close`, because cancelled tasks may still call it."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._dirty.setdefault(key, loop.time())
        if key not in self._tasks:
            self._tasks[key] = loop.create_task(self._drain(key), name=f"pod {key}")

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
                await self._handle(key)
                await asyncio.sleep(0)  # let tasks that the handler started run before the next round
        finally:
            del self._tasks[key]

    async def _handle(self, key: str) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._began[key] = asyncio.get_running_loop().time()
        try:
            wake_at = await self._handler(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = RETRY.delay(failures)
            retry_in, bug = round(delay, 1), not isinstance(error, CrrdError)
            log.warning("pod processing failed", pod=key, error=str(error), retry_in=retry_in, exc_info=bug)
            self.wake_at(key, asyncio.get_running_loop().time() + delay)
            return
        finally:
            del self._began[key]
        self._failures.pop(key, None)
        if wake_at is not None:
            self.wake_at(key, wake_at)
