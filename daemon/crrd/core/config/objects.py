"""A ConfigMap or a Secret: when its data last changed, and whether a container could start with it. Never its data.

The time comes from `managedFields`: the API server notes there, for each writer, which fields it owns and when it last
wrote. A writer that has changed something else in the same call moves that time, too. So a time may be too late, and
the container then counts as stale without need; it is never too early.
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
"""Seconds. kubelet reads the environment shortly before the time that it reports as the start, in whole seconds."""


@dataclass(frozen=True, slots=True)
class ConfigObject:
    """What is kept of an object."""

    keys: frozenset[str]
    changed: datetime | None = None  # When its data last changed, whichever key; None where nothing says so
    changed_keys: Mapping[str, datetime] = field(default_factory=dict)  # Likewise by key, for keys that a writer owns

    def changed_at(self, reference: Reference) -> datetime | None:
        """When what the reference uses last changed, as far as the object says so."""
        if reference.keys is None:
            return self.changed
        owned = [self.changed_keys[key] for key in reference.keys & self.keys if key in self.changed_keys]
        if len(owned) < len(reference.keys):
            return self.changed  # the writer that took a key away no longer owns it
        return max(owned, default=self.changed)


@dataclass(frozen=True, slots=True)
class Change:
    """Why a container is stale."""

    reference: Reference
    at: datetime


def read_object(obj: Mapping[str, Any]) -> ConfigObject:
    """An object in its Kubernetes shape. Bad input raises nothing."""
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
    """The data keys that a writer owns; None for a writer of something else."""
    owners = [mapping(fields.get(f"f:{name}")) for name in _DATA_FIELDS if f"f:{name}" in fields]
    return {name.removeprefix("f:") for owner in owners for name in owner} if owners else None


def missing(reference: Reference, found: ConfigObject | None) -> str:
    """What kubelet could not start the container without, in words; "" where nothing is missing."""
    if found is None:
        return "" if reference.optional else f"{reference.kind} {reference.name} not found"
    absent = sorted(reference.required - found.keys)
    return f"{reference.kind} {reference.name} has no key {absent[0]}" if absent else ""


def changes(
    uses: Iterable[Reference],
    container: PodContainer,
    known: Mapping[tuple[Kind, str], ConfigObject | None],
    margin: int = START_MARGIN,
) -> tuple[Change, ...]:
    """What the container uses that has changed since it started, the latest change first.

    `margin` is how many seconds a change may take until a container that starts has it.
    Objects that are not in `known`, or that are gone (None), have not changed.
    """
    started = parse_time(container.started_at)
    found = []
    for reference in uses:
        obj = known.get(reference.object)
        at = obj.changed_at(reference) if obj is not None else None
        if started is not None and at is not None and at >= started - timedelta(seconds=margin):
            found.append(Change(reference, at))
    return tuple(sorted(found, key=lambda change: change.at, reverse=True))


def data_hash(obj: Mapping[str, Any], reference: Reference) -> str:
    """SHA-256 over the data of an object that the reference uses, in hexadecimal digits.

    Equal data gives equal hashes, in whatever order the API server sends it.
    """
    used = {}
    for name in ("data", "binaryData"):
        data = mapping(obj.get(name))
        used[name] = {key: data[key] for key in data if reference.keys is None or key in reference.keys}
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
