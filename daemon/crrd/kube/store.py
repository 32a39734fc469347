"""The newest known version of each object of one kind, from lists, watches and this process' own writes.

The response to a write is stored at once, and an older version that a watch reports later is ignored. Only a later
version brings back an object that was deleted or has left the selection.

After etcd was restored from a backup, objects have lower versions than before. So a whole list overrides every version
that cannot be newer than the list: each version up to the list's own, and, if the newest list was requested
(`expect_list`), everything that was known before the request. What was stored after the request stays.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

TOMBSTONES = 1024
"""How many deleted objects are remembered, so that a late response to a write does not bring one back."""


class Versioned(Protocol):
    """One version of an object, as a store keeps it."""

    @property
    def uid(self) -> str:
        """The object's UID."""
        ...

    @property
    def resource_version(self) -> str:
        """The object's resourceVersion."""
        ...


T = TypeVar("T", bound=Versioned)


class VersionedStore(Generic[T]):
    """The newest known version of each object, by UID."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self._gone_at: OrderedDict[str, str] = OrderedDict()
        """UID of a deleted object -> the resourceVersion at which it was deleted."""
        self._changed: set[str] | None = None
        """UIDs of objects stored or dropped since the newest list was requested; None if none is requested."""
        self._overruled: set[str] = set()  # UIDs whose next version is stored, even if it is lower

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def get(self, uid: str) -> T | None:
        """Return the object with this UID, or None."""
        return self._objects.get(uid)

    def expect_list(self) -> None:
        """Record that the newest list is requested now. No version that is known now is newer than that list."""
        self._changed = set()

    def put(self, obj: T) -> bool:
        """Store a version from a list, a watch or a write. Return False if a newer version is known."""
        uid, version = obj.uid, obj.resource_version
        if uid not in self._overruled:
            known, gone_at = self._objects.get(uid), self._gone_at.get(uid)
            if known is not None and older(version, known.resource_version):
                return False
            if gone_at is not None and (version == gone_at or older(version, gone_at)):
                return False
        self._note(uid)
        self._gone_at.pop(uid, None)
        self._objects[uid] = obj
        return True

    def drop(self, uid: str, version: str) -> T | None:
        """Record that an object was deleted at this resourceVersion. Return its last known version, or None."""
        before = self._gone_at.get(uid)
        self._note(uid)
        self._gone_at[uid] = before if before is not None and older(version, before) else version
        self._gone_at.move_to_end(uid)
        if len(self._gone_at) > TOMBSTONES:
            self._gone_at.popitem(last=False)
        return self._objects.pop(uid, None)

    def absent(self, listed: Iterable[T], version: str) -> list[T]:
        """Return the known objects that a whole list of this resourceVersion shows to be deleted.

        Objects that were stored after the list was requested are not returned. The caller drops the returned objects,
        and puts each object of the list.
        """
        changed, self._changed = self._changed, None

        def overruled(uid: str, known_version: str) -> bool:
            return (changed is not None and uid not in changed) or not older(version, known_version)

        there = {obj.uid for obj in listed}
        known = {obj.uid: obj.resource_version for obj in self._objects.values()}
        self._overruled = {uid for uid, at in (self._gone_at | known).items() if uid in there and overruled(uid, at)}
        return [obj for uid, obj in self._objects.items() if uid not in there and overruled(uid, known[uid])]

    def _note(self, uid: str) -> None:
        self._overruled.discard(uid)
        if self._changed is not None:
            self._changed.add(uid)


def older(version: str, than: str) -> bool:
    """Whether a resourceVersion is older than another.

    Versions of one resource are compared as integers (KEP-5504). If one is not an integer, the result is False.
    """
    try:
        return int(version) < int(than)
    except ValueError:
        return False
