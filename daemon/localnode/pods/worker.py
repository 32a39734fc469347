"""One pod's worker: brings what runs to what the spec says, and says in the API what there is; one step at a time.

Serial within a pod, as kubelet's pod workers are: while a stop takes its grace period, nothing else happens to its pod.
A worker is woken when the pod's object changes, when the relist finds another state in the runtime, when a probe's
result changes and when a back-off is over. It decides nothing about containers: `plan` does.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from daemon.kube.client import KubeClient
from daemon.kube.resources import PODS
from daemon.localnode.pods import plan
from daemon.localnode.pods import spec as podspec
from daemon.localnode.pods.kuberuntime import KubeRuntime, RuntimePod
from daemon.localnode.pods.probes import Probes
from daemon.localnode.pods.spec import Json
from daemon.localnode.pods.starter import Sandboxed, Starter, StartError
from daemon.localnode.pods.status import Waiting, pod_status
from daemon.localnode.pods.stopper import Stopper
from daemon.localnode.pods.volumes import PodFolders, VolumeError
from daemon.ports import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    RuntimeCallError,
    RuntimeUnavailableError,
)

_log = structlog.get_logger()

RESYNC_SECONDS = 60.0
"""Kubelet's syncFrequency: a pod is looked at this often though nothing was heard of it."""
AWAY_SECONDS = 1.0
"""The wait after the runtime or the API server was not to be reached."""
FORCED_GRACE_SECONDS = 1
"""What a pod gets whose object has gone from the API (kubelet: the least for a pod that is removed)."""


@dataclass(frozen=True, slots=True)
class Node:
    """What all workers of one node share."""

    client: KubeClient
    runtime: KubeRuntime
    runtime_name: str
    starter: Starter
    stopper: Stopper
    probes: Probes
    folders: PodFolders
    node_ip: str
    kubelet_version: str
    retry_seconds: float


