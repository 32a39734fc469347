"""The objects that a run needs, parsed from JSON. Nothing here raises for invalid input."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.time import parse_time
from crrd.core.api.types import Request, RequestPhase
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, Reference
from crrd.core.config.uses import Unreached, references, unreached
from crrd.core.rollout.labels import LabelSelector, read_selector
from crrd.core.rollout.nodes import NodeDaemon
from crrd.core.rollout.run import (
    ANNOTATION_ABORTED,
    ANNOTATION_PROGRESS,
    ANNOTATION_REFRESH,
    ANNOTATION_RUN,
    LABEL_RUN,
    RUN_NAME,
    FileRefresh,
    Options,
    Progress,
    Run,
    Target,
    read_amount,
)
from crrd.lib.jsonfields import Reader, condition, items, mapping, number, text

ZONE = "topology.kubernetes.io/zone"
_ORDINAL = re.compile(r"-(\d{1,9})$", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_OBSERVED = {
    *(("apps/v1", kind) for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")),
    ("v1", "ReplicationController"),
}
"""apiVersion and kind of workloads whose controllers write observedGeneration, always. A Job has none, and what others
write is theirs to choose."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod, with more fields that a run needs."""

    pod: Pod
    created: str = ""  # creationTimestamp, RFC 3339, the API server's clock
    ready: bool = False  # Its condition Ready
    ready_since: datetime | None = None  # Time of the last change of `ready`, kubelet's clock
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: "Owner | None" = None
    config: Mapping[str, tuple[Reference, ...]] = field(default_factory=dict)
    """By container: the ConfigMaps and Secrets that it uses."""
    unreached: tuple[Unreached, ...] = ()  # Configuration whose changes lead to no restart in place
    refresh_token: str = ""  # The annotation of `core.rollout.refresh`

    @property
    def counts(self) -> bool:
        """Whether it is one of the workload's active pods."""
        return not self.pod.deleting and not self.pod.ended

    def available_at(self, min_ready: int) -> datetime | None:
        """Return when it has been ready for `min_ready` seconds; None if it is not ready, or its times are unknown.

        As in `_settled`, this is a fact about the pod: it does not matter which run restarted it.
        """
        started = (parse_time(each.started_at) for each in self.pod.containers.values() if each.running)
        known = [moment for moment in (self.ready_since, *started) if moment is not None]
        return max(known) + timedelta(seconds=min_ready) if self.ready and known else None

    @property
    def ordinal(self) -> int:
        """The ordinal at the end of its name, as in StatefulSets; -1 if there is none."""
        found = _ORDINAL.search(self.pod.name)
        return int(found[1]) if found else -1


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


