"""One connection to one CRI v1 runtime: the few calls that crrd makes, each with a deadline.

Results are the CRI's own messages, except for ExecSync, whose output is cut. gRPC's errors are translated to those of
`crrd.lib.errors`. gRPC reconnects by itself. Nothing here retries a call; the callers do.
"""

import asyncio
import json
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote

from google.protobuf.message import Message
from grpc import StatusCode
from grpc.aio import AioRpcError, UnaryStreamMultiCallable, UnaryUnaryMultiCallable, UsageError, insecure_channel

from cri_stubs import api_pb2
from crrd.core.recreate.observation import ExecResult
from crrd.kubelet.labels import LABEL_POD_UID
from crrd.lib.errors import ConfigurationError, CrrdError, RuntimeCallError, RuntimeUnavailableError
from crrd.lib.looptime import loop_time
from crrd.lib.memory import give_back
from crrd.lib.plain import one_line

CALL_SECONDS = 10.0  # Deadline of Version and ListContainers, which a healthy runtime answers in milliseconds
SANDBOX_SECONDS = 120.0  # Deadline of RunPodSandbox and RemovePodSandbox: a runtime with much work is slow
STOP_MARGIN_SECONDS = 120.0  # Deadline of StopContainer beyond its timeout, as kubelet's --runtime-request-timeout
EXEC_MARGIN_SECONDS = 2.0
"""Deadline of ExecSync beyond its timeout. The runtime's own timeout must come first, because containerd kills the
command then, but may leave it running if the client cancels the call."""
MAX_TIMEOUT_SECONDS = 2**31 - 1  # Runtimes count in 64-bit nanoseconds, which a large int64 of seconds would overflow
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # The largest response that is read, as in kubelet (cri/remote, maxMsgSize)
MAX_EXEC_BYTES = 4 * 1024 * 1024
"""The largest ExecSync response that is read, gRPC's own default. gRPC holds three copies of a response for a moment,
but does not read one above this limit. The runtime may send 16 MiB."""
EXEC_RESPONSE_SECONDS = 1.0  # How long a response whose body comes after its headers may delay others
LARGE_BYTES = 256 * 1024  # After a response of this size, free memory is returned to the system at once
OUTPUT_BYTES = 64 * 1024  # How much of each output stream of a command is kept

OnCall = Callable[[str, str, float], None]
"""Called after each call with its method, the name of gRPC's status code, and its seconds. Must be quick."""

