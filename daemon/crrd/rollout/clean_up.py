"""The end of a run with an image, however it ends: what it leaves behind is deleted, or named in its last line.

What it leaves is listed anew. What the last plan knew may be out of date: requests may have been created since.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from crrd.core.rollout.pull import LABEL_PULL
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import REQUESTS, Where
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, OutputError
from crrd.lib.looptime import loop_time
from crrd.rollout.display import RunDisplay
from crrd.rollout.image_writer import delete_pull_pods, stop_requests

CLEAN_UP_SECONDS = 30.0  # How long a run that is over tries to delete what it leaves behind


class CleanUp:
    """Ends the requests of pods that do not get the image, and deletes the pull pods. The constructor starts nothing.

    A run without an image leaves nothing behind.
    """

    def __init__(self, client: KubeClient, run: Run, display: RunDisplay) -> None:
        self._client, self._run, self._display = client, run, display
        self._remedy = f"kubectl delete pods -n {run.namespace} -l {LABEL_PULL}={run.name}"
        self.open: set[str] = set()  # The requests that were open when they were listed
        self.ended: set[str] = set()  # Those of them that were ended

    @property
    def unfinished(self) -> str:
        """What to say if `finish` was interrupted."""
        if self._run.options.image is None:
            return ""
        return f"cleaning up was interrupted; to delete pull pods that are left: {self._remedy}"

    async def finish(self, seconds: float = CLEAN_UP_SECONDS) -> str:
        """Try for so long. Return what is left then, with what the user can do, "" for nothing."""
        if self._run.options.image is None:
            return ""
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
        left = [each for each in listed if each is not None and not (each.request.completed or each.request.stopped)]
        self.open |= {each.request.name for each in left}
        await stop_requests(self._client, left, self.ended)


async def attempt(call: Callable[[], Awaitable[object]], seconds: float, display: RunDisplay) -> str:
    """Make a call until it succeeds, is refused, or the time is over. Return its error, "" for none."""
    ends, failures, problem = loop_time() + seconds, 0, f"the API server has not answered within {seconds:.0f}s"
    while True:
        try:
            async with asyncio.timeout(ends - loop_time()):
                await call()
        except TimeoutError:
            return problem
        except (ApiRefusedError, ApiUnavailableError) as error:
            failures, problem = failures + 1, str(error)
            delay = retry_delay(error, failures)
            if isinstance(error, ApiRefusedError) or loop_time() + delay > ends:
                return problem
            if failures == 1:
                with suppress(OutputError):
                    display.print_line(f"cleaning up, retrying: {error}")
            await asyncio.sleep(delay)
        else:
            return ""


def unknown_holder(run: Run, error: object) -> str:
    """Return what to say if the workload cannot be read."""
    return f"whether the controller of {run.target.words} is still held is unknown: {error}"
