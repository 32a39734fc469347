"""The watches of one run. If one ends with an error, the run does."""

import asyncio
from typing import Any

from crrd.kube.reflector import Reflector
from crrd.lib.supervise import cancel


class RunWatches:
    """The running watches."""

    def __init__(self, changed: asyncio.Event) -> None:
        """`changed` is set and cleared by others. Each list sets it."""
        self._changed = changed
        self._reflectors: list[Reflector[Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(self, reflector: Reflector[Any]) -> None:
        """Begin a watch."""
        self._reflectors.append(reflector)
        self._tasks.append(asyncio.create_task(reflector.run()))

    async def end(self) -> None:
        """End all watches."""
        await cancel(self._tasks)

    def problem(self) -> str:
        """Return why a watch may be out of date, or "". Raises the error that has ended one."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        return next((each.last_error for each in self._reflectors if each.last_error), "")

    async def all_listed(self) -> None:
        """Return when all objects are listed. Raises the error that has ended a watch."""
        while not all(each.listed for each in self._reflectors):
            self._changed.clear()
            waiting = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            self.problem()
