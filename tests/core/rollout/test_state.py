"""Pods, workloads and disruption budgets, read from JSON that anybody may have written."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.time import parse_time
from crrd.core.rollout.state import World, read_budget, read_member
from crrd.core.rollout.workload import Owner, read_owner, read_workload
from tests.support.rollouts import asked, member, run


def test_a_pod() -> None:
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u", "controller": True}
    found = read_member(
        {
            "metadata": {
                "name": "db-12",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": "db", "odd": 1},
                "ownerReferences": [{"uid": "other"}, reference],
            },
            "status": {
                "conditions": [
                    {"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
                ]
            },
        }
    )
    assert (found.ready, found.ready_since) == (True, parse_time("2026-01-01T00:00:05Z"))
    assert (found.created, dict(found.labels), found.ordinal) == ("2026-01-01T00:00:00Z", {"app": "db"}, 12)
    assert found.owner == Owner("apps/v1", "ReplicaSet", "web-1", "u")
    assert not found.disrupted
    assert read_member({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}).disrupted


@pytest.mark.parametrize(
    ("state", "restarts", "mounted"),
    [("running", 0, True), ("running", 1, False), ("terminated", 0, False), ("waiting", 0, False)],
)
def test_files_were_mounted_before_a_container_that_runs_for_the_first_time(
    state: str, restarts: int, mounted: bool
) -> None:
    status = {"name": "app", "containerID": "c://1", "restartCount": restarts}
    status["state"] = {state: {"startedAt": "2026-01-01T00:00:05Z"}}
    created = "2026-01-01T00:00:00Z"
    obj = {"metadata": {"creationTimestamp": created}, "status": {"containerStatuses": [status]}}
    found = read_member({**obj, "spec": {"containers": [{"name": "app"}]}})
    assert found.mounted("app") == (parse_time(created) if mounted else None)


@pytest.mark.parametrize(("added", "mounted"), [(3, 3), (5, 5), (7, 0)])
def test_files_of_a_container_that_was_added_to_a_pod_were_mounted_no_earlier(added: int, mounted: int) -> None:
    """An entry that is younger than the start of the container is about another change of the same client."""
    own = {"fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"app"}': {".": {}}}}}, "time": at(added)}
    status = {"name": "app", "containerID": "c://1", "state": {"running": {"startedAt": at(5)}}}
    meta = {"creationTimestamp": at(0), "generation": 2, "managedFields": [own]}
    spec = {"containers": [{"name": "app"}]}
    found = read_member({"metadata": meta, "spec": spec, "status": {"containerStatuses": [status]}})
    assert found.mounted("app") == parse_time(at(mounted))


def at(second: int) -> str:
    return f"2026-01-01T00:00:0{second}Z"


@pytest.mark.parametrize("odd", [{}, {"metadata": None, "status": []}, {"metadata": {"ownerReferences": [1, {}]}}])
def test_an_odd_pod_is_as_if_all_were_absent(odd: dict[str, Any]) -> None:
    found = read_member(odd)
    assert (found.ready, found.ready_since, found.owner, found.ordinal) == (False, None, None, -1)


def test_what_a_pod_uses_is_read_on_request() -> None:
    """Reading it takes most of the time, and few runs need it."""
    uses = {"envFrom": [{"configMapRef": {"name": "web"}}]}
    added = {"fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"app"}': {".": {}}}}}, "time": "2026-01-01T00:00:00Z"}
    obj = {
        "metadata": {"generation": 2, "managedFields": [added]},
        "spec": {
            "containers": [{"name": "app", **uses}],
            "initContainers": [{"name": "setup", "envFrom": [{"secretRef": {"name": "key"}}]}],
        },
    }
    found = read_member(obj)
    assert ({*found.config}, len(found.unreached), {*found.added}) == ({"app"}, 1, {"app"})
    assert {*read_member(obj, with_init=True).config} == {"app", "setup"}
    plain = read_member(obj, with_config=False)
    assert (plain.config, plain.unreached, plain.added) == ({}, (), {})


def test_an_object_without_a_controller_has_no_owner() -> None:
    assert read_owner({"metadata": {"ownerReferences": [{"kind": "Node", "controller": False}]}}) is None
    owner = {"kind": "Rollout", "name": "web", "controller": True}
    assert read_owner({"metadata": {"ownerReferences": [{"kind": "X"}, owner]}}) == Owner("", "Rollout", "web", "")


def test_a_disruption_budget() -> None:
    obj = {
        "metadata": {"name": "guard", "uid": "u", "generation": 2},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 1, "observedGeneration": 2},
    }
    found = read_budget(obj)
    assert (found.name, found.allowed, found.current) == ("guard", 1, True)
    assert found.selector is not None
    assert not read_budget({**obj, "status": {"disruptionsAllowed": 1, "observedGeneration": 1}}).current
    assert not read_budget({**obj, "status": None}).current
    assert not read_budget({"metadata": {"generation": 1}}).current, "its controller has yet to see it"
    bare = read_budget({})
    assert (bare.allowed, bare.selector, bare.current) == (0, None, True)


API_VERSIONS = {
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps/v1"),
    "ReplicationController": "v1",
    "Job": "batch/v1",
}


def workload(kind: str, spec: dict[str, Any], status: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    """One as its controller keeps it: batch/v1 has no observedGeneration, and what a CRD has is its author's choice."""
    observed = {} if kind not in API_VERSIONS or kind == "Job" else {"observedGeneration": 1}
    return {
        "apiVersion": API_VERSIONS.get(kind, "example.com/v1"),
        "kind": kind,
        "metadata": {"generation": generation},
        "spec": spec,
        "status": {**observed, **status},
    }


