"""Sets the annotation of a pod for which kubelet refreshes the pod's files. `core.rollout.refresh` says when."""

import asyncio
from contextlib import suppress
from functools import partial

from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import ANNOTATION_REFRESH
from crrd.core.rollout.standing import Row
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.side_by_side import SideBySide

_ATTEMPTS = 5
"""Most attempts while the API server fails. A webhook for pods that is down must not keep the run from its work."""
_INVALID = 422  # Also what a patch gets that names another UID than the pod's


def lacks_right(error: ApiRefusedError) -> bool:
    """Whether a call was refused because the user has no right to it, and not by a quota, a policy or a webhook."""
    return error.status == 403 and ' is forbidden: User "' in str(error)


class FileRefresher:
    """Sets the annotations for one run. A pod whose annotation cannot be set is restarted without."""

    def __init__(self, client: KubeClient, cluster: Cluster, display: RunDisplay) -> None:
        self._client, self._cluster, self._display = client, cluster, display
        self._work = SideBySide(cluster.changed.set)

    def begin(self, plan: Plan) -> None:
        """Begin to set the annotations of a plan's pods. Raises the error that has ended this for one of them."""
        self._work.raise_error()
        for row, token in plan.refresh:
            self._work.begin(row.uid, partial(self._refresh, row, token))

    async def cancel(self) -> None:
        """Stop at once."""
        await self._work.stop()

    async def _refresh(self, row: Row, token: str) -> None:
        problem, no_right = "", False
        try:
            if row.member is None or row.member.refresh_token != token:
                await self._patch(row, token)
        except GoneError:
            pass  # deleted meanwhile, which the plan sees before it creates a request
        except (ApiRefusedError, ApiUnavailableError) as error:
            problem, no_right = str(error), isinstance(error, ApiRefusedError) and lacks_right(error)
            if isinstance(error, ApiRefusedError) and error.status == _INVALID and await self._is_gone(row):
                problem = ""
        self._cluster.refreshed(row.uid, token, problem)
        self._display.files_refreshed(problem, lacks_right=no_right)

    async def _is_gone(self, row: Row) -> bool:
        """Whether a pod is gone, also if another one has its name by now."""
        with suppress(ApiRefusedError, ApiUnavailableError):
            return await self._cluster.look_again(row.pod, row.uid) is None
        return False

    async def _patch(self, row: Row, token: str) -> None:
        meta = {"uid": row.uid, "annotations": {ANNOTATION_REFRESH: token}}  # another UID is refused
        namespace = row.member.pod.namespace if row.member is not None else ""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._client.merge_patch(PODS, namespace, row.pod, {"metadata": meta})
            except ApiUnavailableError as error:
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(retry_delay(error, attempt))
            else:
                return
