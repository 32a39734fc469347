"""The controller on the local API server: that requests end, are cleaned up after, and vanish in time."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import rfc3339
from crrd.core.lifecycle import steps as lc
from crrd.kube.resources import PODS, REQUESTS
from crrd.manager import pod_reads
from crrd.manager.state_times import CLOCK_SKEW_SECONDS
from crrd_localnode.api import meta
from crrd_localnode.api.meta import new_metadata
from tests.support.lifecycle_cluster import LifecycleCluster, Replica, lifecycle_cluster

UID_LABEL, NODE_LABEL = "crr.apps.kruise.io/pod-uid", "crr.apps.kruise.io/node-name"
HOUR = 3600


@pytest.fixture
async def cluster() -> AsyncIterator[LifecycleCluster]:
    async with lifecycle_cluster() as made:
        yield made


@pytest.fixture
async def manager(cluster: LifecycleCluster) -> Replica:
    return cluster.manager()


def states(cluster: LifecycleCluster, name: str) -> list[tuple[str, str]]:
    return [(state["phase"], state.get("message", "")) for state in cluster.status(name)["containerRecreateStates"]]


class TestPod:
    async def test_a_pod_that_goes_completes_its_requests(self, cluster: LifecycleCluster, manager: Replica) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("served", pod)
        await cluster.request("new", pod)
        await cluster.node_says("served", "Recreating", "Recreating")
        await cluster.remove_pod()
        await cluster.settle("served", "new")
        for name in ("served", "new"):
            assert cluster.message(name) == "the pod no longer exists"
            assert states(cluster, name) == [("Failed", "the pod no longer exists")]
        said = {event.request.name: event for event in manager.events.seen}
        assert (said["new"].message, said["new"].reason, said["new"].warning) == (
            "Request new: the pod no longer exists", EventReason.FAILED, True,
        )  # fmt: skip
        assert sorted(said) == ["new", "served"]
        ends = [action.status.reason for action in manager.done if isinstance(action, lc.Complete)]
        assert ends == [Reason.POD_GONE] * 2

    @pytest.mark.usefixtures("manager")
    async def test_a_pod_that_never_was(self, cluster: LifecycleCluster) -> None:
        await cluster.request("one", {"metadata": {"name": "nowhere", "uid": "u"}})
        await cluster.settle("one")
        assert cluster.message("one") == "the pod no longer exists"

    async def test_a_pod_is_asked_for_late_if_its_readiness_does_not_matter(
        self, cluster: LifecycleCluster, manager: Replica, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Most requests have ended by then, and the pod was never read. One that lasts is not forgotten."""
        monkeypatch.setattr(pod_reads, "PATIENCE_SECONDS", 1.0)
        pod = await cluster.pod(gate=False)
        await cluster.request("short", pod)
        await cluster.node_says("short", "Recreating", "Recreating")
        await cluster.node_says("short", "Completed", "Succeeded")
        await cluster.settle("short")
        asked = ("get", "pods")
        assert asked not in [(call.verb, call.resource) for call in cluster.calls]
        assert not manager.controller._reads.repeats("default/" + pod["metadata"]["name"])
        await cluster.request("long", pod)
        await cluster.remove_pod()
        await cluster.settle("long")
        assert cluster.message("long") == "the pod no longer exists"
        assert asked in [(call.verb, call.resource) for call in cluster.calls]

    @pytest.mark.parametrize("gate", [True, False])
    async def test_a_pod_that_is_replaced(self, cluster: LifecycleCluster, *, gate: bool) -> None:
        """A StatefulSet's pod comes back under its name, while nobody looks and while somebody does."""
        old = await cluster.pod(gate=gate)
        await cluster.request("before", old)
        await cluster.remove_pod()
        new = await cluster.pod(gate=gate)
        cluster.manager()
        await cluster.settle("before")
        uids = old["metadata"]["uid"], new["metadata"]["uid"]
        assert cluster.message("before") == (
            f"the pod was replaced: the request is for UID {uids[0]}, but default/web-0 now has UID {uids[1]}"
        )
        await cluster.request("after", new)
        await cluster.node_says("after", "Recreating")
        await cluster.remove_pod()
        await cluster.pod(gate=gate)
        await cluster.settle("after")
        assert cluster.message("after").startswith(f"the pod was replaced: the request is for UID {uids[1]}") or (
            cluster.message("after") == "the pod no longer exists"  # seen between the two
        )

    @pytest.mark.usefixtures("manager")
    async def test_a_pod_that_only_begins_to_go_is_there(self, cluster: LifecycleCluster) -> None:
        """Its containers may still be recreated by nobody, but only the node may say so."""
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod)
        await cluster.node_says("one", "Recreating")
        await cluster.client.delete(PODS, "default", "web-0", grace_seconds=HOUR)
        await cluster.later()
        assert cluster.phase("one") == "Recreating"
        await cluster.remove_pod()
        await cluster.settle("one")

    async def test_a_pod_that_should_have_gone_ends_its_requests(
        self, cluster: LifecycleCluster, manager: Replica
    ) -> None:
        """Its node is dead: nobody takes the pod away, and nobody says that it will not be recreated."""
        pod = await cluster.ready_pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.client.delete(PODS, "default", "web-0", grace_seconds=HOUR)
        cluster.jump(HOUR)
        await cluster.later()
        assert cluster.phase("one") == "Recreating"
        cluster.jump(31)
        await cluster.settle("one")
        assert cluster.message("one") == "the pod is being deleted"
        assert states(cluster, "one") == [("Failed", "the pod is being deleted")]
        ends = {action.status.reason for action in manager.done if isinstance(action, lc.Complete)}
        assert Reason.POD_DELETING in ends

    @pytest.mark.usefixtures("manager")
    async def test_without_its_uid_a_request_takes_the_pod_of_its_name(self, cluster: LifecycleCluster) -> None:
        """No admission set the label, or somebody took it away."""
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod)
        await cluster.node_says("one", "Recreating")
        await cluster.label("one", UID_LABEL, None)
        await cluster.later()
        assert cluster.phase("one") == "Recreating"
        await cluster.remove_pod()
        await cluster.settle("one")
        assert cluster.message("one") == "the pod no longer exists"


