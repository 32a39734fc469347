"""The workload of a run, read from the JSON of any kind: how many pods it wants, and whether it is being rolled out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.core.rollout.labels import LabelSelector, read_selector
from crrd.lib.jsonfields import Reader, decimal, items, mapping, number, text

_INT32 = 2**31 - 1  # No workload of Kubernetes has a larger number
_OBSERVED = {
    *(("apps/v1", kind) for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")),
    ("v1", "ReplicationController"),
}
"""apiVersion and kind of workloads whose controllers write observedGeneration, always. A Job has none, and what others
write is theirs to choose."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload that owns the pods."""

    uid: str
    desired: int = 0  # Desired number of pods; 0 if unknown
    rolling: str = ""  # The state of its rollout for messages; "" if there is none
    behind: int = 0  # Pods that the rollout of a DaemonSet has not updated yet
    selector: LabelSelector | None = None
    in_order: bool = False  # Whether the highest ordinal comes first, as in StatefulSets
    min_ready: int = 0  # minReadySeconds: how long a new pod must be ready to count as available
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of an object, from its owner references."""

    api_version: str
    kind: str
    name: str
    uid: str


def read_owner(obj: Mapping[str, Any]) -> Owner | None:
    """Return the controller of an object, or None."""
    for entry in map(mapping, items(mapping(obj.get("metadata")).get("ownerReferences"))):
        if entry.get("controller") is True:
            return Owner(*(text(entry.get(key)) for key in ("apiVersion", "kind", "name", "uid")))
    return None


def read_workload(obj: Mapping[str, Any]) -> Workload:
    """Parse a workload of any kind with `spec.selector`. Its JSON must have apiVersion and kind."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    counts = (_number(spec, "replicas"), _number(status, "desiredNumberScheduled"), _wanted_by_job(spec, status))
    desired = next(count for count in counts if count is not None)
    in_order = obj.get("kind") == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"
    selector = read_selector(spec.get("selector"))
    rolling, behind = _rolling(obj, desired)
    deleting = meta.get("deletionTimestamp") is not None
    return Workload(text(meta.get("uid")), desired, rolling, behind, selector, in_order, read_min_ready(obj), deleting)


def read_min_ready(workload: Mapping[str, Any]) -> int:
    """Return minReadySeconds of a workload. OpenKruise's StatefulSets have it in their strategy."""
    spec = mapping(workload.get("spec"))
    rolling = mapping(mapping(spec.get("updateStrategy")).get("rollingUpdate"))
    most = max(number(spec.get("minReadySeconds")), number(rolling.get("minReadySeconds")))
    return min(max(0, most), _INT32)


def _wanted_by_job(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """Return how many pods a Job would have now, as its controller counts them (`manageJob`).

    It is 0 if no pod follows one that ends: the Job is suspended, or has no `completions` and one pod has succeeded. It
    is also 0 if indexes have failed for good, because they are not counted here.
    """
    completions, succeeded = _number(spec, "completions"), number(status.get("succeeded"))
    if spec.get("suspend") is True or status.get("failedIndexes") or (completions is None and succeeded):
        return 0
    most = number(spec.get("parallelism"))
    return most if completions is None else min(most, max(0, completions - succeeded))


def _rolling(obj: Mapping[str, Any], desired: int) -> tuple[str, int]:
    """Return the state of a rollout that proceeds by itself, and how many pods of a DaemonSet it has not updated.

    The state is like that of kubectl's `rollout status`, but without readiness.
    """
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    known = (text(obj.get("apiVersion")), text(obj.get("kind"))) in _OBSERVED
    observed = _number(status, "observedGeneration")
    if observed is None:  # Argo's Rollouts have its digits
        observed = decimal(text(status.get("observedGeneration")))
    if observed is None and known:
        observed = 0
    if observed is not None and observed < number(meta.get("generation")):
        return "waiting for its controller to observe the last change", 0
    strategy = mapping(spec.get("updateStrategy"))
    if strategy.get("type") == "OnDelete":
        return "", 0  # only the user can continue it
    current, update = (text(status.get(key)) for key in ("currentRevision", "updateRevision"))
    expected = _expected(strategy, status, desired)
    if current and current == update:  # a StatefulSet creates the next pod only when the one before is ready
        expected = min(expected, number(status.get("replicas")))
    updated = _number(status, "updatedReplicas" if "updatedReplicas" in status else "updatedNumberScheduled")
    if updated is None:  # absent if it is 0, or if the kind has no rollouts
        revised = bool(current and update) and current != update
        rolls = revised or (known and obj.get("kind") in ("Deployment", "DaemonSet"))
        updated = 0 if rolls else expected
    if updated < expected:
        paused = ", and the rollout is paused" if spec.get("paused") is True else ""
        behind = expected - updated if obj.get("kind") == "DaemonSet" else 0
        return f"{updated} of {expected} pods are updated{paused}", behind
    old = number(status.get("replicas")) - updated if obj.get("kind") == "Deployment" else 0
    return f"waiting for old pods to terminate, {old} left" if old > 0 else "", 0


def _expected(strategy: Mapping[str, Any], status: Mapping[str, Any], desired: int) -> int:
    """Return how many pods are updated. Those of a partition are not."""
    expected = _number(status, "expectedUpdatedReplicas")
    if expected is not None:
        return expected  # OpenKruise's workloads
    rolling = mapping(strategy.get("rollingUpdate"))
    return max(0, desired - number((rolling if "partition" in rolling else strategy).get("partition")))


def _number(obj: Mapping[str, Any], key: str) -> int | None:
    return Reader().integer(obj.get(key), "")
