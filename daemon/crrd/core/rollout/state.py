"""The objects that a run needs, parsed from JSON. Nothing here raises for invalid input."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.pod import ContainerKind, Pod, parse_pod
from crrd.core.api.time import parse_time
from crrd.core.api.types import ANNOTATION_REFRESH, LABEL_RELOADS, StatePhase
from crrd.core.config.kept import UserPod, additions, user_of
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import ObjectName, Reference
from crrd.core.config.uses import Unreached, references, unreached
from crrd.core.rollout.labels import LabelSelector, read_selector
from crrd.core.rollout.patched import due_for_request, image_changes, own_annotations, read_patched
from crrd.core.rollout.requests import GivenImage, RunRequest
from crrd.core.rollout.run import Run
from crrd.core.rollout.workload import Owner, Workload, read_owner
from crrd.lib.jsonfields import condition, condition_is_true, mapping, number, text

ZONE = "topology.kubernetes.io/zone"
_PULLS_WITH = ("serviceAccountName", "imagePullSecrets", "runtimeClassName")
_ORDINAL = re.compile(r"-(\d{1,9})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """A pod, with more fields that a run needs."""

    pod: Pod
    created: str = ""  # creationTimestamp, RFC 3339, the API server's clock
    ready: bool = False  # Its condition Ready
    ready_since: datetime | None = None  # Time of the last change of `ready`, kubelet's clock
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    config: Mapping[str, tuple[Reference, ...]] = field(default_factory=dict)
    """By container: the ConfigMaps and Secrets that it uses. Init containers only if whole pods are restarted."""
    unreached: tuple[Unreached, ...] = ()  # Configuration whose changes lead to no restart in place
    refresh_token: str = ""  # The annotation of `core.rollout.restart`
    pull_source: Mapping[str, Any] = field(default_factory=dict)  # See `pull_source`
    added: Mapping[str, datetime] = field(default_factory=dict)
    """By container: when it was added to the pod's spec. Empty if the spec has not changed since the pod's creation."""
    disrupted: bool = False  # Whether it was evicted or preempted, or is about to be (condition DisruptionTarget)
    annotations: Mapping[str, str] | None = None  # crrd's own; None if the pod has no annotations at all
    image_changes: Mapping[str, datetime] = field(default_factory=dict)
    """By container: when its image was changed in the pod's spec. Empty if that has not changed since its creation."""
    patched: RunRequest | None = None  # The last restart by a patch, as a request of its run
    due: tuple[str, ...] = ()  # As in `due_for_request`

    @property
    def counts(self) -> bool:
        """Whether it is one of the workload's active pods."""
        return not self.pod.deleting and not self.pod.ended

    def created_after(self, moment: str) -> bool:
        """Whether it was created after a time (RFC 3339). False if one of the times is unknown."""
        created, at = parse_time(self.created), parse_time(moment)
        return created is not None and at is not None and created > at

    def available_at(self, min_ready: int) -> datetime | None:
        """Return when it has been ready for `min_ready` seconds; None if it is not ready, or its times are unknown.

        As in `settled_at`, this is a fact about the pod: it does not matter which run restarted it.
        """
        started = (parse_time(each.started_at) for each in self.pod.containers.values() if each.running)
        known = [moment for moment in (self.ready_since, *started) if moment is not None]
        return max(known) + timedelta(seconds=min_ready) if self.ready and known else None

    def started(self, container: str) -> datetime | None:
        """Return when a container has started, at the earliest; None if it has not.

        Kubelet does not know it of an init container that was removed after its end.
        """
        found = self.pod.containers[container]
        has_ended = found.kind is ContainerKind.INIT and found.terminated
        return parse_time(found.started_at) or (parse_time(self.created) if has_ended else None)

    def mounted(self, container: str) -> datetime | None:
        """Return when kubelet may have set up the files of a container that has started only once; else None."""
        found = self.pod.containers[container]
        has_run = found.running or (found.kind is ContainerKind.INIT and found.terminated)
        added, began = self.added.get(container), parse_time(found.started_at)
        at = added if added is not None and began is not None and added <= began else parse_time(self.created)
        return at if has_run and not found.restart_count else None

    def unreplaced(self, given: Collection[GivenImage]) -> Iterator[str]:
        """Yield the containers that kubelet must replace, as far as known: for one of these images, or by a patch."""
        for each in self.pod.containers.values() if given else ():
            if GivenImage(self.pod.uid, each.name, each.image, each.container_id) in given:
                yield each.name
        yield from self.due
        states = self.patched.request.status.states if self.patched is not None else ()
        yield from (each.name for each in states if each.phase is StatePhase.RECREATING)

    @property
    def user(self) -> UserPod:
        """The pod as a user of ConfigMaps and Secrets."""
        whole = [use.object for some in self.config.values() for use in some if use.use.mounted]
        users = {name: [use.object for use in some] for name, some in self.config.items()}
        return user_of(self.pod, self.created, self.added, whole, users)

    @property
    def ordinal(self) -> int:
        """The ordinal at the end of its name, as in StatefulSets; -1 if there is none."""
        found = _ORDINAL.search(self.pod.name)
        return int(found[1]) if found else -1


