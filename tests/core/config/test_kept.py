"""Which nodes keep the data of an immutable object that was replaced: those where pods use it without a gap."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.config.kept import NodeUse, ObjectUses, Since, UserPod, kept_nodes, kept_of_pods, ran_before, read_user
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, ObjectName

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
CFG: ObjectName = (Kind.CONFIG_MAP, "cfg")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def pod(created: float, node: str = "a", started: float | None = None) -> UserPod:
    return UserPod(node, {CFG: Since(at(created), at(created + 1 if started is None else started))})


class Node:
    """The uses, from pods by UID."""

    def __init__(self) -> None:
        self.freed: list[ObjectName] = []
        self.uses = ObjectUses(self.freed.append)
        self._pods: dict[str, UserPod] = {}

    def set(self, uid: str, after: UserPod | None) -> None:
        self.uses.change(uid, self._pods.pop(uid, None), after)
        if after is not None:
            self._pods[uid] = after

    def kept(self, replaced: float, known: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return kept_nodes(self.uses.of(CFG), at(replaced), known)


def test_a_pod_that_overlaps_with_an_older_one_gets_the_old_data() -> None:
    node = Node()
    node.set("old", pod(0))
    node.set("new", pod(200))
    node.set("other", pod(201, "b"))
    node.set("old", None)
    assert node.kept(100) == ("a",), "node b had no pod before"
    assert node.freed == []
    node.set("new", None)
    node.set("next", pod(300))
    assert (node.kept(100), node.freed) == ((), [CFG])


def test_a_pod_that_has_ended_or_left_the_node_uses_nothing() -> None:
    node = Node()
    node.set("one", pod(0))
    node.set("one", replace(pod(0), node=""))
    assert node.freed == [CFG]
    assert not node.uses._uses, "names of objects that nothing uses take no memory"
    node.set("two", pod(200))
    assert node.kept(100) == ()


def test_of_pods_that_were_there_before_the_first_list_older_ones_are_unknown() -> None:
    node = Node()
    with node.uses.listing():
        node.set("new", pod(200))
    assert node.kept(100) == ("a",), "at the first look, it may follow an older one"
    assert node.kept(100, ("a",)) == ("a",)
    assert node.kept(100, ()) == (), "it did not at the first look"


def test_between_two_lists_the_order_is_unknown() -> None:
    node = Node()
    node.set("old", pod(0))
    with node.uses.listing():
        node.set("old", None)
        node.set("new", pod(200))
    assert (node.kept(100), node.freed) == (("a",), [])
    with node.uses.listing():
        node.set("new", None)
    assert node.freed == [CFG]


def test_without_a_record_a_pod_that_only_waited_for_the_object_is_not_older() -> None:
    objects = {CFG: ConfigObject(frozenset(), immutable=True, created=at(100))}
    waited = pod(90, started=98)
    assert kept_of_pods([waited], objects) == {}
    assert kept_of_pods([pod(90, started=97)], objects) == {"a": {CFG}}
    assert kept_of_pods([waited, pod(0, "b")], objects) == {"b": {CFG}}
    assert kept_of_pods([pod(0)], {CFG: replace(objects[CFG], immutable=False)}) == {}
    assert kept_of_pods([pod(0)], {CFG: None}) == {}


def test_a_pod_keeps_its_first_start() -> None:
    """After a crash, a pod shows only its last start. Its creation counts then, if nothing else is known."""
    node = Node()
    node.set("one", pod(90, started=101))
    node.set("one", pod(90))
    (use,) = node.uses.of(CFG).values()
    assert use == NodeUse(at(90), at(101), whole=True, pods={"one"})


SPEC: dict[str, Any] = {
    "nodeName": "a",
    "imagePullSecrets": [{"name": "pull"}],
    "initContainers": [{"name": "setup", "envFrom": [{"secretRef": {"name": "init"}}]}],
    "containers": [
        {
            "name": "app",
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "a"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "two", "key": "b"}}},
                {"name": "configMap", "value": "x"},
            ],
            "envFrom": [{"configMapRef": {"name": "three"}}],
        }
    ],
    "volumes": [
        {"name": "v", "configMap": {"name": "four"}},
        {"name": "w", "secret": {"secretName": "five"}},
        {"name": "x", "projected": {"sources": [{"configMap": {"name": "six"}}, {"secret": {"name": "seven"}}]}},
        {"name": "y", "csi": {"nodePublishSecretRef": {"name": "eight"}}},
        {"name": "z", "azureFile": {"secretName": "nine"}},
    ],
}


def state(name: str, started: int, restarts: int = 0) -> dict[str, Any]:
    running = {"startedAt": f"2026-01-01T12:00:{started:02}Z"}
    return {"name": name, "restartCount": restarts, "state": {"running": running}}


def as_json(*, restarts: int = 0, phase: str = "Running") -> dict[str, Any]:
    meta = {"name": "web-0", "creationTimestamp": "2026-01-01T12:00:00Z"}
    status = {"phase": phase, "containerStatuses": [state("app", 9, restarts)]}
    return {"metadata": meta, "spec": SPEC, "status": status}


def test_all_objects_that_kubelet_registers_for_a_pod() -> None:
    found = read_user(as_json())
    assert found.objects[Kind.CONFIG_MAP, "one"] == found.objects[Kind.SECRET, "pull"] == Since(at(0), at(9))
    assert {name for kind, name in found.objects if kind is Kind.CONFIG_MAP} == {"one", "three", "four", "six"}
    assert {name for kind, name in found.objects if kind is Kind.SECRET} == {
        "pull", "init", "two", "five", "seven", "eight", "nine"
    }  # fmt: skip


@pytest.mark.parametrize(("restarts", "started"), [(0, 9), (1, 0)])
def test_a_restarted_container_may_have_started_right_after_the_creation_of_its_pod(
    restarts: int, started: float
) -> None:
    found = read_user(as_json(restarts=restarts))
    assert (found.node, found.objects[Kind.CONFIG_MAP, "three"]) == ("a", Since(at(0), at(started)))


def test_pods_that_use_nothing() -> None:
    assert read_user(as_json(phase="Failed")).node == ""
    assert read_user({}) == UserPod("", {})


def with_late(*, kind: str = "containers", started: int | None = 40, restarts: int = 0) -> dict[str, Any]:
    """A pod of 12:00:00 whose container `app` runs from 12:00:01, and to which `late` was added at 12:00:30."""
    late = {"name": "late", "envFrom": [{"configMapRef": {"name": "cfg"}}]}
    app = {"name": "app"}
    spec: dict[str, Any] = {"nodeName": "a", "containers": [app]}
    spec[kind] = [*([app] if kind == "containers" else []), late]
    statuses = [state("app", 1)]
    statuses += [state("late", started, restarts)] if started is not None else []
    owned: dict[str, Any] = {"f:spec": {f"f:{kind}": {'k:{"name":"late"}': {".": {}, "f:envFrom": {}}}}}
    entry = {"manager": "kubectl-debug", "time": "2026-01-01T12:00:30Z", "fieldsV1": owned}
    meta = {"name": "web-0", "creationTimestamp": "2026-01-01T12:00:00Z", "generation": 2, "managedFields": [entry]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": statuses}}


@pytest.mark.parametrize("kind", ["containers", "ephemeralContainers"])
def test_a_container_that_was_added_later_uses_its_objects_since_then(kind: str) -> None:
    assert read_user(with_late(kind=kind)).objects[CFG] == Since(at(30), at(40))


@pytest.mark.parametrize(
    ("started", "restarts", "since"),
    [(20, 0, Since(at(0), at(20))), (None, 0, Since(at(0))), (50, 1, Since(at(0), at(0)))],
)
def test_a_container_that_may_have_been_there_from_the_start_counts_since_then(
    started: int | None, restarts: int, since: Since
) -> None:
    """Its client wrote to the pod again later, for example another image: that is the only time that is recorded."""
    assert read_user(with_late(started=started, restarts=restarts)).objects[CFG] == since


@pytest.mark.parametrize("listed", [True, False])
def test_an_object_that_was_replaced_before_that_is_not_kept(*, listed: bool) -> None:
    """Its pod is older than the object, and so it looked as if it had the data of the one before."""
    node, late = Node(), read_user(with_late())
    if listed:
        with node.uses.listing():
            node.set("one", late)
    else:
        node.set("one", replace(late, objects={}))
        node.set("one", late)
    assert node.kept(20, ()) == ()
    assert ran_before(node.uses.of(CFG), at(20)) == ()
    assert node.kept(35, ()) == ("a",), "it used the older one for some seconds"


def test_a_container_that_waits_for_its_object_does_not_use_an_older_one() -> None:
    """The pod's other container ran before the object was created, and does not need it."""
    obj = with_late(started=40)
    obj["metadata"]["generation"] = 1  # nothing was added
    (use,) = (found := read_user(obj)).objects.values()
    assert use == Since(at(0), at(40))
    assert kept_of_pods([found], {CFG: ConfigObject(frozenset(), immutable=True, created=at(38))}) == {}


def test_of_two_containers_the_first_one_counts() -> None:
    obj = with_late()
    obj["spec"]["containers"][0]["env"] = [{"valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "a"}}}]
    assert read_user(obj).objects == {CFG: Since(at(0), at(1))}
