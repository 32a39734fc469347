"""Kinds of objects: their names, their scope, and their special behaviour.

Everything that distinguishes kinds is a field here, so that the code that serves requests never compares a kind's
name. The kinds are in `resources` (built-in) and `crds` (custom).
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
    """A column of the tables that `kubectl get` shows."""

    name: str
    value: Callable[[Object, datetime], Any]  # Returns the cell of an object, given the current time (for ages)
    type: str = "string"
    format: str = ""
    priority: int = 0  # Above 0: shown only with `-o wide`
    description: str = ""


def _as_it_is(obj: Object) -> Object:
    return obj


def _no_warnings(_obj: Object) -> list[str]:
    return []


def _no_rules(_obj: Object, _old: Object | None) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind in one version, with its resource."""

    group: str = ""  # "" is the core group
    version: str = "v1"
    kind: str
    plural: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    custom: bool = False  # A custom resource: list items contain their kind, and strategic merge patch is not supported
    storage: str = ""  # The version of stored objects, "" for this one; versions differ only in their name
    others: tuple[str, ...] = ()  # The other served versions
    stored: bool = True  # Else a create stores nothing, and its answer is the result (reviews)
    status: bool = False  # It has a status subresource; other writes do not change the status
    status_on_create: bool = False  # A status given on create is kept (nodes: kubelet registers with a status)
    generation: bool = False  # metadata.generation counts changes outside of metadata and status
    managed_fields: bool = False  # metadata.managedFields records when data was written
    unconditional_update: bool = True  # A PUT may leave out metadata.resourceVersion
    graceful: bool = False  # Deletion only marks the object, until its kubelet deletes it without a grace period (pods)
    logs: bool = False  # It has a subresource log, which kubelet serves (pods)
    contains: bool = False  # It contains objects of other kinds, which are deleted with it (namespaces)
    guard: str = ""  # Finalizer that a deletion sets until a controller has cleaned up (CRDs: their objects)
    returns_deleted: bool = False  # DELETE returns the object instead of a Status, even if it is removed at once
    path_names: bool = False  # Names may be any URL path segment (RBAC), not only subdomains
    fields: FieldLabels = field(default_factory=dict)  # For field selectors, besides metadata.name and .namespace
    columns: tuple[Column, ...] = ()  # Columns of the table after NAME
    schema: Schema | None = None
    complete: Callable[[Object], Object] = _as_it_is  # Sets defaults, on create and update
    on_create: Callable[[Object], Object] = _as_it_is  # Sets fields on create only, after the status was dropped
    rules: Callable[[Object, Object | None], list[Cause]] = _no_rules  # Returns the faults of an object (new, old)
    warnings: Callable[[Object], list[str]] = _no_warnings  # Returns what of an object is not enforced

    @property
    def api_version(self) -> str:
        """The objects' apiVersion: `group/version`, or only the version in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """The objects' key in the store, the same for all versions of a kind."""
        return f"{self.group}/{self.plural}"

    def shown(self, stored: Stored) -> Stored:
        """Return a stored object in this version."""
        if stored.obj["apiVersion"] == self.api_version:
            return stored
        return Stored({**stored.obj, "apiVersion": self.api_version}, stored.revision)

    def to_store(self, obj: Object) -> Object:
        """Return an object of this version in its stored version."""
        return {**obj, "apiVersion": f"{self.group}/{self.storage}"} if self.storage else obj


class Registry:
    """The served kinds: built-in ones, and those of the current CRDs."""

    def __init__(self, builtin: tuple[Kind, ...]) -> None:
        self._builtin = builtin
        self._custom: dict[str, tuple[Kind, ...]] = {}
        self._index()

    def _index(self) -> None:
        self.kinds = (*self._builtin, *(kind for kinds in self._custom.values() for kind in kinds))
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in self.kinds}
        self._by_key = {kind.key: kind for kind in self.kinds}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind served under a path, or None."""
        return self._by_path.get((group, version, plural))

    def by_key(self, key: str) -> Kind | None:
        """Return the kind with this key in the store."""
        return self._by_key.get(key)

    def set_custom(self, crd: str, kinds: tuple[Kind, ...]) -> None:
        """Serve these kinds for a CRD from now on. Empty if the CRD was deleted."""
        self._custom.pop(crd, None)
        if kinds:
            self._custom[crd] = kinds
        self._index()

    def groups(self) -> dict[str, list[str]]:
        """Return the served groups, each with its versions."""
        found: dict[str, dict[str, None]] = {}
        for kind in self.kinds:
            found.setdefault(kind.group, {})[kind.version] = None
        return {group: list(versions) for group, versions in found.items()}