@pytest.mark.parametrize(
    ("obj", "rolling"),
    [
        (workload("Deployment", {"replicas": 3}, {"replicas": 3, "updatedReplicas": 3}), ""),
        (
            workload("Deployment", {"replicas": 3}, {"replicas": 4, "updatedReplicas": 3}),
            "waiting for old pods to terminate, 1 left",
        ),
        (workload("Deployment", {"replicas": 3}, {"replicas": 3}), "0 of 3 pods are updated"),
        (
            workload("Deployment", {"replicas": 3, "paused": True}, {"replicas": 3, "updatedReplicas": 1}),
            "1 of 3 pods are updated, and the rollout is paused",
        ),
        (
            workload("Deployment", {"replicas": 3}, {"updatedReplicas": 3}, generation=2),
            "waiting for its controller to observe the last change",
        ),
        (
            workload("Deployment", {"replicas": 3}, {"updatedReplicas": 3, "observedGeneration": None}),
            "waiting for its controller to observe the last change",
        ),
        (workload("StatefulSet", {"replicas": 3}, {"updatedReplicas": 2}), "2 of 3 pods are updated"),
        (workload("StatefulSet", {"replicas": 3}, {"currentRevision": "a", "updateRevision": "a"}), ""),
        (  # its first pod does not get ready, so there are no others
            workload(
                "StatefulSet",
                {"replicas": 3},
                {"replicas": 1, "updatedReplicas": 1, "currentRevision": "a", "updateRevision": "a"},
            ),
            "",
        ),
        (  # its template was set back
            workload(
                "StatefulSet",
                {"replicas": 3},
                {"replicas": 3, "updatedReplicas": 2, "currentRevision": "a", "updateRevision": "a"},
            ),
            "2 of 3 pods are updated",
        ),
        (
            workload("StatefulSet", {"replicas": 3}, {"currentRevision": "a", "updateRevision": "b"}),
            "0 of 3 pods are updated",
        ),
        (
            workload(
                "StatefulSet",
                {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
                {"updatedReplicas": 1},
            ),
            "",
        ),
        (
            workload(
                "StatefulSet",
                {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 5}}},
                {"currentRevision": "a", "updateRevision": "b"},
            ),
            "",
        ),
        (workload("Deployment", {"replicas": 0}, {}), ""),
        (workload("StatefulSet", {"replicas": 3, "updateStrategy": {"type": "OnDelete"}}, {"updatedReplicas": 1}), ""),
        (workload("DaemonSet", {}, {"desiredNumberScheduled": 4, "updatedNumberScheduled": 4}), ""),
        (workload("DaemonSet", {}, {"desiredNumberScheduled": 4}), "0 of 4 pods are updated"),
        (  # those below the partition have the old template for good
            workload(
                "StatefulSet",
                {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
                {"replicas": 3, "updatedReplicas": 1, "currentRevision": "a", "updateRevision": "b"},
            ),
            "",
        ),
        (workload("ReplicaSet", {"replicas": 3}, {"replicas": 3}), ""),
        (workload("Job", {"parallelism": 2}, {}), ""),
        (
            workload("ReplicaSet", {"replicas": 3}, {}, generation=2),
            "waiting for its controller to observe the last change",
        ),
        (workload("ReplicationController", {"replicas": 3}, {"replicas": 3}), ""),
        (
            workload("ReplicationController", {"replicas": 3}, {"observedGeneration": None}),
            "waiting for its controller to observe the last change",
        ),
        (workload("OfNoGeneration", {"replicas": 2}, {}, generation=0), ""),
        (workload("RedisCluster", {"replicas": 2}, {"phase": "Running"}), ""),
        (
            workload("RedisCluster", {"replicas": 2}, {"observedGeneration": 1}, generation=2),
            "waiting for its controller to observe the last change",
        ),
        (workload("Rollout", {"replicas": 2}, {"observedGeneration": "3", "updatedReplicas": 2}, generation=3), ""),
        (
            workload("Rollout", {"replicas": 2}, {"observedGeneration": "3", "updatedReplicas": 2}, generation=10),
            "waiting for its controller to observe the last change",
        ),
        (workload("Rollout", {"replicas": 2}, {"observedGeneration": "6c7f9d5b8"}, generation=3), ""),
        (workload("Rollout", {"replicas": 2}, {"observedGeneration": "1" * 5000}, generation=3), ""),
        (workload("Deployment", {"replicas": 2}, {"currentRevision": "a"}), "0 of 2 pods are updated"),
        ({**workload("Deployment", {"replicas": 2}, {}), "apiVersion": "example.com/v1"}, ""),
        (workload("RedisCluster", {"replicas": 2}, {"currentRevision": "a"}), ""),
        (workload("RedisCluster", {"replicas": 2}, {"updateRevision": "a"}), ""),
        (
            workload("CloneSet", {"replicas": 3}, {"updatedReplicas": 1, "expectedUpdatedReplicas": 2}),
            "1 of 2 pods are updated",
        ),
        (
            workload("CloneSet", {"replicas": 3, "updateStrategy": {"partition": 2}}, {"updatedReplicas": 1}),
            "",
        ),
    ],
)
def test_how_far_a_roll_out_is(obj: dict[str, Any], rolling: str) -> None:
    assert read_workload(obj).rolling == rolling


