"""A ConfigMap or a Secret: when its data last changed, and whether a container can start with it. No data is kept.

The time comes from `managedFields`, where the API server records for each writer which fields it owns, and when it last
wrote. A writer that changes another field of its own updates that time, too. So the time may be too late, and a
container then counts as stale without need. It is too early only if a key was removed: a write that only removes fields
updates no time.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.pod import PodContainer
from crrd.core.api.time import parse_time
from crrd.core.config.references import Kind, Reference
from crrd.lib.jsonfields import items, mapping, text

_DATA_FIELDS = ("data", "binaryData", "stringData")
START_MARGIN = 2
"""Seconds. kubelet reads the environment shortly before the start time that it reports, in whole seconds."""


@dataclass(frozen=True, slots=True)
class ConfigObject:
    """A ConfigMap or Secret without its data."""

    keys: frozenset[str]
    changed: datetime | None = None  # When any of its data last changed; None if unknown
    changed_keys: Mapping[str, datetime] = field(default_factory=dict)  # The same by key, for keys that a writer owns

    def changed_at(self, reference: Reference) -> datetime | None:
        """Return when the data that the reference uses last changed, None if unknown."""
        if reference.keys is None:
            return self.changed
        owned = [self.changed_keys[key] for key in reference.keys & self.keys if key in self.changed_keys]
        if len(owned) < len(reference.keys):
            return self.changed  # a key is missing, and no writer owns a key that was removed
        return max(owned, default=self.changed)


@dataclass(frozen=True, slots=True)
class Change:
    """A change that makes a container stale."""

    reference: Reference
    at: datetime


def read_object(obj: Mapping[str, Any]) -> ConfigObject:
    """Parse an object from its JSON. Invalid input raises no exception."""
    meta = mapping(obj.get("metadata"))
    keys = frozenset(key for field_name in _DATA_FIELDS for key in mapping(obj.get(field_name)))
    times: dict[str, datetime] = {}
    latest = None
    for entry in map(mapping, items(meta.get("managedFields"))):
        owned, moment = _owned_keys(mapping(entry.get("fieldsV1"))), parse_time(text(entry.get("time")))
        if owned is None or moment is None:
            continue
        latest = moment if latest is None else max(latest, moment)
        times |= {key: max(times.get(key, moment), moment) for key in owned}
    return ConfigObject(keys, latest or parse_time(text(meta.get("creationTimestamp"))), times)


def _owned_keys(fields: Mapping[str, Any]) -> set[str] | None:
    """Return the data keys that a writer owns; None if it owns no data field."""
    owners = [mapping(fields.get(f"f:{name}")) for name in _DATA_FIELDS if f"f:{name}" in fields]
    return {name.removeprefix("f:") for owner in owners for name in owner} if owners else None


def missing(reference: Reference, found: ConfigObject | None) -> str:
    """Return a message about a missing object or key that kubelet needs to start the container; "" for none."""
    if found is None:
        return "" if reference.optional else f"{reference.kind} {reference.name} not found"
    absent = sorted(reference.required - found.keys)
    return f"{reference.kind} {reference.name} has no key {absent[0]}" if absent else ""


def changes(
    uses: Iterable[Reference],
    container: PodContainer,
    known: Mapping[tuple[Kind, str], ConfigObject | None],
) -> tuple[Change, ...]:
    """Return the changes since the container's start to the objects that it uses, the latest change first.

    Objects that are not in `known`, or that do not exist (None), count as unchanged.
    """
    started = parse_time(container.started_at)
    found = []
    for reference in uses:
        obj = known.get(reference.object)
        at = obj.changed_at(reference) if obj is not None else None
        if started is not None and at is not None and at >= started - timedelta(seconds=START_MARGIN):
            found.append(Change(reference, at))
    return tuple(sorted(found, key=lambda change: change.at, reverse=True))


def data_hash(obj: Mapping[str, Any], reference: Reference) -> str:
    """Return the SHA-256, in hexadecimal, of the object's data that the reference uses.

    Equal data gives equal hashes, whatever its order in the API server's response.
    """
    used = {}
    for name in ("data", "binaryData"):
        data = mapping(obj.get(name))
        used[name] = {key: data[key] for key in data if reference.keys is None or key in reference.keys}
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
