"""What is known of the objects of one selection, from its list and watch, and from this process' own writes.

As in client-go: the store never goes back in time, a group of objects is found at once, and each change is reported
once, with the version before and after.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, RestartObserver, Selection
from crrd.kube.store import Versioned, VersionedStore, older
from crrd.lib.jsonfields import mapping, text

T = TypeVar("T")
V = TypeVar("V", bound=Versioned)


@dataclass(frozen=True, slots=True)
class Version(Generic[T]):
    """One version of an object that is kept as a value. Versions with the same value are equal."""

    uid: str = field(compare=False)
    resource_version: str = field(compare=False)
    value: T


def versioned(read: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], Version[T]]:
    """Return a parser of whole objects that keeps what `read` returns."""

    def parse(obj: Mapping[str, Any]) -> Version[T]:
        meta = mapping(obj.get("metadata"))
        return Version(text(meta.get("uid")), text(meta.get("resourceVersion")), read(obj))

    return parse


class Objects(Generic[V]):
    """The objects of one selection, see VersionedStore. The callbacks must be quick."""

    def __init__(
        self,
        changed: Callable[[V | None, V | None], None],
        *,
        listed: Callable[[], None] = lambda: None,
        group: Callable[[V], str] = lambda obj: obj.uid,
        wanted: Callable[[V], bool] = lambda _: True,
        merge: Callable[[V, V, bool], V] = lambda _, obj, own: obj,
    ) -> None:
        """`changed` gets the versions before and after, None where there is none; `listed` is called after a list.

        `of` finds objects by `group`. An object that is not `wanted` counts as deleted. `merge` gets the known version
        and a new one, and returns what is kept; `own` is that of `put`.
        """
        self._changed, self._listed, self._group, self._wanted = changed, listed, group, wanted
        self._merge = merge
        self._store: VersionedStore[V] = VersionedStore()
        self._groups: dict[str, dict[str, V]] = {}  # Group -> UID -> object
        self.listing = False  # Whether changes that are reported now come from a list

    def __iter__(self) -> Iterator[V]:
        return iter(self._store)

    @property
    def groups(self) -> Collection[str]:
        """The groups that have objects."""
        return self._groups.keys()

    def get(self, uid: str) -> V | None:
        """Return the object with this UID, or None."""
        return self._store.get(uid)

    def of(self, group: str) -> Collection[V]:
        """Return the objects of a group, the newest known one last."""
        return self._groups.get(group, {}).values()

    def put(self, obj: V, *, own: bool = False) -> None:
        """Record a version from a watch or a write. `own`: this process has just written the fields that are merged."""
        before = self._store.get(obj.uid)
        if before is not None:
            obj = self._merge(before, obj, own)
        if not self._wanted(obj):
            if before is not None and not older(obj.resource_version, before.resource_version):
                self.delete(obj)
        elif self._store.put(obj):
            self._regroup(before, obj)
            if before != obj:
                self._changed(before, obj)

    def delete(self, obj: V) -> None:
        """Record that an object was deleted at this version. Only a later version brings it back."""
        self._drop(obj.uid, obj.resource_version)

    def expect_list(self) -> None:
        """Record that the newest list is requested now. It overrules all earlier versions."""
        self._store.expect_list()

    def replace(self, listed: Iterable[V], version: str) -> None:
        """Record a whole list of this resourceVersion. Objects that are not in it are deleted, if not written since."""
        objects = tuple(listed)
        self.listing = True
        for gone in self._store.absent(objects, version):
            self._drop(gone.uid, version)
        for obj in objects:
            self.put(obj)
        self.listing = False
        self._listed()

    def _drop(self, uid: str, version: str) -> None:
        before = self._store.drop(uid, version)
        if before is not None:
            self._regroup(before, None)
            self._changed(before, None)

    def _regroup(self, before: V | None, after: V | None) -> None:
        if before is not None and (after is None or self._group(after) != self._group(before)):
            members = self._groups[self._group(before)]
            del members[before.uid]
            if not members:
                del self._groups[self._group(before)]
        if after is not None:
            self._groups.setdefault(self._group(after), {})[after.uid] = after


class Values(Objects[Version[T]], Generic[T]):
    """Objects that are kept as values. `changed` is called after each change and each list."""

    def __init__(
        self,
        read: Callable[[Mapping[str, Any]], T],
        changed: Callable[[], None],
        *,
        group: Callable[[Version[T]], str] = lambda obj: obj.uid,
    ) -> None:
        super().__init__(lambda *_: changed(), listed=changed, group=group)
        self.parse = versioned(read)

    def values(self) -> Iterator[T]:
        """Yield the known values."""
        return (each.value for each in self)


class Informer(Reflector[V]):
    """Keeps objects up to date while `run` runs. It has its own readiness, last error and heartbeat."""

    def __init__(
        self,
        client: KubeClient,
        selection: Selection[V],
        objects: Objects[V],
        *,
        strict: bool = False,
        on_restart: RestartObserver | None = None,
    ) -> None:
        handler = Handler(objects.replace, objects.put, objects.delete, objects.expect_list)
        super().__init__(client, selection, handler, strict=strict, on_restart=on_restart)
        self.objects = objects
