"""Which data of ConfigMaps a policy with `onFailure: Restore` keeps, and when it writes that back.

A revision is all data of one ConfigMap. Each look finds its `State` by facts from the cluster's objects. So it does not
matter where the manager before has stopped. The invariants:

- Only data is written back with which all containers have been ready, and with which no run has failed (`Keep`). They
  count as started with data from before the policy, because a time of `managedFields` may be too late.
- The status says that a revision is bad before anything is written, and with which resourceVersion. The API server
  accepts one write for that, so a revision is restored once at most, and never over data of another writer.
- No container is restarted while a ConfigMap has bad data, whoever writes that again.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from crrd.core.config.parts import Part, PartChange
from crrd.core.config.references import Kind
from crrd.core.policy.config import brings
from crrd.core.policy.failures import stopped_by
from crrd.core.policy.observed import Data, Look, Stored
from crrd.core.policy.types import BadRevision, OnFailure, Policy, PolicyStatus, Revision, RunRecord, UsedObject

MOST_BYTES = 1024 * 1024
"""Most data that is kept, as JSON. etcd takes 1.5 MiB for an object by default, with its metadata."""
MOST_BAD = 50  # Bad revisions that a policy remembers
_HASHED = re.compile(r"-[2456789bcdfghkmt]{10}$")
"""The end of a name that kustomize has made of the data (`encode` in its api/hasher)."""
_ROLLOUT = "so new data has another name: a rollout of the template brings it, and another one takes it back"


class State(StrEnum):
    """The states of the present data of a ConfigMap."""

    UNKNOWN = "Unknown"  # It does not exist, lacks a key, or was read while it changed
    ROLLING = "Rolling"  # Not all containers have started with it and are ready
    GOOD = "Good"  # They have and are, and it is not kept yet
    KEPT = "Kept"  # The same, and it is kept
    FAILED = "Failed"  # The run for it has failed, and no other data can be restored
    RESTORING = "Restoring"  # The status says that it is bad, and the kept data is to be written back
    RESTORED = "Restored"  # It is the kept data again, and containers that started in between are restarted
    BAD = "Bad"  # A run has failed with it, and it is there again or still. Nothing is restarted


_EDIT = "somebody writes data"
MOVES: Mapping[tuple[State, State], str] = MappingProxyType(
    {
        **{(one, State.UNKNOWN): "the object or a key is gone, or it changes" for one in State},
        **{(one, State.ROLLING): _EDIT for one in State},
        **{(one, State.BAD): f"{_EDIT}: those with which a run has failed" for one in State},
        **{(one, State.RESTORED): f"{_EDIT}: the kept ones" for one in State},
        **{(one, State.KEPT): f"{_EDIT}: the kept ones, and no container has others" for one in State},
        **{(one, State.GOOD): f"{_EDIT} that containers do not use, or what is kept was deleted" for one in State},
        (State.ROLLING, State.GOOD): "all containers have started with it and are ready",
        (State.GOOD, State.KEPT): "it is kept, and the status says so",
        (State.ROLLING, State.FAILED): "the run for it has failed",
        (State.UNKNOWN, State.FAILED): "the run for it has failed",
        (State.ROLLING, State.RESTORING): "the run for it has failed, and the status says that it is bad",
        (State.FAILED, State.RESTORING): "what keeps it from being restored is over",
        (State.UNKNOWN, State.RESTORING): "it can be read again",
        (State.BAD, State.RESTORING): "what keeps it from being restored is over",
        (State.RESTORING, State.BAD): "it was written again, or cannot be restored any more",
        (State.RESTORING, State.RESTORED): "the kept data was written back",
        (State.RESTORED, State.KEPT): "no container has the bad data any more",
    }
)
"""From one look to the next, and why."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the present data of one ConfigMap."""

    known: bool  # Whether all containers could start with it, and all of it was read at once
    is_open: bool  # Whether the status says that it is bad, and it is the version that was not written back yet
    restorable: bool  # Whether other data is kept, and may be written back
    bad: bool  # Whether a run has failed with a part of it
    brought: bool  # Whether the run that stops the policy has brought it, and nobody has written it since
    is_kept: bool  # Whether it is the kept data
    stored: bool  # Whether a ControllerRevision has it
    pending: bool  # Whether not all containers have it
    ready: bool  # Whether all containers that use it are ready


