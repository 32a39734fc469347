"""Serving part of a gRPC service: methods that an object does not have are answered UNIMPLEMENTED by gRPC itself.

The generated servicer classes would answer them, too, but with a logged stack trace for each call.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from cri_stubs import api_pb2
from crrd_localnode.containers.errors import CallError


def handlers(service: str, implementation: object) -> grpc.GenericRpcHandler:
    """Handlers for the methods of a CRI service that `implementation` has.

    Its methods carry the CRI's names in snake case (`run_pod_sandbox`), take the request and return the response, or
    are asynchronous generators of responses; CallError becomes the status of the call.
    """
    descriptor = api_pb2.DESCRIPTOR.services_by_name[service]
    found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in descriptor.methods:
        function = getattr(implementation, snake_case(method.name), None)
        if function is not None:
            found[method.name] = _handler(method, function)
    return grpc.method_handlers_generic_handler(descriptor.full_name, found)


def snake_case(name: str) -> str:
    """`RunPodSandbox` -> `run_pod_sandbox`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _handler(method: MethodDescriptor, function: Callable[[Any], Any]) -> "grpc.RpcMethodHandler[Any, Any]":
    request_class: type[Message] = getattr(api_pb2, method.input_type.name)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_stream(function), request_class.FromString, _serialize)
    return grpc.unary_unary_rpc_method_handler(_unary(function), request_class.FromString, _serialize)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _unary(function: Callable[[Any], Awaitable[Message]]) -> Any:
    async def call(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Message:
        try:
            return await function(request)
        except CallError as error:
            await context.abort(error.code, str(error))

    return call


def _stream(function: Callable[[Any], AsyncIterator[Message]]) -> Any:
    async def call(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[Message]:
        try:
            async for response in function(request):
                yield response
        except CallError as error:
            await context.abort(error.code, str(error))

    return call
