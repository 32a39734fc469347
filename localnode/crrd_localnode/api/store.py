"""The objects, their common counter of resourceVersions, and the history for watches: etcd and the watch cache.

The store knows no kinds, namespaces or rules: objects have a key (`Kind.key`) and a name (namespace, name). They are
replaced and never changed, and their JSON text and each watch event's line are created at most once.

Invariant: for every key, the objects at resourceVersion `floor` plus the history's events give the current objects.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from crrd_localnode.api.errors import expired
from crrd_localnode.api.objects import Object, dumps, metadata, with_metadata
from crrd_localnode.api.selectors import Predicate

Name = tuple[str, str]  # Namespace ("" if none) and name

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


@dataclass(eq=False)
class Stored:
    """One object at one resourceVersion, with its JSON text after the first use."""

    obj: Object
    revision: int

    @property
    def name(self) -> Name:
        """The object's name in the store."""
        return name_of(self.obj)

    @cached_property
    def text(self) -> bytes:
        """The object as JSON."""
        return dumps(self.obj)


def name_of(obj: Object) -> Name:
    """Return namespace and name from an object's metadata."""
    meta = metadata(obj)
    return meta.get("namespace", ""), meta["name"]


@dataclass(eq=False, slots=True)
class Event:
    """One change. `new` is None for a deletion, `old` for a creation. `revision` is that of the change."""

    key: str
    revision: int
    old: Stored | None
    new: Stored | None
    _lines: dict[str, bytes] = field(default_factory=dict, init=False)

    def seen_through(self, selects: Predicate | None) -> str | None:
        """Return the event's type for a watch with a selector, or None if the watch does not see the change.

        As in Kubernetes, an object that starts to match is ADDED, and one that ceases to match is DELETED.
        """
        matches = self.new is not None and (selects is None or selects(self.new.obj))
        matched = self.old is not None and (selects is None or selects(self.old.obj))
        if matches:
            return MODIFIED if matched else ADDED
        return DELETED if matched else None

    def object(self, kind: str) -> Stored:
        """Return the object of an event of this type. For DELETED it is the last state, with the event's revision."""
        if kind != DELETED and self.new is not None:
            return self.new
        if self.old is None:
            raise ValueError("an event of nothing")
        return Stored(with_metadata(self.old.obj, resourceVersion=str(self.revision)), self.revision)

    def line(self, kind: str) -> bytes:
        """Return the line of a watch stream. All watches share its bytes."""
        if kind not in self._lines:
            self._lines[kind] = event_line(kind, self.object(kind).text)
        return self._lines[kind]


def event_line(kind: str, text: bytes) -> bytes:
    """Return a line of a watch stream with an object's JSON."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), text)


class Changed(Exception):  # noqa: N818 - not an error: the writer tries again
    """The object has changed since the write was computed."""


Subscriber = Callable[[Event], None]  # Called for each change. It must not raise and must not write to the store.


class Store:
    """Objects of all kinds. Not thread-safe. No method awaits, so each call is atomic."""

    def __init__(self) -> None:
        self.revision = 0
        self.kept = 4096  # Number of events kept for each key, from which watches can start
        self._objects: dict[str, dict[Name, Stored]] = {}
        self._history: defaultdict[str, deque[Event]] = defaultdict(deque)
        self._floors: dict[str, int] = {}
        self._subscribers: dict[str | None, list[Subscriber]] = {}

    def get(self, key: str, name: Name) -> Stored | None:
        """Return the object with this name, or None."""
        return self._objects.get(key, {}).get(name)

    def objects(self, key: str) -> dict[Name, Stored]:
        """Return all objects under a key. Must not be changed, and is valid only until the next write."""
        return self._objects.get(key, {})

    def cached(self, key: str) -> tuple[int, dict[Name, Stored]]:
        """Return the watch cache's state: a resourceVersion, and the objects at it. Here it is always the latest."""
        return self.revision, self.objects(key)

    def everything(self) -> Iterator[tuple[str, Stored]]:
        """Yield all objects with their keys. Valid only until the next write."""
        for key, objects in self._objects.items():
            for stored in objects.values():
                yield key, stored

    def put(self, key: str, old: Stored | None, obj: Object) -> Stored:
        """Store an object in place of `old`, or as a new one if that is None.

        It gets the next resourceVersion. Raises Changed if the stored object is not `old`.
        """
        name = name_of(obj)
        if self.get(key, name) is not old:
            raise Changed
        revision = self.revision + 1
        new = Stored(with_metadata(obj, resourceVersion=str(revision)), revision)
        self._apply(Event(key, revision, old, new))
        return new

    def delete(self, key: str, old: Stored) -> Stored:
        """Remove an object. Return its last state with the deletion's resourceVersion. Raises Changed."""
        if self.get(key, old.name) is not old:
            raise Changed
        event = Event(key, self.revision + 1, old, None)
        self._apply(event)
        return event.object(DELETED)

    def _apply(self, event: Event) -> None:
        objects = self._objects.setdefault(event.key, {})
        if event.new is not None:
            objects[event.new.name] = event.new
        elif event.old is not None:
            del objects[event.old.name]
        self.revision = event.revision
        history = self._history[event.key]
        history.append(event)
        if len(history) > self.kept:
            self._floors[event.key] = history.popleft().revision
        for subscriber in (*self._subscribers.get(event.key, ()), *self._subscribers.get(None, ())):
            subscriber(event)

    def floor(self, key: str) -> int:
        """Return the oldest resourceVersion from which a watch of this key can start."""
        return self._floors.get(key, 0)

    def since(self, key: str, revision: int) -> list[Event]:
        """Return the changes after a resourceVersion, oldest first. Raises ApiError 410 if they are not kept."""
        if revision < self.floor(key):
            raise expired(revision, self.floor(key))
        found = takewhile(lambda event: event.revision > revision, reversed(self._history[key]))
        return list(found)[::-1]

    def at(self, key: str, revision: int) -> dict[Name, Stored]:
        """Return all objects under a key at a resourceVersion. Raises ApiError 410 as `since` does."""
        changes = self.since(key, revision)
        if not changes:
            return self.objects(key)
        then = dict(self.objects(key))
        for event in reversed(changes):
            if event.old is not None:
                then[event.old.name] = event.old
            elif event.new is not None:
                del then[event.new.name]
        return then

    def subscribe(self, key: str | None, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` for every change under a key (None: any key). Return the function that unsubscribes."""
        subscribers = self._subscribers.setdefault(key, [])
        subscribers.append(subscriber)
        return lambda: subscribers.remove(subscriber)
