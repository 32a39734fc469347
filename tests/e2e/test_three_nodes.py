"""What only several nodes show: limits per node and zone, a node that fails, an update of the node daemons.

Runs on a cluster of `python -m tests.tools.cluster --nodes 3`, whose parts it kills: see docs/real-clusters.md.
"""

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.resources import CONFIG_MAPS, NODES, PODS, POLICIES, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import (
    PATIENCE,
    WAITING_SCRIPT,
    Cluster,
    Json,
    container,
    pod_ready,
    request_for,
    restart_count,
    states,
)
from tests.support.command import Ended, crrd
from tests.support.real_nodes import broken, kubectl, missing, roll_out
from tests.support.recreates import (
    grant,
    image_of,
    kept,
    lines,
    pods_of,
    recorded,
    recreate,
    requests_of,
    rolled_out,
    wait_ready,
)
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
FAULTS = [("kubelet",), ("containerd",), ("kubelet", "containerd")]
LIMIT = ("--max-unavailable", "3")
"""One more than the two pods of the node that fails, which become unready and count."""
ZONE = "topology.kubernetes.io/zone"


async def spread(cluster: Cluster, replicas: int, script: str = WAITING_SCRIPT) -> list[Json]:
    """Create the Deployment "web" with as many pods on each node, which use a ConfigMap, and return them."""
    await cluster.client.create(CONFIG_MAPS, cluster.namespace, {"metadata": {"name": "cfg"}, "data": {"value": "old"}})
    labels = {"app": "web"}
    even = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    app = {
        "name": "app",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "value"}}}],
    }
    spec = {"containers": [app], "topologySpreadConstraints": [even], "terminationGracePeriodSeconds": 5}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
    await cluster.client.create(RESOURCES["Deployment"], cluster.namespace, body)
    pods = await wait_ready(cluster, "web", replicas)
    assert len(set(Counter(pod["spec"]["nodeName"] for pod in pods).values())) == 1, "the scheduler spreads them"
    return pods


async def policy(cluster: Cluster, **budget: object) -> None:
    """Create a policy that restarts "web" after a change of its ConfigMap, and wait until it has seen all pods."""
    await grant(cluster, "crrd-read-config")
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "triggers": {"configChange": {"settle": "2s"}},
        "budget": budget,
    }
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    await cluster.client.create(POLICIES, cluster.namespace, body)
    await until_policy(cluster, "Idle")


async def until_policy(cluster: Cluster, reason: str, kind: str = "Ready", *, run_finished: bool = False) -> None:
    """Wait until this condition of the policy has the reason."""

    def reached(found: Json) -> bool:
        status = found.get("status") or {}
        reasons = {each["type"]: each["reason"] for each in status.get("conditions") or ()}
        finished = bool((status.get("run") or {}).get("finished"))
        return reasons.get(kind) == reason and (finished or not run_finished)

    await cluster.wait(POLICIES, "web", reached, f"policy: {kind} {reason}", seconds=300)


async def edit(cluster: Cluster) -> None:
    await asyncio.sleep(5)  # containers that start while a change settles are restarted once more
    await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": "new"}})


def restarts(pods: Sequence[Json]) -> list[int]:
    return [restart_count(pod, "app") for pod in pods]


async def zones(cluster: Cluster) -> Mapping[str, str]:
    """The zone of each node."""
    listing = await cluster.client.list_all(NODES, dict)
    return {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in listing.items}


async def test_no_more_than_one_pod_of_a_node_or_zone_is_unready(cluster: Cluster, nodes: Machines) -> None:
    before = await spread(cluster, 3 * len(nodes.nodes))
    zone_of = await zones(cluster)
    async with recorded(cluster, "web") as record:
        limits = ("--max-unavailable", "100%", "--max-per-node", "1")
        assert (await recreate(cluster, "deployment/web", "-c", "app", *limits)).code == 0
    assert record.most_unready_of(lambda pod: pod["spec"]["nodeName"]) == 1
    assert record.most_unready > 1, "nodes do not wait for each other"
    async with recorded(cluster, "web") as record:
        limits = ("--max-unavailable", "100%", "--max-per-zone", "1")
        assert (await recreate(cluster, "deployment/web", "-c", "app", *limits)).code == 0
    assert record.most_unready_of(lambda pod: zone_of[pod["spec"]["nodeName"]]) == 1
    after = await pods_of(cluster, "web")
    assert restarts(after) == [2] * len(before)
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]


async def test_a_policy_keeps_its_limit_per_node(cluster: Cluster, nodes: Machines) -> None:
    before = await spread(cluster, 2 * len(nodes.nodes))
    await policy(cluster, maxUnavailable="100%", maxPerNode=1)
    async with recorded(cluster, "web") as record:
        await edit(cluster)
        await until_policy(cluster, "Idle", run_finished=True)
    assert record.most_unready_of(lambda pod: pod["spec"]["nodeName"]) == 1
    assert restarts(await pods_of(cluster, "web")) == [1] * len(before)


