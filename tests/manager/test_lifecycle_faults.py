"""The controller when things go wrong before each of its writes: whatever does, all is well in the end."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from crrd.core.api.types import FINALIZER
from crrd.kube.client import Deadlines
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib import backoff
from crrd.lib.backoff import Backoff
from crrd.lib.errors import GoneError
from crrd.manager import pod_reads
from crrd.manager.state_times import CLOCK_SKEW_SECONDS
from crrd_localnode.api.store import Event
from tests.support.faulty_api import Call
from tests.support.lifecycle_cluster import CRRS, LifecycleCluster, Replica, lifecycle_cluster

READY = ("True", "")
WRITES = (
    "patch containerrecreaterequests",
    "patch pods/status",
    "patch containerrecreaterequests",
    "patch pods/status",
    "patch containerrecreaterequests",
    "patch containerrecreaterequests",
)
"""From the finalizer over the readiness and the mark to the release, the finalizer and the active label."""

pytestmark = pytest.mark.usefixtures("unmeasured")
Trouble = Callable[[LifecycleCluster, Replica], Awaitable[object]]


class Guard:
    """Watches every write for what must never be: a Completed status that changes, a pod unready without a guard."""

    def __init__(self, cluster: LifecycleCluster) -> None:
        self._cluster = cluster
        self._last: dict[str, Any] = {}
        self.broken: list[str] = []
        cluster.server.store.subscribe(None, self._look)

    def _look(self, event: Event) -> None:
        if event.key == CRRS and event.new is not None:
            status, uid = event.new.obj.get("status", {}), event.new.obj["metadata"]["uid"]
            known = self._last.get(uid, {})
            if known.get("phase") == "Completed" and known != status:
                self.broken.append(f"{known} became {status}")
            self._last[uid] = status
        message = self._cluster.condition()[1]
        for found in json.loads(message) if message else ():
            name = found["key"].partition("/")[2]
            if not self._cluster.has_finalizer(name):
                self.broken.append(f"the pod is unready for {name}, which nothing guards")


@pytest.fixture
async def cluster() -> AsyncIterator[LifecycleCluster]:
    async with lifecycle_cluster() as made:
        guard = Guard(made)
        yield made
        assert guard.broken == []


def written(call: Call) -> bool:
    return call.verb in ("patch", "delete") and call.resource != "events"


async def delete_request(cluster: LifecycleCluster, _: Replica) -> None:
    await cluster.delete("one")


async def remove_pod(cluster: LifecycleCluster, _: Replica) -> None:
    await cluster.remove_pod()


async def replace_pod(cluster: LifecycleCluster, _: Replica) -> None:
    await cluster.remove_pod()
    await cluster.pod()


async def lose_both(cluster: LifecycleCluster, _: Replica) -> None:
    await cluster.delete("one")
    await cluster.remove_pod()


async def edit_request(cluster: LifecycleCluster, _: Replica) -> None:
    body = {"metadata": {"annotations": {"example.org/note": "edited"}}}
    await cluster.client.merge_patch(REQUESTS, "default", "one", body)


async def edit_pod(cluster: LifecycleCluster, _: Replica) -> None:
    body = {"metadata": {"annotations": {"example.org/note": "edited"}}}
    await cluster.client.merge_patch(PODS, "default", "web-0", body)


async def complete(cluster: LifecycleCluster, _: Replica) -> None:
    if cluster.phase("one") != "Completed":
        await cluster.node_says("one", "Completed", "Succeeded")


async def replace_manager(cluster: LifecycleCluster, manager: Replica) -> None:
    """The process dies right here; another one begins from nothing."""
    manager.wire.cut = True
    cluster.manager("manager-b")


def answer(status: int | None, *, after: bool = False, retry_after: int | None = None, count: int = 1) -> Trouble:
    async def trouble(cluster: LifecycleCluster, _: Replica) -> None:
        cluster.server.fail_next(count, status, retry_after, written, after=after)

    return trouble


async def expire(cluster: LifecycleCluster, _: Replica) -> None:
    """Both watches end, and what they would go on from is no longer known."""
    cluster.server.compact()
    cluster.server.drop_connections()


async def fall_behind(cluster: LifecycleCluster, _: Replica) -> None:
    """The watches are silent for some writes."""
    cluster.server.hold_cache()
    asyncio.get_running_loop().call_later(0.1, cluster.server.release_cache)


TROUBLES: dict[str, Trouble] = {
    "request deleted": delete_request,
    "pod removed": remove_pod,
    "pod replaced": replace_pod,
    "request deleted and pod removed": lose_both,
    "request edited": edit_request,
    "pod edited": edit_pod,
    "node completes": complete,
    "manager replaced": replace_manager,
    "409 for nothing": answer(409),
    "409 for nothing, often": answer(409, count=15),
    "500": answer(500),
    "503 after the write": answer(503, after=True),
    "429": answer(429, retry_after=1),
    "403": answer(403),
    "cut": answer(None),
    "cut after the write": answer(None, after=True),
    "cut again after the write": answer(None, after=True, count=2),
    "410": expire,
    "old news": fall_behind,
}


def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAILED", "REFUSED"):
        monkeypatch.setattr(backoff, name, Backoff(initial=0.02, factor=2.0, maximum=0.2, jitter=0.1))


@pytest.mark.parametrize("number", range(1, len(WRITES) + 1))
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
async def test_trouble_before_each_write(
    cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch, trouble: Trouble, number: int
) -> None:
    retry_soon(monkeypatch)
    manager = cluster.manager()
    pod = await cluster.ready_pod()
    manager.client.writes.clear()
    troubled = asyncio.Event()

    async def before(count: int, what: str) -> None:
        if count == number:
            assert what == WRITES[number - 1]
            await trouble(cluster, manager)
            troubled.set()

    manager.client.before = before
    await cluster.request("one", pod, grace=5)
    await cluster.serve("one")
    await cluster.until("the trouble came", troubled.is_set)
    await cluster.until("the end", lambda: not cluster.crr("one") or cluster.settled("one"))
    if cluster.server.store.get("/pods", ("default", "web-0")):
        await cluster.until("released", lambda: cluster.condition() == READY)
    if "deleted" not in names_of(trouble) and "pod" not in names_of(trouble):
        assert cluster.status("one")["containerRecreateStates"][0]["phase"] == "Succeeded"


def names_of(trouble: Trouble) -> str:
    return next(name for name, found in TROUBLES.items() if found is trouble)


TERMINAL: dict[str, Trouble] = {
    name: TROUBLES[name]
    for name in (
        "request edited",
        "node completes",
        "manager replaced",
        "409 for nothing",
        "500",
        "cut after the write",
    )
}


@pytest.mark.parametrize("trouble", TERMINAL.values(), ids=TERMINAL)
async def test_trouble_before_the_manager_completes(cluster: LifecycleCluster, trouble: Trouble) -> None:
    """Where the node completes the request at the same time, one of the two wins, and nothing changes it any more."""
    manager = cluster.manager()
    pod = await cluster.ready_pod()
    await cluster.request("one", pod, grace=5, activeDeadlineSeconds=60)
    await cluster.node_says("one", "Recreating")
    await cluster.until("acquired", lambda: cluster.acquired("one"))
    manager.client.writes.clear()

    async def before(count: int, what: str) -> None:
        if count == 1:
            assert what == "patch containerrecreaterequests/status"
            await trouble(cluster, manager)

    manager.client.before = before
    cluster.jump(CLOCK_SKEW_SECONDS + 61)  # a manager that is new takes the request for younger
    await cluster.settle("one")
    assert cluster.condition() == READY
    by_node = trouble is complete
    assert cluster.status("one")["containerRecreateStates"][0]["phase"] == ("Succeeded" if by_node else "Failed")
    assert bool(manager.events.seen) == (trouble in (edit_request, *map(TROUBLES.get, ("409 for nothing", "500"))))


@pytest.mark.parametrize("trouble", ["409", "500", "manager replaced", "gone", "another of its name"])
async def test_trouble_before_a_request_is_deleted(cluster: LifecycleCluster, trouble: str) -> None:
    manager = cluster.manager()
    pod = await cluster.pod(gate=False)
    await cluster.request("one", pod, ttlSecondsAfterFinished=60)
    await cluster.node_says("one", "Completed", "Succeeded")
    await cluster.settle("one")
    uid = cluster.crr("one")["metadata"]["uid"]

    async def before(_: int, what: str) -> None:
        assert what == "delete containerrecreaterequests"
        manager.client.before = None
        if trouble == "manager replaced":
            await replace_manager(cluster, manager)
        elif trouble in ("409", "500"):
            await answer(int(trouble))(cluster, manager)
        else:
            await cluster.delete("one")
            if trouble == "another of its name":
                await cluster.request("one", pod)

    manager.client.before = before
    cluster.jump(61)
    if trouble == "manager replaced":  # the time to live begins anew with the one that comes after
        await cluster.until("the trouble", lambda: manager.client.before is None)
        await cluster.later()
        cluster.jump(61)
    await cluster.until("deleted", lambda: cluster.crr("one").get("metadata", {}).get("uid") != uid)
    await cluster.later()
    assert bool(cluster.crr("one")) == (trouble == "another of its name")


async def test_an_api_server_that_does_not_answer(cluster: LifecycleCluster) -> None:
    """The call is given up, and made again when the server is back."""
    manager = cluster.manager(deadlines=Deadlines(call=0.2))
    pod = await cluster.ready_pod()
    await cluster.request("one", pod, activeDeadlineSeconds=60)
    await cluster.node_says("one", "Recreating")

    async def before(_: int, __: str) -> None:
        manager.client.before = None
        cluster.server.pause()

    manager.client.before = before
    cluster.jump(61)
    await cluster.until("given up", lambda: ("patch", REQUESTS.plural, 0) in manager.client.answered)
    cluster.server.resume()
    await cluster.settle("one")
    assert cluster.message("one") == "activeDeadlineSeconds (60s) has passed"


async def test_a_pod_that_cannot_be_looked_up(cluster: LifecycleCluster) -> None:
    """Nothing is said of a pod that nobody could look for."""
    manager = cluster.manager()
    await cluster.later()
    cluster.server.fail_next(2, 500, match=lambda call: call.verb == "get" and call.resource == "pods")
    cluster.server.hold_cache()
    pod = await cluster.pod(gate=False)
    cluster.server.release_cache()
    await cluster.request("one", pod)
    await cluster.until("asked", lambda: manager.client.answered.count(("get", "pods", 500)) == 2)
    await cluster.node_says("one", "Completed", "Succeeded")
    await cluster.settle("one")
    assert cluster.status("one")["containerRecreateStates"][0]["phase"] == "Succeeded"


@pytest.mark.parametrize("status", [403, 500])
async def test_time_goes_on_for_a_pod_that_cannot_be_looked_up(
    cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Deadline and TTL need no pod; the finalizer that guards its readiness waits. Nobody asks without a pause."""
    retry_soon(monkeypatch)
    await cluster.label_namespace(None)
    manager = cluster.manager()
    await cluster.later()
    pod = await cluster.pod()
    await cluster.request("done", pod, ttlSecondsAfterFinished=5)
    await cluster.node_says("done", "Completed", "Succeeded")
    await cluster.settle("done")
    await cluster.request("one", pod, grace=5, activeDeadlineSeconds=60)
    await cluster.node_says("one", "Recreating")
    await cluster.until("acquired", lambda: cluster.acquired("one"))
    cluster.server.fail_next(10**6, status, match=lambda call: call.verb == "get" and call.name == "web-0")
    monkeypatch.setattr(pod_reads, "POD_SECONDS", 0.0)
    await cluster.request("two", pod, activeDeadlineSeconds=3600)
    asked = ("get", "pods", status)
    await cluster.until("asked in vain", lambda: asked in manager.client.answered)
    cluster.jump(61)
    await cluster.until("ended", lambda: cluster.phase("one") == "Completed" and not cluster.active("one"))
    assert cluster.message("one") == "activeDeadlineSeconds (60s) has passed"
    await cluster.until("deleted", lambda: not cluster.crr("done"))
    assert cluster.has_finalizer("one")
    assert cluster.condition()[0] == "False"
    await cluster.later()
    assert status == 500 or manager.client.answered.count(asked) < 20, "once for each change, about"
    cluster.server.clear_faults()
    cluster.jump(61)
    await cluster.settle("one")
    assert cluster.condition() == READY


