"""Ports for programs that must be told one before they run."""

import random
import socket
from collections.abc import Iterator
from contextlib import suppress

QUIET = range(20000, 30000)
"""Below the ports that Linux gives to connections: one of those may be taken by any client on the machine."""


def free_ports() -> Iterator[int]:
    """Yield ports of loopback on which nothing listens, each once."""
    for port in random.sample(QUIET, len(QUIET)):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            listener.close()
            yield port
