"""Each loop of the node daemon, ended or silently hanging, turns /healthz red by its name: the whole in memory."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from crrd.core.api.types import API_VERSION, KIND
from crrd.cri.runtime import NodeRuntime
from crrd.kube.client import KubeClient
from crrd.kube.resources import EVENTS, PODS, REQUESTS
from crrd.lib.errors import ConfigurationError, RuntimeUnavailableError
from crrd.lib.heartbeat import PATIENCE_SECONDS, Heartbeat
from crrd.node import daemon as node_daemon
from crrd.node.controller import NodeController
from crrd.node.daemon import FORECAST, TIDY_SECONDS, Forecaster, NodeConfig, NodeDaemon
from crrd.node.pods import Pods
from crrd_forecast.node import NodeForecast
from tests.support.health_pages import Watched, end, page
from tests.support.silent_api import SilentApi
from tests.support.standins import MemoryNode
from tests.support.worlds import NODE, POD_UID, RUNTIME, request

pytestmark = pytest.mark.virtual_time

LOOPS = ("requests", "pods", "runtime", "node-queue", "events", "sandboxes", "memory")


@dataclass
class Running(Watched):
    """The node daemon, its world, and what it says of itself."""

    api: SilentApi
    node: "Runtime"

    def request(
        self, name: str = "r1", created: str = "2026-01-01T00:00:00Z", *, namespace: str = "default", pod: str = "web"
    ) -> None:
        """Somebody creates a request, for the pod that there is or for another one."""
        labels = {"node-name": NODE, "active": "true", "pod-uid": POD_UID if pod == "web" else pod}
        meta = {
            "namespace": namespace,
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": created,
            "labels": {f"crr.apps.kruise.io/{key}": value for key, value in labels.items()},
        }
        context = {"containerID": f"{RUNTIME}://old", "restartCount": 0}
        spec = {"podName": pod, "containers": [{"name": "app", "statusContext": context}]}
        self.api.put(REQUESTS, {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})


class Runtime(MemoryNode):
    """A runtime whose calls may hang, and that is closed with the daemon."""

    hanging = False
    versions = (("containerd", "1.7"),)

    async def discover(self, endpoints: object) -> None:
        """It was there all along."""

    @property
    def found(self) -> asyncio.Event:
        there = asyncio.Event()
        there.set()
        return there

    async def containers(self) -> list[object]:
        raise RuntimeUnavailableError("no containers today")

    async def check(self) -> str:
        return ""

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> Any:
        if self.hanging:
            await asyncio.Event().wait()
        return await super().instances(pod_uid, urgent=urgent)

    async def close(self) -> None:
        """Nothing was opened."""


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> list[Pods]:
    """Every board that is made."""
    made: list[Pods] = []
    original = Pods.__init__

    def init(self: Pods, *args: Any) -> None:
        original(self, *args)
        made.append(self)

    monkeypatch.setattr(Pods, "__init__", init)
    return made


@asynccontextmanager
async def running(spec_dir: str = "") -> AsyncIterator[Running]:
    """The whole composition, connected to a world in memory."""
    api, runtime = SilentApi(), Runtime()
    status: Any = {"containerID": f"{RUNTIME}://old", "ready": True, "state": {"running": {}}, "name": "app"}
    meta = {"namespace": "default", "name": "web", "uid": POD_UID, "resourceVersion": "1"}
    spec = {"containers": [{"name": "app"}], "nodeName": NODE}
    api.put(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": [status]}})
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error", spec_dir))
    stop = asyncio.Event()
    served = daemon.serve(cast("NodeRuntime", runtime), cast("KubeClient", api), stop)
    task = asyncio.create_task(served)
    try:
        yield Running(daemon._health, api, runtime)
        stop.set()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_idle_daemon_stays_green_without_a_word() -> None:
    async with running() as world:
        assert await world.pass_by(3600) == (200, {})
        assert set(world.health.live) == set(LOOPS), "specs are not looked for unless they are to be kept"


async def test_a_busy_daemon_stays_green() -> None:
    """The container never comes back: everything is watched for an hour."""
    async with running() as world:
        world.node.kubelet_seconds = 1e6
        world.request()
        assert await world.pass_by(3600) == (200, {})
        assert world.node.stops


@pytest.mark.parametrize("name", LOOPS)
async def test_a_loop_that_has_ended(name: str) -> None:
    async with running() as world:
        await world.pass_by(20)
        end(name)
        assert await world.red(name, 30) == "the loop has stopped"


async def test_the_loop_that_keeps_specs_has_ended(tmp_path: Path) -> None:
    async with running(str(tmp_path)) as world:
        await world.pass_by(20)
        end("forecast")
        assert await world.red("forecast", 30) == "the loop has stopped"


async def test_nobody_is_ready_before_the_requests_are_listed() -> None:
    async with running() as world:
        world.api.mute.add("list containerrecreaterequests")
        await asyncio.sleep(0)
        assert (await page(world.health, "/readyz"))[1] == {"requests": "containerrecreaterequests are not listed yet"}


async def test_a_forecast_before_any_runtime_has_answered() -> None:
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error"))
    answer = await daemon._forecast_page(cast("web.Request", None))
    assert (answer.status, cast("web.Response", answer).text) == (503, "no runtime has answered yet\n")


@pytest.mark.parametrize(
    ("spec_dir", "serves", "needed"), [("", False, False), ("/specs", False, True), ("", True, True)]
)
async def test_a_daemon_that_lacks_the_package_for_its_forecast_says_so_before_it_serves(
    spec_dir: str, serves: bool, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(group: str, name: str) -> None:
        raise ConfigurationError(f"no package has {group} {name}")

    def refused(*_: object) -> None:
        raise ConfigurationError("this far it gets")

    monkeypatch.setattr("crrd.node.daemon.find", lacks)
    monkeypatch.setattr("crrd.node.daemon.find_access", refused)
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error", spec_dir, serves))
    with pytest.raises(ConfigurationError) as caught:
        await daemon.run()
    assert str(caught.value) == (f"no package has {' '.join(FORECAST)}" if needed else "this far it gets")


@pytest.mark.parametrize("kept", [True, False])
def test_loop_and_page_have_one_forecaster(kept: bool, tmp_path: Path) -> None:
    folder = str(tmp_path) if kept else ""
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error", folder))
    edges = (cast("NodeRuntime", None), cast("KubeClient", None))
    forecaster = daemon._forecaster(*edges)
    assert forecaster is daemon._forecaster(*edges)
    made: type[Forecaster] = NodeForecast
    assert isinstance(forecaster, made)
    assert isinstance(forecaster, NodeForecast)
    assert (forecaster._store is not None) is kept


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("list containerrecreaterequests", "hangs: listing"),
        ("open containerrecreaterequests", "hangs: opening a watch"),
        ("watch containerrecreaterequests", "hangs: watching"),
    ],
)
async def test_requests_that_hang(call: str, said: str) -> None:
    async with running() as world:
        world.api.mute.add(call)
        assert (await world.red("requests", 300)).startswith(said)


@pytest.mark.parametrize("call", ["list pods", "open pods", "watch pods"])
async def test_pods_that_hang_while_a_request_is_active(call: str) -> None:
    async with running() as world:
        world.node.kubelet_seconds = 1e6
        world.api.mute.add(call)
        assert await world.pass_by(600) == (200, {})
        world.request()
        assert (await world.red("pods", 300)).startswith("hangs: ")


async def test_events_that_hang() -> None:
    async with running() as world:
        world.api.mute.add(f"create {EVENTS.plural}")
        assert await world.pass_by(600) == (200, {})
        world.request()
        assert (await world.red("events", 180)).startswith("hangs: writing an event")


async def test_a_look_at_a_pod_that_hangs() -> None:
    async with running() as world:
        await world.pass_by(20)
        world.node.hanging = True
        world.request()
        assert await world.pass_by(NodeController.round_seconds - 20) == (200, {})
        red = await world.red("node-queue", 60)
        assert re.fullmatch(r"work on default/web has not finished for [678]\ds", red)


@pytest.mark.parametrize("name", ["pods", "runtime", "memory"])
async def test_a_loop_that_does_not_hear_of_a_request(name: str, boards: list[Pods]) -> None:
    """What should wake it is lost; the others hear."""
    async with running() as world:
        await world.pass_by(20)
        (_, board) = boards  # the stand-in's own, and the daemon's
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == name)
        waiters, waiter = cast("Any", board.any_live)._waiters, cast("Any", task)._fut_waiter
        waiters.remove(waiter)
        world.node.kubelet_seconds = 1e6
        world.request()
        assert (await world.red(name, PATIENCE_SECONDS + 60)).startswith("hangs: waiting for a request")
        waiters.append(waiter)  # it is to end in good order


async def test_memory_is_given_back_after_the_start_and_after_every_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(node_daemon, "give_back", lambda: done.append("memory"))
    cache, wanted = Pods(lambda _: None, asyncio.get_running_loop().time), []
    tidy = asyncio.create_task(node_daemon._tidy(cache, Heartbeat()))
    for number in range(4):
        cache.requests.delete(request())
        await asyncio.sleep(TIDY_SECONDS + 1)
        wanted.append("memory")
        assert done == wanted
        cache.requests.put(replace(request(), resource_version=str(20 + number)))
        await asyncio.sleep(3600)
    cache.requests.delete(replace(request(), resource_version="100"))
    await asyncio.sleep(TIDY_SECONDS / 2)
    cache.requests.put(replace(request(), resource_version="101"))
    await asyncio.sleep(TIDY_SECONDS)
    assert done == wanted  # it was busy again by then
    tidy.cancel()