_ROWS: tuple[tuple[State, Callable[[Facts], bool]], ...] = (
    (State.UNKNOWN, lambda facts: not facts.known),
    (State.RESTORING, lambda facts: facts.is_open and facts.restorable),
    (State.BAD, lambda facts: facts.bad),
    (State.FAILED, lambda facts: facts.brought),
    (State.RESTORED, lambda facts: facts.is_kept and facts.pending),
    (State.KEPT, lambda facts: facts.is_kept and facts.stored),
    (State.GOOD, lambda facts: facts.ready and not facts.pending),
)
"""The first row that applies has the state. Without any, it is ROLLING."""


def state_of(facts: Facts) -> State:
    """Return the state of the present data of a ConfigMap."""
    return next((state for state, applies in _ROWS if applies(facts)), State.ROLLING)


@dataclass(frozen=True, slots=True)
class Keep:
    """The data of a ConfigMap is to be kept, as long as it has this hash."""

    object: str
    hash: str
    revision: str  # Name of the ControllerRevision


@dataclass(frozen=True, slots=True)
class Restore:
    """The kept data is to be written to a ConfigMap, as long as that has this hash and version."""

    object: str
    hash: str
    version: str
    kept: str  # Hash of the data to write
    revision: str  # Name of the ControllerRevision


@dataclass(frozen=True, slots=True)
class DataActions:
    """What is to be done about the data of ConfigMaps. Each can be repeated, or left out until the next look."""

    keep: tuple[Keep, ...] = ()
    restore: tuple[Restore, ...] = ()
    forget: tuple[str, ...] = ()  # ControllerRevisions to delete


NOTHING = DataActions()


@dataclass(frozen=True, slots=True)
class _Used:
    """One ConfigMap that containers use."""

    look: Look
    name: str
    data: tuple[Data, ...]  # By part
    records: tuple[UsedObject, ...]

    @property
    def revision(self) -> Revision:
        """The policy's record of it."""
        found = (each for each in self.look.status.revisions if each.name == self.name)
        return next(found, Revision(self.name, self.data[0].whole))

    @property
    def bad(self) -> tuple[BadRevision, ...]:
        """The entries of its present data."""
        parts = {(each.part, each.hash) for each in self.records}
        return tuple(each for each in self.look.status.bad if (each.part, each.hash) in parts)

    @property
    def why_not(self) -> str:
        """Why its data is never kept, "" if it can be."""
        if self.data[0].immutable:
            return f"it is immutable, {_ROLLOUT}"
        if _HASHED.search(self.name):
            return f"its name has a hash of its data, {_ROLLOUT}"
        if (size := self.data[0].size) > MOST_BYTES:
            return f"its data has {size} bytes, and at most {MOST_BYTES} are kept"
        return ""

    def facts(self, failed: RunRecord | None) -> Facts:
        """Return what is known. `failed` is the run that stops the policy."""
        look, now, revision = self.look, self.data[0], self.revision
        users = [each for each in look.found.running for _, part in each.keys if part.object_name == self._object]
        brought = failed is not None and revision.tried == now.whole and any(self.brought(failed))
        stored = {(each.name, each.object, each.hash) for each in look.found.stored or ()}
        kept = (revision.revision, self.name, revision.kept) in stored
        return Facts(
            known=all(each.exists and each.whole == now.whole for each in self.data) and bool(now.whole),
            is_open=any(each.version == now.version and not each.restored for each in self.bad),
            restorable=kept and revision.kept != now.whole and not self.why_not,
            bad=any(map(look.status.is_bad, self.records)),
            brought=brought,
            is_kept=revision.kept == now.whole,
            stored=kept,
            pending=any(each.hash != each.done or bool(each.left) for each in self.records),
            ready=bool(users) and all(each.ready for each in users),
        )

    def brought(self, run: RunRecord) -> Iterator[UsedObject]:
        """Yield the records whose data is new, and came with this run."""
        return (each for each in self.records if each.hash != each.done and brings(run, each))

    @property
    def _object(self) -> tuple[Kind, str]:
        return Kind.CONFIG_MAP, self.name


