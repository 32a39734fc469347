"""Answers AdmissionReviews: gets the pod of the request, and calls `core.admission`, which decides.

If the API server does not answer the pod lookup, the write is rejected with 503, and clients retry. The same happens if
too many reviews wait for their pods, because a parsed body takes many times its bytes until it is answered.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import structlog

from crrd.core.admission import rules
from crrd.core.admission.rules import Allowed, Denied
from crrd.core.admission.update import put_back
from crrd.core.api.pod import ContainerKind, Pod
from crrd.core.api.types import Request
from crrd.core.patching import unfit
from crrd.core.rollout.state import Member, read_member
from crrd.kube.kubelet_version import KubeletVersions
from crrd.kube.resources import PODS, ObjectReader
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.lib.jsonpatch import json_patch
from crrd.manager.webhook.review import CREATE, UPDATE, Review

log = structlog.get_logger(__name__)

_RETRY_AFTER_SECONDS = 1
WAITING_BYTES = 8 * 2**20  # Limit for the bodies of all pending pod lookups. Parsed, they take up to 24 times as much
LOOKUP_REFUSED, LOOKUP_FAILED, OVERLOADED = "pod_lookup_refused", "pod_lookup_failed", "overloaded"
"""Reasons of rejections that the user did not cause."""


T = TypeVar("T")
NodeCheck = Callable[[str], Awaitable[bool]]
Answer = Allowed | Denied


class AdmissionHandler:
    """One method for each path of the webhook. `deadline` is a monotonic time."""

    def __init__(
        self,
        pods: ObjectReader,
        served: NodeCheck | None = None,
        *,
        lacking: Callable[[str], bool] = lambda _: False,
        deny: bool = False,
    ) -> None:
        """`served` tells whether a node daemon serves a node. None: on all nodes, node daemons restart containers.

        `lacking` tells whether a node is known to have no ready node daemon. Requests for its pods get a warning, or
        are denied if `deny` is True.
        """
        self._pods, self._served = pods, served
        self._lacking, self._deny = lacking, deny
        self._kubelets = KubeletVersions(pods)
        self._waiting_bytes = 0

    async def review_request(self, review: Review, deadline: float) -> Answer:
        """Check and complete a new request. In a changed request, restore the fields that admission had set."""
        if review.operation == UPDATE:
            return Allowed(json_patch(review.object, put_back(review.old, review.object)))
        if review.operation != CREATE:
            return Allowed()
        request = rules.read_new(review.object)
        if isinstance(request, Denied):
            return request
        found = await self._look_up(review, request.parsed.pod_name, deadline)
        if isinstance(found, Denied):
            return found
        pod = found.pod if found is not None else None
        kubelet_minor = await self._kubelet_minor(request.parsed, pod, deadline) if pod else None
        outcome = rules.review_create(request, pod, review.user, kubelet_minor)
        if isinstance(outcome, Denied):
            return outcome
        if found is not None and (denied := await self._unfit(review, request.parsed, found, kubelet_minor, deadline)):
            return denied
        lacking = pod.node_name if pod is not None and self._lacking(pod.node_name) else ""
        if lacking and self._deny:
            return rules.without_daemon(lacking)
        warnings = (rules.warn_of_no_daemon(lacking),) if lacking else ()
        return Allowed(json_patch(review.object, outcome), warnings)

    async def mutate_pod(self, review: Review, _: float) -> Answer:
        """Give a new pod the readiness gate."""
        return Allowed(rules.mutate_pod(review.object) if review.operation == CREATE else ())

    async def _unfit(
        self, review: Review, request: Request, member: Member, kubelet_minor: int | None, deadline: float
    ) -> Denied | None:
        """Deny what a patch of the pod cannot do, unless a node daemon does it."""
        if self._served is None or (denied := unfit.review(request, member, kubelet_minor)) is None:
            return None
        pod = member.pod
        served = await self._asked(review, pod.name, partial(self._served, pod.node_name), deadline)
        return served if isinstance(served, Denied) else None if served else denied

    async def _kubelet_minor(self, request: Request, pod: Pod, deadline: float) -> int | None:
        """Return the minor version of the kubelet on the pod's node, or None if it does not matter or on a timeout."""
        names = {each.name for each in request.containers}
        named = [each for each in pod.containers.values() if request.whole_pod or each.name in names]
        matters = any(each.version_matters for each in named)
        if self._served is not None:
            matters |= any(each.kind is ContainerKind.SIDECAR for each in named)
        if not pod.node_name or not matters:
            return None
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await self._kubelets.minor(pod.node_name)
        except TimeoutError:
            log.warning("node lookup failed", node_name=pod.node_name, error="no answer")
            return None

    async def _look_up(self, review: Review, name: str, deadline: float) -> Member | Denied | None:
        """Return the pod, or None if it does not exist."""
        found = await self._asked(review, name, partial(self._pods.get, PODS, review.namespace, name), deadline)
        return found if found is None or isinstance(found, Denied) else read_member(found, with_config=False)

    async def _asked(
        self, review: Review, name: str, call: Callable[[], Awaitable[T]], deadline: float
    ) -> T | Denied | None:
        """Return the result of a call about the pod of this name, or None if it does not exist."""
        if self._waiting_bytes + review.size > WAITING_BYTES:
            return _unchecked(" now: too many pod lookups at once; try again", OVERLOADED)
        self._waiting_bytes += review.size
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await call()
        except GoneError:
            return None
        except ApiRefusedError as error:
            why = ": the API server rejected the manager's pod lookup; check the manager's log"
            log.warning("pod lookup rejected", namespace=review.namespace, pod=name, error=str(error))
            return _unchecked(why, LOOKUP_REFUSED, 500, None)
        except (ApiUnavailableError, TimeoutError) as error:
            why = " now: the API server did not answer the manager's pod lookup; try again"
            log.warning("pod lookup failed", namespace=review.namespace, pod=name, error=str(error) or "no answer")
            return _unchecked(why, LOOKUP_FAILED)
        finally:
            self._waiting_bytes -= review.size


def _unchecked(why: str, reason: str, code: int = 503, retry_after: int | None = _RETRY_AFTER_SECONDS) -> Denied:
    return Denied(f"spec.podName cannot be checked{why}", reason, code, retry_after)
