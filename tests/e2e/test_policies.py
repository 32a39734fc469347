"""A ContainerRecreatePolicy on a cluster with its own kubelet and controllers: an edit goes live in the same pods."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import BUDGETS, CONFIG_MAPS, PODS, POLICIES, Resource
from crrd.lib.errors import ConflictError
from tests.support.cluster import CRDS, Cluster, foreign, pod_ready
from tests.support.recreates import daemons

CRD_FILE = Path(__file__).parents[2] / "manifests" / "base" / "policies-crd.yaml"
BINDINGS = Resource("rolebindings", "rbac.authorization.k8s.io")
DEPLOYMENTS = Resource("deployments", "apps")
REPLICAS, UNREADY = 8, 2
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


async def pods(cluster: Cluster) -> dict[str, Json]:
    """By UID."""
    found = await cluster.client.list_all(PODS, dict, namespace=cluster.namespace, label_selector="app=web")
    return {pod["metadata"]["uid"]: dict(pod) for pod in found.items}


def restarts(found: Mapping[str, Json], name: str) -> list[int]:
    statuses = [pod["status"].get("containerStatuses", []) for pod in found.values()]
    return sorted(each["restartCount"] for status in statuses for each in status if each["name"] == name)


async def apply(cluster: Cluster) -> None:
    """ConfigMap, Deployment, disruption budget and policy."""
    client, namespace = cluster.client, cluster.namespace
    with suppress(ConflictError):  # crrd is installed there
        await client.create(CRDS, "", yaml.safe_load(CRD_FILE.read_text(encoding="utf-8")))
    account = {"kind": "ServiceAccount", "name": "crrd-manager", "namespace": "crrd-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "crrd-read-config"}
    await client.create(BINDINGS, namespace, {"metadata": {"name": "policy"}, "roleRef": role, "subjects": [account]})
    await client.create(CONFIG_MAPS, namespace, {"metadata": {"name": "cfg"}, "data": {"value": "old"}})
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


async def ready_reason(cluster: Cluster) -> tuple[str, bool]:
    """What the policy does or waits for, and whether a run of it has ended."""
    status = (await cluster.client.get(POLICIES, cluster.namespace, "web")).get("status") or {}
    found = [each["reason"] for each in status.get("conditions", []) if each["type"] == "Ready"]
    return (found or [""])[0], bool(status.get("run", {}).get("finished"))


@pytest.mark.cluster
@pytest.mark.skipif(foreign() is None, reason="needs a cluster with a controller of Deployments")
@pytest.mark.timeout(600)
async def test_an_edit_goes_live_in_the_same_pods(cluster: Cluster, tmp_path: Path) -> None:
    async with daemons(cluster, tmp_path):
        await apply(cluster)
        async with asyncio.timeout(120):
            while len([pod for pod in (await pods(cluster)).values() if pod_ready(pod)]) < REPLICAS:
                await asyncio.sleep(0.5)
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
            logs = await asyncio.create_subprocess_exec(
                "kubectl", "--kubeconfig", str(cluster.kubeconfig), "-n", cluster.namespace,
                "logs", pod["metadata"]["name"], "-c", "app", stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await logs.communicate()
            assert out.decode().strip() == "new new new new new", status
