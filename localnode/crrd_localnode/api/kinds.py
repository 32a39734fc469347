"""What a kind of object is to the API server: its names, its scope, and in which ways it is special.

Everything that sets one kind apart from another is a field here, so that the code that serves requests never asks for
a kind by name. The kinds themselves are in `resources` (built in) and `crds` (custom).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crrd_localnode.api.errors import Cause
from crrd_localnode.api.objects import Object
from crrd_localnode.api.schema import Schema
from crrd_localnode.api.selectors import FieldLabels
from crrd_localnode.api.store import Stored


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the tables that `kubectl get` shows."""

    name: str
    value: Callable[[Object, datetime], Any]  # The cell of an object, given the present time (for ages)
    type: str = "string"
    format: str = ""
    priority: int = 0  # Above 0: shown with `-o wide` only
    description: str = ""


def _as_it_is(obj: Object) -> Object:
    return obj


def _no_rules(_obj: Object, _old: Object | None) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind in one version, as one resource."""

    group: str = ""  # "" is the core group
    version: str = "v1"
    kind: str
    plural: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    custom: bool = False  # A custom resource: list items carry their kind, and there is no strategic merge patch
    storage: str = ""  # The version that objects are stored in, "" for this one; they differ in their name only
    others: tuple[str, ...] = ()  # Further versions that it is served in
    status: bool = False  # There is a status subresource; then writes to the object itself leave the status alone
    status_on_create: bool = False  # A status given on create is kept nevertheless (nodes: kubelet registers with one)
    generation: bool = False  # metadata.generation counts the changes of everything but metadata and status
    managed_fields: bool = False  # metadata.managedFields says when which data was written
    unconditional_update: bool = True  # A PUT may leave out metadata.resourceVersion
    graceful: bool = False  # Deleting only marks the object, until its kubelet deletes it without a grace period (pods)
    logs: bool = False  # There is a subresource log, which the object's kubelet serves (pods)
    contains: bool = False  # Objects of other kinds lie in it, and go with it (namespaces)
    guard: str = ""  # A finalizer that a deletion sets, until a controller has cleaned up (CRDs: their objects)
    returns_deleted: bool = False  # DELETE answers with the object even when it is gone at once, instead of a Status
    path_names: bool = False  # Names may be anything that fits into a URL's path segment (RBAC), not only subdomains
    fields: FieldLabels = field(default_factory=dict)  # For field selectors, beside metadata.name and .namespace
    columns: tuple[Column, ...] = ()  # The table's columns after NAME
    schema: Schema | None = None
    complete: Callable[[Object], Object] = _as_it_is  # Fills in defaults, on create and on update
    on_create: Callable[[Object], Object] = _as_it_is  # What is set on create only, after the status was dropped
    rules: Callable[[Object, Object | None], list[Cause]] = _no_rules  # What is wrong with an object (and what it was)

    @property
    def api_version(self) -> str:
        """The objects' apiVersion: `group/version`, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """What the store keeps the objects under; the same for all versions of a kind."""
        return f"{self.group}/{self.plural}"

    def shown(self, stored: Stored) -> Stored:
        """A stored object as this version has it."""
        if stored.obj["apiVersion"] == self.api_version:
            return stored
        return Stored({**stored.obj, "apiVersion": self.api_version}, stored.revision)

    def to_store(self, obj: Object) -> Object:
        """An object of this version as it is stored."""
        return {**obj, "apiVersion": f"{self.group}/{self.storage}"} if self.storage else obj


class Registry:
    """Which kinds are served: the built-in ones, and the custom ones of the CRDs of the moment."""

    def __init__(self, builtin: tuple[Kind, ...]) -> None:
        self._builtin = builtin
        self._custom: dict[str, tuple[Kind, ...]] = {}
        self._index()

    def _index(self) -> None:
        self.kinds = (*self._builtin, *(kind for kinds in self._custom.values() for kind in kinds))
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in self.kinds}
        self._by_key = {kind.key: kind for kind in self.kinds}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind served under a path, None if there is none."""
        return self._by_path.get((group, version, plural))

    def by_key(self, key: str) -> Kind | None:
        """The kind whose objects the store keeps under this key."""
        return self._by_key.get(key)

    def set_custom(self, crd: str, kinds: tuple[Kind, ...]) -> None:
        """Serve these kinds for a CRD from now on; none if the CRD is gone."""
        self._custom.pop(crd, None)
        if kinds:
            self._custom[crd] = kinds
        self._index()

    def groups(self) -> dict[str, list[str]]:
        """The groups served, each with its versions."""
        found: dict[str, dict[str, None]] = {}
        for kind in self.kinds:
            found.setdefault(kind.group, {})[kind.version] = None
        return {group: list(versions) for group, versions in found.items()}
