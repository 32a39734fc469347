"""The API server in memory, behind the lanes of a real client. Calls take as long as a test wants, or hang and fail."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from crrd.kube.lanes import Lane, Lanes, routine
from crrd.kube.resources import Listing, Page, Resource
from crrd.lib.errors import ApiUnavailableError
from tests.support.silent_api import SilentApi


class LanedApi(SilentApi):
    """`seconds` returns how long a call takes: verb, kind, namespace and name. A call as long as its deadline fails."""

    deadline = 10.0

    def __init__(self, seconds: Callable[[str, str, str, str], float] = lambda *_: 0.01) -> None:
        super().__init__()
        self.seconds = seconds
        self.calls: list[tuple[float, str, str, str]] = []  # The time of its end, its verb, kind and `namespace/name`
        self._lanes = Lanes()

    @asynccontextmanager
    async def _place(self, lane: Lane, verb: str, resource: Resource, namespace: str, name: str) -> AsyncIterator[None]:
        lane = Lane.ROUTINE if lane is Lane.READ and routine.get() else lane
        release = await self._lanes.take(lane, None, namespace)
        try:
            seconds = self.seconds(verb, resource.plural, namespace, name)
            await asyncio.sleep(seconds)
            self.calls.append((asyncio.get_running_loop().time(), verb, resource.plural, f"{namespace}/{name}"))
            if seconds >= self.deadline:
                raise ApiUnavailableError(f"{verb} {resource.plural}: no answer in time")
            yield
        finally:
            release()

    async def list_all(
        self, resource: Resource, parse: Callable[[Mapping[str, Any]], Any], **where: Any
    ) -> Listing[Any]:
        async with self._place(Lane.READ, "list", resource, where.get("namespace", ""), ""):
            return await super().list_all(resource, parse, **where)

    async def list_pages(self, resource: Resource, **where: Any) -> AsyncIterator[Page]:
        """Two objects in each page."""
        listing = await self.list_all(resource, dict, **where)
        for at in range(0, len(listing.items) or 1, 2):
            if at:
                async with self._place(Lane.READ, "list", resource, where.get("namespace", ""), ""):
                    pass
            yield Page(list(listing.items[at : at + 2]), listing.resource_version)

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        async with self._place(Lane.READ, "get", resource, namespace, name):
            return await super().get(resource, namespace, name)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        async with self._place(Lane.WRITE, "patch", resource, namespace, name):
            return await super().merge_patch(resource, namespace, name, body, subresource=subresource)

    async def delete(self, resource: Resource, namespace: str, name: str, **_: Any) -> None:
        async with self._place(Lane.WRITE, "delete", resource, namespace, name):
            await super().delete(resource, namespace, name)
