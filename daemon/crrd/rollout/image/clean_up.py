"""The end of a run with an image, however it ends: what it leaves behind is deleted, or named in its last line.

What it leaves is listed anew. What the last plan knew may be out of date: requests may have been created since.
"""

import asyncio
from functools import partial

from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import REQUESTS, Where
from crrd.rollout.attempt import attempt
from crrd.rollout.display import RunDisplay
from crrd.rollout.image.leftovers import delete_pull_pods, stop_requests


class CleanUp:
    """Ends the requests of pods that do not get the image, and deletes pull pods. The constructor starts nothing."""

    def __init__(self, client: KubeClient, run: Run, display: RunDisplay) -> None:
        self._client, self._run, self._display = client, run, display
        self._remedy = f"kubectl delete pods -n {run.namespace} -l {LABEL_PULL}={run.name}"
        self.open: set[str] = set()  # The requests that were open when they were listed
        self.ended: set[str] = set()  # Those of them that were ended

    @property
    def unfinished(self) -> str:
        """What to say if `finish` was interrupted."""
        return f"cleaning up was interrupted; to delete pull pods that are left: {self._remedy}"

    async def finish(self, seconds: float) -> str:
        """Try for so long. Return what is left then, with what the user can do, "" for nothing."""
        pulls = partial(delete_pull_pods, self._client, self._run.namespace, self._run.name)
        requests_left, pulls_left = await asyncio.gather(
            attempt(self._end_requests, seconds, self._display), attempt(pulls, seconds, self._display)
        )
        sentences = (
            requests_left and f"requests of pods without the image end only at their deadline: {requests_left}",
            pulls_left and f"its pull pods could not be deleted: {pulls_left}; to delete them: {self._remedy}",
        )
        return "; ".join(filter(None, sentences))

    async def _end_requests(self) -> None:
        where = Where(namespace=self._run.namespace, label_selector=f"{LABEL_RUN}={self._run.name}")
        listed = (await self._client.list_all(REQUESTS, read_run_request, **where)).items
        left = [each for each in listed if each is not None and each.is_open]
        self.open |= {each.request.name for each in left}
        await stop_requests(self._client, left, self.ended)


def unknown_holder(run: Run, error: object) -> str:
    """Return what to say if the workload cannot be read."""
    return f"whether the controller of {run.target.words} is still held is unknown: {error}"
