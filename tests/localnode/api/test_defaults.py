"""What the local API server fills in for pods and shows of built-in kinds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.time import parse_time, rfc3339
from crrd_localnode.api.defaults import complete_pod, complete_secret, pod_rules, qos_class
from crrd_localnode.api.objects import dig
from crrd_localnode.api.printers import age_since, human_duration
from crrd_localnode.api.resources import BUILTIN

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KINDS = {kind.kind: kind for kind in BUILTIN}


def completed(**container: Any) -> dict[str, Any]:
    pod = complete_pod({"spec": {"containers": [{"name": "a", **container}]}})
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def test_pod_defaults() -> None:
    pod = complete_pod({"spec": {"containers": [{"name": "a"}], "restartPolicy": "Never"}})
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    assert pod["spec"]["dnsPolicy"] == "ClusterFirst"
    assert complete_pod(pod) == pod
    assert complete_pod({})["spec"]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    ("image", "policy"),
    [("a", "Always"), ("a:latest", "Always"), ("a:1", "IfNotPresent"), ("host:5000/a", "Always"),
     ("host:5000/a:2", "IfNotPresent"), ("a@sha256:0", "IfNotPresent"), ("a:latest@sha256:0", "IfNotPresent")],
)  # fmt: skip
def test_pull_policy(image: str, policy: str) -> None:
    assert completed(image=image)["imagePullPolicy"] == policy


def test_container_defaults() -> None:
    container = completed(
        ports=[{"containerPort": 1}],
        livenessProbe={"httpGet": {"port": 1}, "periodSeconds": 3},
        lifecycle={"preStop": {"httpGet": {"port": 1}}, "postStart": {"exec": {"command": ["x"]}}},
        env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "B", "value": "c"}],
        resources={"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
    )
    assert container["ports"] == [{"containerPort": 1, "protocol": "TCP"}]
    assert container["livenessProbe"] == {
        "httpGet": {"port": 1, "path": "/", "scheme": "HTTP"},
        "periodSeconds": 3, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3,
    }  # fmt: skip
    assert container["lifecycle"]["preStop"]["httpGet"]["scheme"] == "HTTP"
    assert container["lifecycle"]["postStart"] == {"exec": {"command": ["x"]}}
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert container["env"][1] == {"name": "B", "value": "c"}
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [({}, "BestEffort"), ({"requests": {"cpu": "1"}}, "Burstable"),
     ({"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}}, "Guaranteed"),
     ({"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1"}}, "Burstable")],
)  # fmt: skip
def test_quality_of_service(resources: dict[str, Any], expected: str) -> None:
    assert qos_class({"spec": {"containers": [{"resources": resources}]}}) == expected


@pytest.mark.parametrize(
    ("spec", "field"),
    [({}, "spec.containers"), ({"containers": [{}]}, "spec.containers[0].name"),
     ({"containers": [{"name": "a"}], "initContainers": [{"name": "a"}]}, "spec.initContainers[0].name"),
     ({"containers": [{"name": "a"}], "restartPolicy": "Sometimes"}, "spec.restartPolicy")],
)  # fmt: skip
def test_pods_that_are_refused(spec: dict[str, Any], field: str) -> None:
    (cause,) = pod_rules(complete_pod({"spec": spec}), None)
    assert cause.field == field


def test_a_negative_grace_period_may_become_one() -> None:
    old = complete_pod({"spec": {"containers": [{"name": "a"}], "terminationGracePeriodSeconds": -5}})
    new = {**old, "spec": {**old["spec"], "terminationGracePeriodSeconds": 1}}
    assert pod_rules(new, old) == []
    assert pod_rules(old, old) == []


def test_secrets_keep_what_they_have() -> None:
    given = {"type": "kubernetes.io/tls", "data": {"a": "eA=="}, "stringData": {"b": "y"}}
    assert complete_secret(given) == {"type": "kubernetes.io/tls", "data": {"a": "eA==", "b": "eQ=="}}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (10799, "179m"),
     (10800, "3h"), (10860, "3h1m"), (28800, "8h"), (172799, "47h"), (172800, "2d"), (176400, "2d1h"), (691200, "8d"),
     (63072000, "2y"), (63158400, "2y1d"), (252288000, "8y")],
)  # fmt: skip
def test_durations(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def test_times() -> None:
    assert parse_time(rfc3339(NOW)) == NOW
    assert parse_time("2026-01-02T03:04:05") is None
    assert age_since(None, NOW) == age_since("x", NOW) == "<unknown>"
    assert dig({"a": [1]}, "a", "b") is None


def row(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {column.name: column.value(obj, NOW) for column in KINDS[kind].columns}


def container(ready: bool, restarts: int = 0, **state: Any) -> dict[str, Any]:
    return {"ready": ready, "restartCount": restarts, "state": state}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"status": {"phase": "Running", "containerStatuses": [container(True, running={}), container(False)]}},
         {"Ready": "1/2", "Status": "Running", "Restarts": "0"}),
        ({"status": {"phase": "Pending",
                     "containerStatuses": [container(False, waiting={"reason": "CrashLoopBackOff"})]}},
         {"Status": "CrashLoopBackOff"}),
        ({"status": {"containerStatuses": [container(False, terminated={"reason": "Error"})]}}, {"Status": "Error"}),
        ({"status": {"containerStatuses": [container(False, terminated={"signal": 9})]}}, {"Status": "Signal:9"}),
        ({"status": {"containerStatuses": [container(False, terminated={"exitCode": 3})]}}, {"Status": "ExitCode:3"}),
        ({"status": {"phase": "Running", "containerStatuses": [
            container(False, terminated={"reason": "Completed"}), container(True, running={"startedAt": "x"})]}},
         {"Status": "NotReady"}),
        ({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [
            container(False, terminated={"reason": "Completed"}), container(True, running={"startedAt": "x"})]}},
         {"Status": "Running"}),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, {"Status": "Evicted"}),
        ({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Running"}}, {"Status": "Terminating"}),
        ({"status": {"containerStatuses": [
            {**container(True, 2), "lastState": {"terminated": {"finishedAt": "2026-01-02T03:03:35Z"}}}]}},
         {"Restarts": "2 (30s ago)"}),
        ({}, {"Ready": "0/2", "Status": "<unknown>", "IP": "<none>", "Readiness Gates": "<none>"}),
    ],
)  # fmt: skip
def test_pod_rows(pod: dict[str, Any], expected: dict[str, str]) -> None:
    shown = row("Pod", {"spec": {"containers": [{}, {}]}, **pod})
    assert {name: shown[name] for name in expected} == expected


def test_readiness_gates() -> None:
    spec = {"readinessGates": [{"conditionType": "KruisePodReady"}, {"conditionType": "x"}]}
    status = {"conditions": [{"type": "KruisePodReady", "status": "True"}, {"type": "x", "status": "False"}]}
    assert row("Pod", {"spec": spec, "status": status})["Readiness Gates"] == "1/2"


@pytest.mark.parametrize(
    ("kind", "obj", "expected"),
    [
        ("Node", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, {"Status": "Ready"}),
        ("Node", {"spec": {"unschedulable": True}}, {"Status": "Unknown,SchedulingDisabled"}),
        ("Node", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, {"Status": "NotReady"}),
        ("Event",
         {"lastTimestamp": rfc3339(NOW - timedelta(seconds=9)), "involvedObject": {"kind": "Pod", "name": "web"}},
         {"Last Seen": "9s", "Object": "pod/web"}),
        ("Secret", {"type": "Opaque", "data": {"a": "b"}}, {"Type": "Opaque", "Data": 1}),
        ("ConfigMap", {}, {"Data": 0}),
        ("Lease", {"spec": {"holderIdentity": "me"}}, {"Holder": "me"}),
        ("Role", {"metadata": {"creationTimestamp": "t"}}, {"Created At": "t"}),
    ],
)  # fmt: skip
def test_other_rows(kind: str, obj: dict[str, Any], expected: dict[str, Any]) -> None:
    shown = row(kind, obj)
    assert {name: shown[name] for name in expected} == expected
