"""One connection to one CRI v1 runtime: the few calls that crrd makes, each with a deadline.

Answers are the CRI's own messages, save where they must be cut (ExecSync); gRPC's errors end here: callers see those of
`crrd.lib.errors`. Reconnecting is gRPC's work, trying a call again the caller's: nothing here calls twice.
"""

import asyncio
import json
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from crrd.lib.memory import give_back
from crrd.lib.plain import one_line

CALL_SECONDS = 10.0  # Deadline of Version and ListContainers, which a healthy runtime answers in milliseconds
STOP_MARGIN_SECONDS = 120.0  # What StopContainer gets beyond its timeout: kubelet's --runtime-request-timeout
EXEC_MARGIN_SECONDS = 2.0
"""What ExecSync gets beyond its timeout. The runtime's own must strike first: containerd kills the command then, but
may leave it running when the call is merely given up."""
MAX_TIMEOUT_SECONDS = 2**31 - 1  # Runtimes count in nanoseconds of 64 bits, where an int64 of seconds overflows
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # The largest answer that is read, as in kubelet (cri/remote, maxMsgSize)
MAX_EXEC_BYTES = 4 * 1024 * 1024
"""The largest answer of a command that is read, gRPC's own default. gRPC holds three copies of an answer for a moment,
but takes nothing in of one that is larger; the runtime may send 16 MiB."""
TAKE_SECONDS = 1.0  # For how long an answer that does not come with its headers keeps the others waiting
LARGE_BYTES = 256 * 1024  # Size of an answer whose memory is given back to the system at once
OUTPUT_BYTES = 64 * 1024  # What is kept of each output stream of a command

OnCall = Callable[[str, str, float], None]
"""Told of every call that ended: method, gRPC's code by name, seconds. Synchronous and quick."""

