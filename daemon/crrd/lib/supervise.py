"""The loops of a daemon: started together, checked by name on /healthz, and stopped together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from crrd.lib.errors import ConfigurationError
from crrd.lib.health import Check, Health, loop_check
from crrd.lib.heartbeat import Sign


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: it runs until it is cancelled, and its heartbeats show that it is alive."""

    name: str
    run: Callable[[], Awaitable[Any]]
    heartbeats: tuple[Sign, ...]
    ready: Check | None = None  # For /readyz: returns what it lacks, "" for nothing; None: not asked


class Supervised:
    """The running loops."""

    def __init__(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        self._tasks = tasks

    async def end(self, name: str) -> None:
        """End one loop before the others, and wait for its clean-up."""
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def supervise(loops: Sequence[Loop], health: Health) -> AsyncIterator[Supervised]:
    """Run the loops while the body runs, and show them on the health pages. If a loop fails, the body is cancelled.

    Raises ConfigurationError if a loop raised it, and BaseExceptionGroup for all other errors.
    """
    try:
        with configuration_errors_alone():
            async with asyncio.TaskGroup() as group:
                tasks = {loop.name: group.create_task(_forever(loop), name=loop.name) for loop in loops}
                for loop in loops:
                    health.live[loop.name] = loop_check(tasks[loop.name], *loop.heartbeats)
                    if loop.ready is not None:
                        health.ready[loop.name] = loop.ready
                yield Supervised(tasks)
                for task in tasks.values():
                    task.cancel()
    finally:
        for loop in loops:
            health.live.pop(loop.name, None)
            health.ready.pop(loop.name, None)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when all have ended, in whatever way."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _forever(loop: Loop) -> None:
    await loop.run()


@contextmanager
def configuration_errors_alone() -> Iterator[None]:
    """Replace a TaskGroup's ExceptionGroup by the ConfigurationError in it, if there is one."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException | None = group.subgroup(ConfigurationError)
        if error is None:
            raise
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
