"""File descriptors: the process' limit, and how many of them incoming connections may use."""

import resource
from contextlib import suppress

_RESERVED = 256  # Reserved for everything else: the API server, the runtime, the status port, files
_MINIMUM = 16


def raise_limit() -> None:
    """Raise the soft limit, often 1024, to the hard limit. The low soft limit is for programs that use select(2).

    If the platform refuses, the limit stays.
    """
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room_for_connections(wanted: int) -> int:
    """Return the number of connections that the limit allows now, at most `wanted`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - _RESERVED, _MINIMUM))
