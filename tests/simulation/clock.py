"""Virtual time for the whole process: the event loop, `time` and the product's `datetime` use one clock.

The loop has no selector and no file descriptor. It runs what is ready, and if nothing is, its clock jumps to the next
timer. Instead of sockets, there are futures that a timer or another part of the simulation completes.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NoReturn

from tests.simulation.channel import LIFE

if TYPE_CHECKING:
    from tests.simulation.daemon import Life

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # The wall clock's time when the loop's clock is 0
START = 1000.0  # The loop's clock at the start of a run. Not near 0, like the monotonic clock of a running node
LONGEST_INSTANT = 20_000  # Turns of the loop without time passing, after which the run counts as an endless loop


class NoTimePassesError(Exception):
    """Something runs repeatedly without time passing."""


class NothingLeftError(Exception):
    """Every task waits, and nothing can wake one any more."""


class _Jump:
    """The loop's selector."""

    def __init__(self) -> None:
        self.now = START
        self.turns = 0

    def select(self, timeout: float | None = None) -> tuple[()]:
        if timeout is None:
            raise NothingLeftError
        if timeout > 0:
            self.now += timeout
            self.turns = 0
        else:
            self.turns += 1
            if self.turns > LONGEST_INSTANT:
                self.turns = 0
                raise NoTimePassesError
        return ()

    def get_map(self) -> dict[Any, Any]:
        return {}

    def close(self) -> None:
        """Nothing was opened."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop in which nothing sleeps, and that has no sockets, threads or processes."""

    def __init__(self) -> None:
        self.jump = _Jump()
        self.steps = 0
        self.wall_offset = 0.0  # The error of the node's wall clock, in seconds
        super().__init__(self.jump)  # type: ignore[arg-type]
        self._csock = self._ssock = None
        self.set_task_factory(self._task)
        self._made = 0

    def time(self) -> float:
        return self.jump.now

    def wall(self) -> float:
        """Return the node's wall clock in Unix seconds."""
        return EPOCH.timestamp() + self.jump.now + self.wall_offset

    def own_wall(self) -> float:
        """Return the wall clock of the calling process' machine."""
        life = LIFE.get(None)
        return self.wall() if life is None or life.on_node else self.true_wall() + life.skew

    def true_wall(self) -> float:
        """Return the other machines' wall clock in Unix seconds."""
        return EPOCH.timestamp() + self.jump.now

    def true_utc(self) -> str:
        """Return the other machines' wall clock in Kubernetes' format."""
        return self.utc(self.jump.now)

    @staticmethod
    def utc(moment: float) -> str:
        """Return a loop time in Kubernetes' format, by the other machines' clocks."""
        return (EPOCH + timedelta(seconds=int(moment))).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "_Task":
        self._made += 1
        task = _Task(work, loop=loop, **options)
        task.number, task.owner = self._made, LIFE.get(None)
        return task

    def _run_once(self) -> None:
        self.steps += len(self._ready)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def _make_self_pipe(self) -> None:
        """No thread and no signal wakes this loop."""

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        """No thread and no signal wakes this loop."""

    async def create_connection(self, *_: Any, **__: Any) -> NoReturn:
        raise ConnectionRefusedError("nobody listens in a simulation")

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise AssertionError("no threads in a simulation")


class _Task(asyncio.Task[Any]):
    """Tasks in a set are in the order of their creation, and not of their addresses."""

    number = 0
    owner: "Life | None" = None  # The process that it belongs to

    def __hash__(self) -> int:
        return self.number


_loop: SimulatedLoop | None = None


class _Datetime(datetime):
    """The product's `datetime`."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        assert _loop is not None
        return datetime.fromtimestamp(_loop.own_wall(), tz)


@contextmanager
def virtual_time() -> Iterator[SimulatedLoop]:
    """Yield a new loop. Meanwhile, all clocks of the process except perf_counter are the loop's."""
    global _loop  # noqa: PLW0603 - clocks are global
    loop = SimulatedLoop()
    real = time.monotonic, time.time, time.time_ns
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("crrd.") and getattr(module, "datetime", None) is datetime
    ]
    _loop = loop
    time.monotonic = loop.time
    time.time = loop.own_wall
    time.time_ns = lambda: int(loop.own_wall() * 1e9)
    for module in modules:
        module.datetime = _Datetime  # type: ignore[attr-defined]
    try:
        yield loop
    finally:
        time.monotonic, time.time, time.time_ns = real
        for module in modules:
            module.datetime = datetime  # type: ignore[attr-defined]
        _loop = None
        loop.close()
