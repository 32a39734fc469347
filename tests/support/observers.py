"""Records of a node that tests can wait on."""

import asyncio
from collections.abc import Iterable

from crrd.core.api.pod import Pod, PodMeta
from crrd.core.api.types import Request
from crrd.kube.informer import Objects
from crrd.node.pods import Pods


class Notes(Pods):
    """Records the calls of watches, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__(lambda _: None, lambda: 0.0)
        self.requests = _Requests(self)
        self.received: list[str] = []
        self._changed = asyncio.Event()

    def note(self, what: str) -> None:
        self.received.append(what)
        self._changed.set()

    async def until(self, *received: str) -> None:
        """Wait until exactly these calls were received."""
        while len(self.received) < len(received):
            self._changed.clear()
            await self._changed.wait()
        assert self.received == list(received)

    def pod_listed(self, pod_key: str, pod: Pod | None) -> None:
        self.note(f"found {pod.key if pod else f'no {pod_key}'}")

    def pod_changed(self, pod: Pod) -> None:
        self.note(f"changed {pod.name}")

    def pod_deleted(self, pod: PodMeta) -> None:
        self.note(f"deleted {pod.name}")

    def pods_listed(self, pods: Iterable[Pod], version: str) -> None:
        assert version
        self.note(f"listed {' '.join(pod.key for pod in pods)}".strip())


class _Requests(Objects[Request]):
    def __init__(self, notes: Notes) -> None:
        super().__init__(lambda *_: None)
        self._notes = notes

    def put(self, obj: Request, *, own: bool = False) -> None:
        self._notes.note(f"changed {obj.name}")

    def delete(self, obj: Request) -> None:
        self._notes.note(f"deleted {obj.name}")

    def replace(self, listed: Iterable[Request], version: str) -> None:
        assert version
        self._notes.note(f"listed {' '.join(request.name for request in listed)}".strip())
