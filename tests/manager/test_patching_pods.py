"""Requests that the manager carries out by patches, on the local API server. A kubelet restarts what is patched.

`core.patching` decides, and its tests have the situations one by one. Here is what stops a write, and what follows.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.reasons import EventReason
from crrd.core.api.types import NODE_DAEMONS
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiUnavailableError
from crrd.lib.supervise import cancel
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import Cause, invalid
from crrd_localnode.api.objects import Object
from crrd_localnode.api.store import Event
from tests.support.faulty_api import Call
from tests.support.lifecycle_cluster import GATED, LifecycleCluster, Replica, lifecycle_cluster
from tests.support.spelled import Json, digest_of, image_of, running_pod, started, status_of, waiting

ACCOUNT = "crrd-system:crrd-manager"
STARTED = "2026-01-01T00:00:00Z"


class Shop:
    """The pod `web-0`, and the kubelet that runs it."""

    def __init__(self, cluster: LifecycleCluster) -> None:
        self.cluster = cluster
        self.spelled: list[str] = []  # The images that patches have given to its container
        self.works = True  # Whether kubelet restarts what is patched
        self.pod: Json = {}
        self._restarts: set[asyncio.Task[None]] = set()
        cluster.account = ACCOUNT

    async def open(self, **spec: Any) -> None:
        pod = running_pod("web-0", "", STARTED, STARTED)
        meta = {"name": "web-0", "labels": {"app": "web"}}
        spec = {**pod["spec"], "terminationGracePeriodSeconds": 30, **spec}
        made = await self.cluster.client.create(PODS, "default", {"metadata": meta, "spec": spec, "kind": "Pod"})
        self.pod = {**dict(made), "status": pod["status"]}
        for each in pod["status"]["containerStatuses"]:
            each["containerID"] = f"containerd://{each['name']}-0"
        await self.write(self.pod)
        self.cluster.server.store.subscribe("/pods", self._changed)

    async def write(self, pod: Json) -> None:
        """Write the pod's status, as kubelet does."""
        body = {"status": pod["status"]}
        with suppress(ApiUnavailableError):
            self.pod = dict(await self.cluster.client.merge_patch(PODS, "default", "web-0", body, subresource="status"))
        self.cluster.jump(0)

    def _changed(self, event: Event) -> None:
        new, old = event.new, self.pod
        if new is None or new.obj["metadata"]["name"] != "web-0":
            return
        self.pod = dict(new.obj)
        if (image := image_of(self.pod, "app")) != image_of(old, "app"):
            self.spelled.append(image)
            if self.works:
                task = asyncio.create_task(self.restarts())
                self._restarts.add(task)
                task.add_done_callback(self._restarts.discard)

    async def restarts(self, name: str = "app") -> None:
        """Kubelet starts the next instance of a container."""
        conditions = self.pod["status"]["conditions"]
        ready = [each for each in conditions if each["type"] == "Ready"]
        pod = started({**self.pod, "status": {**self.pod["status"], "conditions": ready}}, name, STARTED)
        pod["status"]["conditions"] = conditions
        status_of(pod, name)["containerID"] = f"containerd://{name}-{self.count(name) + 1}"
        await self.write(pod)

    async def cannot_start(self) -> None:
        await self.write(waiting(self.pod, "app", STARTED, "ErrImageNeverPull"))

    def count(self, name: str = "app") -> int:
        return int(status_of(self.pod, name)["restartCount"])

    async def asks(self, name: str = "one", *containers: str, **spec: Any) -> None:
        """Create a request as admission leaves it."""
        asked = []
        for each in containers or ("app",):
            status = status_of(self.pod, each)
            context = {"containerID": status["containerID"], "restartCount": status["restartCount"]}
            asked.append({"name": each, "statusContext": context})
        await self.cluster.request(name, self.pod, containers=asked, **spec)

    def states(self, name: str = "one") -> list[tuple[str, str]]:
        found = self.cluster.status(name).get("containerRecreateStates", ())
        return [(state["phase"], state.get("reason", "")) for state in found]

    async def settle(self, *names: str) -> None:
        await self.cluster.settle(*(names or ("one",)))

    async def close(self) -> None:
        await cancel(list(self._restarts))


@pytest.fixture
async def cluster() -> AsyncIterator[LifecycleCluster]:
    async with lifecycle_cluster() as made:
        yield made


@pytest.fixture
async def shop(cluster: LifecycleCluster) -> AsyncIterator[Shop]:
    made = Shop(cluster)
    await made.open()
    yield made
    await made.close()


DONE = [("Succeeded", "")]
WRITES = ["patch containerrecreaterequests/status", "patch containerrecreaterequests", "patch pods"]