@pytest.mark.parametrize(
    ("obj", "behind"),
    [
        (workload("DaemonSet", {}, {"desiredNumberScheduled": 4, "updatedNumberScheduled": 3}), 1),
        (workload("DaemonSet", {}, {"desiredNumberScheduled": 4, "updatedNumberScheduled": 4}), 0),
        (workload("DaemonSet", {}, {"desiredNumberScheduled": 4, "updatedNumberScheduled": 3}, generation=2), 0),
        (
            workload(
                "DaemonSet",
                {"updateStrategy": {"type": "OnDelete"}},
                {"desiredNumberScheduled": 4, "updatedNumberScheduled": 3},
            ),
            0,
        ),
        (workload("StatefulSet", {"replicas": 3}, {"updatedReplicas": 2}), 0),
    ],
)
def test_how_many_pods_of_a_daemon_set_are_not_updated(obj: dict[str, Any], behind: int) -> None:
    assert read_workload(obj).behind == behind


@pytest.mark.parametrize(
    ("kind", "spec", "status", "desired"),
    [
        ("Deployment", {"replicas": 0, "parallelism": 5}, {}, 0),
        ("DaemonSet", {}, {"desiredNumberScheduled": 7}, 7),
        ("Job", {"parallelism": 2}, {}, 2),
        ("Job", {"parallelism": 5, "completions": 5}, {"active": 2, "succeeded": 3}, 2),
        ("Job", {"parallelism": 2, "completions": 9}, {"active": 2, "succeeded": 3}, 2),
        ("Job", {"parallelism": 5, "completions": 5}, {"active": 4, "failed": 1}, 5),
        ("Job", {"parallelism": 5, "completions": 2}, {"succeeded": 3}, 0),
        ("Job", {"parallelism": 5}, {"active": 4, "failed": 1}, 5),
        ("Job", {"parallelism": 5}, {"active": 2, "succeeded": 3}, 0),
        ("Job", {"parallelism": 5, "completions": 5, "suspend": True}, {}, 0),
        ("Job", {"parallelism": 5, "completions": 5}, {"active": 3, "failedIndexes": "0,3"}, 0),
        ("Job", {"parallelism": "many", "completions": 5}, {}, 0),
        ("Thing", {"replicas": "many"}, {}, 0),
    ],
)
def test_how_many_pods_there_should_be(kind: str, spec: dict[str, Any], status: dict[str, Any], desired: int) -> None:
    assert read_workload(workload(kind, spec, status)).desired == desired


