"""What the manager keeps of requests and pods, read from their Kubernetes shape."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.gate import NO_CONDITION, Readiness
from crrd.core.api.pod import PodMeta, parse_meta, parse_pod
from crrd.core.api.time import after, parse_time, rfc3339
from crrd.core.api.types import FINALIZER, RequestPhase, Status
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.lifecycle.steps import Steps, next_steps

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_a_request_is_read() -> None:
    view = parse_request(
        {
            "metadata": {"namespace": "ns", "name": "r", "uid": "u", "finalizers": ["a", FINALIZER]},
            "spec": {
                "podName": "p",
                "containers": [{"name": "app"}],
                "activeDeadlineSeconds": 30,
                "ttlSecondsAfterFinished": 0,
            },
        }
    )
    assert (view.deadline_seconds, view.ttl_seconds, view.finalizers) == (30, 0, ("a", FINALIZER))
    assert view.has_finalizer
    assert view.key == "ns/r"
    assert view.error == ""


def test_numbers_that_cannot_be_read_count_as_none() -> None:
    view = parse_request({"spec": {"activeDeadlineSeconds": "soon", "ttlSecondsAfterFinished": -1}})
    assert (view.deadline_seconds, view.ttl_seconds, view.has_finalizer) == (None, None, False)


def test_a_pod_is_read() -> None:
    pod = {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"readinessGates": [{"conditionType": "KruisePodReady"}]},
        "status": {"phase": "Failed", "conditions": [{"type": "KruisePodReady", "status": "True"}]},
    }
    assert parse_meta(pod) == PodMeta("ns", "p", "u", True, "Failed", True, Readiness("True"), "2026-01-01T00:00:00Z")
    assert parse_meta(pod).key == "ns/p"
    assert parse_meta({**pod, "spec": {}}).readiness == NO_CONDITION


@pytest.mark.parametrize(
    ("spec", "matters"),
    [
        ({}, False),
        ({"restartPolicy": "Always"}, True),
        ({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}, True),
    ],
    ids=["the pod's policy", "its own policy", "its own rules"],
)
def test_whether_kubelets_version_matters_for_a_container(spec: dict[str, Any], matters: bool) -> None:
    pod = parse_pod({"spec": {"containers": [{"name": "app", **spec}]}})
    assert pod.containers["app"].version_matters is matters


@pytest.mark.parametrize(
    ("env", "injected"),
    [
        ([{"name": "IS_INJECTED", "value": "true"}], True),
        ([{"name": "IS_INJECTED", "value": "false"}, {"name": "OTHER", "value": "true"}, 4], False),
        ("none", False),
    ],
)
def test_whether_a_sidecar_set_has_injected_a_container(env: object, *, injected: bool) -> None:
    spec = {"containers": [{"name": "app", "env": env}]}
    of_set = {"annotations": {"kruise.io/sidecarset-hash": "{}"}}
    assert parse_pod({"metadata": of_set, "spec": spec}).containers["app"].injected is injected
    assert not parse_pod({"spec": spec}).containers["app"].injected, "a variable of the user's own"


def test_of_a_completed_request_only_little_is_kept() -> None:
    obj = {
        "metadata": {"namespace": "ns", "name": "r", "uid": "u", "labels": {"crr.apps.kruise.io/active": "true"}},
        "spec": {"podName": "p", "containers": [{"name": "app"}], "ttlSecondsAfterFinished": 3},
        "status": {"phase": "Recreating", "containerRecreateStates": [{"name": "app", "phase": "Recreating"}]},
    }
    served = parse_request(obj)
    assert served.slimmed() is served
    ended = parse_request(
        {**obj, "status": {"phase": "Completed", "message": "m", "completionTime": "2026-01-01T00:00:00Z"}}
    )
    kept = ended.slimmed()
    assert kept.containers == ()
    assert kept.status == Status(RequestPhase.COMPLETED, completion_time="2026-01-01T00:00:00Z")
    now = datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert next_steps(kept, None, now) == next_steps(ended, None, now)


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        ({}, True),
        ({"metadata": {"labels": {"crr.apps.kruise.io/active": "true"}}}, False),
        ({"metadata": {"finalizers": [FINALIZER]}}, False),
        ({"spec": {"ttlSecondsAfterFinished": 3}}, False),
        ({"status": {"phase": "Recreating"}}, False),
    ],
)
def test_of_a_settled_request_next_to_nothing_is_kept(changes: dict[str, Any], *, settled: bool) -> None:
    plain: dict[str, Any] = {
        "metadata": {"namespace": "ns", "name": "r", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"podName": "p", "containers": [{"name": "app"}]},
        "status": {"phase": "Completed"},
    }
    request = parse_request({key: {**value, **changes.get(key, {})} for key, value in plain.items()})
    assert request.settled is settled
    kept = request.slimmed()
    assert (kept.settled, kept.key, kept.pod_key, kept.uid, kept.resource_version) == (
        settled,
        "ns/r",
        "ns/p",
        "u",
        "7",
    )
    now = datetime(2026, 1, 1, tzinfo=UTC)
    if settled:
        assert next_steps(kept, None, now) == next_steps(request, None, now) == Steps()


@given(JSON, JSON, JSON)
def test_any_json_is_read(metadata: object, spec: object, status: object) -> None:
    shape = {"metadata": metadata, "spec": spec, "status": status}
    parse_request(shape)
    parse_meta(shape)


FAR = ["0001-01-01T00:00:00+14:00", "9000-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"]
"""Times that have no UTC, or to which a duration cannot be added."""


@pytest.mark.parametrize("text", ["", "noon", "2026-01-01", "2026-01-01T00:00:00", *FAR])
def test_what_is_no_instant_is_none(text: str) -> None:
    assert parse_time(text) is None
    assert after(text, 1) is None


def test_instants_are_written_as_kubernetes_does() -> None:
    moment = after("2026-01-01T01:00:00.5+01:00", 59)
    assert moment == datetime(2026, 1, 1, 0, 0, 59, 500_000, tzinfo=UTC)
    assert rfc3339(moment) == "2026-01-01T00:00:59Z"
    assert after("8999-12-31T23:59:59Z", 10**12) is None


@pytest.mark.parametrize(
    ("spec", "shared"),
    [({"hostPID": True}, True), ({"shareProcessNamespace": True}, True), ({"hostPID": False}, False), ({}, False)],
)
def test_whether_containers_see_each_others_processes(spec: dict[str, Any], shared: bool) -> None:
    assert parse_pod({"spec": spec}).shares_pids is shared
