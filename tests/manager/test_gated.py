"""Which pods the manager asks for, lists and watches: those of labelled namespaces, and those of requests."""

from collections.abc import AsyncIterator

import pytest

from crrd.core.api.types import LABEL_READINESS_GATE, READINESS_GATE
from crrd.kube.resources import NAMESPACES, PODS, REQUESTS
from crrd.manager import pod_reads
from crrd.manager.gated import GATED_NAMESPACES, NEVER_GATED
from tests.support.lifecycle_cluster import LifecycleCluster, Replica, entry, lifecycle_cluster

READY = ("True", "")
LISTS = ("list", "watch")


@pytest.fixture
async def cluster() -> AsyncIterator[LifecycleCluster]:
    async with lifecycle_cluster() as made:
        yield made


def pod_lists(cluster: LifecycleCluster) -> list[tuple[str, str]]:
    """Lists and watches of pods so far: the verb and the namespace, "" for all."""
    return [(one.verb, one.namespace) for one in cluster.calls if one.resource == "pods" and one.verb in LISTS]


async def labelled(cluster: LifecycleCluster, *names: str) -> None:
    for name in names:
        meta = {"name": name, "labels": {LABEL_READINESS_GATE: "enabled"}}
        await cluster.client.create(NAMESPACES, "", {"metadata": meta})


async def expire(cluster: LifecycleCluster) -> None:
    """End all watches, and have the next ones list first."""
    await cluster.client.create(NAMESPACES, "", {"metadata": {"generateName": "newer-"}})
    cluster.server.compact()
    cluster.server.drop_connections()


async def settled(cluster: LifecycleCluster, manager: Replica) -> None:
    """Wait until the manager says that it watches all that it wants to."""
    await cluster.until("everything is listed", lambda: manager.ready)


async def vanish_by_force(cluster: LifecycleCluster) -> None:
    """Delete a request and take its finalizer while its pod is unready for it. Wait until the pod is ready again."""
    await cluster.request("one", await cluster.pod(), grace=5)
    await cluster.node_says("one", "Recreating")
    await cluster.until("acquired", lambda: cluster.acquired("one"))
    await cluster.finalizers("one", "example.org/mine")
    await cluster.delete("one")
    await cluster.finalizers("one")
    await cluster.until("released", lambda: cluster.condition() == READY)