_SERVICE, _IMAGE_SERVICE = "runtime.v1.RuntimeService", "runtime.v1.ImageService"
_EXEC_LIMIT = {"name": [{"service": _SERVICE, "method": "ExecSync"}], "maxResponseMessageBytes": MAX_EXEC_BYTES}
_OPTIONS: Sequence[tuple[str, str | int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.service_config", json.dumps({"methodConfig": [_EXEC_LIMIT]})),
    # reconnect soon after a restart of the runtime; the defaults are 1 s growing to 120 s
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # gRPC would use the socket's path as :authority, which Go's HTTP/2 rejects if it has unusual characters
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # this probe enlarges the receive windows, so that unread responses would fill our memory
    ("grpc.http2.bdp_probe", 0),
    # do not share connections, so that a client does not inherit the back-off of an earlier one on the same socket
    ("grpc.use_local_subchannel_pool", 1),
)

_Response = TypeVar("_Response")
_RequestMessage = TypeVar("_RequestMessage", bound=Message)
_ResponseMessage = TypeVar("_ResponseMessage", bound=Message)


class CriClient:
    """A CRI v1 runtime behind a unix socket. Create it inside a running event loop; it connects at the first call.

    Calls may run in parallel. Every method raises RuntimeUnavailableError if the runtime cannot be reached or the
    connection breaks, and RuntimeCallError if the runtime returns an error or the deadline passes.
    """

    def __init__(self, endpoint: str, *, on_call: OnCall | None = None) -> None:
        self.endpoint = endpoint  # `unix:///absolute/path`, as returned by `crrd.cri.discovery`
        self._on_call = on_call
        self._closed = False
        path = quote(os.fsencode(endpoint.removeprefix("unix://")))
        self._channel = channel = insecure_channel(f"unix://{path}", options=_OPTIONS)

        # made once, because every millisecond counts before a stop
        def unary(
            method: str, request: type[_RequestMessage], response: type[_ResponseMessage], service: str = _SERVICE
        ) -> UnaryUnaryMultiCallable[_RequestMessage, _ResponseMessage]:
            return channel.unary_unary(f"/{service}/{method}", request.SerializeToString, response.FromString)

        self._version = unary("Version", api_pb2.VersionRequest, api_pb2.VersionResponse)
        self._status = unary("Status", api_pb2.StatusRequest, api_pb2.StatusResponse)
        self._list = unary("ListContainers", api_pb2.ListContainersRequest, api_pb2.ListContainersResponse)
        self._image = unary("ImageStatus", api_pb2.ImageStatusRequest, api_pb2.ImageStatusResponse, _IMAGE_SERVICE)
        self._stop = unary("StopContainer", api_pb2.StopContainerRequest, api_pb2.StopContainerResponse)
        self._sandboxes = unary("ListPodSandbox", api_pb2.ListPodSandboxRequest, api_pb2.ListPodSandboxResponse)
        self._sandbox = unary("PodSandboxStatus", api_pb2.PodSandboxStatusRequest, api_pb2.PodSandboxStatusResponse)
        self._run_sandbox = unary("RunPodSandbox", api_pb2.RunPodSandboxRequest, api_pb2.RunPodSandboxResponse)
        self._remove = unary("RemovePodSandbox", api_pb2.RemovePodSandboxRequest, api_pb2.RemovePodSandboxResponse)
        # a stream of one message, so that we decide when to receive the response, which can be large
        self._exec: UnaryStreamMultiCallable[api_pb2.ExecSyncRequest, tuple[ExecResult, int]] = channel.unary_stream(
            f"/{_SERVICE}/ExecSync", api_pb2.ExecSyncRequest.SerializeToString, _cut_result
        )
        # One ExecSync response at a time, because gRPC holds three copies of it. A slow one delays the next one by
        # EXEC_RESPONSE_SECONDS at most.
        self._exec_response_lock = asyncio.Lock()

    async def version(self, seconds: float = CALL_SECONDS) -> api_pb2.VersionResponse:
        """Return the runtime's name and version. Raises ConfigurationError if it does not serve CRI v1."""
        return await self._call("Version", self._version, api_pb2.VersionRequest(version="v1"), seconds)

    async def status(self) -> api_pb2.StatusResponse:
        """Return the runtime's conditions."""
        return await self._call("Status", self._status, api_pb2.StatusRequest(), CALL_SECONDS)

    async def list_containers(self, *, pod_uid: str = "", container_id: str = "") -> Sequence[api_pb2.Container]:
        """Return the containers of one pod or with one ID, exited ones too.

        A runtime may also find a container by the beginning of its ID. The response has labels and annotations, so one
        call is enough before a stop.
        """
        selector = {LABEL_POD_UID: pod_uid} if pod_uid else None
        with _translating_encoding_errors():
            wanted = api_pb2.ContainerFilter(id=container_id, label_selector=selector)
        request = api_pb2.ListContainersRequest(filter=wanted)
        return (await self._call("ListContainers", self._list, request, CALL_SECONDS)).containers

    async def has_image(self, image: str) -> bool:
        """Whether the runtime has an image, by the name in a pod's spec. Kubelet asks the same before a pull."""
        with _translating_encoding_errors():
            request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=image))
        return bool((await self._call("ImageStatus", self._image, request, CALL_SECONDS)).image.id)

    async def stop_container(self, container_id: str, seconds: float) -> None:
        """SIGTERM now, SIGKILL after `seconds` (rounded up to whole ones); returns when the container has stopped.

        Raises RuntimeCallError with `not_found` if there is no such container; some runtimes report success instead.
        """
        timeout = _whole(seconds)
        with _translating_encoding_errors():
            request = api_pb2.StopContainerRequest(container_id=container_id, timeout=timeout)
        await self._call("StopContainer", self._stop, request, timeout + STOP_MARGIN_SECONDS)

    async def list_sandboxes(self, labels: Mapping[str, str]) -> Sequence[api_pb2.PodSandbox]:
        """Return the sandboxes with these labels, also those that are not ready."""
        wanted = api_pb2.PodSandboxFilter(label_selector=labels)
        request = api_pb2.ListPodSandboxRequest(filter=wanted)
        return (await self._call("ListPodSandbox", self._sandboxes, request, CALL_SECONDS)).items

    async def sandbox_info(self, sandbox_id: str) -> Mapping[str, str]:
        """Return what the runtime tells about a sandbox in its own words (a verbose PodSandboxStatus)."""
        request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return (await self._call("PodSandboxStatus", self._sandbox, request, CALL_SECONDS)).info

    async def run_sandbox(self, config: api_pb2.PodSandboxConfig) -> None:
        """Create and start a sandbox. If one with the same metadata exists, containerd fails, and CRI-O makes none."""
        request = api_pb2.RunPodSandboxRequest(config=config)
        await self._call("RunPodSandbox", self._run_sandbox, request, SANDBOX_SECONDS)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Stop and remove a sandbox. Succeeds if there is none with this ID."""
        request = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("RemovePodSandbox", self._remove, request, SANDBOX_SECONDS)

    async def exec_sync(self, container_id: str, command: Sequence[str], seconds: float) -> ExecResult:
        """Run a command in a container and wait for its end, at most `seconds` (rounded up to whole ones, at least 1).

        Any number of commands run in parallel. Their responses, with the whole output, are received one by one.

        Raises RuntimeCallError if the command could not be started, took too long (code DEADLINE_EXCEEDED), or printed
        more than the runtime can send or MAX_EXEC_BYTES (code RESOURCE_EXHAUSTED: it ran, but its result is unknown).
        """
        timeout = max(1, _whole(seconds))  # 0 would mean no limit
        with _translating_encoding_errors():
            request = api_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout)
        result, size = await self._call("ExecSync", self._read_answer, request, timeout + EXEC_MARGIN_SECONDS)
        if size > LARGE_BYTES:
            give_back()
        return result

    async def _read_answer(
        self,
        request: api_pb2.ExecSyncRequest,
        timeout: float,  # noqa: ASYNC109 - gRPC's own deadline
    ) -> tuple[ExecResult, int] | None:
        call = self._exec(request, timeout=timeout)
        reading: asyncio.Future[object] | None = None
        try:
            await call.initial_metadata()  # usually comes together with the response
            async with self._exec_response_lock:
                reading = asyncio.ensure_future(call.read())
                await asyncio.wait((reading,), timeout=EXEC_RESPONSE_SECONDS)
            answer = await reading
        finally:
            call.cancel()
            if reading is not None:
                reading.cancel()
        return answer if isinstance(answer, tuple) else None

    async def close(self) -> None:
        """Close the connection. Calls under way end with RuntimeUnavailableError."""
        self._closed = True
        await self._channel.close()

    async def _call(
        self, method: str, call: Callable[..., Awaitable[_Response | None]], request: Message, seconds: float
    ) -> _Response:
        started = loop_time()
        code = "CANCELLED"
        try:
            response = await call(request, timeout=seconds)
            code = "OK"
        except AioRpcError as error:
            code = error.code().name
            raise translate(error, method, self.endpoint) from error
        except (UsageError, asyncio.CancelledError) as error:
            # if `close` cancelled the call, gRPC raises CancelledError, as if our own task were cancelled
            if isinstance(error, asyncio.CancelledError):
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
            raise RuntimeUnavailableError(f"the connection to {self.endpoint} was closed") from error
        finally:
            if self._on_call is not None:
                self._on_call(method, code, loop_time() - started)
        if response is None:  # grpc.aio returns None if it cannot decode the response
            raise RuntimeCallError(f"{method} failed: the response is not a CRI v1 message (INTERNAL)", code="INTERNAL")
        return response


@contextmanager
def _translating_encoding_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # text with lone surrogates, which JSON allows and protobuf does not
        reason = f"cannot send the call to the container runtime, because its text is not valid UTF-8: {error}"
        raise RuntimeCallError(reason, code="INVALID_ARGUMENT") from error


def _whole(seconds: float) -> int:
    # round to milliseconds first, so that 2.0000001 s does not become 3 s
    return max(0, min(MAX_TIMEOUT_SECONDS, math.ceil(round(seconds, 3))))


def _cut_result(data: bytes) -> tuple[ExecResult, int]:
    """Decode an ExecSyncResponse. Return it with only the beginning of its output, and its size in bytes."""
    response = api_pb2.ExecSyncResponse.FromString(data)
    kept = ExecResult(response.exit_code, response.stdout[:OUTPUT_BYTES], response.stderr[:OUTPUT_BYTES])
    return kept, len(data)


_NOT_CONNECTED = "failed to connect to all addresses"
"""The beginning of a long message of gRPC, which has the path twice and the system's own error at its end."""


