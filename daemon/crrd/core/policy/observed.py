"""The observed state of a policy's target: its running containers, and the data that they use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from crrd.core.api.pod import ContainerKind
from crrd.core.api.time import parse_time
from crrd.core.config.kept import NodeUse
from crrd.core.config.parts import Part, held_since, parts_of
from crrd.core.config.references import ObjectName, Reference, Use
from crrd.core.config.uses import Unreached
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import Policy, PolicyStatus
from crrd.core.recreate.declared import undeclared
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.patch.kind import never_patched
from crrd.core.rollout.run import Options
from crrd.core.rollout.skips import barred
from crrd.core.rollout.state import Member, read_member
from crrd.core.rollout.waits import Skip
from crrd.core.rollout.whole_pod import never_in_place
from crrd.kubelet.version import known_minor

UseKey = tuple[str, Part]  # The container's name, and the part that it uses


@dataclass(frozen=True, slots=True)
class Data:
    """The data of the part of an object that one container uses. An object that does not exist has no UID."""

    hash: str  # "" if an object or key is missing without which the container does not start
    changed: datetime | None
    """When it last changed, from managedFields: may be too late. None if unknown, as after a key was removed."""
    uid: str = ""
    created: datetime | None = None  # When the object was created
    immutable: bool = False
    whole: str = ""  # Hash of all its data, whatever is used; "" for a Secret
    size: int = 0  # Bytes of all its data as JSON
    version: str = ""  # Its resourceVersion

    @property
    def exists(self) -> bool:
        """Whether a container can start with it. Otherwise a required object or key is missing."""
        return bool(self.hash)

    @property
    def immutable_uid(self) -> str:
        """The object's UID if it is immutable, else ""."""
        return self.uid if self.immutable else ""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another policy of the namespace, as far as this one may have to wait for it."""

    name: str
    after: tuple[str, ...] = ()  # Its own `spec.after`
    active: bool = True  # Whether it does anything about changes of configuration, unless something stops it
    uses: frozenset[ObjectName] = frozenset()  # The objects that its containers use
    seen: frozenset[ObjectName] = frozenset()  # Those whose present version it has decided about
    wants: frozenset[ObjectName] = frozenset()  # Those whose change not all of its containers have
    runs: frozenset[ObjectName] = frozenset()  # Those of its run in progress
    past_first_step: bool = False  # Whether this run has done its first step
    failed: str = ""  # The run that stops it, "" for none
    refused: frozenset[ObjectName] = frozenset()
    """Those with whose present data a run of it has failed, or may have failed. Not if it tries them once more, and has
    done its first step."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A ControllerRevision that keeps the data of a ConfigMap."""

    name: str
    object: str  # Name of the ConfigMap
    hash: str  # Of its data, as the ControllerRevision says


@dataclass(frozen=True, slots=True)
class Running:
    """One container of a running pod."""

    pod: str
    name: str
    started: datetime  # Now, if it does not run: it will start later than this
    uses: tuple[Reference, ...] = ()
    ready: bool = False
    ready_after: float | None = None
    """Seconds from the start of the pod's newest container until the pod was ready; None if it is not ready."""
    node: str = ""
    mounted: datetime | None = None  # As in `held_since`; None if it does not run
    barred: Skip | None = None  # Why it cannot be restarted in place, whatever happens
    is_init: bool = False  # Whether it runs again only with its whole pod
    barred_by: str = ""  # The container because of which it is barred, if that is another one
    undeclared: str = "its pod does not declare a reload"  # Why it cannot reload by its declaration, "" if it can

    @property
    def keys(self) -> Mapping[UseKey, datetime]:
        """The keys of the records about the data that it uses, and since when it has the data, at the earliest."""
        parts = parts_of(self.uses).items()
        return {(self.name, part): held_since(uses, self.started, self.mounted) for part, uses in parts}

    def why_restart(self, changed: Iterable[Part]) -> str:
        """Return why a reload would not bring it changes of these parts, "" if it would."""
        parts = parts_of(self.uses)
        kept = {str(use) for part in changed for use in parts[part] if use.use is not Use.VOLUME}
        return f"{self.name} uses {', '.join(sorted(kept))}" if kept else self.undeclared


