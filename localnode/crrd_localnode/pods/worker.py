"""The worker of one pod: makes the runtime's state match the spec, one step at a time.

It is serial like kubelet's pod workers: during a stop's grace period, nothing else happens to the pod. It is woken by
changes of the pod's object, of its state in the runtime (the relist) and of probe results, and when a back-off is over.
`planner` decides what to do, and `Reporter` writes the status.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    RuntimeCallError,
    RuntimeUnavailableError,
)
from crrd_forecast.hash.container_hash import container_hash
from crrd_localnode.planner.pod_actions import end_pod, pod_actions
from crrd_localnode.planner.values import PodActions, PodRuntimeStatus
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.kuberuntime import KubeRuntime, RuntimePod
from crrd_localnode.pods.mounter import Mounter
from crrd_localnode.pods.probes import Probes
from crrd_localnode.pods.report import Reporter
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.starter import Sandboxed, Starter, StartError
from crrd_localnode.pods.status import Health, Waiting, pod_status
from crrd_localnode.pods.stopper import Stopper

_log = structlog.get_logger()

AWAY_SECONDS = 1.0  # Delay after the runtime or the API server could not be reached
FORCED_GRACE_SECONDS = 1  # Grace period of a pod whose object was deleted from the API: kubelet's minimum
_ENDED = ("Succeeded", "Failed")

Definition = tuple[Json, Json | None, Json | None, str | None]  # See `definition`


@dataclass(frozen=True, slots=True)
class Node:
    """The parts that all workers of one node share."""

    client: KubeClient
    runtime: KubeRuntime
    runtime_name: str
    starter: Starter
    stopper: Stopper
    probes: Probes
    volumes: Mounter
    retry_seconds: float
    resync_seconds: float
    remount_seconds: float
    version: str  # Kubelet's version, which decides the rules


class PodWorker:
    """Manages one pod, from its first appearance on the node to its end."""

    def __init__(self, node: Node, pod: Json, ended: Callable[[str], None]) -> None:
        """`ended` is called with the pod's UID when everything of it was removed."""
        self._node = node
        self._uid = podspec.uid(pod)
        self._ended = ended
        self._reporter = Reporter(node.client, pod, self._status, self.object_gone)
        self._gone = False
        self._over = False
        self._view: RuntimePod | None = None
        self._waiting: dict[str, Waiting] = {}
        self._woken = asyncio.Event()
        self._synced: Definition | None = None  # What kubelet has synced last
        self._due = False  # Whether kubelet would sync the pod now, whatever its object says
        self._next_sync = 0.0
        self._refreshing: set[asyncio.Task[None]] = set()
        self.wake()

    def update(self, pod: Json) -> None:
        """Handle a version of the pod's object from the watch."""
        if self._reporter.take(pod) or definition(pod) != self._synced:
            self._woken.set()

    def object_gone(self) -> None:
        """The pod's object was deleted: end the pod."""
        self._gone = True
        self.wake()

    def wake(self) -> None:
        """Sync soon, because something else than the pod's object has changed."""
        self._due = True
        self._woken.set()

    async def run(self) -> None:
        """Sync whenever woken, until the pod has ended and was removed."""
        reporting = asyncio.create_task(self._reporter.run())
        try:
            delay = 0.0
            while not self._over:
                try:
                    async with asyncio.timeout(delay):
                        await self._woken.wait()
                except TimeoutError:
                    self._due = True
                self._woken.clear()
                delay = min(await self._sync_safely(), max(self._next_sync - time.monotonic(), 0.0))
        finally:
            for task in (reporting, *self._refreshing):
                task.cancel()
        self._node.probes.forget(self._uid)
        self._node.starter.forget(self._reporter.pod)
        self._ended(self._uid)

    async def _sync_safely(self) -> float:
        """Sync once. Return the seconds until the next sync."""
        try:
            return await self._sync(self._reporter.pod)
        except (RuntimeUnavailableError, ApiUnavailableError) as error:
            _log.warning("pod_sync_failed", pod=podspec.key(self._reporter.pod), error=str(error))
            return AWAY_SECONDS
        except (RuntimeCallError, ApiRefusedError) as error:
            _log.warning("pod_sync_failed", pod=podspec.key(self._reporter.pod), error=str(error))
            return self._node.retry_seconds

    async def _sync(self, pod: Json) -> float:
        refreshes = self._due or definition(pod) != self._synced
        if refreshes:  # else only the pod's status has changed, for which kubelet syncs nothing
            self._due, self._synced = False, definition(pod)
            self._next_sync = time.monotonic() + self._node.resync_seconds
        view = await self._look()
        if self._gone or podspec.being_deleted(pod):
            await self._terminate(pod, view)
            return AWAY_SECONDS
        self._node.probes.sync(pod, view)
        self._reporter.due()
        phase = (pod.get("status") or {}).get("phase")
        if phase in _ENDED or (self._status(pod) or {}).get("phase") in _ENDED:
            ending = plan_end(pod, view, self._node.version, "the pod has run to its end")
            await self._node.stopper.stop_pod(view, ending.kill)
            self._node.volumes.forget(pod)
            return self._node.resync_seconds
        try:
            return await self._node.volumes.mount(pod) or await self._carry_out(pod, view)
        finally:
            if refreshes:  # after the starts, so that a container never sees a newer file than on a real node
                task = asyncio.create_task(self._refresh())
                self._refreshing.add(task)
                task.add_done_callback(self._refreshing.discard)

    async def _refresh(self) -> None:
        await asyncio.sleep(self._node.remount_seconds)
        if not podspec.being_deleted(self._reporter.pod):
            await self._node.volumes.refresh(self._reporter.pod)

    async def _look(self) -> RuntimePod:
        """Read the pod's state from the runtime."""
        self._view = await self._node.runtime.pod(self._uid)
        return self._view

    def _status(self, pod: Json) -> Json | None:
        """Return the pod's status, according to the last state of the runtime."""
        if self._gone or self._view is None:
            return None
        node = self._node
        return pod_status(
            pod, self._view, waiting=self._waiting, health=node.probes, runtime=node.runtime_name,
            version=node.version, now=time.time_ns(),
        )  # fmt: skip

    async def _carry_out(self, pod: Json, view: RuntimePod) -> float:
        """Carry out the plan. Return the seconds until the next sync."""
        before = dict(self._waiting)
        todo = plan_pod(pod, view, self._node.probes, self._node.version)
        await self._kill(pod, view, todo)
        if todo.remove:
            await self._node.stopper.remove(todo.remove)
            return 0.0
        if todo.new_sandbox:
            sandbox_id = await self._node.starter.start_sandbox(pod, todo.attempt)
        elif view.sandbox is None:
            return self._node.resync_seconds
        else:
            sandbox_id = view.sandbox.id
        delay = self._node.resync_seconds
        place = Sandboxed(pod, view, sandbox_id, todo.attempt)
        for name in todo.start:
            spec = podspec.container(pod, name)
            if spec is None:  # an ephemeral container, which a local node does not support
                continue
            delay = min(delay, await self._start(place, spec))
            if name in self._waiting and spec in podspec.init_containers(pod) and not podspec.is_sidecar(spec):
                break  # later containers must wait
        if self._waiting != before:
            await self._look()
            self._reporter.due()
        await self._node.stopper.clear(view)
        return delay

    async def _kill(self, pod: Json, view: RuntimePod, todo: PodActions) -> None:
        """Stop the containers of the plan. If the pod starts again, remove its init containers' results."""
        if not todo.kill_pod:
            known = {container.id: container for container in view.containers}
            for kill in todo.kill:
                await self._node.stopper.stop(known[kill.container.id], kill.message)
            return
        _log.info("stopping_pod", pod=podspec.key(pod), reason=todo.why)
        await self._node.stopper.stop_pod(view, todo.kill)
        if todo.new_sandbox:
            init = {spec["name"] for spec in podspec.init_containers(pod)}
            await self._node.stopper.purge(each for each in view.containers if each.name in init)

    async def _start(self, place: Sandboxed, spec: Json) -> float:
        """Start one container, or record why it could not be started. Return the seconds until the next sync."""
        name = spec["name"]
        try:
            await self._node.starter.start(place, spec, hash_of(spec, self._node.version))
        except StartError as error:
            if self._waiting.get(name) != error.waiting:
                _log.info("container_not_started", pod=podspec.key(place.pod), container=name, error=str(error))
            self._waiting[name] = error.waiting
            return error.retry_after
        self._waiting.pop(name, None)
        return self._node.resync_seconds

    async def _terminate(self, pod: Json, view: RuntimePod) -> None:
        """End the pod: stop it, report that, and remove it from the runtime, then from the API."""
        grace = FORCED_GRACE_SECONDS if self._gone else max(podspec.grace_seconds(pod), FORCED_GRACE_SECONDS)
        ending = plan_end(pod, view, self._node.version, "the pod is being deleted")
        await self._node.stopper.stop_pod(view, ending.kill, grace)
        view = await self._look()
        await self._reporter.write()
        await self._node.stopper.remove_pod(view)
        await asyncio.to_thread(self._node.volumes.folders.remove, pod)
        if not self._gone:
            await self._delete_object(pod)
        self._over = True

    async def _delete_object(self, pod: Json) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        try:
            await self._node.client.delete(PODS, namespace, name, uid=self._uid, grace_seconds=0)
        except (GoneError, ConflictError):
            _log.debug("pod_object_gone", pod=podspec.key(pod))


