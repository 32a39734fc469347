"""The manager alone, from the overlay lean: no node daemon, and no right but those that the manifests give."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import BUDGETS, CONFIG_MAPS, PODS, POLICIES
from crrd.lib.errors import ApiRefusedError
from tests.support.cluster import WAITING_SCRIPT, Cluster, Json, container_status, request_for, restart_count, states
from tests.support.real_nodes import installed, kubectl, machines
from tests.support.recreates import create_workload, grant, kept, pod_spec, pods_of, recorded, wait_ready
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(machines() is None, reason="needs a cluster of python -m tests.tools.cluster"),
]
ROLES = ("crrd-read-config", "crrd-patch-pods")
PODS_OF_WEB = 4


@pytest.fixture(scope="module")
def lean() -> Iterator[Machines]:
    """A cluster with the manager alone."""
    found = machines()
    assert found is not None
    with installed(found, "overlays/lean"):
        yield found


async def a_workload(cluster: Cluster) -> list[Json]:
    """A Deployment whose containers use a ConfigMap and log their hooks and starts, with a PodDisruptionBudget."""
    spec = pod_spec(cluster, "app", "side")
    app = spec["containers"][0]
    app["volumeMounts"] = [{"name": "log", "mountPath": "/log"}]
    app["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /log/log"]}}}
    app["command"] = ["/bin/sh", "-c", f"echo start $VALUE >> /log/log; {WAITING_SCRIPT}"]
    app["env"] = [{"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "value"}}}]
    spec |= {"volumes": [{"name": "log", "emptyDir": {}}], "terminationGracePeriodSeconds": 5}
    await cluster.client.create(CONFIG_MAPS, cluster.namespace, {"metadata": {"name": "cfg"}, "data": {"value": "old"}})
    await create_workload(cluster, "Deployment", "web", PODS_OF_WEB, spec=spec)
    selector = {"matchLabels": {"app": "web"}}
    guard = {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": selector}}
    await cluster.client.create(BUDGETS, cluster.namespace, guard)
    return await wait_ready(cluster, "web", PODS_OF_WEB)


async def log_of(cluster: Cluster, pod: Json) -> list[str]:
    """What the containers of a pod have logged."""
    container_id = str(container_status(pod, "app")["containerID"]).partition("://")[2]
    found = await cluster.execute(container_id, "cat", "/log/log")
    return found.stdout.decode().splitlines()


async def until_policy(cluster: Cluster, reason: str, *, finished: bool = False) -> Json:
    """Wait until the policy's condition Ready has the reason, and return the condition."""

    def condition(found: Json) -> Json:
        conditions = (found.get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == "Ready"), {})

    def reached(found: Json) -> bool:
        over = bool(((found.get("status") or {}).get("run") or {}).get("finished"))
        return condition(found).get("reason") == reason and (over or not finished)

    return condition(await cluster.wait(POLICIES, "web", reached, f"policy: {reason}", seconds=300))


async def test_a_policy_brings_a_changed_config_map(cluster: Cluster, lean: Machines) -> None:
    before = await a_workload(cluster)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"targetRef": target, "triggers": {"configChange": {"settle": "2s"}}, "budget": {"maxUnavailable": "100%"}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    await grant(cluster, ROLES[0])
    await cluster.client.create(POLICIES, cluster.namespace, body)
    lacks = await until_policy(cluster, "PodsNotPatchable")
    assert f"create rolebinding crrd-patch-pods -n {cluster.namespace}" in lacks["message"]
    await grant(cluster, ROLES[1])
    await until_policy(cluster, "Idle")
    async with recorded(cluster, "web") as record:
        await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": "new"}})
        await until_policy(cluster, "Idle", finished=True)
    after = await pods_of(cluster, "web")
    kept(before, after, "app")
    assert [restart_count(pod, "app") for pod in after] == [1] * PODS_OF_WEB
    assert record.most_unready <= 1, "the PodDisruptionBudget"
    for pod in after:
        assert await log_of(cluster, pod) == ["start old", "hook", "start new"]


async def asked(cluster: Cluster, pod: Json, name: str, **strategy: object) -> None:
    """Create a request, as a user does."""
    body = request_for(pod, "app")
    body["metadata"] = {"name": name}
    body["spec"]["strategy"] = strategy
    await cluster.create_request(body)