def used_parts(running: Iterable[Running]) -> dict[UseKey, tuple[Reference, ...]]:
    """Return the parts that containers use, with their uses in all pods."""
    found: dict[UseKey, tuple[Reference, ...]] = {}
    for container in running:
        for part, uses in parts_of(container.uses).items():
            key = container.name, part
            found[key] = tuple(dict.fromkeys([*found.get(key, ()), *uses]))
    return found


class Stopped(NamedTuple):
    """Why the state could not be observed: there is no target, it cannot be read, or its pods must not be patched."""

    reason: PolicyReason
    message: str  # Why, and what to do about it


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state of a policy's target."""

    running: tuple[Running, ...] = ()
    """Those that the policy names, with the uses that count for it. Init containers with such uses, if it restarts pods
    for them."""
    data: Mapping[UseKey, Data] = field(default_factory=dict)
    uses: Mapping[ObjectName, Mapping[str, NodeUse]] = field(default_factory=dict)
    """By object and node: the pods of the namespace that use it. Only objects that are immutable, or were."""
    missing: tuple[str, ...] = ()  # Messages about missing objects and keys that containers need to start
    stopped: Stopped | None = None  # What kept the look from its end, None for nothing
    progress: str = ""  # What the active run waits for
    idle_for: float = 0.0  # Seconds since the active run has made progress
    down: Mapping[str, str] = field(default_factory=dict)
    """By node: why it cannot restart containers now, for nodes of `running`."""
    old_daemons: frozenset[str] = frozenset()  # Nodes whose daemon does not know how to reload containers
    reloaded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By run: pods whose last request has succeeded. Known only of runs in which containers reload, and which have
    failed or wait for the window."""
    old_files: str | None = None
    """Why the last run could not have files refreshed; "" if it could, None if that is unknown."""
    dropped: tuple[str, ...] = ()  # Fields of the status that the API server dropped at the last write
    names: frozenset[str] = frozenset()  # All containers of the pods that can be restarted in place
    not_owned: int = 0  # Pods that match the target's selector, and that other workloads own
    left_out: tuple[Reference, ...] = ()  # Uses that do not count: Secrets without `secrets`, or ignored objects
    unreached: tuple[Unreached, ...] = ()
    workload_min_ready: int = 0  # The workload's minReadySeconds
    template: TemplateImages | None = None  # How its template differs from the pods; None if that does not count
    peers: tuple[Peer, ...] = ()  # The other policies of the namespace
    stored: tuple[Stored, ...] | None = None
    """The ControllerRevisions of the policy. None if they do not matter, or the manager may not restore data."""
    unrestorable: str = ""  # Why the manager may not restore data, and what to do about it
    written: frozenset[tuple[str, str]] = frozenset()
    """ConfigMaps to which this process has written kept data, with the resourceVersions that were replaced by that."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By ConfigMap: why it could not be kept or restored. By ControllerRevision: why it could not be deleted."""
    unsettled: Mapping[UseKey, datetime] = field(default_factory=dict)
    """Changes that were settling at the last look -> the first of the looks in a row at which they were."""


@dataclass(frozen=True, slots=True)
class Look:
    """A policy, what was observed for it, and when: the input of every part of a decision."""

    policy: Policy
    found: Observed
    now: datetime  # The API server's time

    @property
    def status(self) -> PolicyStatus:
        """The policy's status."""
        return self.policy.status

    def with_status(self, status: PolicyStatus) -> "Look":
        """Return the look with another status of the policy."""
        return replace(self, policy=self.policy.with_status(status))

    @property
    def served(self) -> tuple[Running, ...]:
        """The running containers whose nodes can restart them now."""
        return tuple(each for each in self.restartable if each.node not in self.found.down)

    @property
    def unserved(self) -> tuple[Running, ...]:
        """The running containers that wait until their nodes can restart them."""
        return tuple(each for each in self.restartable if each.node in self.found.down)

    @property
    def restartable(self) -> tuple[Running, ...]:
        """The running containers that can be restarted in place, once their nodes can do it, and init containers."""
        return tuple(each for each in self.found.running if each.barred is None)

    @property
    def changes(self) -> tuple[TemplateChange, ...]:
        """The containers of the policy that are to get an image of the template."""
        chosen, template = self.policy.containers, self.found.template
        return tuple(each for each in template.changes if not chosen or each.container in chosen) if template else ()

    @property
    def follows(self) -> bool:
        """Whether pods in place can follow the template of their workload now."""
        template = self.found.template
        return template is not None and not (template.wait or template.problem or template.refused)

    @property
    def min_ready(self) -> int:
        """How many seconds a pod must be ready: as the policy has it, or else the workload."""
        own = self.policy.budget.min_ready
        return self.found.workload_min_ready if own is None else own