class PodWorker:
    """Runs one pod, from its first appearance on the node to its end."""

    def __init__(self, node: Node, pod: Json, ended: Callable[[str], None]) -> None:
        """`ended` is called with the pod's UID once nothing of it is left."""
        self._node = node
        self._pod = pod
        self._uid = podspec.uid(pod)
        self._ended = ended
        self._gone = False
        self._over = False
        self._waiting: dict[str, Waiting] = {}
        self._woken = asyncio.Event()
        self._woken.set()

    def update(self, pod: Json) -> None:
        """A version of the pod's object that the watch brought."""
        if self._take(pod):
            self.wake()

    def _take(self, pod: Json) -> bool:
        """Keep this version if it is newer: what the watch brings can be older than our own last write."""
        newer = _version(pod) > _version(self._pod)
        if newer:
            self._pod = pod
        return newer

    def object_gone(self) -> None:
        """The pod's object is no more: end the pod."""
        self._gone = True
        self.wake()

    def wake(self) -> None:
        """Something about the pod may have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Sync whenever woken, until the pod is over and removed."""
        delay = 0.0
        while not self._over:
            try:
                async with asyncio.timeout(delay):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            delay = await self._sync_safely()
        self._node.probes.forget(self._uid)
        self._node.starter.forget(self._pod)
        self._ended(self._uid)

    async def _sync_safely(self) -> float:
        """One sync; the seconds after which the next one is due."""
        try:
            return await self._sync()
        except (RuntimeUnavailableError, ApiUnavailableError) as error:
            _log.warning("pod_sync_failed", pod=podspec.key(self._pod), error=str(error))
            return AWAY_SECONDS
        except (RuntimeCallError, ApiRefusedError, VolumeError) as error:
            _log.warning("pod_sync_failed", pod=podspec.key(self._pod), error=str(error))
            return self._node.retry_seconds

    async def _sync(self) -> float:
        view = await self._node.runtime.pod(self._uid)
        if self._gone or podspec.being_deleted(self._pod):
            await self._terminate(view)
            return AWAY_SECONDS
        self._node.probes.sync(self._pod, view)
        await self._write_status(view)
        if podspec.phase(self._pod) in ("Succeeded", "Failed"):
            await self._node.stopper.stop_pod(view, "the pod has run to its end")
            return RESYNC_SECONDS
        before = dict(self._waiting)
        delay = await self._carry_out(view)
        if self._waiting != before:
            await self._write_status(await self._node.runtime.pod(self._uid))
        await self._node.stopper.clear(view)
        return delay

    async def _carry_out(self, view: RuntimePod) -> float:
        """Do what the plan says; the seconds after which to look again."""
        pod = self._pod
        todo = plan.make(pod, view, self._node.probes, self._node.kubelet_version)
        if todo.kill_pod:
            await self._node.stopper.stop_pod(view, "its sandbox is no more, or nothing in it runs on")
        for container, reason in todo.kill:
            await self._node.stopper.stop(container, reason)
        sandbox = view.sandbox
        if todo.new_sandbox:
            sandbox_id, attempt = await self._node.starter.start_sandbox(pod, sandbox)
        elif sandbox is None:
            return RESYNC_SECONDS
        else:
            sandbox_id, attempt = sandbox.id, sandbox.attempt
        delay = RESYNC_SECONDS
        for name in todo.start:
            spec = podspec.container(pod, name)
            if spec is None:
                continue
            try:
                place = Sandboxed(pod, view, sandbox_id, attempt)
                await self._node.starter.start(place, spec, plan.hash_of(spec, self._node.kubelet_version))
                self._waiting.pop(name, None)
            except StartError as error:
                if self._waiting.get(name) != error.waiting:
                    _log.info("container_not_started", pod=podspec.key(pod), container=name, error=str(error))
                self._waiting[name] = error.waiting
                delay = min(delay, error.retry_after)
        return delay

    async def _terminate(self, view: RuntimePod) -> None:
        """End the pod: stop it, say so, remove it from the runtime, then from the API."""
        grace = FORCED_GRACE_SECONDS if self._gone else max(podspec.grace_seconds(self._pod), FORCED_GRACE_SECONDS)
        await self._node.stopper.stop_pod(view, "the pod is being deleted", grace)
        view = await self._node.runtime.pod(self._uid)
        if not self._gone:
            await self._write_status(view)
        await self._node.stopper.remove_pod(view)
        await asyncio.to_thread(self._node.folders.remove, self._pod)
        if not self._gone:
            await self._delete_object()
        self._over = True

    async def _delete_object(self) -> None:
        metadata = self._pod["metadata"]
        try:
            await self._node.client.delete(
                PODS, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace_seconds=0
            )
        except (GoneError, ConflictError):
            _log.debug("pod_object_gone", pod=podspec.key(self._pod))

    async def _write_status(self, view: RuntimePod) -> None:
        """Say in the API what there is, if it is not what stands there.

        The patch is bound to the version that it was made from: the conditions of others must not be lost.
        """
        while not self._gone:
            status = pod_status(
                self._pod,
                view,
                waiting=self._waiting,
                health=self._node.probes,
                runtime_name=self._node.runtime_name,
                node_ip=self._node.node_ip,
                now=time.time_ns(),
            )
            old = self._pod.get("status") or {}
            changed = {name: value for name, value in status.items() if old.get(name) != value}
            if not changed:
                return
            metadata = self._pod["metadata"]
            bound = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            address = (PODS, metadata["namespace"], metadata["name"])
            try:
                body = {"metadata": bound, "status": changed}
                self._take(dict(await self._node.client.merge_patch(*address, body, subresource="status")))
            except ConflictError:
                newer = dict(await self._node.client.get(*address))
                if podspec.uid(newer) == self._uid:
                    self._take(newer)
                else:
                    self.object_gone()
            except GoneError:
                self.object_gone()


def _version(pod: Json) -> int:
    """The object's version; comparable, as Kubernetes has promised since 1.35."""
    return int(pod["metadata"]["resourceVersion"])
