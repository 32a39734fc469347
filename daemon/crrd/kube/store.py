"""Objects of one kind as lists, watches and this process' own writes tell them; it never goes back in time.

What a write returned is put in at once, and an older version that a watch still brings is dropped. An object that has
gone, or has left the selection, is brought back by a later version only.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

TOMBSTONES = 1024
"""How many objects that have gone are remembered, so that a late answer to a write does not revive one."""


class Versioned(Protocol):
    """What a store holds: one version of an object."""

    @property
    def uid(self) -> str:
        """The object's UID."""
        ...

    @property
    def resource_version(self) -> str:
        """The version's, as the API server gave it."""
        ...


T = TypeVar("T", bound=Versioned)


class VersionedStore(Generic[T]):
    """The newest known version of each object, by UID."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self._gone_at: OrderedDict[str, str] = OrderedDict()
        """UID of an object that has gone -> the resourceVersion at which it did."""

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def get(self, uid: str) -> T | None:
        """The object with this UID."""
        return self._objects.get(uid)

    def put(self, obj: T) -> bool:
        """Keep a version, from a list, a watch or a write; returns False where something newer is known."""
        known, gone_at = self._objects.get(obj.uid), self._gone_at.get(obj.uid)
        if known is not None and older(obj.resource_version, known.resource_version):
            return False
        if gone_at is not None and not older(gone_at, obj.resource_version):
            return False
        self._gone_at.pop(obj.uid, None)
        self._objects[obj.uid] = obj
        return True

    def drop(self, uid: str, version: str) -> T | None:
        """The object is gone as of this resourceVersion; returns what was known of it."""
        before = self._gone_at.get(uid)
        self._gone_at[uid] = before if before is not None and older(version, before) else version
        self._gone_at.move_to_end(uid)
        if len(self._gone_at) > TOMBSTONES:
            self._gone_at.popitem(last=False)
        return self._objects.pop(uid, None)

    def absent(self, listed: Iterable[T], version: str) -> list[T]:
        """What a whole list as of this resourceVersion shows to be gone; what was written since is not."""
        there = {obj.uid for obj in listed}
        missing = (obj for obj in self._objects.values() if obj.uid not in there)
        return [obj for obj in missing if not older(version, obj.resource_version)]


def older(version: str, than: str) -> bool:
    """Whether a resourceVersion is behind another.

    Those of one resource are comparable as integers (KEP-5504); where they are not integers, everything that comes
    counts as newer.
    """
    try:
        return int(version) < int(than)
    except ValueError:
        return False
