"""Shares ListContainers calls between all waiters, so that a burst of requests makes only a few calls.

ListContainers costs the runtime about the same for one pod as for all. So there is one call (a look) at a time, and
each waiter gets the result of the next call that begins after it started to wait, never an older one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from cri_stubs import api_pb2
from crrd.kubelet.labels import LABEL_POD_UID
from crrd.lib.errors import RuntimeUnavailableError
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import cancel

PAUSE_FACTOR = 5.0  # If several pods wait, the pause after a look is this factor times its duration
URGENT_FACTOR = 1.0  # The same if a stop waits for the look
PAUSE_LIMITS = (0.05, 1.0)  # Least and greatest length of this pause, in seconds
SLOW_SECONDS = 2.0  # A look that takes longer no longer delays the next one, and so no other pod

Waiting = dict[str, list["asyncio.Future[Sequence[api_pb2.Container]]"]]  # Pod UID -> waiters for its containers


class Looks:
    """The looks at one runtime, made with its client's `list_containers`."""

    def __init__(self, list_containers: Callable[..., Awaitable[Sequence[api_pb2.Container]]]) -> None:
        self._list_containers = list_containers
        self._waiting: Waiting = {}
        self._running: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._next = 0.0  # Monotonic time before which no look for several pods begins
        self._next_urgent = 0.0  # The same if a stop waits for the look
        self._urgent = asyncio.Event()  # Set if a stop waits for the next look

    async def of_pod(self, pod_uid: str, *, urgent: bool = False) -> Sequence[api_pb2.Container]:
        """Return a pod's containers, from a look that begins now or later; `urgent` if a stop waits for it.

        Raises RuntimeCallError or RuntimeUnavailableError if that look fails.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[api_pb2.Container]] = loop.create_future()
        self._waiting.setdefault(pod_uid, []).append(answer)
        if urgent:
            self._urgent.set()
        if self._running is None:
            self._running = loop.create_task(self._run(), name="looks at the runtime")
        return await answer

    async def close(self) -> None:
        """Cancel the looks under way."""
        await cancel([*self._under_way, *filter(None, [self._running])])

    async def _run(self) -> None:
        """Make looks until there are no waiters."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                if len(self._waiting) > 1:
                    await self._pause()
                self._urgent.clear()
                waiting, self._waiting = self._waiting, {}
                look = loop.create_task(self._look(waiting), name="look at the runtime")
                self._under_way.add(look)
                look.add_done_callback(self._under_way.discard)
                await asyncio.wait((look,), timeout=SLOW_SECONDS)
        finally:
            self._running = None

    async def _pause(self) -> None:
        """Wait until the next look may begin, which is sooner if a stop waits for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._next):
                await self._urgent.wait()
        if self._urgent.is_set():
            await asyncio.sleep(max(0.0, self._next_urgent - loop_time()))

    async def _look(self, waiting: Waiting) -> None:
        answers = [answer for each in waiting.values() for answer in each]
        if all(answer.done() for answer in answers):  # all waiters were cancelled
            return
        began = loop_time()
        only = next(iter(waiting)) if len(waiting) == 1 else ""
        try:
            containers = await self._list_containers(pod_uid=only)
        except (Exception, asyncio.CancelledError) as error:  # pass the error to the waiters
            closed = isinstance(error, asyncio.CancelledError)
            for answer in answers:
                if not answer.done():
                    answer.set_exception(RuntimeUnavailableError("the connection was closed") if closed else error)
            if closed:
                raise
            return
        finally:
            least, most = PAUSE_LIMITS
            now = loop_time()
            self._next, self._next_urgent = (
                now + min(most, max(least, factor * (now - began))) for factor in (PAUSE_FACTOR, URGENT_FACTOR)
            )
        found: dict[str, list[api_pb2.Container]] = {pod_uid: [] for pod_uid in waiting}
        # Filter here, too, because a runtime may ignore the filter and return other pods' containers.
        for container in containers:
            if (own := found.get(container.labels.get(LABEL_POD_UID, ""))) is not None:
                own.append(container)
        for pod_uid, each in waiting.items():
            for answer in each:
                if not answer.done():
                    answer.set_result(found[pod_uid])
