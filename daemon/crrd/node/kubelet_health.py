"""Whether this node's kubelet answers. A container that is stopped while kubelet is down stays down.

Kubelet serves /healthz on loopback (--healthz-port, 10248 by default); the daemon is on the host's network. One that
was never there decides nothing: the port may be another one, or switched off. The same goes for one that has moved
meanwhile: nothing listens there any more, but the Node is Ready. Nor does a question that fails on our own side decide
anything, for want of file descriptors or ports.
"""

import asyncio
from asyncio import open_connection
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 1.0  # A healthy kubelet answers within milliseconds
FRESH_SECONDS = 0.5  # How old an answer may be: a burst of stops asks once
STALE_SECONDS = 30.0
"""Seconds without a check after which a recorded silence is forgotten. A request that waits checks every second."""
MOVED_SECONDS = 120.0
"""For how long nothing listens before the Node is asked for. The node controller takes its Ready away after 50 s."""
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class KubeletProbe:
    """Implements `ports.Kubelet`. Nothing stays open between two questions.

    `port` 0 is never asked; `minor` asks for kubelet's version, `ready` whether its Node is Ready.
    """

    def __init__(
        self, port: int, minor: Callable[[], Coroutine[Any, Any, int | None]], ready: Callable[[], Awaitable[bool]]
    ) -> None:
        self.minor = minor
        self._ready = ready
        self._port = port
        self._lock = asyncio.Lock()
        self._there = False
        self._silent_since: float | None = None
        self._learned = float("-inf")  # When a check last had a result

    async def silent_since(self) -> float | None:
        """See ports.Kubelet."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            began = loop.time()
            if began - self._learned > STALE_SECONDS:
                self._silent_since = None
            if self._port and began - self._learned > FRESH_SECONDS and (found := await self._ask()) is not None:
                self._learned = loop.time()
                if found == "answers":
                    self._there, self._silent_since = True, None
                elif self._silent_since is None and (self._there or found == "hangs"):
                    self._silent_since = began
                elif self._silent_since is not None and found == "refuses":
                    await self._find_moved(began - self._silent_since)
            return self._silent_since

    async def _find_moved(self, silent_seconds: float) -> None:
        """Ignore the port from now on if kubelet runs without it."""
        if silent_seconds > MOVED_SECONDS and await self._ready():
            silent = round(silent_seconds)
            log.warning(
                "kubelet is ready, but has no /healthz; not checking it", port=self._port, silent_seconds=silent
            )
            self._there, self._silent_since = False, None

    async def _ask(self) -> str | None:
        """`answers`, whatever it says: kubelet is there; `hangs`, `refuses`; None where it could not be asked.

        By hand: an HTTP client takes longer for it than all else that a stop waits for on this side.
        """
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await open_connection("127.0.0.1", self._port)
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
