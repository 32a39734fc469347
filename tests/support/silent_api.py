"""An API server in memory behind `KubeClient`'s methods, for virtual time. It responds at once, or never."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from crrd.kube.resources import Listing, Page, Resource, WatchEvent
from crrd.lib.errors import ApiRefusedError, GoneError


class SilentApi:
    """Keeps objects by kind and name. `mute` contains calls (`list pods`, `create events`) that never return.

    `forbidden` contains calls that are refused for a missing right, and `watched` the kinds that were watched so far.

    Like an API server, a watch reports changes while it is open, and a bookmark every minute.
    """

    description = "nobody"

    def __init__(self) -> None:
        self.mute: set[str] = set()
        self.forbidden: set[str] = set()
        self.watched: set[str] = set()
        self.objects: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._watches: dict[str, list[asyncio.Queue[WatchEvent]]] = {}

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """Add or change an object, and report it to open watches."""
        self.objects.setdefault(resource.plural, {})[obj["metadata"]["name"]] = obj
        for queue in self._watches.get(resource.plural, []):
            queue.put_nowait(WatchEvent("MODIFIED", obj))

    async def _answer(self, verb: str, resource: Resource) -> None:
        if f"{verb} {resource.plural}" in self.mute:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        if f"{verb} {resource.plural}" in self.forbidden:
            raise ApiRefusedError(f"{verb} {resource.plural}: forbidden", status=403)

    async def list_all(self, resource: Resource, parse: Callable[[Mapping[str, Any]], Any], **_: Any) -> Listing[Any]:
        await self._answer("list", resource)
        return Listing(tuple(map(parse, self.objects.get(resource.plural, {}).values())), "1")

    async def list_pages(self, resource: Resource, **_: Any) -> AsyncIterator[Page]:
        yield Page(list(self.objects.get(resource.plural, {}).values()), "1")

    @asynccontextmanager
    async def watch(self, resource: Resource, version: str, **_: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self.watched.add(resource.plural)
        await self._answer("open", resource)
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watches.setdefault(resource.plural, []).append(queue)

        async def events() -> AsyncIterator[WatchEvent]:
            while True:
                try:
                    async with asyncio.timeout(60.0):
                        event = await queue.get()
                except TimeoutError:
                    event = WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": version}})
                await self._answer("watch", resource)
                yield event

        try:
            yield events()
        finally:
            self._watches[resource.plural].remove(queue)

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        await self._answer("get", resource)
        try:
            return self.objects[resource.plural][name]
        except KeyError:
            raise GoneError(f"{resource.plural} {name} not found", status=404) from None

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._answer("create", resource)
        return self._write(resource, body["metadata"]["name"], body)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        await self._answer("patch", resource)
        return self._write(resource, name, body)

    async def delete(self, resource: Resource, namespace: str, name: str, **_: Any) -> None:
        await self._answer("delete", resource)
        del self.objects[resource.plural][name]

    def _write(self, resource: Resource, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge one level below the top, which is enough for metadata, spec and status."""
        old = self.objects.setdefault(resource.plural, {}).get(name, {"metadata": {"resourceVersion": "0"}})
        merged = {**old, **body}
        for key in old.keys() & body.keys():
            if isinstance(old[key], Mapping) and isinstance(body[key], Mapping):
                merged[key] = {**old[key], **body[key]}
        version = str(int(old["metadata"]["resourceVersion"]) + 1)
        merged["metadata"] = {**merged["metadata"], "name": name, "resourceVersion": version}
        self.put(resource, merged)
        return merged

    async def close(self) -> None:
        """Nothing was opened."""
