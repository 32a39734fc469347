"""What the node daemon's metrics say of requests that it served, in virtual time."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from crrd.core.api.reasons import Reason
from crrd.core.api.types import (
    Action,
    FailurePolicy,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.invariants import Rule
from crrd.core.recreate.observation import Hook, HookKind, HookResult
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.lib.errors import RuntimeCallError
from crrd.lib.metrics import new_registry
from crrd.lib.workqueue import QueueState
from crrd.node.metrics import ELSEWHERE, NAMESPACES, NodeMetrics, NodeState, WatchState
from crrd.node.pods import LEFT_SECONDS
from tests.support.scrapes import node_state
from tests.support.standins import MemoryNode
from tests.support.worlds import killed, recreating, request

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def registry() -> CollectorRegistry:
    return new_registry()


@pytest.fixture
async def metrics(registry: CollectorRegistry) -> NodeMetrics:
    return NodeMetrics(registry, asyncio.get_running_loop().time)


class Book:
    """The metrics of one registry, to be asked by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def __call__(self, name: str, /, **labels: str) -> float:
        value = self._registry.get_sample_value(name, labels)
        assert value is not None, f"no series {name}{labels}"
        return value

    def stages(self) -> dict[str, tuple[float, float]]:
        """Stage -> how often it was timed, and the sum of its seconds; those that were timed at all."""
        found = {}
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name == "crrd_stage_duration_seconds_count" and sample.value:
                    stage = sample.labels["stage"]
                    seconds = self("crrd_stage_duration_seconds_sum", stage=stage)
                    found[stage] = (sample.value, round(seconds, 1))
        return found

    def nonzero(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a counter that counted something, by their labels' values."""
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return {tuple(one.labels.values()): one.value for one in samples if one.name == name and one.value}


@pytest.fixture
def book(registry: CollectorRegistry) -> Book:
    return Book(registry)


async def forgotten(node: MemoryNode, uid: str = "r1") -> None:
    """Let the manager take the active label, as it does with what has ended."""
    node.controller.pods.requests.put(replace(node.requests[uid], active=False, resource_version="999999"))
    await node.until(lambda: not node.controller.queue.depth)


async def test_every_stage_of_a_recreate_is_timed(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode(hook=Hook(HookKind.EXEC, command=("true",)), recorder=metrics) as node:
        node.gate = True
        node.post(request(strategy=Strategy(unready_grace_seconds=5), unready_acquired=True))
        await node.completed()
        await forgotten(node)
    stages = book.stages()
    assert {stage: count for stage, (count, _) in stages.items()} == {
        "queued": 1,
        "unready_grace": 1,
        "pre_stop": 1,
        "stop": 1,
        "new_container_seen": 1,
        "ready": 1,
        "total": 1,
    }
    assert stages["queued"][1] == 0
    assert stages["unready_grace"][1] == 5
    assert stages["pre_stop"][1] == 2
    assert stages["stop"][1] == 1
    assert stages["new_container_seen"][1] == 1.5  # the stop's second, and half a second of the kubelet's
    assert stages["total"][1] == pytest.approx(8.5, abs=0.1)
    assert book.nonzero("crrd_requests_total") == {("succeeded",): 1}
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", "stopped"): 1}
    assert book.nonzero("crrd_requested_restarts_total") == {("default",): 1}
    assert book.nonzero("crrd_pre_stop_hooks_total") == {("exec",): 1}
    assert book.nonzero("crrd_pre_stop_hook_failures_total") == {}


async def test_one_that_waits_for_another_queues(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode(recorder=metrics) as node:
        node.post(request())
        node.post(request(uid="r2", name="second", resource_version="2"))
        await node.completed()
        await node.completed("r2")
    assert book.stages()["queued"] == (2, 1.5)
    assert book.nonzero("crrd_requests_total") == {("succeeded",): 2}
    assert book.nonzero("crrd_container_recreations_total") == {
        ("succeeded", "stopped"): 1,
        ("succeeded", "already_recreated"): 1,
    }


async def test_a_container_that_two_requests_stop_has_one_restart(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode(recorder=metrics) as node:
        node.stop_seconds = 20.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        node.delete("r1")
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=3)))
        await node.completed("r2")
        await asyncio.sleep(30)
        assert node.stops == [("old", 30), ("old", 3)]
    assert book.nonzero("crrd_requested_restarts_total") == {("default",): 1}
    assert book.stages()["stop"][0] == 1


@pytest.mark.parametrize("pruned", [False, True], ids=["stored", "pruned by an older CRD"])
async def test_failures_have_reasons(metrics: NodeMetrics, book: Book, pruned: bool) -> None:
    async with MemoryNode("a", "b", recorder=metrics) as node:
        node.prune_reasons = pruned
        node.stop_errors = [RuntimeCallError("no", code="INTERNAL") for _ in range(100)]
        node.post(request("a", "b"))
        await node.completed()
    async with MemoryNode(policy=RestartPolicy.NEVER, recorder=metrics) as node:
        node.prune_reasons = pruned
        node.post(request(uid="r2"))
        await node.completed("r2")
        node.post(replace(request("zz", uid="r3"), created="2099-01-02T00:00:00Z"))
        await node.completed("r3")
    assert book.nonzero("crrd_requests_total") == {("failed",): 3}
    assert book.nonzero("crrd_container_recreations_total") == {
        ("failed", Reason.STOP_FAILED): 1,
        ("failed", Reason.EARLIER_FAILURE): 1,
        ("failed", Reason.NOT_RESTARTABLE): 1,
        ("failed", Reason.CONTAINER_NOT_FOUND): 1,
    }
    assert book.nonzero("crrd_requested_restarts_total") == {}


async def test_some_of_several_is_partial(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode("a", "b", recorder=metrics) as node:
        node.post(request("a", "zz", strategy=Strategy(failure_policy=FailurePolicy.IGNORE)))
        await node.completed()
    assert book.nonzero("crrd_requests_total") == {("partial",): 1}


async def test_a_hook_that_fails_is_counted_by_kind(metrics: NodeMetrics, book: Book) -> None:
    for kind in HookKind:
        assert book("crrd_pre_stop_hook_failures_total", kind=kind.value) == 0
        async with MemoryNode(hook=Hook(kind), recorder=metrics) as node:
            node.hook_error = "no"
            node.post(request(uid=kind.value))
            await node.completed(kind.value)
        assert book("crrd_pre_stop_hook_failures_total", kind=kind.value) == 1
        assert book("crrd_pre_stop_hooks_total", kind=kind.value) == 1


@pytest.mark.parametrize("error", ["", "unknown directive"])
async def test_a_reload_is_counted_by_kind(metrics: NodeMetrics, book: Book, error: str) -> None:
    async with MemoryNode(recorder=metrics) as node:
        node.gate, node.declared, node.reload_error = True, {"app": '{"signal": "HUP"}'}, error
        strategy = Strategy(action=Action.RELOAD, unready_grace_seconds=5)
        node.post(request(strategy=strategy, unready_acquired=True))
        await node.completed()
    assert book.nonzero("crrd_reloads_total") == {("signal",): 1}
    assert book.nonzero("crrd_reload_failures_total") == ({("signal",): 1} if error else {})
    ended = ("failed", Reason.RELOAD_FAILED) if error else ("succeeded", "reloaded")
    assert book.nonzero("crrd_container_recreations_total") == {ended: 1}
    assert book.stages()["unready_grace"] == (1, 5)


async def test_what_ends_elsewhere_is_told_apart(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode(recorder=metrics) as node:
        node.stop_seconds = 1000.0
        node.post(request())
        await node.until(lambda: bool(node.status().states))
        served = node.requests["r1"]
        states = tuple(replace(state, phase=StatePhase.FAILED) for state in served.status.states)
        ended = replace(served.status, phase=RequestPhase.COMPLETED, states=states, completion_time="now")
        node.controller.pods.requests.put(replace(served, status=ended, resource_version="999998"))
        await node.until(lambda: bool(book.nonzero("crrd_requests_total")))
        node.post(request(uid="r2", resource_version="999999"))
        await node.until(lambda: node.status("r2").phase is not RequestPhase.EMPTY)
        node.delete("r2")
        await node.until(lambda: len(book.nonzero("crrd_requests_total")) == 2)
    assert book.nonzero("crrd_requests_total") == {("failed",): 1, ("gone",): 1}
    assert book.nonzero("crrd_container_recreations_total") == {("failed", ELSEWHERE): 1}


async def test_a_watch_that_overtakes_the_answer_to_a_write_changes_nothing(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode(recorder=metrics) as node:
        node.answer_seconds = 0.1
        node.post(request())
        await node.completed()
        await forgotten(node)
        await node.until(lambda: not node.controller.executor.writes.pending and not node.controller.queue.depth)
    assert book.nonzero("crrd_requests_total") == {("succeeded",): 1}
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", "stopped"): 1}
    assert {stage: count for stage, (count, _) in book.stages().items()} == dict.fromkeys(
        ("queued", "stop", "new_container_seen", "ready", "total"), 1
    )


async def test_writes_whose_answers_are_lost_are_counted_all_the_same(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode("a", "b", recorder=metrics) as node:
        node.lost_answers = 99
        node.post(request("a", "b", strategy=Strategy(ordered=True)))
        await node.completed()
        await node.until(lambda: bool(book.nonzero("crrd_requests_total")))
    assert book.nonzero("crrd_requests_total") == {("succeeded",): 1}
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", "stopped"): 2}


async def test_what_an_earlier_process_counted_is_not_counted_again(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode("a", "b", recorder=metrics) as node:
        active = request("a", "b")
        done = RecreateState("a", StatePhase.SUCCEEDED, is_killed=True)
        node.post(replace(active, status=Status(RequestPhase.RECREATING, (done, RecreateState("b")))))
        await node.completed()
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", "stopped"): 1}


async def test_nothing_is_kept_of_requests_that_ended(metrics: NodeMetrics) -> None:
    async with MemoryNode(recorder=metrics) as node:
        node.write_seconds = 0.2
        for number in range(20):
            uid = f"r{number}"
            node.post(request("zz" if number % 2 else "app", uid=uid, name=uid))
            if number % 3:
                await node.completed(uid)
                await forgotten(node, uid)
            else:
                await node.until(lambda: node.controller.executor.writes.pending > 0)
                node.delete(uid)
        await node.until(lambda: not node.controller.executor.writes.pending and not node.controller.queue.depth)
        await asyncio.sleep(LEFT_SECONDS)  # the work for them is forgotten with them
        assert [record.requests for record in node.controller.pods if record.requests] == []


def test_decisions_that_were_withheld_are_counted_by_rule(metrics: NodeMetrics, book: Book) -> None:
    assert {book("crrd_withheld_decisions_total", rule=rule.value) for rule in Rule} == {0.0}
    metrics.withheld(Rule.ALONE)
    assert book("crrd_withheld_decisions_total", rule="other_work") == 1


def state(live: Iterable[Request], metrics_since: float) -> NodeState:
    return node_state(
        live=lambda: [(each, metrics_since - {"r1": 100.0, "r2": 7.0}.get(each.uid, 0.0)) for each in live],
        queue=lambda: QueueState("node", 3, 2.0),
        watches=lambda: [WatchState("pods", None, None), WatchState("requests", metrics_since - 50.0, metrics_since)],
    )


async def test_where_the_daemon_stands(metrics: NodeMetrics, book: Book, registry: CollectorRegistry) -> None:
    live = [
        request(),
        replace(request(uid="r2"), status=replace(request().status, phase=RequestPhase.RECREATING)),
        request(uid="r3", namespace="shop"),
    ]
    metrics.show(state(live, asyncio.get_running_loop().time()))
    assert book("crrd_active_requests", phase="pending", pod_namespace="default") == 1
    assert book("crrd_active_requests", phase="recreating", pod_namespace="default") == 1
    assert book("crrd_active_requests", phase="pending", pod_namespace="shop") == 1
    assert book("crrd_oldest_request_age_seconds") == 100
    assert book("crrd_queue_depth", controller="node") == 3
    assert book("crrd_queue_oldest_age_seconds", controller="node") == 2
    assert book("crrd_last_list_timestamp_seconds", resource="requests") == pytest.approx(time.time() - 50, abs=30)
    assert registry.get_sample_value("crrd_last_list_timestamp_seconds", {"resource": "pods"}) is None


async def test_an_idle_daemon_still_has_series_to_sum(metrics: NodeMetrics, book: Book) -> None:
    metrics.show(state([], 0.0))
    assert book("crrd_active_requests", phase="pending", pod_namespace="") == 0
    assert book("crrd_active_requests", phase="recreating", pod_namespace="") == 0
    assert book("crrd_oldest_request_age_seconds") == 0


async def test_ten_thousand_requests_leave_the_series_where_they_were(
    metrics: NodeMetrics, registry: CollectorRegistry
) -> None:
    """As the controller tells of them; the bench sends as many through a whole daemon."""

    def series() -> int:
        return sum(len(family.samples) for family in registry.collect())

    counts = []
    hook = Hook(HookKind.EXEC)
    for number in range(10_000):
        before = request(uid=f"r{number}", name=f"request-{number}", strategy=Strategy(unready_grace_seconds=1))
        done = tuple(RecreateState("app", StatePhase.SUCCEEDED, is_killed=True) for _ in before.containers)
        after = replace(before, status=Status(RequestPhase.COMPLETED, done, completion_time="now"))
        recorder = metrics.begin(before)
        recorder.served()
        recorder.work_started()
        recorder.hook_ended(hook, HookResult(0.5, "no"))
        recorder.stop_sent("app")
        recorder.stop_ended(0.1)
        recorder.successor_seen("app")
        recorder.written(before, after)
        recorder.forgotten(after)
        counts.append(series() if number in (0, 9_999) else 0)
    assert counts[0] == counts[-1]
    assert registry.get_sample_value("crrd_requests_total", {"outcome": "succeeded"}) == 10_000


@pytest.mark.parametrize(
    ("sent", "killed_before", "reason"),
    [(True, False, "stopped"), (False, True, "stopped"), (False, False, "already_recreated")],
)
async def test_by_whom_a_container_was_stopped(
    metrics: NodeMetrics, book: Book, *, sent: bool, killed_before: bool, reason: str
) -> None:
    """By this process, by an earlier one, or by somebody else."""
    req = request()
    recorder = metrics.begin(req)
    if sent:
        recorder.stop_sent("app")
    recorder.successor_seen("app")
    recorder.successor_seen("app")
    assert book.stages().get("new_container_seen", (0,))[0] == sent, "once"
    done = (RecreateState("app", StatePhase.SUCCEEDED, is_killed=killed_before),)
    recorder.written(req, replace(req, status=Status(RequestPhase.COMPLETED, done)))
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", reason): 1}


@pytest.mark.parametrize("hook", [True, False])
async def test_an_unready_grace_period_ends_with_the_first_hook_or_stop(
    metrics: NodeMetrics, book: Book, *, hook: bool
) -> None:
    req = request("app", "side", strategy=Strategy(unready_grace_seconds=5))
    recorder = metrics.begin(req)
    recorder.served()
    await asyncio.sleep(5)
    if hook:
        recorder.work_started()
    recorder.stop_sent("app")
    await asyncio.sleep(5)
    recorder.stop_sent("side")
    assert book.stages()["unready_grace"] == (1, 5)


async def test_without_an_unready_grace_period_none_is_timed(metrics: NodeMetrics, book: Book) -> None:
    recorder = metrics.begin(request())
    recorder.served()
    recorder.stop_sent("app")
    assert "unready_grace" not in book.stages()


@pytest.mark.parametrize("count", [None, 0, 3])
async def test_differing_hashes_are_told_once_they_are_known(
    metrics: NodeMetrics, registry: CollectorRegistry, count: int | None
) -> None:
    metrics.show_differing(lambda: count)
    assert registry.get_sample_value("crrd_kubelet_hash_mismatch_containers") == count


async def test_a_runtime_that_was_found_is_one(metrics: NodeMetrics, book: Book) -> None:
    metrics.runtime_found("containerd", "1.7")
    assert book("crrd_runtime_info", name="containerd", version="1.7") == 1


async def test_what_ended_is_counted_and_timed_once(metrics: NodeMetrics, book: Book) -> None:
    waits = request("app", "side", status=recreating(killed(), killed("side")))
    back = replace(waits, status=recreating(RecreateState("app", StatePhase.SUCCEEDED, is_killed=True), killed("side")))
    recorder = metrics.begin(waits)
    recorder.stop_sent("app")
    recorder.successor_seen("app")
    for before, after, count in ((waits, waits, 0), (waits, back, 1), (back, back, 1)):
        recorder.written(before, after)
        assert book.stages().get("ready", (0, 0.0))[0] == count
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", "stopped"): 1}
    done = replace(back, status=replace(back.status, phase=RequestPhase.COMPLETED))
    for before in (back, waits):  # another client has replaced the status, and this process restores it
        recorder.written(before, done)
    recorder.forgotten(done)
    assert book.nonzero("crrd_requests_total") == {("partial",): 1}
    assert {stage: count for stage, (count, _) in book.stages().items()} == dict.fromkeys(
        ("new_container_seen", "ready", "total"), 1
    )


async def test_a_restarted_pod_restarts_each_container_of_its_request(metrics: NodeMetrics, book: Book) -> None:
    metrics.begin(
        request(namespace="shop", containers=(RequestedContainer("a"), RequestedContainer("b")))
    ).pod_restarted()
    assert book.nonzero("crrd_requested_restarts_total") == {("shop",): 2}


async def test_the_unready_grace_period_of_a_restarted_pod_is_timed(metrics: NodeMetrics, book: Book) -> None:
    async with MemoryNode("app", "side", recorder=metrics) as node:
        node.gate = True
        strategy = Strategy(unready_grace_seconds=5)
        node.post(request("app", "side", whole_pod=True, strategy=strategy, unready_acquired=True))
        await node.completed()
    assert book.stages()["unready_grace"] == (1, 5)
    assert book.nonzero("crrd_container_recreations_total") == {("succeeded", "stopped"): 2}


async def test_namespaces_without_end_are_capped(metrics: NodeMetrics, book: Book) -> None:
    assert NAMESPACES == 100
    for number in range(NAMESPACES + 50):
        metrics.begin(request(namespace=f"team-{number}")).stop_ended(0.1)
    found = book.nonzero("crrd_requested_restarts_total")
    assert len(found) == NAMESPACES + 1
    assert found["other",] == 50
