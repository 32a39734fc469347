"""The storage of an API server: objects with versions, their changes, and the watches.

Objects are never changed in place. The rules are those of kube-apiserver: one version counter for everything; a change
without effect has no version; an object that leaves a selection is reported as DELETED, in its last selected state.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
Passes = Callable[[Object], bool]
_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")  # Of a label selector
KINDS = (
    "pods",
    "nodes",
    "namespaces",
    "configmaps",
    "deployments",
    "statefulsets",
    "daemonsets",
    "replicasets",
    "controllerrevisions",
    "poddisruptionbudgets",
    "containerrecreaterequests",
    "containerrecreatepolicies",
)
BUMP = 1_000_000  # Increase of the version by a restored etcd, so that no version is used twice


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object. `old` is None for a creation, `new` for a removal."""

    version: int
    old: Object | None
    new: Object | None


@dataclass(slots=True, eq=False)
class Watch:
    """An open watch. `tell` is called with its lines."""

    passes: Passes
    tell: Callable[[list[bytes], list[tuple[str, Object]]], None]
    seen: int  # The last version that was reported
    held: bool = False  # Whether the server is behind, so that nothing is reported for now


@dataclass(slots=True)
class Kind:
    """All objects of one kind."""

    name: str
    namespaced: dict[str, Object] = field(default_factory=dict)  # By `namespace/name`
    changes: list[Change] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    oldest: int = 0  # Changes up to this version are forgotten
    watches: list[Watch] = field(default_factory=list)