async def test_a_container_is_restarted(cluster: LifecycleCluster, shop: Shop) -> None:
    manager = cluster.manager()
    await shop.asks()
    await shop.settle()
    assert (shop.states(), shop.count(), shop.count("log")) == (DONE, 1, 0)
    assert cluster.message("one") == "1 of 1 containers recreated"
    assert shop.spelled == [f"docker.io/library/app:1@{digest_of('app:1')}"]
    assert manager.client.writes[:3] == WRITES
    events = [(each.reason, each.container) for each in manager.events.seen]
    assert events == [(EventReason.RECREATING, "app"), (EventReason.RECREATED, "app")]


async def test_requests_of_one_pod_are_served_one_after_the_other(cluster: LifecycleCluster, shop: Shop) -> None:
    shop.works = False
    cluster.manager()
    await shop.asks("one", "app")
    await cluster.until("patched", lambda: shop.spelled)
    await shop.asks("two", "log")
    await cluster.until("it waits", lambda: cluster.phase("two") == "Pending")
    await shop.restarts()
    await shop.settle("one")
    await cluster.until("the second one", lambda: "@" in image_of(shop.pod, "log"))
    await shop.restarts("log")
    await shop.settle("two")
    assert (shop.count(), shop.count("log")) == (1, 1)


@pytest.mark.parametrize("number", range(1, 9))
async def test_the_leader_is_killed_before_each_write(cluster: LifecycleCluster, shop: Shop, number: int) -> None:
    first = cluster.replica()

    async def kill(at: int, _: str) -> None:
        if at == number:
            first.wire.cut = True
            cluster.manager("manager-b")
            await asyncio.Event().wait()

    first.client.before = kill
    first.start()
    await shop.asks()
    await shop.settle()
    assert (shop.states(), shop.count(), len(shop.spelled)) == (DONE, 1, 1)


async def test_the_response_of_the_patch_is_lost(cluster: LifecycleCluster, shop: Shop) -> None:
    def is_patch(call: Call) -> bool:
        return (call.verb, call.resource, call.subresource) == ("patch", "pods", "") and len(shop.spelled) == 1

    shop.works = False
    cluster.server.fail_next(1, None, match=is_patch, after=True)
    cluster.manager()
    await shop.asks()
    await cluster.until("patched", lambda: shop.spelled)
    await shop.restarts()
    await shop.settle()
    assert (shop.states(), shop.count(), len(shop.spelled)) == (DONE, 1, 1)


async def test_kubelet_restarts_the_container_just_before(cluster: LifecycleCluster, shop: Shop) -> None:
    manager = cluster.replica()

    async def crash(_: int, what: str) -> None:
        if what == "patch pods" and not shop.count():
            await shop.restarts()

    manager.client.before = crash
    manager.start()
    await shop.asks()
    await shop.settle()
    assert (shop.states(), shop.count(), shop.spelled) == (DONE, 1, [])


async def test_a_node_daemon_serves_the_node(cluster: LifecycleCluster, shop: Shop) -> None:
    labels = dict(each.split("=") for each in NODE_DAEMONS.split(","))
    meta, spec = {"name": "crrd-node-a", "labels": labels}, {"nodeName": "node-a", "containers": [{"name": "crrd"}]}
    await cluster.client.create(PODS, "default", {"metadata": meta, "spec": spec, "kind": "Pod"})
    cluster.manager()
    await shop.asks()
    await cluster.later()
    assert (cluster.phase("one"), shop.spelled) == ("", [])
    await cluster.node_says("one", "Completed", "Succeeded")
    await shop.settle()


async def test_the_manager_may_not_patch_pods(cluster: LifecycleCluster, shop: Shop) -> None:
    cluster.server.fail_next(1, 403, match=lambda call: (call.verb, call.resource) == ("patch", "pods"))
    cluster.manager()
    await shop.asks()
    await shop.settle()
    assert (shop.states(), shop.count()) == ([("Failed", "PatchRefused")], 0)
    assert cluster.message("one") == (
        "the API server refuses the patch that restarts the container: the manager may not patch pods in this "
        "namespace; to allow it: kubectl create rolebinding crrd-patch-pods -n default --clusterrole=crrd-patch-pods "
        f"--serviceaccount={ACCOUNT}"
    )


async def test_a_policy_denies_the_patch(cluster: LifecycleCluster, shop: Shop) -> None:
    async def deny(request: AdmissionRequest) -> None:
        if request.kind.plural == "pods" and request.operation is Operation.UPDATE and not request.subresource:
            raise invalid("", "Pod", request.name, [Cause("spec", "no digests here")])

    cluster.server.admission.validating.append(deny)
    cluster.manager()
    await shop.asks()
    await shop.settle()
    assert (shop.states(), shop.count()) == ([("Failed", "PatchRefused")], 0)
    assert "no digests here" in cluster.message("one")


