"""Answers AdmissionReviews: fetches the pod that a request is about, and asks `core.admission`, which decides.

Where the pod cannot be looked up, the write is refused in a way that has clients try again by themselves. The same goes
where too many wait for their pods: what was read from a body may take many times its bytes until there is an answer.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from crrd.core.admission.patch import Operation, json_patch
from crrd.core.admission.rules import (
    Denied,
    container_names,
    mutate_pod,
    review_create,
    wanted_pod,
)
from crrd.core.admission.update import put_back
from crrd.core.api.pod import parse_pod
from crrd.kube.kubelet_version import KubeletVersions
from crrd.kube.resources import PODS, ObjectReader
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.manager.webhook.review import CREATE, UPDATE, Review

log = structlog.get_logger(__name__)

_RETRY_AFTER_SECONDS = 1
WAITING_BYTES = 8 * 2**20  # Of bodies whose pods are being looked up; read, they take up to 24 times as much
LOOKUP_REFUSED, LOOKUP_FAILED, OVERLOADED = "pod_lookup_refused", "pod_lookup_failed", "overloaded"
"""Reasons of refusals that are not the user's doing."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The write does not happen."""

    message: str
    code: int
    reason: str  # In one word, of a few
    retry_after: int | None = None  # Seconds after which the same write may succeed; None where it will not


Answer = list[Operation] | Refusal
"""What is to be changed in the object that is let in (often nothing), or why it is not."""


class AdmissionHandler:
    """One answer for each of the webhook's paths; `deadline` is a monotonic time."""

    def __init__(self, pods: ObjectReader) -> None:
        self._pods = pods
        self._kubelets = KubeletVersions(pods)
        self._waiting_bytes = 0

    async def review_request(self, review: Review, deadline: float) -> Answer:
        """Judge and complete a new request; put back into a changed one what admission had filled in."""
        if review.operation == UPDATE:
            return json_patch(review.object, put_back(review.old, review.object))
        if review.operation != CREATE:
            return []
        name = wanted_pod(review.object)
        if isinstance(name, Denied):
            return _refusal(name)
        pod = await self._look_up(review, name, deadline)
        if isinstance(pod, Refusal):
            return pod
        outcome = review_create(review.object, pod, review.user, await self._kubelet_minor(review, pod, deadline))
        if isinstance(outcome, Denied):
            return _refusal(outcome)
        return json_patch(review.object, outcome.obj)

    async def mutate_pod(self, review: Review, _: float) -> Answer:
        """Give a new pod the readiness gate."""
        return mutate_pod(review.object) if review.operation == CREATE else []

    async def _kubelet_minor(self, review: Review, pod: Mapping[str, Any] | None, deadline: float) -> int | None:
        """The version of the kubelet on the pod's node, where it matters for a container of the request.

        None, too, where the API server does not answer in time.
        """
        view = parse_pod(pod or {})
        named = (view.containers.get(name) for name in container_names(review.object))
        matters = view.node_name and any(each is not None and each.version_matters for each in named)
        if not matters:
            return None
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await self._kubelets.minor(view.node_name)
        except TimeoutError:
            log.warning("node lookup failed", node_name=view.node_name, error="no answer")
            return None

    async def _look_up(self, review: Review, name: str, deadline: float) -> Mapping[str, Any] | Refusal | None:
        """The pod; None where there is none of that name."""
        if self._waiting_bytes + review.size > WAITING_BYTES:
            why = "too many pod lookups at once; try again"
            return Refusal(f"spec.podName cannot be checked now: {why}", 503, OVERLOADED, _RETRY_AFTER_SECONDS)
        self._waiting_bytes += review.size
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await self._pods.get(PODS, review.namespace, name)
        except GoneError:
            return None
        except ApiRefusedError as error:
            why = "the API server rejected the manager's pod lookup; check the manager's log"
            log.warning("pod lookup rejected", namespace=review.namespace, pod=name, error=str(error))
            return Refusal(f"spec.podName cannot be checked: {why}", 500, LOOKUP_REFUSED)
        except (ApiUnavailableError, TimeoutError) as error:
            why = "the API server did not answer the manager's pod lookup; try again"
            log.warning("pod lookup failed", namespace=review.namespace, pod=name, error=str(error) or "no answer")
            return Refusal(f"spec.podName cannot be checked now: {why}", 503, LOOKUP_FAILED, _RETRY_AFTER_SECONDS)
        finally:
            self._waiting_bytes -= review.size


def _refusal(denied: Denied) -> Refusal:
    return Refusal(denied.message, denied.code, denied.reason)
