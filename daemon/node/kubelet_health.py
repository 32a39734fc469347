"""Whether this node's kubelet answers: a container that is stopped while it does not stays down.

Kubelet serves /healthz on loopback (--healthz-port, 10248 by default); the daemon is on the host's network. One that
was never there decides nothing: the port may be another one, or switched off.
"""

import asyncio

import aiohttp

PATIENCE_SECONDS = 1.0
"""A healthy kubelet answers within milliseconds."""
FRESH_SECONDS = 0.5
"""How old an answer may be: a burst of stops asks once."""


class KubeletProbe:
    """Implements `ports.KubeletHealth`. Nothing is opened before the first question; `close` ends it.

    Args:
        port: where kubelet serves /healthz on 127.0.0.1; 0 for never asking.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/healthz" if port else ""
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()
        self._there = False
        self._silent_since: float | None = None
        self._asked = float("-inf")

    async def silent_since(self) -> float | None:
        """See KubeletHealth."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._url and loop.time() - self._asked > FRESH_SECONDS:
                began = loop.time()
                problem = await self._ask()
                self._asked = loop.time()
                if not problem:
                    self._there, self._silent_since = True, None
                elif self._silent_since is None and (self._there or problem == "hangs"):
                    self._silent_since = began
            return self._silent_since

    async def _ask(self) -> str:
        """Nothing for an answer, whatever it says: kubelet is there; else `hangs` or `refuses`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        try:
            async with (
                asyncio.timeout(PATIENCE_SECONDS),
                self._session.get(self._url, allow_redirects=False) as response,
            ):
                await response.read()
        except TimeoutError:
            return "hangs"
        except (aiohttp.ClientError, OSError):
            return "refuses"
        return ""

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
