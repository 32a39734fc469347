"""Which containers a kubelet of another version will restart, and why.

Kubelet compares the hash that it stored with a running container to the one that it computes from the pod's spec, and
restarts the container where they differ (`containerChanged` in pkg/kubelet/kuberuntime).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import ContainerKind
from crrd.forecast.spec_diff import diff, restarting_resources
from crrd.kubelet.hash.container_hash import Hash, era_of, hash_of
from crrd.kubelet.hash.container_types import added_fields
from crrd.kubelet.restart_rules import RESIZE_SINCE, SIDECAR_HASH_SINCE, SIDECARS_SINCE
from crrd.kubelet.version import NEWEST_MINOR, parse_minor
from crrd.lib.jsonfields import mapping


class Outcome(StrEnum):
    """What becomes of a container."""

    KEEP = "keep"
    RESTART = "restart"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """One running container: what the runtime tells of it by kubelet's labels, and its spec in the API."""

    namespace: str
    pod: str
    name: str
    id: str  # In the runtime
    stored_hash: str | None  # The annotation io.kubernetes.container.hash as it stands (hex); None where there is none
    spec: Mapping[str, Any] | None = None
    """The container as in the pod's JSON; None where the API has no such pod or container."""
    kind: ContainerKind = ContainerKind.REGULAR
    started_with: Mapping[str, Any] | None = None  # The spec that it was started with, where one was kept
    created_at: int = 0  # Nanoseconds since the epoch, the runtime's clock: for ordering only
    uid: str = ""  # The pod's
    listed: bool = True  # Whether the runtime has it; else the API alone says that it runs


@dataclass(frozen=True, slots=True)
class Change:
    """What has changed in a container's spec since it was started."""

    what: str  # As `spec_diff.Difference` says it
    restart: bool  # Whether only a container that is started anew gets it


@dataclass(frozen=True, slots=True)
class Forecast:
    """What becomes of one container."""

    namespace: str
    pod: str
    name: str
    id: str
    kind: ContainerKind
    stored: int | None  # The hash that kubelet wrote
    target: int | None  # The one that the target version computes
    outcome: Outcome
    reason: str
    differs_now: bool = False  # Whether the running kubelet's version computes another hash than the stored one, too
    changes: tuple[Change, ...] | None = None
    """What its spec means now and did not mean when it was started; None where the spec of its start is not known."""


@dataclass(frozen=True, slots=True)
class Report:
    """What becomes of the containers of one node."""

    from_version: str
    to_version: str
    containers: tuple[Forecast, ...]
    node: str = ""
    notes: tuple[str, ...] = ()
    failed: bool = False  # Whether there is no report at all; a note says why

    def failing(self, why: str) -> "Report":
        """The same, as one that could not be made."""
        return replace(self, failed=True, notes=(*self.notes, why))

    @property
    def totals(self) -> dict[Outcome, int]:
        """How many containers have each outcome."""
        counted = Counter(each.outcome for each in self.containers)
        return {outcome: counted[outcome] for outcome in Outcome}

    @property
    def differing_now(self) -> int:
        """How many containers' stored hashes are not what the running kubelet's version computes: for a metric."""
        return sum(each.differs_now for each in self.containers)


def make_report(containers: Iterable[ForecastInput], from_version: str, to_version: str, *, node: str = "") -> Report:
    """What a kubelet of `to_version` will do with containers that one of `from_version` runs.

    `from_version` only explains. Raises ValueError for what is no version of Kubernetes.
    """
    today, target = parse_minor(from_version), parse_minor(to_version)
    notes = []
    if target > NEWEST_MINOR:
        notes.append(
            f"this version of crrd does not know kubelet 1.{target}, only versions up to 1.{NEWEST_MINOR}. The report "
            f"assumes that kubelet 1.{target} computes the same hashes as 1.{NEWEST_MINOR}. Use a newer crrd, or drain "
            "the node first"
        )
    found = sorted((_one(each, today, target) for each in containers), key=lambda f: (f.namespace, f.pod, f.name, f.id))
    return Report(from_version, to_version, tuple(found), node, tuple(notes))


def parse_stored(annotation: str | None) -> int | None:
    """The hash in the annotation that kubelet writes (hex, 32 bits); None where there is none or it is none."""
    if not annotation or len(annotation) > 16 or not all(letter in "0123456789abcdef" for letter in annotation.lower()):
        return None
    return int(annotation, 16)


