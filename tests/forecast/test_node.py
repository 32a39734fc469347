"""When the node daemon looks for a forecast: at the start, after busy times, now and then; never in a busy time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from daemon.forecast.node import LEAST_SECONDS, LOOK_LIMIT_SECONDS, LOOK_SECONDS, NodeForecast
from daemon.kube.client import KubeClient
from daemon.lib.errors import RuntimeUnavailableError

pytestmark = pytest.mark.virtual_time


class Looks(NodeForecast):
    """Notes when it looks; may fail or hang."""

    def __init__(self) -> None:
        super().__init__(cast("KubeClient", None), cast("Any", None), "node-a")
        self.at: list[float] = []
        self.errors: list[Exception] = []
        self.hangs = False

    async def look(self) -> None:
        self.at.append(round(asyncio.get_running_loop().time() - self.began))
        if self.hangs:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        self.differing = 3

    began = 0.0


class Times:
    """The board's two events."""

    def __init__(self) -> None:
        self.active, self.idle = asyncio.Event(), asyncio.Event()
        self.idle.set()

    def busy(self, busy: bool) -> None:
        (self.active.set if busy else self.active.clear)()
        (self.idle.clear if busy else self.idle.set)()


@asynccontextmanager
async def running(looks: Looks) -> AsyncIterator[Times]:
    times = Times()
    looks.began = asyncio.get_running_loop().time()

    async def run() -> None:
        await looks.run(times.active, times.idle)

    task = asyncio.create_task(run())
    try:
        yield times
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_idle_daemon_looks_four_times_a_day() -> None:
    looks = Looks()
    async with running(looks):
        await asyncio.sleep(24 * 3600)
        assert looks.at == [0, LOOK_SECONDS, 2 * LOOK_SECONDS, 3 * LOOK_SECONDS]
        assert looks.heartbeat.check() == ""
        assert looks.differing == 3


async def test_after_a_busy_time_it_looks_but_not_all_the_time() -> None:
    looks = Looks()
    async with running(looks) as times:
        await asyncio.sleep(60)
        for _ in range(10):
            times.busy(True)
            await asyncio.sleep(5)
            times.busy(False)
            await asyncio.sleep(5)
        times.busy(True)
        await asyncio.sleep(2 * LEAST_SECONDS)
        assert looks.at == [0]
        times.busy(False)
        await asyncio.sleep(1)
        assert looks.at == [0, 60 + 100 + 2 * LEAST_SECONDS]


async def test_what_fails_is_tried_again_soon_and_told_as_unknown() -> None:
    looks = Looks()
    looks.errors = [RuntimeUnavailableError("away"), RuntimeUnavailableError("away"), ValueError("bug")]
    async with running(looks):
        await asyncio.sleep(2.5 * LEAST_SECONDS)
        assert looks.at == [0, LEAST_SECONDS, 2 * LEAST_SECONDS]
        assert looks.differing is None
        await asyncio.sleep(LEAST_SECONDS)
        assert looks.differing == 3


async def test_a_look_that_hangs_is_given_up() -> None:
    looks = Looks()
    looks.hangs = True
    async with running(looks):
        await asyncio.sleep(LOOK_LIMIT_SECONDS + LEAST_SECONDS + 1)
        assert looks.at == [0, LOOK_LIMIT_SECONDS + LEAST_SECONDS]
        assert looks.heartbeat.check() == ""
