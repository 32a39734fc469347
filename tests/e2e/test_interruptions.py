"""The daemon is killed, the API server goes away, the runtime restarts: each in the middle of a recreate."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from crrd.kube.resources import REQUESTS
from tests.support.cluster import (
    Cluster,
    Json,
    container,
    container_id,
    image_request,
    restart_count,
    restarted,
    states,
)
from tests.support.command import explained
from tests.support.cri_proxy import Faults, cri_proxy
from tests.support.daemons import NodeDaemon

pytestmark = [pytest.mark.containerd, pytest.mark.cluster]

SCRIPT = "echo start >> /shared/log; trap 'echo term >> /shared/log; sleep 3; exit 0' TERM; while :; do sleep 0.1; done"
HOOK = {
    "preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log; sleep 2; echo hooked >> /shared/log"]}}
}


def app(**fields: Json) -> Json:
    return container("app", SCRIPT, lifecycle=HOOK, **fields)


async def log_has(cluster: Cluster, word: str) -> None:
    async with asyncio.timeout(60):
        while word not in cluster.read("web", "log").split():
            await asyncio.sleep(0.02)


async def begun(cluster: Cluster, name: str) -> None:
    """The request says that the stop was sent."""

    def killed(request: Json) -> bool:
        found = (request.get("status") or {}).get("containerRecreateStates") or []
        return bool(found) and bool(found[0].get("isKilled"))

    await cluster.wait_request(name, killed, "isKilled")


@pytest.mark.parametrize(
    "moment", ["before it looks", "in the hook", "in the grace period", "after the stop", "at the end"]
)
async def test_kill_9_at_every_step(cluster: Cluster, node_daemon: NodeDaemon, moment: str) -> None:
    readiness = {"exec": {"command": ["/bin/sh", "-c", "true"]}, "initialDelaySeconds": 2, "periodSeconds": 1}
    before = await cluster.run_pod("web", [app(readinessProbe=readiness), container("side")], grace=20)
    if moment == "before it looks":
        await node_daemon.kill()
    created = await cluster.recreate(before, ["app"])
    name = created["metadata"]["name"]
    match moment:
        case "in the hook":
            await log_has(cluster, "hook")
        case "in the grace period":
            await log_has(cluster, "term")
        case "after the stop":
            async with asyncio.timeout(60):
                while (await cluster.status(container_id(before, "app"))).finished_at == 0:
                    await asyncio.sleep(0.02)
        case "at the end":
            await cluster.wait_pod("web", restarted("app"), "app is back")
    await node_daemon.restart()
    request = await cluster.wait_completed(name)

    assert states(request) == {"app": "Succeeded"}
    after = await cluster.pod("web")
    assert restart_count(after, "app") == 1
    assert restart_count(after, "side") == 0
    words = cluster.read("web", "log").split()
    assert words.count("start") == 2, words
    assert words.count("hooked") == 1 or moment == "in the hook", words
    assert "term" in words


async def test_the_api_server_is_away_for_30_seconds(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    node = cluster.local
    before = await cluster.run_pod("web", [app()], grace=20)
    created = await cluster.recreate(before, ["app"])
    await log_has(cluster, "hook")
    await node.api.stop()
    await asyncio.sleep(30)  # the outage itself is what is tested
    await node.api.start()
    request = await cluster.wait_completed(created["metadata"]["name"])
    assert states(request) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1
    assert cluster.read("web", "log").split().count("hook") == 1
    assert any(line["event"] for line in node_daemon.log if "retry" in str(line)), "it says that it tries again"


@pytest.mark.parametrize("moment", ["hook", "term"])
async def test_the_runtime_restarts(cluster: Cluster, node_daemon: NodeDaemon, moment: str) -> None:
    if cluster.containerd is None:
        pytest.skip("restarts the runtime: only on one of the test's own")
    before = await cluster.run_pod("web", [app()], grace=20)
    created = await cluster.recreate(before, ["app"])
    name = created["metadata"]["name"]
    await log_has(cluster, moment)
    if moment == "term":
        await begun(cluster, name)
    await asyncio.to_thread(cluster.containerd.restart)
    request = await cluster.wait_completed(name)
    assert states(request) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1
    assert cluster.read("web", "log").split().count("hook") == 1
    assert node_daemon.pid


async def test_sigterm_lets_a_stop_end_and_starts_no_other(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    slow = [container(name, SCRIPT) for name in ("a", "b")]
    before = await cluster.run_pod("web", slow, grace=20)
    created = await cluster.recreate(before, ["a", "b"])
    name = created["metadata"]["name"]
    await log_has(cluster, "term")
    assert await node_daemon.terminate() == 0
    assert (await cluster.status(container_id(before, "a"))).exit_code == 0
    assert (await cluster.status(container_id(before, "b"))).finished_at == 0
    request = await cluster.request(name)
    assert request["status"]["phase"] == "Recreating"
    await node_daemon.restart()
    assert states(await cluster.wait_completed(name)) == {"a": "Succeeded", "b": "Succeeded"}


async def test_a_runtime_that_is_away_is_told(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    if cluster.containerd is None:
        pytest.skip("stops the runtime: only on one of the test's own")
    before = await cluster.run_pod("web", [app()], grace=20)
    await asyncio.to_thread(cluster.containerd.stop)
    name = (await cluster.recreate(before, ["app"]))["metadata"]["name"]

    def waits(request: Json) -> bool:
        return (request.get("status") or {}).get("reason") == "RuntimeUnavailable"

    request = await cluster.wait_request(name, waits, "told")
    assert request["status"]["phase"] == "Pending"
    assert request["status"]["message"] in await explained(cluster, name)
    await asyncio.to_thread(cluster.containerd.start)
    assert states(await cluster.wait_completed(name)) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1
    assert node_daemon.pid


async def test_a_frozen_kubelet_holds_the_stop_back(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.local
    thawed = asyncio.Event()

    async def healthz(_: web.Request) -> web.Response:
        await thawed.wait()
        return web.Response(text="ok")

    async with TestServer(_site(healthz)) as server:
        flags = ("--kubelet-healthz-port", str(server.port))
        async with NodeDaemon(cluster, tmp_path / "node.log", *flags) as daemon:
            before = await cluster.run_pod("web", [app()], grace=20)
            await node.stop_kubelet()
            name = (await cluster.recreate(before, ["app"]))["metadata"]["name"]

            def held(request: Json) -> bool:
                found = (request.get("status") or {}).get("containerRecreateStates") or [{}]
                return bool(found[0].get("reason") == "KubeletNotAnswering")

            request = await cluster.wait_request(name, held, "held back")
            said = request["status"]["containerRecreateStates"][0]
            assert not said.get("isKilled")
            assert "kubelet on this node has not answered /healthz for" in await explained(cluster, name)
            assert "hook" not in cluster.read("web", "log").split()
            assert (await cluster.status(container_id(before, "app"))).finished_at == 0
            await node.start_kubelet()
            thawed.set()
            assert states(await cluster.wait_completed(name)) == {"app": "Succeeded"}
            assert restart_count(await cluster.pod("web"), "app") == 1
            await daemon.kill()


def _site(answer: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
    site = web.Application()
    site.router.add_get("/healthz", answer)
    return site


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_an_image_service_that_does_not_work_delays_no_stop(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    """A request is deleted during its hook, and the next one needs to know whether the node has its image."""
    faults = Faults(**{fault: {"ImageStatus"}})
    async with cri_proxy(cluster.cri_endpoint, tmp_path / "cri.sock", faults) as endpoint:
        daemon = NodeDaemon(replace(cluster, cri_endpoint=endpoint), tmp_path / "node.log")
        async with daemon:
            await daemon.wait_ready()
            before = await cluster.run_pod("web", [app(), container("side")], grace=20)
            name = (await cluster.recreate(before, ["app"]))["metadata"]["name"]
            await log_has(cluster, "hook")
            await cluster.create_request(image_request(before, "app", "localhost/does-not-exist:1", "image"))
            await cluster.client.delete(REQUESTS, cluster.namespace, name)
            await cluster.wait_pod("web", restarted("app"), "app is back")
            assert cluster.read("web", "log").split() == ["start", "hook", "hooked", "term", "start"]
            waits = lambda found: (found.get("status") or {}).get("reason") == "RuntimeUnavailable"  # noqa: E731
            await cluster.wait_request("image", waits, "the request says why it waits")
            faults.fails, faults.hangs = set(), set()
            assert states(await cluster.wait_completed("image")) == {"app": "Failed"}
