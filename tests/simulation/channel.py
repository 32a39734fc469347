"""A gRPC channel in memory that replaces grpc.aio's, for the product's CRI client.

It uses real messages, and gRPC's own errors with their codes.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import grpc
from grpc.aio import EOF, AioRpcError, Metadata, UsageError

if TYPE_CHECKING:
    from tests.simulation.daemon import Life


LATENCY = 0.002
LIFE: ContextVar["Life"] = ContextVar("LIFE")
_NOTHING = Metadata()


def failed(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, _NOTHING, _NOTHING, details)


class Call:
    """One call in progress."""

    def __init__(self, life: "Life", runtime: str, method: str, message: Any) -> None:
        self.life = life
        self.runtime = runtime
        self.method = method
        self.message = message
        self.began = asyncio.get_running_loop().time()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.give_up: Callable[[], None] = lambda: None  # What the runtime does when the caller has gone

    def done(self, outcome: Any) -> None:
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome.SerializeToString())


class Channel:
    """Replaces `grpc.aio.insecure_channel`."""

    def __init__(self, target: str, options: Any = None) -> None:
        self._life = LIFE.get()
        self._runtime = target.rpartition("/")[2].removesuffix(".sock")
        self._closed = False
        self._calls: dict[Call, None] = {}

    def unary_unary(self, path: str, serialize: Any, deserialize: Callable[[bytes], Any]) -> Callable[..., Any]:
        async def run(call: Call) -> Any:
            try:
                return deserialize(await call.future)
            finally:
                self.finish(call)

        return lambda message, timeout=None: run(self._begin(path, message, timeout))

    def unary_stream(self, path: str, serialize: Any, deserialize: Callable[[bytes], Any]) -> Callable[..., Any]:
        def start(message: Any, timeout: float | None = None) -> "OneAnswer":
            return OneAnswer(self, self._begin(path, message, timeout), deserialize)

        return start

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("Channel is closed.")

    def _begin(self, path: str, message: Any, seconds: float | None) -> "Call":
        self._check_open()
        loop = asyncio.get_running_loop()
        call = Call(self._life, self._runtime, path.rpartition("/")[2], message)
        self._calls[call] = None
        if seconds is not None:
            late = failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            call.timer = loop.call_later(seconds, call.done, late)
        self._life.world.cri.accept(call)
        return call

    def finish(self, call: "Call") -> None:
        """The caller does not wait for the response any more."""
        if call not in self._calls:
            return
        del self._calls[call]
        if call.timer is not None:
            call.timer.cancel()
        call.give_up()
        self._life.world.cri.left(call)
        outcome = None
        if call.future.done() and not call.future.cancelled():
            error = call.future.exception()
            outcome = error.code().name if isinstance(error, AioRpcError) else ""
        self._life.world.judge.acted(call, outcome)

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for call in list(self._calls):
            call.future.cancel()


class OneAnswer:
    """A unary call read as a stream: the initial metadata arrives with its only message."""

    def __init__(self, channel: Channel, call: Call, deserialize: Callable[[bytes], Any]) -> None:
        self._channel = channel
        self._call = call
        self._deserialize = deserialize
        self._read = False

    async def initial_metadata(self) -> Metadata:
        await asyncio.wait({self._call.future})
        return _NOTHING

    async def read(self) -> Any:
        if self._read:
            return EOF
        self._read = True
        return self._deserialize(await self._call.future)

    def cancel(self) -> bool:
        self._channel.finish(self._call)
        return True
