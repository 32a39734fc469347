"""Does the same for many pods side by side: a few at once, and any number of slow ones beside them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

from crrd.kube.lanes import Lane, Lanes
from crrd.lib.supervise import cancel


class SideBySide:
    """Work that is under way, by the UID of its pod, or by its node. A slow one gives up its place, and delays none."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called after the end of each work."""
        self._ended, self._lanes = ended, Lanes()
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._error: BaseException | None = None

    def begin(self, uid: str, work: Callable[[], Awaitable[object]]) -> None:
        """Begin the work for a pod, unless it is under way."""
        if uid not in self._tasks:
            self._tasks[uid] = task = asyncio.create_task(self._in_turn(work))
            task.add_done_callback(partial(self._note_end, uid))

    def raise_error(self) -> None:
        """Raise the first error of any work that has ended."""
        if self._error is not None:
            raise self._error

    async def stop(self, *, but: Collection[str] = ()) -> None:
        """Cancel all work, except for the pods in `but`, which is awaited: it goes on if the caller is interrupted."""
        kept = [task for uid, task in self._tasks.items() if uid in but]
        await cancel([task for uid, task in self._tasks.items() if uid not in but])
        if kept:
            await asyncio.wait(kept)

    async def _in_turn(self, work: Callable[[], Awaitable[object]]) -> None:
        release = await self._lanes.take(Lane.WRITE, None)
        try:
            await work()
        finally:
            release()

    def _note_end(self, uid: str, task: asyncio.Task[object]) -> None:
        del self._tasks[uid]
        error = None if task.cancelled() else task.exception()  # asked for each, or asyncio tells of it on stderr
        self._error = self._error or error
        self._ended()


async def each_of(calls: Iterable[Awaitable[object]]) -> None:
    """Do all of this, and then raise the first error."""
    for each in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(each, BaseException):
            raise each
