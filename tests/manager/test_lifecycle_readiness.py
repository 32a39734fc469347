"""The controller on the local API server: pods are made unready for requests, and ready again whatever happens."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from crrd.core.lifecycle import steps as lc
from crrd.kube.resources import PODS
from tests.support.lifecycle_cluster import LifecycleCluster, Replica, entry, lifecycle_cluster

READY = ("True", "")
OTHER = '{"userAgent":"SidecarSet","key":"default/x"}'
ODD = '{"userAgent":"A","key":"default/x","since":[1]}'


@pytest.fixture
async def cluster() -> AsyncIterator[LifecycleCluster]:
    async with lifecycle_cluster() as made:
        yield made


@pytest.fixture
async def manager(cluster: LifecycleCluster) -> Replica:
    return cluster.manager()


async def write_condition(cluster: LifecycleCluster, message: str | None, status: str = "False") -> None:
    """Somebody else writes the condition of web-0."""
    condition = {"type": "KruisePodReady", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    if message is not None:
        condition["message"] = message
    body = {"status": {"conditions": [condition, {"type": "Ready", "status": "False", "reason": "kept"}]}}
    await cluster.client.merge_patch(PODS, "default", "web-0", body, subresource="status")


def conditions(cluster: LifecycleCluster) -> dict[str, Mapping[str, Any]]:
    stored = cluster.server.store.get("/pods", ("default", "web-0"))
    assert stored is not None
    return {condition["type"]: condition for condition in stored.obj["status"]["conditions"]}


class TestOneRequest:
    async def test_from_acquired_to_released(self, cluster: LifecycleCluster, manager: Replica) -> None:
        """Nothing is taken from the pod before the node serves the request."""
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Pending")
        await cluster.later()
        assert cluster.condition() == READY
        assert not cluster.has_finalizer("one")
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        assert cluster.condition() == ("False", entry("one"))
        assert cluster.has_finalizer("one")
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        assert cluster.condition() == READY
        kinds = [type(action) for action in manager.done if not isinstance(action, lc.Complete)]
        assert kinds[:1] == [lc.InitReadiness]
        assert [kind for kind in kinds if kind in (lc.AddFinalizer, lc.AcquireUnready, lc.RecordUnready)] == [
            lc.AddFinalizer, lc.AcquireUnready, lc.RecordUnready,
        ]  # fmt: skip

    @pytest.mark.parametrize("before", ["True", "False", None])
    async def test_ready_goes_in_the_same_write_and_comes_back_from_kubelet_alone(
        self, cluster: LifecycleCluster, manager: Replica, before: str | None
    ) -> None:
        """Kubelet may be slow: when the node reads the mark, no traffic is to go to the pod any more."""
        pod = await cluster.ready_pod()
        found = [dict(conditions(cluster)["KruisePodReady"])]
        ready = {"type": "Ready", "status": before, "reason": "kubelet's", "lastProbeTime": None}
        found += [ready] if before else []
        body = {"status": {"conditions": found}}
        await cluster.client.merge_patch(PODS, "default", "web-0", body, subresource="status")
        await cluster.request("one", pod, grace=5)
        manager.client.writes.clear()
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        assert manager.client.writes.count("patch pods/status") == 1
        now = conditions(cluster).get("Ready", {})
        if before == "True":
            assert (now["status"], now["reason"]) == ("False", "ReadinessGatesNotReady")
            assert now["message"] == 'the status of pod readiness gate "KruisePodReady" is not "True", but False'
            assert now["lastTransitionTime"]
        else:
            assert now == (ready if before else {})
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        assert cluster.condition() == READY
        assert conditions(cluster).get("Ready", {}) == now

    async def test_without_the_gate_nothing_is_written(self, cluster: LifecycleCluster, manager: Replica) -> None:
        """Nor without a grace period, nor without the active label; the node says why it does not wait."""
        bare = await cluster.pod("bare", gate=False)
        gated = await cluster.ready_pod()
        await cluster.request("no-gate", bare, grace=5)
        await cluster.request("no-grace", gated)
        await cluster.request("inactive", gated, grace=5, active=False)
        names = ("no-gate", "no-grace", "inactive")
        manager.client.writes.clear()
        for name in names:
            await cluster.node_says(name, "Recreating")
        await cluster.later()
        assert not any(map(cluster.has_finalizer, names))
        for name in names:
            await cluster.node_says(name, "Completed", "Succeeded")
        await cluster.settle(*names)
        assert "patch pods/status" not in manager.client.writes
        assert cluster.condition("bare") == ("", "")

    @pytest.mark.usefixtures("manager")
    async def test_entries_of_others_are_kept(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await write_condition(cluster, f"[{OTHER},{ODD}]")
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        mine = entry("one")[1:-1]
        assert cluster.condition() == ("False", f"[{ODD},{mine},{OTHER}]")
        condition = conditions(cluster)
        assert condition["KruisePodReady"]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        assert condition["Ready"]["reason"] == "kept"
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        assert cluster.condition() == ("False", f"[{ODD},{OTHER}]")

    @pytest.mark.usefixtures("manager")
    @pytest.mark.parametrize("message", ["not JSON", '{"userAgent":"x"}', "[1,{}]", "[" * 5000, "null", None])
    async def test_a_malformed_message_is_replaced(self, cluster: LifecycleCluster, message: str | None) -> None:
        pod = await cluster.ready_pod()
        await write_condition(cluster, message)
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        assert cluster.condition() == ("False", entry("one"))
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        assert cluster.condition() == READY
        assert conditions(cluster)["KruisePodReady"]["lastTransitionTime"] != "2026-01-01T00:00:00Z"

    async def test_an_odd_message_is_not_the_managers_to_repair(
        self, cluster: LifecycleCluster, manager: Replica
    ) -> None:
        await cluster.ready_pod()
        await write_condition(cluster, "not JSON")
        manager.client.writes.clear()
        await cluster.later()
        assert cluster.condition() == ("False", "not JSON")
        assert "patch pods/status" not in manager.client.writes

    @pytest.mark.usefixtures("manager")
    async def test_an_entry_that_somebody_takes_away_is_put_back(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await write_condition(cluster, None, "True")
        await cluster.until("unready again", lambda: cluster.condition() == ("False", entry("one")))
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        assert cluster.condition() == READY

    @pytest.mark.usefixtures("manager")
    async def test_losing_the_active_label_releases(self, cluster: LifecycleCluster) -> None:
        """The node has let go of the request then."""
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.label("one", "crr.apps.kruise.io/active", "false")
        await cluster.until("released", lambda: cluster.condition() == READY and not cluster.has_finalizer("one"))

    @pytest.mark.usefixtures("manager")
    async def test_a_deadline_releases(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5, activeDeadlineSeconds=60)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        cluster.jump(61)
        await cluster.settle("one")
        assert cluster.condition() == READY


class TestGoing:
    @pytest.mark.usefixtures("manager")
    async def test_a_deleted_request_goes_when_the_pod_is_ready(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.delete("one")
        await cluster.until("deleted", lambda: not cluster.crr("one"))
        assert cluster.condition() == READY

    @pytest.mark.usefixtures("manager")
    async def test_finalizers_of_others_stay(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.finalizers("one", "example.org/archive")
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.delete("one")
        await cluster.until("released", lambda: cluster.condition() == READY and not cluster.has_finalizer("one"))
        assert cluster.deleting("one")
        await cluster.finalizers("one")
        assert not cluster.crr("one")

    @pytest.mark.parametrize("managed", [True, False])
    async def test_a_finalizer_taken_by_force(self, cluster: LifecycleCluster, *, managed: bool) -> None:
        """The request vanishes while the pod is unready for it: before the manager's eyes, or while none is there."""
        manager = cluster.manager()
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        if not managed:
            await manager.kill()
        else:
            cluster.server.hold_cache()  # the manager hears of the deletion when the request is no more
        await cluster.delete("one")
        await cluster.finalizers("one")
        assert not cluster.crr("one")
        assert cluster.condition() == ("False", entry("one"))
        if managed:
            cluster.server.release_cache()
        else:
            cluster.manager("manager-b")
        await cluster.until("released", lambda: cluster.condition() == READY)

    @pytest.mark.usefixtures("manager")
    async def test_a_finalizer_taken_from_a_request_that_is_served(self, cluster: LifecycleCluster) -> None:
        """It is put back: the pod is unready for the request still."""
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.finalizers("one")
        await cluster.until("guarded", lambda: cluster.has_finalizer("one"))
        await cluster.delete("one")
        await cluster.until("deleted", lambda: not cluster.crr("one"))
        assert cluster.condition() == READY

    @pytest.mark.parametrize("replaced", [False, True])
    @pytest.mark.usefixtures("manager")
    async def test_a_pod_that_goes_takes_its_condition_along(
        self, cluster: LifecycleCluster, *, replaced: bool
    ) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.remove_pod()
        if replaced:
            await cluster.ready_pod()
        await cluster.settle("one")
        assert cluster.message("one").startswith(("the pod no longer exists", "the pod was replaced"))
        if replaced:
            assert cluster.condition() == READY

    @pytest.mark.usefixtures("manager")
    async def test_a_pod_and_its_request_go_together(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.remove_pod()
        await cluster.delete("one")
        await cluster.until("deleted", lambda: not cluster.crr("one"))

    @pytest.mark.usefixtures("manager")
    async def test_a_pod_that_is_being_deleted_is_not_made_unready(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.client.delete(PODS, "default", "web-0", grace_seconds=3600)
        await cluster.node_says("one", "Recreating")
        await cluster.later()
        assert cluster.condition() == READY
        await cluster.remove_pod()
        await cluster.settle("one")


class TestTwoRequests:
    @pytest.mark.usefixtures("manager")
    async def test_the_last_one_makes_the_pod_ready(self, cluster: LifecycleCluster) -> None:
        """Both hold the readiness at once, as when the first one's release comes late."""
        pod = await cluster.ready_pod()
        for name in ("b", "a"):
            await cluster.request(name, pod, grace=5)
            await cluster.node_says(name, "Recreating")
        await cluster.until("both acquired", lambda: cluster.acquired("a") and cluster.acquired("b"))
        assert cluster.condition() == ("False", entry("a", "b"))
        await cluster.delete("a")
        await cluster.until("deleted", lambda: not cluster.crr("a"))
        assert cluster.condition() == ("False", entry("b"))
        await cluster.node_says("b", "Completed", "Succeeded")
        await cluster.settle("b")
        assert cluster.condition() == READY

    async def test_the_next_one_acquires_when_its_turn_comes(self, cluster: LifecycleCluster, manager: Replica) -> None:
        pod = await cluster.ready_pod()
        for name in ("a", "b"):
            await cluster.request(name, pod, grace=5)
        await cluster.node_says("b", "Pending")
        await cluster.serve("a")
        await cluster.settle("a")
        assert not cluster.acquired("b")
        await cluster.serve("b")
        await cluster.settle("b")
        assert cluster.condition() == READY
        acquired = [action.key for action in manager.done if isinstance(action, lc.AcquireUnready)]
        assert list(dict.fromkeys(acquired)) == ["default/a", "default/b"]

    @pytest.mark.usefixtures("manager")
    async def test_requests_of_an_old_and_of_a_new_pod(self, cluster: LifecycleCluster) -> None:
        """The one for the pod of before must not touch the readiness of its successor."""
        cluster.server.hold_cache()
        old = await cluster.pod()
        await cluster.request("old", old, grace=5)
        await cluster.node_says("old", "Recreating")
        await cluster.remove_pod()
        new = await cluster.pod()
        await cluster.request("new", new, grace=5)
        await cluster.node_says("new", "Recreating")
        cluster.server.release_cache()
        await cluster.settle("old")
        await cluster.until("acquired", lambda: cluster.acquired("new"))
        assert json.loads(cluster.condition()[1]) == json.loads(entry("new"))
        assert not cluster.acquired("old")


class TestPods:
    async def test_pods_with_the_gate_become_ready(self, cluster: LifecycleCluster) -> None:
        """Those that were there before the manager, and those that come."""
        for name in ("early", "bare"):
            await cluster.pod(name, gate=name != "bare")
        cluster.manager()
        await cluster.pod("late")
        for name in ("early", "late"):
            await cluster.until("ready", lambda name=name: cluster.condition(name) == READY)  # type: ignore[misc]
        await cluster.later()
        assert cluster.condition("bare") == ("", "")

    @pytest.mark.parametrize("end", ["deleting", "Succeeded", "Failed"])
    async def test_pods_that_end_are_left_alone(self, cluster: LifecycleCluster, end: str) -> None:
        await cluster.pod()
        if end == "deleting":
            await cluster.client.delete(PODS, "default", "web-0", grace_seconds=3600)
        else:
            body = {"status": {"phase": end}}
            await cluster.client.merge_patch(PODS, "default", "web-0", body, subresource="status")
        manager = cluster.manager()
        await cluster.later()
        assert cluster.condition() == ("", "")
        assert "patch pods/status" not in manager.client.writes
