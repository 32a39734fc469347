"""Which containers a kubelet of another version will restart, and why.

Kubelet compares the stored hash of a running container with the hash of its current spec, and restarts the container
if they differ (`containerChanged` in pkg/kubelet/kuberuntime).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import ContainerKind
from crrd.kubelet.restart_rules import RESIZE_SINCE, SIDECAR_HASH_SINCE, SIDECARS_SINCE, STATIC_UIDS_DIFFER_SINCE
from crrd.lib.jsonfields import mapping
from crrd_forecast.hash.container_hash import Hash, era_of, hash_of
from crrd_forecast.hash.container_types import added_fields
from crrd_forecast.hash.version import NEWEST_MINOR, parse_minor
from crrd_forecast.spec_diff import diff, restarting_resources

_DERIVED_UID = re.compile("[0-9a-f]{32}")
"""The UID of a static pod whose manifest has none (MD5). All others have dashes."""


class Outcome(StrEnum):
    """What happens to a container."""

    KEEP = "keep"
    RESTART = "restart"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """A running container: the runtime's data from kubelet's labels, and its spec in the API."""

    namespace: str
    pod: str
    name: str
    id: str  # In the runtime
    stored_hash: str | None  # Annotation io.kubernetes.container.hash (hex), or None
    spec: Mapping[str, Any] | None = None
    """The container in the pod's JSON, or None if the API has no such pod or container."""
    kind: ContainerKind = ContainerKind.REGULAR
    started_with: Mapping[str, Any] | None = None  # The spec that it was started with, if stored
    created_at: int = 0  # Nanoseconds since the epoch by the runtime's clock, used for ordering only
    uid: str = ""  # UID of the pod
    listed: bool = True  # Whether the runtime lists it; else only the API reports it as running


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a container's spec since its start."""

    what: str  # Text of `spec_diff.Difference`
    restart: bool  # Whether only a restarted container gets the change


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens to one container."""

    namespace: str
    pod: str
    name: str
    id: str
    kind: ContainerKind
    stored: int | None  # The hash that kubelet stored
    target: int | None  # The hash that the target version computes
    outcome: Outcome
    reason: str
    differs_now: bool = False  # Whether the running kubelet's version also computes another hash than the stored one
    changes: tuple[Change, ...] | None = None
    """Changes of the spec's meaning since the start, or None if the spec at the start is not known."""


@dataclass(frozen=True, slots=True)
class Report:
    """What happens to the containers of one node."""

    from_version: str
    to_version: str
    containers: tuple[Forecast, ...]
    node: str = ""
    notes: tuple[str, ...] = ()
    failed: bool = False  # Whether there is no forecast; a note has the reason

    def failing(self, why: str) -> "Report":
        """Return the report marked as failed, with the reason as a note."""
        return replace(self, failed=True, notes=(*self.notes, why))

    @property
    def totals(self) -> dict[Outcome, int]:
        """Return the number of containers for each outcome."""
        counted = Counter(each.outcome for each in self.containers)
        return {outcome: counted[outcome] for outcome in Outcome}

    @property
    def differing_now(self) -> int:
        """Number of containers whose stored hash differs from that of the running kubelet's version, for a metric."""
        return sum(each.differs_now for each in self.containers)


def make_report(containers: Iterable[ForecastInput], from_version: str, to_version: str, *, node: str = "") -> Report:
    """Return what a kubelet of `to_version` will do with containers that a kubelet of `from_version` runs.

    Raises ValueError if a version is not a Kubernetes version.
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
    """Parse kubelet's hash annotation (hex, 32 bits). Return None if it is missing or invalid."""
    return int(annotation, 16) if annotation and re.fullmatch("[0-9a-fA-F]{1,16}", annotation) else None


def _one(container: ForecastInput, today: int, target: int) -> Forecast:
    stored = parse_stored(container.stored_hash)
    spec = container.spec
    now, then = (Hash(None) if spec is None else hash_of(spec, minor) for minor in (today, target))
    outcome, reason = _judge(container, stored, now, then, (today, target))
    changes = None
    if container.started_with is not None and spec is not None:  # by meaning, so the same for all versions
        changes = tuple(Change(str(found), found.restart) for found in diff(container.started_with, spec))
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
        changes=changes,
    )


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
    if today != target and _DERIVED_UID.fullmatch(container.uid):
        return _static(today, target)
    if not is_compared(container.kind, target):
        return _not_compared(container.kind, target)
    unknown = ""
    if not container.listed:
        unknown = (
            "it runs according to the API server, but the container runtime does not list it: check --cri-endpoint"
        )
    elif container.stored_hash is None:
        unknown = "kubelet recorded no hash on the container"
    elif stored is None:
        unknown = f"the hash on the container is invalid: {container.stored_hash[:40]!r}"
    elif container.spec is None:
        unknown = "the pods that were read do not include this container"
    elif then.value is None:
        unknown = then.why
    if unknown:
        return Outcome.UNKNOWN, unknown
    if then.value == stored:
        if not _may_be_resized(container, today, target):
            return Outcome.KEEP, "the hash stays the same"
        return Outcome.UNKNOWN, (
            f"the hash stays the same, but kubelet 1.{target} may take the container's resources for a resize, and its "
            "resizePolicy is RestartContainer"
        )
    return Outcome.RESTART, _why_it_differs(container.kind, now.value, stored, today, target)


def _static(today: int, target: int) -> tuple[Outcome, str]:
    """Return what happens to a container of a static pod, whatever its kind and hash."""
    why = "kubelet derives the UID of a static pod from the fields that its version knows"
    if min(today, target) < STATIC_UIDS_DIFFER_SINCE:
        return Outcome.UNKNOWN, f"{why}, so 1.{target} may replace the pod"
    return Outcome.RESTART, f"{why}, so 1.{target} replaces the pod"


def _why_it_differs(kind: ContainerKind, now: int | None, stored: int | None, today: int, target: int) -> str:
    before, after = era_of(today), era_of(target)
    if now is None:
        return f"the hash that kubelet 1.{target} computes (of {after.hashed}) differs from the stored one"
    if now != stored and not is_compared(kind, today):
        return f"kubelet 1.{target} compares the hash of a {kind}, but 1.{today} does not"
    if now != stored:
        return f"the container's spec has changed since it started, so kubelet 1.{today} would restart it, too"
    if before is not after:
        return f"kubelet 1.{today} hashes {before.hashed}, 1.{target} {after.hashed}"
    older, newer = sorted((today, target))
    added = ", ".join(added_fields(older, newer))
    return f"the hash includes fields that were added between 1.{older} and 1.{newer}: {added}"


def _may_be_resized(container: ForecastInput, today: int, target: int) -> bool:
    """Whether kubelet takes the container's resources for a change that needs a restart.

    Source: `computePodResizeAction` in pkg/kubelet/kuberuntime, called for regular containers and sidecars. It treats a
    missing record as no resources at all.
    """
    if not container.kind.recreatable or not today < RESIZE_SINCE <= target:
        return False
    resources = mapping(mapping(container.spec).get("resources"))
    given = {name for key in ("requests", "limits") for name in mapping(resources.get(key))}
    return not given.isdisjoint(restarting_resources(mapping(container.spec)))
