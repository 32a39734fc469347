"""Answers AdmissionReviews: fetches the pod that a request is about, and asks `core.admission`, which decides.

Where the pod cannot be looked up, the write is refused in a way that has clients try again by themselves. The same goes
where too many wait for their pods: what was read from a body may take many times its bytes until there is an answer.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from crrd.core.admission.patch import Operation, json_patch
from crrd.core.admission.rules import (
    Admitted,
    Denied,
    container_names,
    mutate_pod,
    review_create,
    review_created,
    wanted_pod,
)
from crrd.core.admission.update import put_back, review_update
from crrd.core.api.pod import parse_pod
from crrd.kube.kubelet_version import KubeletVersions
from crrd.kube.resources import PODS, ObjectReader
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.manager.webhook.review import CREATE, UPDATE, Review

log = structlog.get_logger(__name__)

_RETRY_AFTER_SECONDS = 1
REMEMBERED_SECONDS = 1.0
"""For how long a pod that was looked up to complete a request is remembered, for validation, which follows at once."""
REMEMBERED_PODS = 64
WAITING_BYTES = 8 * 2**20
"""Of bodies whose pods are being looked up; read, they take up to 24 times as much."""
LOOKUP_REFUSED, LOOKUP_FAILED, OVERLOADED = "pod_lookup_refused", "pod_lookup_failed", "overloaded"
"""Reasons of refusals that are not the user's doing."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The write does not happen."""

    message: str
    code: int
    reason: str
    """In one word, of a few."""
    retry_after: int | None = None
    """Seconds after which the same write may succeed; None where it will not."""


Answer = list[Operation] | Refusal
"""What is to be changed in the object that is let in (often nothing), or why it is not."""


class AdmissionHandler:
    """One answer for each of the webhook's paths; `deadline` is a monotonic time."""

    def __init__(self, pods: ObjectReader) -> None:
        self._pods = pods
        self._kubelets = KubeletVersions(pods)
        self._waiting_bytes = 0
        self._remembered: OrderedDict[tuple[str, str], tuple[float, Mapping[str, Any]]] = OrderedDict()
        """By namespace and name: when the pod was looked up, and what was found."""

    async def mutate_request(self, review: Review, deadline: float) -> Answer:
        """Complete a new request; put back into a changed one what admission had filled in."""
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
        outcome = review_create(review.object, pod, review.user, await self._kubelet_minor(review, pod))
        if isinstance(outcome, Denied):
            return _refusal(outcome)
        if pod is not None:
            self._remember((review.namespace, name), pod)
        return json_patch(review.object, outcome.obj)

    async def validate_request(self, review: Review, deadline: float) -> Answer:
        """Hold a request, new or changed, against the rules."""
        if review.operation == UPDATE:
            return _answer(review_update(review.old, review.object))
        if review.operation != CREATE:
            return []
        name = wanted_pod(review.object)
        if isinstance(name, Denied):
            return _refusal(name)
        # By the pod by which the request was completed a moment ago, where it was in this process: one question to the
        # API server less. Nobody is refused by what was remembered.
        known = self._recall((review.namespace, name))
        if known is not None and not isinstance(await self._created(review, known), Denied):
            return []
        pod = await self._look_up(review, name, deadline)
        return pod if isinstance(pod, Refusal) else _answer(await self._created(review, pod))

    async def mutate_pod(self, review: Review, _: float) -> Answer:
        """Give a new pod the readiness gate."""
        return mutate_pod(review.object) if review.operation == CREATE else []

    async def _created(self, review: Review, pod: Mapping[str, Any] | None) -> Admitted | Denied:
        return review_created(review.object, pod, review.user, await self._kubelet_minor(review, pod))

    async def _kubelet_minor(self, review: Review, pod: Mapping[str, Any] | None) -> int | None:
        """The version of the kubelet on the pod's node, where it matters for a container of the request."""
        view = parse_pod(pod or {})
        named = (view.containers.get(name) for name in container_names(review.object))
        matters = view.node_name and any(each is not None and each.version_matters for each in named)
        return await self._kubelets.minor(view.node_name) if matters else None

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

    def _remember(self, key: tuple[str, str], pod: Mapping[str, Any]) -> None:
        self._remembered[key] = time.monotonic(), pod
        self._remembered.move_to_end(key)
        while self._remembered and (
            len(self._remembered) > REMEMBERED_PODS or self._old(next(iter(self._remembered.values()))[0])
        ):
            self._remembered.popitem(last=False)

    def _recall(self, key: tuple[str, str]) -> Mapping[str, Any] | None:
        at, pod = self._remembered.pop(key, (float("-inf"), None))
        return None if self._old(at) else pod

    @staticmethod
    def _old(at: float) -> bool:
        return time.monotonic() - at > REMEMBERED_SECONDS


def _answer(outcome: Admitted | Denied) -> Answer:
    return _refusal(outcome) if isinstance(outcome, Denied) else []


def _refusal(denied: Denied) -> Refusal:
    return Refusal(denied.message, denied.code, denied.reason)
