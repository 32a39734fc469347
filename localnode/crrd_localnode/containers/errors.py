"""Errors of the local runtime, with the gRPC status that a client gets."""

import grpc


class CallError(Exception):
    """A call of the CRI that cannot be answered."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def not_found(kind: str, name: str) -> CallError:
    """There is no such thing."""
    return CallError(grpc.StatusCode.NOT_FOUND, f"{kind} {name!r} not found")


def invalid(message: str) -> CallError:
    """The request makes no sense."""
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)


def wrong_state(message: str) -> CallError:
    """The request makes no sense now."""
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)
