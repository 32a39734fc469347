"""Hands the runtime's container events to everyone who listens."""

import asyncio
from collections.abc import AsyncIterator

from cri_stubs import api_pb2


class EventHub:
    """Events from the time of listening on; nothing is kept for later listeners."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[api_pb2.ContainerEventResponse]] = set()

    def publish(self, event: api_pb2.ContainerEventResponse) -> None:
        """Give the event to all listeners; never blocks."""
        for queue in self._listeners:
            queue.put_nowait(event)

    async def listen(self) -> AsyncIterator[api_pb2.ContainerEventResponse]:
        """All events that are published from now on, until the caller stops asking."""
        queue: asyncio.Queue[api_pb2.ContainerEventResponse] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)
