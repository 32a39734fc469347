"""The checks of `crrd doctor` and how their facts are read, where a whole installation does not show it."""

import inspect
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.reasons import Reason
from crrd.core.api.schema import FIELDS
from crrd.core.doctor import checks, restarts
from crrd.core.doctor.checks import CREATE, dropped_fields, examine
from crrd.core.doctor.facts import (
    Facts,
    LeaseSeen,
    NodeSeen,
    PodSeen,
    Trial,
    Webhook,
    is_complete,
    read_bound,
    read_desired,
    read_hooks,
    read_lease,
    read_node,
    read_other_name,
    read_pod,
    read_target,
    read_waiting,
)
from crrd.core.doctor.findings import Check, Finding, State, Topic

Json = dict[str, Any]
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NO = object()  # Stands for what could not be read
DAEMON = PodSeen("crrd-node/a", "worker-1", ready=True, why="", version="1", account="crrd-node:crrd-node")
BY_PATCH = replace(DAEMON, patches=True)
LEAN: dict[str, Any] = {"daemons": (), "managers": (BY_PATCH,)}
LEASE = LeaseSeen("worker-1", "worker-1", NOW, 40)
KRUISE = Webhook("m.kb.io", "kruise-mutating-webhook-configuration")
KYVERNO = Webhook("mutate.kyverno.svc-fail", "kyverno-resource-mutating-webhook-cfg")
OWN = (Webhook("mutate-crr.apps.kruise.io", "crrd"),)
DENIED = Trial(422, 'dry run: admission webhook "mutate-crr.apps.kruise.io" denied the request: pod not found')
KEEPS_ALL: Json = {"x-kubernetes-preserve-unknown-fields": True}
FACTS = Facts(
    version="v1.36.1",
    too_old=False,
    now=NOW,
    here=NOW,
    crd={"spec": {"versions": [{"name": "v1beta1", "served": True, "schema": {"openAPIV3Schema": KEEPS_ALL}}]}},
    hooks=(KRUISE,),
    trial=Trial(400, 'admission webhook "m.kb.io" denied the request: pod not found'),
    valid_trial=Trial(201, pod="shop/web", admitted=True),
    unread={},
    policies=("x-crrd-node", "x-crrd-requests"),
    bound=("", "x-crrd-node", "x-crrd-requests"),
    managers=(),
    leader=None,
    daemons=(DAEMON,),
    nodes=(NodeSeen("worker-1", ready=True, has_runtime=True), NodeSeen("windows-1", ready=True, has_runtime=False)),
    node_leases=(LEASE, replace(LEASE, renewed=None), replace(LEASE, name="gone", renewed=NOW - timedelta(days=1))),
    waiting=(),
    accounts={"a:b": ()},
    kruise_daemons=(0,),
)
"""Beside OpenKruise, with a namePrefix."""


READY = [{"type": "Ready", "status": "True"}]


def found(check: Check, **changes: Any) -> list[Finding]:
    unread = {name: "forbidden" for name, value in changes.items() if value is NO}
    nothing = {name: None if name == "leader" else () for name in unread}
    facts = replace(FACTS, **{**changes, **nothing}, unread=unread)
    return [each for each in examine(facts) if each.check is check]


def test_all_is_well() -> None:
    assert [(each.check, each.state) for each in examine(FACTS)] == [(check, State.OK) for check in Check]


