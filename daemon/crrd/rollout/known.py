"""The objects of one kind as a watch reports them, never older than this process' own writes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crrd.kube.reflector import Handler, Selection
from crrd.kube.resources import Resource
from crrd.kube.store import VersionedStore
from crrd.lib.jsonfields import mapping, text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Version(Generic[T]):
    """One version of an object."""

    uid: str
    resource_version: str
    value: T


class Known(Generic[T]):
    """The objects of one selection. `read` parses one, and `changed` is called after each change."""

    def __init__(self, read: Callable[[Mapping[str, Any]], T], changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self._store: VersionedStore[Version[T]] = VersionedStore()

    def __iter__(self) -> Iterator[T]:
        return (each.value for each in self._store)

    def selection(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Selection[Version[T]]:
        """The reflector's selection."""
        return Selection(resource, self.parse, namespace, labels, fields)

    def handler(self) -> Handler[Version[T]]:
        """The reflector's handler."""
        return Handler(self._put_all, self.put, self._drop, self._store.expect_list)

    def parse(self, obj: Mapping[str, Any]) -> Version[T]:
        """A version of an object."""
        meta = mapping(obj.get("metadata"))
        return Version(text(meta.get("uid")), text(meta.get("resourceVersion")), self._read(obj))

    def put(self, version: Version[T]) -> None:
        """Record the present version of an object, from a watch or a write."""
        known = self._store.get(version.uid)
        if self._store.put(version) and (known is None or known.value != version.value):
            self._changed()

    def forget(self, which: Callable[[T], bool]) -> None:
        """Record that objects were deleted."""
        for version in [each for each in self._store if which(each.value)]:
            self._drop(version)

    def _drop(self, version: Version[T]) -> None:
        if self._store.drop(version.uid, version.resource_version) is not None:
            self._changed()

    def _put_all(self, listed: tuple[Version[T], ...], version: str) -> None:
        """Record a whole list of this version. Objects that are not in it are deleted, if not written since."""
        for known in self._store.absent(listed, version):
            self._store.drop(known.uid, version)
        for each in listed:
            self.put(each)
        self._changed()
