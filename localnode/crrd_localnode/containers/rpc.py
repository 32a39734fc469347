"""Serves part of a gRPC service. gRPC itself answers UNIMPLEMENTED for methods that the object does not have.

The generated servicer classes would do that too, but log a stack trace for each call.
"""

import re
from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from cri_stubs import api_pb2


class CallError(Exception):
    """An error of a CRI call. `code` is the gRPC status for the client."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def not_found(kind: str, name: str) -> CallError:
    """The object does not exist."""
    return CallError(grpc.StatusCode.NOT_FOUND, f"{kind} {name!r} not found")


def invalid(message: str) -> CallError:
    """The request is invalid."""
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)


def wrong_state(message: str) -> CallError:
    """The request is invalid in the current state."""
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)


def handlers(service: str, implementation: object) -> grpc.GenericRpcHandler:
    """Return handlers for the methods of a CRI service that `implementation` has.

    Its methods have the CRI's names in snake case (`run_pod_sandbox`). They take the request and return the response.
    A CallError becomes the call's status.
    """
    descriptor = api_pb2.DESCRIPTOR.services_by_name[service]
    found = {
        method.name: _handler(method, function)
        for method in descriptor.methods
        if (function := getattr(implementation, snake_case(method.name), None)) is not None
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, found)


def snake_case(name: str) -> str:
    """`RunPodSandbox` -> `run_pod_sandbox`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _handler(method: MethodDescriptor, function: Callable[[Any], Any]) -> "grpc.RpcMethodHandler[Any, Any]":
    read: Callable[[bytes], Message] = getattr(api_pb2, method.input_type.name).FromString
    return grpc.unary_unary_rpc_method_handler(_unary(function), read, methodcaller("SerializeToString"))


def _unary(function: Callable[[Any], Awaitable[Message]]) -> Any:
    async def call(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Message:
        try:
            return await function(request)
        except CallError as error:
            await context.abort(error.code, str(error))

    return call
