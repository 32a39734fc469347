"""Stops a pod's containers (preStop hook, grace period) and sandboxes, and removes what is left in the runtime.

Kubelet's procedure: the hook first, then the runtime's stop with the rest of the grace period, at least two seconds.
Source: `killContainer` in pkg/kubelet/kuberuntime/kuberuntime_container.go, `evictableContainers` in
kuberuntime_gc.go and `getContainersToDeleteInPod` in pkg/kubelet/pod_container_deletor.go.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from crrd.core.api.types import MINIMUM_GRACE_SECONDS
from crrd_localnode.planner.values import Kill, Remove
from crrd_localnode.pods.handlers import Handlers
from crrd_localnode.pods.kuberuntime import KubeRuntime, RuntimeContainer, RuntimePod
from crrd_localnode.pods.spec import Json

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stopper:
    """Stops and removes containers and sandboxes of one node."""

    _runtime: KubeRuntime
    _handlers: Handlers

    async def stop(self, container: RuntimeContainer, reason: str, grace: int | None = None) -> None:
        """Stop one container like kubelet. Return when it has stopped.

        The preStop hook and grace period are those in its annotations. `grace` (seconds, at least 1) is that of the
        pod's deletion and replaces the latter. `reason` is logged. RuntimeCallError, RuntimeUnavailableError.
        """
        seconds: float = container.grace_seconds if grace is None else grace
        _log.info("stopping_container", container=container.name, id=container.id, reason=reason)
        hook = _json(container.pre_stop)
        if hook and seconds > 0 and container.running:
            started = time.monotonic()
            spec: Json = {"ports": _json(container.ports) or []}
            outcome = await self._handlers.run(hook, spec, container.id, seconds)
            if not outcome.succeeded:
                _log.warning("pre_stop_failed", container=container.name, id=container.id, error=outcome.message)
            seconds -= time.monotonic() - started
        least = MINIMUM_GRACE_SECONDS if grace is None else 1
        await self._runtime.stop(container.id, max(round(seconds), least))

    async def stop_pod(self, view: RuntimePod, kills: Sequence[Kill], grace: int | None = None) -> None:
        """Stop these containers of the pod, stage by stage and together within a stage. Then stop its sandboxes.

        The later stages get the rest of the grace period (KEP-753). Raises the errors of `stop`.
        """
        started = time.monotonic()
        known = {container.id: container for container in view.containers}
        for stage in sorted({kill.stage for kill in kills}):
            spent = time.monotonic() - started if stage else 0.0
            await asyncio.gather(
                *(
                    self.stop(known[kill.container.id], kill.message, _left(known[kill.container.id], grace, spent))
                    for kill in kills
                    if kill.stage == stage
                )
            )
        for sandbox in view.sandboxes:
            if sandbox.ready:
                await self._runtime.stop_sandbox(sandbox.id)

    async def remove(self, removals: Sequence[Remove]) -> None:
        """Remove these containers in order, and kill running ones first. Their logs are kept and still counted."""
        for removal in removals:
            _log.info("removing_container", container=removal.container.name, id=removal.container.id)
            if removal.kill:
                await self._runtime.stop(removal.container.id, 0)
            await self._runtime.remove(removal.container.id)

    async def remove_pod(self, view: RuntimePod) -> None:
        """Remove the pod's stopped sandboxes with all containers."""
        for sandbox in view.sandboxes:
            await self._runtime.stop_sandbox(sandbox.id)  # releases the resources of a dead sandbox
            await self._runtime.remove_sandbox(sandbox.id)

    async def purge(self, containers: Iterable[RuntimeContainer]) -> None:
        """Remove stopped containers with their logs."""
        for container in containers:
            await self._runtime.remove(container.id)
            if container.log_path:
                await asyncio.to_thread(Path(container.log_path).unlink, missing_ok=True)

    async def clear(self, view: RuntimePod) -> None:
        """Remove exited instances, except the newest of each container, and empty sandboxes."""
        kept: set[str] = set()
        left = {sandbox.id: 0 for sandbox in view.sandboxes}
        for container in view.containers:  # the newest first
            if container.exited and container.name in kept:
                await self.purge([container])
                continue
            if container.exited:
                kept.add(container.name)
            left[container.sandbox_id] = left.get(container.sandbox_id, 0) + 1
        for sandbox in view.sandboxes[1:]:
            if not sandbox.ready and not left[sandbox.id]:
                await self._runtime.stop_sandbox(sandbox.id)
                await self._runtime.remove_sandbox(sandbox.id)


def _left(container: RuntimeContainer, grace: int | None, spent: float) -> int | None:
    """Return the rest of the grace period for later stages, in seconds, at least 1. None means the container's own."""
    if not spent:
        return grace
    return max(1, round((container.grace_seconds if grace is None else grace) - spent))


def _json(text: str) -> Json:
    """Parse what kubelet wrote as JSON. {} if it is empty."""
    return json.loads(text) if text else {}
