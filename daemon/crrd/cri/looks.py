"""One look at a runtime for all who wait for one: a burst of requests asks for the node's containers a few times.

ListContainers costs the runtime about the same for one pod and for all. So there is one call at a time, and whoever
asks gets the answer of the next call that begins after their question: never an older one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from cri_stubs import api_pb2
from crrd.kubelet.labels import LABEL_POD_UID
from crrd.lib.errors import RuntimeUnavailableError
from crrd.lib.supervise import cancel

PAUSE_FACTOR = 5.0  # Where several pods wait, the pause after a look is this many times what that look took
URGENT_FACTOR = 1.0  # The same where a stop waits for the look
PAUSE_LIMITS = (0.05, 1.0)  # Seconds that this pause lasts at least and at most
SLOW_SECONDS = 2.0  # A look that has not been answered for so long holds up the next one no more

Waiting = dict[str, list["asyncio.Future[Sequence[api_pb2.Container]]"]]  # Pod UID -> who waits for its containers


class Looks:
    """Looks at one runtime, by its client's `list_containers`."""

    def __init__(self, list_containers: Callable[..., Awaitable[Sequence[api_pb2.Container]]]) -> None:
        self._list_containers = list_containers
        self._waiting: Waiting = {}
        self._running: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._next = 0.0  # Monotonic time before which no look for several pods begins
        self._next_urgent = 0.0  # The same for one that a stop waits for
        self._urgent = asyncio.Event()  # A stop waits for the next look

    async def of_pod(self, pod_uid: str, *, urgent: bool = False) -> Sequence[api_pb2.Container]:
        """The containers of a pod as of a look that begins now or later; `urgent` where a stop waits for the answer.

        Raises RuntimeCallError or RuntimeUnavailableError where that look failed.
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
        """Give up what is under way."""
        await cancel([*self._under_way, *filter(None, [self._running])])

    async def _run(self) -> None:
        """Look until nobody waits."""
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
        """Wait until the next look may begin; one that a stop waits for may begin sooner."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._next):
                await self._urgent.wait()
        if self._urgent.is_set():
            await asyncio.sleep(max(0.0, self._next_urgent - loop.time()))

    async def _look(self, waiting: Waiting) -> None:
        loop = asyncio.get_running_loop()
        answers = [answer for each in waiting.values() for answer in each]
        if all(answer.done() for answer in answers):  # who asked has given up
            return
        began = loop.time()
        only = next(iter(waiting)) if len(waiting) == 1 else ""
        try:
            containers = await self._list_containers(pod_uid=only)
        except (Exception, asyncio.CancelledError) as error:  # it is theirs who asked
            closed = isinstance(error, asyncio.CancelledError)
            for answer in answers:
                if not answer.done():
                    answer.set_exception(RuntimeUnavailableError("the connection was closed") if closed else error)
            if closed:
                raise
            return
        finally:
            least, most = PAUSE_LIMITS
            now = loop.time()
            self._next, self._next_urgent = (
                now + min(most, max(least, factor * (now - began))) for factor in (PAUSE_FACTOR, URGENT_FACTOR)
            )
        found: dict[str, list[api_pb2.Container]] = {pod_uid: [] for pod_uid in waiting}
        # A runtime that does not know the filter must not hand us another pod's containers.
        for container in containers:
            if (own := found.get(container.labels.get(LABEL_POD_UID, ""))) is not None:
                own.append(container)
        for pod_uid, each in waiting.items():
            for answer in each:
                if not answer.done():
                    answer.set_result(found[pod_uid])
