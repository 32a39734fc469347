"""Creates the requests of a run as objects of their own, ContainerRecreateRequests, which node daemons carry out."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from crrd.core.api.types import Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.requests import STOPPED, RunRequest, read_run_request
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ConfigurationError, ConflictError, CrrdError, GoneError
from crrd.lib.jsonfields import mapping
from crrd.rollout.cluster import Cluster
from crrd.rollout.kind import Maker

NOT_ADMITTED = "admission did not handle the request"
CHECK_ADMISSION = (
    "check that the manager is running and that its webhook exists (kubectl get mutatingwebhookconfigurations crrd)"
)


class RequestMaker(Maker):
    """Creates ContainerRecreateRequests."""

    what = "create the ContainerRecreateRequest"

    def __init__(self, client: KubeClient, cluster: Cluster) -> None:
        self._client, self._cluster = client, cluster

    async def make(self, run: Run, row: Row, body: Mapping[str, Any], now: str, ending: Iterable[RunRequest]) -> bool:
        """See Maker."""
        try:
            for old in ending:
                with suppress(GoneError):
                    await self._end(old.request)
            made = await self._client.create(REQUESTS, run.namespace, body)
        except ConflictError as error:
            await self._take_over(run, row, body["metadata"]["name"], error)
            return False
        request = parse_request(mapping(made))
        await self._check_admission_labels(run, request)
        if not await self._is_for(row, request):
            raise ConflictError(f"pod {row.pod} was replaced by another one", status=409)
        self._cluster.written(made)
        return True

    async def refusal(self, run: Run, row: Row, body: Mapping[str, Any], now: str) -> str:
        """See Maker."""
        made = await self._client.create(REQUESTS, run.namespace, body, dry_run=True)
        return "" if was_admitted(run, parse_request(made)) else f"{NOT_ADMITTED}: {CHECK_ADMISSION}"

    async def _end(self, old: Request) -> None:
        """End an open request of another run. One with an image is not deleted, so that its run can still be undone."""
        if old.for_image:
            self._cluster.written(await self._client.merge_patch(REQUESTS, old.namespace, old.name, STOPPED))
        else:
            await self._client.delete(REQUESTS, old.namespace, old.name, uid=old.uid)

    async def _take_over(self, run: Run, row: Row, name: str, conflict: ConflictError) -> None:
        """Handle a request that already exists: a response was lost, or another process created it.

        Raises the conflict if it does not exist: it was deleted, or a quota was written at the same time.
        """
        try:
            found = await self._client.get(REQUESTS, run.namespace, name)
        except GoneError:
            raise conflict from None
        request = read_run_request(found)
        if request is None or request.run.name != run.name:
            why = f"request {name} exists, but does not belong to this run; delete it and resume the run"
            self._cluster.refused(row.uid, why)
        self._cluster.written(found)

    async def _is_for(self, row: Row, request: Request) -> bool:
        """Whether a request is for this pod. One for another pod, which has its name by now, is deleted again."""
        if request.pod_uid == row.uid:
            return True
        with suppress(GoneError, ConflictError):
            await self._client.delete(REQUESTS, request.namespace, request.name, uid=request.uid)
        return False

    async def _check_admission_labels(self, run: Run, request: Request) -> None:
        """Check that admission has set its labels. Without them no daemon would serve the request."""
        if was_admitted(run, request):
            return
        name, outcome = request.name, "so it was deleted again"
        try:
            await self._client.delete(REQUESTS, run.namespace, name)
        except CrrdError as error:
            outcome = f"and {name} could not be deleted again ({error})"
        raise ConfigurationError(f"{NOT_ADMITTED}, {outcome}: {CHECK_ADMISSION}")


def was_admitted(run: Run, request: Request) -> bool:
    """Whether admission has handled the request of a run."""
    is_as_asked = request.for_image is bool(run.options.change.fields.get("image"))
    is_as_asked = is_as_asked and request.reloads is run.options.reload
    return request.active and is_as_asked and request.whole_pod is run.options.whole_pod