@pytest.mark.parametrize(
    ("check", "changes", "topic"),
    [
        (Check.ADMISSION, {"trial": Trial(403, "forbidden"), "missing_rights": NO}, Topic.UNREAD),
        (Check.ADMISSION, {"trial": Trial(403), "missing_rights": ("create nodes",)}, Topic.WEBHOOK_NOT_ASKED),
        (Check.ADMISSION, {"trial": Trial(403, "forbidden"), "missing_rights": (CREATE,)}, Topic.UNREAD),
        (Check.ADMISSION, {"trial": Trial(400, "no dry run"), "hooks": OWN}, Topic.UNREAD),
        (Check.ADMISSION, {"trial": Trial(422, "by a policy"), "hooks": OWN}, Topic.WEBHOOK_NOT_ASKED),
        (Check.ADMISSION, {"trial": DENIED, "hooks": OWN}, Topic.ADMISSION),
        (Check.ADMISSION, {"trial": DENIED, "hooks": NO}, Topic.ADMISSION),
        (Check.ADMISSION, {"hooks": OWN}, Topic.UNREAD),
        (Check.ADMISSION, {"trial": Trial(422), "hooks": ()}, Topic.WEBHOOK_NOT_ASKED),
        (Check.ADMISSION, {"trial": Trial(0, "x509")}, Topic.ADMISSION_FAILED),
        (Check.ADMISSION, {"trial": Trial(201)}, Topic.NOT_ADMITTED),
        (Check.ADMISSION, {"valid_trial": None}, Topic.ONLY_DENIES),
        (Check.ADMISSION, {"valid_trial": Trial(0, "timeout")}, Topic.ADMISSION_FAILED),
        (Check.ADMISSION, {"valid_trial": Trial(201)}, Topic.NOT_COMPLETED),
        (Check.ADMISSION, {"valid_trial": Trial(422, "a policy")}, Topic.REQUEST_DENIED),
        (Check.ADMISSION, {"valid_trial": Trial(403, "a quota")}, Topic.REQUEST_DENIED),
        (Check.ADMISSION, {"valid_trial": Trial(409, "exists")}, Topic.UNREAD),
        (Check.ADMISSION, {"by_version": {"v1beta1": (FACTS.trial, FACTS.valid_trial)}}, Topic.ADMISSION),
        (Check.ADMISSION, {"by_version": {"v1beta1": (Trial(409), None)}}, Topic.ADMISSION),
        (Check.ADMISSION, {"by_version": {"v1beta1": (Trial(201), None)}}, Topic.NOT_ADMITTED),
        (Check.ADMISSION, {"by_version": {"v1beta1": (FACTS.trial, Trial(201))}}, Topic.NOT_COMPLETED),
        (Check.ADMISSION, {"trial": Trial(201), "by_version": {"v1beta1": (Trial(201), None)}}, Topic.NOT_ADMITTED),
        (Check.CRD, {"policy_crd": NO}, Topic.UNREAD),
        (Check.CRD, {"policy_crd": {}}, Topic.CRD),
        (Check.CRD, {"policy_crd": {"spec": {}}, "hooks": OWN}, Topic.POLICY_FIELDS_DROPPED),
        (Check.POLICIES, {"hooks": NO}, Topic.POLICIES),
        (Check.POLICIES, {"bound": NO}, Topic.UNREAD),
        (Check.POLICIES, {**LEAN, "policies": (), "bound": ()}, Topic.POLICIES_MISSING),
        (Check.POLICIES, {**LEAN, "policies": ("crrd-requests",), "bound": ("crrd-requests",)}, Topic.POLICIES),
        (Check.MANAGER, {"hooks": NO}, Topic.NO_MANAGER),
        (Check.MANAGER, {"managers": (DAEMON,), "leader": NO}, Topic.MANAGER),
        (Check.MANAGER, {"managers": (DAEMON,), "leader": replace(LEASE, holder="")}, Topic.NO_LEADER),
        (Check.MANAGER, {"managers": (DAEMON,), "leader": replace(LEASE, renewed=None)}, Topic.NO_LEADER),
        (Check.DAEMONS, {"nodes": NO, "managers": NO}, Topic.DAEMONS),
        (Check.DAEMONS, LEAN, Topic.NONE_NEEDED),
        (Check.DAEMONS, {"daemons": (), "managers": (DAEMON,)}, Topic.NO_DAEMONS),
        (Check.RUNTIME, {"waiting": NO}, Topic.UNREAD),
        (Check.RESTARTS, {"crd": None}, Topic.BY_PATCHES),
        (Check.RESTARTS, {"trial": Trial(404), "crd": NO, "daemons": NO, "nodes": NO}, Topic.BY_PATCHES),
        (Check.RESTARTS, {"crd": NO}, Topic.BY_REQUESTS),
        (Check.RESTARTS, {"trial": Trial(404, 'namespaces "shop" not found')}, Topic.BY_REQUESTS),
        (Check.RESTARTS, {"crd": None, "missing_for_patches": ("patch pods",)}, Topic.NO_WAY),
        (Check.RESTARTS, {"missing_rights": (CREATE,), "missing_for_patches": ("patch pods",)}, Topic.NO_WAY),
        (Check.RESTARTS, {"missing_for_patches": ("patch pods",)}, Topic.BY_REQUESTS),
        (Check.RESTARTS, {"missing_rights": (CREATE,)}, Topic.BY_PATCHES),
        (Check.RESTARTS, {"missing_rights": ("delete pods",)}, Topic.BY_REQUESTS),
        (Check.RESTARTS, {"missing_rights": NO}, Topic.BY_REQUESTS),
        (Check.RESTARTS, {"daemons": NO}, Topic.UNREAD),
        (Check.RESTARTS, {"nodes": NO}, Topic.UNREAD),
        (Check.RESTARTS, {"daemons": ()}, Topic.BY_OTHERS),
        (Check.RESTARTS, LEAN, Topic.BY_MANAGER),
        (Check.RESTARTS, {"daemons": (replace(DAEMON, ready=False),)}, Topic.BY_BOTH),
        (Check.IMAGES, {"other_names": ("", "")}, Topic.NO_OTHER_NAMES),
        (Check.IMAGES, {"other_names": ("shop/web-1", "", "shop/web-0")}, Topic.OTHER_NAMES),
        (Check.IMAGES, {"other_names": NO}, Topic.UNREAD),
        (Check.CLOCKS, {"nodes": NO}, Topic.UNREAD),
        (Check.CLOCKS, {"nodes": NO, "here": NOW - timedelta(minutes=1)}, Topic.CLOCK_HERE),
        (Check.CLOCKS, {"node_leases": NO}, Topic.UNREAD),
        (Check.OPENKRUISE, {"kruise_daemons": NO}, Topic.UNREAD),
        (Check.OPENKRUISE, {"hooks": (*OWN, KYVERNO)}, Topic.NO_OPENKRUISE),
        (Check.WEBHOOKS, {"hooks": (KYVERNO,)}, Topic.NO_WEBHOOKS),
        (Check.MANAGER, {"hooks": (KYVERNO,), "managers": ()}, Topic.NO_MANAGER),
        (Check.OPENKRUISE, {"kruise_daemons": (3,), "daemons": ()}, Topic.OPENKRUISE_MANAGES),
        (Check.OPENKRUISE, {"kruise_daemons": (3,), "daemons": NO}, Topic.UNREAD),
    ],
)
def test_one_fact_differs(check: Check, changes: Json, topic: Topic) -> None:
    assert [each.topic for each in found(check, **changes)] == [topic]


