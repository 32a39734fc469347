"""Carries out what `core.lifecycle` wants of a request, one write at a time.

Every write is bound to the UID and the resourceVersion that was decided on. Pods are `readiness`' concern, and whether
to try again is `controller`'s.
"""

from dataclasses import replace
from typing import Any

from daemon.core.api.types import ANNOTATION_UNREADY_ACQUIRED, FINALIZER, LABEL_ACTIVE
from daemon.core.api.v1alpha1 import status_to_json
from daemon.core.api.views import RequestView, parse_view
from daemon.core.lifecycle import steps as lc
from daemon.kube.client import KubeClient
from daemon.kube.resources import REQUESTS


class RequestWriter:
    """Writes requests for the manager."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write(self, view: RequestView, action: lc.RequestAction) -> RequestView:
        """Do it; the request as it is afterwards: one that was deleted may stay for somebody else's finalizer.

        Raises:
            ConflictError: the request is another version than the one that was decided on, or another request.
            GoneError: the request is no more.
            ApiUnavailableError, ApiRefusedError: see there.
        """
        request = view.request
        if isinstance(action, lc.Delete):
            await self._client.delete(REQUESTS, request.namespace, request.name, uid=request.uid)
            return replace(view, request=replace(request, deleting=True))
        body, subresource = _patch(view, action)
        metadata = {"uid": request.uid, "resourceVersion": request.resource_version} | body.pop("metadata", {})
        answer = await self._client.merge_patch(
            REQUESTS, request.namespace, request.name, {"metadata": metadata, **body}, subresource=subresource
        )
        return parse_view(answer)


def _patch(view: RequestView, action: lc.RequestAction) -> tuple[dict[str, Any], str]:
    """The merge patch, and the subresource that it is for."""
    match action:
        case lc.Complete(status=status):
            # Null takes a field away in a merge patch.
            return {"status": {"message": None} | status_to_json(status)}, "status"
        case lc.AddFinalizer():
            return {"metadata": {"finalizers": [*view.finalizers, FINALIZER]}}, ""
        case lc.RemoveFinalizer():
            return {"metadata": {"finalizers": [name for name in view.finalizers if name != FINALIZER]}}, ""
        case lc.MarkAcquired(at=at):
            return {"metadata": {"annotations": {ANNOTATION_UNREADY_ACQUIRED: at}}}, ""
        case lc.RemoveActive():
            return {"metadata": {"labels": {LABEL_ACTIVE: None}}}, ""
        case _:
            raise TypeError(f"{action} is no patch")
