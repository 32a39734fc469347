"""Probes the containers of a node, with one set of tasks per running container instance.

Results belong to an instance: a new instance starts as unknown. Other code decides what follows from a result; a change
only wakes the pod's worker. Source: pkg/kubelet/prober in Kubernetes.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from crrd.lib.errors import RuntimeUnavailableError
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.handlers import Handlers
from crrd_localnode.pods.kuberuntime import RuntimeContainer, RuntimePod
from crrd_localnode.pods.spec import Json

STARTUP, READINESS, LIVENESS = "startupProbe", "readinessProbe", "livenessProbe"
_KINDS = (STARTUP, READINESS, LIVENESS)


@dataclass(slots=True)
class _Instance:
    """A running container instance with probes."""

    pod_uid: str
    started: bool
    ready: bool
    failed: str = ""  # The probe because of which the container must be restarted, or ""
    task: asyncio.Task[None] | None = None


class Probes:
    """All probes of one node."""

    def __init__(self, handlers: Handlers, changed: Callable[[str], None]) -> None:
        """`changed` is called with a pod's UID when a result of its probes has changed."""
        self._handlers = handlers
        self._changed = changed
        self._instances: dict[str, _Instance] = {}

    def sync(self, pod: Json, view: RuntimePod) -> None:
        """Probe the pod's containers that are running now, and no others."""
        uid = podspec.uid(pod)
        running = {container.id: container for container in view.containers if container.running}
        for spec in podspec.all_containers(pod):
            container = view.newest(spec["name"])
            probed = any(spec.get(kind) for kind in _KINDS)
            if probed and container and container.running and container.id not in self._instances:
                self._begin(pod, spec, container)
        self._end(key for key, known in self._instances.items() if known.pod_uid == uid and key not in running)

    def forget(self, pod_uid: str) -> None:
        """End the probes of a pod."""
        self._end(key for key, known in self._instances.items() if known.pod_uid == pod_uid)

    def started(self, spec: Json, container: RuntimeContainer) -> bool:
        """Whether a running container's startupProbe has succeeded, or it has none."""
        known = self._instances.get(container.id)
        return known.started if known else not spec.get(STARTUP)

    def ready(self, spec: Json, container: RuntimeContainer) -> bool:
        """Whether a running container's readinessProbe succeeds, or it has none."""
        known = self._instances.get(container.id)
        return known.ready if known else not spec.get(READINESS)

    def failed(self, container_id: str) -> str:
        """Return the probe because of which the instance must be restarted, "startup" or "liveness", or ""."""
        known = self._instances.get(container_id)
        return known.failed if known else ""

    def _begin(self, pod: Json, spec: Json, container: RuntimeContainer) -> None:
        # A restarted kubelet continues with the state that it last reported for this instance.
        status = pod.get("status") or {}
        entries = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
        same = (each for each in entries if str(each.get("containerID", "")).endswith(f"://{container.id}"))
        before: Json = next(same, {})
        instance = _Instance(
            pod_uid=podspec.uid(pod),
            started=not spec.get(STARTUP) or bool(before.get("started")),
            ready=not spec.get(READINESS) or bool(before.get("ready")),
        )
        self._instances[container.id] = instance
        instance.task = asyncio.create_task(self._probe_all(instance, spec, container))

    def _end(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            task = self._instances.pop(key).task
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """End all probes."""
        tasks = [known.task for known in self._instances.values() if known.task]
        self._end(self._instances)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe_all(self, instance: _Instance, spec: Json, container: RuntimeContainer) -> None:
        """Run the startup probe until it succeeds, then the other probes while the instance exists."""
        if not instance.started:
            await self._probe(instance, STARTUP, spec, container)
        async with asyncio.TaskGroup() as group:
            for kind in (READINESS, LIVENESS):
                if spec.get(kind):
                    group.create_task(self._probe(instance, kind, spec, container))

    async def _probe(self, instance: _Instance, kind: str, spec: Json, container: RuntimeContainer) -> None:
        """Run one probe until cancelled. A startup probe ends with its first success."""
        probe: Json = spec[kind]
        delay = container.started_at / 1e9 + probe.get("initialDelaySeconds", 0) - time.time()
        await asyncio.sleep(max(0.0, delay))
        successes = failures = 0
        while True:
            # If the runtime is unavailable, nothing is known about the container.
            with suppress(RuntimeUnavailableError):
                outcome = await self._handlers.run(probe, spec, container.id, float(probe.get("timeoutSeconds") or 1))
                successes, failures = (successes + 1, 0) if outcome.succeeded else (0, failures + 1)
                if successes >= (probe.get("successThreshold") or 1):
                    self._note(instance, kind, succeeded=True)
                    if kind == STARTUP:
                        return
                elif failures >= (probe.get("failureThreshold") or 3):
                    self._note(instance, kind, succeeded=False)
            await asyncio.sleep(float(probe.get("periodSeconds") or 10))

    def _note(self, instance: _Instance, kind: str, *, succeeded: bool) -> None:
        before = replace(instance)
        if kind == READINESS:
            instance.ready = succeeded
        elif succeeded:
            instance.started = True  # already set for a liveness probe
        elif not instance.failed:
            instance.failed = kind.removesuffix("Probe")
        if instance != before:
            self._changed(instance.pod_uid)
