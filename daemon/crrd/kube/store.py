"""The objects of one kind, from lists, watches and this process' own writes; decisions never see an older state.

What a write returned is put in at once, and an older version that a watch still brings is dropped. An object that has
gone, or has left the selection, is brought back by a later version only.

Versions alone do not decide when etcd was restored from a backup, because objects then have lower ones than before. So
a whole list overrules all that it cannot be older than: what had a version up to the list's own, and, if the newest
list was asked for (`expect_list`), what was known before the API server was asked. What was written meanwhile stays.
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
        self._changed: set[str] | None = None
        """UIDs of what has come or gone since the newest list was asked for; None while none was."""
        self._overruled: set[str] = set()  # UIDs whose next version counts, whatever it is

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def get(self, uid: str) -> T | None:
        """The object with this UID."""
        return self._objects.get(uid)

    def expect_list(self) -> None:
        """The newest list is asked for now: what is known by now is not newer than it."""
        self._changed = set()

    def put(self, obj: T) -> bool:
        """Keep a version, from a list, a watch or a write; returns False where something newer is known."""
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
        """The object is gone as of this resourceVersion; returns what was known of it."""
        before = self._gone_at.get(uid)
        self._note(uid)
        self._gone_at[uid] = before if before is not None and older(version, before) else version
        self._gone_at.move_to_end(uid)
        if len(self._gone_at) > TOMBSTONES:
            self._gone_at.popitem(last=False)
        return self._objects.pop(uid, None)

    def absent(self, listed: Iterable[T], version: str) -> list[T]:
        """What a whole list as of this resourceVersion shows to be gone; what was written since is not.

        The caller drops these, and puts each object of the list.
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
    """Whether a resourceVersion is behind another.

    Those of one resource are comparable as integers (KEP-5504); where they are not integers, everything that comes
    counts as newer.
    """
    try:
        return int(version) < int(than)
    except ValueError:
        return False
