"""Which conditions of a runtime are false, without which kubelet starts no container (CRI Status)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from cri_stubs import api_pb2
from crrd.cri import convert
from crrd.lib.errors import CrrdError
from crrd.lib.looptime import loop_time

PATIENCE_SECONDS = 1.0  # Time limit for a call; a healthy runtime answers within milliseconds
FRESH_SECONDS = 0.5  # Age up to which an answer is reused, so that many stops at once make one call


class Readiness:
    """The conditions of one runtime, asked for with its client's `status`."""

    def __init__(self, status: Callable[[], Awaitable[api_pb2.StatusResponse]]) -> None:
        self._status = status
        self._lock = asyncio.Lock()  # One call, for all pods that wait: it takes PATIENCE_SECONDS at most
        self._unready: Mapping[str, str] = {}
        self._asked = float("-inf")

    async def false_conditions(self) -> Mapping[str, str]:
        """Return the conditions that are false, and why. Without an answer none is: other calls say what is wrong."""
        async with self._lock:
            if loop_time() - self._asked >= FRESH_SECONDS:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        self._unready = convert.unready(await self._status())
                except (CrrdError, TimeoutError):
                    self._unready = {}
                self._asked = loop_time()
            return self._unready
