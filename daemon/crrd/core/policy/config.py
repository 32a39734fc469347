"""What a policy records about the configuration of its containers, and which containers are due after a change.

A change that is reverted before a run has started for it restarts nothing, because all containers still have the old
data, unless one of them started in between.
No decision depends on the manager's clock alone: `since` is the time of the change by the API server, if it recorded
one. (It records none for removed keys.) A container is due if it started too early to have the change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.config.objects import START_MARGIN
from crrd.core.config.references import Kind, Reference
from crrd.core.policy.types import Policy, RunRecord, UsedObject

_MARGIN = timedelta(seconds=START_MARGIN)
UseKey = tuple[str, Kind, str]  # Container, kind and name of the object


@dataclass(frozen=True, slots=True)
class Data:
    """The data of an object that one container uses."""

    hash: str
    changed: datetime | None
    """When it last changed, from managedFields: may be too late. None if unknown, as after a key was removed."""
    keys: tuple[str, ...] = ()  # The used keys, () for all


@dataclass(frozen=True, slots=True)
class Running:
    """One container of a running pod."""

    pod: str
    name: str
    started: datetime  # Now, if it does not run: it will start later than this
    uses: tuple[Reference, ...] = ()
    ready: bool = False


def merged_uses(running: Iterable[Running]) -> dict[UseKey, Reference]:
    """Return what containers use, by container name and object, merged over all pods."""
    found: dict[UseKey, Reference] = {}
    for container in running:
        for use in container.uses:
            known = found.setdefault(key := (container.name, *use.object), use)
            keys = None if known.keys is None or use.keys is None else known.keys | use.keys
            optional = known.optional and use.optional
            found[key] = replace(known, keys=keys, required=known.required | use.required, optional=optional)
    return found


def remember(
    policy: Policy, data: Mapping[UseKey, Data], running: Sequence[Running], now: datetime
) -> tuple[UsedObject, ...]:
    """Return the new records. Objects that cannot be read now keep their old records."""
    known = {(each.container, each.kind, each.name): each for each in policy.status.config}
    for key, found in data.items():
        old = known.get(key)
        if old is None or old.keys != found.keys:
            known[key] = _first(policy, key, found, running, now)
            continue
        if old.left and not _pending(policy, old, running, now):
            old = replace(old, left="")
        known[key] = _changed(old, found, now) if old.hash != found.hash else old
    used = merged_uses(running)
    return tuple(known[key] for key in sorted(known) if key in used or key in data)


def _first(policy: Policy, key: UseKey, found: Data, running: Iterable[Running], now: datetime) -> UsedObject:
    """Make the record of a new object, or of other keys. A change is open only if a container started before it.

    Changes before the policy's creation do not count.
    """
    created, changed = parse_time(policy.created), found.changed
    if changed is None:
        return UsedObject(*key, found.hash, rfc3339(now), found.hash, keys=found.keys)
    before = (each for each in running if each.started < changed - _MARGIN)
    stale = (created is None or changed > created) and key in merged_uses(before)
    return UsedObject(*key, found.hash, rfc3339(min(changed, now)), "" if stale else found.hash, keys=found.keys)


def _pending(policy: Policy, old: UsedObject, running: Iterable[Running], now: datetime) -> bool:
    """Whether a container may still have the data of a change that was reverted."""
    since, left = parse_time(old.since), parse_time(old.left)
    if old.hash != old.done or since is None or left is None or (limit := _limit(policy, since)) > now:
        return True
    return any(each.name == old.container and left - _MARGIN <= each.started <= limit for each in running)


def _changed(old: UsedObject, found: Data, now: datetime) -> UsedObject:
    """Make the record of an object whose data has changed.

    If only keys were removed, `managedFields` still has the time of an earlier change, so the change counts from now.
    """
    noted, known_since = found.changed, parse_time(old.since)
    trusted = noted is not None and known_since is not None and known_since < noted <= now
    since = rfc3339(noted if noted is not None and trusted else now)
    return replace(old, hash=found.hash, since=since, left=old.left or since)


def _limit(policy: Policy, since: datetime) -> datetime:
    """Return when a change has settled. A container that started later has it."""
    return since + timedelta(seconds=policy.settle)


@dataclass(frozen=True, slots=True)
class Due:
    """Containers to recreate for one change."""

    containers: tuple[str, ...]
    limit: datetime  # Containers that started after this time are not recreated
    objects: tuple[str, ...]  # What has changed by then: `ConfigMap web-cfg`


def due(
    policy: Policy, remembered: Iterable[UsedObject], running: Sequence[Running], now: datetime
) -> tuple[list[Due], datetime | None]:
    """Return the settled changes with containers to recreate, the earliest first, and when the next change settles."""
    by_limit: dict[datetime, list[UsedObject]] = {}
    waits: list[datetime] = []
    for each in remembered if policy.config is not None else ():
        since = parse_time(each.since)
        concerns = not policy.containers or each.container in policy.containers
        if since is None or not concerns or (each.hash == each.done and not each.left):
            continue
        limit, left = _limit(policy, since), parse_time(each.left)
        if limit > now:
            waits.append(limit)
            continue
        started = [one.started for one in running if one.name == each.container]
        if each.hash == each.done and left is not None:  # the change was reverted
            started = [moment for moment in started if moment >= left - _MARGIN]
        if any(moment <= limit for moment in started):
            by_limit.setdefault(limit, []).append(each)
    found = []
    for limit, changed in sorted(by_limit.items()):
        names = {each.container for each in changed}
        earlier = chain.from_iterable(some for moment, some in by_limit.items() if moment <= limit)
        objects = {f"{each.kind} {each.name}" for each in earlier if each.container in names}
        found.append(Due(tuple(sorted(names)), limit, tuple(sorted(objects))))
    return found, min(waits, default=None)


def covered(policy: Policy, remembered: Iterable[UsedObject], run: RunRecord, *, done: bool) -> tuple[UsedObject, ...]:
    """Return the records after a run has started, or is done. It covers all changes that had settled at its start."""
    limit = parse_time(run.since)
    found = []
    for each in remembered:
        since = parse_time(each.since)
        settled = since is not None and limit is not None and _limit(policy, since) <= limit
        meant = settled and each.container in run.containers
        found.append(replace(each, done=each.hash if done else "", left="") if meant else each)
    return tuple(found)
