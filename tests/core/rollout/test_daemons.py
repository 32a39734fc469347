"""Pods on nodes that cannot restart containers now: the run goes on without them, and restarts them later."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.reasons import Reason
from crrd.core.api.types import LABEL_RELOADS, RequestPhase
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import unfinished
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Amount
from crrd.core.rollout.standing import ATTEMPTS
from crrd.core.rollout.state import NodeDaemon, World, read_node_daemon
from crrd.core.rollout.waits import unserved
from tests.support.rollouts import (
    AFTER,
    NOW,
    START,
    again,
    asked,
    budget,
    chosen,
    container,
    failed,
    member,
    recreated,
    run,
    stages,
    succeeded,
    why,
    workload,
)

DEAD = "the node daemon on node node-b is not ready"
OTHERS = tuple(member(f"web-{number}") for number in range(1, 4))
LOST = member("web-0", node="node-b", ready=False)
UP = NodeDaemon("node-a", ready=True)


def world(*requests: RunRequest, daemon: bool = False, since: datetime | None = None, **changes: Any) -> World:
    """Four pods, one of them on a node whose daemon is ready or not."""
    daemons = {"node-a": UP, "node-b": NodeDaemon("node-b", daemon, since)}
    plain = World((LOST, *OTHERS), requests, workload(4), daemons=daemons)
    return replace(plain, **changes)


def test_pods_of_other_nodes_go_on_and_the_lost_one_counts_as_unready() -> None:
    of = run(max_unavailable=Amount(2))
    found = make_plan(world(), of, NOW)
    assert (chosen(found), stages(found)["web-0"], why(found)["web-0"]) == (["web-1"], "put off", DEAD)
    assert not make_plan(world(budgets=(budget(0),)), of, NOW).create


def test_a_budget_that_it_uses_up_is_named_with_the_node() -> None:
    found = make_plan(world(), run(), NOW)
    assert found.wait.why == f"1 pod is unready, the limit is 1: web-0 ({DEAD})"
    assert found.wait.command == (
        "kubectl get pods -A -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=node -o wide "
        "--field-selector spec.nodeName=node-b"
    )


def test_a_node_that_is_not_ready() -> None:
    found = make_plan(world(daemons=None, down=frozenset({"node-b"})), run(max_unavailable=Amount(2)), NOW)
    assert (chosen(found), why(found)["web-0"]) == (["web-1"], "node node-b is not ready")
    assert found.rows[0].wait.command == "kubectl describe node node-b"
    assert chosen(make_plan(world(daemons=None), run(), NOW)) == ["web-0"], "nothing is known about its node"


def test_a_daemon_set_whose_rollout_only_lacks_dead_nodes_is_rolled_out() -> None:
    """Its controller never updates the pods there, so its rollout lasts until the node is back or is removed."""
    of = run(max_unavailable=Amount(2))
    for rollout, expected in (({"behind": 1}, ["web-1"]), ({"behind": 2}, []), ({}, [])):
        found = world(down=frozenset({"node-b"}), workload=workload(4, rolling="3 of 4 pods are updated", **rollout))
        assert chosen(make_plan(found, of, NOW)) == expected
        assert chosen(make_plan(replace(found, down=frozenset()), of, NOW)) == []


def test_in_order_the_others_go_on_as_well() -> None:
    ordered = workload(4, in_order=True)
    pods = (*OTHERS[:2], replace(LOST, pod=replace(LOST.pod, name="web-9")), OTHERS[2])
    found = make_plan(world(members=pods, workload=ordered), run(max_unavailable=Amount(2)), NOW)
    assert chosen(found) == ["web-3"]


def test_the_run_ends_incomplete_and_goes_on_once_the_node_is_back() -> None:
    of = run()
    done: dict[str, Any] = {"members": (LOST, *map(recreated, OTHERS))}
    requests = [succeeded(of, each) for each in OTHERS]
    found = make_plan(world(*requests, **done), of, NOW)
    assert found.end is End.PUT_OFF
    assert found.message.startswith(f"web-0: {DEAD} (kubectl get pods ")
    ended = replace(requests[-1], progress=Progress(AFTER, "laptop/42", RunPhase.OVER, 3, 4, end=End.PUT_OFF))
    there = world(*requests[:-1], ended, **done)
    assert unfinished(kind_of(there, run(name="next")), NOW) is None, "it holds back no other run"
    back = make_plan(world(*requests, daemon=True, **done), of, NOW)
    assert (back.end, chosen(back)) == (None, ["web-0"])


def test_a_first_part_is_not_of_pods_that_are_put_off() -> None:
    of = run(first=2, max_unavailable=Amount(4))
    assert chosen(make_plan(world(), of, NOW)) == ["web-1", "web-2"]


def test_a_pod_that_is_deleted_from_a_dead_node_is_skipped() -> None:
    gone = replace(LOST, pod=replace(LOST.pod, deleting=True))
    found = make_plan(world(members=(gone,)), run(), NOW)
    assert (found.end, why(found)) == (End.DONE, {"web-0": "the pod is being deleted"})


@pytest.mark.parametrize("reason", [Reason.NO_ANSWER, Reason.DEADLINE])
def test_a_request_that_ends_because_its_node_is_down_has_not_failed(reason: Reason) -> None:
    of = run(max_unavailable=Amount(2))
    ended = failed(of, LOST, reason)
    found = make_plan(world(ended), of, NOW)
    assert (found.end, stages(found)["web-0"], why(found)["web-0"]) == (None, "put off", DEAD)
    never_down = world(ended, daemon=True, since=START)
    assert "web-0" not in chosen(make_plan(never_down, of, NOW)), "not since its request"
    back = make_plan(world(ended, daemon=True, since=START + timedelta(seconds=9)), of, NOW)
    assert chosen(back)[0] == "web-0"
    assert back.create[0].failed == ended.request.name, "it gets another request"


@pytest.mark.parametrize("reason", [Reason.NO_ANSWER, Reason.DEADLINE])
def test_a_node_daemon_that_crashes_at_each_request_gets_three(reason: Reason) -> None:
    of = run()
    others = [succeeded(of, each) for each in OTHERS]
    back: dict[str, Any] = {"daemon": True, "since": START + timedelta(seconds=9)}
    back["members"] = LOST, *map(recreated, OTHERS)
    ended = failed(of, LOST, reason)
    for _ in range(ATTEMPTS - 1):
        (next_one,) = make_plan(world(ended, *others, **back), of, NOW).create
        assert next_one.failed == ended.request.name
        ended = again(ended, ended)
    found = make_plan(world(ended, *others, **back), of, NOW)
    assert (found.end, stages(found)["web-0"]) == (End.FAILED, "failed")
    retried = world(ended, *others, **back, retried=frozenset({ended.request.uid}))
    assert chosen(make_plan(retried, of, NOW)) == ["web-0"], "with --retry-failed"


def test_a_container_that_came_back_with_its_node_is_not_restarted_again() -> None:
    of, pod = run(), recreated(LOST)
    ended, since = failed(of, LOST, Reason.DEADLINE), START + timedelta(seconds=9)
    found = make_plan(world(ended, daemon=True, since=since, members=(pod,)), of, NOW)
    assert (found.end, why(found)) == (End.DONE, {"web-0": "container app was already restarted"})
    unready = replace(pod, ready=False)
    found = make_plan(world(ended, daemon=True, since=since, members=(unready,)), of, NOW)
    assert found.end is End.FAILED


def test_a_request_that_fails_otherwise_has_failed_on_a_dead_node_too() -> None:
    found = make_plan(world(failed(run(), LOST)), run(), NOW)
    assert (found.end, stages(found)["web-0"]) == (End.FAILED, "failed")


class TestSilentNodes:
    """A node that does not answer, although the API server shows it as ready: it may have gone down just now."""

    OF = run(max_unavailable=Amount(2))
    PODS = (member("web-0", node="node-b"), *OTHERS)

    def test_other_pods_go_on_first(self) -> None:
        pods = (*self.PODS, member("web-4", node="node-b"))
        silent = world(failed(self.OF, self.PODS[0], Reason.NO_ANSWER), daemon=True, members=pods)
        found = make_plan(silent, self.OF, NOW)
        assert found.end is None
        assert chosen(found) == ["web-1", "web-2"]
        why_not = "the node daemon on node node-b has not answered the request"
        assert {name: text for name, text in why(found).items() if text == why_not}.keys() == {"web-0", "web-4"}

    def test_once_no_others_are_left_the_request_has_failed(self) -> None:
        requests = [failed(self.OF, self.PODS[0], Reason.NO_ANSWER), *(succeeded(self.OF, each) for each in OTHERS)]
        for last in ((), (member("web-4", node="node-b"),)):
            pods = (self.PODS[0], *map(recreated, OTHERS), *last)
            found = make_plan(world(*requests, daemon=True, members=pods), self.OF, NOW)
            assert (found.end, stages(found)["web-0"]) == (End.FAILED, "failed")
        pods = (self.PODS[0], recreated(OTHERS[0]), *OTHERS[1:])
        found = make_plan(world(*requests[:2], daemon=True, members=pods), self.OF, NOW)
        assert (found.end, stages(found)["web-0"]) == (None, "put off"), "two are left"

    def test_two_of_them_have_another_cause(self) -> None:
        pods = (*self.PODS, member("web-4", node="node-c"))
        requests = [failed(self.OF, each, Reason.NO_ANSWER) for each in (pods[0], pods[4])]
        assert make_plan(world(*requests, daemon=True, members=pods), self.OF, NOW).end is End.FAILED


def test_what_is_under_way_on_a_node_that_goes_down_names_it() -> None:
    found = make_plan(world(asked(run(), LOST)), run(), NOW)
    assert (stages(found)["web-0"], why(found)["web-0"]) == ("requested", DEAD)
    found = make_plan(world(asked(run(), LOST, RequestPhase.RECREATING)), run(), NOW)
    assert (stages(found)["web-0"], why(found)["web-0"]) == ("recreating", DEAD)


def test_a_pod_that_was_recreated_before_its_node_went_down() -> None:
    """The run cannot wait until it is ready."""
    of = run()
    pod = recreated(member("web-0", container(ready=False), node="node-b"), ready=False)
    there = world(succeeded(of, LOST), members=(pod,))
    found = make_plan(there, of, NOW)
    assert (found.end, stages(found)["web-0"]) == (End.PUT_OFF, "put off")
    ready = make_plan(replace(there, members=(recreated(LOST),)), of, NOW)
    assert ready.end is End.DONE, "the daemon is not needed for it"


@pytest.mark.parametrize(
    ("unready_since", "min_ready", "side", "stage"),
    [
        (20, 0, {}, "done"),
        (20, 15, {}, "put off"),
        (30, 0, {}, "put off"),
        (20, 0, {"ready": False}, "put off"),  # it was unready before its node was
        (20, 0, {"started_at": ""}, "done"),
    ],
)
def test_a_pod_that_was_done_before_its_node_went_down_stays_done(
    unready_since: int, min_ready: int, side: dict[str, Any], stage: str
) -> None:
    """The node controller sets its condition Ready to False, and leaves its containers ready."""
    of = run(min_ready=min_ready)
    since = NOW - timedelta(seconds=unready_since)
    pod = replace(recreated(LOST, ready=False), ready_since=since)
    beside = container("side", **side)  # the run leaves it alone
    pod = replace(pod, pod=replace(pod.pod, containers={**pod.pod.containers, "side": beside}))
    found = make_plan(world(succeeded(of, LOST), members=(pod,)), of, NOW)
    assert stages(found)["web-0"] == stage


def test_a_preview_names_them_beside_the_batches() -> None:
    found = make_preview(world(), run(max_unavailable=Amount(2)), NOW)
    assert [[row.pod for row in batch] for batch in found.batches] == [["web-1"], ["web-2"], ["web-3"]]
    assert (found.stopped.why, stages(found.plan)["web-0"]) == ("", "put off")
    blocked = make_preview(world(), run(), NOW)
    assert (blocked.batches, "web-0" in blocked.stopped.why) == ((), True)
    assert [[row.pod for row in batch] for batch in blocked.later] == [["web-1"], ["web-2"], ["web-3"]]


@pytest.mark.parametrize(
    ("status", "deleting", "ready"), [("True", False, True), ("False", False, False), ("True", True, False)]
)
def test_the_daemon_of_a_node_is_read_from_its_pod(status: str, *, deleting: bool, ready: bool) -> None:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T12:00:00Z"}
    meta = {"deletionTimestamp": "2026-01-01T12:00:30Z"} if deleting else {}
    pod: dict[str, Any] = {"metadata": meta, "spec": {"nodeName": "node-b"}, "status": {"conditions": [condition]}}
    assert read_node_daemon(pod) == NodeDaemon("node-b", ready, START, reloads=False)
    pod["metadata"] = {**meta, "labels": {LABEL_RELOADS: "true"}}
    assert read_node_daemon(pod).reloads


@pytest.mark.parametrize(
    ("node", "expected"), [("node-a", ""), ("node-b", DEAD), ("node-c", "the node has no node daemon"), ("", "")]
)
def test_what_serves_a_node(node: str, expected: str) -> None:
    daemons = world().daemons
    assert unserved(node, daemons) == expected
    assert not unserved(node, None), "it is unknown"
