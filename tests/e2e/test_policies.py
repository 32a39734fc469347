"""A ContainerRecreatePolicy on a cluster with its own kubelet and controllers: an edit goes live in the same pods."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.policy.types import API_VERSION, KIND
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.resources import BUDGETS, CONFIG_MAPS, PODS, POLICIES, Resource, Where
from crrd.lib.errors import ConflictError
from tests.support.cluster import CRDS, Cluster, foreign, pod_ready
from tests.support.recreates import daemons, give_template, grant, image_of, pods_of, rolled_out, workload

CRD_FILE = Path(__file__).parents[2] / "manifests" / "base" / "policies-crd.yaml"
DEPLOYMENTS = Resource("deployments", "apps")
REPLICAS, UNREADY = 8, 2
NOW = "2026-01-01T00:00:00Z"
Json = dict[str, Any]
SCRIPT = """trap 'exit 0' TERM
values() { echo "$VALUE $ALL_value $(cat /plain/value) $(cat /projected/value) $(cat /part)"; }
started=$(values); echo "$started" > /dev/termination-log; echo "$started"
while :; do sleep 0.2; done"""


def deployment(cluster: Cluster) -> Json:
    """Eight pods, whose first container uses one ConfigMap in five ways, and whose second uses none."""
    reference = {"name": "cfg", "key": "value"}
    source = {"configMap": {"name": "cfg", "items": [{"key": "value", "path": "value"}]}}
    app = {
        "name": "app",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", SCRIPT],
        "env": [{"name": "VALUE", "valueFrom": {"configMapKeyRef": reference}}],
        "envFrom": [{"prefix": "ALL_", "configMapRef": {"name": "cfg"}}],
        "volumeMounts": [
            {"name": "plain", "mountPath": "/plain"},
            {"name": "projected", "mountPath": "/projected"},
            {"name": "plain", "mountPath": "/part", "subPath": "value"},
        ],
    }
    side = {
        "name": "side",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"],
    }
    spec = {
        "containers": [app, side],
        "volumes": [
            {"name": "plain", "configMap": {"name": "cfg"}},
            {"name": "projected", "projected": {"sources": [source]}},
        ],
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 5,
    }
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "metadata": {"name": "web"},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    }


def config_map(value: str, *, immutable: bool = False) -> Json:
    return {"metadata": {"name": "cfg"}, "data": {"value": value}, "immutable": immutable}


async def pods(cluster: Cluster) -> dict[str, Json]:
    """By UID."""
    found = await cluster.client.list_all(PODS, dict, namespace=cluster.namespace, label_selector="app=web")
    return {pod["metadata"]["uid"]: dict(pod) for pod in found.items}


def restarts(found: Mapping[str, Json], name: str) -> list[int]:
    statuses = [pod["status"].get("containerStatuses", []) for pod in found.values()]
    return sorted(each["restartCount"] for status in statuses for each in status if each["name"] == name)


async def install_crd(cluster: Cluster) -> None:
    crd = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
    try:
        await cluster.client.create(CRDS, "", crd)
    except ConflictError:  # crrd is installed there, maybe an older one, whose CRD drops new fields
        await cluster.client.merge_patch(CRDS, "", crd["metadata"]["name"], {"spec": crd["spec"]})


async def install(cluster: Cluster, role_name: str) -> None:
    """The CRD of policies, and the role that the manager needs for them."""
    await install_crd(cluster)
    await grant(cluster, role_name)


async def apply(cluster: Cluster, *, immutable: bool = False) -> None:
    """ConfigMap, Deployment, disruption budget and policy."""
    client, namespace = cluster.client, cluster.namespace
    await install(cluster, "crrd-read-config")
    await client.create(CONFIG_MAPS, namespace, config_map("old", immutable=immutable))
    await client.create(DEPLOYMENTS, namespace, deployment(cluster))
    selector = {"matchLabels": {"app": "web"}}
    guard = {"metadata": {"name": "web"}, "spec": {"maxUnavailable": UNREADY, "selector": selector}}
    await client.create(BUDGETS, namespace, guard)
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "triggers": {"configChange": {"settle": "2s"}},
        "budget": {"maxUnavailable": "25%"},
    }
    policy = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    await client.create(POLICIES, namespace, policy)


async def condition_reason(cluster: Cluster, kind: str) -> str:
    status = (await cluster.client.get(POLICIES, cluster.namespace, "web")).get("status") or {}
    return next((each["reason"] for each in status.get("conditions", []) if each["type"] == kind), "")


async def ready_reason(cluster: Cluster) -> tuple[str, bool]:
    """What the policy does or waits for, and whether a run of it has ended."""
    status = (await cluster.client.get(POLICIES, cluster.namespace, "web")).get("status") or {}
    return await condition_reason(cluster, "Ready"), bool(status.get("run", {}).get("finished"))


async def log_of(cluster: Cluster, pod: str) -> str:
    """Wait for the line that the container prints at its start, the values that it has, and return it."""
    logs = await asyncio.create_subprocess_exec(
        "kubectl", "--kubeconfig", str(cluster.kubeconfig), "-n", cluster.namespace, "logs", pod, "-c", "app", "-f",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert logs.stdout is not None
    try:
        async with asyncio.timeout(60):
            return (await logs.stdout.readline()).decode().strip()
    finally:
        logs.kill()
        await logs.wait()


async def all_ready(cluster: Cluster, replicas: int, but: Collection[str] = ()) -> dict[str, Json]:
    """Wait until so many pods are there, all ready and none of them one of `but` (UIDs)."""
    while True:
        found = await pods(cluster)
        if len(found) == replicas and all(map(pod_ready, found.values())) and found.keys().isdisjoint(but):
            return found
        await asyncio.sleep(0.5)


def kstatus(obj: Json) -> str:
    """Return the state of a custom resource as Flux computes it (sigs.k8s.io/cli-utils, pkg/kstatus/status)."""
    status = obj.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    seen = status.get("observedGeneration", obj["metadata"]["generation"]) == obj["metadata"]["generation"]
    return "Current" if seen and conditions.get("Ready", "True") == "True" else "InProgress"


@pytest.mark.cluster
async def test_tools_wait_until_the_manager_has_seen_a_policy(cluster: Cluster) -> None:
    """Without a manager, as before the manager has its first look. The API server sets the default of the CRD."""
    await install_crd(cluster)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"targetRef": target, "triggers": {"maxAge": "24h"}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    made = await cluster.client.create(POLICIES, cluster.namespace, body)
    ready = {"type": "Ready", "status": "True", "reason": "Idle", "message": "", "lastTransitionTime": NOW}
    seen = {"status": {"observedGeneration": 1, "conditions": [ready]}}
    written = await cluster.client.merge_patch(POLICIES, cluster.namespace, "web", seen, subresource="status")
    changed = await cluster.client.merge_patch(POLICIES, cluster.namespace, "web", {"spec": {"suspend": True}})
    assert [kstatus(dict(each)) for each in (made, written, changed)] == ["InProgress", "Current", "InProgress"]


@pytest.mark.cluster
@pytest.mark.skipif(foreign() is None, reason="needs a cluster with a controller of Deployments")
@pytest.mark.timeout(600)
async def test_an_edit_goes_live_in_the_same_pods(cluster: Cluster, tmp_path: Path) -> None:
    async with daemons(cluster, tmp_path):
        await apply(cluster)
        async with asyncio.timeout(120):
            await all_ready(cluster, REPLICAS)
            while (await ready_reason(cluster))[0] != "Idle":
                await asyncio.sleep(0.5)
        before, most = await pods(cluster), 0
        await asyncio.sleep(5)  # containers that start while a change settles are restarted once more
        await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": "new"}})
        async with asyncio.timeout(240):
            while await ready_reason(cluster) != ("Idle", True):
                now = await pods(cluster)
                most = max(most, sum(not pod_ready(pod) for pod in now.values()))
                await asyncio.sleep(0.1)
        after = await pods(cluster)
        assert after.keys() == before.keys(), "no pod was replaced"
        assert restarts(after, "app") == [1] * REPLICAS
        assert restarts(after, "side") == [0] * REPLICAS
        assert most <= UNREADY
        for pod in after.values():
            (status,) = [each for each in pod["status"]["containerStatuses"] if each["name"] == "app"]
            assert await log_of(cluster, pod["metadata"]["name"]) == "new new new new new", status


@pytest.mark.cluster
@pytest.mark.skipif(foreign() is None, reason="needs a cluster with a controller of Deployments")
@pytest.mark.timeout(600)
async def test_pods_follow_the_template_of_a_paused_deployment(cluster: Cluster, tmp_path: Path) -> None:
    client, namespace, image = cluster.client, cluster.namespace, cluster.need_second_image()
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"targetRef": target, "triggers": {"templateImage": {}}, "budget": {"maxUnavailable": 2}}
    policy = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}

    async def followed(image: str) -> None:
        async with asyncio.timeout(120):
            while {image_of(pod) for pod in await pods_of(cluster, "web")} != {image}:
                await asyncio.sleep(0.2)
            while await ready_reason(cluster) != ("Idle", True):
                await asyncio.sleep(0.2)

    async with daemons(cluster, tmp_path):
        before = await workload(cluster, "Deployment", "web", 3)
        await install(cluster, "crrd-update-images")
        await give_template(cluster, cluster.image)
        await client.create(POLICIES, namespace, policy)
        for each in (image, "localhost/does-not-exist:1", cluster.image):
            await give_template(cluster, each)
            if "does-not-exist" not in each:
                await followed(each)
                continue
            async with asyncio.timeout(120):
                while await condition_reason(cluster, "Ready") != "RunFailed":
                    await asyncio.sleep(0.2)
            assert {image_of(pod) for pod in await pods_of(cluster, "web")} == {image}, "a typo stops nothing"
        await give_template(cluster, cluster.image, paused=False)
        await rolled_out(cluster, "Deployment", "web")
        after = await pods_of(cluster, "web")
        assert {pod["metadata"]["uid"] for pod in after} == {pod["metadata"]["uid"] for pod in before}
        assert {pod["status"]["podIP"] for pod in after} == {pod["status"]["podIP"] for pod in before}
        assert restarts({pod["metadata"]["uid"]: pod for pod in after}, "side") == [0] * 3
        while await condition_reason(cluster, "Ready") != "TemplateNotFollowed":  # it is not held any more
            await asyncio.sleep(0.2)
        await give_template(cluster, "localhost/does-not-exist:2")
        pulls = Where(namespace=namespace, label_selector=LABEL_PULL)
        async with asyncio.timeout(60):
            while not (await client.list_all(PODS, dict, **pulls)).items:
                await asyncio.sleep(0.2)
            await client.merge_patch(POLICIES, namespace, "web", {"spec": {"suspend": True}})
            await client.delete(POLICIES, namespace, "web")
            while (await client.list_all(PODS, dict, **pulls)).items:
                await asyncio.sleep(0.2)


@pytest.mark.cluster
@pytest.mark.skipif(foreign() is None, reason="needs a cluster with a controller of Deployments")
@pytest.mark.timeout(600)
async def test_a_replaced_immutable_object_is_told_until_no_pod_has_the_old_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    client, namespace = cluster.client, cluster.namespace
    async with daemons(cluster, tmp_path):
        await apply(cluster, immutable=True)
        async with asyncio.timeout(120):
            before = await all_ready(cluster, REPLICAS)
            while await condition_reason(cluster, "Ready") != "Idle":
                await asyncio.sleep(0.5)
        await client.delete(CONFIG_MAPS, namespace, "cfg")
        await client.create(CONFIG_MAPS, namespace, config_map("new", immutable=True))
        async with asyncio.timeout(60):
            while await condition_reason(cluster, "Effective") != "ImmutableReplaced":
                await asyncio.sleep(0.5)
        assert restarts(await pods(cluster), "app") == [0] * REPLICAS
        template = {"metadata": {"annotations": {"rolled": "out"}}}
        await client.merge_patch(DEPLOYMENTS, namespace, "web", {"spec": {"template": template}})
        async with asyncio.timeout(180):  # an ordinary rollout: each new pod starts beside old ones
            rolled = await all_ready(cluster, REPLICAS, but=before)
        values = {await log_of(cluster, pod["metadata"]["name"]) for pod in rolled.values()}
        assert values == {"old old old old old"}, "kubelet keeps the old data while a pod on the node uses it"
        assert await condition_reason(cluster, "Effective") == "ImmutableReplaced"
        await client.merge_patch(DEPLOYMENTS, namespace, "web", {"spec": {"replicas": 0}})
        async with asyncio.timeout(120):
            await all_ready(cluster, 0)
            while await condition_reason(cluster, "Effective") == "ImmutableReplaced":
                await asyncio.sleep(0.5)
        await client.merge_patch(DEPLOYMENTS, namespace, "web", {"spec": {"replicas": 1}})
        async with asyncio.timeout(120):
            (pod,) = (await all_ready(cluster, 1)).values()
        assert await log_of(cluster, pod["metadata"]["name"]) == "new new new new new"
