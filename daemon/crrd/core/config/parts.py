"""The part of a ConfigMap or Secret that one container uses, as the key of what is recorded about its data."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.config.references import Kind, ObjectName, Reference, Use

_ALL_VARIABLES, _ALL_FILES = "data.*", "*"
"""In `Part.keys`: all keys of `data`, or of both fields, except the next ones with a "!". No key has these signs."""
_WHOLE = {_ALL_VARIABLES: Use.ENV_FROM, _ALL_FILES: Use.VOLUME}
_WRITTEN = re.compile(r"(?P<kind>ConfigMap|Secret) (?P<name>\S+) \((?P<keys>\S*)\) (?P<until>\S+)(?: (?P<after>\S+))?")


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """The part of one object that a container uses. Containers with equal parts get the same data."""

    kind: Kind
    name: str
    keys: tuple[str, ...] = ()  # () for all, in both `data` and `binaryData`

    @property
    def object_name(self) -> ObjectName:
        """The object's kind and name."""
        return self.kind, self.name

    @property
    def uses(self) -> tuple[Reference, ...]:
        """Uses of just this part by a container, as far as they are known from it. They need nothing to exist."""
        whole = next((use for sign, use in _WHOLE.items() if sign in (self.keys or (_ALL_FILES,))), None)
        without = frozenset(key[1:] for key in self.keys if key.startswith("!"))
        named = frozenset(key for key in self.keys if key not in _WHOLE and not key.startswith("!"))
        found = [Reference(self.kind, self.name, whole, optional=True, without=without)] if whole else []
        if named:
            found.append(Reference(self.kind, self.name, Use.VOLUME, named, optional=True))
        return tuple(found)

    @property
    def object(self) -> str:
        """The object in messages: `ConfigMap web-cfg`."""
        return f"{self.kind} {self.name}"


def parts_of(uses: Iterable[Reference]) -> dict[Part, tuple[Reference, ...]]:
    """Return the parts of objects that one container uses, each with its uses."""
    by_object: dict[ObjectName, list[Reference]] = {}
    for use in uses:
        if use.keys is None or use.keys:
            by_object.setdefault(use.object, []).append(use)
    return {Part(*each, _keys(some)): tuple(some) for each, some in by_object.items()}


def _keys(uses: Iterable[Reference]) -> tuple[str, ...]:
    whole = [use for use in uses if use.keys is None]
    named = {key for use in uses for key in use.keys or ()}
    if not whole:
        return tuple(sorted(named))
    without = tuple(f"!{key}" for key in sorted(frozenset.intersection(*(use.without for use in whole)) - named))
    if any(use.use.mounted for use in whole):
        return (_ALL_FILES, *without) if without else ()
    return (_ALL_VARIABLES, *without, *sorted(named))


def held_since(uses: Iterable[Reference], started: datetime, mounted: datetime | None) -> datetime:
    """Return since when a container has the data of these uses, at the earliest.

    `mounted` is the creation of its pod if it has started only once: kubelet sets up the files before that start, and
    refreshes none while it pulls the image or init containers run.
    """
    return min(started, mounted) if mounted is not None and any(use.use.mounted for use in uses) else started


@dataclass(frozen=True, slots=True)
class PartChange:
    """A changed part, and which containers do not have the change: those that started at or before `until`."""

    part: Part
    until: datetime
    after: datetime | None = None  # If the change was reverted: containers that started before have the right data
    only: frozenset[str] = frozenset()  # If it is not empty: containers of all other pods have reloaded. Not written

    def misses(self, part: Part, held: datetime, started: datetime | None = None, pod: str = "") -> bool:
        """Whether a container of a pod that uses this part does not have the change.

        It has had its data since `held` (`held_since`), or later: since it `started`, if that is given.
        """
        if part != self.part or (self.only and pod not in self.only):
            return False
        return held <= self.until and (self.after is None or (held if started is None else started) >= self.after)

    def __str__(self) -> str:
        """Return the change in the form that `read_change` parses: `ConfigMap web-cfg (LOG) 2026-01-01T12:00:00Z`."""
        times = [rfc3339(self.until), *([rfc3339(self.after)] if self.after is not None else [])]
        return " ".join([self.part.object, f"({','.join(self.part.keys)})", *times])


def read_change(written: str) -> PartChange | None:
    """Parse what `str` of a change returned; None if it is malformed."""
    found = _WRITTEN.fullmatch(written)
    until = parse_time(found["until"]) if found is not None else None
    if found is None or until is None:
        return None
    keys = tuple(filter(None, found["keys"].split(",")))
    return PartChange(Part(Kind(found["kind"]), found["name"], keys), until, parse_time(found["after"] or ""))