async def reasons_on(cluster: Cluster, node: str) -> set[str]:
    """Why requests of this node wait, from their status."""
    found = set()
    for request in await requests_of(cluster):
        if request["metadata"]["labels"]["crr.apps.kruise.io/node-name"] == node:
            status = request.get("status") or {}
            found |= {each.get("reason", "") for each in (status, *(status.get("containerRecreateStates") or ()))}
    return found - {""}


@pytest.mark.parametrize("parts", FAULTS, ids="+".join)
async def test_a_node_fails_during_a_run(cluster: Cluster, nodes: Machines, parts: tuple[str, ...]) -> None:
    before = await spread(cluster, 2 * len(nodes.nodes))
    node = nodes.nodes[1]
    with broken(node, *parts):
        run = asyncio.create_task(recreate(cluster, "deployment/web", "-c", "app", *LIMIT, "-o", "json"))
        healthy = {pod["metadata"]["name"] for pod in before if pod["spec"]["nodeName"] != node.name}
        async with asyncio.timeout(240):  # the other nodes are served meanwhile
            while not all(
                restart_count(pod, "app") for pod in await pods_of(cluster, "web") if pod["metadata"]["name"] in healthy
            ):
                assert not run.done(), run.result()
                await asyncio.sleep(0.5)
        waiting = await reasons_on(cluster, node.name)
        on_node = [pod for pod in await pods_of(cluster, "web") if pod["spec"]["nodeName"] == node.name]
        assert sum(restarts(on_node)) == 0
    ended = await asyncio.wait_for(run, 300)
    after = await wait_ready(cluster, "web", len(before))
    assert (ended.code, restarts(after)) == (0, [1] * len(before)), (ended, waiting)
    assert lines(ended)[-1]["pods"]["done"] == len(before)
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]


@pytest.mark.parametrize("parts", FAULTS, ids="+".join)
async def test_a_node_fails_during_the_run_of_a_policy(
    cluster: Cluster, nodes: Machines, parts: tuple[str, ...]
) -> None:
    before = await spread(cluster, 2 * len(nodes.nodes))
    await policy(cluster, maxUnavailable=int(LIMIT[1]))
    node = nodes.nodes[2]
    with broken(node, *parts):
        await edit(cluster)
        await until_policy(cluster, "WaitingForNodes", "Effective")
        others = [pod for pod in await pods_of(cluster, "web") if pod["spec"]["nodeName"] != node.name]
        assert restarts(others) == [1] * len(others)
    await until_policy(cluster, "Idle", run_finished=True)
    after = await wait_ready(cluster, "web", len(before))
    assert restarts(after) == [1] * len(before)


@pytest.mark.parametrize("parts", FAULTS, ids="+".join)
async def test_a_node_fails_during_a_run_with_another_image(
    cluster: Cluster, nodes: Machines, parts: tuple[str, ...]
) -> None:
    image = cluster.need_second_image()
    before = await spread(cluster, 2 * len(nodes.nodes))
    node = nodes.nodes[1]
    words = ("deployment/web", "-c", "app", "--image", image, "--template", "adopt", "--allow-mutable-tag", *LIMIT)
    with broken(node, *parts):
        run = asyncio.create_task(recreate(cluster, *words, "--min-ready", "0"))
        healthy = {pod["metadata"]["name"] for pod in before if pod["spec"]["nodeName"] != node.name}
        async with asyncio.timeout(240):
            while True:
                pods = {pod["metadata"]["name"]: pod for pod in await pods_of(cluster, "web")}
                if all(restart_count(pods[name], "app") for name in healthy):
                    break
                assert not run.done(), run.result()
                await asyncio.sleep(0.5)
        assert {image_of(pod) for name, pod in pods.items() if name not in healthy} == {cluster.image}
        template = (await cluster.client.get(RESOURCES["Deployment"], cluster.namespace, "web"))["spec"]["template"]
        assert image_of(template) == cluster.image, "the workload is not changed before all pods have the image"
    ended = await asyncio.wait_for(run, 300)
    assert ended.code == 0, ended
    after = await wait_ready(cluster, "web", len(before))
    kept(before, after, "app")
    assert {image_of(pod) for pod in after} == {image}
    assert image_of((await rolled_out(cluster, "Deployment", "web"))["spec"]["template"]) == image


