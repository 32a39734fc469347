"""`crrd node` as its user meets it: configuration that cannot work, things that heal, what it costs, how it ends."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from crrd.kube.resources import REQUESTS
from crrd_localnode.api.admission import User
from tests.support.cluster import Cluster, container, container_status, crr_for, on_local_node, restart_count, states
from tests.support.command import Ended, crrd
from tests.support.daemons import NodeDaemon
from tests.support.faulty_api import Call, FaultyApiServer
from tests.support.faulty_node import FaultyNode


async def node(*flags: str, **environment: str) -> Ended:
    return await crrd("node", "--bind-address", "127.0.0.1:0", *flags, **environment)


def away(folder: Path) -> str:
    """A kubeconfig whose API server does not answer."""
    file = folder / "away.kubeconfig"
    context = {"name": "away", "context": {"cluster": "away"}}
    cluster = {"name": "away", "cluster": {"server": "http://127.0.0.1:9"}}
    file.write_text(json.dumps({"current-context": "away", "contexts": [context], "clusters": [cluster]}))
    return str(file)


class TestConfiguration:
    async def test_no_node_name(self) -> None:
        result = await node()
        assert result.code == 2
        assert result.last_line.startswith("crrd node: the node name is not set: use --node-name or NODE_NAME")

    async def test_a_name_that_no_node_can_have(self) -> None:
        result = await node("--node-name", "Bad_Name")
        assert result.code == 2
        assert "'Bad_Name' is not a node name" in result.last_line

    async def test_a_choice_from_the_environment(self) -> None:
        result = await node("--node-name", "a", CRRD_LOG_LEVEL="loud")
        assert result.code == 2
        assert "CRRD_LOG_LEVEL is 'loud', but must be one of debug, info, warning, error" in result.last_line

    async def test_a_switch_from_the_environment(self) -> None:
        result = await node("--node-name", "a", CRRD_SERVE_FORECAST="maybe")
        assert result.code == 2
        assert "CRRD_SERVE_FORECAST is 'maybe', but must be true or false" in result.last_line

    async def test_no_credentials(self) -> None:
        result = await node("--node-name", "a")
        assert result.code == 2
        assert "set --kubeconfig" in result.last_line

    async def test_a_bind_address_that_is_none(self) -> None:
        result = await node("--node-name", "a", "--bind-address", "nonsense", KUBECONFIG="/nonexistent")
        assert result.code == 2
        assert "bind address 'nonsense' must be HOST:PORT" in result.last_line

    async def test_a_socket_that_cannot_be_one(self, tmp_path: Path) -> None:
        result = await node("--node-name", "a", "--cri-endpoint", "none.sock", KUBECONFIG=away(tmp_path))
        assert result.code == 2
        assert "absolute path" in result.last_line

    async def test_a_socket_that_is_no_runtime(self, tmp_path: Path) -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        path = tmp_path / "web.sock"
        async with await asyncio.start_unix_server(answer, path):
            flags = ("--node-name", "a", "--cri-endpoint", str(path))
            result = await node(*flags, KUBECONFIG=away(tmp_path))
        assert result.code == 2
        assert str(path) in result.last_line

    async def test_no_crd(self, tmp_path: Path) -> None:
        async with FaultyNode(tmp_path / "n", api=FaultyApiServer(crds=[])) as local:
            flags = ("--node-name", "a", "--cri-endpoint", local.cri_endpoint, "--kubeconfig", str(local.kubeconfig))
            result = await node(*flags)
        assert result.code == 2
        assert "kubectl apply -f install.yaml" in result.last_line

    async def test_no_permission(self, cluster: Cluster) -> None:
        cluster.local.api.fail_next(20, 403, match=lambda call: call.resource == "containerrecreaterequests")
        flags = ("--node-name", "a", "--cri-endpoint", cluster.cri_endpoint, "--kubeconfig", str(cluster.kubeconfig))
        result = await node(*flags)
        cluster.local.api.clear_faults()
        assert result.code == 2
        assert "kubectl apply -f install.yaml" in result.last_line


async def said(daemon: NodeDaemon, *words: str) -> None:
    async with asyncio.timeout(30):
        while not any(all(word in json.dumps(line) for word in words) for line in daemon.log):
            await asyncio.sleep(0.05)


async def test_an_api_server_that_is_away_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    daemon = NodeDaemon(cluster, tmp_path / "node.log")
    await cluster.local.api.stop()
    try:
        await daemon.start()
        await said(daemon, "warning", "API server unavailable")
        async with aiohttp.ClientSession() as session, session.get(f"http://{daemon.address}/metrics") as answer:
            page = await answer.text()
    finally:
        await cluster.local.api.start()
    silent = [line for line in page.splitlines() if line.startswith("crrd_last_activity_timestamp_seconds{")]
    assert [line.partition(" ")[0] for line in silent] == [
        f'crrd_last_activity_timestamp_seconds{{resource="{REQUESTS.plural}"}}'
    ], "an alert sees since when the watch hears nothing"
    await daemon.wait_ready()
    assert await daemon.terminate() == 0


async def test_a_runtime_that_is_down_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    daemon = NodeDaemon(cluster, tmp_path / "node.log")
    await cluster.local.kill_runtime()
    await daemon.start()
    await said(daemon, "warning", cluster.cri_endpoint.removeprefix("unix://"))
    await cluster.local.start_runtime()
    await daemon.wait_ready()
    assert await daemon.terminate() == 0


async def test_sigterm_while_waiting_for_the_runtime_ends_at_once(cluster: Cluster, tmp_path: Path) -> None:
    daemon = NodeDaemon(cluster, tmp_path / "node.log")
    await cluster.local.kill_runtime()
    await daemon.start()
    await said(daemon, "warning")
    assert await daemon.terminate() == 0
    await cluster.local.start_runtime()


async def test_sigusr1_switches_the_debug_log_and_ends_nothing(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    assert cluster.node_name
    os.kill(node_daemon.pid, signal.SIGUSR1)
    await said(node_daemon, "log level changed")
    assert await node_daemon.terminate() == 0


async def test_health_names_every_loop(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    assert cluster.node_name
    url = f"http://{node_daemon.address}/healthz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
        assert answer.status == 200
    for name in ("requests", "pods", "runtime", "events", "node-queue"):
        assert f"[+]{name} ok" in text


@asynccontextmanager
async def watched_cluster(tmp_path: Path) -> AsyncIterator[tuple[Cluster, NodeDaemon, list[Call]]]:
    """A cluster, a node daemon with a name of its own, and the calls that it makes."""
    calls: list[Call] = []

    def note(call: Call) -> None:
        if call.user == "crrd-node":
            calls.append(call)

    api = FaultyApiServer(tokens={"secret": User("crrd-node")}, log=note)
    async with (
        FaultyNode(tmp_path / "node", api=api) as local,
        on_local_node(local, tmp_path) as cluster,
    ):
        kubeconfig = api.kubeconfig(tmp_path / "daemon.kubeconfig", token="secret")
        async with NodeDaemon(cluster, tmp_path / "node.log", kubeconfig=kubeconfig) as daemon:
            yield cluster, daemon, calls
            await daemon.kill()


async def test_an_idle_daemon_lists_and_watches_requests_and_nothing_else(tmp_path: Path) -> None:
    async with watched_cluster(tmp_path) as (cluster, daemon, calls):
        assert [call.path for call in calls if not call.resource] == ["/version"]
        assert [(call.verb, call.resource) for call in calls if call.resource] == [
            ("list", "containerrecreaterequests"),
            ("watch", "containerrecreaterequests"),
        ]
        pod = await cluster.run_pod("web", [container("app")])
        await cluster.recreate(pod, ["app"], name="one")
        await cluster.wait_completed("one")
        await said(daemon, "request completed")
        assert [call.verb for call in calls if call.resource == "pods"] == ["list", "watch"]
        assert await daemon.terminate() == 0
        assert {call.verb for call in calls if call.resource} == {"list", "watch", "patch", "create"}


async def test_a_request_costs_three_writes_and_two_for_each_further_container(tmp_path: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "true"]}}}
    async with watched_cluster(tmp_path) as (cluster, _, calls):
        for name, names, most in (("one", ["app"], 3), ("two", ["app", "side"], 5)):
            pod = await cluster.run_pod(name, [container("app", lifecycle=hook), container("side")])
            await cluster.recreate(pod, names, name=name)
            await cluster.wait_completed(name)
            writes = [call for call in calls if call.verb == "patch" and call.name == name]
            assert len(writes) <= most
            assert {call.status for call in writes} == {200}


async def test_hundreds_of_bad_requests_do_no_harm(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await cluster.run_pod("web", [container("app")])
    for number in range(400):
        body = crr_for(before, ["app"], name=f"bad-{number}")
        match number % 4:
            case 0:
                body["spec"]["containers"][0]["name"] = f"nope-{number}"
            case 1:
                body["spec"]["containers"][0]["statusContext"]["containerID"] = "docker://abc"
            case 2:
                body["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] = f"uid-{number}"
            case _:
                body["metadata"]["annotations"] = {"crr.apps.kruise.io/pinned-containers": "["}
        await cluster.create_request(body)
    async with asyncio.timeout(100):
        while True:
            listing = await cluster.client.list_all(REQUESTS, dict, namespace=cluster.namespace, resource_version="0")
            if all((each.get("status") or {}).get("phase") == "Completed" for each in listing.items):
                break
            await asyncio.sleep(2)  # a look at them all costs the API server something
    assert {phase for each in listing.items for phase in states(each).values()} == {"Failed"}
    assert container_status(await cluster.pod("web"), "app") == container_status(before, "app")
    request = await cluster.recreate(before, ["app"])
    assert states(await cluster.wait_completed(request["metadata"]["name"])) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1
    assert node_daemon.pid
