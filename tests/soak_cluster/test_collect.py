"""The collector makes a record of API objects, containers and lines, in which the judge sees what is wrong."""

from typing import Any

from crrd.core.api.gate import USER_AGENT
from crrd.core.api.reasons import Reason
from crrd.core.api.types import ANNOTATION_PINNED, LABEL_POD_UID, READINESS_GATE
from tests.soak_cluster.collect import Collector
from tests.soak_cluster.judge import judge
from tests.soak_cluster.plan import Action, plan
from tests.soak_cluster.record import Instance, Kind, Line, Part, Record, Word

Json = dict[str, Any]
BEGAN = 1_000_000.0
NAMES = {"a-1": "app", "a-2": "app"}


def request(phase: str = "", *, state: Json | None = None, strategy: Json | None = None, **meta: Any) -> Json:
    container = {"name": "app", "statusContext": {"containerID": "containerd://a-1", "restartCount": 0}}
    return {
        "metadata": {
            "name": "one",
            "labels": {LABEL_POD_UID: "u-1"},
            "creationTimestamp": "1970-01-12T13:48:20Z",
            **meta,
        },
        "spec": {
            "podName": "web-1",
            "containers": [container],
            "strategy": strategy or {},
            "activeDeadlineSeconds": 90,
        },
        "status": {"phase": phase, "containerRecreateStates": [{"name": "app", **state}] if state else []},
    }


def pod(*, ready: bool, image: str = "x:1", holder: str = "") -> Json:
    conditions = [{"type": "Ready", "status": str(ready)}]
    if holder:
        message = f'[{{"userAgent": "{USER_AGENT}", "key": "soak/{holder}"}}]'
        conditions.append({"type": READINESS_GATE, "status": "False", "message": message})
    spec = {"containers": [{"name": "app", "image": image}]}
    return {"metadata": {"name": "web-1", "labels": {"app": "web"}}, "spec": spec, "status": {"conditions": conditions}}


def collector() -> Collector:
    made = Collector({"web": 1}, frozenset({"app"}), "app", began=BEGAN)
    made.pod("u-1", pod(ready=True), BEGAN)
    made.seen(Instance("a-1", "u-1", "app", BEGAN - 50, sandbox="s"), "k1")
    made.line("50.0 k1 start old", BEGAN - 100)
    return made


def stop(made: Collector, instance: str, key: str, at: float) -> None:
    """The container runs its hook, ends, and another one is started."""
    for after, word in ((0.0, "hook"), (1.0, "hooked"), (1.1, "term"), (1.6, "end")):
        made.line(f"{at + after} {key} {word}", BEGAN)
    made.absent([instance], BEGAN + at + 2.0)


def served() -> Collector:
    made = collector()
    made.request("r-1", request(), BEGAN + 100)
    stop(made, "a-1", "k1", 101.0)
    made.pod("u-1", pod(ready=False, holder="one"), BEGAN + 102)
    made.request("r-1", request("Recreating", state={"phase": "Recreating", "isKilled": True}), BEGAN + 102)
    made.seen(Instance("a-2", "u-1", "app", BEGAN + 104, sandbox="s"), "k2")
    made.line("104.0 k2 start new", BEGAN)
    made.pod("u-1", pod(ready=True), BEGAN + 105)
    made.request("r-1", request("Completed", state={"phase": "Succeeded", "isKilled": True}), BEGAN + 105)
    return made


def record(made: Collector) -> Record:
    return made.record(BEGAN + 110, BEGAN + 200, settled=True)


def test_a_request_that_was_served() -> None:
    found = record(served())
    (one,), (old, new) = found.requests, found.instances
    assert (one.targets, one.killed, one.phases) == (
        {"app": ("a-1",)}, {"app": BEGAN + 102}, {"app": ("Succeeded", BEGAN + 105)}
    )  # fmt: skip
    assert (one.stamp, one.created, one.completed, one.deadline) == (BEGAN + 100, BEGAN + 100, BEGAN + 105, 90)
    assert old.stopped == BEGAN + 101
    assert new.lines == (Line(BEGAN + 104, Word.START, "new"),)
    assert found.pods[0].ready == ((BEGAN, True), (BEGAN + 102, False), (BEGAN + 105, True))
    assert judge(found) == []


def test_a_stopped_successor_is_seen_through_the_collector() -> None:
    made = served()
    stop(made, "a-2", "k2", 106.0)
    assert {broken.promise for broken in judge(record(made))} == {"each stop belongs to a request"}