class TestTimes:
    async def test_nobody_answers(self, cluster: LifecycleCluster, manager: Replica) -> None:
        await cluster.request("one", await cluster.pod(gate=False))
        await cluster.later()
        manager.done.clear()
        cluster.jump(61)
        await cluster.settle("one")
        assert cluster.message("one") == "no node daemon answered the request on node node-a"
        assert states(cluster, "one") == [("Failed", "no node daemon answered the request on node node-a")]
        ends = [action.status.reason for action in manager.done if isinstance(action, lc.Complete)]
        assert ends == [Reason.NO_ANSWER]

    @pytest.mark.usefixtures("manager")
    async def test_a_new_request_of_an_api_server_whose_clock_is_behind_is_not_given_up(
        self, cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.later()
        behind = rfc3339(cluster.now() - timedelta(seconds=90))
        with monkeypatch.context() as patch:
            patch.setattr(meta, "new_metadata", lambda *args: {**new_metadata(*args), "creationTimestamp": behind})
            await cluster.request("one", pod)
        cluster.jump(5)
        await cluster.later()
        assert cluster.phase("one") == "", "it was created 5 seconds ago, as the manager sees it"
        cluster.jump(56)
        await cluster.settle("one")
        assert cluster.message("one") == "no node daemon answered the request on node node-a"

    @pytest.mark.parametrize("phase", ["", "Recreating"])
    async def test_a_new_leader_meets_a_new_request_of_an_api_server_whose_clock_is_behind(
        self, cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch, phase: str
    ) -> None:
        pod = await cluster.pod(gate=False)
        behind = rfc3339(cluster.now() - timedelta(seconds=90))
        with monkeypatch.context() as patch:
            patch.setattr(meta, "new_metadata", lambda *args: {**new_metadata(*args), "creationTimestamp": behind})
            await cluster.request("one", pod, activeDeadlineSeconds=60)
        if phase:
            await cluster.node_says("one", phase)
        cluster.manager()
        await cluster.later()
        cluster.jump(50)
        await cluster.later()
        assert cluster.phase("one") == phase, "it was created less than a minute ago"
        cluster.jump(11)
        await cluster.settle("one")

    @pytest.mark.usefixtures("manager")
    async def test_ages_count_in_time_that_has_passed_while_two_clocks_answer_in_turn(
        self, cluster: LifecycleCluster
    ) -> None:
        """Two API servers, 90 s apart, behind one address."""
        pod = await cluster.pod(gate=False)
        await cluster.later()
        await cluster.request("new", pod)
        await cluster.request("done", pod, ttlSecondsAfterFinished=30)
        await cluster.node_says("done", "Completed")
        await cluster.later()
        for seconds in (90, -90, 90):
            await cluster.set_clock(seconds)
            await cluster.later()
        assert (cluster.phase("new"), cluster.phase("done")) == ("", "Completed")
        cluster.jump(61)
        await cluster.settle("new")
        await cluster.until("the time to live is over", lambda: "done" not in cluster.crrs())

    @pytest.mark.usefixtures("manager")
    async def test_nobody_can_answer_without_the_nodes_label(self, cluster: LifecycleCluster) -> None:
        await cluster.request("one", await cluster.pod(gate=False))
        await cluster.label("one", NODE_LABEL, None)
        await cluster.later()
        cluster.jump(61)
        await cluster.settle("one")
        assert (
            cluster.message("one")
            == "no node daemon answered the request, because admission set no label crr.apps.kruise.io/node-name"
        )

    @pytest.mark.usefixtures("manager")
    async def test_nobody_sees_a_request_without_the_active_label(self, cluster: LifecycleCluster) -> None:
        await cluster.request("one", await cluster.pod(gate=False), active=False)
        await cluster.later()
        cluster.jump(61)
        await cluster.settle("one")
        assert cluster.message("one") == "no node daemon answered the request on node node-a"

    @pytest.mark.usefixtures("manager")
    async def test_who_has_answered_may_take_long(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("slow", pod)
        await cluster.node_says("slow", "Pending")
        await cluster.request("marker", pod)
        await cluster.later()
        cluster.jump(61)
        await cluster.until("the other one ends", lambda: cluster.settled("marker"))
        assert cluster.phase("slow") == "Pending"
        await cluster.node_says("slow", "Completed", "Succeeded")
        await cluster.settle("slow")

    @pytest.mark.parametrize("phase", ["Pending", "Recreating"])
    async def test_a_deadline_passes(self, cluster: LifecycleCluster, manager: Replica, phase: str) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod, activeDeadlineSeconds=HOUR)
        await cluster.node_says("one", phase)
        cluster.jump(HOUR + 1)
        await cluster.settle("one")
        reason = f"activeDeadlineSeconds ({HOUR}s) has passed"
        assert cluster.message("one") == reason
        assert states(cluster, "one") == [("Failed", reason)]
        assert [event.message for event in manager.events.seen] == [f"Request one: {reason}"]
        assert (cluster.completed("one") - cluster.created("one")).total_seconds() >= HOUR

    @pytest.mark.usefixtures("manager")
    async def test_a_deadline_keeps_what_was_recreated(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.pod(gate=False)
        containers = [{"name": "app"}, {"name": "side"}, {"name": "third"}]
        await cluster.request("one", pod, activeDeadlineSeconds=HOUR, containers=containers)
        said = [
            {"name": "app", "phase": "Succeeded", "message": "kept", "isKilled": True},
            {"name": "side", "phase": "Recreating", "isKilled": True},
        ]
        status = {"phase": "Recreating", "message": "the last phase's", "containerRecreateStates": said}
        await cluster.client.merge_patch(REQUESTS, "default", "one", {"status": status}, subresource="status")
        cluster.jump(HOUR + 1)
        await cluster.settle("one")
        reason = f"activeDeadlineSeconds ({HOUR}s) has passed"
        assert states(cluster, "one") == [("Succeeded", "kept"), ("Failed", reason), ("Failed", reason)]
        assert cluster.message("one") == reason

    @pytest.mark.usefixtures("manager")
    async def test_a_timer_rings_by_itself(self, cluster: LifecycleCluster) -> None:
        """Nothing happens in the cluster around the time; it must not ring before it either."""
        await cluster.request("one", await cluster.pod(gate=False), activeDeadlineSeconds=HOUR)
        await cluster.node_says("one", "Recreating")
        await cluster.later()
        cluster.jump(HOUR - 2)
        await cluster.settle("one")
        assert HOUR <= (cluster.completed("one") - cluster.created("one")).total_seconds() < HOUR + 20

    @pytest.mark.parametrize("seconds", [-86400, 86400])
    async def test_the_api_servers_time_counts(self, cluster: LifecycleCluster, seconds: int) -> None:
        """The manager's own clock is a day off, and it is the first thing that it hears of the cluster's."""
        await cluster.set_clock(seconds)
        pod = await cluster.pod(gate=False)
        await cluster.request("late", pod)
        cluster.manager()
        await cluster.request("gone", {"metadata": {"name": "nowhere", "uid": "u"}})
        await cluster.settle("gone")
        assert not cluster.phase("late")
        assert abs((cluster.completed("gone") - cluster.now()).total_seconds()) < 30
        cluster.jump(61)
        await cluster.settle("late")

    async def test_a_clock_that_is_set_back(self, cluster: LifecycleCluster, manager: Replica) -> None:
        """By the time that was told first, the deadline was near; what counts is what was told last."""
        await cluster.request("one", await cluster.pod(gate=False), activeDeadlineSeconds=HOUR)
        await cluster.node_says("one", "Recreating")
        cluster.jump(HOUR - 60)
        await cluster.set_clock(-600)
        await cluster.later()
        assert cluster.phase("one") == "Recreating"
        assert abs((manager.clock.now() - cluster.now()).total_seconds()) < 60
        cluster.jump(662)
        await cluster.settle("one")
        assert (cluster.completed("one") - cluster.created("one")).total_seconds() >= HOUR

    @pytest.mark.parametrize("asked", [{}, {"activeDeadlineSeconds": 90}])
    async def test_what_was_due_while_no_manager_was_there(
        self, cluster: LifecycleCluster, asked: dict[str, Any]
    ) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("empty", pod)
        await cluster.request("served", pod, activeDeadlineSeconds=90)
        await cluster.node_says("served", "Recreating")
        await cluster.request("done", pod, ttlSecondsAfterFinished=60)
        await cluster.node_says("done", "Completed", "Succeeded")
        await cluster.request("kept", pod, **asked)
        await cluster.node_says("kept", "Completed", "Succeeded")
        cluster.jump(CLOCK_SKEW_SECONDS + 120)
        cluster.manager()
        await cluster.settle("empty", "served")
        assert cluster.message("empty").startswith("no node daemon answered the request")
        assert cluster.message("served") == "activeDeadlineSeconds (90s) has passed"
        await cluster.settle("kept", "done")
        cluster.jump(61)
        await cluster.until("deleted", lambda: not cluster.crr("done"))
        assert states(cluster, "kept") == [("Succeeded", "")]


class TestAfterwards:
    @pytest.mark.usefixtures("manager")
    async def test_a_completed_request_loses_its_label_and_later_its_life(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("brief", pod, ttlSecondsAfterFinished=600)
        await cluster.request("kept", pod)
        for name in ("brief", "kept"):
            await cluster.node_says(name, "Completed", "Succeeded")
        await cluster.settle("brief", "kept")
        cluster.jump(601)
        await cluster.until("deleted", lambda: not cluster.crr("brief"))
        assert cluster.settled("kept")

    @pytest.mark.usefixtures("manager")
    async def test_a_time_to_live_ends_by_itself(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod, ttlSecondsAfterFinished=2)
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.until("deleted", lambda: not cluster.crr("one"))

    async def test_a_time_to_live_of_nothing(self, cluster: LifecycleCluster, manager: Replica) -> None:
        """All is cleaned up first; and a later request of the same name is another one."""
        pod = await cluster.ready_pod()
        for _ in range(2):
            manager.client.writes.clear()
            await cluster.request("one", pod, grace=3, ttlSecondsAfterFinished=0)
            await cluster.serve("one")
            await cluster.until("deleted", lambda: not cluster.crr("one"))
            assert manager.client.writes[-4:] == [
                "patch pods/status",
                "patch containerrecreaterequests",
                "patch containerrecreaterequests",
                "delete containerrecreaterequests",
            ]
            assert cluster.condition() == ("True", "")

    @pytest.mark.usefixtures("manager")
    async def test_the_finalizer_of_somebody_else_is_waited_for(self, cluster: LifecycleCluster) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod, ttlSecondsAfterFinished=0)
        await cluster.finalizers("one", "example.org/archive")
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.until("deletion", lambda: cluster.deleting("one"))
        await cluster.finalizers("one")
        await cluster.until("deleted", lambda: not cluster.crr("one"))

    @pytest.mark.usefixtures("manager")
    async def test_a_deleted_request_that_somebody_else_holds_is_not_active(self, cluster: LifecycleCluster) -> None:
        await cluster.request("one", await cluster.pod(gate=False))
        await cluster.finalizers("one", "example.org/archive")
        await cluster.delete("one")
        await cluster.until("not active", lambda: not cluster.active("one"))

    @pytest.mark.parametrize("told", ["2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z", None])
    async def test_the_nodes_clock_shortens_no_time_to_live_and_lengthens_none(
        self, cluster: LifecycleCluster, manager: Replica, told: str | None
    ) -> None:
        """Nor does another leader, but for the one time to live that begins with it."""
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod, ttlSecondsAfterFinished=600)
        status = {"phase": "Completed"} | ({"completionTime": told} if told else {})
        await cluster.client.merge_patch(REQUESTS, "default", "one", {"status": status}, subresource="status")
        await cluster.settle("one")
        cluster.jump(590)
        await cluster.later()
        await manager.kill()
        successor = cluster.manager("manager-b")
        await cluster.later()
        cluster.jump(590)
        await cluster.later()
        assert "delete containerrecreaterequests" not in [*manager.client.writes, *successor.client.writes]
        cluster.jump(20)
        await cluster.until("deleted", lambda: not cluster.crr("one"))

    async def test_what_was_settled_stays_so_over_a_restart(self, cluster: LifecycleCluster, manager: Replica) -> None:
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod)
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        await manager.stop()
        before = cluster.crr("one")
        later = cluster.manager("manager-b")
        await cluster.later()
        assert cluster.crr("one") == before
        assert rfc3339(cluster.completed("one")) == before["status"]["completionTime"]
        assert [event.request.name for event in later.events.seen] == ["marker-1"]
