"""Which nodes keep the data of an immutable object after it was deleted and created again under its name.

kubelet reads an immutable object once, and again only after no pod on its node has used it (`objectCacheItem` in
pkg/kubelet/util/manager/watch_based_manager.go). Until then a restarted container gets the old data, and so does a new
pod. So it matters when the first of the pods was created that have used the object on the node without a gap.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from crrd.core.api.pod import Pod, PodContainer, parse_pod, pod_containers
from crrd.core.api.time import parse_time
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, ObjectName
from crrd.lib.jsonfields import items, mapping, number, text, value_at

_FIELDS = {
    "configMap": Kind.CONFIG_MAP,
    "configMapRef": Kind.CONFIG_MAP,
    "configMapKeyRef": Kind.CONFIG_MAP,
    "secret": Kind.SECRET,
    "secretRef": Kind.SECRET,
    "secretKeyRef": Kind.SECRET,
    "nodePublishSecretRef": Kind.SECRET,
    "azureFile": Kind.SECRET,
}
"""The fields of a pod's spec that name an object, by `VisitPodConfigmapNames` and `VisitPodSecretNames`."""
_LONG_AGO, _NOT_YET = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_SKEW = timedelta(seconds=2)
"""A node's clock may be ahead or behind by this much, and its times are whole seconds."""


@dataclass(frozen=True, slots=True)
class Since:
    """Since when a pod has used an object."""

    created: datetime  # The creation of the pod, or the time at which the first container that uses it was added
    started: datetime = _NOT_YET
    """When the first container that uses it started, or `created` if that one has ended since, and is perhaps back."""


@dataclass(frozen=True, slots=True)
class UserPod:
    """A pod, as far as it decides what its kubelet keeps."""

    node: str  # "" if it uses nothing there: it is not scheduled, or has ended
    objects: Mapping[ObjectName, Since]


def read_user(obj: Mapping[str, Any]) -> UserPod:
    """Parse a pod from its JSON."""
    pod, spec = parse_pod(obj), mapping(obj.get("spec"))
    pulls = (text(mapping(each).get("name")) for each in items(spec.get("imagePullSecrets")))
    whole = [*_named(spec.get("volumes")), *((Kind.SECRET, name) for name in pulls)]
    users = {name: set(_named(entry)) for name, entry, _ in pod_containers(spec)}
    return user_of(pod, text(value_at(obj, "metadata.creationTimestamp")), additions(obj), whole, users)


def user_of(
    pod: Pod,
    created: str,
    added: Mapping[str, datetime],
    whole: Iterable[ObjectName],
    users: Mapping[str, Iterable[ObjectName]],
) -> UserPod:
    """Return a pod as a user of objects.

    Args:
        pod: the pod.
        created: its creationTimestamp.
        added: containers that were added later, and when (`additions`).
        whole: the objects that all of its containers need, for its volumes and pulls.
        users: those that each container uses.
    """
    at = parse_time(created) or _LONG_AGO
    each_since = {name: _since(each, at, added.get(name)) for name, each in pod.containers.items()}
    first = Since(at, min((since.started for since in each_since.values()), default=_NOT_YET))
    found = dict.fromkeys(whole, first)
    for name, objects in users.items():
        for used in objects:
            since, other = each_since[name], found.get(used)
            earlier = other and Since(min(since.created, other.created), min(since.started, other.started))
            found[used] = earlier or since
    return UserPod("" if pod.ended else pod.node_name, found)


def _since(container: PodContainer, created: datetime, added: datetime | None) -> Since:
    """Return since when a container uses its objects. It is as old as its pod, unless it was certainly added later.

    The time of managedFields is that of the last change by the same client, for example of another image. So it counts
    only if the container has started once, after it.
    """
    started = parse_time(container.started_at)
    if container.restart_count or container.terminated:
        return Since(created, created)
    if started is None:
        return Since(created)
    return Since(created if added is None or added > started else added, started)


def additions(obj: Mapping[str, Any]) -> dict[str, datetime]:
    """Return when containers were added to a pod, by its managedFields: who adds an entry to a list owns its "."."""
    found = dict[str, datetime]()
    meta, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    if number(meta.get("generation")) <= 1 and not spec.get("ephemeralContainers"):
        return found
    for entry in map(mapping, items(meta.get("managedFields"))):
        owned, at = mapping(mapping(entry.get("fieldsV1")).get("f:spec")), parse_time(text(entry.get("time")))
        there = dict[str, Any]()
        for key in ("containers", "initContainers", "ephemeralContainers"):
            there |= mapping(owned.get(f"f:{key}"))
        for name, _, _ in pod_containers(spec):
            if at is not None and "." in mapping(there.get(f'k:{{"name":"{name}"}}')):
                found[name] = min(at, found.get(name, at))
    return found