class Store:
    """All objects. `changed` is called for every change, after the watches."""

    def __init__(
        self, changed: Callable[[str, Change], None], now: Callable[[], str], clock: Callable[[], float]
    ) -> None:
        self.version = 100
        self._clock = clock
        self._times: list[tuple[float, int]] = []
        self.kinds = {name: Kind(name) for name in KINDS}
        self._changed = changed
        self._now = now

    def get(self, kind: str, key: str) -> Object | None:
        return self.kinds[kind].namespaced.get(key)

    def all(self, kind: str) -> list[Object]:
        return list(self.kinds[kind].namespaced.values())

    def create(self, kind: str, obj: Object) -> Object:
        meta = {"creationTimestamp": self._now(), **obj["metadata"]}
        return self._put(kind, None, {**obj, "metadata": meta})

    def update(self, kind: str, new: Object) -> Object:
        """Store a new state of an object, or remove the object if its last finalizer was removed."""
        old = self.kinds[kind].namespaced[key_of(new)]
        if new == old:
            return old
        meta = new["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            self.remove(kind, key_of(new))
            return new
        return self._put(kind, old, new)

    def patch(self, kind: str, key: str, patch: Mapping[str, Any]) -> Object | None:
        """Apply a merge patch without conditions, of another client than the daemon."""
        old = self.get(kind, key)
        return None if old is None else self.update(kind, merged(old, patch))

    def delete(self, kind: str, key: str, grace: int = 0) -> None:
        """Delete at once, or after finalizers and grace period."""
        old = self.get(kind, key)
        if old is None or old["metadata"].get("deletionTimestamp"):
            return
        if not grace and not old["metadata"].get("finalizers"):
            self.remove(kind, key)
            return
        meta = {**old["metadata"], "deletionTimestamp": self._now(), "deletionGracePeriodSeconds": grace}
        self._put(kind, old, {**old, "metadata": meta})

    def remove(self, kind: str, key: str) -> None:
        found = self.kinds[kind]
        old = found.namespaced.pop(key)
        self.version += 1
        # the event of a removal has the version of the removal
        self._note(found, Change(self.version, at_version(old, self.version), None))

    def at(self, kind: str, version: int) -> list[Object]:
        """Return all objects as they were at a version."""
        found = self.kinds[kind]
        if version >= self.version:
            return list(found.namespaced.values())
        state: dict[str, Object] = {}
        for change in found.changes:
            if change.version > version:
                break
            if change.new is not None:
                state[key_of(change.new)] = change.new
            elif change.old is not None:
                state.pop(key_of(change.old), None)
        return list(state.values())

    def version_at(self, time: float) -> int:
        """Return the newest version at a time, or the first one."""
        at = bisect_right(self._times, (time, self.version))
        return self._times[at - 1][1] if at else 100

    def expire(self) -> None:
        """Forget all changes."""
        for kind in self.kinds.values():
            kind.oldest = self.version

    def restore(self, version: int, gone: set[str]) -> list[tuple[Object | None, Object | None]]:
        """Restore an older state, like `etcdctl snapshot restore --bump-revision --mark-compacted`.

        No client can continue from an earlier version. Objects have their old versions, which are lower than those
        seen.

        Args:
            version: of the state.
            gone: UIDs of pods that kubelet has ended since; the others are kept.

        Returns:
            The old and new state of each changed request, or None if it did not or does not exist.
        """
        changed = []
        for kind in self.kinds.values():
            then = {key_of(obj): obj for obj in self.at(kind.name, version) if obj["metadata"]["uid"] not in gone}
            if kind.name == "pods":  # the owners create missing pods again
                then = kind.namespaced | {key: obj for key, obj in then.items() if _same(obj, kind.namespaced.get(key))}
            elif kind.name != "nodes":
                keys = [*kind.namespaced, *(key for key in then if key not in kind.namespaced)]
                both = [(kind.namespaced.get(key), then.get(key)) for key in keys]
                changed += [(old, new) for old, new in both if old != new]
            kind.namespaced = then
            made = sorted((int(obj["metadata"]["resourceVersion"]), key) for key, obj in then.items())
            kind.changes = [Change(at, None, then[key]) for at, key in made]
            kind.versions = [at for at, _ in made]
        self.version += BUMP
        self._times.append((self._clock(), self.version))
        self.expire()
        return changed

    def tell(self, kind: str, watch: Watch, up_to: int) -> None:
        """Report the changes that a watch does not know yet."""
        found = self.kinds[kind]
        lines, told = [], []
        for change in found.changes[bisect_right(found.versions, watch.seen) :]:
            if change.version > up_to:
                break
            watch.seen = change.version
            event = _event(change, watch.passes)
            if event is not None:
                told.append(event)
                lines.append(line(*event))
        if lines:
            watch.tell(lines, told)

    def _put(self, kind: str, old: Object | None, new: Object) -> Object:
        self.version += 1
        new = at_version(new, self.version)
        found = self.kinds[kind]
        found.namespaced[key_of(new)] = new
        self._note(found, Change(self.version, old, new))
        return new

    def _note(self, found: Kind, change: Change) -> None:
        self._times.append((self._clock(), change.version))
        found.changes.append(change)
        found.versions.append(change.version)
        for watch in list(found.watches):
            if not watch.held:
                self.tell(found.name, watch, change.version)
        self._changed(found.name, change)


def _same(one: Object, other: Object | None) -> bool:
    """Whether both are the same object, and it is not being deleted."""
    metas = one["metadata"], {} if other is None else other["metadata"]
    return metas[0]["uid"] == metas[1].get("uid") and not any("deletionTimestamp" in meta for meta in metas)


def _event(change: Change, passes: Passes) -> tuple[str, Object] | None:
    before = change.old is not None and passes(change.old)
    after = change.new is not None and passes(change.new)
    if after and change.new is not None:
        return ("MODIFIED" if before else "ADDED"), change.new
    if before and change.old is not None:
        return "DELETED", at_version(change.old, change.version)
    return None


def line(kind: str, obj: Object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def key_of(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def at_version(obj: Object, version: int) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def merged(old: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    new = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def selector(labels: str, fields: str, namespace: str) -> Passes:
    """Return the predicate of a list or watch, from its path and two selectors.

    Of the forms of selectors, `KEY=VALUE`, `KEY in (VALUE,VALUE)` and `KEY` are known.
    """
    wanted: dict[str, tuple[str, ...] | None] = {}  # Label -> the wanted values, None for any
    for part in _PART.findall(labels.replace("==", "=")):
        key, _, values = part.partition(" in ") if " in " in part else part.partition("=")
        wanted[key] = tuple(values.strip("()").split(",")) if values else None
    wanted_fields = dict(part.split("=", 1) for part in fields.replace("==", "=").split(",") if part)

    def passes(obj: Object) -> bool:
        has = obj["metadata"].get("labels", {})
        if namespace and obj["metadata"].get("namespace") != namespace:
            return False
        if not all(key in has and (not values or has[key] in values) for key, values in wanted.items()):
            return False
        return all(_field(obj, path) == value for path, value in wanted_fields.items())

    return passes


def _field(obj: Any, path: str) -> Any:
    for part in path.split("."):
        obj = obj.get(part, {}) if isinstance(obj, Mapping) else {}
    return obj


def states(obj: Object | None) -> Iterator[Mapping[str, Any]]:
    """Yield the container states of a request."""
    if obj is not None:
        yield from obj.get("status", {}).get("containerRecreateStates", ())