def read_member(obj: Mapping[str, Any]) -> Member:
    """A pod."""
    meta = mapping(obj.get("metadata"))
    ready = condition(obj, "Ready")
    return Member(
        pod=parse_pod(obj),
        created=text(meta.get("creationTimestamp")),
        ready=ready.get("status") == "True",
        ready_since=parse_time(text(ready.get("lastTransitionTime"))),
        labels={key: value for key, value in mapping(meta.get("labels")).items() if isinstance(value, str)},
        owner=read_owner(obj),
        config=references(obj),
        unreached=unreached(obj),
        refresh_token=text(mapping(meta.get("annotations")).get(ANNOTATION_REFRESH)),
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    name: str
    uid: str
    selector: LabelSelector | None
    allowed: int  # disruptionsAllowed
    current: bool = True  # Whether its status is about the present spec


def _number(obj: Mapping[str, Any], key: str) -> int | None:
    return Reader().integer(obj.get(key), "")


def read_budget(obj: Mapping[str, Any]) -> Budget:
    """A PodDisruptionBudget."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name, uid = (text(meta.get(key)) for key in ("name", "uid"))
    current = number(status.get("observedGeneration")) >= number(meta.get("generation"))
    return Budget(name, uid, read_selector(spec.get("selector")), number(status.get("disruptionsAllowed")), current)


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload that owns the pods."""

    uid: str
    desired: int = 0  # Desired number of pods; 0 if unknown
    rolling: str = ""  # The state of its rollout for messages; "" if there is none
    selector: LabelSelector | None = None
    in_order: bool = False  # Whether the highest ordinal comes first, as in StatefulSets
    min_ready: int = 0  # minReadySeconds: how long a new pod must be ready to count as available


def read_workload(obj: Mapping[str, Any]) -> Workload:
    """Parse a workload of any kind with `spec.selector`. Its JSON must have apiVersion and kind."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    counts = (_number(spec, "replicas"), _number(status, "desiredNumberScheduled"), _wanted_by_job(spec, status))
    desired = next(count for count in counts if count is not None)
    in_order = obj.get("kind") == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"
    selector = read_selector(spec.get("selector"))
    return Workload(text(meta.get("uid")), desired, _rolling(obj, desired), selector, in_order, read_min_ready(obj))


def read_min_ready(workload: Mapping[str, Any]) -> int:
    """Return minReadySeconds of a workload. OpenKruise's StatefulSets have it in their strategy."""
    spec = mapping(workload.get("spec"))
    rolling = mapping(mapping(spec.get("updateStrategy")).get("rollingUpdate"))
    return max(0, number(spec.get("minReadySeconds")), number(rolling.get("minReadySeconds")))


def _wanted_by_job(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """Pods that a Job would have now, by the count of its controller (`manageJob`): no more than have yet to complete.

    0 where none follows on one that ends: it is suspended, or one has succeeded and it names no number of completions;
    and where indexes of it have failed for good, which are not counted here.
    """
    completions, succeeded = _number(spec, "completions"), number(status.get("succeeded"))
    if spec.get("suspend") is True or status.get("failedIndexes") or (completions is None and succeeded):
        return 0
    most = number(spec.get("parallelism"))
    return most if completions is None else min(most, max(0, completions - succeeded))


def _rolling(obj: Mapping[str, Any], desired: int) -> str:
    """Return the state of a rollout that proceeds by itself, like kubectl's `rollout status`, but without readiness."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    known = (text(obj.get("apiVersion")), text(obj.get("kind"))) in _OBSERVED
    observed = _number(status, "observedGeneration")
    if _NUMBER.fullmatch(text(status.get("observedGeneration"))):
        observed = int(text(status.get("observedGeneration")))  # Argo's Rollouts have its digits
    if observed is None and known:
        observed = 0
    if observed is not None and observed < number(meta.get("generation")):
        return "waiting for its controller to observe the last change"
    strategy = mapping(spec.get("updateStrategy"))
    if strategy.get("type") == "OnDelete":
        return ""  # only the user can continue it
    expected = _expected(strategy, status, desired)
    updated = _number(status, "updatedReplicas" if "updatedReplicas" in status else "updatedNumberScheduled")
    if updated is None:  # absent if it is 0, or if the kind has no rollouts
        current, update = (text(status.get(key)) for key in ("currentRevision", "updateRevision"))
        revised = bool(current and update) and current != update
        rolls = revised or (known and obj.get("kind") in ("Deployment", "DaemonSet"))
        updated = 0 if rolls else expected
    if updated < expected:
        paused = ", and the rollout is paused" if spec.get("paused") is True else ""
        return f"{updated} of {expected} pods are updated{paused}"
    old = number(status.get("replicas")) - updated
    return f"waiting for old pods to terminate, {old} left" if obj.get("kind") == "Deployment" and old > 0 else ""


def _expected(strategy: Mapping[str, Any], status: Mapping[str, Any], desired: int) -> int:
    """Return how many pods are updated. Those of a partition are not."""
    expected = _number(status, "expectedUpdatedReplicas")
    if expected is not None:
        return expected  # OpenKruise's workloads
    rolling = mapping(strategy.get("rollingUpdate"))
    return max(0, desired - number((rolling if "partition" in rolling else strategy).get("partition")))


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request of a run, and what it records about the run."""

    request: Request
    run: Run
    aborted: bool = False  # Whether the run was aborted
    progress: Progress | None = None  # None if it was not written here

    @property
    def first_name(self) -> str:
        """The name of the run's first request for the pod. Retries have this name and a number (`Run.request_name`)."""
        return self.request.name.partition(".")[0]

    @property
    def succeeded(self) -> bool:
        """Whether every container was recreated."""
        states = self.request.status.states
        return self.request.completed and bool(states) and all(each.phase == "Succeeded" for each in states)

    @property
    def started(self) -> bool:
        """Whether the node has started to work on it."""
        return self.request.status.phase is RequestPhase.RECREATING

    @property
    def age(self) -> tuple[str, str]:
        """Sort key, the oldest first."""
        return self.request.created, self.request.name


def read_run_request(obj: Mapping[str, Any]) -> RunRequest | None:
    """Parse a request of a run. Return None if it belongs to no run, or its annotation is invalid."""
    meta = mapping(obj.get("metadata"))
    annotations, name = mapping(meta.get("annotations")), text(mapping(meta.get("labels")).get(LABEL_RUN))
    try:
        shape = mapping(json.loads(text(annotations.get(ANNOTATION_RUN))))
        started, raw = text(shape.get("started")), dict(mapping(shape.get("options")))
        raw |= {key: tuple(map(text, items(raw.get(key)))) for key in ("containers", "objects")}
        raw["max_unavailable"] = read_amount(text(raw.get("max_unavailable")))
        target, options = Target(**mapping(shape.get("target"))), Options(**raw)
    except (ValueError, TypeError, RecursionError):
        return None
    sound = _fits(target, Target("")) and _fits(options, Options(())) and parse_time(started) is not None
    if not sound or not (options.containers or options.stale) or not RUN_NAME.fullmatch(name):
        return None
    run = Run(text(meta.get("namespace")), name, target, options, started, number(shape.get("revision")))
    progress = _read_progress(text(annotations.get(ANNOTATION_PROGRESS)))
    return RunRequest(parse_request(obj), run, ANNOTATION_ABORTED in annotations, progress)


def _read_progress(annotation: str) -> Progress | None:
    try:
        found = Progress(**mapping(json.loads(annotation)))
    except (ValueError, TypeError, RecursionError):
        return None
    return found if _fits(found, Progress("", "", "", 0, 0)) and parse_time(found.at) is not None else None


def _fits(found: Target | Options | Progress, plain: Target | Options | Progress) -> bool:
    """Whether each field has the same type as in a default value of the class."""
    for name in plain.__slots__:
        value, like = getattr(found, name), getattr(plain, name)
        allowed = (int, type(None)) if like is None else type(like)
        if not isinstance(value, allowed) or (isinstance(value, bool) and not isinstance(like, bool)):
            return False
    return True


def newest_run(requests: Iterable[RunRequest]) -> Run:
    """Return the run with the options that were changed last."""
    return max(requests, key=lambda each: (each.run.revision, each.age)).run


def last_progress(requests: Iterable[RunRequest]) -> Progress:
    """Return the progress that was written last, as that of a stopped run if there is none."""
    own = sorted(requests, key=lambda each: each.age, reverse=True)
    written = [each.progress for each in own if each.progress is not None]
    return max(written, key=lambda each: each.at, default=Progress("", "", "stopped", 0, 0))


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """The last failure of a container's probe."""

    message: str
    at: datetime  # Kubelet's clock


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a plan is based on, at one time."""

    members: tuple[Member, ...]  # The target's pods
    requests: tuple[RunRequest, ...] = ()  # Of all runs of the namespace
    workload: Workload | None = None
    budgets: tuple[Budget, ...] = ()
    zones: Mapping[str, str] = field(default_factory=dict)  # By node
    daemons: Mapping[str, NodeDaemon] | None = None  # By node; None if unknown
    down: frozenset[str] = frozenset()  # Nodes that are known not to be ready
    aborted: frozenset[str] = frozenset()  # Names of aborted runs
    refused: Mapping[str, str] = field(default_factory=dict)
    """Pods (UID) whose request the API server rejected, and its message."""
    retried: frozenset[str] = frozenset()  # Failed requests (UID) whose pods are restarted again
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By UID: known pods that are not the target's and have a request of another run."""
    kubelets: Mapping[str, str] = field(default_factory=dict)
    """By node: its kubelet's version, if it is known and needed."""
    probes: Mapping[tuple[str, str], ProbeFailure] = field(default_factory=dict)
    """By pod (UID) and container: the last failure of a probe that an event reported."""
    config: Mapping[tuple[Kind, str], ConfigObject | None] = field(default_factory=dict)
    """ConfigMaps and Secrets that pods use (None: does not exist). Empty if the run does not need them."""
    refreshes: Mapping[str, FileRefresh] | None = None
    """By pod (UID): the last refresh of its files. None if pods start without refreshes."""

    def min_ready(self, run: Run) -> int:
        """Return how many seconds a pod must be ready to count as done: as the run has it, or else the workload."""
        if run.options.min_ready is not None:
            return run.options.min_ready
        return self.workload.min_ready if self.workload is not None else 0

    def requests_of(self, run: Run) -> list[RunRequest]:
        """Return the requests of one run, the oldest first."""
        return sorted((each for each in self.requests if each.run.name == run.name), key=lambda each: each.age)

    def latest(self, run: Run) -> Run:
        """Return the run with the options that another process may have changed."""
        own = self.requests_of(run)
        return max(run, newest_run(own), key=lambda each: each.revision) if own else run
