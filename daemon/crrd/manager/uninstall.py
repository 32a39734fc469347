"""Ends all requests and releases their pods: `python -m crrd.manager.uninstall`, run before crrd is uninstalled.

The Helm chart runs it as a pre-delete hook, with the manager's ServiceAccount. `manifests/uninstall.sh` does the same
with kubectl. It deletes the webhook configuration first, so that no new request takes effect. Then the manager releases
what requests hold. After a while, this module releases the rest.
"""

import asyncio
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from crrd.core.api.pod import PodMeta, parse_meta
from crrd.core.api.types import Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.lifecycle.steps import ReleaseUnready, RemoveFinalizer
from crrd.kube.access.config import find_access
from crrd.kube.client import KubeClient
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import PODS, REQUESTS, WEBHOOKS
from crrd.kube.writer import RequestWriter
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, CrrdError, GoneError
from crrd.lib.log import configure
from crrd.manager.readiness import change_readiness

CONFIGURATION = "crrd"  # Name of the webhook configuration
ROUND_SECONDS = 1.0
MANAGER_ROUNDS = 30  # Rounds in which the manager can release pods and requests, before this module does it
ROUNDS = 90

log = structlog.get_logger(__name__)


async def uninstall(client: KubeClient) -> bool:
    """Delete the webhook configuration and all requests, and release their pods. Return whether nothing is left.

    Calls that conflict, or that the API server cannot answer now, are repeated in the next round. Raises
    ApiRefusedError if the API server refused a call.
    """
    for number in range(ROUNDS):
        if number:
            await asyncio.sleep(ROUND_SECONDS)
        try:
            if await _round(client, release=number >= MANAGER_ROUNDS):
                return True
        except (ApiUnavailableError, ConflictError) as error:
            log.warning("retrying", error=str(error))
    return False


async def _round(client: KubeClient, *, release: bool) -> bool:
    """Delete what exists and, if `release`, release the pods. Return whether nothing was left."""
    with suppress(GoneError):
        await client.delete(WEBHOOKS, "", CONFIGURATION)
    requests: tuple[Request, ...] = ()
    with suppress(ResourceMissingError):  # the CRD is already deleted
        requests = (await client.list_all(REQUESTS, parse_request)).items
    held = [pod for pod in (await client.list_all(PODS, parse_meta)).items if pod.readiness.keys]
    for request in requests:
        if not request.deleting:
            with suppress(GoneError):
                await client.delete(REQUESTS, request.namespace, request.name, uid=request.uid)
    if release or not requests:
        await _release(client, requests, held)
    return not requests and not held


async def _release(client: KubeClient, requests: tuple[Request, ...], held: list[PodMeta]) -> None:
    """Release pods before requests, because the requests show which pods are kept unready by crrd and not by others.

    A pod that cannot be released blocks only its own requests. The first such error is raised at the end.
    """
    failure: ApiRefusedError | None = None
    kept: set[str] = set()  # Keys of requests whose pod is still unready
    for pod in held:
        log.info("making the pod ready again", pod=pod.key)
        try:
            for key in pod.readiness.keys:
                await change_readiness(client, ReleaseUnready(pod, key), lambda: datetime.now(UTC))
        except ApiRefusedError as error:
            log.warning("cannot make the pod ready", pod=pod.key, error=str(error))
            failure = failure or error
            kept.update(pod.readiness.keys)
    writer = RequestWriter(client)
    for request in requests:
        if request.deleting and request.has_finalizer and request.key not in kept:
            log.info("removing the finalizer", request=request.key)
            with suppress(GoneError):
                await writer.carry_out(request, RemoveFinalizer())
    if failure is not None:
        raise failure


async def _main() -> int:
    failure = "some requests still exist, or crrd keeps some pods unready: run manifests/uninstall.sh"
    try:
        async with KubeClient(find_access(os.environ.get("KUBECONFIG", ""), os.environ)) as client:
            if await uninstall(client):
                log.info("all requests are deleted, and no pod is kept unready")
                return 0
    except CrrdError as error:
        failure = str(error)
    log.error("cannot end all requests", error=failure)
    return 1


if __name__ == "__main__":
    configure("json", "info")
    sys.exit(asyncio.run(_main()))
