"""Writes requests: their status, their pins, and the changes that the lifecycle decides on.

Every write is bound to the UID and the resourceVersion that the decision was based on. So it never changes a newer
version, or another request of the same name. The controllers decide whether to retry.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crrd.core.api import types as model
from crrd.core.api.types import Pin, Request, StartTimes, Status
from crrd.core.api.v1alpha1 import parse_request, pins_to_json, status_to_json
from crrd.core.lifecycle import steps as lc
from crrd.kube.client import KubeClient
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError

_INVALID = 422  # The API server's status for a wrong UID, unless it compares the version first (409)


class RequestWriter:
    """Each method makes one call, and returns the request after the write. Implements `ports.StatusWriter`.

    Raises:
        ConflictError: the request has changed since the version that the decision was based on.
        GoneError: the request no longer exists, or another one has its name (a deletion raises ConflictError then).
        ApiUnavailableError, ApiRefusedError: see there.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write_status(self, request: Request, status: Status) -> Request:
        """Merge-patch the status subresource."""
        # Null removes a field in a merge patch, so the message of an earlier phase does not stay.
        body = {"status": {"message": None, "reason": None} | status_to_json(status)}
        return await self._patch(request, body, "status")

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        """Merge-patch the annotation pinned-containers."""
        text = pins_to_json(pins, start_times)
        return await self._patch(request, {"metadata": {"annotations": {model.ANNOTATION_PINNED: text}}})

    async def carry_out(self, request: Request, action: lc.RequestAction) -> Request:
        """Carry out an action of the lifecycle. A deleted request may stay because of a foreign finalizer."""
        match action:
            case lc.Complete(status=status) | lc.Progress(status=status):
                return await self.write_status(request, status)
            case lc.Delete():
                await self._client.delete(REQUESTS, request.namespace, request.name, uid=request.uid)
                return replace(request, deleting=True)
            case lc.AddFinalizer():
                metadata: dict[str, Any] = {"finalizers": [*request.finalizers, model.FINALIZER]}
            case lc.RemoveFinalizer():
                metadata = {"finalizers": [name for name in request.finalizers if name != model.FINALIZER]}
            case lc.RecordUnready(at=at):
                metadata = {"annotations": {model.ANNOTATION_UNREADY_ACQUIRED: at}}
            case lc.RemoveActive():
                metadata = {"labels": {model.LABEL_ACTIVE: None}}
        return await self._patch(request, {"metadata": metadata})

    async def _patch(self, request: Request, body: Mapping[str, Any], subresource: str = "") -> Request:
        precondition = {"uid": request.uid, "resourceVersion": request.resource_version}
        bound = {**body, "metadata": {**precondition, **body.get("metadata", {})}}
        try:
            answer = await self._client.merge_patch(
                REQUESTS, request.namespace, request.name, bound, subresource=subresource
            )
        except GoneError as error:
            if await self._is_there(request):  # the 404 came from an API server that lags, or from a proxy: retry
                raise ApiUnavailableError(f"{error}, but the object exists") from error
            raise
        except ApiRefusedError as error:
            if error.status == _INVALID and "metadata.uid" in str(error):
                raise GoneError(str(error), status=error.status) from error
            raise
        return parse_request(answer)

    async def _is_there(self, request: Request) -> bool:
        """Whether the newest list has the request. A list, because the node daemon has no right to `get` requests."""
        where = f"metadata.name={request.name}"
        found = await self._client.list_all(REQUESTS, parse_request, namespace=request.namespace, field_selector=where)
        return any(each.uid == request.uid for each in found.items)
