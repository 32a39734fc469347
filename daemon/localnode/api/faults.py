"""Faults on purpose: answers that fail, answers that are lost, a server that stalls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from daemon.localnode.api.errors import ApiError
from daemon.localnode.api.routing import Call

Match = Callable[[Call], bool]
_MESSAGES = {
    429: "The apiserver is too busy to serve the request, please try again",
    500: "Internal error occurred: a fault that was asked for",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted",
}


@dataclass(slots=True)
class Fault:
    """What becomes of the next matching requests."""

    left: int
    status: int | None
    """HTTP status of the answer; None to cut the connection instead of answering."""
    retry_after: int | None = None
    match: Match | None = None
    after: bool = False
    """The request is carried out first, and only its answer is lost."""

    def error(self) -> ApiError:
        """The answer; only for faults that have a status."""
        status = self.status or 500
        return ApiError(status, _MESSAGES.get(status, "a fault that was asked for"), retry_after=self.retry_after)


class Faults:
    """The faults of one server that are still to happen."""

    def __init__(self) -> None:
        self._pending: list[Fault] = []
        self._running = asyncio.Event()
        self._running.set()

    def add(self, fault: Fault) -> None:
        """Let this happen too, after those that match and were added before."""
        self._pending.append(fault)

    def clear(self) -> None:
        """Let nothing more go wrong."""
        self._pending.clear()

    def take(self, call: Call) -> Fault | None:
        """The fault that this request meets, None if all goes well."""
        for fault in self._pending:
            if fault.match is None or fault.match(call):
                fault.left -= 1
                if fault.left <= 0:
                    self._pending.remove(fault)
                return fault
        return None

    def pause(self) -> None:
        """Stall: requests are taken and not worked on."""
        self._running.clear()

    def resume(self) -> None:
        """Work on what has been waiting, and go on."""
        self._running.set()

    async def gate(self) -> None:
        """Wait while the server stalls."""
        if not self._running.is_set():
            await self._running.wait()
