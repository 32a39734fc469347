"""The node's loops around the queue. Pods are watched and the runtime is polled only while a request is live.

The watch of requests, which is always open, is in `watches`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import structlog

from crrd.lib.controller import Controller
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import cancel
from crrd.node.execute import Executor
from crrd.node.lookups import Lookups
from crrd.node.pods import Pods
from crrd.node.reconcile import Reconciler
from crrd.node.sweep import SandboxSweep
from crrd.ports import Edges

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
"""Poll interval of the runtime while a change is awaited there. GetContainerEvents is not used: there one goroutine
sends each event to all clients in turn, and waits for slow ones. A frozen daemon would block others: in containerd
(2.0 on, internal/eventq) every start and end of a container on the node, in CRI-O (server/container_events.go) the
events of kubelet (feature gate EventedPLEG)."""
FLUSH_SECONDS = 10.0  # Time limit of a drain for the last statuses, after the last stop has ended


class NodeController(Controller):
    """Records, reconciler and executor of one node, and the loops that feed them. The owner runs the loops."""

    name = "node"

    def __init__(self, node_name: str, edges: Edges, own_pod: str = "") -> None:
        super().__init__()
        self.pods_heartbeat = Heartbeat()
        self.runtime_heartbeat = Heartbeat()
        self.pods = Pods(self.queue.wake, loop_time)
        self.executor = Executor(edges, self.pods, self.queue.wake, own_pod)
        self.lookups = Lookups(self.queue.wake)
        self.sweep = SandboxSweep(edges.runtime, self.pods)
        self.reconciler = Reconciler(node_name, edges, self.pods, self.executor, self.lookups)

    async def handle(self, key: str) -> float | None:
        """Run one round for a pod."""
        return await self.reconciler.handle(key)

    async def watch_pods(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
        """Run `watch` (see `PodWatches`) while at least one request is live. It retries itself: an error is a bug."""
        while True:
            self.pods_heartbeat.until(self.pods.any_live, "waiting for a request")
            await self.pods.any_live.wait()
            self.pods_heartbeat.until(self.pods.none_live, "waiting for all requests to end")
            running = asyncio.create_task(watch()), asyncio.create_task(self.pods.none_live.wait())
            try:
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                self.pods_heartbeat.within(LATE_SECONDS, "ending")
                await cancel(running)
            self.pods.forget_pods()

    async def poll_runtime(self) -> NoReturn:
        """While at least one request is live, wake the pods that wait for the runtime every POLL_SECONDS."""
        while True:
            self.runtime_heartbeat.until(self.pods.any_live, "waiting for a request")
            await self.pods.any_live.wait()
            await asyncio.sleep(POLL_SECONDS)
            for key in [pod_record.key for pod_record in self.pods if pod_record.runtime.awaited]:
                self.queue.wake(key)

    async def drain(self) -> None:
        """Start no stops except those after a hook, wait for running hooks and stops, and write their results."""
        self.executor.draining = True
        while True:
            while self.executor.working:
                await self.executor.wait_for_work()
            await self._flush()
            if not self.executor.working:  # a stop after a hook starts after the status write
                return

    async def _flush(self) -> None:
        """Write the last statuses, for at most FLUSH_SECONDS."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                for key in self.pods.live_pods():
                    self.queue.wake(key)
                while self.queue.depth or self.executor.writes.pending or self.reconciler.stops_outstanding:
                    await self.executor.writes.wait()
                    await self.queue.settled()
                    if self.reconciler.stops_outstanding:
                        await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            log.warning("status writes not finished", writes=self.executor.writes.pending)

    async def close(self) -> None:
        """Cancel everything that still runs."""
        await self.queue.close()
        await self.lookups.close()
        await self.executor.close()
