"""Requests that the manager carries out by patches, on a real kubelet, without node daemons."""

import asyncio

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.types import READINESS_GATE
from crrd.kube.resources import PODS, Resource
from tests.support.cluster import (
    PATIENCE,
    Cluster,
    Json,
    container,
    container_status,
    foreign,
    pod_ready,
    restart_count,
    states,
)
from tests.support.patching import HOOK, SCRIPT, patching_manager, restart_twice
from tests.support.recreates import pod_spec, pods_of, workload

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
]


async def test_two_requests_for_a_container(cluster: Cluster) -> None:
    async with patching_manager(cluster):
        await restart_twice(cluster)


async def test_the_pod_is_unready_first(cluster: Cluster) -> None:
    await cluster.create_gated_pod("web")
    async with patching_manager(cluster):
        pod = await cluster.wait_pod("web", pod_ready, "ready")
        asked = await cluster.recreate(pod, ["app"], unreadyGracePeriodSeconds=3)
        name = asked["metadata"]["name"]
        await cluster.wait_request(name, lambda found: reason(found) == "UnreadyGracePeriod", "its grace period")
        now = await cluster.pod("web")
        assert condition(now, READINESS_GATE) == condition(now, "Ready") == "False"
        assert restart_count(now, "app") == 0
        assert states(await cluster.wait_completed(name)) == {"app": "Succeeded"}
        after = await cluster.wait_pod("web", pod_ready, "ready again")
        assert restart_count(after, "app") == 1


def reason(found: Json) -> str:
    return str(found.get("status", {}).get("reason", ""))


def condition(pod: Json, kind: str) -> str:
    return next(str(each["status"]) for each in pod["status"]["conditions"] if each["type"] == kind)


async def test_containers_in_order_and_a_native_sidecar(cluster: Cluster) -> None:
    spec = pod_spec(cluster, "app", "side", "proxy")
    *regular, proxy = spec["containers"]
    sidecar = {**spec, "containers": regular, "initContainers": [{**proxy, "restartPolicy": "Always"}]}
    (pod,) = await workload(cluster, "Deployment", "web", 1, spec=sidecar)
    async with patching_manager(cluster):
        asked = await cluster.recreate(pod, ["side", "proxy", "app"], orderedRecreate=True, minStartedSeconds=2)
        done = await cluster.wait_completed(asked["metadata"]["name"])
    assert states(done) == dict.fromkeys(("side", "proxy", "app"), "Succeeded"), done["status"]
    (after,) = await pods_of(cluster, "web")
    assert [restart_count(after, name) for name in ("app", "side")] == [1, 1]
    assert after["status"]["initContainerStatuses"][0]["restartCount"] == 1
    begun = [container_status(after, name)["state"]["running"]["startedAt"] for name in ("side", "app")]
    assert begun == sorted(begun)


async def test_the_manager_is_killed_during_the_stop(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", SCRIPT, lifecycle=SLOW_HOOK), container("side")], grace=20)
    await cluster.wait_words("web", "log", "started")
    async with patching_manager(cluster):
        asked = await cluster.recreate(pod, ["app"])
        await cluster.wait_words("web", "log", "started", "hook")
    await cluster.wait_words("web", "log", "started", "hook", "term", "started")
    async with patching_manager(cluster):
        done = await cluster.wait_completed(asked["metadata"]["name"])
    assert states(done) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1
    await cluster.wait_words("web", "log", "started", "hook", "term", "started")


SLOW_HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log; sleep 4"]}}}


async def test_a_policy_that_forbids_digests(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", SCRIPT, lifecycle=HOOK)])
    policies = Resource("validatingadmissionpolicies", "admissionregistration.k8s.io")
    bindings = Resource("validatingadmissionpolicybindings", "admissionregistration.k8s.io")
    named = {"apiVersion": f"{policies.group}/v1", "metadata": {"name": f"no-digests-{cluster.namespace}"}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    check = {"expression": "!object.spec.containers.exists(c, c.image.contains('sha256:'))", "message": "use tags"}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [check], "failurePolicy": "Fail"}
    selected = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    binding = {"policyName": named["metadata"]["name"], "validationActions": ["Deny"]}  # type: ignore[index]
    binding["matchResources"] = {"namespaceSelector": selected}
    await cluster.client.create(policies, "", {**named, "kind": "ValidatingAdmissionPolicy", "spec": policy})
    await cluster.client.create(bindings, "", {**named, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    try:
        await until_refused(cluster)
        async with patching_manager(cluster):
            asked = await cluster.recreate(pod, ["app"])
            done = await cluster.wait_completed(asked["metadata"]["name"])
    finally:
        for resource in (bindings, policies):
            await cluster.client.delete(resource, "", named["metadata"]["name"])  # type: ignore[index]
    assert (states(done), reason(done)) == ({"app": "Failed"}, "PatchRefused")
    assert "use tags" in done["status"]["message"]
    assert restart_count(await cluster.pod("web"), "app") == 0


async def until_refused(cluster: Cluster) -> None:
    """Wait until the API server applies the policy."""
    change = [{"op": "replace", "path": "/spec/containers/0/image", "value": f"x@sha256:{'0' * 64}"}]
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await cluster.client.json_patch(PODS, cluster.namespace, "web", change, dry_run=True)
            except Exception as error:  # noqa: BLE001 - whatever refuses it
                if "use tags" in str(error):
                    return
            await asyncio.sleep(0.2)


async def test_two_requests_for_the_same_instance(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", SCRIPT, lifecycle=SLOW_HOOK), container("side")], grace=20)
    await cluster.wait_words("web", "log", "started")
    async with patching_manager(cluster):
        first = await cluster.recreate(pod, ["app"])
        second = await cluster.recreate(pod, ["app", "side"], name="second")
        for asked in (first, second):
            done = await cluster.wait_completed(asked["metadata"]["name"])
            assert set(states(done).values()) == {"Succeeded"}
    after = await cluster.pod("web")
    assert [restart_count(after, name) for name in ("app", "side")] == [1, 1]
    assert ANNOTATION_PATCHED in after["metadata"]["annotations"]
    await cluster.wait_words("web", "log", "started", "hook", "term", "started")
