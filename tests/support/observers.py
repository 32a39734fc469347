"""An Observer that tests can wait on."""

import asyncio
from collections.abc import Iterable

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request


class Notes:
    """An Observer that records its calls."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self._changed = asyncio.Event()

    def _note(self, what: str) -> None:
        self.received.append(what)
        self._changed.set()

    async def until(self, *received: str) -> None:
        """Wait until exactly these calls were received."""
        while len(self.received) < len(received):
            self._changed.clear()
            await self._changed.wait()
        assert self.received == list(received)

    def request_changed(self, request: Request) -> None:
        self._note(f"changed {request.name}")

    def request_deleted(self, request: Request) -> None:
        self._note(f"deleted {request.name}")

    def expect_requests(self) -> None:
        pass

    def requests_listed(self, requests: Iterable[Request], version: str) -> None:
        assert version
        self._note(f"listed {' '.join(request.name for request in requests)}".strip())

    def pod_listed(self, pod_key: str, pod: Pod | None) -> None:
        self._note(f"found {pod.key if pod else f'no {pod_key}'}")

    def pod_changed(self, pod: Pod) -> None:
        self._note(f"changed {pod.name}")

    def pod_deleted(self, pod: Pod) -> None:
        self._note(f"deleted {pod.name}")

    def pods_listed(self, pods: Iterable[Pod], version: str) -> None:
        assert version
        self._note(f"listed {' '.join(pod.key for pod in pods)}".strip())