class TestElsewhere:
    """Where nobody asked for the readiness gate."""

    @pytest.fixture(autouse=True)
    async def unlabelled(self, cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pod_reads, "POD_SECONDS", 0.1)
        await cluster.label_namespace(None)
        cluster.calls.clear()

    async def test_no_pod_is_listed_or_watched(self, cluster: LifecycleCluster) -> None:
        manager = cluster.manager()
        for number in range(3):
            await cluster.pod(f"other-{number}")
        await cluster.request("one", await cluster.pod())
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        await settled(cluster, manager)
        assert pod_lists(cluster) == []
        assert {call.name for call in cluster.calls if call.verb == "get" and call.resource == "pods"} <= {"web-0"}

    async def test_a_pod_that_goes_is_noticed(self, cluster: LifecycleCluster) -> None:
        cluster.manager()
        pod = await cluster.pod(gate=False)
        await cluster.request("one", pod)
        await cluster.node_says("one", "Recreating")
        await cluster.remove_pod()
        await cluster.settle("one")
        assert cluster.message("one") == "the pod no longer exists"

    async def test_a_pod_that_is_replaced_is_noticed(self, cluster: LifecycleCluster) -> None:
        cluster.manager()
        await cluster.request("one", await cluster.pod(gate=False))
        await cluster.node_says("one", "Recreating")
        await cluster.remove_pod()
        await cluster.pod(gate=False)
        await cluster.settle("one")
        assert cluster.message("one").startswith(("the pod no longer exists", "the pod was replaced"))

    async def test_a_pod_with_a_gate_of_its_own_is_made_unready_and_ready(self, cluster: LifecycleCluster) -> None:
        cluster.manager()
        pod = await cluster.pod()
        await cluster.request("one", pod, grace=5)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        assert cluster.condition() == ("False", entry("one"))
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        assert cluster.condition() == READY

    async def test_a_pod_whose_condition_was_missing_is_not_read_for_ever(self, cluster: LifecycleCluster) -> None:
        """Its completed request is kept for its TTL, and a read must not be the reason for the next one."""

        def reads() -> int:
            return sum(call.verb == "get" and call.name == "web-0" for call in cluster.calls)

        cluster.manager()
        await cluster.request("one", await cluster.pod(), grace=5, ttlSecondsAfterFinished=600)
        await cluster.node_says("one", "Recreating")
        await cluster.until("acquired", lambda: cluster.acquired("one"))
        await cluster.node_says("one", "Completed", "Succeeded")
        await cluster.settle("one")
        before = reads()
        await cluster.client.merge_patch(REQUESTS, "default", "one", {"metadata": {"labels": {"note": "x"}}})
        await cluster.until("read again", lambda: reads() > before)
        await cluster.request("two", await cluster.pod("other"))
        await cluster.node_says("two", "Completed", "Succeeded")
        await cluster.settle("two")
        assert reads() - before <= 2

    async def test_a_request_that_vanishes_by_force_leaves_nothing(self, cluster: LifecycleCluster) -> None:
        cluster.manager()
        await vanish_by_force(cluster)

    async def test_an_invalid_pod_name_is_no_obstacle(self, cluster: LifecycleCluster) -> None:
        """A CRD without crrd's rules lets it in. The pod cannot be read, but the deadline ends the request."""
        await cluster.request("one", {"metadata": {"name": "a/b/c", "uid": "u"}}, grace=5, activeDeadlineSeconds=60)
        cluster.jump(300)
        cluster.manager()
        await cluster.settle("one")

    async def test_a_restored_etcd_can_bring_the_mark_back_alone(self, cluster: LifecycleCluster) -> None:
        """The restored state has neither the request nor the release. Only the manager knows that there was one."""
        manager = cluster.manager()
        await vanish_by_force(cluster)
        for _ in range(2):
            body = {"status": {"conditions": [{"type": READINESS_GATE, "status": "False", "message": entry("one")}]}}
            await cluster.client.merge_patch(PODS, "default", "web-0", body, subresource="status")
            await expire(cluster)
            await cluster.until("released again", lambda: cluster.condition() == READY)
        await cluster.remove_pod()
        await expire(cluster)
        await cluster.until("forgotten", lambda: not manager.controller._cache.repaired("default/web-0"))

    async def test_what_nobody_asks_for_any_more_is_forgotten(self, cluster: LifecycleCluster) -> None:
        manager = cluster.manager()
        await cluster.request("one", await cluster.pod(), grace=5)
        await cluster.serve("one")
        await cluster.settle("one")
        await cluster.until("forgotten", lambda: manager.controller._cache.pod("default/web-0") is None)


async def label_with_a_pod(cluster: LifecycleCluster) -> None:
    """The namespace gets the label while a pod with the gate is there; returns when that has its condition."""
    await cluster.pod("early")
    await cluster.label_namespace("enabled")
    await cluster.until("the pod that was there", lambda: cluster.condition("early") == READY)


async def test_the_label_comes_and_goes(cluster: LifecycleCluster) -> None:
    await cluster.label_namespace(None)
    manager = cluster.manager()
    await settled(cluster, manager)
    await label_with_a_pod(cluster)
    await cluster.ready_pod("late")
    await cluster.label_namespace(None)
    await cluster.until("no watch of pods", lambda: cluster.server.open_watches == 2)
    await cluster.pod("after")
    await cluster.later()
    assert cluster.condition("after") == ("", "")


