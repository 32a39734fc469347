"""Answers AdmissionReviews: fetches the pod that a request is about, and asks `core.admission`, which decides.

Nothing waits with a review in its hands, which may take many times the room of the bytes that it was read from: an
answer is there at once, or is that the pod has to be looked up, and then the same review is asked about once more.

Where the pod cannot be looked up, the write is refused in a way that has clients try again by themselves.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from crrd.core.admission.patch import Operation, json_patch
from crrd.core.admission.rules import Denied, mutate_pod, review_create, review_created, wanted_pod
from crrd.core.admission.update import put_back, review_update
from crrd.kube.resources import PODS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.manager.webhook.review import CREATE, UPDATE, Review

log = structlog.get_logger(__name__)

_RETRY_AFTER_SECONDS = 1
REMEMBERED_SECONDS = 1.0
"""For how long a pod that was looked up to complete a request is remembered, for validation, which follows at once."""
REMEMBERED_PODS = 64
LOOKUP_REFUSED, LOOKUP_FAILED = "pod_lookup_refused", "pod_lookup_failed"
"""Reasons of refusals that are not the user's doing."""


class PodReader(Protocol):
    """The one call that admission makes; `kube.client.KubeClient` has it."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        """One object; GoneError where there is none of that name."""
        ...


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


@dataclass(frozen=True, slots=True)
class Lookup:
    """There is no answer before this pod has been looked up."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup has found."""

    pod: Mapping[str, Any] | None
    """None where there is none of that name."""


Looked = Found | Refusal | None
"""What came of looking the review's pod up; None before that."""


class AdmissionHandler:
    """One answer for each of the webhook's paths, or what has to be looked up for it."""

    def __init__(self, pods: PodReader) -> None:
        self._pods = pods
        self._remembered: OrderedDict[tuple[str, str], tuple[float, Mapping[str, Any]]] = OrderedDict()
        """By namespace and name: when the pod was looked up, and what was found."""

    def mutate_request(self, review: Review, looked: Looked) -> Answer | Lookup:
        """Complete a new request; put back into a changed one what admission had filled in."""
        if review.operation == UPDATE:
            return json_patch(review.object, put_back(review.old, review.object))
        if review.operation != CREATE:
            return []
        if not isinstance(looked, Found):
            return looked or _lookup(review)
        outcome = review_create(review.object, looked.pod, review.user)
        if isinstance(outcome, Denied):
            return _refusal(outcome)
        if looked.pod is not None:
            self._remember(review, looked.pod)
        return json_patch(review.object, outcome.obj)

    def validate_request(self, review: Review, looked: Looked) -> Answer | Lookup:
        """Hold a request, new or changed, against the rules."""
        if review.operation == UPDATE:
            outcome = review_update(review.old, review.object)
        elif review.operation == CREATE:
            if looked is None:
                # By the pod by which the request was completed a moment ago, where it was in this process: one question
                # to the API server less. Nobody is refused by what was remembered.
                known = self._recall(review)
                if known is not None and not isinstance(review_created(review.object, known, review.user), Denied):
                    return []
            if not isinstance(looked, Found):
                return looked or _lookup(review)
            outcome = review_created(review.object, looked.pod, review.user)
        else:
            return []
        return _refusal(outcome) if isinstance(outcome, Denied) else []

    def mutate_pod(self, review: Review, _: Looked) -> Answer:
        """Give a new pod the readiness gate."""
        return mutate_pod(review.object) if review.operation == CREATE else []

    async def look_up(self, wanted: Lookup, deadline: float) -> Found | Refusal:
        """Ask for a pod, until `deadline`, a monotonic time."""
        namespace, name = wanted.namespace, wanted.name
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return Found(await self._pods.get(PODS, namespace, name))
        except GoneError:
            return Found(None)
        except ApiRefusedError as error:
            why = "the API server refuses the manager's question for the pod; see the manager's log"
            log.warning("pod lookup refused", namespace=namespace, pod=name, error=str(error))
            return Refusal(f"spec.podName cannot be checked: {why}", 500, LOOKUP_REFUSED)
        except (ApiUnavailableError, TimeoutError) as error:
            why = "the API server does not answer the manager's question for the pod; try again"
            log.warning("pod lookup failed", namespace=namespace, pod=name, error=str(error) or "no answer")
            return Refusal(f"spec.podName cannot be checked now: {why}", 503, LOOKUP_FAILED, _RETRY_AFTER_SECONDS)

    def _remember(self, review: Review, pod: Mapping[str, Any]) -> None:
        key = review.namespace, str(wanted_pod(review.object))
        self._remembered[key] = time.monotonic(), pod
        self._remembered.move_to_end(key)
        while self._remembered and (
            len(self._remembered) > REMEMBERED_PODS or self._old(next(iter(self._remembered.values()))[0])
        ):
            self._remembered.popitem(last=False)

    def _recall(self, review: Review) -> Mapping[str, Any] | None:
        name = wanted_pod(review.object)
        at, pod = self._remembered.pop((review.namespace, str(name)), (float("-inf"), None))
        return None if self._old(at) else pod

    @staticmethod
    def _old(at: float) -> bool:
        return time.monotonic() - at > REMEMBERED_SECONDS


def _lookup(review: Review) -> Lookup | Refusal:
    """The question for the pod that the request is about; a request that is wrong by itself needs none."""
    name = wanted_pod(review.object)
    return _refusal(name) if isinstance(name, Denied) else Lookup(review.namespace, name)


def _refusal(denied: Denied) -> Refusal:
    return Refusal(denied.message, denied.code, denied.reason)
