"""A proxy in front of a runtime's socket: calls pass it, but for the methods that a test lets fail or hang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc.aio import AioRpcError, Channel, ServicerContext

from tests.support.scripted_cri import served


@dataclass
class Faults:
    """The methods that do not work, for example ImageStatus. Both can be changed at any time."""

    fails: set[str] = field(default_factory=set)
    hangs: set[str] = field(default_factory=set)


class _Forward(grpc.GenericRpcHandler):
    def __init__(self, channel: Channel, faults: Faults) -> None:
        self._channel, self._faults = channel, faults

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method
        method = path.rpartition("/")[2]

        async def behave(request: bytes, context: ServicerContext[bytes, bytes]) -> bytes:
            if method in self._faults.hangs:
                await asyncio.Event().wait()
            if method in self._faults.fails:
                await context.abort(grpc.StatusCode.UNKNOWN, f"{method} does not work")
            try:
                call: Any = self._channel.unary_unary(path)
                return bytes(await call(request, timeout=context.time_remaining()))
            except AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
                raise

        return grpc.unary_unary_rpc_method_handler(behave)


@asynccontextmanager
async def cri_proxy(endpoint: str, path: Path, faults: Faults) -> AsyncIterator[str]:
    """Serve on this path what the runtime at the endpoint answers. Yield the proxy's endpoint."""
    async with (
        grpc.aio.insecure_channel(endpoint, options=[("grpc.default_authority", "localhost")]) as channel,
        served((_Forward(channel, faults),), path) as own,
    ):
        yield own
