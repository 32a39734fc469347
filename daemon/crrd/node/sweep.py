"""Removes second sandboxes whose request needs them no more (step 16), so that kubelet does not restart the pod later.

A request may end, or be deleted, before kubelet has noticed its sandbox, also while no daemon runs. Kubelet removes all
others itself, and those that are not ready.
"""

import asyncio
from typing import NoReturn

import structlog

from crrd.lib.backoff import Backoff, Retry
from crrd.lib.errors import CrrdError
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.looptime import loop_time
from crrd.node.pods import Pods, note_second_sandbox
from crrd.ports import Runtime

SWEEP_RETRY = Backoff(initial=0.5, factor=2.0, maximum=30.0, jitter=0.1)  # Delay between failed attempts

log = structlog.get_logger(__name__)


class SandboxSweep:
    """Looks for such sandboxes after the start, and after the end of each request for a whole pod."""

    def __init__(self, runtime: Runtime, pods: Pods) -> None:
        self._runtime = runtime
        self._pods = pods
        self.heartbeat = Heartbeat()

    async def run(self) -> NoReturn:
        """Remove them until cancelled."""
        due, retry = self._pods.sweep_due, Retry(SWEEP_RETRY)
        while True:
            self.heartbeat.until(due, "waiting for the end of a request for a whole pod")
            await due.wait()
            due.clear()
            self.heartbeat.rest()  # each call has its own deadline
            try:
                await self._sweep()
            except CrrdError as error:
                delay = retry.fail(loop_time())
                report = log.warning if retry.failures == 1 else log.debug
                report("looking for second sandboxes failed", error=str(error), retry_in=round(delay, 1))
                self.heartbeat.within(delay + LATE_SECONDS, "waiting for the runtime")
                await asyncio.sleep(delay)
                due.set()
            else:
                retry.succeed()

    async def _sweep(self) -> None:
        """Remove those that are there now."""
        for sandbox in await self._runtime.made_sandboxes():
            if not sandbox.ready or self._pods.is_live(sandbox.request_uid):
                continue
            beside = await self._runtime.sandboxes(sandbox.pod_uid)
            if any(each.ready and each.id != sandbox.id for each in beside):  # else kubelet may run containers in it
                pod = f"{sandbox.pod_namespace}/{sandbox.pod_name}"
                log.info("removing second sandbox", pod=pod, sandbox_id=sandbox.id, request_uid=sandbox.request_uid)
                note_second_sandbox(self._pods, pod, sandbox.request_uid)
                await self._runtime.remove_sandbox(sandbox)
