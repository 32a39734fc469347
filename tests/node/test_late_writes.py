"""Writes that wait for their turn while the work goes on. Those that are of no use any more are not sent."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.api.types import Pin, Request, StartTimes
from crrd.core.recreate.actions import PinContainers
from crrd.core.recreate.observation import StopAttempt, Work
from crrd.cri.runtime import NodeRuntime
from crrd.kube.client import KubeClient
from crrd.kube.lanes import PLACES, Lane, wanted
from crrd.kube.resources import PODS
from crrd.node.daemon import NodeConfig, NodeDaemon
from tests.node.test_controller import note
from tests.node.test_health import Running
from tests.node.test_refused_calls import ReportingRuntime
from tests.support.laned_api import LanedApi
from tests.support.standins import MemoryNode
from tests.support.worlds import NODE, pin, request

pytestmark = pytest.mark.virtual_time

SECONDS = 0.4  # Each of the other writes


class Busy(LanedApi):
    """An API server with a queue of other writes."""

    async def other_writes(self, seconds: float) -> None:
        """Keep all places for so long."""

        async def write() -> None:
            release = await self._lanes.take(Lane.WRITE, None, "default")
            await asyncio.sleep(SECONDS)
            release()

        await asyncio.gather(*(write() for _ in range(round(seconds / SECONDS) * PLACES)))

    @property
    def written(self) -> int:
        """The number of writes of requests."""
        return sum(call[1:3] == ("patch", "containerrecreaterequests") for call in self.calls)


@pytest.mark.parametrize(
    ("stop_seconds", "kubelet_seconds", "queue", "writes"),
    [
        pytest.param(1.0, 0.5, 0.0, 2, id="at rest, a short stop costs the progress and the result"),
        pytest.param(3.0, 0.5, 0.0, 3, id="at rest, a longer one costs its start, too"),
        pytest.param(3.0, 4.0, 6.0, 2, id="start times are not written after the stop"),
        pytest.param(3.0, 0.5, 6.0, 1, id="nor is the progress of a request that can be completed"),
        pytest.param(0.2, 0.5, 6.0, 2, id="but the result is, as often as it is decided on"),
        pytest.param(9.0, 0.5, 6.0, 3, id="and all of it if the stop goes on"),
    ],
)
async def test_a_burst(stop_seconds: float, kubelet_seconds: float, queue: float, writes: int) -> None:
    api = Busy()
    node, ends = ReportingRuntime(api), asyncio.Event()  # type: ignore[arg-type]
    node.stop_seconds, node.kubelet_seconds = stop_seconds, kubelet_seconds
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error"))
    task = asyncio.create_task(daemon.serve(cast("NodeRuntime", node), cast("KubeClient", api), ends))
    world = Running(daemon._health, api, node)
    await world.pass_by(20)
    world.request(created=rfc3339(datetime.now(UTC)))  # one that has waited long gets an answer first
    await asyncio.sleep(0.5)
    others = asyncio.create_task(api.other_writes(queue))
    for number in range(60):  # each change of the pod makes the daemon decide again
        await asyncio.sleep(0.5)
        pod: Any = api.objects["pods"]["web"]
        api.put(PODS, pod | {"status": pod["status"] | {"podIP": f"10.0.0.{number}"}})
    ends.set()
    await asyncio.gather(task, others)
    (done,) = api.objects["containerrecreaterequests"].values()
    assert (done["status"]["phase"], api.written) == ("Completed", writes)


class Queued(MemoryNode):
    """Notes for each write of pins whether it was still of use when its turn came."""

    def __init__(self) -> None:
        super().__init__("a", "b")
        self.of_use: list[bool] = []

    async def pin(self, *args: Any) -> Request:
        self.of_use.append(wanted.get()())
        return await super().pin(*args)


A, B = pin("old-a"), pin("old-b")
TIMES = StartTimes(stop="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("pinned", "pins", "times", "unpinned", "of_use"),
    [
        pytest.param({}, {"a": A}, {}, False, False, id="the container has stopped meanwhile"),
        pytest.param({"a": A}, {"a": A}, {"a": TIMES}, False, False, id="so the time of its stop is not needed"),
        pytest.param({"a": A}, {"a": A, "b": B}, {}, False, True, id="another one is pinned anew"),
        pytest.param({"a": A, "b": B}, {"a": A, "b": B}, {"b": TIMES}, False, True, id="or gets a time"),
        pytest.param({}, {"a": A, "b": B}, {}, False, True, id="both are"),
        pytest.param({"a": pin("older")}, {"a": A, "b": B}, {"a": TIMES}, False, True, id="each with what is its own"),
        pytest.param({"a": A}, {"a": A}, {"a": TIMES}, True, True, id="another client has changed the annotation"),
    ],
)
async def test_pins_are_written_unless_all_that_is_new_concerns_what_has_stopped(
    pinned: dict[str, Pin], pins: dict[str, Pin], times: dict[str, StartTimes], *, unpinned: bool, of_use: bool
) -> None:
    async with Queued() as node:
        record = note(node, request("a", "b", pinned=pinned, unpinned=unpinned))
        record.works["old-a"] = Work("a", A, stop_sent=1.0, last_stop=StopAttempt(1, 2.0))
        record.works["old-b"] = Work("b", B, stop_sent=1.0, last_stop=StopAttempt(1, 2.0, "broken"))
        node.controller.executor.carry_out([PinContainers(record.request, pins, times)])
        await asyncio.sleep(0.1)
        assert node.of_use == [of_use]


@pytest.mark.parametrize("hanging", [("patch",), ("get", "patch", "create")])
async def test_fifty_namespaces_that_hang_from_the_start_delay_no_other(hanging: tuple[str, ...]) -> None:
    """Twelve requests each, for pods that are gone. The request of another namespace is done within five seconds."""
    api = Busy(lambda verb, _, team, __: 10.0 if team[:5] == "noisy" and verb in hanging else 0.01)
    node, ends = ReportingRuntime(api), asyncio.Event()  # type: ignore[arg-type]
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error"))
    world = Running(daemon._health, api, node)
    for number in range(600):
        world.request(f"lost-{number}", namespace=f"noisy-{number % 50}", pod=f"lost-{number}")
    task = asyncio.create_task(daemon.serve(cast("NodeRuntime", node), cast("KubeClient", api), ends))
    world.request(created=rfc3339(datetime.now(UTC)))
    await asyncio.sleep(node.stop_seconds + node.kubelet_seconds + 5.0)
    assert api.objects["containerrecreaterequests"]["r1"].get("status", {}).get("phase") == "Completed"
    ends.set()
    await task
