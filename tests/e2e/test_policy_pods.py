"""Policies whose configuration only an init container uses, with crrd installed from its manifests."""

import asyncio

import pytest

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import BUDGETS, CONFIG_MAPS, POLICIES
from tests.support.cluster import Cluster, Json, container_id, pod_ready, restart_count
from tests.support.real_nodes import machines
from tests.support.recreates import create_workload, grant, pod_spec, pods_of, recorded, requests_of, wait_ready
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(machines() is None, reason="needs a cluster of python -m tests.tools.cluster"),
]
PODS, UNREADY = 4, 2
PROBE = {"exec": {"command": ["/bin/cat", "/tmp/up"]}, "periodSeconds": 1}
RENDER = 'echo "$VALUE $ALL_value $(cat /config/value)" > /shared/rendered; echo init >> /shared/log'
APP = """
cat /shared/rendered >> /shared/read
touch /tmp/up
trap 'exit 0' TERM
while :; do sleep 0.1; done
"""


async def rendered(cluster: Cluster) -> list[Json]:
    """Run a Deployment whose init container renders a ConfigMap to an emptyDir, with a PodDisruptionBudget."""
    shared, config = {"name": "shared", "mountPath": "/shared"}, {"name": "config", "mountPath": "/config"}
    plain = pod_spec(cluster, "app", "render", "side")
    app, render, side = plain["containers"]
    app |= {"command": ["/bin/sh", "-c", APP], "volumeMounts": [shared], "readinessProbe": PROBE}
    render |= {"command": ["/bin/sh", "-c", RENDER], "volumeMounts": [shared, config]}
    render |= {"env": [{"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "value"}}}]}
    render |= {"envFrom": [{"prefix": "ALL_", "configMapRef": {"name": "cfg"}}]}
    volumes = [{"name": "shared", "emptyDir": {}}, {"name": "config", "configMap": {"name": "cfg"}}]
    own = {"hostNetwork": False, "containers": [app, side], "initContainers": [render], "volumes": volumes}
    await cluster.client.create(CONFIG_MAPS, cluster.namespace, {"metadata": {"name": "cfg"}, "data": {"value": "old"}})
    await create_workload(cluster, "Deployment", "web", PODS, {**plain, **own})
    guard = {"maxUnavailable": UNREADY, "selector": {"matchLabels": {"app": "web"}}}
    await cluster.client.create(BUDGETS, cluster.namespace, {"metadata": {"name": "web"}, "spec": guard})
    return await wait_ready(cluster, "web", PODS)


async def policy(cluster: Cluster, *, allowed: bool) -> None:
    """Create the policy, and bind the role that it needs."""
    await grant(cluster, "crrd-read-config")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    change = {"settle": "2s", "allowPodRestart": allowed}
    spec = {"targetRef": target, "triggers": {"configChange": change}, "budget": {"maxUnavailable": "100%"}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    await cluster.client.create(POLICIES, cluster.namespace, body)


def condition(found: Json, kind: str) -> Json:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


async def until(cluster: Cluster, reason: str, *, finished: bool = False) -> Json:
    """Wait until the condition Ready of the policy has the reason, and return the policy."""

    def reached(found: Json) -> bool:
        over = bool(((found.get("status") or {}).get("run") or {}).get("finished"))
        return condition(found, "Ready").get("reason") == reason and (over or not finished)

    return await cluster.wait(POLICIES, "web", reached, f"policy: {reason}", seconds=240)


async def read(cluster: Cluster, pod: Json, name: str) -> list[str]:
    """Return the lines of a file in the volume of a pod."""
    found = await cluster.execute(container_id(pod, "app"), "cat", f"/shared/{name}")
    return found.stdout.decode().splitlines()


async def edit(cluster: Cluster, value: str) -> None:
    await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": value}})


async def check_restarted(cluster: Cluster, before: list[Json]) -> None:
    """Check that each pod has restarted once as a whole, with the new data."""
    after = await pods_of(cluster, "web")
    assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in before]
    for pod in after:
        assert pod_ready(pod)
        assert [restart_count(pod, name) for name in ("app", "side")] == [1, 1]
        assert await read(cluster, pod, "log") == ["init", "init"]
        assert await read(cluster, pod, "read") == ["old old old", "new new new"]


async def test_an_edit_restarts_the_pods_as_a_whole_where_the_policy_allows_it(
    cluster: Cluster, nodes: Machines
) -> None:
    before = await rendered(cluster)
    await policy(cluster, allowed=True)
    idle = await until(cluster, "Idle")
    assert condition(idle, "Effective")["status"] == "True"
    await asyncio.sleep(5)  # containers that start while a change settles are restarted once more
    async with recorded(cluster, "web") as record:
        await edit(cluster, "new")
        done = await until(cluster, "Idle", finished=True)
    await check_restarted(cluster, before)
    assert 0 < record.most_unready <= UNREADY, "the PodDisruptionBudget"
    run = done["status"]["run"]
    assert (run["pods"], run["containers"], run["message"]) == (True, ["render"], "4 of 4 pods recreated")
    assert "which render uses; restarting whole pods" in run["reason"]
    assert all(each["spec"]["wholePod"] for each in await requests_of(cluster))
    assert nodes.nodes


async def test_without_leave_it_is_out_of_reach_until_the_policy_allows_it(cluster: Cluster, nodes: Machines) -> None:
    before = await rendered(cluster)
    await policy(cluster, allowed=False)
    found = await until(cluster, "ConfigOutOfReach")
    assert "configChange.allowPodRestart" in condition(found, "Ready")["message"]
    assert condition(found, "Effective")["reason"] == "ConfigOutOfReach"
    await asyncio.sleep(5)
    await edit(cluster, "new")
    await asyncio.sleep(8)  # longer than the change takes to settle
    assert (await requests_of(cluster), await pods_of(cluster, "web")) == ([], before)
    allow = {"spec": {"triggers": {"configChange": {"allowPodRestart": True}}}}
    await cluster.client.merge_patch(POLICIES, cluster.namespace, "web", allow)
    await until(cluster, "Idle", finished=True)
    await check_restarted(cluster, before)
    assert nodes.nodes