_SERVICE = "runtime.v1.RuntimeService"
_EXEC_LIMIT = {"name": [{"service": _SERVICE, "method": "ExecSync"}], "maxResponseMessageBytes": MAX_EXEC_BYTES}
_OPTIONS: Sequence[tuple[str, str | int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.service_config", json.dumps({"methodConfig": [_EXEC_LIMIT]})),
    # a restarted runtime is to be found again soon; the defaults are 1 s growing to 120 s
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # gRPC would make the :authority of the socket's path, which Go's HTTP/2 refuses where it has odd characters
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # the probe widens the windows to what could come: answers that nobody reads yet would pile up in here
    ("grpc.http2.bdp_probe", 0),
    # back-off is kept per connection: a client must not inherit that of an earlier one on the same socket
    ("grpc.use_local_subchannel_pool", 1),
)

_Response = TypeVar("_Response")
_RequestMessage = TypeVar("_RequestMessage", bound=Message)
_ResponseMessage = TypeVar("_ResponseMessage", bound=Message)


class CriClient:
    """A CRI v1 runtime behind a unix socket. To be made inside a running event loop; connects at the first call.

    Calls may run in parallel. Every method raises RuntimeUnavailableError where the runtime cannot be reached or the
    connection breaks, and RuntimeCallError for the errors that the runtime answers and for a deadline that passed.
    """

    def __init__(self, endpoint: str, *, on_call: OnCall | None = None) -> None:
        self.endpoint = endpoint  # `unix:///absolute/path`, as `crrd.cri.discovery` gives it
        self._on_call = on_call
        self._closed = False
        path = quote(os.fsencode(endpoint.removeprefix("unix://")))
        self._channel = channel = insecure_channel(f"unix://{path}", options=_OPTIONS)

        # made once: on the way to a stop every millisecond counts
        def unary(
            method: str, request: type[_RequestMessage], response: type[_ResponseMessage]
        ) -> UnaryUnaryMultiCallable[_RequestMessage, _ResponseMessage]:
            return channel.unary_unary(f"/{_SERVICE}/{method}", request.SerializeToString, response.FromString)

        self._version = unary("Version", api_pb2.VersionRequest, api_pb2.VersionResponse)
        self._list = unary("ListContainers", api_pb2.ListContainersRequest, api_pb2.ListContainersResponse)
        self._stop = unary("StopContainer", api_pb2.StopContainerRequest, api_pb2.StopContainerResponse)
        # read as a stream of one message, so that who reads decides when it may come: it can be large
        self._exec: UnaryStreamMultiCallable[api_pb2.ExecSyncRequest, tuple[ExecResult, int]] = channel.unary_stream(
            f"/{_SERVICE}/ExecSync", api_pb2.ExecSyncRequest.SerializeToString, _cut_result
        )
        self._taking_in = asyncio.Lock()  # Of an answer that can be large gRPC holds three copies for a moment

    async def version(self, seconds: float = CALL_SECONDS) -> api_pb2.VersionResponse:
        """What the runtime is. Raises ConfigurationError where the server does not serve CRI v1."""
        return await self._call("Version", self._version, api_pb2.VersionRequest(version="v1"), seconds)

    async def list_containers(self, *, pod_uid: str = "", container_id: str = "") -> Sequence[api_pb2.Container]:
        """The containers of one pod or those that answer to one ID (runtimes complete truncated IDs), exited ones too.

        Labels and annotations are in the answer, so that one call is enough before a stop.
        """
        selector = {LABEL_POD_UID: pod_uid} if pod_uid else None
        with _sendable():
            wanted = api_pb2.ContainerFilter(id=container_id, label_selector=selector)
        request = api_pb2.ListContainersRequest(filter=wanted)
        return (await self._call("ListContainers", self._list, request, CALL_SECONDS)).containers

    async def stop_container(self, container_id: str, seconds: float) -> None:
        """TERM now, KILL after `seconds` (rounded up to whole ones); returns when the container has stopped.

        Raises RuntimeCallError with `not_found` when there is no such container; some runtimes report success then.
        """
        timeout = _whole(seconds)
        with _sendable():
            request = api_pb2.StopContainerRequest(container_id=container_id, timeout=timeout)
        await self._call("StopContainer", self._stop, request, timeout + STOP_MARGIN_SECONDS)

    async def exec_sync(self, container_id: str, command: Sequence[str], seconds: float) -> ExecResult:
        """Run a command in a container and wait for its end, at most `seconds` (rounded up to whole ones, at least 1).

        Any number of commands run side by side; their answers, which hold the whole output, are taken in one by one.

        Raises RuntimeCallError where it could not be started, took too long (code DEADLINE_EXCEEDED), or said more than
        the runtime can send or MAX_EXEC_BYTES (code RESOURCE_EXHAUSTED: it ran, its result is unknown).
        """
        timeout = max(1, _whole(seconds))  # 0 would mean no limit
        with _sendable():
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
            await call.initial_metadata()  # comes with the answer, as a rule
            async with self._taking_in:
                reading = asyncio.ensure_future(call.read())
                await asyncio.wait((reading,), timeout=TAKE_SECONDS)
            answer = await reading
        finally:
            call.cancel()
            if reading is not None:
                reading.cancel()
        return answer if isinstance(answer, tuple) else None

    async def close(self) -> None:
        """Give up the connection. Calls under way end with RuntimeUnavailableError."""
        self._closed = True
        await self._channel.close()

    async def _call(
        self, method: str, call: Callable[..., Awaitable[_Response | None]], request: Message, seconds: float
    ) -> _Response:
        loop = asyncio.get_running_loop()
        started = loop.time()
        code = "CANCELLED"
        try:
            response = await call(request, timeout=seconds)
            code = "OK"
        except AioRpcError as error:
            code = error.code().name
            raise translate(error, method, self.endpoint) from error
        except (UsageError, asyncio.CancelledError) as error:
            # gRPC reports a call that `close` cancelled as one whose own task is cancelled
            if isinstance(error, asyncio.CancelledError):
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
            raise RuntimeUnavailableError(f"the connection to {self.endpoint} was closed") from error
        finally:
            if self._on_call is not None:
                self._on_call(method, code, loop.time() - started)
        if response is None:  # what grpc.aio makes of an answer that cannot be decoded
            raise RuntimeCallError(f"{method} failed: the response is not a CRI v1 message (INTERNAL)", code="INTERNAL")
        return response


@contextmanager
def _sendable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # text with lone surrogates, which JSON can carry and protobuf cannot
        reason = f"cannot send the call to the container runtime, because its text is not valid UTF-8: {error}"
        raise RuntimeCallError(reason, code="INVALID_ARGUMENT") from error


def _whole(seconds: float) -> int:
    # milliseconds first: 30 - 27.9 is a little more than 2.1, and must not make 2 s of 2.0000001 into 3
    return max(0, min(MAX_TIMEOUT_SECONDS, math.ceil(round(seconds, 3))))


def _cut_result(data: bytes) -> tuple[ExecResult, int]:
    """Decode an ExecSyncResponse, keep the beginning of its output, and tell its size; the rest is free afterwards."""
    response = api_pb2.ExecSyncResponse.FromString(data)
    kept = ExecResult(response.exit_code, response.stdout[:OUTPUT_BYTES], response.stderr[:OUTPUT_BYTES])
    return kept, len(data)


_NOT_CONNECTED = "failed to connect to all addresses"
"""How gRPC begins a long sentence with the path twice and the system's own words at its end."""


def translate(error: AioRpcError, method: str, endpoint: str) -> CrrdError:
    """The error that a failed call stands for; the caller raises it from `error`.

    Returns:
        RuntimeUnavailableError: nobody listens, or the connection broke.
        ConfigurationError: the one at `endpoint` does not serve CRI v1 at all (UNIMPLEMENTED for Version).
        RuntimeCallError: any other answer, with gRPC's code, and `not_found` for an ID that the runtime does not know.
    """
    code = error.code()
    details = one_line(error.details() or "no details given")
    # CANCELLED: the runtime's side gave the call up; a call that we cancel raises asyncio.CancelledError instead
    if code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED):
        if details.startswith(_NOT_CONNECTED):
            details = details.rpartition("error: ")[2]
        return RuntimeUnavailableError(f"the container runtime at {endpoint} cannot be reached ({method}): {details}")
    if code is StatusCode.UNIMPLEMENTED and method == "Version":
        return ConfigurationError(f"{endpoint} answers, but does not serve CRI v1: {details}")
    # cri-dockerd hands on the Docker daemon's own words, with the code of a plain Go error
    gone = code is StatusCode.UNKNOWN and "no such container" in details.lower()
    not_found = gone or code is StatusCode.NOT_FOUND
    return RuntimeCallError(f"{method} failed: {details} ({code.name})", code=code.name, not_found=not_found)