async def test_a_pod_that_goes_after_the_label_is_noticed(
    cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else tells of it: neither the watch, which has ended, nor its node."""
    monkeypatch.setattr(pod_reads, "POD_SECONDS", 0.1)
    cluster.manager()
    await cluster.request("one", await cluster.ready_pod(), grace=3600)
    await cluster.node_says("one", "Recreating")
    await cluster.until("acquired", lambda: cluster.acquired("one"))
    await cluster.later()
    await cluster.label_namespace(None)
    await cluster.until("no watch of pods", lambda: cluster.server.open_watches == 2)
    await cluster.remove_pod()
    await cluster.settle("one")
    assert cluster.message("one") == "the pod no longer exists"


async def test_each_labelled_namespace_has_a_watch(cluster: LifecycleCluster) -> None:
    await labelled(cluster, "one", "two")
    await settled(cluster, cluster.manager())
    wanted = [(verb, namespace) for verb in ("list", "watch") for namespace in ("default", "one", "two")]
    await cluster.until("three watches", lambda: sorted(pod_lists(cluster)) == wanted)


async def test_all_namespaces_but_some_have_a_watch(cluster: LifecycleCluster) -> None:
    cluster.gated = GATED_NAMESPACES["all"]
    await cluster.label_namespace(None)
    for name, labels in {"one": {}, "two": {LABEL_READINESS_GATE: "disabled"}, NEVER_GATED[-1]: {}}.items():
        await cluster.client.create(NAMESPACES, "", {"metadata": {"name": name, "labels": labels}})
    manager = cluster.manager()
    await cluster.ready_pod()
    await settled(cluster, manager)
    assert {"default", "one"} <= {namespace for _, namespace in pod_lists(cluster)}
    assert not {"", "two", *NEVER_GATED} & {namespace for _, namespace in pod_lists(cluster)}
    await cluster.label_namespace("disabled")
    await cluster.until("no watch", lambda: not manager.controller._gated.covers("default"))
    assert manager.controller._gated.covers("one")


async def test_pods_are_listed_page_by_page(cluster: LifecycleCluster) -> None:
    pods = [await cluster.pod(f"web-{number}") for number in range(PODS.page + 1)]
    await settled(cluster, cluster.manager())
    assert pod_lists(cluster)[:2] == [("list", "default")] * 2
    names = [pod["metadata"]["name"] for pod in pods]
    await cluster.until("all pods", lambda: all(cluster.condition(name) == READY for name in names))


async def test_many_labelled_namespaces_have_a_watch_each(cluster: LifecycleCluster) -> None:
    """No number of them makes the manager list pods of the whole cluster."""
    names = [f"many-{number}" for number in range(60)]
    await labelled(cluster, *names)
    await settled(cluster, cluster.manager())
    wanted = sorted((verb, namespace) for verb in LISTS for namespace in ("default", *names))
    await cluster.until("a watch each", lambda: sorted(pod_lists(cluster)) == wanted)


async def test_the_pods_of_a_namespace_that_leaves_are_forgotten(cluster: LifecycleCluster) -> None:
    await labelled(cluster, "one")
    manager = cluster.manager()
    await settled(cluster, manager)
    await cluster.ready_pod("before")
    await cluster.label_namespace(None)
    await cluster.until("forgotten", lambda: manager.controller._cache._pods == {})
    assert not manager.controller._gated.covers("default")
    assert manager.controller._gated.covers("one")
    await cluster.pod("after")
    await cluster.later()
    assert cluster.condition("after") == ("", "")
    await cluster.label_namespace("enabled")
    await cluster.until("the pod that was there", lambda: cluster.condition("after") == READY)
    await cluster.until("all of it", lambda: manager.controller._cache.pod("default/before"))


async def test_a_pod_of_another_namespace_is_none_of_a_list(cluster: LifecycleCluster) -> None:
    """Watches end and list anew, each its own namespace: what the others told stays known."""
    await labelled(cluster, "one")
    manager = cluster.manager()
    await cluster.ready_pod()
    cluster.server.compact()
    cluster.server.drop_connections()
    await settled(cluster, manager)
    await cluster.client.create(PODS, "one", {"metadata": {"name": "other"}, "spec": {"containers": [{"name": "app"}]}})
    await cluster.later()
    assert manager.controller._cache.pod("default/web-0") is not None
