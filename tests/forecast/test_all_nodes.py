"""`crrd forecast --all-nodes`: the API server, a stand-in here, passes the questions on to the nodes' daemons."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from crrd.core.api.types import NODE_DAEMONS
from crrd.kube.client import KubeClient
from crrd.kube.lanes import PLACES
from crrd_forecast.command import EXIT_RESTART, EXIT_UNKNOWN, ForecastConfig, run_forecast
from crrd_forecast.hash.container_hash import container_hash
from crrd_forecast.hash.version import NEWEST_MINOR
from crrd_forecast.render import shape
from crrd_forecast.report import ForecastInput, make_report

Json = dict[str, Any]
SPEC: Json = {"name": "app", "image": "i"}


def daemon_pod(node: str, phase: str = "Running") -> Json:
    metadata = {"namespace": "crrd-node", "name": f"crrd-{node}"}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


class ForecastNodes:
    """Nodes: kept, rebuilt, a daemon that answers nonsense, one that is ill, none, one that serves no forecast, and one
    that fails without a word."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.nodes = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]
        self.kubeconfig = ""

    async def answer(self, request: web.Request) -> web.Response:
        meta = {"resourceVersion": "1"}
        if request.path == "/api/v1/nodes":
            info = {"nodeInfo": {"kubeletVersion": "v1.30.2"}}
            found = [{"metadata": {"name": name}, "status": info} for name in self.nodes]
            return web.json_response({"metadata": meta, "items": found})
        if request.path == "/api/v1/pods":
            assert request.query["labelSelector"] == NODE_DAEMONS
            pods = [daemon_pod(node, "Pending" if node == "n5" else "Running") for node in self.nodes]
            return web.json_response({"metadata": meta, "items": pods})
        node = request.path.removeprefix("/api/v1/namespaces/crrd-node/pods/crrd-").removesuffix(":9420/proxy/forecast")
        self.asked.append({"node": node, **request.query})
        if node == "n3":
            return web.json_response({"hello": 1})
        if node == "n4":
            return web.json_response({"kind": "Status", "message": "no runtime", "code": 503}, status=503)
        if node == "n6":
            return web.Response(status=404, text="404: Not Found")
        if node == "n7":
            return web.json_response(shape(replace(make_report([], "v1.30.2", "1.31", node=node), failed=True)))
        stored = container_hash(SPEC, "1.31" if node == "n1" else "1.30")
        container = ForecastInput("shop", f"pod-{node}", "app", "c1", f"{stored:x}", SPEC)
        return web.json_response(shape(make_report([container], "v1.30.2", "1.31", node=node)))

    def config(self) -> ForecastConfig:
        return ForecastConfig(
            to_version="1.31",
            from_version="",
            output="json",
            cri_endpoints=(),
            kubeconfig=self.kubeconfig,
            node_name="n1",
            pods_file="",
            all_nodes=True,
            daemon_port=9420,
            plot_file="",
            spec_dir="",
        )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ForecastNodes]:
    found = ForecastNodes()
    app = web.Application()
    app.router.add_get("/{path:.*}", found.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    file = tmp_path / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    cluster = {"name": "c", "cluster": {"server": server}}
    user = {"name": "u", "user": {}}
    file.write_text(
        yaml.safe_dump({"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "c"})
    )
    found.kubeconfig = str(file)
    yield found
    await runner.cleanup()


async def test_every_daemon_is_asked(cluster: ForecastNodes, capsys: pytest.CaptureFixture[str]) -> None:
    code = await asyncio.to_thread(run_forecast, cluster.config())
    assert code == EXIT_RESTART
    reports = json.loads(capsys.readouterr().out)
    assert {each["node"]: each["totals"] for each in reports[:2]} == {
        "n1": {"keep": 1, "restart": 0, "unknown": 0},
        "n2": {"keep": 0, "restart": 1, "unknown": 0},
    }
    assert {each["node"]: each["failed"] for each in reports} == {
        "n1": False, "n2": False, "n3": True, "n4": True, "n5": True, "n6": True, "n7": True,
    }  # fmt: skip
    assert reports[2]["notes"] == ["the node daemon's response cannot be read"]
    assert "no runtime" in reports[3]["notes"][0]
    assert reports[4]["notes"] == ["no node daemon of crrd runs on this node"]
    assert reports[5]["notes"] == ["the node daemon does not serve forecasts: start it with --serve-forecast"]
    assert reports[6]["notes"] == ["the node daemon could not make a forecast, and gave no reason"]
    assert {each["node"] for each in cluster.asked} == {"n1", "n2", "n3", "n4", "n6", "n7"}
    assert all((each["to"], each["from"]) == ("1.31", "v1.30.2") for each in cluster.asked)


async def test_a_node_without_an_answer_is_not_taken_for_safe(
    cluster: ForecastNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.nodes = ["n1", "n4"]
    assert await asyncio.to_thread(run_forecast, cluster.config()) == EXIT_UNKNOWN
    cluster.nodes = ["n1"]
    capsys.readouterr()
    assert await asyncio.to_thread(run_forecast, cluster.config()) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1  # a list for one node, too
    newer = replace(cluster.config(), to_version=f"1.{NEWEST_MINOR + 1}")
    assert await asyncio.to_thread(run_forecast, newer) == EXIT_UNKNOWN


async def test_a_cluster_without_nodes_is_not_taken_for_safe(
    cluster: ForecastNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.nodes = []
    for output, said in (("table", "the API server lists no nodes\n"), ("json", "[]\n")):
        assert await asyncio.to_thread(run_forecast, replace(cluster.config(), output=output)) == EXIT_UNKNOWN
        assert capsys.readouterr().out == said


async def test_a_question_is_asked_when_the_client_has_room_for_it(
    cluster: ForecastNodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    through_pod = KubeClient.through_pod
    under_way: list[str] = []
    most = 0

    async def counted(client: KubeClient, namespace: str, name: str, *rest: Any) -> Any:
        nonlocal most
        under_way.append(name)
        most = max(most, len(under_way))
        try:
            return await through_pod(client, namespace, name, *rest)
        finally:
            under_way.remove(name)

    monkeypatch.setattr(KubeClient, "through_pod", counted)
    cluster.nodes = [f"m{number}" for number in range(3 * PLACES)]
    assert await asyncio.to_thread(run_forecast, cluster.config()) == EXIT_RESTART
    capsys.readouterr()
    assert len(cluster.asked) == len(cluster.nodes)
    assert 1 < most <= PLACES  # one that waits for room would use up the time of its call