def _one(container: ForecastInput, today: int, target: int) -> Forecast:
    stored = parse_stored(container.stored_hash)
    now = hash_of(container.spec, today) if container.spec is not None else Hash(None)
    then = now if target == today else hash_of(container.spec, target) if container.spec is not None else Hash(None)
    outcome, reason = _judge(container, stored, now, then, (today, target))
    return Forecast(
        namespace=container.namespace,
        pod=container.pod,
        name=container.name,
        id=container.id,
        kind=container.kind,
        stored=stored,
        target=then.value,
        outcome=outcome,
        reason=reason,
        differs_now=is_compared(container.kind, today) and None not in (stored, now.value) and stored != now.value,
        changes=_changes(container),
    )


def _changes(container: ForecastInput) -> tuple[Change, ...] | None:
    """By meaning, and so for every version alike: no hash is needed for it."""
    if container.started_with is None or container.spec is None:
        return None
    return tuple(Change(str(found), found.restart) for found in diff(container.started_with, container.spec))


def is_compared(kind: ContainerKind, minor: int) -> bool:
    """Whether kubelet 1.`minor` compares the hashes of such containers."""
    return kind is ContainerKind.REGULAR or (kind is ContainerKind.SIDECAR and minor >= SIDECAR_HASH_SINCE)


def _not_compared(kind: ContainerKind, minor: int) -> tuple[Outcome, str]:
    if kind is not ContainerKind.SIDECAR:
        return Outcome.KEEP, f"kubelet does not compare the hash of an {kind}"
    if minor < SIDECARS_SINCE:
        return Outcome.UNKNOWN, f"kubelet 1.{minor} does not support sidecars"
    return Outcome.KEEP, f"kubelet compares the hash of a sidecar only since 1.{SIDECAR_HASH_SINCE}"


def _judge(
    container: ForecastInput, stored: int | None, now: Hash, then: Hash, minors: tuple[int, int]
) -> tuple[Outcome, str]:
    today, target = minors
    if not is_compared(container.kind, target):
        return _not_compared(container.kind, target)
    if not container.listed:
        return (
            Outcome.UNKNOWN,
            "it runs according to the API server, but the container runtime does not list it: check --cri-endpoint",
        )
    if container.stored_hash is None:
        return Outcome.UNKNOWN, "kubelet recorded no hash on the container"
    if stored is None:
        return Outcome.UNKNOWN, f"the hash on the container is invalid: {container.stored_hash[:40]!r}"
    if container.spec is None:
        return Outcome.UNKNOWN, "the pods that were read do not include this container"
    if then.value is None:
        return Outcome.UNKNOWN, then.why
    if then.value == stored:
        return _same_hash(container, today, target)
    if now.value is None:
        return (
            Outcome.RESTART,
            f"the hash that kubelet 1.{target} computes (of {era_of(target).hashed}) differs from the stored one",
        )
    if now.value != stored and not is_compared(container.kind, today):
        return Outcome.RESTART, f"kubelet 1.{target} compares the hash of a {container.kind}, but 1.{today} does not"
    if now.value != stored:
        return (
            Outcome.RESTART,
            f"the container's spec has changed since it started, so kubelet 1.{today} would restart it, too",
        )
    before, after = era_of(today), era_of(target)
    if before is not after:
        return Outcome.RESTART, f"kubelet 1.{today} hashes {before.hashed}, 1.{target} {after.hashed}"
    return Outcome.RESTART, _changed_fields(today, target)


def _same_hash(container: ForecastInput, today: int, target: int) -> tuple[Outcome, str]:
    if not _may_be_resized(container, today, target):
        return Outcome.KEEP, "the hash stays the same"
    return Outcome.UNKNOWN, (
        f"the hash stays the same, but kubelet 1.{target} may take the container's resources for a resize, and its "
        "resizePolicy is RestartContainer"
    )


def _may_be_resized(container: ForecastInput, today: int, target: int) -> bool:
    """Whether kubelet takes the container's resources for a change that needs a restart.

    Source: `computePodResizeAction` in pkg/kubelet/kuberuntime, which takes a missing record for no resources at all.
    """
    if container.kind is not ContainerKind.REGULAR or not today < RESIZE_SINCE <= target:
        return False
    resources = mapping(mapping(container.spec).get("resources"))
    given = {name for key in ("requests", "limits") for name in mapping(resources.get(key))}
    return not given.isdisjoint(restarting_resources(mapping(container.spec)))


def _changed_fields(today: int, target: int) -> str:
    """Why two versions of one era differ."""
    older, newer = sorted((today, target))
    added = ", ".join(added_fields(older, newer))
    return f"the hash includes fields that were added between 1.{older} and 1.{newer}: {added}"