def translate(error: AioRpcError, method: str, endpoint: str) -> CrrdError:
    """Return our error for a failed call; the caller raises it from `error`.

    Returns:
        RuntimeUnavailableError: no process listens, or the connection broke.
        ConfigurationError: the server at `endpoint` does not serve CRI v1 (UNIMPLEMENTED for Version).
        RuntimeCallError: any other error, with gRPC's code, and `not_found` if the runtime does not know the ID.
    """
    code = error.code()
    details = one_line(error.details() or "no details given")
    # CANCELLED: the runtime cancelled the call; if we cancel a call, it raises asyncio.CancelledError instead
    if code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED):
        if details.startswith(_NOT_CONNECTED):
            details = details.rpartition("error: ")[2]
        return RuntimeUnavailableError(f"the container runtime at {endpoint} cannot be reached ({method}): {details}")
    if code is StatusCode.UNIMPLEMENTED and method == "Version":
        return ConfigurationError(f"{endpoint} answers, but does not serve CRI v1: {details}")
    # cri-dockerd passes on the Docker daemon's own message, with the code of a plain Go error
    gone = code is StatusCode.UNKNOWN and "no such container" in details.lower()
    not_found = gone or code is StatusCode.NOT_FOUND
    return RuntimeCallError(f"{method} failed: {details} ({code.name})", code=code.name, not_found=not_found)
