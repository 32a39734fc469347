"""File descriptors: how many the process may have, and how many of them are for incoming connections."""

import resource
from contextlib import suppress

_KEPT = 256  # For all else: the API server, the runtime, the status port, files
_LEAST = 16


def raise_limit() -> None:
    """Have as many as the system allows: the soft limit, often 1024, is for programs that use select(2).

    A platform that refuses leaves it as it is.
    """
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room_for_connections(wanted: int) -> int:
    """As many as are wanted, or as the limit leaves room for now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - _KEPT, _LEAST))