async def test_a_request_is_carried_out_by_the_manager(cluster: Cluster, lean: Machines) -> None:
    """Admission refuses what only a node daemon can do, and a namespace that has not bound the role."""
    before = await a_workload(cluster)
    await asked(cluster, before[0], "first")
    ended = await cluster.wait_completed("first")
    assert states(ended) == {"app": "Failed"}
    assert f"create rolebinding crrd-patch-pods -n {cluster.namespace}" in str(ended["status"])
    await grant(cluster, ROLES[1])
    with pytest.raises(ApiRefusedError, match="terminationGracePeriodSeconds must be left out"):
        await asked(cluster, before[0], "other", terminationGracePeriodSeconds=1)
    names = [pod["metadata"]["name"] for pod in before]
    for pod in before:
        await asked(cluster, pod, f"second-{pod['metadata']['name']}")
    for name in names:
        assert states(await cluster.wait_completed(f"second-{name}")) == {"app": "Succeeded"}
    after = await pods_of(cluster, "web")
    kept(before, after, "app")
    assert [restart_count(pod, "app") for pod in after] == [1] * PODS_OF_WEB
    for pod in after:
        assert await log_of(cluster, pod) == ["start old", "hook", "start old"]


async def test_the_manager_can_give_no_other_image(cluster: Cluster, lean: Machines) -> None:
    """Its token, and all rights that it has in a namespace."""
    for role in ROLES:
        await grant(cluster, role)
    (pod, *_) = await a_workload(cluster)
    path, name = "/spec/containers/0/image", pod["metadata"]["name"]
    account = "--as=system:serviceaccount:crrd-system:crrd-manager"
    words = ("patch", "pod", name, "-n", cluster.namespace, account, "--type=json", "--dry-run=server", "-p")
    for image in ("localhost/busybox:2", f"localhost/busybox@sha256:{'0' * 64}"):
        with pytest.raises(Exception, match="returned non-zero exit status"):
            kubectl(lean, *words, json.dumps([{"op": "replace", "path": path, "value": image}]))
    known = str(container_status(pod, "app")["imageID"])
    kubectl(lean, *words, json.dumps([{"op": "replace", "path": path, "value": known}]))
    assert (await cluster.client.get(PODS, cluster.namespace, name))["spec"] == pod["spec"]


def refusal(found: Machines, *words: str) -> str:
    """What kubectl says of a write that is refused."""
    command = ["kubectl", "--kubeconfig", str(found.plan.kubeconfig), *words, "--dry-run=server"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode, ended.stdout
    return ended.stderr


async def test_nobody_writes_what_others_obey(cluster: Cluster, lean: Machines) -> None:
    """Of a pod's status and of its webhooks, the manager changes nothing else. Users never write a request's status."""
    (pod, *_) = await a_workload(cluster)
    await asked(cluster, pod, "first")
    rights = ("--verb=get,patch", "--resource=pods/status,containerrecreaterequests/status")  # kubectl gets it first
    users = ("--user=somebody", "--serviceaccount=crrd-system:crrd-manager", "-n", cluster.namespace)
    kubectl(lean, "create", "role", "status", *rights, "-n", cluster.namespace)
    kubectl(lean, "create", "rolebinding", "status", "--role=status", *users)
    account = "--as=system:serviceaccount:crrd-system:crrd-manager"
    status = ("--subresource=status", "--type=merge", "-n", cluster.namespace)
    name, ended = str(pod["metadata"]["name"]), '{"status":{"phase":"Failed"}}'
    said = refusal(lean, "patch", "pod", name, *status, account, "-p", ended)
    assert "the manager may only change the conditions of a pod's status" in said
    other = [{"op": "replace", "path": "/webhooks/0/clientConfig/service/name", "value": "elsewhere"}]
    webhooks = ("mutatingwebhookconfiguration", "crrd", "--type=json")
    said = refusal(lean, "patch", *webhooks, account, "-p", json.dumps(other))
    assert "the manager may only change the caBundle of a webhook" in said
    said = refusal(lean, "patch", "crr", "first", *status, "--as=somebody", "-p", '{"status":{"message":"done"}}')
    assert "only the node daemon and the manager may change the status" in said
