"""Bad data on a cluster with its own kubelet and controllers: it costs one pod, and the last good data comes back."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS, POLICIES
from tests.e2e.test_policies import all_ready, install, log_of, restarts
from tests.support.cluster import Cluster, foreign
from tests.support.recreates import daemons, grant, workload

REPLICAS = 4
SCRIPT = """trap 'exit 0' TERM
echo "$value"; [ "$value" = bad ] && { sleep 4; exit 1; }
while :; do sleep 0.2; done"""
"""A container with the bad value is ready at first, and then crashes."""
Json = dict[str, Any]


async def status_of(cluster: Cluster) -> Json:
    return dict((await cluster.client.get(POLICIES, cluster.namespace, "web")).get("status") or {})


async def until(cluster: Cluster, holds: Callable[[Json, Json], bool]) -> Json:
    """Return the policy's status, once this holds of it and of its conditions by type."""
    while True:
        status = await status_of(cluster)
        conditions = {each["type"]: each for each in status.get("conditions", [])}
        if conditions and holds(status, conditions):
            return status
        await asyncio.sleep(0.3)


async def apply(cluster: Cluster) -> None:
    """A ConfigMap, pods that use it, and a policy that judges them and restores data."""
    client, namespace = cluster.client, cluster.namespace
    await install(cluster, "crrd-read-config")
    await grant(cluster, "crrd-restore-config")
    await client.create(CONFIG_MAPS, namespace, {"metadata": {"name": "cfg"}, "data": {"value": "old"}})
    app = {
        "name": "app",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", SCRIPT],
        "envFrom": [{"configMapRef": {"name": "cfg"}}],
    }
    pod = {"containers": [app], "tolerations": [{"operator": "Exists"}], "hostNetwork": True}
    await workload(cluster, "Deployment", "web", REPLICAS, spec={**pod, "automountServiceAccountToken": False})
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "triggers": {"configChange": {"settle": "2s"}},
        "budget": {"steps": [1]},
        "judge": {"for": "15s"},
        "onFailure": "Restore",
    }
    policy = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    await client.create(POLICIES, namespace, policy)


@pytest.mark.cluster
@pytest.mark.skipif(foreign() is None, reason="needs a cluster with a controller of Deployments")
@pytest.mark.timeout(600)
async def test_bad_data_costs_one_pod_and_the_last_good_data_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    async with daemons(cluster, tmp_path), asyncio.timeout(300):
        await apply(cluster)
        await until(cluster, lambda _, conditions: conditions.get("Restorable", {}).get("status") == "True")
        await asyncio.sleep(5)  # containers that start while a change settles are restarted once more
        before = await all_ready(cluster, REPLICAS)
        await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": "bad"}})
        status = await until(
            cluster, lambda status, found: bool(status.get("bad")) and found["Ready"]["reason"] == "Idle"
        )
        assert status["bad"][0]["restored"]
        data = (await cluster.client.get(CONFIG_MAPS, cluster.namespace, "cfg"))["data"]
        assert data == {"value": "old"}
        after = await all_ready(cluster, REPLICAS)
        assert after.keys() == before.keys(), "no pod was replaced"
        assert restarts(after, "app")[:-1] == [0] * (REPLICAS - 1), "one pod, and no other one, had the bad data"
        assert {await log_of(cluster, pod["metadata"]["name"]) for pod in after.values()} == {"old"}
        kept = await cluster.client.list_all(CONTROLLER_REVISIONS, dict, namespace=cluster.namespace)
        assert [each["data"] for each in kept.items] == [{"data": {"value": "old"}}]
        await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": "bad"}})
        await until(cluster, lambda _, conditions: conditions["Ready"]["reason"] == "BadRevision")
        await asyncio.sleep(10)
        assert restarts(await all_ready(cluster, REPLICAS), "app") == restarts(after, "app"), "nothing is restarted"
        await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": "new"}})
        run = status["run"]["name"]
        done = await until(
            cluster, lambda status, found: status["run"]["name"] != run and found["Ready"]["reason"] == "Idle"
        )
        assert not done["run"]["failed"]
        found = await all_ready(cluster, REPLICAS)
        assert {await log_of(cluster, pod["metadata"]["name"]) for pod in found.values()} == {"new"}
