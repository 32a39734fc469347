"""The local kubelet's client for the container runtime's CRI socket.

Each method makes one or two calls with a deadline. `crrd.cri` is the node daemon's client. A kubelet needs the other
calls: sandboxes, images, creating and removing.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message
from grpc.aio import AioRpcError, UnaryUnaryMultiCallable, insecure_channel

from cri_stubs import api_pb2, api_pb2_grpc
from crrd.core.api.types import DEFAULT_GRACE_SECONDS
from crrd.core.recreate.observation import ExecResult
from crrd.cri.client import translate
from crrd.kubelet import labels as kubelet_labels
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import RuntimeCallError
from crrd_localnode.planner.values import ContainerStatus, SandboxStatus

CALL_SECONDS = 120.0  # Kubelet's runtimeRequestTimeout
PULL_SECONDS = 600.0  # Kubelet has no limit for a pull, but every call here has one

LABEL_NODE = "localnode.crrd/node"  # On sandboxes. A local node uses only those of pods that have one with its own name

_STATES = {
    api_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    api_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    api_pb2.CONTAINER_EXITED: ContainerState.EXITED,
}
PodStates = dict[str, frozenset[tuple[str, int]]]  # Pod UID -> the IDs and states of its containers and sandboxes
_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(SandboxStatus):
    """One pod sandbox. A local node has no pod network, so network mode and IP are not set."""

    pod_uid: str
    pod_name: str
    pod_namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContainer(ContainerStatus):
    """One container instance with its whole status."""

    started_at: int
    message: str
    image: str
    image_id: str
    grace_seconds: int  # The pod's terminationGracePeriodSeconds in the container's annotations
    pre_stop: str  # The preStop handler in the container's annotations (JSON), or ""
    ports: str  # The container's ports in its annotations (a JSON list), or ""
    log_path: str
    termination_file: str  # The file on the host that is mounted for the termination message, or ""

    @property
    def running(self) -> bool:
        """Whether the container is running."""
        return self.state is ContainerState.RUNNING

    @property
    def exited(self) -> bool:
        """Whether the container has exited."""
        return self.state is ContainerState.EXITED


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """The runtime's state of one pod. Both lists start with the newest."""

    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[RuntimeContainer, ...] = ()

    def newest(self, name: str) -> RuntimeContainer | None:
        """Return the current instance of a container."""
        return next((container for container in self.containers if container.name == name), None)

    def instances(self, name: str) -> list[RuntimeContainer]:
        """Return all instances of a container, the newest first."""
        return [container for container in self.containers if container.name == name]

    @property
    def sandbox(self) -> Sandbox | None:
        """The current sandbox, ready or not."""
        return self.sandboxes[0] if self.sandboxes else None


