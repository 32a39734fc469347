"""Virtual time for the whole process: the event loop, `time` and the product's `datetime` follow one clock.

The loop has no selector and no file descriptor: it runs what is ready, and when nothing is, its clock jumps to the next
timer. What real programs would wait for on a socket is a future here, which a timer or somebody's step completes.
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

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The wall clock's time when the loop's clock says 0."""
START = 1000.0
"""The loop's clock when a run begins: far from 0, as the monotonic clock of a node that is up."""
LONGEST_INSTANT = 20_000
"""Turns of the loop without time passing before the run counts as one that goes round and round."""


class NoTimePassesError(Exception):
    """Something runs again and again at one and the same time."""


class NothingLeftError(Exception):
    """Every task waits, and nothing is left that could ever wake one."""


class _Jump:
    """What the loop takes for its selector."""

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
    """Nothing in it sleeps, and no socket, thread or process can be had from it."""

    def __init__(self) -> None:
        self.jump = _Jump()
        self.steps = 0
        self.wall_offset = 0.0
        """By how much the node's wall clock is wrong."""
        super().__init__(self.jump)  # type: ignore[arg-type]
        self._csock = self._ssock = None
        self.set_task_factory(self._task)
        self._made = 0

    def time(self) -> float:
        return self.jump.now

    def wall(self) -> float:
        """The node's wall clock, Unix seconds."""
        return EPOCH.timestamp() + self.jump.now + self.wall_offset

    def own_wall(self) -> float:
        """The wall clock of the machine on which the asking process runs."""
        life = LIFE.get(None)
        return self.wall() - (0.0 if life is None or life.on_node else self.wall_offset)

    def true_wall(self) -> float:
        """Everybody else's wall clock, Unix seconds."""
        return EPOCH.timestamp() + self.jump.now

    def true_utc(self) -> str:
        """Everybody else's wall clock, as Kubernetes writes it."""
        return (EPOCH + timedelta(seconds=int(self.jump.now))).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "_Task":
        self._made += 1
        task = _Task(work, loop=loop, **options)
        task.number, task.owner = self._made, LIFE.get(None)
        return task

    def _run_once(self) -> None:
        self.steps += len(self._ready)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def _make_self_pipe(self) -> None:
        """No thread and no signal ever wakes this loop."""

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        """See above."""

    async def create_connection(self, *_: Any, **__: Any) -> NoReturn:
        raise ConnectionRefusedError("nobody listens in a simulation")

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise AssertionError("no threads in a simulation")


class _Task(asyncio.Task[Any]):
    """Tasks in a set come in the order in which they were made, and not in that of their addresses."""

    number = 0
    owner: "Life | None" = None
    """The process that it belongs to."""

    def __hash__(self) -> int:
        return self.number


_loop: SimulatedLoop | None = None


class _Datetime(datetime):
    """`datetime` as the product sees it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        assert _loop is not None
        return datetime.fromtimestamp(_loop.own_wall(), tz)


@contextmanager
def virtual_time() -> Iterator[SimulatedLoop]:
    """A loop of its own; while it lasts, all of the process' clocks but perf_counter are the loop's."""
    global _loop  # noqa: PLW0603 - clocks are the process' own
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
