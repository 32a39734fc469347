"""What a failed CRI call means to the rest of the daemon.

gRPC's errors end here: callers of `crrd.cri` see only the errors of `crrd.lib.errors`, with gRPC's own as
their cause. Whether a failure is tried again is not decided here.
"""

import grpc
from grpc.aio import AioRpcError

from crrd.lib.errors import ConfigurationError, CrrdError, RuntimeCallError, RuntimeUnavailableError
from crrd.lib.plain import one_line

VERSION = "Version"

_GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""No answer, or a call that the runtime's side gave up: a call that we cancel raises asyncio.CancelledError instead."""

_NOT_CONNECTED = "failed to connect to all addresses"
"""How gRPC begins a long sentence with the path twice and the system's own words at its end."""


def translate(error: AioRpcError, method: str, endpoint: str) -> CrrdError:
    """The error of `crrd.lib.errors` that a failed call stands for; the caller raises it from `error`.

    Returns:
        RuntimeUnavailableError: nobody listens, or the connection broke.
        ConfigurationError: the one at `endpoint` does not serve CRI v1 at all (UNIMPLEMENTED for Version).
        RuntimeCallError: any other answer, with gRPC's code, and `not_found` for an ID that the runtime does not know.
    """
    code = error.code()
    details = one_line(error.details() or "no details given")
    if code in _GONE:
        if details.startswith(_NOT_CONNECTED):
            details = details.rpartition("error: ")[2]
        return RuntimeUnavailableError(f"the container runtime at {endpoint} cannot be reached ({method}): {details}")
    if code is grpc.StatusCode.UNIMPLEMENTED and method == VERSION:
        return ConfigurationError(f"{endpoint} answers, but does not serve CRI v1: {details}")
    return RuntimeCallError(
        f"{method} failed: {details} ({code.name})", code=code.name, not_found=_is_not_found(code, details)
    )


def not_implemented(error: AioRpcError) -> bool:
    """Whether the runtime does not have the method that was called.

    cri-dockerd and early containerd say so in words only, with UNKNOWN, the code of a plain Go error.
    """
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return True
    return error.code() is grpc.StatusCode.UNKNOWN and "not implemented" in (error.details() or "").lower()


def _is_not_found(code: grpc.StatusCode, details: str) -> bool:
    # cri-dockerd hands on the Docker daemon's own words, with the code of a plain Go error
    return code is grpc.StatusCode.NOT_FOUND or (
        code is grpc.StatusCode.UNKNOWN and "no such container" in details.lower()
    )