async def test_one_request_that_is_refused_does_not_stop_the_others(cluster: LifecycleCluster) -> None:
    """They are of one pod, and its readiness is not lost either."""
    manager = cluster.manager()
    pod = await cluster.ready_pod()
    cluster.server.fail_next(
        10**6, 403, match=lambda call: call.verb == "patch" and call.name == "bad" and call.user != "node"
    )
    manager.client.writes.clear()
    for name in ("bad", "good"):
        await cluster.request(name, pod, activeDeadlineSeconds=60)
    await cluster.later()
    cluster.jump(61)
    await cluster.settle("good")
    assert not cluster.phase("bad")
    cluster.server.clear_faults()


async def test_a_pod_that_must_not_be_patched(cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is not set before the pod is unready; what else is to be done goes on."""
    retry_soon(monkeypatch)
    manager = cluster.manager()
    pod = await cluster.ready_pod()
    cluster.server.fail_next(
        10**6, 403, match=lambda call: call.verb == "patch" and call.resource == "pods" and call.subresource == "status"
    )
    await cluster.request("one", pod, grace=5, activeDeadlineSeconds=60)
    await cluster.node_says("one", "Recreating")
    await cluster.until("refused", lambda: manager.client.answered.count(("patch", "pods", 403)) > 2)
    assert cluster.has_finalizer("one")
    assert not cluster.acquired("one")
    cluster.jump(61)
    await cluster.until("completed", lambda: cluster.phase("one") == "Completed")
    cluster.server.clear_faults()
    await cluster.settle("one")


async def test_a_pod_that_changes_all_the_time(cluster: LifecycleCluster) -> None:
    """The kubelet writes faster than the manager for a while."""
    manager = cluster.manager()
    pod = await cluster.ready_pod()
    conflicts = 0

    async def before(_: int, what: str) -> None:
        nonlocal conflicts
        if what == "patch pods/status" and conflicts < 10:
            conflicts += 1
            await edit_pod_again(cluster, conflicts)

    manager.client.before = before
    await cluster.request("one", pod, grace=5)
    await cluster.serve("one")
    await cluster.settle("one")
    assert conflicts == 10
    assert cluster.condition() == READY


async def edit_pod_again(cluster: LifecycleCluster, number: int) -> None:
    body = {"metadata": {"annotations": {"example.org/note": str(number)}}}
    await cluster.client.merge_patch(PODS, "default", "web-0", body)


async def test_a_late_answer_does_not_revive_a_request(cluster: LifecycleCluster) -> None:
    """It is deleted while the answer to a write of it is under way; its pod is asked for no more."""
    manager = cluster.manager()
    pod = await cluster.pod(gate=False)
    await cluster.request("one", pod)

    async def before(_: int, __: str) -> None:
        manager.client.before = None
        with suppress(GoneError):
            await cluster.delete("one")
        await cluster.request("one", pod)

    manager.client.before = before
    await cluster.node_says("one", "Completed", "Succeeded")
    await cluster.until("the other one is new", lambda: cluster.crr("one") and not cluster.phase("one"))
    await cluster.later()
    cluster.jump(61)
    await cluster.settle("one")
    assert cluster.message("one") == "no node daemon answered the request on node node-a"
    assert FINALIZER not in cluster.crr("one")["metadata"].get("finalizers", [])