@pytest.mark.parametrize(
    ("kind", "spec", "in_order"),
    [
        ("StatefulSet", {}, True),
        ("StatefulSet", {"podManagementPolicy": "Parallel"}, False),
        ("Deployment", {}, False),
    ],
)
def test_which_workloads_count_their_pods(kind: str, spec: dict[str, Any], *, in_order: bool) -> None:
    assert read_workload(workload(kind, spec, {})).in_order is in_order


@pytest.mark.parametrize("odd", [{}, {"apiVersion": [], "kind": {}}, {"metadata": 1, "spec": [], "status": "x"}])
def test_an_odd_workload_is_as_if_all_were_absent(odd: dict[str, Any]) -> None:
    found = read_workload(odd)
    assert (found.uid, found.desired, found.rolling, found.selector) == ("", 0, "", None)


@pytest.mark.parametrize(
    ("kind", "spec", "seconds"),
    [
        ("Deployment", {"minReadySeconds": 30}, 30),
        ("CloneSet", {"minReadySeconds": 5}, 5),
        ("StatefulSet", {"updateStrategy": {"rollingUpdate": {"minReadySeconds": 7}}}, 7),
        ("Deployment", {}, 0),
        ("Deployment", {"minReadySeconds": "soon"}, 0),
        ("Deployment", {"minReadySeconds": -1}, 0),
        ("CloneSet", {"minReadySeconds": 10**15}, 2**31 - 1),
    ],
)
def test_how_long_a_new_pod_must_be_ready(kind: str, spec: dict[str, Any], seconds: int) -> None:
    assert read_workload(workload(kind, spec, {})).min_ready == seconds


def test_changed_limits_leave_a_policys_run_its_pods() -> None:
    """Requests do not say for which pods a run is. All others have what it brings."""
    changed = run(policy="uid").changed(max_failures=2)
    of, known = replace(run(policy="uid"), only=frozenset({"web-1"})), World((), (asked(changed, member("web-1")),))
    assert known.latest(of) == replace(changed, only=of.only)
    assert World(()).latest(of) == of