class KubeRuntime:
    """Calls one CRI endpoint. Raises only `RuntimeUnavailableError` and `RuntimeCallError`."""

    def __init__(self, endpoint: str, node_name: str) -> None:
        self.endpoint = endpoint
        self._node_name = node_name
        self._channel = insecure_channel(
            endpoint,
            # gRPC's own back-off grows to two minutes, in which a restarted runtime would not be found.
            options=[("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)],
        )
        self._runtime = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self._images = api_pb2_grpc.ImageServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def version(self) -> tuple[str, str]:
        """Return the runtime's name and version."""
        answer = await self._call(self._runtime.Version, api_pb2.VersionRequest())
        return answer.runtime_name, answer.runtime_version

    async def relist(self) -> tuple[tuple[Sandbox, ...], PodStates]:
        """Return all sandboxes of this node and the states of their containers, with two calls (kubelet's PLEG)."""
        sandboxes = await self._sandboxes({})
        listed = await self._call(self._runtime.ListContainers, api_pb2.ListContainersRequest())
        owners = {sandbox.id: sandbox.pod_uid for sandbox in sandboxes}
        states: dict[str, set[tuple[str, int]]] = {uid: set() for uid in owners.values()}
        for sandbox in sandboxes:
            states[sandbox.pod_uid].add((sandbox.id, int(sandbox.ready)))
        for container in listed.containers:
            if container.pod_sandbox_id in owners:
                states[owners[container.pod_sandbox_id]].add((container.id, container.state))
        return sandboxes, {uid: frozenset(pairs) for uid, pairs in states.items()}

    async def pod(self, uid: str) -> RuntimePod:
        """Return all instances of the pod's containers with their statuses, and its sandboxes."""
        of_pod = {kubelet_labels.LABEL_POD_UID: uid}
        sandboxes = await self._sandboxes(of_pod)
        request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(label_selector=of_pod))
        listed = await self._call(self._runtime.ListContainers, request)
        own = {sandbox.id for sandbox in sandboxes}
        entries = [entry for entry in listed.containers if entry.pod_sandbox_id in own]
        containers = [found for found in await asyncio.gather(*map(self._container, entries)) if found is not None]
        containers.sort(key=lambda container: (container.created_at, container.restart_count), reverse=True)
        return RuntimePod(sandboxes, tuple(containers))

    async def _sandboxes(self, labels: dict[str, str]) -> tuple[Sandbox, ...]:
        request = api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter(label_selector=labels))
        listed = (await self._call(self._runtime.ListPodSandbox, request)).items
        own = {each.metadata.uid for each in listed if each.labels.get(LABEL_NODE) == self._node_name}
        sandboxes = (_sandbox(each) for each in listed if each.metadata.uid in own)  # whoever has made them, as kubelet
        return tuple(sorted(sandboxes, key=lambda sandbox: (sandbox.created_at, sandbox.attempt), reverse=True))

    async def _container(self, entry: api_pb2.Container) -> RuntimeContainer | None:
        """Return the container's status, or None if it was removed since it was listed."""
        try:
            request = api_pb2.ContainerStatusRequest(container_id=entry.id)
            status = (await self._call(self._runtime.ContainerStatus, request)).status
        except RuntimeCallError as error:
            if error.not_found:
                return None
            raise
        restarts = entry.annotations.get(kubelet_labels.ANNOTATION_RESTART_COUNT, "")
        grace = entry.annotations.get(kubelet_labels.ANNOTATION_GRACE, "")
        message_path = entry.annotations.get(kubelet_labels.ANNOTATION_MESSAGE_PATH, "")
        message_files = (mount.host_path for mount in status.mounts if mount.container_path == message_path)
        return RuntimeContainer(
            id=entry.id,
            name=entry.labels.get(kubelet_labels.LABEL_CONTAINER_NAME, ""),
            sandbox_id=entry.pod_sandbox_id,
            state=_STATES.get(status.state, ContainerState.UNKNOWN),
            created_at=status.created_at,
            started_at=status.started_at,
            finished_at=status.finished_at,
            exit_code=status.exit_code,
            reason=status.reason,
            message=status.message,
            image=status.image.image,
            image_id=status.image_ref,
            hash=entry.annotations.get(kubelet_labels.ANNOTATION_HASH, ""),
            restart_count=int(restarts) if restarts.isdigit() else entry.metadata.attempt,
            grace_seconds=int(grace) if grace.isdigit() else DEFAULT_GRACE_SECONDS,
            pre_stop=entry.annotations.get(kubelet_labels.ANNOTATION_PRE_STOP, ""),
            ports=entry.annotations.get(kubelet_labels.ANNOTATION_PORTS, ""),
            log_path=status.log_path,
            termination_file=next(message_files, ""),
        )

    async def run_sandbox(self, config: api_pb2.PodSandboxConfig) -> str:
        """Create and start a sandbox. Return its ID."""
        request = api_pb2.RunPodSandboxRequest(config=config)
        return (await self._call(self._runtime.RunPodSandbox, request)).pod_sandbox_id

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and kill its containers."""
        await self._call(self._runtime.StopPodSandbox, api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a stopped sandbox with all its containers."""
        await self._call(self._runtime.RemovePodSandbox, api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))

    async def image(self, image: str) -> tuple[str, frozenset[str]]:
        """Return the runtime's ID of an image, and the repositories that it was pulled from.

        The ID is "" if the runtime does not have the image.
        """
        request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=image))
        found = (await self._call(self._images.ImageStatus, request)).image
        return found.id, frozenset(name.partition("@")[0] for name in found.repo_digests)

    async def pull(self, image: str) -> str:
        """Pull an image. Return the reference for creating containers."""
        request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=image))
        return (await self._call(self._images.PullImage, request, PULL_SECONDS)).image_ref

    async def create(self, sandbox_id: str, config: api_pb2.ContainerConfig, sandbox: api_pb2.PodSandboxConfig) -> str:
        """Create a container in a sandbox. Return its ID."""
        request = api_pb2.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
        return (await self._call(self._runtime.CreateContainer, request)).container_id

    async def start(self, container_id: str) -> None:
        """Start a created container."""
        await self._call(self._runtime.StartContainer, api_pb2.StartContainerRequest(container_id=container_id))

    async def stop(self, container_id: str, seconds: int) -> None:
        """Stop a container: SIGTERM, then SIGKILL after `seconds`. An unknown ID counts as stopped."""
        request = api_pb2.StopContainerRequest(container_id=container_id, timeout=seconds)
        try:
            await self._call(self._runtime.StopContainer, request, CALL_SECONDS + seconds)
        except RuntimeCallError as error:
            if not error.not_found:
                raise

    async def remove(self, container_id: str) -> None:
        """Remove a container. An unknown ID counts as removed."""
        try:
            await self._call(self._runtime.RemoveContainer, api_pb2.RemoveContainerRequest(container_id=container_id))
        except RuntimeCallError as error:
            if not error.not_found:
                raise

    async def execute(self, container_id: str, command: list[str], seconds: float) -> ExecResult:
        """Run a command in a container, for at most `seconds` (rounded up)."""
        whole = math.ceil(seconds)
        request = api_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=whole)
        answer = await self._call(self._runtime.ExecSync, request, CALL_SECONDS + whole)
        return ExecResult(answer.exit_code, answer.stdout, answer.stderr)

    async def _call(
        self, method: UnaryUnaryMultiCallable[_Request, _Response], request: _Request, seconds: float = CALL_SECONDS
    ) -> _Response:
        try:
            return await method(request, timeout=seconds)
        except AioRpcError as error:
            raise translate(error, type(request).__name__.removesuffix("Request"), self.endpoint) from error


def _sandbox(entry: api_pb2.PodSandbox) -> Sandbox:
    return Sandbox(
        id=entry.id, attempt=entry.metadata.attempt, ready=entry.state == api_pb2.SANDBOX_READY,
        created_at=entry.created_at, pod_uid=entry.labels[kubelet_labels.LABEL_POD_UID],
        pod_name=entry.labels[kubelet_labels.LABEL_POD_NAME],
        pod_namespace=entry.labels[kubelet_labels.LABEL_POD_NAMESPACE],
    )  # fmt: skip
