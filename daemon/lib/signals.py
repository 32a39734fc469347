"""What every daemon's run has in common: signals that ask for its end, and errors that nothing heals."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from daemon.lib.errors import ConfigurationError

T = TypeVar("T")


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM or Ctrl-C sets; a second one of them ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    return stop


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's result, or None when `stop` is set first; the work is cancelled then."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return None


@contextmanager
def configuration_errors_alone() -> Iterator[None]:
    """Out of a TaskGroup's ExceptionGroup, raise the ConfigurationError itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = group.subgroup(ConfigurationError)
        if found is None:
            raise
        error: BaseException = found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
