"""The node's loops around the queue: pods and runtime are watched only while a request is live.

Idle means one open watch (of the requests, not here) and nothing else: no polling, no further stream, no timer.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from crrd.kube.cache import NodeCache
from crrd.lib.backoff import Backoff
from crrd.lib.errors import CrrdError
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.workqueue import WorkQueue
from crrd.node.edges import Edges
from crrd.node.execute import Executor
from crrd.node.reconcile import Reconciler

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
"""Between looks at a runtime whose events are not read (containerd, CRI-O), while a change is awaited there."""
SAFETY_POLL_SECONDS = 5.0
"""Beside an event stream: CRI does not confirm a subscription, so what happens around its start can be missed."""
STREAM_RETRY = Backoff(initial=0.2, factor=2.0, maximum=5.0, jitter=0.2)
FLUSH_SECONDS = 10.0
"""How long a drain waits for the last statuses after the last stop has ended."""


class NodeController:
    """Cache, queue, reconciler and executor of one node, and the loops that feed them.

    Nothing starts before the loops are run: `watch_pods` and `watch_runtime`, each by a task of the owner.

    Args:
        node_name: this node.
        edges: the ports.
        clock: monotonic seconds.
        own_pod: see Executor.
    """

    def __init__(self, node_name: str, edges: Edges, clock: Callable[[], float], own_pod: str = "") -> None:
        self._runtime = edges.runtime
        self._awaited: set[str] = set()
        self._keys_by_uid: dict[str, str] = {}
        self.pods_heartbeat = Heartbeat()
        self.runtime_heartbeat = Heartbeat()
        self.poll_heartbeat = Heartbeat()
        """Of the looks at the runtime that `watch_runtime` takes while a request is live."""
        self.queue = WorkQueue(self._handle)
        self.cache = NodeCache(self.queue.poke, clock)
        self.executor = Executor(edges, self.cache, self.queue.poke, own_pod)
        self.reconciler = Reconciler(node_name, edges, self.cache, self.executor, self._await_runtime)

    async def watch_pods(self, watch: Callable[[], Awaitable[None]]) -> None:
        """Run `watch` (see `PodWatches`) while at least one request is live."""
        while True:
            self.pods_heartbeat.until(self.cache.active, "waiting for a request")
            await self.cache.active.wait()
            await self._while_active(watch, "pods", self.pods_heartbeat)
            self.cache.forget_pods()

    async def watch_runtime(self) -> None:
        """Follow the runtime's events while at least one request is live; poll a runtime that has none."""
        while True:
            self.runtime_heartbeat.until(self.cache.active, "waiting for a request")
            await self.cache.active.wait()
            await self._while_active(self._follow, "runtime", self.runtime_heartbeat)

    async def drain(self) -> None:
        """No new stops but those after a hook; let what is under way end, and write what became of it."""
        self.reconciler.draining = True
        while True:
            while self.executor.working:
                await self.executor.wait_for_work()
            await self._flush()
            if not self.executor.working:  # a stop after a hook begins once its status is written
                return

    async def _flush(self) -> None:
        """Write what became of everything, for so long at most."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                for key in self.cache.live_pods():
                    self.queue.poke(key)
                while self.queue.depth or self.executor.writing or self.reconciler.owes_stops:
                    await self.executor.wait_for_writes()
                    await self.queue.settled()
                    if self.reconciler.owes_stops:
                        await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            log.warning("statuses not flushed", writes=self.executor.writing)

    async def close(self) -> None:
        """Cancel everything that still runs."""
        await self.queue.close()
        await self.executor.close()

    async def _handle(self, key: str) -> float | None:
        return await self.reconciler.handle(key)

    async def _while_active(self, work: Callable[[], Awaitable[None]], name: str, heartbeat: Heartbeat) -> None:
        """Run until no request is live; what ends earlier, by an error of ours, is started again."""

        async def forever() -> None:
            delays = STREAM_RETRY.delays()
            while True:
                try:
                    await work()
                except CrrdError as error:
                    log.debug("watch ended", of=name, error=str(error))
                await asyncio.sleep(next(delays))

        task = asyncio.ensure_future(forever())
        idle = asyncio.ensure_future(self.cache.idle.wait())
        heartbeat.until(self.cache.idle, "waiting for the last request to end")
        try:
            await asyncio.wait((task, idle), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            heartbeat.within(LATE_SECONDS, "ending")
            for running in (task, idle):
                running.cancel()
            await asyncio.gather(task, idle, return_exceptions=True)

    async def _follow(self) -> None:
        """Turn the runtime's events into looks at the pods they concern, and look now and then all the same."""
        poll = asyncio.create_task(self._poll(SAFETY_POLL_SECONDS), name="runtime poll")
        try:
            self._poke_awaited()  # what happened between two streams
            async for pod_uid in self._runtime.events():
                if (changed := self._keys_by_uid.get(pod_uid)) is not None:
                    self.queue.poke(changed)
        except NotImplementedError:
            await self._poll(POLL_SECONDS)
        finally:
            poll.cancel()
            self.poll_heartbeat.rest()

    async def _poll(self, seconds: float) -> None:
        """Look at the pods that wait for the runtime every so many seconds."""
        while True:
            self.poll_heartbeat.within(seconds + LATE_SECONDS, "looking at the runtime")
            await asyncio.sleep(seconds)
            self._poke_awaited()

    def _poke_awaited(self) -> None:
        """Look at every pod that waits for a change of its containers."""
        for key in self._awaited:
            self.queue.poke(key)

    def _await_runtime(self, pod_key: str, pod_uid: str, wanted: bool) -> None:
        """Note whether a pod waits for a change of its containers."""
        if wanted:
            self._awaited.add(pod_key)
            if pod_uid:
                self._keys_by_uid[pod_uid] = pod_key
            return
        self._awaited.discard(pod_key)
        self._keys_by_uid = {uid: key for uid, key in self._keys_by_uid.items() if key != pod_key}