def _named(value: object) -> Iterator[ObjectName]:
    """Yield the objects that a part of a pod's spec names."""
    for each in items(value):
        yield from _named(each)
    for key, inner in mapping(value).items():
        found = mapping(inner)
        if key in _FIELDS and (name := text(found.get("name")) or text(found.get("secretName"))):
            yield _FIELDS[key], name
        yield from _named(inner)


@dataclass(slots=True)
class NodeUse:
    """The pods on one node that have used an object without a gap, those that are gone included."""

    created: datetime  # The first `Since.created` of them, as far as is known
    started: datetime = _NOT_YET  # The same for `Since.started`
    whole: bool = False  # Whether no pod on the node used the object before these
    pods: set[str] = field(default_factory=set)  # UIDs of those that are there


class ObjectUses:
    """The uses of objects on nodes, from the changes of pods in their order.

    `freed` is called with an object that no pod on a node uses any more.
    """

    def __init__(self, freed: Callable[[ObjectName], None] = lambda _: None) -> None:
        self._freed = freed
        self._uses: dict[ObjectName, dict[str, NodeUse]] = {}
        self._listing = False

    def of(self, name: ObjectName) -> Mapping[str, NodeUse]:
        """Return the uses of an object, by node."""
        return self._uses.get(name, {})

    def change(self, uid: str, before: UserPod | None, after: UserPod | None) -> None:
        """Record a change of a pod: None before its creation, and after its deletion."""
        for node, name in _places(before) - _places(after):
            self._uses[name][node].pods.discard(uid)
            if not self._listing:
                self._free(name, node)
        for node, name in _places(after):
            assert after is not None  # noqa: S101 - it has places
            uses = self._uses.setdefault(name, {})
            since, earlier = after.objects[name], before.objects.get(name) if before is not None else None
            use = uses.setdefault(node, NodeUse(since.created, whole=not self._listing))
            use.created = min(use.created, since.created)
            if earlier is None or earlier.started == _NOT_YET or uid not in use.pods:
                use.started = min(use.started, since.started)
            use.pods.add(uid)

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Record the changes inside the block as those between two lists, whose order is unknown."""
        self._listing = True
        try:
            yield
        finally:
            self._listing = False
            for name, node in [(name, node) for name, uses in self._uses.items() for node in uses]:
                self._free(name, node)

    def _free(self, name: ObjectName, node: str) -> None:
        if not self._uses[name][node].pods:
            del self._uses[name][node]
            if not self._uses[name]:
                del self._uses[name]
            self._freed(name)


def _places(pod: UserPod | None) -> set[tuple[str, ObjectName]]:
    return {(pod.node, name) for name in pod.objects} if pod is not None and pod.node else set()


def kept_nodes(uses: Mapping[str, NodeUse], replaced: datetime, known: Collection[str] | None) -> tuple[str, ...]:
    """Return the nodes that may keep the data of an object that was replaced or deleted at this time.

    `known` are those that kept it at the last look; None at the first one. Where no gap was seen, there may have been
    older pods.
    """
    found = (
        node
        for node, use in uses.items()
        if use.created < replaced or (not use.whole and (known is None or node in known))
    )
    return tuple(sorted(found))


def ran_before(uses: Mapping[str, NodeUse], created: datetime) -> tuple[str, ...]:
    """Return the nodes where a pod ran before an object was created, and so did not only wait for it."""
    return tuple(sorted(node for node, use in uses.items() if use.started < created - _SKEW))


def kept_of_pods(
    pods: Iterable[UserPod], known: Mapping[ObjectName, ConfigObject | None]
) -> dict[str, frozenset[ObjectName]]:
    """Return the objects of which older data may be kept, by node, if no more is known than the pods that are there.

    Then an immutable object that is newer than pods on the node counts as replaced, although there may have been none
    before it.
    """
    uses = ObjectUses()
    for count, pod in enumerate(pods):
        uses.change(str(count), None, pod)
    found: dict[str, set[ObjectName]] = {}
    for name, obj in known.items():
        if obj is not None and obj.immutable and obj.created is not None:
            for node in ran_before(uses.of(name), obj.created):
                found.setdefault(node, set()).add(name)
    return {node: frozenset(names) for node, names in found.items()}
