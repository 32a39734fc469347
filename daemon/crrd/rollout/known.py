"""The objects of one kind as a watch tells them, never behind what this process has written itself."""

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
    """The objects of one selection: `read` makes a value of one, `changed` is called when something is different."""

    def __init__(self, read: Callable[[Mapping[str, Any]], T], changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self._store: VersionedStore[Version[T]] = VersionedStore()

    def __iter__(self) -> Iterator[T]:
        return (each.value for each in self._store)

    def selection(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Selection[Version[T]]:
        """What a reflector has to be asked for."""
        return Selection(resource, self.parse, namespace, labels, fields)

    def handler(self) -> Handler[Version[T]]:
        """Whom a reflector has to tell."""
        return Handler(self._put_all, self.put, self._drop, self._store.expect_list)

    def parse(self, obj: Mapping[str, Any]) -> Version[T]:
        """A version of an object."""
        meta = mapping(obj.get("metadata"))
        return Version(text(meta.get("uid")), text(meta.get("resourceVersion")), self._read(obj))

    def put(self, version: Version[T]) -> None:
        """An object as it is now, from a watch or from a write."""
        known = self._store.get(version.uid)
        if self._store.put(version) and (known is None or known.value != version.value):
            self._changed()

    def forget(self, which: Callable[[T], bool]) -> None:
        """Objects that are known to be gone."""
        for version in [each for each in self._store if which(each.value)]:
            self._drop(version)

    def _drop(self, version: Version[T]) -> None:
        if self._store.drop(version.uid, version.resource_version) is not None:
            self._changed()

    def _put_all(self, listed: tuple[Version[T], ...], version: str) -> None:
        """A whole list as of this version: what is not in it is gone, unless it was written since."""
        for known in self._store.absent(listed, version):
            self._store.drop(known.uid, version)
        for each in listed:
            self.put(each)
        self._changed()
