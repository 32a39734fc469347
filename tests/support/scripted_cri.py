"""A CRI v1 server with scripted containers on a real unix socket, for responses that no healthy runtime gives.

It runs no containers. Methods that a test removes from `methods` are answered with UNIMPLEMENTED, and `fail` makes one
return an error.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from cri_stubs import api_pb2

Context = ServicerContext[Any, Any]

SERVICES = ("runtime.v1.RuntimeService", "runtime.v1.ImageService")
CALLS: dict[str, type[Message]] = {
    "Version": api_pb2.VersionRequest,
    "ListContainers": api_pb2.ListContainersRequest,
    "StopContainer": api_pb2.StopContainerRequest,
    "ExecSync": api_pb2.ExecSyncRequest,
    "Status": api_pb2.StatusRequest,
    "ImageStatus": api_pb2.ImageStatusRequest,
    "ListPodSandbox": api_pb2.ListPodSandboxRequest,
    "PodSandboxStatus": api_pb2.PodSandboxStatusRequest,
    "RunPodSandbox": api_pb2.RunPodSandboxRequest,
    "RemovePodSandbox": api_pb2.RemovePodSandboxRequest,
}


def labels(pod_uid: str, name: str, pod: str = "web-0", namespace: str = "shop") -> dict[str, str]:
    """Return kubelet's labels of a container."""
    return {
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": pod_uid,
        "io.kubernetes.container.name": name,
    }


