"""Writes requests: their status, the pins, and what the lifecycle wants of them.

Every write is bound to the UID and the resourceVersion that was decided on, so that none of them lands on a newer
version, or on another request of the same name. Whether to try again is the controllers' decision.
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

_INVALID = 422  # What a UID that is not the object's is answered with, unless the version is compared first (409)


class RequestWriter:
    """Every method returns the request as it is after the write; each is one call. Implements `ports.StatusWriter`.

    Raises:
        ConflictError: the request is another version than the one that was decided on.
        GoneError: the request is no more, or another one has its name (a deletion says ConflictError to the latter).
        ApiUnavailableError, ApiRefusedError: see there.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write_status(self, request: Request, status: Status) -> Request:
        """Merge-patch the status subresource."""
        # Null takes a field away in a merge patch: a message of the last phase must not outlive it.
        body = {"status": {"message": None, "reason": None} | status_to_json(status)}
        return await self._patch(request, body, "status")

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        """Merge-patch the annotation pinned-containers."""
        text = pins_to_json(pins, start_times)
        return await self._patch(request, {"metadata": {"annotations": {model.ANNOTATION_PINNED: text}}})

    async def carry_out(self, request: Request, action: lc.RequestAction) -> Request:
        """Do what the lifecycle wants; one that was deleted may stay for somebody else's finalizer."""
        match action:
            case lc.Complete(status=status):
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
            if await self._is_there(request):  # an API server that is behind, or a proxy, said so: it is not final
                raise ApiUnavailableError(f"{error}, but the object exists") from error
            raise
        except ApiRefusedError as error:
            if error.status == _INVALID and "metadata.uid" in str(error):
                raise GoneError(str(error), status=error.status) from error
            raise
        return parse_request(answer)

    async def _is_there(self, request: Request) -> bool:
        """Whether the newest list has the request; the node daemon may not `get` requests."""
        where = f"metadata.name={request.name}"
        found = await self._client.list_all(REQUESTS, parse_request, namespace=request.namespace, field_selector=where)
        return any(each.uid == request.uid for each in found.items)