ABSENT: dict[str, Any] = {"crd": None, "hooks": (), "managers": (), "daemons": (), "policies": (), "accounts": {}}


def test_where_nothing_is_installed_no_part_of_it_is_missed() -> None:
    facts = replace(FACTS, **ABSENT, trial=Trial(404, "404 page not found"))
    states = {each.topic for each in examine(facts) if each.state is not State.OK}
    assert states == {Topic.CRD_MISSING, Topic.NOT_INSTALLED}


@pytest.mark.parametrize("unread", ["crd", "hooks", "managers", "daemons"])
def test_what_cannot_be_read_may_be_installed(unread: str) -> None:
    facts = replace(FACTS, **ABSENT, unread={unread: "you may not list it"})
    assert Topic.NOT_INSTALLED not in {each.topic for each in examine(facts)}


def test_no_more_names_than_fit_a_line() -> None:
    nodes = tuple(NodeSeen(f"n{number}", ready=True, has_runtime=True) for number in range(5))
    (finding,) = found(Check.DAEMONS, nodes=nodes)
    assert finding.message == "no daemon on n0, n1, n2 and 2 more, so requests for pods there fail"


@pytest.mark.parametrize(
    ("labels", "misses"),
    [
        ({"kubernetes.io/os": "linux"}, True),
        ({"type": "virtual-kubelet"}, False),
        ({"eks.amazonaws.com/compute-type": "fargate"}, False),
        ({"eks.amazonaws.com/compute-type": "auto"}, True),
    ],
)
def test_a_virtual_node_needs_no_daemon(labels: Json, *, misses: bool) -> None:
    node = read_node({"metadata": {"name": "n", "labels": labels}, "status": {"conditions": READY}})
    topics = [each.topic for each in found(Check.DAEMONS, nodes=(*FACTS.nodes, node))]
    assert (Topic.NODES_WITHOUT in topics) is misses


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ("cri-o://1.34.8", True),
        ("cri-o://1.34.9", False),
        ("cri-o://1.34.10", False),
        ("cri-o://1.35.0", True),
        ("cri-o://1.35.2-1.rhaos4.22", True),
        ("cri-o://1.35.3", False),
        ("cri-o://1.35.12", False),
        ("cri-o://1.33.13", True),
        ("cri-o://1.29.4", True),
        ("cri-o://v1.9.0", True),
        ("cri-o://1.30.0-dev", True),
        ("cri-o://1.36.0", False),
        ("cri-o://1.350.0", False),
        ("cri-o://2.30.0", False),
        ("containerd://1.35.0", False),
        ("", False),
    ],
)
def test_a_runtime_that_can_crash_at_a_stop(version: str, *, warned: bool) -> None:
    info = {"operatingSystem": "linux", "containerRuntimeVersion": version}
    node = read_node({"metadata": {"name": "n"}, "status": {"conditions": READY, "nodeInfo": info}})
    topics = [each.topic for each in found(Check.RUNTIME, nodes=(*FACTS.nodes, node))]
    assert topics == [Topic.CRIO_PANICS if warned else Topic.RUNTIME]