def _used_data(look: Look) -> list[tuple[Part, Data]]:
    """Return the data that containers use. The manager reads more: data with which a run has failed (`lasting`)."""
    keys = {key for each in look.found.running for key in each.keys} & look.found.data.keys()
    return [(key[1], look.found.data[key]) for key in sorted(keys)]


def _used_names(look: Look, kind: str = Kind.CONFIG_MAP) -> set[str]:
    """Return the names of the objects that containers use, also of those that do not exist at the moment."""
    return {part.name for part, _ in _used_data(look) if part.kind is kind}


def config_maps(look: Look) -> list[_Used]:
    """Return what is known of each ConfigMap that containers use and that exists."""
    data: dict[str, list[Data]] = {}
    for part, each in _used_data(look):
        if part.kind is Kind.CONFIG_MAP and each.uid:
            data.setdefault(part.name, []).append(each)
    records: dict[str, list[UsedObject]] = {}
    for record in look.status.config:
        if record.key in look.found.data and record.kind is Kind.CONFIG_MAP:
            records.setdefault(record.name, []).append(record)
    return [_Used(look, name, tuple(some), tuple(records.get(name, ()))) for name, some in sorted(data.items())]


def note(look: Look) -> PolicyStatus:
    """Return the status with the present revisions, and with which data is kept. The other records are up to date.

    A policy that does not restore data remembers no bad data either, so that its containers get it.
    """
    status, found = look.status, look.found
    if look.policy.on_failure is not OnFailure.RESTORE or look.policy.config is None:
        return replace(status, bad=(), revisions=status.revisions if found.stored else ())
    known, used = {each.name: each for each in status.revisions}, _used_names(look)
    for each in config_maps(look):
        facts = each.facts(None)
        if facts.known:
            revision = replace(each.revision, hash=each.data[0].whole)
            if state_of(facts) is State.GOOD and (stored := _find(found.stored or (), each.name, revision.hash)):
                revision = replace(revision, kept=revision.hash, revision=stored.name)
            known[each.name] = revision
    revisions = tuple(known[name] for name in sorted(known) if name in used or not found.running)
    status = replace(status, revisions=revisions)
    back = _kept_again(look.with_status(status))
    return replace(
        status,
        bad=tuple(
            replace(each, restored=each.restored or each.name in back or (each.name, each.version) in found.written)
            for each in status.bad
        ),
    )


def _find(stored: Iterable[Stored], name: str, whole: str) -> Stored | None:
    return next((each for each in stored if (each.object, each.hash) == (name, whole)), None)


