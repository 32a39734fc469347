"""Checks whether this node's kubelet responds. A container that is stopped while kubelet is down stays down.

Kubelet serves /healthz on loopback (--healthz-port, 10248 by default), and the daemon uses the host's network. If
nothing has ever listened on the port, the check has no effect, because the port may be another one or turned off. The
same applies after the port has moved (nothing listens, but the Node is Ready), and after local errors of the check
(no file descriptors or ports left).
"""

import asyncio
from asyncio import open_connection
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from crrd.lib.looptime import loop_time

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 1.0  # Time limit for a check; a healthy kubelet responds within milliseconds
FRESH_SECONDS = 0.5  # Age up to which a result is reused, so that many stops at once make one check
STALE_SECONDS = 30.0
"""Seconds without a check after which a recorded silence is forgotten. A request that waits checks every second."""
MOVED_SECONDS = 120.0
"""Time without a listener before the Node is read. The node controller sets the Node to not ready after 50 s."""
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class KubeletProbe:
    """Implements `ports.Kubelet`. No connection stays open between two checks.

    `port` 0 is never checked. `minor` returns kubelet's minor version, and `ready` whether its Node is Ready.
    """

    def __init__(
        self, port: int, minor: Callable[[], Coroutine[Any, Any, int | None]], ready: Callable[[], Awaitable[bool]]
    ) -> None:
        self.minor = minor
        self._ready = ready
        self._port = port
        self._lock = asyncio.Lock()  # One check, for all pods that wait: it takes PATIENCE_SECONDS at most
        self._there = False
        self._silent_since: float | None = None
        self._learned = float("-inf")  # Time of the last check with a result

    async def silent_since(self) -> float | None:
        """See ports.Kubelet."""
        async with self._lock:
            began = loop_time()
            if began - self._learned > STALE_SECONDS:
                self._silent_since = None
            if self._port and began - self._learned > FRESH_SECONDS and (found := await self._ask()) is not None:
                self._learned = loop_time()
                if found == "answers":
                    self._there, self._silent_since = True, None
                elif self._silent_since is None and (self._there or found == "hangs"):
                    self._silent_since = began
                elif self._silent_since is not None and found == "refuses":
                    await self._find_moved(began - self._silent_since)
            return self._silent_since

    async def _find_moved(self, silent_seconds: float) -> None:
        """Ignore the port from now on if kubelet is running without it."""
        if silent_seconds > MOVED_SECONDS and await self._ready():
            silent = round(silent_seconds)
            log.warning(
                "kubelet is ready, but has no /healthz; not checking it", port=self._port, silent_seconds=silent
            )
            self._there, self._silent_since = False, None

    async def _ask(self) -> str | None:
        """Return `answers` (any response: kubelet is there), `hangs` or `refuses`. None if the check failed locally.

        With IPv6, some distributions have kubelet listen on ::1 alone (k3s).
        """
        found = await self._ask_at("127.0.0.1")
        return found if found != "refuses" else await self._ask_at("::1") or found

    async def _ask_at(self, address: str) -> str | None:
        """Ask without an HTTP client, because that would take longer than all other local work of a stop."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await open_connection(address, self._port)
                writer.write(_QUESTION)
                answered = await reader.read(1)
        except TimeoutError:
            return "hangs"
        except ConnectionError:
            return "refuses"
        except OSError:
            return None
        finally:
            if writer is not None:
                writer.close()
        return "answers" if answered else "refuses"