def test_a_daemon_on_a_node_that_is_not_ready_is_not_blamed() -> None:
    away = (NodeSeen("worker-1", ready=False, has_runtime=True),)
    (finding,) = found(Check.DAEMONS, nodes=away, daemons=(replace(DAEMON, ready=False),))
    assert finding.topic is Topic.NODES_NOT_READY


def test_an_empty_schema_drops_the_whole_objects() -> None:
    assert [each.path for each in dropped_fields({}, FIELDS)] == ["spec", "status"]
    assert dropped_fields(KEEPS_ALL, FIELDS) == []
    assert dropped_fields({"properties": {"spec": KEEPS_ALL, "status": KEEPS_ALL}}, FIELDS) == []


def test_what_other_programs_use_may_be_missing() -> None:
    leaf: Json = {"properties": {}}
    for path in FIELDS:
        node = leaf
        for part in path.split("."):
            node = node.setdefault("properties", {}).setdefault(part.removesuffix("[]"), {})
            if part.endswith("[]"):
                node = node.setdefault("items", {})
    assert dropped_fields(leaf, FIELDS) == []
    del leaf["properties"]["status"]["properties"]["conditions"]
    assert dropped_fields(leaf, FIELDS) == []


def test_nothing_raises_for_odd_objects() -> None:
    odd: Json = {"metadata": 1, "spec": [], "status": "x", "webhooks": [{"rules": [3]}]}
    assert read_hooks(odd) == ()
    assert read_pod(odd) == PodSeen("/", "", ready=False, why="", version="", account=":default")
    assert read_node(odd) == NodeSeen("", ready=False, has_runtime=True)
    assert read_lease(odd) == LeaseSeen("", "", None, 0.0)
    assert read_waiting(odd) == ("", frozenset({""}))
    assert read_bound(odd) == ""
    assert read_desired(odd) == 0
    assert read_target(odd) is None
    assert not is_complete(odd)


ANY_CODE = {"operator": "NotIn", "values": [1]}


def running_pod(**changes: Any) -> Json:
    """A pod with a container that can be recreated. `changes` are fields of the container, its status or the pod."""
    status = {"name": "app", "containerID": "containerd://1", "state": {"running": {}}, **changes.pop("status", {})}
    containers = [{"name": "app", **changes.pop("container", {})}]
    spec = {"containers": containers, "nodeName": "n1", **changes.pop("spec", {})}
    phase = {"phase": "Running", "containerStatuses": [status], **changes.pop("pod_status", {})}
    return {"metadata": {"name": "web", **changes}, "spec": spec, "status": phase}


@pytest.mark.parametrize(
    "changes",
    [
        {"deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"pod_status": {"phase": "Succeeded"}},
        {"status": {"containerID": ""}},
        {"status": {"state": {"waiting": {}}}},
        {"spec": {"restartPolicy": "Never"}},
        {"spec": {"nodeName": "n" * 64}},
        {"labels": {"leaderworkerset.sigs.k8s.io/name": "llm"}},
        {"container": {"restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": ANY_CODE}]}},
    ],
)
def test_a_request_is_tried_for_what_can_be_recreated(changes: Json) -> None:
    assert read_target(running_pod()) == ("web", "app")
    assert read_target(running_pod(**changes)) is None


def test_an_admitted_request_has_all_that_a_daemon_needs() -> None:
    labels = {f"crr.apps.kruise.io/{name}": name for name in ("pod-uid", "node-name")}
    labels["crr.apps.kruise.io/active"] = "true"
    containers = [{"name": "app", "statusContext": {"containerID": "containerd://1"}}]
    made: Json = {"metadata": {"labels": labels}, "spec": {"podName": "web", "containers": containers}}
    assert is_complete(made)
    for name in labels:
        rest = {key: value for key, value in labels.items() if key != name}
        assert not is_complete({**made, "metadata": {"labels": rest}})
    assert not is_complete({**made, "spec": {"podName": "web", "containers": [{"name": "app"}]}})