def read_member(obj: Mapping[str, Any], *, with_config: bool = True, with_init: bool = False) -> Member:
    """A pod. What it uses is read only `with_config`, because that takes most of the time.

    `with_init`: also what its init containers use.
    """
    meta = mapping(obj.get("metadata"))
    pod, ready = parse_pod(obj), condition(obj, "Ready")
    return Member(
        pod=pod,
        created=text(meta.get("creationTimestamp")),
        ready=ready.get("status") == "True",
        ready_since=parse_time(text(ready.get("lastTransitionTime"))),
        labels={key: value for key, value in mapping(meta.get("labels")).items() if isinstance(value, str)},
        owner=read_owner(obj),
        config=references(obj, with_init=with_init) if with_config else {},
        unreached=unreached(obj) if with_config else (),
        refresh_token=text(mapping(meta.get("annotations")).get(ANNOTATION_REFRESH)),
        pull_source=pull_source(obj),
        added=additions(obj) if with_config else {},
        disrupted=condition_is_true(obj, "DisruptionTarget"),
        annotations=own_annotations(obj),
        image_changes=image_changes(obj),
        patched=read_patched(obj, pod),
        due=due_for_request(obj, pod),
    )


def pull_source(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what kubelet pulls the images of a pod with."""
    spec = mapping(pod.get("spec"))
    return {key: spec[key] for key in _PULLS_WITH if spec.get(key)}


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    name: str
    uid: str
    selector: LabelSelector | None
    allowed: int  # disruptionsAllowed
    current: bool = True  # Whether its status is about the present spec

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it is about pods with these labels."""
        return self.selector is not None and self.selector.matches(labels)


def read_budget(obj: Mapping[str, Any]) -> Budget:
    """A PodDisruptionBudget."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name, uid = (text(meta.get(key)) for key in ("name", "uid"))
    current = number(status.get("observedGeneration")) >= number(meta.get("generation"))
    return Budget(name, uid, read_selector(spec.get("selector")), number(status.get("disruptionsAllowed")), current)


@dataclass(frozen=True, slots=True)
class NodeDaemon:
    """The node daemon of a node, from its pod. A node without a ready one cannot restart containers."""

    node: str
    ready: bool
    since: datetime | None = None  # Time of the last change of `ready`, None if unknown
    reloads: bool = True  # Whether it serves requests for a reload, as far as known


def read_node_daemon(obj: Mapping[str, Any]) -> NodeDaemon:
    """A pod of the node daemon. One that is being deleted is not ready."""
    ready, deleting = condition(obj, "Ready"), "deletionTimestamp" in mapping(obj.get("metadata"))
    node, since = text(mapping(obj.get("spec")).get("nodeName")), parse_time(text(ready.get("lastTransitionTime")))
    reloads = mapping(mapping(obj.get("metadata")).get("labels")).get(LABEL_RELOADS) == "true"
    return NodeDaemon(node, ready.get("status") == "True" and not deleting, since, reloads)


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """The last failure of a container's probe."""

    message: str
    at: datetime  # Kubelet's clock


@dataclass(frozen=True, slots=True)
class Measured:
    """What the metrics of a judgement have said last."""

    at: datetime  # The API server's clock
    holds: bool | None  # None if that is not known
    words: str  # With the numbers
    unknown: int = 0  # How many times in a row it was not known


class Extra:
    """What one kind of run knows of the cluster in addition. A kind that knows more has a subclass."""

    __slots__ = ()


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
    ready_since: Mapping[str, datetime] = field(default_factory=dict)  # Since when other nodes are, if that was read
    aborted: frozenset[str] = frozenset()  # Names of aborted runs
    refused: Mapping[str, str] = field(default_factory=dict)
    """Pods (UID) whose request the API server rejected, and its message."""
    retried: frozenset[str] = frozenset()  # Failed requests (UID) whose pods are restarted again
    starting: Mapping[str, str] = field(default_factory=dict)
    """By pod (UID): the name of the request that is being created, and may exist already. The pod counts as started."""
    peer_starts: int = 0  # How often another run of this process has started a pod that uses the same budgets
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By UID: known pods that are not the target's and have a request of another run."""
    kubelets: Mapping[str, str] = field(default_factory=dict)
    """By node: its kubelet's version, if it is known and needed."""
    probes: Mapping[tuple[str, str], ProbeFailure] = field(default_factory=dict)
    """By pod (UID) and container: the last failure of a probe that an event reported."""
    config: Mapping[ObjectName, ConfigObject | None] = field(default_factory=dict)
    """ConfigMaps and Secrets that pods use (None: does not exist). Empty if the run does not need them."""
    kept: Mapping[str, frozenset[ObjectName]] = field(default_factory=dict)
    """By node: immutable objects of which kubelet may keep older data."""
    measured: Measured | None = None  # None if this process has not asked the metrics yet
    extra: Extra = Extra()  # noqa: RUF009 - it has no state

    def at(self, now: datetime) -> "World":
        """Return the world at this time, at which requests that are kept on pods may have failed."""
        return replace(self, requests=tuple(each.at(now) for each in self.requests))

    def unreplaced(self, given: Iterable[GivenImage]) -> Collection[tuple[str, str]]:
        """Return the containers (pod's UID, name) that kubelet must replace because of any run, as far as known.

        A pod that has an image may still run the old one, whatever has become of its request. The image that its status
        names does not say so, because images may have several names. `given` is what this process has given to pods.
        """
        asked = [each for each in self.requests if each.request.for_image]
        done = {image for each in asked if each.succeeded for image in each.given}
        due = {image for each in asked for image in each.given}.union(given) - done
        return {(member.pod.uid, name) for member in self.members for name in member.unreplaced(due)}

    def kept_on(self, member: Member) -> Collection[ObjectName]:
        """Return the objects of which a pod may have older data that kubelet keeps."""
        return self.kept.get(member.pod.node_name, ())

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
        newer = (each.run for each in self.requests_of(run) if each.run.revision > run.revision)
        own = (each for each in newer if each.aim == run.aim)
        return replace(max((run, *own), key=lambda each: each.revision), only=run.only)
