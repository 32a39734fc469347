"""A ConfigMap or a Secret: when its data last changed, and whether a container can start with it. No data is kept.

The time comes from `managedFields`, where the API server records for each writer which fields it owns, and when it last
wrote. A writer that changes another field of its own updates that time, too. So the time may be too late, and a
container then counts as stale without need. It is too early only if a key was removed: a write that only removes fields
updates no time.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.pod import PodContainer
from crrd.core.api.time import parse_time
from crrd.core.config.references import ObjectName, Reference
from crrd.lib.jsonfields import items, mapping, text

_TEXT_FIELDS = ("data", "stringData")  # stringData is write-only: the API server adds it to data
WHOLE = ("data", "binaryData")
"""The fields of a ConfigMap that have its data."""
_DATA_FIELDS = (*_TEXT_FIELDS, "binaryData")
START_MARGIN = 2
"""Seconds. kubelet reads the environment shortly before the start time that it reports, in whole seconds."""


@dataclass(frozen=True, slots=True)
class ConfigObject:
    """A ConfigMap or Secret without its data."""

    keys: frozenset[str]
    changed: datetime | None = None  # When any of its data last changed; None if unknown
    changed_keys: Mapping[str, datetime] = field(default_factory=dict)  # The same by key, for keys that a writer owns
    binary: frozenset[str] = frozenset()  # Keys of `binaryData`
    text_changed: datetime | None = None  # As `changed`, but without `binaryData`
    uid: str = ""
    created: datetime | None = None
    immutable: bool = False
    version: str = ""  # Its resourceVersion

    def keys_for(self, reference: Reference) -> frozenset[str]:
        """Return the keys that kubelet finds for this use."""
        return self.keys if reference.use.mounted else self.keys - self.binary

    def changed_at(self, reference: Reference) -> datetime | None:
        """Return when the data that the reference uses last changed, None if unknown or if it uses none."""
        whole = self.changed if reference.use.mounted else self.text_changed or self.changed
        if reference.keys is None:
            return whole
        found = self.keys_for(reference)
        owned = [self.changed_keys[key] for key in reference.keys & found if key in self.changed_keys]
        if len(owned) < len(reference.keys):
            return whole  # a key is missing, and no writer owns a key that was removed
        return max(owned, default=None)


@dataclass(frozen=True, slots=True)
class Change:
    """A change that makes a container stale."""

    reference: Reference
    at: datetime


def read_object(obj: Mapping[str, Any]) -> ConfigObject:
    """Parse an object from its JSON. Invalid input raises no exception."""
    meta = mapping(obj.get("metadata"))
    texts, binary = (frozenset(mapping(obj.get(name))) for name in ("data", "binaryData"))
    created = parse_time(text(meta.get("creationTimestamp")))
    writes: list[datetime] = []
    text_writes: list[datetime] = []
    times: dict[str, datetime] = {}
    for entry in map(mapping, items(meta.get("managedFields"))):
        owned, moment = mapping(entry.get("fieldsV1")), parse_time(text(entry.get("time")))
        fields = [name for name in _DATA_FIELDS if f"f:{name}" in owned]
        if not fields or moment is None:
            continue
        writes.append(moment)
        text_writes += [moment] if {*fields} & {*_TEXT_FIELDS} else []
        keys = {key.removeprefix("f:") for name in fields for key in mapping(owned[f"f:{name}"])}
        times |= {key: max(times.get(key, moment), moment) for key in keys}
    changed, text_changed = max(writes, default=created), max(text_writes, default=created)
    uid, version, immutable = text(meta.get("uid")), text(meta.get("resourceVersion")), obj.get("immutable") is True
    return ConfigObject(texts | binary, changed, times, binary - texts, text_changed, uid, created, immutable, version)


def missing(reference: Reference, found: ConfigObject | None) -> str:
    """Return a message about a missing object or key that kubelet needs to start the container; "" for none."""
    if found is None:
        return "" if reference.optional else f"{reference.kind} {reference.name} not found"
    absent = sorted(reference.required - found.keys_for(reference))
    where = " in data, and a variable cannot have binary data" if absent and absent[0] in found.keys else ""
    return f"{reference.kind} {reference.name} has no key {absent[0]}{where}" if absent else ""


def changes(
    uses: Iterable[Reference],
    container: PodContainer,
    known: Mapping[ObjectName, ConfigObject | None],
    kept: Collection[ObjectName] = (),
) -> tuple[Change, ...]:
    """Return the changes since the container's start to the objects that it uses, the latest change first.

    Objects that are not in `known`, or that do not exist (None), count as unchanged. So do those of which the node
    keeps older data.
    """
    started = parse_time(container.started_at)
    found = []
    for reference in uses:
        obj = known.get(reference.object)
        at = obj.changed_at(reference) if obj is not None and reference.object not in kept else None
        if started is not None and at is not None and at >= started - timedelta(seconds=START_MARGIN):
            found.append(Change(reference, at))
    return tuple(sorted(found, key=lambda change: change.at, reverse=True))


def whole_data(obj: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return all data of a ConfigMap: its fields `data` and `binaryData`, where they are not empty."""
    found = {name: {key: text(value) for key, value in mapping(obj.get(name)).items()} for name in WHOLE}
    return {name: data for name, data in found.items() if data}


def as_json(data: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return what `whole_data` has returned as JSON. Equal data gives equal bytes."""
    return json.dumps(data, sort_keys=True).encode()


def whole_hash(data: Mapping[str, Mapping[str, str]]) -> str:
    """Return the SHA-256, in hexadecimal, of what `whole_data` has returned."""
    return hashlib.sha256(as_json(data)).hexdigest()


def data_hash(obj: Mapping[str, Any], uses: Collection[Reference]) -> str:
    """Return the SHA-256, in hexadecimal, of the object's data that a container uses.

    Equal data gives equal hashes, whatever its order in the API server's response. An optional object that does not
    exist ({}) gives a container the same as an object without the data.
    """
    used: dict[str, Mapping[str, Any]] = {}
    for name in WHOLE:
        data, readers = mapping(obj.get(name)), [use for use in uses if name in use.fields]
        used[name] = {key: data[key] for key in data if any(use.uses(key) for use in readers)}
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
