"""What the manager keeps of each request and of each pod: few fields, so that a whole cluster's fit into its memory.

`lifecycle` decides on these. The node has its own, richer view of a pod (`model.PodView`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from daemon.core.api.types import FINALIZER, NO_PINS, Request
from daemon.core.api.v1alpha1 import parse_request
from daemon.lib.jsonfields import Reader, items, mapping, text


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
    def has_finalizer(self) -> bool:
        """Whether the finalizer is there: only then the pod may have been made unready for the request."""
        return FINALIZER in self.finalizers


def parse_view(obj: Mapping[str, Any]) -> RequestView:
    """Read a request; never raises, as `parse_request`. A deadline or TTL that cannot be read counts as none."""
    reader = Reader()  # its complaints are those of parse_request
    meta, spec = mapping(mapping(obj).get("metadata")), mapping(mapping(obj).get("spec"))
    return RequestView(
        request=parse_request(obj),
        deadline_seconds=reader.integer(spec.get("activeDeadlineSeconds"), "spec.activeDeadlineSeconds"),
        ttl_seconds=reader.integer(spec.get("ttlSecondsAfterFinished"), "spec.ttlSecondsAfterFinished"),
        finalizers=tuple(filter(None, map(text, items(meta.get("finalizers"))))),
    )


def slim(view: RequestView) -> RequestView:
    """A completed request without what no later decision reads: a cluster can keep very many of them."""
    request = view.request
    if not request.completed:
        return view
    status = replace(request.status, states=(), message="")
    return replace(view, request=replace(request, containers=(), pinned=NO_PINS, error="", status=status))