def definition(pod: Json) -> Definition:
    """Return what kubelet syncs a pod for, if it changes. A changed status is no reason."""
    metadata = pod["metadata"]
    return pod["spec"], metadata.get("labels"), metadata.get("annotations"), metadata.get("deletionTimestamp")


def hash_of(spec: Json, version: str) -> str:
    """Return the container's hash of a kubelet of this version, or "0" if unknown."""
    return f"{container_hash(spec, version) or 0:x}"


def plan_pod(pod: Json, view: RuntimePod, health: Health, version: str) -> PodActions:
    """Return the actions of a kubelet of this version for the pod's current state. A local node has no pod network."""
    current = [(spec, found) for spec in podspec.all_containers(pod) if (found := view.newest(spec["name"]))]
    status = PodRuntimeStatus(
        sandboxes=view.sandboxes,
        containers=view.containers,
        started=frozenset(each.id for spec, each in current if each.running and health.started(spec, each)),
        startup_failed=frozenset(each.id for _, each in current if health.failed(each.id) == "startup"),
        liveness_failed=frozenset(each.id for _, each in current if health.failed(each.id) == "liveness"),
    )
    return pod_actions(pod, status, version)


def plan_end(pod: Json, view: RuntimePod, version: str, why: str) -> PodActions:
    """Return the actions that end the pod: everything is killed, sidecars last."""
    return end_pod(pod, PodRuntimeStatus(view.sandboxes, view.containers), version, why)
