"""Whether this node's kubelet answers: a container that is stopped while it does not stays down.

Kubelet serves /healthz on loopback (--healthz-port, 10248 by default); the daemon is on the host's network. One that
was never there decides nothing: the port may be another one, or switched off.
"""

import asyncio
from asyncio import open_connection

PATIENCE_SECONDS = 1.0
"""A healthy kubelet answers within milliseconds."""
FRESH_SECONDS = 0.5
"""How old an answer may be: a burst of stops asks once."""
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class KubeletProbe:
    """Implements `ports.KubeletHealth`. Nothing stays open between two questions.

    Args:
        port: where kubelet serves /healthz on 127.0.0.1; 0 for never asking.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = asyncio.Lock()
        self._there = False
        self._silent_since: float | None = None
        self._asked = float("-inf")

    async def silent_since(self) -> float | None:
        """See KubeletHealth."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._port and loop.time() - self._asked > FRESH_SECONDS:
                began = loop.time()
                problem = await self._ask()
                self._asked = loop.time()
                if not problem:
                    self._there, self._silent_since = True, None
                elif self._silent_since is None and (self._there or problem == "hangs"):
                    self._silent_since = began
            return self._silent_since

    async def _ask(self) -> str:
        """Nothing for an answer, whatever it says: kubelet is there; else `hangs` or `refuses`.

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
        except OSError:
            return "refuses"
        finally:
            if writer is not None:
                writer.close()
        return "" if answered else "refuses"