def tried(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Return the status at the start of a run, with the data that it brings."""
    names = {each.part.name for each in run.changes if each.part.kind is Kind.CONFIG_MAP}
    noted = (replace(each, tried=each.hash) if each.name in names else each for each in policy.status.revisions)
    return replace(policy.status, revisions=tuple(noted))


def condemn(look: Look, failed: RunRecord) -> PolicyStatus:
    """Return the status with the data that a run has brought as bad, as far as it can be restored."""
    new: dict[tuple[Part, str], BadRevision] = {}
    for each in config_maps(look):
        facts = each.facts(failed)
        if state_of(facts) is State.FAILED and facts.restorable:
            for record in each.brought(failed):
                kind, name, version = record.kind, record.name, each.data[0].version
                entry = BadRevision(kind, name, record.hash, record.since, failed.name, version, record.keys)
                new[record.part, record.hash] = entry
    return replace(look.status, bad=(*look.status.bad, *new.values())[-MOST_BAD:])


def _kept_again(look: Look) -> set[str]:
    """Return the names of the ConfigMaps whose present data is the kept data."""
    facts = {each.name: each.facts(None) for each in config_maps(look)}
    return {name for name, each in facts.items() if each.known and each.is_kept}


def goes_back(look: Look, changes: Iterable[PartChange]) -> bool:
    """Whether these changes bring nothing but kept data that was written back. The records are up to date."""
    back = _kept_again(look)
    restored = {(each.kind, each.name) for each in look.status.bad if each.restored and each.name in back}
    return all(each.part.object_name in restored for each in changes)


def say(look: Look, state: State) -> tuple[str, str]:
    """Return the ConfigMaps in a state, with the bad keys, and the runs that have failed with them. "" for none."""
    held = [each for each in config_maps(look) if state_of(each.facts(None)) is state]
    bad = [one for each in held for one in each.bad]
    keys = {one.part: f" ({', '.join(one.keys)})" if one.keys else "" for one in bad}
    objects = [f"{part.object}{shown}" for part, shown in keys.items()]
    return ", ".join(objects), ", ".join(dict.fromkeys(one.run for one in bad))


def actions(look: Look, recorded: PolicyStatus) -> DataActions:
    """Return what is to be done. `recorded` is the status that the API server has. What is not in it yet must wait.

    A ControllerRevision is not needed any more once the status has another one for its ConfigMap, or none, because no
    container uses that.
    """
    stored = look.found.stored
    if stored is None or look.found.dropped:
        return NOTHING
    if look.policy.on_failure is not OnFailure.RESTORE or look.policy.config is None:
        return DataActions(forget=tuple(each.name for each in stored))
    keep, restore, used = list[Keep](), list[Restore](), config_maps(look)
    noted = {(each.part, each.hash, each.version) for each in recorded.bad}
    for each in used:
        state, now, revision = state_of(each.facts(None)), each.data[0], each.revision
        if state is State.GOOD and not each.why_not and not _find(stored, each.name, now.whole):
            keep.append(Keep(each.name, now.whole, revision_name(look.policy, each.name, now.whole)))
        if state is State.RESTORING and any((one.part, one.hash, one.version) in noted for one in each.bad):
            restore.append(Restore(each.name, now.whole, now.version, revision.kept, revision.revision))
    present = {each.name: each.data[0].whole for each in used}
    needed = {each.name: {each.kept, present.get(each.name)} for each in recorded.revisions if each.kept}
    known = _used_names(look) | {each.name for each in recorded.revisions}
    gone = {each.object for each in stored} - known if look.found.running else set[str]()
    old = (each for each in stored if each.object in gone or each.hash not in needed.get(each.object, {each.hash}))
    return DataActions(tuple(keep), tuple(restore), tuple(each.name for each in old))


def revision_name(policy: Policy, name: str, whole: str) -> str:
    """Return the name of the ControllerRevision that keeps data of a ConfigMap for a policy."""
    digest = hashlib.sha256(f"{policy.uid}|{name}|{whole}".encode()).hexdigest()
    return f"crrd-{name[:40].rstrip('-.')}-{digest[:20]}"


def gaps(look: Look) -> Sequence[str]:
    """Return which of the used objects could not be restored now, and why."""
    policy, found, whys, failed = look.policy, look.found, list[str](), stopped_by(look.policy)
    there = config_maps(look)
    for name in sorted(_used_names(look).difference(each.name for each in there)):
        whys.append(f"ConfigMap {name}: it does not exist, and neither its creation nor its deletion is taken back")
    for each in there:
        state = state_of(each.facts(None))
        if why := found.refused.get(each.name) or each.why_not:
            whys.append(f"ConfigMap {each.name}: {why}")
        elif not each.revision.kept:
            whys.append(f"ConfigMap {each.name}: no data of it is kept yet ({state})")
        elif state not in (State.UNKNOWN, State.KEPT) and not _find(found.stored or (), each.name, each.revision.kept):
            whys.append(f"ConfigMap {each.name}: ControllerRevision {each.revision.revision} is gone")
        elif failed is not None and any(each.brought(failed)) and each.revision.tried != each.data[0].whole:
            what = f"other keys have changed since run {failed.name} began, and would be lost"
            whys.append(f"ConfigMap {each.name}: {what}: correct the data")
    secrets = sorted(_used_names(look, Kind.SECRET))
    if policy.config is not None and secrets:
        whys.append(f"Secret {', '.join(secrets)}: Secrets are not kept")
    return whys
