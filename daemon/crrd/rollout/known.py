"""The objects of one kind as a watch tells them, by UID, never behind what this process has written itself."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from crrd.kube.cache import older
from crrd.kube.reflector import Handler, Selection
from crrd.kube.resources import Resource
from crrd.lib.jsonfields import mapping, text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """One version of an object."""

    uid: str
    version: str
    value: T


class Known(Generic[T]):
    """The objects of one selection: `read` makes a value of one, `changed` is called when something is different."""

    def __init__(self, read: Callable[[Mapping[str, Any]], T], changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self._seen: dict[str, Seen[T]] = {}
        self._gone: dict[str, str] = {}
        """UID of what has gone, or left the selection -> the version at which it did; a later one brings it back."""

    def __iter__(self) -> Iterator[T]:
        return (each.value for each in self._seen.values())

    def selection(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Selection[Seen[T]]:
        """What a reflector has to be asked for."""
        return Selection(resource, self.parse, namespace, labels, fields)

    def handler(self) -> Handler[Seen[T]]:
        """Whom a reflector has to tell."""
        return Handler(listed=self._put_all, changed=self.put, deleted=self._drop)

    def parse(self, obj: Mapping[str, Any]) -> Seen[T]:
        """A version of an object."""
        meta = mapping(obj.get("metadata"))
        return Seen(text(meta.get("uid")), text(meta.get("resourceVersion")), self._read(obj))

    def put(self, seen: Seen[T]) -> None:
        """An object as it is now, from a watch or from a write."""
        known, left_at = self._seen.get(seen.uid), self._gone.get(seen.uid)
        if known is not None and older(seen.version, known.version):
            return
        if left_at is not None and not older(left_at, seen.version):
            return
        self._seen[seen.uid] = seen
        if known is None or known.value != seen.value:
            self._changed()

    def forget(self, which: Callable[[T], bool]) -> None:
        """Objects that are known to be gone."""
        for seen in [each for each in self._seen.values() if which(each.value)]:
            self._drop(seen)

    def _drop(self, seen: Seen[T]) -> None:
        self._gone[seen.uid] = seen.version
        if self._seen.pop(seen.uid, None) is not None:
            self._changed()

    def _put_all(self, listed: tuple[Seen[T], ...], version: str) -> None:
        """A whole list as of this version: what is not in it is gone, unless it was written since."""
        there = {each.uid for each in listed}
        missing = [each for each in self._seen.values() if each.uid not in there]
        for known in missing:
            if not older(version, known.version):
                self._drop(replace(known, version=version))
        for each in listed:
            self.put(each)
        self._changed()
