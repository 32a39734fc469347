"""What a run looks at, from JSON: pods, their workload, disruption budgets and requests. Bad input raises nothing."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.time import parse_time
from crrd.core.api.types import Request, RequestPhase
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, Reference, references
from crrd.core.rollout.labels import LabelSelector, read_selector
from crrd.core.rollout.run import (
    ANNOTATION_ABORTED,
    ANNOTATION_PROGRESS,
    ANNOTATION_RUN,
    LABEL_RUN,
    RUN_NAME,
    Options,
    Progress,
    Run,
    Target,
    read_amount,
)
from crrd.lib.jsonfields import Reader, condition, items, mapping, text

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
    """A pod, with what a run needs to know besides."""

    pod: Pod
    created: str = ""  # creationTimestamp, RFC 3339, the API server's clock
    ready: bool = False  # Its condition Ready
    ready_since: datetime | None = None  # Since when that is as it is, kubelet's clock
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: "Owner | None" = None
    config: Mapping[str, tuple[Reference, ...]] = field(default_factory=dict)
    """By container: what it uses of ConfigMaps and Secrets."""

    @property
    def counts(self) -> bool:
        """Whether it is one of those that the workload lives of."""
        return not self.pod.deleting and not self.pod.ended

    @property
    def ordinal(self) -> int:
        """The number at the end of its name, which StatefulSets count by; -1 for none."""
        found = _ORDINAL.search(self.pod.name)
        return int(found[1]) if found else -1


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of an object, by its owner references."""

    api_version: str
    kind: str
    name: str
    uid: str


def read_owner(obj: Mapping[str, Any]) -> Owner | None:
    """The controller of an object; None where it has none."""
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
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    name: str
    uid: str
    selector: LabelSelector | None
    allowed: int  # disruptionsAllowed
    current: bool = True  # Whether its status is about its spec as it is now


def _number(obj: Mapping[str, Any], key: str) -> int | None:
    return Reader().integer(obj.get(key), "")


def read_budget(obj: Mapping[str, Any]) -> Budget:
    """A PodDisruptionBudget."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name, uid = (text(meta.get(key)) for key in ("name", "uid"))
    current = (_number(status, "observedGeneration") or 0) >= (_number(meta, "generation") or 0)
    return Budget(name, uid, read_selector(spec.get("selector")), _number(status, "disruptionsAllowed") or 0, current)


@dataclass(frozen=True, slots=True)
class Workload:
    """What owns the pods, as far as a run goes by it."""

    uid: str
    desired: int = 0  # Pods that there should be; 0 where it does not say
    rolling: str = ""  # In words, how far it is being rolled out; "" where it is not
    selector: LabelSelector | None = None
    in_order: bool = False  # Its pods go by their ordinals, the highest first, as a StatefulSet updates them


def read_workload(obj: Mapping[str, Any]) -> Workload:
    """A workload of any kind that has `spec.selector`; its apiVersion and kind have to be in it."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    counts = (_number(spec, "replicas"), _number(status, "desiredNumberScheduled"), _wanted_by_job(spec, status))
    desired = next(count for count in counts if count is not None)
    in_order = obj.get("kind") == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"
    selector = read_selector(spec.get("selector"))
    return Workload(text(meta.get("uid")), desired, _rolling(obj, desired), selector, in_order)


