"""What the manager keeps of each request and of each pod: few fields, so that a whole cluster's fit into its memory.

`lifecycle` decides on these. The node has its own, richer view of a pod (`model.PodView`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from daemon.core.manifest import parse_request
from daemon.core.model import NO_PINS, Request
from daemon.core.readiness import NO_CONDITION, Readiness, has_gate, readiness_of
from daemon.core.reading import Reader, items, mapping, text

FINALIZER = "crr.apps.kruise.io/unready-acquired"
"""Guards the release of the pod's readiness: while it is there, the request is not gone."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request, with what only the manager needs of it."""

    request: Request
    deadline_seconds: int | None = None
    """activeDeadlineSeconds."""
    ttl_seconds: int | None = None
    """ttlSecondsAfterFinished."""
    finalizers: tuple[str, ...] = ()

    @property
    def guarded(self) -> bool:
        """Whether the finalizer is there: only then the pod may have been made unready for the request."""
        return FINALIZER in self.finalizers


@dataclass(frozen=True, slots=True)
class PodCard:
    """One pod, as far as the manager needs it."""

    namespace: str
    name: str
    uid: str
    deleting: bool = False
    ended: bool = False
    """Succeeded or Failed."""
    gate: bool = False
    """Whether the pod carries the readiness gate KruisePodReady."""
    readiness: Readiness = NO_CONDITION

    @property
    def key(self) -> str:
        """`namespace/name` of the pod."""
        return f"{self.namespace}/{self.name}"


def parse_view(obj: Mapping[str, Any]) -> RequestView:
    """Read a request; never raises, as `parse_request`. A deadline or TTL that cannot be read counts as none."""
    reader = Reader()  # its complaints are those of parse_request
    meta, spec = mapping(mapping(obj).get("metadata")), mapping(mapping(obj).get("spec"))
    return RequestView(
        request=parse_request(obj),
        deadline_seconds=reader.whole(spec.get("activeDeadlineSeconds"), "spec.activeDeadlineSeconds"),
        ttl_seconds=reader.whole(spec.get("ttlSecondsAfterFinished"), "spec.ttlSecondsAfterFinished"),
        finalizers=tuple(filter(None, map(text, items(meta.get("finalizers"))))),
    )


def parse_card(obj: Mapping[str, Any]) -> PodCard:
    """Read a pod; what cannot be read is as if it were absent."""
    pod = mapping(obj)
    meta = mapping(pod.get("metadata"))
    gate = has_gate(pod)
    return PodCard(
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        deleting=meta.get("deletionTimestamp") is not None,
        ended=mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed"),
        gate=gate,
        readiness=readiness_of(pod) if gate else NO_CONDITION,
    )


def slim(view: RequestView) -> RequestView:
    """A completed request without what no later decision reads: a cluster can keep very many of them."""
    request = view.request
    if not request.completed:
        return view
    status = replace(request.status, states=(), message="")
    return replace(view, request=replace(request, containers=(), pinned=NO_PINS, error="", status=status))


def instant(timestamp: str) -> datetime | None:
    """The moment that an RFC 3339 text names, None where it names none."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def after(timestamp: str, seconds: int) -> datetime | None:
    """The moment so many seconds after that of an RFC 3339 text; None where there is none, or only in ages to come."""
    moment = instant(timestamp)
    try:
        return None if moment is None else moment + timedelta(seconds=seconds)
    except OverflowError:
        return None


def rfc3339(moment: datetime) -> str:
    """A moment as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
