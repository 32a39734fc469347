"""A small kubelet: runs the pods bound to its node on any CRI runtime, and reports their status to the API.

It needs no files of its own to restart, because it finds its pods in the runtime. It only uses sandboxes that have its
node's name in a label, so it can share a runtime with others.

It is faithful where the node daemon could notice a difference: actions on a pod (decided by `planner`), labels and
annotations of containers, restart counts, back-off and its messages, a relist every second, in-place image updates,
grace periods. Not implemented: CNI (every pod uses the host's network), resource limits and in-place resize, ephemeral
containers, volumes with storage, image credentials, eviction, static pods, the HTTPS port, leases.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, Selection
from crrd.kube.resources import NODES, PODS
from crrd.lib.errors import ApiUnavailableError, ConflictError, RuntimeCallError, RuntimeUnavailableError
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.handlers import Handlers
from crrd_localnode.pods.kuberuntime import KubeRuntime, PodStates, Sandbox
from crrd_localnode.pods.log_server import LogServer
from crrd_localnode.pods.mounter import Mounter
from crrd_localnode.pods.objects import ConfigObjects
from crrd_localnode.pods.probes import Probes
from crrd_localnode.pods.recorder import Recorder
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.starter import CONTAINER_INITIAL_SECONDS, BackOff, Starter
from crrd_localnode.pods.status import timestamp
from crrd_localnode.pods.stopper import Stopper
from crrd_localnode.pods.volumes import PodFolders
from crrd_localnode.pods.worker import Node, PodWorker

_log = structlog.get_logger()
_T = TypeVar("_T")

KUBELET_VERSION = "v1.36.0"
AGAIN_SECONDS = 0.25  # Interval of retrying the runtime or the API server at the start


@dataclass(frozen=True, slots=True)
class Timing:
    """Times that kubelet waits, in seconds."""

    backoff: float = CONTAINER_INITIAL_SECONDS  # Initial back-off of a container that was restarted before; it doubles
    retry: float = 10.0  # After a failed sync that has no back-off of its own
    relist: float = 1.0  # Between two relists (kubelet's generic PLEG)
    resync: float = 90.0  # Between two syncs of a pod without any change: syncFrequency and the longest jitter
    remount: float = 0.7  # From a sync to the refresh of the pod's volumes: 0.3 to 0.7 s on kubelet 1.30 and 1.36


_USUAL = Timing()


class Kubelet:
    """The kubelet of one node: `await start()`, `await stop()`. Containers keep running when it stops."""

    def __init__(
        self, client: KubeClient, cri_endpoint: str, node_name: str, root: Path, timing: Timing = _USUAL
    ) -> None:
        """The caller closes `client`. `root` is the folder for volumes, logs and termination messages."""
        self.node_name = node_name
        self._client = client
        self._endpoint = cri_endpoint
        self._folders = PodFolders(root.absolute())
        self._timing = timing
        self._objects = ConfigObjects(client)
        self._workers: dict[str, PodWorker] = {}
        self._known: PodStates = {}
        self._ended: set[str] = set()  # Pods that have ended while the API may still report them
        self._listed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runtime: KubeRuntime | None = None
        self._node: Node | None = None
        self._logs = LogServer(self._folders)

    async def start(self) -> None:
        """Register the node and start work when runtime and API server respond. Return when the pods are known."""
        runtime = self._runtime = KubeRuntime(self._endpoint, self.node_name)
        name, version = await self._patiently(runtime.version)
        handlers, retry, backoff = Handlers(runtime), self._timing.retry, BackOff(self._timing.backoff)
        recorder = Recorder(self._client, self.node_name)
        volumes = Mounter(self._folders, self._objects, recorder)
        self._node = Node(
            client=self._client,
            runtime=runtime,
            runtime_name=name,
            starter=Starter(volumes, runtime, handlers, recorder, self.node_name, backoff, retry),
            stopper=Stopper(runtime, handlers),
            probes=Probes(handlers, self._wake),
            volumes=volumes,
            retry_seconds=retry,
            resync_seconds=self._timing.resync,
            remount_seconds=self._timing.remount,
            version=KUBELET_VERSION,
        )
        port = await self._logs.start()
        await self._patiently(lambda: self._register(f"{name}://{version}", port))
        self._spawn(self._watch_pods())
        await self._listed.wait()
        self._spawn(self._relist_forever(runtime))

    async def stop(self) -> None:
        """Stop, and leave everything as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._objects.close()
        await self._logs.stop()
        if self._node is not None:
            await self._node.probes.close()
        if self._runtime is not None:
            await self._runtime.close()

    async def _patiently(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return the call's result. Retry until the other side is available."""
        last_error = ""
        while True:
            try:
                return await call()
            except (RuntimeUnavailableError, RuntimeCallError, ApiUnavailableError) as error:
                if str(error) != last_error:
                    last_error = str(error)
                    _log.warning("waiting", node=self.node_name, error=last_error)
                await asyncio.sleep(AGAIN_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("kubelet_task_failed", node=self.node_name, exc_info=task.exception())

    async def _register(self, runtime_version: str, port: int) -> None:
        """Create the Node object, or set an existing one to ready."""
        node = node_object(self.node_name, runtime_version, port)
        try:
            await self._client.create(NODES, "", node)
        except ConflictError:
            _log.debug("node_exists", node=self.node_name)
        status = {"status": node["status"]}
        await self._client.merge_patch(NODES, "", self.node_name, status, subresource="status")

    async def _watch_pods(self) -> None:
        selection: Selection[Json] = Selection(PODS, dict, field_selector=f"spec.nodeName={self.node_name}")
        handler = Handler(self._pods_listed, self._pod_changed, self._pod_deleted)
        await Reflector(self._client, selection, handler, strict=False).run()

    def _pods_listed(self, pods: tuple[Json, ...], _: str) -> None:
        for pod in pods:
            self._pod_changed(pod)
        present = {podspec.uid(pod) for pod in pods}
        self._ended &= present
        for uid in self._workers.keys() - present:
            self._workers[uid].object_gone()
        self._listed.set()

    def _pod_changed(self, pod: Json) -> None:
        uid = podspec.uid(pod)
        if uid in self._workers:
            self._workers[uid].update(pod)
        elif uid not in self._ended:  # else a late event from before the pod's end
            self._begin(pod)

    def _pod_deleted(self, pod: Json) -> None:
        uid = podspec.uid(pod)
        self._ended.discard(uid)
        if uid in self._workers:
            self._workers[uid].object_gone()

    def _begin(self, pod: Json) -> PodWorker:
        if self._node is None:
            raise RuntimeError("the kubelet was not started")
        worker = PodWorker(self._node, pod, self._pod_ended)
        self._workers[podspec.uid(pod)] = worker
        self._spawn(worker.run())
        return worker

    def _pod_ended(self, uid: str) -> None:
        del self._workers[uid]
        self._ended.add(uid)

    def _wake(self, uid: str) -> None:
        if uid in self._workers:
            self._workers[uid].wake()

    async def _relist_forever(self, runtime: KubeRuntime) -> None:
        while True:
            try:
                self._compare(*await runtime.relist())
            except (RuntimeUnavailableError, RuntimeCallError) as error:
                _log.warning("relist_failed", node=self.node_name, error=str(error))
            await asyncio.sleep(self._timing.relist)

    def _compare(self, sandboxes: tuple[Sandbox, ...], pods: PodStates) -> None:
        """Wake the workers of pods that have changed since the last relist. End orphaned pods."""
        for uid in self._known.keys() | pods.keys():
            if self._known.get(uid) != pods.get(uid):
                self._wake(uid)
        self._known = pods
        for sandbox in sandboxes:
            if sandbox.pod_uid not in self._workers:
                _log.info("orphaned_pod", pod=f"{sandbox.pod_namespace}/{sandbox.pod_name}", uid=sandbox.pod_uid)
                # The known fields of a pod whose object is gone.
                metadata = {"name": sandbox.pod_name, "namespace": sandbox.pod_namespace, "uid": sandbox.pod_uid}
                pod = {"metadata": {**metadata, "resourceVersion": "0"}, "spec": {"containers": []}}
                self._begin(pod).object_gone()


def node_object(name: str, runtime_version: str, port: int) -> Json:
    """Return the Node as kubelet registers it: ready, with room for 110 pods. `port` is that of kubelet's server."""
    system = os.uname()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": f"{memory}Ki", "pods": "110"}
    now = timestamp(time.time_ns())
    ready = {
        "type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now,
        "reason": "KubeletReady", "message": "kubelet is posting ready status",
    }  # fmt: skip
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(system.machine, system.machine)
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": podspec.NODE_IP}, {"type": "Hostname", "address": name}],
            "capacity": capacity,
            "allocatable": capacity,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "architecture": architecture, "operatingSystem": "linux", "kernelVersion": system.release,
                "kubeletVersion": KUBELET_VERSION, "containerRuntimeVersion": runtime_version,
            },
        },
    }  # fmt: skip