async def test_a_webhook_changes_the_image(cluster: LifecycleCluster, shop: Shop) -> None:
    async def mirror(request: AdmissionRequest) -> Object | None:
        if request.kind.plural != "pods" or request.subresource or request.new is None:
            return None
        pod: Any = request.new
        containers = [{**each, "image": f"mirror.example/{each['name']}"} for each in pod["spec"]["containers"]]
        return {**pod, "spec": {**pod["spec"], "containers": containers}}

    cluster.server.admission.mutating.append(mirror)
    cluster.manager()
    await shop.asks()
    await shop.settle()
    assert (shop.states(), shop.count(), shop.spelled) == ([("Failed", "PatchRefused")], 0, [])
    assert cluster.message("one").endswith("a webhook changes the image of container app to mirror.example/app")


async def test_kubelet_cannot_start_it(cluster: LifecycleCluster, shop: Shop) -> None:
    shop.works = False
    cluster.manager()
    await shop.asks()
    await cluster.until("patched", lambda: shop.spelled)
    await shop.cannot_start()
    await shop.settle()
    assert (shop.states(), image_of(shop.pod, "app")) == ([("Failed", "PatchFailed")], "app:1")


async def test_the_deadline_gives_the_image_back(cluster: LifecycleCluster, shop: Shop) -> None:
    shop.works = False
    cluster.manager()
    await shop.asks(activeDeadlineSeconds=100)
    await cluster.until("patched", lambda: shop.spelled)
    cluster.jump(101)
    await shop.settle()
    assert (shop.states(), image_of(shop.pod, "app")) == ([("Failed", "DeadlineExceeded")], "app:1")
    assert cluster.message("one").startswith("activeDeadlineSeconds (100s) has passed")


async def test_an_image_that_cannot_be_given_back_holds_up_no_other_request(
    cluster: LifecycleCluster, shop: Shop
) -> None:
    """The owner of the namespace has taken the right back meanwhile."""
    shop.works = False
    cluster.manager()
    await shop.asks()
    await cluster.until("patched", lambda: shop.spelled)
    cluster.server.fail_next(
        1000, 403, match=lambda call: (call.verb, call.resource, call.subresource) == ("patch", "pods", "")
    )
    await shop.cannot_start()
    await shop.asks("two")
    await cluster.until("queued", lambda: cluster.phase("two") == "Pending")
    assert image_of(shop.pod, "app") == shop.spelled[0]


@pytest.mark.parametrize("starts", [True, False])
async def test_a_deleted_request_stays_until_kubelet_is_done(
    cluster: LifecycleCluster, shop: Shop, *, starts: bool
) -> None:
    shop.works = False
    first = cluster.manager()
    await shop.asks()
    await cluster.until("patched", lambda: shop.spelled)
    await cluster.delete("one")
    await first.kill()
    cluster.manager("manager-b")
    await cluster.later()
    assert cluster.deleting("one")
    await (shop.restarts() if starts else shop.cannot_start())
    await cluster.until("gone", lambda: not cluster.crr("one"))
    assert image_of(shop.pod, "app") == (shop.spelled[0] if starts else "app:1")


async def test_a_pod_that_goes_meanwhile(cluster: LifecycleCluster, shop: Shop) -> None:
    shop.works = False
    cluster.manager()
    await shop.asks()
    await cluster.until("patched", lambda: shop.spelled)
    await cluster.remove_pod()
    cluster.jump(0)
    await shop.settle()
    assert cluster.message("one") == "the pod no longer exists"


async def test_the_pod_is_unready_first(cluster: LifecycleCluster) -> None:
    shop = Shop(cluster)
    await shop.open(**GATED)
    manager = cluster.manager()
    await cluster.until("ready", lambda: cluster.condition()[0] == "True")
    await shop.asks(grace=60)
    await cluster.until("unready", lambda: cluster.acquired("one") and cluster.status("one").get("reason"))
    await cluster.until("the grace", lambda: cluster.status("one").get("reason") == "UnreadyGracePeriod")
    assert (cluster.condition()[0], shop.spelled) == ("False", [])
    cluster.jump(61)
    await shop.settle()
    assert (shop.states(), shop.count(), cluster.condition()) == (DONE, 1, ("True", ""))
    assert ANNOTATION_PATCHED in shop.pod["metadata"]["annotations"]
    assert isinstance(manager, Replica)
    await shop.close()
