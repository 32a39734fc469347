"""The CRI's RuntimeService for local processes: maps each call to the registry.

Missing methods are answered with UNIMPLEMENTED, see `rpc`.
"""
# ruff: noqa: D102 - methods are documented by the call they answer

import asyncio
import json

from google.protobuf import json_format

from cri_stubs import api_pb2
from crrd import __version__
from crrd_localnode.containers.container import Container
from crrd_localnode.containers.registry import Registry
from crrd_localnode.containers.rpc import invalid

NAME = "crrd-local"  # Name of the runtime, the prefix of container IDs in the API


class RuntimeService:
    """Implements the calls."""

    def __init__(self, registry: Registry, *, namespaced: bool) -> None:
        self._registry = registry
        self._namespaced = namespaced
        self._starts: set[asyncio.Task[None]] = set()

    async def version(self, _request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        return api_pb2.VersionResponse(
            version="0.1.0", runtime_name=NAME, runtime_version=__version__, runtime_api_version="v1"
        )

    async def status(self, _request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        """Answer Status: everything is always ready."""
        conditions = [api_pb2.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
        status, handlers = api_pb2.RuntimeStatus(conditions=conditions), [api_pb2.RuntimeHandler(name="")]
        return api_pb2.StatusResponse(status=status, runtime_handlers=handlers)

    async def run_pod_sandbox(self, request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
        if request.runtime_handler:
            raise invalid(f"there is no runtime handler {request.runtime_handler!r}")
        sandbox = self._registry.add_sandbox(request.config, request.runtime_handler)
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def pod_sandbox_status(self, request: api_pb2.PodSandboxStatusRequest) -> api_pb2.PodSandboxStatusResponse:
        """Answer PodSandboxStatus. As containerd, a verbose response has the sandbox's configuration as JSON."""
        sandbox = self._registry.sandbox(request.pod_sandbox_id)
        status = api_pb2.PodSandboxStatus(
            id=sandbox.id, metadata=sandbox.config.metadata, state=sandbox.state, created_at=sandbox.created_at,
            labels=sandbox.config.labels, annotations=sandbox.config.annotations, runtime_handler=sandbox.handler,
        )  # fmt: skip
        config = json_format.MessageToDict(sandbox.config, preserving_proto_field_name=True)
        info = {"info": json.dumps({"config": config})} if request.verbose else {}
        return api_pb2.PodSandboxStatusResponse(status=status, info=info)

    async def stop_pod_sandbox(self, request: api_pb2.StopPodSandboxRequest) -> api_pb2.StopPodSandboxResponse:
        """Answer StopPodSandbox: kill its containers."""
        sandbox = self._registry.sandboxes.get(request.pod_sandbox_id)
        if sandbox is not None:
            sandbox.ready = False
            self._registry.save_sandbox(sandbox)
            await asyncio.gather(*(one.stop(0) for one in self._registry.containers_of(sandbox.id)))
        return api_pb2.StopPodSandboxResponse()

    async def remove_pod_sandbox(self, request: api_pb2.RemovePodSandboxRequest) -> api_pb2.RemovePodSandboxResponse:
        """Answer RemovePodSandbox: remove it with its containers."""
        if request.pod_sandbox_id in self._registry.sandboxes:
            await self.stop_pod_sandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=request.pod_sandbox_id))
            for container in self._registry.containers_of(request.pod_sandbox_id):
                await self._remove(container)
            self._registry.forget_sandbox(request.pod_sandbox_id)
        return api_pb2.RemovePodSandboxResponse()

    async def list_pod_sandbox(self, request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse(items=self._registry.list_sandboxes(request.filter))

    async def create_container(self, request: api_pb2.CreateContainerRequest) -> api_pb2.CreateContainerResponse:
        container = self._registry.add_container(request.pod_sandbox_id, request.config)
        return api_pb2.CreateContainerResponse(container_id=container.id)

    async def start_container(self, request: api_pb2.StartContainerRequest) -> api_pb2.StartContainerResponse:
        """Answer StartContainer. A start that has begun continues if the caller disconnects."""
        container = self._registry.container(request.container_id)
        sandbox = self._registry.sandbox(container.sandbox_id)
        hostname = sandbox.config.hostname or sandbox.config.metadata.name
        start = asyncio.ensure_future(container.start(hostname=hostname, namespaced=self._namespaced))
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        await asyncio.shield(start)
        return api_pb2.StartContainerResponse()

    async def stop_container(self, request: api_pb2.StopContainerRequest) -> api_pb2.StopContainerResponse:
        """Answer StopContainer. An unknown ID counts as stopped, because the CRI requires an idempotent call."""
        container = self._registry.containers.get(request.container_id)
        if container is not None:
            await container.stop(request.timeout)
        return api_pb2.StopContainerResponse()

    async def remove_container(self, request: api_pb2.RemoveContainerRequest) -> api_pb2.RemoveContainerResponse:
        """Answer RemoveContainer: a running container is killed first."""
        container = self._registry.containers.get(request.container_id)
        if container is not None:
            await self._remove(container)
        return api_pb2.RemoveContainerResponse()

    async def list_containers(self, request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
        return api_pb2.ListContainersResponse(containers=self._registry.list_containers(request.filter))

    async def container_status(self, request: api_pb2.ContainerStatusRequest) -> api_pb2.ContainerStatusResponse:
        """Answer ContainerStatus. The verbose info contains the PID of the container's process."""
        container = self._registry.container(request.container_id)
        info = container.details() if request.verbose else None
        image = self._registry.images.find(container.image_id)
        return api_pb2.ContainerStatusResponse(status=container.status(image), info=info)

    async def exec_sync(self, request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        container = self._registry.container(request.container_id)
        if not request.cmd:
            raise invalid("the command is empty")
        seconds = float(request.timeout) if request.timeout > 0 else None
        return await container.execute(list(request.cmd), seconds)

    async def _remove(self, container: Container) -> None:
        await container.stop(0)
        if container.id in self._registry.containers:
            self._registry.forget_container(container)
