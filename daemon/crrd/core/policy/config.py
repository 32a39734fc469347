"""What a policy records about the configuration of its containers, and which containers are due after a change.

A record is about the part of one object that containers of one name use, so that two workloads under one policy, or the
pods before and after a rollout, each have their own. A change that is reverted before a run has started for it restarts
nothing, because all containers still have the old data, unless one of them started in between.
No decision depends on the manager's clock alone: `since` is the time of the change by the API server, if it recorded
one. (It records none for removed keys.) A container is due if it started too early to have the change. (`reloads` is
about those that have read it without a start.)
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.config.kept import NodeUse, kept_nodes, ran_before
from crrd.core.config.objects import START_MARGIN
from crrd.core.config.parts import PartChange
from crrd.core.policy.failures import failed_with, lasting, refuses
from crrd.core.policy.observed import Data, Look, Running, UseKey
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord, UsedObject

_MARGIN = timedelta(seconds=START_MARGIN)
_LAG = timedelta(minutes=1)
"""How late the watch of pods may show one that was created before an object was replaced."""
Uses = Mapping[str, NodeUse]


def remember(look: Look) -> tuple[UsedObject, ...]:
    """Return the new records. Objects that cannot be read keep their old records. All do while there is no pod.

    So do those of objects whose data a run has failed with (`lasting`).
    """
    found, now = look.found, look.now
    users_of = _users(found.running)
    known = {each.key: _still_kept(each, found.uses.get(each.part.object_name, {}), now) for each in look.status.config}
    for key, data in found.data.items():
        old, users, uses = known.get(key), users_of.get(key, ()), found.uses.get(key[1].object_name, {})
        if old is not None:
            if found.dropped and not old.immutable:  # an older object of this name could not be recorded
                old = _with_older(old, data, uses)
            old = _with_replaced(old, data, uses, now)
            if old.left and not _pending(look, old, users):
                old = replace(old, left="")
            if _is_applied(look, old, users):
                old = replace(old, done=old.hash, left="", lacking=())
            known[key] = _changed(old, data, now) if data.exists and old.hash != data.hash else old
        elif data.exists:
            known[key] = _with_older(_first(look, key, data, users), data, uses)
    stay = users_of.keys() | found.data.keys() | {each.key for each in lasting(look.policy, found.running)}
    return tuple(known[key] for key in sorted(known) if key in stay or not found.running)


def _still_kept(old: UsedObject, uses: Uses, now: datetime) -> UsedObject:
    """Return the record with the nodes that still keep the data of an object that was replaced or deleted."""
    replaced = parse_time(old.replaced)
    if replaced is None:
        return old
    nodes = kept_nodes(uses, replaced, old.nodes)
    if nodes or now < replaced + _LAG:
        return replace(old, nodes=nodes)
    return replace(old, nodes=(), kept="", replaced="")


def _with_replaced(old: UsedObject, data: Data, uses: Uses, now: datetime) -> UsedObject:
    """Return the record after an immutable object was replaced or deleted, or as it is.

    An object with the same data that takes its place is kept, too, but does no harm until its data differs.
    """
    record = replace(old, immutable=data.immutable_uid)
    if old.immutable in ("", data.uid):
        return record
    at = data.created or now
    kept = "" if old.is_kept else old.hash
    return replace(record, nodes=kept_nodes(uses, at, None), kept=kept, replaced=rfc3339(at))


def _users(running: Iterable[Running]) -> dict[UseKey, list[Running]]:
    """Return the containers that use each part."""
    found: dict[UseKey, list[Running]] = {}
    for each in running:
        for key in each.keys:
            found.setdefault(key, []).append(each)
    return found


def _first(look: Look, key: UseKey, found: Data, users: Iterable[Running]) -> UsedObject:
    """Make the record of a newly used part. A change is open only if a container started before it.

    Changes before the policy's creation do not count.
    """
    created, changed, (name, part) = parse_time(look.policy.created), found.changed, key
    stale = changed is not None and (created is None or changed > created)
    with_pods = changed is None or found.created is None or changed <= found.created  # else it was edited since
    slack = -_MARGIN if with_pods else _MARGIN
    stale = stale and changed is not None and any(each.keys[key] <= changed + slack for each in users)
    since, done = rfc3339(look.now if changed is None else min(changed, look.now)), "" if stale else found.hash
    return UsedObject(
        name, part.kind, part.name, found.hash, since, done, keys=part.keys, immutable=found.immutable_uid
    )


def _with_older(record: UsedObject, data: Data, uses: Uses) -> UsedObject:
    """Return the first record of an object, with the nodes that may keep the data of an older one of its name.

    It is unknown whether there was one. Where pods are older than an immutable object, it is assumed.
    """
    if not data.immutable or data.created is None or not (nodes := ran_before(uses, data.created)):
        return record
    return replace(record, nodes=nodes, replaced=rfc3339(data.created))


def _pending(look: Look, old: UsedObject, users: Iterable[Running]) -> bool:
    """Whether a container may still have the data of a change that was reverted."""
    since, left = parse_time(old.since), parse_time(old.left)
    if old.hash != old.done or since is None or left is None or (limit := limit_of(look.policy, since)) > look.now:
        return True
    return any(left - _MARGIN <= each.started and each.keys[old.key] <= limit for each in users)


def _is_applied(look: Look, old: UsedObject, users: Collection[Running]) -> bool:
    """Whether all containers have started with changed data, also without a run, and are ready."""
    run, since, is_bad = look.status.run, parse_time(old.since), look.status.is_bad(old)
    if old.hash == old.done or not users or since is None or old.is_kept or is_bad:
        return False
    if run is not None and not run.finished and brings(run, old):
        return False  # its end says whether the data is good
    if failed_with(look.status, old) is not None:
        return False  # until that is repaired
    limit, lacking = limit_of(look.policy, since), frozenset(old.lacking)
    change = PartChange(old.part, limit, only=lacking)
    return limit <= look.now and all(
        each.ready and not change.misses(old.part, each.keys[old.key], pod=each.pod) for each in users
    )


def _changed(old: UsedObject, found: Data, now: datetime) -> UsedObject:
    """Make the record of an object whose data has changed.

    If only keys were removed, `managedFields` still has the time of an earlier change, so the change counts from now.
    """
    noted, known_since = found.changed, parse_time(old.since)
    trusted = noted is not None and known_since is not None and known_since < noted <= now
    since = rfc3339(noted if noted is not None and trusted else now)
    return replace(old, hash=found.hash, since=since, left=old.left or since, lacking=())


def limit_of(policy: Policy, since: datetime) -> datetime:
    """Return when a change has settled. A container that started later has it."""
    return since + timedelta(seconds=policy.settle)


@dataclass(frozen=True, slots=True)
class Due:
    """Changes that have settled at `limit`, or settle then, and the containers to recreate."""

    containers: tuple[str, ...]
    limit: datetime
    changes: tuple[PartChange, ...]
    unsettled: datetime | None = None  # If they settle: since when they have been settling, at every look
    pods: bool = False  # Whether whole pods are restarted, because the containers are init containers
    reload: bool = False  # Whether the containers reload their files
    why_restart: str = ""  # Why they are restarted, if the policy would rather have them reload

    @property
    def objects(self) -> str:
        """The changed objects, for messages."""
        return ", ".join(sorted({each.part.object for each in self.changes}))

    @property
    def keys(self) -> frozenset[UseKey]:
        """The keys of the records of these changes."""
        return frozenset((name, each.part) for name in self.containers for each in self.changes)

    def concerns(self, container: Running) -> bool:
        """Whether a container misses one of the changes."""
        held = container.keys
        return (
            container.name in self.containers
            and container.is_init is self.pods
            and any(
                each.misses(part, at, container.started, container.pod)
                for each in self.changes
                for (_, part), at in held.items()
            )
        )


def due(look: Look, running: Sequence[Running], *, failed: bool = False) -> tuple[list[Due], list[Due]]:
    """Return which of these containers to recreate for settled changes, and which changes settle; the earliest first.

    A container waits until the last change of anything that it uses has settled, so that it restarts once for all. So
    do those of its name that use one of these objects, too, and those of a pod that restarts as a whole. Such a restart
    comes before that of single containers, which then have the changes already. Data with which a run has failed comes
    only with a newer change, which is one more try; or alone, too (`failed`).
    """
    policy, settling = look.policy, list[Due]()
    settled, waiting = dict[tuple[bool, datetime, bool], set[UseKey]](), set[UseKey]()
    whys: dict[datetime, set[str]] = {}  # By limit: why containers are restarted that might reload
    if policy.config is None:
        return [], []
    records = ((each.key, _open_change(policy, each)) for each in look.status.config)
    named = policy.containers
    changes = {key: each for key, each in records if each is not None and (not named or key[0] in named)}
    refused = {each.key for each in look.status.config if not failed and refuses(policy, each)}
    missed: dict[bool, set[UseKey]] = {True: set(), False: set()}  # By init containers, and by all others
    for each in running:
        missed[each.is_init] |= _missed(each, changes)
    for group in _connected(_together(look.restartable, changes)):
        if (limit := max(changes[key].until for key in group)) > look.now:
            since = min(look.found.unsettled.get(key, look.now) for key in group)
            settling.append(replace(_due(changes, group, limit), unsettled=since))
            waiting |= group
    for group in _connected(each.keys.keys() & changes.keys() for each in look.restartable):
        limit = max(changes[key].until for key in group)
        whole, own = ((missed[is_init] & group) - waiting for is_init in (True, False))
        if whole | own <= refused:
            continue  # also if there are none
        for key in whole:
            settled.setdefault((False, limit, False), set()).add(key)
        for name in sorted({name for name, _ in own}):
            why = _why_restart(look, name, {key: changes[key] for key in group}) if policy.reloads else ""
            whys.setdefault(limit, set()).update(filter(None, [why]))
            reload = policy.reloads and not why
            settled.setdefault((True, limit, reload), set()).update(key for key in own if key[0] == name)
    found = list[Due]()
    for (single, limit, reload), keys in sorted(settled.items(), key=lambda pair: pair[0]):
        why = " and ".join(sorted(whys.get(limit, ()))) if single and not reload else ""
        found.append(replace(_due(changes, keys, limit), pods=not single, reload=reload, why_restart=why))
    return found, sorted(settling, key=lambda each: (each.limit, each.objects))


def _missed(container: Running, changes: Mapping[UseKey, PartChange]) -> set[UseKey]:
    """Return the changes that a container misses."""
    held = container.keys.items()
    return {
        key for key, at in held if key in changes and changes[key].misses(key[1], at, container.started, container.pod)
    }


def _why_restart(look: Look, name: str, changes: Mapping[UseKey, PartChange]) -> str:
    """Return why containers of this name must be restarted to get these changes, "" if all of them can reload.

    Those whose nodes are down count, too.
    """
    for each in look.restartable:
        missed = _missed(each, changes) if each.name == name and not each.is_init else ()
        if why := each.why_restart(part for _, part in missed) if missed else "":
            return why
        if missed and each.node in look.found.old_daemons:
            return f"the node daemon on node {each.node} is too old to have containers reload"
    return ""


def _due(changes: Mapping[UseKey, PartChange], keys: Set[UseKey], limit: datetime) -> Due:
    names, some = {name for name, _ in keys}, {changes[key] for key in keys}
    return Due(tuple(sorted(names)), limit, tuple(sorted(some, key=str)))


def _together(running: Iterable[Running], changes: Mapping[UseKey, PartChange]) -> Iterator[Set[UseKey]]:
    """Yield the keys of changes that one restart brings: those of a container, or of a pod with an init container."""
    pods: dict[str, set[UseKey]] = {}
    whole = set[str]()
    for each in running:
        keys = each.keys.keys() & changes.keys()
        yield keys
        pods.setdefault(each.pod, set()).update(keys)
        if each.is_init and keys:
            whole.add(each.pod)
    yield from (keys for pod, keys in pods.items() if pod in whole)


def _connected(uses: Iterable[Set[UseKey]]) -> list[Set[UseKey]]:
    """Return the keys in groups: those that one restart brings are in one group."""
    groups: list[Set[UseKey]] = []
    for keys in {frozenset(each) for each in uses} - {frozenset()}:
        apart = [each for each in groups if not each & keys]
        groups = [*apart, keys.union(*(each for each in groups if each & keys))]
    return groups


def _open_change(policy: Policy, record: UsedObject) -> PartChange | None:
    """Return the change that not all containers have, None if there is none."""
    since, left = parse_time(record.since), parse_time(record.left)
    if since is None or record.is_kept or (record.hash == record.done and left is None):
        return None
    if policy.status.is_bad(record):
        return None
    reverted = record.hash == record.done and left is not None
    after = left - _MARGIN if reverted and left is not None else None
    return PartChange(record.part, limit_of(policy, since), after, frozenset(record.lacking))


def brings(run: RunRecord, record: UsedObject) -> bool:
    """Whether a run gives containers the data of a record: a change that had settled at the run's start.

    An edit of `settle` during the run changes nothing about that. `since` alone is not enough: in whole seconds, a
    change just after the start of a run is as old as one just before it.
    """
    since = parse_time(record.since)
    own = (at for at, change in enumerate(run.changes) if change.part == record.part)
    if since is None or (at := next(own, None)) is None or record.container not in run.containers:
        return False
    until, known = run.changes[at].until, run.hashes[at : at + 1]
    settled = since <= until and known == (record.hash,) if known else since < until  # a run of an older manager
    return settled and not record.is_kept and (record.hash != record.done or bool(record.left))


def is_taken_back(look: Look, run: RunRecord) -> bool:
    """Whether all objects of a run have the data again that its containers had before."""
    parts = {each.part for each in run.changes}
    meant = [each for each in look.status.config if each.container in run.containers and each.part in parts]
    return bool(meant) and all(each.hash == each.done and not brings(run, each) for each in meant)


def is_behind(look: Look, container: Running) -> bool:
    """Whether a container misses a change of its configuration."""
    changes = ((each.key, _open_change(look.policy, each)) for each in look.status.config)
    return bool(_missed(container, {key: change for key, change in changes if change is not None}))


def covered(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Return the status after a run is done. It covers all changes that it brings, but no data that is known as bad."""
    status = policy.status
    records = (
        replace(each, done=each.hash, left="", lacking=()) if brings(run, each) and not status.is_bad(each) else each
        for each in status.config
    )
    return replace(status, config=tuple(records))