def test_a_hook_that_failed_is_seen_through_the_collector() -> None:
    made = collector()
    message = Reason.HOOK_FAILED.sentence.format(error="exec was cancelled")
    state = {"phase": "Succeeded", "isKilled": True, "message": message}
    made.request("r-1", request("Completed", state=state), BEGAN + 105)
    assert record(made).requests[0].failed_hooks == {"app"}


def test_a_pod_that_is_held_is_seen_through_the_collector() -> None:
    made = served()
    made.pod("u-1", pod(ready=True, holder="one"), BEGAN + 110)
    assert {broken.promise for broken in judge(record(made))} == {"nobody is left unready"}


def test_pins_are_the_targets_of_a_forced_request() -> None:
    made = collector()
    made.request("r-1", request(strategy={"forceRecreate": True}), BEGAN)
    assert made.requests["r-1"].targets == {}
    pins = '{"app": {"containerID": "containerd://a-2", "restartCount": 1}}'
    made.request("r-1", request(annotations={ANNOTATION_PINNED: pins}, strategy={"forceRecreate": True}), BEGAN)
    assert made.requests["r-1"].targets == {"app": ("a-2",)}


def test_the_readiness_of_a_pod_has_the_times_of_its_condition() -> None:
    made = collector()
    late = pod(ready=False)
    late["status"]["conditions"][0]["lastTransitionTime"] = "1970-01-12T13:48:20Z"
    made.pod("u-1", late, BEGAN + 130)
    assert made.pods["u-1"].ready == ((BEGAN, True), (BEGAN + 100, False))
    late["status"]["conditions"][0]["lastTransitionTime"] = "1970-01-12T13:49:00Z"
    made.pod("u-1", late, BEGAN + 170)
    assert made.pods["u-1"].unready_since(BEGAN + 170) == BEGAN + 140, (
        "it was ready in between, which no watch reported"
    )


def test_a_deleted_request_and_pod() -> None:
    made = served()
    made.request("r-1", None, BEGAN + 140)
    assert (made.requests["r-1"].gone, made.requests["r-1"].deleting) == (BEGAN + 140, None)
    made.request("r-2", request(), BEGAN + 140)
    made.request("r-2", request(deletionTimestamp="x"), BEGAN + 141)
    made.request("r-2", None, BEGAN + 142)
    assert (made.requests["r-2"].gone, made.requests["r-2"].over) == (BEGAN + 142, BEGAN + 141)
    made.pod("u-1", None, BEGAN + 143)
    assert made.pods["u-1"].deleting == BEGAN + 143


def test_a_changed_image_is_a_reason_of_kubelet() -> None:
    made = collector()
    made.pod("u-1", pod(ready=True, image="x:2"), BEGAN + 100)
    stop(made, "a-1", "k1", 101.0)
    assert judge(record(made)) == []


def test_the_next_round_keeps_what_has_not_ended() -> None:
    made = served()
    made.request("r-2", request(), BEGAN + 120)
    made.next_round(BEGAN + 300)
    found = record(made)
    assert [each.uid for each in found.requests] == ["r-2"]
    assert [(each.id, [line.value for line in each.lines]) for each in found.instances] == [("a-2", ["new"])]


def test_a_policy_has_its_edits_and_conditions() -> None:
    made = served()
    status = {"conditions": [{"type": "Ready", "status": "True", "reason": "Idle"}]}
    obj = {"metadata": {"name": "web"}, "spec": {"targetRef": {"name": "web"}}, "status": status}
    made.policy("p", obj, BEGAN)
    made.edits = [(BEGAN + 90, "new")]
    assert judge(record(made)) == []
    made.edits.append((BEGAN + 120, "newer"))
    assert {broken.promise for broken in judge(record(made))} == {"policies bring the last edit"}


def test_a_seed_repeats_the_plan() -> None:
    steps = plan(7, 1, 600.0, set(Kind), set(Part))
    assert steps == plan(7, 1, 600.0, set(Kind), set(Part))
    assert steps != plan(7, 2, 600.0, set(Kind), set(Part))
    assert steps == sorted(steps, key=lambda step: step.at)
    assert {step.action for step in steps} == set(Action)


def test_only_the_given_faults_are_planned() -> None:
    steps = plan(7, 1, 6000.0, {Kind.KILL}, {Part.KUBELET})
    faults = {(step.kind, step.part) for step in steps if step.action is Action.FAULT}
    assert faults == {(Kind.KILL, Part.KUBELET)}
    assert not [step for step in plan(7, 1, 600.0, (), ()) if step.action is Action.FAULT]
