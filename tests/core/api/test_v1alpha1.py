"""Requests and pods out of any JSON, sound or not, and back."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.pod import ContainerKind, Pod, PodContainer, parse_pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import (
    FailurePolicy,
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StartTimes,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.api.v1alpha1 import parse_request, pins_to_json, status_to_json
from crrd.kubelet.restart_rules import RestartPolicy

PINNED = "crr.apps.kruise.io/pinned-containers"
UNREADY = "crr.apps.kruise.io/unready-acquired"


def sound() -> dict[str, Any]:
    return {
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ContainerRecreateRequest",
        "metadata": {
            "namespace": "shop",
            "name": "restart-app",
            "uid": "u-1",
            "resourceVersion": "17",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {
                "crr.apps.kruise.io/pod-uid": "p-1",
                "crr.apps.kruise.io/node-name": "node-1",
                "crr.apps.kruise.io/active": "true",
            },
            "annotations": {
                PINNED: json.dumps({"app": {"containerID": "containerd://c1", "restartCount": 2}}),
                UNREADY: "2026-01-02T03:04:06Z",
                "crr.apps.kruise.io/sync-container-statuses": "{not json",
            },
            "managedFields": [{}],
        },
        "spec": {
            "podName": "web-0",
            "containers": [
                {
                    "name": "app",
                    "statusContext": {"containerID": "containerd://c1", "restartCount": 2},
                    "preStop": "whatever",
                    "ports": 3,
                },
                {"name": "log"},
            ],
            "strategy": {
                "failurePolicy": "Ignore",
                "orderedRecreate": True,
                "forceRecreate": True,
                "terminationGracePeriodSeconds": 7,
                "unreadyGracePeriodSeconds": 5.0,
                "minStartedSeconds": 4,
            },
            "activeDeadlineSeconds": 3,
            "ttlSecondsAfterFinished": 0,
            "somethingNew": {},
        },
        "status": {
            "phase": "Recreating",
            "message": "one of two",
            "containerRecreateStates": [
                {"name": "app", "phase": "Recreating", "message": "stopping", "isKilled": True},
                {"name": "log"},
            ],
        },
    }


def test_reads_every_field() -> None:
    assert parse_request(sound()) == Request(
        namespace="shop",
        name="restart-app",
        uid="u-1",
        resource_version="17",
        created="2026-01-02T03:04:05Z",
        pod_name="web-0",
        pod_uid="p-1",
        node_name="node-1",
        containers=(RequestedContainer("app", Pin("containerd://c1", 2)), RequestedContainer("log")),
        strategy=Strategy(
            failure_policy=FailurePolicy.IGNORE,
            ordered=True,
            force=True,
            grace_seconds=7,
            unready_grace_seconds=5,
            min_started_seconds=4,
        ),
        pinned={"app": Pin("containerd://c1", 2)},
        unready_acquired=True,
        deadline_seconds=3,
        ttl_seconds=0,
        status=Status(
            phase=RequestPhase.RECREATING,
            states=(RecreateState("app", StatePhase.RECREATING, "stopping", is_killed=True), RecreateState("log")),
            message="one of two",
        ),
    )


def test_an_image_is_read_and_needs_a_request_of_its_own() -> None:
    obj = sound()
    obj["spec"]["containers"] = [{"name": "app", "image": "app:2"}]
    found = parse_request(obj)
    assert (found.containers, found.for_image) == ((RequestedContainer("app", None, "app:2"),), True)
    assert not found.active
    obj["metadata"]["labels"]["crr.apps.kruise.io/active"] = "image"
    assert parse_request(obj).active
    obj["spec"]["containers"].append({"name": "log"})
    assert parse_request(obj).error == "spec.containers must name one container, because the request has an image"


def test_the_least_that_admission_lets_through() -> None:
    obj = {
        "metadata": {"namespace": "n", "name": "r", "uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"podName": "p", "containers": [{"name": "c", "statusContext": None}], "strategy": None},
        "status": None,
    }
    assert parse_request(obj) == Request(
        namespace="n",
        name="r",
        uid="u",
        resource_version="",
        created="",
        pod_name="p",
        pod_uid="",
        node_name="",
        containers=(RequestedContainer("c"),),
        active=False,
        deleting=True,
    )


def put(obj: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *parents, last = path.split("/")
    here: Any = obj
    for key in parents:
        here = here[int(key) if key.isdigit() else key]
    here[int(last) if last.isdigit() else last] = value
    return obj


LONG = "x" * 100
WRONG = [
    ("metadata", [], "metadata must be an object"),
    ("metadata/name", "", "metadata.name must be a string that is not empty"),
    ("metadata/uid", None, "metadata.uid must be a string that is not empty"),
    ("metadata/namespace", 3, "metadata.namespace must be a string"),
    ("metadata/resourceVersion", 3, "metadata.resourceVersion must be a string"),
    ("metadata/labels", "x", "metadata.labels must be an object"),
    ("metadata/labels", {"crr.apps.kruise.io/pod-uid": 4}, "the label crr.apps.kruise.io/pod-uid must be a string"),
    ("metadata/annotations", [], "metadata.annotations must be an object"),
    ("spec", 1, "spec must be an object"),
    ("spec/podName", None, "spec.podName must be a string that is not empty"),
    ("spec/podName", ["web-0"], "spec.podName must be a string"),
    *(
        ("spec/podName", name, f"spec.podName must be a pod's name, made of a-z, 0-9, '-' and '.', not {shown}")
        for name, shown in (("web,x", "'web,x'"), ("web=", "'web='"), ("Web", "'Web'"), ("web-0\n", "'web-0\\n'"))
    ),
    ("spec/containers", None, "spec.containers must name at least one container"),
    ("spec/containers", {}, "spec.containers must be a list"),
    ("spec/containers/0", "app", "spec.containers[0] must be an object"),
    ("spec/containers/0/name", 5, "spec.containers[0].name must be a string"),
    ("spec/containers/1/name", "", "spec.containers[1].name must be a string that is not empty"),
    (
        "spec/containers/1/name",
        "app",
        "spec.containers[1].name must not contain 'app' twice",
    ),
    ("spec/containers/0/statusContext", 1, "spec.containers[0].statusContext must be an object"),
    (
        "spec/containers/0/statusContext/containerID",
        "c1",
        "spec.containers[0].statusContext.containerID must look like containerd://ID, not 'c1'",
    ),
    (
        "spec/containers/0/statusContext/containerID",
        "://",
        "spec.containers[0].statusContext.containerID must look like containerd://ID, not '://'",
    ),
    (
        "spec/containers/0/statusContext/containerID",
        None,
        "spec.containers[0].statusContext.containerID must look like containerd://ID, not null",
    ),
    (
        "spec/containers/0/statusContext/restartCount",
        -1,
        "spec.containers[0].statusContext.restartCount must be a whole number from 0 to 2147483647, not -1",
    ),
    ("spec/strategy", [], "spec.strategy must be an object"),
    ("spec/strategy/failurePolicy", "Retry", "spec.strategy.failurePolicy must be Fail or Ignore, not 'Retry'"),
    ("spec/strategy/failurePolicy", ["Fail"], "spec.strategy.failurePolicy must be Fail or Ignore, not a list"),
    ("spec/strategy/failurePolicy", {"a": 1}, "spec.strategy.failurePolicy must be Fail or Ignore, not an object"),
    (
        "spec/strategy/failurePolicy",
        LONG,
        f"spec.strategy.failurePolicy must be Fail or Ignore, not {LONG[:60]!r}",
    ),
    ("spec/strategy/orderedRecreate", "true", "spec.strategy.orderedRecreate must be true or false"),
    ("spec/strategy/forceRecreate", 1, "spec.strategy.forceRecreate must be true or false"),
    (
        "spec/strategy/terminationGracePeriodSeconds",
        True,
        "spec.strategy.terminationGracePeriodSeconds must be a whole number from 0 to 9223372036854775807, not true",
    ),
    (
        "spec/strategy/unreadyGracePeriodSeconds",
        1.5,
        "spec.strategy.unreadyGracePeriodSeconds must be a whole number from 0 to 9223372036854775807, not 1.5",
    ),
    (
        "spec/strategy/minStartedSeconds",
        2**31,
        "spec.strategy.minStartedSeconds must be a whole number from 0 to 2147483647, not 2147483648",
    ),
    (
        "spec/strategy/minStartedSeconds",
        float("nan"),
        "spec.strategy.minStartedSeconds must be a whole number from 0 to 2147483647, not NaN",
    ),
    (
        "spec/activeDeadlineSeconds",
        2,
        "spec.activeDeadlineSeconds must be a whole number from 3 to 9223372036854775807, not 2",
    ),
    (
        "spec/ttlSecondsAfterFinished",
        1e300,
        "spec.ttlSecondsAfterFinished must be a whole number from 0 to 2147483647, not 1e+300",
    ),
    ("status", "Recreating", "status must be an object"),
    ("status/phase", "Resting", "status.phase must be Pending, Recreating or Completed, not 'Resting'"),
    ("status/message", 1, "status.message must be a string"),
    ("status/completionTime", 1, "status.completionTime must be a string"),
    ("status/containerRecreateStates", {}, "status.containerRecreateStates must be a list"),
    (
        "status/containerRecreateStates/1/name",
        None,
        "status.containerRecreateStates[1].name must be a string that is not empty",
    ),
    (
        "status/containerRecreateStates/0/phase",
        "Gone",
        "status.containerRecreateStates[0].phase must be Pending, Recreating, Succeeded or Failed, not 'Gone'",
    ),
    ("status/conditions", "odd", ""),
    ("status/conditions", ["odd", {"type": 4}], ""),
]


@pytest.mark.parametrize(("path", "value", "sentence"), WRONG)
def test_names_the_field_that_is_wrong(path: str, value: object, sentence: str) -> None:
    assert parse_request(put(sound(), path, value)).error == sentence


def test_something_that_is_no_object_at_all() -> None:
    assert parse_request(None).error == "metadata.namespace must be a string that is not empty"  # type: ignore[arg-type]  # that is the point
    assert parse_request([1]).error == "the object must be an object"  # type: ignore[arg-type]  # that is the point


def test_the_first_thing_wrong_is_named_and_what_can_be_read_is_there() -> None:
    obj = put(put(sound(), "spec/containers/0/statusContext", "odd"), "spec/strategy", "odd")
    request = parse_request(put(obj, "spec/containers/1/name", 5))
    assert request.error == "spec.containers[0].statusContext must be an object"
    assert request.containers == (RequestedContainer("app"),)
    assert request.key == "shop/restart-app"
    assert request.strategy == Strategy()


@pytest.mark.parametrize("count", [{}, {"restartCount": None}, {"restartCount": 0}])
def test_an_instance_without_a_count_was_never_restarted(count: dict[str, Any]) -> None:
    context = {"containerID": "containerd://c1", **count}
    obj = put(sound(), "spec/containers/0/statusContext", context)
    obj["metadata"]["annotations"][PINNED] = json.dumps({"app": context})
    request = parse_request(obj)
    assert request.error == ""
    assert request.containers[0].context == request.pinned["app"] == Pin("containerd://c1", 0)


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        ("{", f"the annotation {PINNED} must be a JSON object of containers"),
        ("[" * 100_000, f"the annotation {PINNED} must be a JSON object of containers"),
        ("1" * 5_000, f"the annotation {PINNED} must be a JSON object of containers"),
        ("[]", f"the annotation {PINNED} must be a JSON object of containers"),
        (7, f"the annotation {PINNED} must be a string"),
        ('{"app": 1}', f"the annotation {PINNED}: 'app' must be an object"),
        (
            '{"app": {"containerID": "c1"}}',
            f"the annotation {PINNED}: 'app'.containerID must look like containerd://ID, not 'c1'",
        ),
    ],
)
def test_pins_that_cannot_be_read(annotation: object, sentence: str) -> None:
    obj = sound()
    obj["metadata"]["annotations"][PINNED] = annotation
    request = parse_request(obj)
    assert (request.error, request.spoilt, request.pinned) == (sentence, True, {})
    del obj["spec"]["podName"]
    assert not parse_request(obj).spoilt


@pytest.mark.parametrize("entry", [{"containerID": "containerd://c2", "stopSentAt": "2026-01-02T03:04:05Z"}, 7])
def test_pins_of_containers_that_the_request_does_not_name_are_nobodys(entry: object) -> None:
    obj = sound()
    pins = {"app": {"containerID": "containerd://c1"}, **{f"other-{number}": entry for number in range(1000)}}
    obj["metadata"]["annotations"][PINNED] = json.dumps(pins)
    request = parse_request(obj)
    assert (request.pinned, request.start_times, request.error) == ({"app": Pin("containerd://c1", 0)}, {}, "")


@pytest.mark.parametrize("odd", [7, None, True, "", "yesterday", "2026-01-02", "2026-13-40T99:00:00Z", ["x"], {}])
def test_odd_times_of_what_was_begun_are_as_if_absent(odd: object) -> None:
    obj = sound()
    entry = {"containerID": "containerd://c1", "restartCount": 3}
    for times, start_times in (
        ({"hookStartedAt": odd, "stopSentAt": odd}, {}),
        (
            {"hookStartedAt": odd, "stopSentAt": "2026-01-02T03:04:05Z"},
            {"app": StartTimes(stop="2026-01-02T03:04:05Z")},
        ),
        (
            {"hookStartedAt": "2026-01-02T03:04:05Z", "stopSentAt": odd},
            {"app": StartTimes(hook="2026-01-02T03:04:05Z")},
        ),
    ):
        obj["metadata"]["annotations"][PINNED] = json.dumps({"app": {**entry, **times}})
        request = parse_request(obj)
        assert request.error == ""
        assert request.pinned == {"app": Pin("containerd://c1", 3)}
        assert request.start_times == start_times


@pytest.mark.parametrize("mark", ["2026-01-02T03:04:06Z", "2026-01-02T03:04:06.123456789+02:00"])
def test_mark_unready_acquired(mark: str) -> None:
    obj = sound()
    obj["metadata"]["annotations"][UNREADY] = mark
    assert parse_request(obj).unready_acquired
    del obj["spec"]["strategy"]["unreadyGracePeriodSeconds"]
    assert parse_request(obj).unready_acquired


@pytest.mark.parametrize("mark", ["now", 5, "2026-13-02T03:04:06Z", "2026-01-02 03:04:06Z", "2026-01-02T03:04:06"])
def test_malformed_mark_matters_only_with_a_grace_period(mark: object) -> None:
    obj = sound()
    obj["metadata"]["annotations"][UNREADY] = mark
    request = parse_request(obj)
    assert request.error.startswith(f"the annotation {UNREADY} must be an RFC 3339 time, not ")
    assert (request.spoilt, request.unready_acquired) == (True, False)
    del obj["spec"]["strategy"]["unreadyGracePeriodSeconds"]
    request = parse_request(obj)
    assert request.error == ""
    assert not request.unready_acquired


@pytest.mark.parametrize("name", ["PreRecreateGrace", "PodUnreadyAcquired"])
@pytest.mark.parametrize(("status", "acquired"), [("True", True), ("False", False)])
def test_condition_of_newer_managers(status: str, acquired: bool, name: str) -> None:
    obj = sound()
    obj["metadata"]["annotations"][UNREADY] = ""
    obj["status"]["conditions"] = [{"type": "Other"}, {"type": name, "status": status}]
    assert parse_request(obj).unready_acquired is acquired


@pytest.mark.parametrize(("label", "active"), [("true", True), ("false", False), (None, False)])
def test_active_is_a_label(label: str | None, active: bool) -> None:
    obj = sound()
    obj["metadata"]["labels"]["crr.apps.kruise.io/active"] = label
    assert parse_request(obj).active is active


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["true", "app"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def paths(node: object, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [prefix] if prefix else []
    entries: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in entries:
        found += paths(value, (*prefix, key))
    return found


def replaced(obj: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    result = copy.deepcopy(obj)
    here: Any = result
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return result


def sound_pod() -> dict[str, Any]:
    return {
        "metadata": {"namespace": "shop", "name": "web-0", "uid": "p-1"},
        "spec": {
            "restartPolicy": "OnFailure",
            "readinessGates": [{"conditionType": "other"}, {"conditionType": "KruisePodReady"}],
            "initContainers": [
                {"name": "setup", "restartPolicy": "Never"},
                {"name": "proxy", "restartPolicy": "Always"},
            ],
            "containers": [
                {"name": "app"},
                {"name": "once", "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]},
                {"name": "log", "restartPolicy": "Always"},
                {"name": "starting"},
            ],
            "ephemeralContainers": [{"name": "debug"}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "containerStatuses": [
                {
                    "name": "app",
                    "containerID": "containerd://c1",
                    "ready": True,
                    "started": True,
                    "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
                },
                {
                    "name": "log",
                    "containerID": "containerd://c3",
                    "ready": False,
                    "started": False,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                    "lastState": {"terminated": {"exitCode": 137, "finishedAt": "2026-01-02T03:03:00Z"}},
                    "restartCount": 4,
                },
                {"name": "once", "state": {"terminated": {"exitCode": 0}}},
            ],
            "initContainerStatuses": [
                {"name": "proxy", "containerID": "containerd://c4", "ready": True, "state": {"running": {}}}
            ],
        },
    }


@given(JSON)
def test_any_json_at_all_is_read(value: Any) -> None:
    assert parse_request(value).error
    assert isinstance(parse_pod(value), Pod)


@given(st.data())
def test_any_json_in_any_place_of_a_request_is_read(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(paths(sound())))
    request = parse_request(replaced(sound(), path, data.draw(JSON)))
    if path[:2] != ("spec", "containers") and path != ("spec",):
        assert [container.name for container in request.containers] == ["app", "log"]
    if path[:2] == ("spec", "strategy") or path[0] == "status":
        assert request.key == "shop/restart-app"
    json.dumps(status_to_json(request.status))


@given(st.data())
def test_any_json_in_any_place_of_a_pod_is_read(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(paths(sound_pod())))
    pod = parse_pod(replaced(sound_pod(), path, data.draw(JSON)))
    if path[0] == "status":
        assert pod.containers.keys() == parse_pod(sound_pod()).containers.keys()


NAMES = st.text(min_size=1, max_size=8)
STATES = st.builds(
    RecreateState,
    NAMES,
    st.sampled_from(StatePhase),
    st.text(max_size=8),
    st.booleans(),
    st.sampled_from(Reason),
)
STATUSES = st.builds(
    Status,
    st.sampled_from(RequestPhase),
    st.lists(STATES, max_size=3).map(tuple),
    st.text(max_size=8),
    st.text(),
    st.sampled_from(Reason),
)
PINS = st.builds(Pin, st.from_regex(r"[a-z]+://[a-z0-9]+", fullmatch=True), st.integers(0, 2**31 - 1))


@given(STATUSES)
def test_a_status_comes_back_as_it_went(status: Status) -> None:
    obj = sound()
    obj["status"] = json.loads(json.dumps(status_to_json(status)))
    found = parse_request(obj).status
    assert found == status
    # reasons take no part in that comparison
    assert found.reason is status.reason
    assert [state.reason for state in found.states] == [state.reason for state in status.states]
    assert parse_request(obj).error == ""


@pytest.mark.parametrize("odd", ["BecauseItIsSo", "podgone", 7, None, ["PodGone"], {}])
def test_a_reason_of_another_program_is_none(odd: object) -> None:
    obj = sound()
    obj["status"] = {
        "phase": "Completed",
        "reason": odd,
        "containerRecreateStates": [{"name": "app", "phase": "Failed", "reason": odd}],
    }
    request = parse_request(obj)
    assert (request.error, request.status.reason, request.status.states[0].reason) == ("", Reason.NONE, Reason.NONE)


def test_a_change_of_the_reason_alone_is_no_change() -> None:
    assert Status(reason=Reason.POD_GONE) == Status(reason=Reason.POD_REPLACED)
    assert RecreateState("app", reason=Reason.POD_GONE) == RecreateState("app")


TIMES = st.sampled_from(["", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05+02:00"])
START_TIMES = st.builds(StartTimes, TIMES, TIMES)


@pytest.mark.parametrize(
    ("found", "unpinned"), [({"app": Pin("c://1")}, False), ({}, True), ({"app": Pin("c://2")}, True)]
)
def test_pins_that_another_client_changes_are_written_again(found: dict[str, Pin], unpinned: bool) -> None:
    pins = {"app": Pin("c://1")}
    request = replace(parse_request(sound()), pinned=found).with_pins_of(replace(parse_request(sound()), pinned=pins))
    assert (request.pinned, request.unpinned) == (pins, unpinned)


@given(st.dictionaries(NAMES, st.tuples(PINS, START_TIMES), max_size=3))
def test_pins_come_back_as_they_went(entries: dict[str, tuple[Pin, StartTimes]]) -> None:
    obj = sound()
    obj["spec"]["containers"] = [{"name": name} for name in dict.fromkeys(("app", *entries))]
    pins = {name: pin for name, (pin, _) in entries.items()}
    start_times = {name: times for name, (_, times) in entries.items()}
    obj["metadata"]["annotations"][PINNED] = pins_to_json(pins, start_times)
    request = parse_request(obj)
    assert request.pinned == pins
    assert request.start_times == {name: times for name, times in start_times.items() if times != StartTimes()}
    assert request.error == ""


def test_what_has_begun_once_does_not_begin_later() -> None:
    assert StartTimes("2", "4").after(StartTimes()) == StartTimes("2", "4")
    assert StartTimes("2", "4").after(StartTimes("1", "3")) == StartTimes("1", "3")
    assert StartTimes().after(StartTimes("1", "3")) == StartTimes("1", "3")


def test_what_was_begun_with_no_pinned_instance_is_not_written() -> None:
    assert pins_to_json({}, {"app": StartTimes("2026-01-02T03:04:05Z")}) == "{}"


def test_status_leaves_out_what_is_empty() -> None:
    status = Status(
        RequestPhase.COMPLETED,
        (
            RecreateState("a", StatePhase.SUCCEEDED, is_killed=True),
            RecreateState("b", StatePhase.FAILED, "gone", reason=Reason.POD_GONE),
        ),
        completion_time="2026-01-02T03:04:05Z",
        reason=Reason.DEADLINE,
    )
    assert status_to_json(status) == {
        "phase": "Completed",
        "completionTime": "2026-01-02T03:04:05Z",
        "reason": "DeadlineExceeded",
        "containerRecreateStates": [
            {"name": "a", "phase": "Succeeded", "isKilled": True},
            {"name": "b", "phase": "Failed", "message": "gone", "reason": "PodGone"},
        ],
    }
    assert status_to_json(Status(RequestPhase.PENDING, message="waits")) == {
        "phase": "Pending",
        "message": "waits",
        "containerRecreateStates": [],
    }


def test_pins_are_the_same_text_in_any_order() -> None:
    pins = {"b": Pin("containerd://2", 1), "a": Pin("containerd://1")}
    expected = (
        '{"a":{"containerID":"containerd://1","restartCount":0},"b":{"containerID":"containerd://2","restartCount":1}}'
    )
    assert pins_to_json(pins) == expected


def test_a_static_pods_mirror_names_the_uid_on_the_node() -> None:
    mirror = sound_pod()
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0f1e", "kubernetes.io/config.hash": "0f1e"}
    assert parse_pod(mirror).runtime_uid == "0f1e"
    del mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"]
    assert parse_pod(mirror).runtime_uid == "p-1"


def test_reads_a_pod() -> None:
    pod = parse_pod(sound_pod())
    assert pod == Pod(
        namespace="shop",
        name="web-0",
        uid="p-1",
        readiness_gate=True,
        pod_ip="10.0.0.7",
        containers={
            "setup": PodContainer("setup", ContainerKind.INIT, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER),
            "proxy": PodContainer(
                "proxy",
                ContainerKind.SIDECAR,
                RestartPolicy.ALWAYS,
                container_id="containerd://c4",
                running=True,
                ready=True,
            ),
            "app": PodContainer(
                "app",
                restart_policy=RestartPolicy.ON_FAILURE,
                container_id="containerd://c1",
                running=True,
                ready=True,
                started=True,
                started_at="2026-01-02T03:04:05Z",
            ),
            "once": PodContainer(
                "once",
                restart_policy=RestartPolicy.ON_FAILURE,
                own_restart_policy=RestartPolicy.NEVER,
                restart_rules=({"action": "Restart"},),
                terminated=True,
                exit_code=0,
            ),
            "log": PodContainer(
                "log",
                restart_policy=RestartPolicy.ON_FAILURE,
                own_restart_policy=RestartPolicy.ALWAYS,
                container_id="containerd://c3",
                waiting_reason="CrashLoopBackOff",
                waiting_message="back-off 10s",
                restart_count=4,
                finished_at="2026-01-02T03:03:00Z",
                exit_code=137,
            ),
            "starting": PodContainer("starting", restart_policy=RestartPolicy.ON_FAILURE),
            "debug": PodContainer("debug", ContainerKind.EPHEMERAL, RestartPolicy.NEVER),
        },
    )


def test_reads_a_pod_that_has_next_to_nothing() -> None:
    obj = {
        "metadata": {"namespace": "n", "name": "p", "uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"containers": [{"name": "c"}, {"name": ""}, 4], "restartPolicy": "Sometimes"},
    }
    pod = parse_pod(obj)
    assert pod == Pod(
        namespace="n",
        name="p",
        uid="u",
        deleting=True,
        grace_ends="2026-01-02T03:04:05Z",
        phase="Pending",
        containers={"c": PodContainer("c")},
    )