def test_a_reason_that_the_crd_has_pruned_is_read_from_its_message() -> None:
    message = Reason.RUNTIME_UNAVAILABLE.say(error="connection refused")
    known = Reason.RUNTIME_UNAVAILABLE.value
    pruned: Json = {"phase": "Recreating", "message": message}
    assert read_waiting({"status": pruned}) == ("", frozenset({known}))
    assert read_waiting({"status": {"containerRecreateStates": [pruned]}}) == ("", frozenset({"", known}))


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry:5000/a/crrd:0.1.0", "0.1.0"),
        ("crrd:0.1.0@sha256:ab", "0.1.0"),
        ("registry:5000/crrd@sha256:ab", "sha256:ab"),
        ("crrd", ""),
    ],
)
def test_the_version_of_an_image(image: str, version: str) -> None:
    assert read_pod({"spec": {"containers": [{"image": image}]}}).version == version


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {
                "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
                "conditions": [{"type": "PodScheduled", "status": "True"}],
            },
            "ImagePullBackOff",
        ),
        ({"reason": "Evicted"}, "Evicted"),
        (
            {
                "conditions": [
                    {"type": "Ready"},
                    {"type": "PodScheduled", "status": "False", "message": "0/2 nodes fit"},
                ]
            },
            "0/2 nodes fit",
        ),
        ({}, ""),
    ],
)
def test_why_a_pod_is_not_ready(status: Json, why: str) -> None:
    assert read_pod({"status": status}).why == why


@pytest.mark.parametrize(
    ("container", "patches"),
    [
        ({"args": ["manager", "--via", "patch"]}, True),
        ({"command": ["crrd", "manager", "--via=patch"]}, True),
        ({"env": [{"name": "A", "value": "b"}, {"name": "CRRD_VIA", "value": "patch"}]}, True),
        ({"args": ["manager", "--via", "daemon"], "env": [{"name": "CRRD_VIA", "value": "daemon"}]}, False),
        ({}, False),
    ],
)
def test_a_manager_that_restarts_by_patches(container: Json, patches: bool) -> None:
    assert read_pod({"spec": {"containers": [{"image": "crrd"}, container]}}).patches is patches


def test_the_way_of_each_node_in_one_line() -> None:
    nodes = tuple(NodeSeen(f"n{number}", ready=True, has_runtime=number < 9) for number in range(10))
    daemons = tuple(replace(DAEMON, node=f"n{number}", ready=number != 1) for number in range(4))
    (finding,) = found(Check.RESTARTS, nodes=nodes, daemons=daemons)
    offers, down = "3 of 9 nodes offer requests and patches, the others patches only", "n1 (its daemon is not ready)"
    assert finding.message == f"{offers}: {down}, n4, n5 and 3 more"
    (finding,) = found(Check.RESTARTS, missing_rights=(CREATE, "list containerrecreaterequests.apps.kruise.io"))
    assert "because you may not create containerrecreaterequests.apps.kruise.io and list " in finding.message


def test_a_pod_whose_image_has_another_name() -> None:
    names = ["app@sha256:1"]
    record = {"version": 1, "containers": [{"name": "app", "before": "app:1", "given": names[0]}]}
    meta = {"namespace": "shop", "name": "web-0", "annotations": {ANNOTATION_PATCHED: json.dumps(record)}}
    status = {"containerStatuses": [{"name": "app", "imageID": names[0]}]}

    def read(image: str) -> str:
        return read_other_name(
            {"metadata": meta, "spec": {"containers": [{"name": "app", "image": image}]}, "status": status}
        )

    assert [read(image) for image in (names[0], "app:1", "app:2")] == ["shop/web-0", "", ""]
    (finding,) = found(Check.IMAGES, other_names=("shop/web-1", "", "shop/web-0"))
    assert "since a restart by a patch: 2, for example shop/web-0; it is the same image" in finding.message
    assert finding.advice == "to see the names: crrd explain pod/web-0 -n shop"


def test_each_row_of_the_table_is_a_result_of_a_check() -> None:
    """Each line of the checks is run by some test."""
    source = inspect.getsource(checks) + inspect.getsource(restarts)
    assert [topic for topic in Topic if not re.search(rf"\bTopic\.{topic.name}\b", source)] == []
