"""The plain restart: sets the annotation of a pod for which kubelet refreshes the pod's files.

`core.rollout.restart` says when.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from crrd.core.api.types import ANNOTATION_REFRESH
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.restart import FileActions, FileRefresh, Files
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.lib.looptime import loop_time
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.kind import KindObjects, KindWriter, Maker
from crrd.rollout.maker import RequestMaker
from crrd.rollout.refusals import INVALID, lacks_right
from crrd.rollout.side_by_side import SideBySide

_ATTEMPTS = 5
"""Most attempts while the API server fails. A webhook for pods that is down must not keep the run from its work."""


class FileObjects(KindObjects):
    """The refreshes of this process."""

    def __init__(self, _: Callable[[], None]) -> None:
        """Nothing here changes by itself."""
        self._refreshes: dict[str, tuple[float, FileRefresh]] = {}  # By pod (UID), with the loop's time

    def state(self) -> Files:
        """See KindObjects."""
        now = loop_time()
        return Files({uid: replace(each, age=now - at) for uid, (at, each) in self._refreshes.items()})

    def refreshed(self, pod_uid: str, token: str, problem: str = "") -> None:
        """Record that a pod has the annotation for which kubelet refreshes its files, or why it could not be set."""
        _, before = self._refreshes.get(pod_uid, (0.0, FileRefresh("", 0.0, 0)))
        self._refreshes[pod_uid] = loop_time(), FileRefresh(token, 0.0, before.count + 1, problem)


class FileRefresher(KindWriter):
    """Sets the annotations for one run. A pod whose annotation cannot be set is restarted without."""

    def __init__(self, client: KubeClient, cluster: Cluster, known: FileObjects, display: RunDisplay) -> None:
        """`known` are the cluster's objects for files."""
        self._client, self._cluster, self._known, self._display = client, cluster, known, display
        self._work = SideBySide(cluster.changed.set)
        self._waits = False  # Whether the requests themselves wait until kubelet has refreshed the files, and say so
        self.maker: Maker = RequestMaker(client, cluster)

    async def carry_out(self, run: Run, plan: Plan) -> None:
        """Begin to set the annotations of a plan's pods. Raises the error that has ended this for one of them."""
        self._waits = run.options.reload
        self._work.raise_error()
        actions = plan.actions if isinstance(plan.actions, FileActions) else FileActions()
        for row, token in (*actions.due, *actions.starting):
            self._work.begin(row.uid, partial(self._refresh, row, token))

    async def cancel(self) -> None:
        """See KindWriter."""
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
            if isinstance(error, ApiRefusedError) and error.status == INVALID and await self._is_gone(row):
                problem = ""
        self._known.refreshed(row.uid, token, problem)
        if not self._waits:
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
