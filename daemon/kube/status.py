"""Writes requests: their status, and the annotation that says which instances they are about.

Every write is bound to the UID and the resourceVersion that was decided on, so that none of them lands on a newer
version, or on another request of the same name. Whether to try again is the controller's decision.
"""

from collections.abc import Mapping
from typing import Any

from daemon.core.api.types import ANNOTATION_PINNED, Pin, Request, Status
from daemon.core.api.v1alpha1 import parse_request, pins_to_json, status_to_json
from daemon.kube.client import KubeClient
from daemon.kube.resources import REQUESTS
from daemon.lib.errors import ApiRefusedError, GoneError

_INVALID = 422
"""What a UID that is not the object's is answered with, unless the version is compared first (409)."""


class KubeStatusWriter:
    """The StatusWriter of a cluster."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write_status(self, request: Request, status: Status) -> Request:
        """See StatusWriter."""
        # Null takes a field away in a merge patch: a message of the last phase must not outlive it.
        body = {"metadata": _precondition(request), "status": {"message": None} | status_to_json(status)}
        return await self._patch(request, body, "status")

    async def pin(self, request: Request, pins: Mapping[str, Pin]) -> Request:
        """See StatusWriter."""
        body = {"metadata": _precondition(request) | {"annotations": {ANNOTATION_PINNED: pins_to_json(pins)}}}
        return await self._patch(request, body, "")

    async def _patch(self, request: Request, body: Mapping[str, Any], subresource: str) -> Request:
        try:
            answer = await self._client.merge_patch(
                REQUESTS, request.namespace, request.name, body, subresource=subresource
            )
        except ApiRefusedError as error:
            if error.status == _INVALID and "metadata.uid" in str(error):
                raise GoneError(str(error), status=error.status) from error  # another one has its name now
            raise
        return parse_request(answer)


def _precondition(request: Request) -> dict[str, Any]:
    """Metadata that the API server compares before it changes anything; 409 where they differ."""
    return {"uid": request.uid, "resourceVersion": request.resource_version}
