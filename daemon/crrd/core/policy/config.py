"""What a policy remembers of the configuration that its containers use, and which of them are due for a change of it.

A change that is taken back before a run has begun for it restarts nothing, because all containers still have that data,
unless one of them started in between.
Nothing is decided by a clock of the manager alone: `since` is when the API server noted the change, as far as it says
so, and a container is due when it started before that and the change could not reach it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.config.objects import START_MARGIN
from crrd.core.config.references import Kind, Reference
from crrd.core.policy.types import Policy, RunRecord, UsedObject

_MARGIN = timedelta(seconds=START_MARGIN)
UseKey = tuple[str, Kind, str]  # Container, kind and name of the object


@dataclass(frozen=True, slots=True)
class Data:
    """The data of an object, as one container uses it."""

    hash: str
    changed: datetime | None  # When it last changed by the object's managedFields: maybe too late, never too early


@dataclass(frozen=True, slots=True)
class Running:
    """One container that runs."""

    pod: str
    name: str
    started: datetime
    uses: tuple[Reference, ...] = ()


def merged_uses(running: Iterable[Running]) -> dict[UseKey, Reference]:
    """What containers of one name use of one object, in all pods together."""
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
    """What to remember from now on; objects that cannot be looked at now stay as they were."""
    known = {(each.container, each.kind, each.name): each for each in policy.status.config}
    for key, found in data.items():
        old = known.get(key)
        if old is None:
            known[key] = _first(policy, key, found, running, now)
            continue
        if old.left and not _pending(policy, old, running, now):
            old = replace(old, left="")
        known[key] = _changed(old, found, now) if old.hash != found.hash else old
    used = merged_uses(running)
    return tuple(known[key] for key in sorted(known) if key in used or key in data)


def _first(policy: Policy, key: UseKey, found: Data, running: Iterable[Running], now: datetime) -> UsedObject:
    """An object that was not seen before. It has changed already only if a container surely started before that.

    What changed before the policy was created is not its concern.
    """
    created, changed = parse_time(policy.created), found.changed
    if changed is None:
        return UsedObject(*key, found.hash, rfc3339(now), done=found.hash)
    before = (each for each in running if each.started < changed - _MARGIN)
    stale = (created is None or changed > created) and key in merged_uses(before)
    return UsedObject(*key, found.hash, rfc3339(min(changed, now)), done="" if stale else found.hash)


def _pending(policy: Policy, old: UsedObject, running: Iterable[Running], now: datetime) -> bool:
    """Whether a container may have what was there before a change was taken back."""
    since, left = parse_time(old.since), parse_time(old.left)
    if old.hash != old.done or since is None or left is None or (limit := _limit(policy, since)) > now:
        return True
    return any(each.name == old.container and left - _MARGIN <= each.started <= limit for each in running)


def _changed(old: UsedObject, found: Data, now: datetime) -> UsedObject:
    """An object whose data is other than before."""
    noted, known_since = found.changed, parse_time(old.since)
    trusted = noted is not None and known_since is not None and known_since <= noted <= now
    since = rfc3339(noted if noted is not None and trusted else now)
    return replace(old, hash=found.hash, since=since, left=old.left or since)


def _limit(policy: Policy, since: datetime) -> datetime:
    """When a change has settled; a container that started later has it."""
    return since + timedelta(seconds=policy.settle)


@dataclass(frozen=True, slots=True)
class Due:
    """Containers that are to be recreated for one change."""

    containers: tuple[str, ...]
    limit: datetime  # Containers that started after this time are not recreated
    reason: str  # For people: `ConfigMap web-cfg changed`


def due(
    policy: Policy, remembered: Iterable[UsedObject], running: Sequence[Running], now: datetime
) -> tuple[list[Due], datetime | None]:
    """The changes that containers are due for, the earliest first, and when the next one will have settled."""
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
        if each.hash == each.done and left is not None:  # taken back
            started = [moment for moment in started if moment >= left - _MARGIN]
        if any(moment <= limit for moment in started):
            by_limit.setdefault(limit, []).append(each)
    found = []
    for limit, changed in sorted(by_limit.items()):
        names = ", ".join(sorted({f"{each.kind} {each.name}" for each in changed}))
        found.append(Due(tuple(sorted({each.container for each in changed})), limit, f"{names} changed"))
    return found, min(waits, default=None)


def covered(policy: Policy, remembered: Iterable[UsedObject], run: RunRecord, *, done: bool) -> tuple[UsedObject, ...]:
    """What to remember once a run has begun, or is done: it is for all changes that had settled when it began."""
    limit = parse_time(run.since)
    found = []
    for each in remembered:
        since = parse_time(each.since)
        settled = since is not None and limit is not None and _limit(policy, since) <= limit
        meant = settled and each.container in run.containers
        found.append(replace(each, done=each.hash if done else "", left="") if meant else each)
    return tuple(found)
