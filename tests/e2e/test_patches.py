"""Restarts by patches on a real kubelet, without crrd's daemons: what stays, hooks, kills, budgets, and rights."""

import asyncio

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.kube.resources import PODS, Resource
from tests.support.cluster import (
    PATIENCE,
    WAITING_SCRIPT,
    Cluster,
    Json,
    container_status,
    foreign,
    pod_ready,
    restart_count,
)
from tests.support.recreates import (
    BUDGETS,
    a_deployment_and_a_statefulset,
    create_workload,
    kept,
    often_killed,
    pod_spec,
    pods_of,
    recorded,
    recreate,
    wait_ready,
    workload,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
]
BY_PATCH = ("--via", "patch")


async def test_a_deployment_and_a_statefulset(cluster: Cluster) -> None:
    await a_deployment_and_a_statefulset(cluster, *BY_PATCH)


async def test_killed_after_each_write_and_resumed(cluster: Cluster) -> None:
    async def written() -> int:
        return sum(_is_recorded(pod) for pod in await pods_of(cluster, "db"))

    await often_killed(cluster, written, *BY_PATCH)


def _is_recorded(pod: Json) -> bool:
    return ANNOTATION_PATCHED in pod["metadata"].get("annotations", {})


async def test_the_hook_runs_once_and_the_grace_period_is_kept(cluster: Cluster) -> None:
    spec = pod_spec(cluster, "app")
    log = {"name": "log", "emptyDir": {}}
    (app,) = spec["containers"]
    app["volumeMounts"] = [{"name": "log", "mountPath": "/log"}]
    app["command"] = ["/bin/sh", "-c", f"echo start >> /log/app; trap 'echo term >> /log/app; exit 0' TERM; {_WAIT}"]
    app["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /log/app"]}}}
    reader = {**pod_spec(cluster, "reader")["containers"][0], "volumeMounts": app["volumeMounts"]}
    reader["command"] = ["/bin/sh", "-c", f"while :; do cat /log/app; echo .; sleep 1; done & {WAITING_SCRIPT}"]
    whole = {**spec, "containers": [app, reader], "volumes": [log]}
    before = await workload(cluster, "Deployment", "web", 1, spec=whole)
    ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
    assert ended.code == 0, ended
    after = await pods_of(cluster, "web")
    kept(before, after, "app")
    async with asyncio.timeout(PATIENCE):
        while "start\nhook\nterm\nstart\n" not in await _logs(cluster, after[0], "reader"):
            await asyncio.sleep(0.2)
    assert "hook" not in (await _logs(cluster, after[0], "reader")).rpartition("term")[2]


_WAIT = "while :; do sleep 0.1 & wait $!; done"


async def _logs(cluster: Cluster, pod: Json, container: str) -> str:
    words = ("--kubeconfig", str(cluster.kubeconfig), "-n", cluster.namespace, "logs", pod["metadata"]["name"])
    process = await asyncio.create_subprocess_exec(
        "kubectl", *words, "-c", container, "--tail", "6", stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode()


async def test_a_container_in_its_back_off_starts_at_once(cluster: Cluster) -> None:
    spec = pod_spec(cluster, "app")
    spec["containers"][0]["command"] = ["/bin/sh", "-c", "exit 1"]

    def waits(pod: Json) -> bool:
        state = container_status(pod, "app").get("state", {})
        return state.get("waiting", {}).get("reason") == "CrashLoopBackOff" and restart_count(pod, "app") >= 3

    await create_workload(cluster, "Deployment", "web", 1, spec)
    held = await wait_ready(cluster, "web", 1, waits)
    ended = await recreate(cluster, "deployment/web", "-c", "app", "--timeout", "10s", *BY_PATCH)
    assert ended.code in (0, 3), ended  # without a probe, it is ready for a moment before it crashes again
    (after,) = await pods_of(cluster, "web")
    assert restart_count(after, "app") == restart_count(held[0], "app") + 1


async def test_a_native_sidecar(cluster: Cluster) -> None:
    spec = pod_spec(cluster, "app", "proxy")
    app, proxy = spec["containers"]
    sidecar = {**spec, "containers": [app], "initContainers": [{**proxy, "restartPolicy": "Always"}]}
    before = await workload(cluster, "Deployment", "web", 1, spec=sidecar)
    ended = await recreate(cluster, "deployment/web", "-c", "proxy", *BY_PATCH)
    assert ended.code == 0, ended
    after = await wait_ready(cluster, "web", 1)
    kept(before, after)
    (old,), (new,) = (pods[0]["status"]["initContainerStatuses"] for pods in (before, after))
    assert (new["restartCount"], new["imageID"]) == (old["restartCount"] + 1, old["imageID"])


async def test_a_disruption_budget_is_never_exceeded(cluster: Cluster) -> None:
    before = await workload(cluster, "Deployment", "web", 6)
    body = {"spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "web"}}}}
    named = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, **body}
    await cluster.client.create(BUDGETS, cluster.namespace, named)
    async with recorded(cluster, "web") as record:
        ended = await recreate(cluster, "deployment/web", "-c", "app", "--max-unavailable", "100%", *BY_PATCH)
    assert ended.code == 0, ended
    kept(before, await pods_of(cluster, "web"), "app")
    assert record.most_unready <= 2


async def test_a_policy_that_forbids_digests_is_told_and_nothing_is_restarted(cluster: Cluster) -> None:
    before = await workload(cluster, "Deployment", "web", 2)
    policies = Resource("validatingadmissionpolicies", "admissionregistration.k8s.io")
    bindings = Resource("validatingadmissionpolicybindings", "admissionregistration.k8s.io")
    name = f"no-digests-{cluster.namespace}"
    selected = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    check = {"expression": "!object.spec.containers.exists(c, c.image.contains('sha256:'))", "message": "use tags"}
    kind, named = "ValidatingAdmissionPolicy", {"apiVersion": f"{policies.group}/v1", "metadata": {"name": name}}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [check], "failurePolicy": "Fail"}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selected}}
    await cluster.client.create(policies, "", {**named, "kind": kind, "spec": policy})
    await cluster.client.create(bindings, "", {**named, "kind": f"{kind}Binding", "spec": binding})
    try:
        await asyncio.sleep(2)  # until the policy is in force
        ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
    finally:
        await cluster.client.delete(bindings, "", name)
        await cluster.client.delete(policies, "", name)
    assert (ended.code, "use tags" in ended.out) == (1, True), ended
    kept(before, await pods_of(cluster, "web"))


async def test_two_restarts_within_seconds(cluster: Cluster) -> None:
    before = await workload(cluster, "Deployment", "web", 1)
    for _ in range(2):
        ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
        assert ended.code == 0, ended
    (after,) = await wait_ready(cluster, "web", 1, pod_ready)
    assert restart_count(after, "app") == restart_count(before[0], "app") + 2
    assert container_status(after, "app")["imageID"] == container_status(before[0], "app")["imageID"]
    assert (await cluster.client.get(PODS, cluster.namespace, after["metadata"]["name"]))["metadata"]["uid"] == (
        before[0]["metadata"]["uid"]
    )