@dataclass
class ScriptedRuntime:
    """The server's responses, which can be changed at any time, and the calls it has received."""

    name: str = "scripted"
    version: str = "1.0"
    containers: list[api_pb2.ContainerStatus] = field(default_factory=list)
    methods: set[str] = field(default_factory=lambda: set(CALLS))
    fail: dict[str, tuple[grpc.StatusCode, str]] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)  # Methods that never return
    headers_first: bool = False  # Whether the headers of a response are sent before it
    raw: dict[str, bytes] = field(default_factory=dict)  # Methods that return these bytes
    ignore_filters: bool = False
    images: set[str] = field(default_factory=set)
    conditions: dict[str, tuple[bool, str, str]] = field(  # With the reason and the message
        default_factory=lambda: dict.fromkeys(("RuntimeReady", "NetworkReady"), (True, "", ""))
    )
    sandboxes: dict[str, api_pb2.PodSandboxConfig] = field(default_factory=dict)  # ID -> as it was made
    executed: api_pb2.ExecSyncResponse = field(default_factory=api_pb2.ExecSyncResponse)
    asked: list[tuple[str, Message]] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # Set when a call that hangs has arrived

    def add(self, container_id: str, pod_uid: str = "uid-1", name: str = "app", **rest: Any) -> api_pb2.ContainerStatus:
        """Add a running container. `rest` are further fields of its ContainerStatus."""
        status = api_pb2.ContainerStatus(
            id=container_id, state=api_pb2.CONTAINER_RUNNING, labels=labels(pod_uid, name), **rest
        )
        self.containers.append(status)
        return status

    def requests(self, method: str) -> list[Any]:
        """Return the requests of one method, in order."""
        return [request for name, request in self.asked if name == method]

    async def handle(self, method: str, request: Message, context: Context) -> Message | bytes:
        """Answer one call."""
        self.asked.append((method, request))
        self.deadlines.append(context.time_remaining())
        if self.headers_first:
            await context.send_initial_metadata(())
        if method in self.hang:
            self.arrived.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if method in self.fail:
            code, details = self.fail[method]
            await context.abort(code, details)
        if method in self.raw:
            return self.raw[method]
        answers: dict[str, Callable[[Any], Message | None]] = {
            "Version": lambda _: api_pb2.VersionResponse(runtime_name=self.name, runtime_version=self.version),
            "ListContainers": self._list,
            "StopContainer": self._stop,
            "ExecSync": lambda _: self.executed,
            "ImageStatus": self._image,
            "Status": self._status,
            "ListPodSandbox": self._sandboxes,
            "PodSandboxStatus": self._sandbox,
            "RunPodSandbox": self._run,
            "RemovePodSandbox": self._remove,
        }
        answer = answers[method](request)
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such container here")
        return answer

    def _status(self, _: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        conditions = [
            api_pb2.RuntimeCondition(type=name, status=status, reason=reason, message=message)
            for name, (status, reason, message) in self.conditions.items()
        ]
        return api_pb2.StatusResponse(status=api_pb2.RuntimeStatus(conditions=conditions))

    def _list(self, request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
        wanted = request.filter
        found = [
            api_pb2.Container(
                id=status.id,
                state=status.state,
                metadata=status.metadata,
                created_at=status.created_at,
                labels=status.labels,
                annotations=status.annotations,
            )
            for status in self.containers
            if self.ignore_filters
            or (
                status.id.startswith(wanted.id)  # runtimes complete truncated IDs
                and all(status.labels.get(key) == value for key, value in wanted.label_selector.items())
            )
        ]
        return api_pb2.ListContainersResponse(containers=found)

    def _image(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        known = request.image.image in self.images
        return api_pb2.ImageStatusResponse(image=api_pb2.Image(id="sha256:1" if known else ""))

    def _sandboxes(self, request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        wanted = request.filter.label_selector.items()
        found = [
            api_pb2.PodSandbox(id=name, metadata=config.metadata, labels=config.labels)
            for name, config in self.sandboxes.items()
            if self.ignore_filters or wanted <= config.labels.items()
        ]
        return api_pb2.ListPodSandboxResponse(items=found)

    def _sandbox(self, request: api_pb2.PodSandboxStatusRequest) -> api_pb2.PodSandboxStatusResponse | None:
        """As containerd, which tells the configuration in JSON."""
        if (config := self.sandboxes.get(request.pod_sandbox_id)) is None:
            return None
        told = {"config": {"linux": {"cgroup_parent": config.linux.cgroup_parent}}} if request.verbose else {}
        return api_pb2.PodSandboxStatusResponse(info={"info": json.dumps(told)})

    def _run(self, request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
        name = f"sandbox-{request.config.metadata.attempt}"
        self.sandboxes[name] = request.config
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id=name)

    def _remove(self, request: api_pb2.RemovePodSandboxRequest) -> api_pb2.RemovePodSandboxResponse | None:
        found = self.sandboxes.pop(request.pod_sandbox_id, None)
        return None if found is None else api_pb2.RemovePodSandboxResponse()

    def _find(self, container_id: str) -> api_pb2.ContainerStatus | None:
        return next((status for status in self.containers if status.id.startswith(container_id)), None)

    def _stop(self, request: api_pb2.StopContainerRequest) -> api_pb2.StopContainerResponse | None:
        status = self._find(request.container_id)
        if status is None:
            return None
        status.state = api_pb2.CONTAINER_EXITED
        return api_pb2.StopContainerResponse()


def _serialize(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


@asynccontextmanager
async def serving(runtime: ScriptedRuntime, path: Path) -> AsyncIterator[str]:
    """Serve on the socket until the block ends, and yield the endpoint. The end aborts all calls, like a crash."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in runtime.methods & set(CALLS):

        async def behave(request: Message, context: Context, method: str = method) -> Message | bytes:
            return await runtime.handle(method, request, context)

        handlers[method] = grpc.unary_unary_rpc_method_handler(
            behave,
            request_deserializer=CALLS[method].FromString,
            response_serializer=_serialize,
        )
    generic = tuple(grpc.method_handlers_generic_handler(each, handlers) for each in SERVICES)
    async with served(generic, path) as endpoint:
        yield endpoint


@asynccontextmanager
async def served(handlers: Sequence[grpc.GenericRpcHandler], path: Path) -> AsyncIterator[str]:
    """Serve gRPC on a socket of this path. Yield its endpoint."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    try:
        yield f"unix://{path}"
    finally:
        await server.stop(None)