def _wanted_by_job(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """Pods that a Job would have now, by the count of its controller (`manageJob`): no more than have yet to complete.

    0 where none follows on one that ends: it is suspended, or one has succeeded and it names no number of completions;
    and where indexes of it have failed for good, which are not counted here.
    """
    completions, succeeded = _number(spec, "completions"), _number(status, "succeeded") or 0
    if spec.get("suspend") is True or status.get("failedIndexes") or (completions is None and succeeded):
        return 0
    most = _number(spec, "parallelism") or 0
    return most if completions is None else min(most, max(0, completions - succeeded))


def _rolling(obj: Mapping[str, Any], desired: int) -> str:
    """How far a roll-out is that goes on by itself: what kubectl's `rollout status` waits for, without readiness."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    known = (text(obj.get("apiVersion")), text(obj.get("kind"))) in _OBSERVED
    observed = _number(status, "observedGeneration")
    if _NUMBER.fullmatch(text(status.get("observedGeneration"))):
        observed = int(text(status.get("observedGeneration")))  # Argo's Rollouts have its digits
    if observed is None and known:
        observed = 0
    if observed is not None and observed < (_number(meta, "generation") or 0):
        return "waiting for its controller to observe the last change"
    strategy = mapping(spec.get("updateStrategy"))
    if strategy.get("type") == "OnDelete":
        return ""  # nobody but the user goes on with it
    expected = _expected(strategy, status, desired)
    updated = _number(status, "updatedReplicas" if "updatedReplicas" in status else "updatedNumberScheduled")
    if updated is None:  # zeros are left out, and kinds that have no roll-outs have none
        current, update = (text(status.get(key)) for key in ("currentRevision", "updateRevision"))
        revised = bool(current and update) and current != update
        rolls = revised or (known and obj.get("kind") in ("Deployment", "DaemonSet"))
        updated = 0 if rolls else expected
    if updated < expected:
        paused = ", and the rollout is paused" if spec.get("paused") is True else ""
        return f"{updated} of {expected} pods are updated{paused}"
    old = (_number(status, "replicas") or 0) - updated
    return f"waiting for old pods to terminate, {old} left" if obj.get("kind") == "Deployment" and old > 0 else ""


def _expected(strategy: Mapping[str, Any], status: Mapping[str, Any], desired: int) -> int:
    """How many pods are to be updated: those of a partition are left as they are."""
    expected = _number(status, "expectedUpdatedReplicas")
    if expected is not None:
        return expected  # OpenKruise's workloads
    rolling = mapping(strategy.get("rollingUpdate"))
    return max(0, desired - (_number(rolling if "partition" in rolling else strategy, "partition") or 0))


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request that a run has made, with what it records about the run."""

    request: Request
    run: Run
    aborted: bool = False  # Whether the run was aborted
    progress: Progress | None = None  # None where its process has written none here

    @property
    def succeeded(self) -> bool:
        """Whether every container was recreated."""
        states = self.request.status.states
        return self.request.completed and bool(states) and all(each.phase == "Succeeded" for each in states)

    @property
    def started(self) -> bool:
        """Whether the node is at work on it."""
        return self.request.status.phase is RequestPhase.RECREATING

    @property
    def age(self) -> tuple[str, str]:
        """What requests are ordered by: the oldest first."""
        return self.request.created, self.request.name


def read_run_request(obj: Mapping[str, Any]) -> RunRequest | None:
    """A request of a run; None for one that is of no run, or does not say so in a way that can be read."""
    meta = mapping(obj.get("metadata"))
    annotations, name = mapping(meta.get("annotations")), text(mapping(meta.get("labels")).get(LABEL_RUN))
    try:
        shape = mapping(json.loads(text(annotations.get(ANNOTATION_RUN))))
        started, raw = text(shape.get("started")), dict(mapping(shape.get("options")))
        raw["containers"] = tuple(map(text, items(raw.get("containers"))))
        raw["max_unavailable"] = read_amount(text(raw.get("max_unavailable")))
        target, options = Target(**mapping(shape.get("target"))), Options(**raw)
    except (ValueError, TypeError, RecursionError):
        return None
    sound = _fits(target, Target("")) and _fits(options, Options(())) and parse_time(started) is not None
    if not sound or not (options.containers or options.stale) or not RUN_NAME.fullmatch(name):
        return None
    run = Run(text(meta.get("namespace")), name, target, options, started, _number(shape, "revision") or 0)
    progress = _read_progress(text(annotations.get(ANNOTATION_PROGRESS)))
    return RunRequest(parse_request(obj), run, ANNOTATION_ABORTED in annotations, progress)


def _read_progress(annotation: str) -> Progress | None:
    try:
        found = Progress(**mapping(json.loads(annotation)))
    except (ValueError, TypeError, RecursionError):
        return None
    return found if _fits(found, Progress("", "", "", 0, 0)) and parse_time(found.at) is not None else None


def _fits(found: Target | Options | Progress, plain: Target | Options | Progress) -> bool:
    """Whether each field has the type that a plain value of the same class has."""
    for name in plain.__slots__:
        value, like = getattr(found, name), getattr(plain, name)
        allowed = (int, type(None)) if like is None else type(like)
        if not isinstance(value, allowed) or (isinstance(value, bool) and not isinstance(like, bool)):
            return False
    return True


def newest_run(requests: Iterable[RunRequest]) -> Run:
    """The run with its options as they were changed last."""
    return max(requests, key=lambda each: (each.run.revision, each.age)).run


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """What a container's probe said when it failed last."""

    message: str
    at: datetime  # Kubelet's clock


@dataclass(frozen=True, slots=True)
class World:
    """All that a plan rests on, at one moment."""

    members: tuple[Member, ...]  # The target's pods
    requests: tuple[RunRequest, ...] = ()  # Those of all runs of the namespace
    workload: Workload | None = None
    budgets: tuple[Budget, ...] = ()
    zones: Mapping[str, str] = field(default_factory=dict)  # By node
    daemons: frozenset[str] | None = None  # Nodes with a node daemon; None where nobody can tell
    aborted: frozenset[str] = frozenset()  # Names of runs that somebody has aborted
    refused: Mapping[str, str] = field(default_factory=dict)
    """Pods (UID) for which the API server would not have this run's request, and what it said."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of pods that have a request of another run and are not the target's, by UID, as far as they are known."""
    kubelets: Mapping[str, str] = field(default_factory=dict)
    """By node: the version that its kubelet reports, as far as it is known; only of nodes where it matters."""
    probes: Mapping[tuple[str, str], ProbeFailure] = field(default_factory=dict)
    """By pod (UID) and container: the last failure of a probe, as far as events are read."""
    config: Mapping[tuple[Kind, str], ConfigObject | None] = field(default_factory=dict)
    """ConfigMaps and Secrets that pods use, None for one that is gone; empty where the run does not look at them."""

    def requests_of(self, run: Run) -> list[RunRequest]:
        """The requests of one run, the oldest first."""
        return sorted((each for each in self.requests if each.run.name == run.name), key=lambda each: each.age)

    def latest(self, run: Run) -> Run:
        """The run with its options as another process may have changed them since."""
        own = self.requests_of(run)
        return max(run, newest_run(own), key=lambda each: each.revision) if own else run