@dataclass(frozen=True, slots=True)
class TargetPod:
    """What a policy needs of one pod."""

    member: Member
    running: tuple[Running, ...] = ()  # Its containers that can be recreated
    initial: tuple[Running, ...] = ()  # Its init containers
    unreached: tuple[Unreached, ...] = ()


def read_pod(pod: Mapping[str, Any], now: datetime) -> TargetPod:
    """Parse a pod. A container that does not run counts, too, so that the policy keeps its records of it."""
    member = read_member(pod, with_init=True)
    found, node, uses = member.pod, member.pod.node_name, member.config
    if found.deleting or found.ended:
        return TargetPod(member)
    there = {name: each for name, each in found.containers.items() if each.kind.recreatable}
    started = {name: parse_time(each.started_at) for name, each in there.items()}
    newest = max((at for at in started.values() if at is not None), default=None)
    ready = member.ready_since if member.ready and None not in started.values() else None
    ready_after = None if ready is None or newest is None else max(0.0, (ready - newest).total_seconds())
    running = (
        Running(
            found.name,
            name,
            at or now,
            uses[name],
            there[name].ready,
            ready_after,
            node,
            member.mounted(name),
            undeclared=undeclared(found, name).text,
        )
        for name, at in started.items()
    )
    initial = (
        Running(
            found.name,
            name,
            member.started(name) or now,
            uses[name],
            each.ready,
            node=node,
            mounted=member.mounted(name),
            is_init=True,
        )
        for name, each in found.containers.items()
        if each.kind is ContainerKind.INIT
    )
    return TargetPod(member, tuple(running), tuple(initial), member.unreached)


def observe(policy: Policy, pods: Iterable[TargetPod], kubelets: Mapping[str, str]) -> Observed:
    """Return what the policy's containers use, as far as it counts for the policy.

    `kubelets` are versions by node. An unknown one restarts less.
    """
    known, config = list(pods), policy.config
    every = [
        replace(each, barred=_barred(policy, pod.member, each.name, known_minor(kubelets.get(each.node, ""))))
        for pod in known
        for each in pod.running
    ]
    names = frozenset(each.name for each in every)
    chosen = [each for each in every if not policy.containers or each.name in policy.containers]
    if config is None:
        return Observed(tuple(chosen), names=names)
    initial = [
        replace(each, barred=skip, barred_by=name)
        for pod in (known if config.allow_pod_restart else ())
        for skip, name in [_barred_pod(pod.member, known_minor(kubelets.get(pod.member.pod.node_name, "")))]
        for each in pod.initial
    ]
    names |= {each.name for each in initial}
    wanted = [each for each in initial if not policy.containers or each.name in policy.containers]
    counted = [replace(each, uses=tuple(filter(config.counts, each.uses))) for each in (*chosen, *wanted)]
    running = tuple(each for each in counted if each.uses or not each.is_init)
    left_out = dict.fromkeys(use for each in (*chosen, *wanted) for use in each.uses if not config.counts(use))
    reached = {each.name for each in wanted}
    lost = dict.fromkeys(
        each
        for pod in known
        for each in pod.unreached
        if config.counts(each) and not (each.of_init and each.container in reached)
    )
    return Observed(running, names=names, left_out=tuple(left_out), unreached=tuple(lost))


def _barred_pod(member: Member, minor: int | None) -> tuple[Skip | None, str]:
    """Return why a whole pod cannot be restarted in place, whatever happens, and its container."""
    found = ((never_in_place(member, each, minor), each.name) for each in member.pod.containers.values())
    return next((each for each in found if each[0] is not None), (None, ""))


def _barred(policy: Policy, member: Member, name: str, minor: int | None) -> Skip | None:
    container = member.pod.containers[name]
    found = barred(member.pod, container, minor)
    return found or (never_patched(member, container, minor, Options(())) if policy.patch else None)