async def test_an_update_of_the_node_daemons_while_a_container_stops(cluster: Cluster, nodes: Machines) -> None:
    script = "echo start >> /shared/log; trap 'sleep 4; exit 0' TERM; while :; do sleep 0.1; done"
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log; sleep 4"]}}}
    pods = [
        await cluster.run_pod(name, [container("app", script, lifecycle=hook), container("side", script)], grace=30)
        for name in ("one", "two")
    ]
    requests = [await cluster.create_request(request_for(pod, "app", "side")) for pod in pods]
    await cluster.wait_words("one", "log", "start", "start", "hook")
    template = {"spec": {"template": {"metadata": {"annotations": {"updated": cluster.namespace}}}}}
    await cluster.client.merge_patch(Resource("daemonsets", "apps"), "crrd-node", "crrd-node", template)
    await asyncio.to_thread(roll_out, nodes)
    for pod, request in zip(pods, requests, strict=True):
        name = pod["metadata"]["name"]
        ended = await cluster.wait_completed(request["metadata"]["name"])
        assert states(ended) == {"app": "Succeeded", "side": "Succeeded"}
        after = await cluster.wait_pod(name, pod_ready, "ready")
        assert [restart_count(after, each) for each in ("app", "side")] == [1, 1]
        assert cluster.read(name, "log").split().count("hook") == 1


async def test_a_token_of_one_node_changes_no_request_of_another(
    cluster: Cluster, nodes: Machines, tmp_path: Path
) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    daemons = (await cluster.client.list_all(PODS, dict, namespace="crrd-node")).items
    daemon_on = {each["spec"]["nodeName"]: each["metadata"]["name"] for each in daemons}
    other = next(node.name for node in nodes.nodes if node.name != cluster.node_name)
    name = (await cluster.create_request(request_for(pod, "app")))["metadata"]["name"]

    def token(node: str, kubeconfig: Path | None = None) -> str:
        """A token of the node daemon there, as kubelet mounts it into its pod."""
        bound = ("--bound-object-kind", "Pod", "--bound-object-name", daemon_on[node])
        words = ("-n", "crrd-node", "create", "token", "crrd-node", *bound)
        return kubectl(nodes, *words, kubeconfig=kubeconfig).strip()

    @asynccontextmanager
    async def client_of(node: str) -> AsyncIterator[KubeClient]:
        content = yaml.safe_load(nodes.plan.kubeconfig.read_text())
        content["users"][0]["user"] = {"token": token(node)}
        file = tmp_path / f"{node}.kubeconfig"
        file.write_text(yaml.safe_dump(content))
        async with KubeClient(KubeconfigAccess(str(file))) as client:
            yield client

    status = {"status": {"message": "reached"}}
    pins = {"metadata": {"annotations": {"crr.apps.kruise.io/pinned-containers": "{}"}}}
    async with client_of(other) as client:
        for body, subresource in ((status, "status"), (pins, "")):
            with pytest.raises(ApiRefusedError, match="the node daemon may only update requests of its own node"):
                await client.merge_patch(REQUESTS, cluster.namespace, name, body, subresource=subresource)
    async with client_of(cluster.node_name) as client:
        await client.merge_patch(REQUESTS, cluster.namespace, name, status, subresource="status")
    # kubelet's own token gets no token of another node's daemon either
    with pytest.raises(subprocess.CalledProcessError):
        token(cluster.node_name, nodes.plan.folder / "control" / f"{other}.kubeconfig")
    assert states(await cluster.wait_completed(name)) == {"app": "Succeeded"}


async def command(nodes: Machines, *words: str) -> Ended:
    return await crrd(*words, "--kubeconfig", str(nodes.plan.kubeconfig))


async def test_a_forecast_for_all_nodes_names_the_one_that_does_not_answer(cluster: Cluster, nodes: Machines) -> None:
    before = await spread(cluster, len(nodes.nodes))

    async def forecast() -> dict[str, Json]:
        ended = await command(nodes, "forecast", "--to", "1.30", "--all-nodes", "-o", "json")
        assert ended.code == 3, ended
        return {report["node"]: report for report in json.loads(ended.out)}

    healthy = await forecast()
    where = {(pod["metadata"]["name"], pod["spec"]["nodeName"]) for pod in before}
    found = {(each["pod"], node) for node, report in healthy.items() for each in report["containers"]}
    assert where <= found
    node = nodes.nodes[2]
    with broken(node, "containerd"):
        async with asyncio.timeout(PATIENCE):  # a daemon answers with the same report for 15 s
            while not (partly := await forecast())[node.name]["failed"]:
                await asyncio.sleep(2)
    assert partly[node.name]["containers"] == []
    others = [each.name for each in nodes.nodes if each is not node]
    assert where - {(pod, there) for pod, there in where if there == node.name} <= {
        (each["pod"], there) for there in others for each in partly[there]["containers"]
    }


@pytest.mark.parametrize("parts", FAULTS, ids="+".join)
async def test_doctor_names_the_broken_node(cluster: Cluster, nodes: Machines, parts: tuple[str, ...]) -> None:
    await asyncio.to_thread(roll_out, nodes)
    ended = await command(nodes, "doctor")
    assert ended.code == 0, ended
    node = nodes.nodes[1]
    with broken(node, *parts):
        async with asyncio.timeout(PATIENCE):
            while not re.search(rf"not ready: .*\b{node.name}\b", (await command(nodes, "doctor")).out):
                await asyncio.sleep(2)
