"""An API server in memory behind `KubeClient`'s methods, for virtual time. It responds at once, or never."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

from crrd.kube.resources import Listing, Resource, WatchEvent, Where
from crrd.lib.errors import ApiRefusedError, ConflictError, GoneError
from tests.simulation.store import Passes, merged, selector


class SilentApi:
    """Keeps objects by kind and name, which is unique among all namespaces.

    `mute` contains calls (`list pods`, `create events`) that never return.
    `forbidden` contains calls that are refused for a missing right, and `watched` the kinds that were watched so far.

    Like an API server, a watch reports changes while it is open, and a bookmark every minute.
    """

    description = "nobody"

    def __init__(self) -> None:
        self.mute: set[str] = set()
        self.forbidden: set[str] = set()
        self.watched: set[str] = set()
        self.objects: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._watches: dict[str, list[tuple[Passes, asyncio.Queue[WatchEvent]]]] = {}

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """Add or change an object, and report it to open watches."""
        known = self.objects.setdefault(resource.plural, {})
        before, known[obj["metadata"]["name"]] = known.get(obj["metadata"]["name"]), obj
        for passes, queue in self._watches.get(resource.plural, []):
            if passes(obj):
                queue.put_nowait(WatchEvent("MODIFIED", obj))
            elif before is not None and passes(before):
                queue.put_nowait(WatchEvent("DELETED", obj))

    def remove(self, resource: Resource, name: str) -> None:
        """Delete an object, and report this to open watches."""
        obj = self.objects[resource.plural].pop(name)
        for passes, queue in self._watches.get(resource.plural, []):
            if passes(obj):
                queue.put_nowait(WatchEvent("DELETED", obj))

    def _selected(self, resource: Resource, where: Where) -> list[Mapping[str, Any]]:
        return list(filter(_passes(where), self.objects.get(resource.plural, {}).values()))

    async def _answer(self, verb: str, resource: Resource) -> None:
        if f"{verb} {resource.plural}" in self.mute:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        if f"{verb} {resource.plural}" in self.forbidden:
            raise ApiRefusedError(f"{verb} {resource.plural}: forbidden", status=403)

    async def list_all(
        self,
        resource: Resource,
        parse: Callable[[Mapping[str, Any]], Any],
        *,
        resource_version: str = "",
        **where: Unpack[Where],
    ) -> Listing[Any]:
        await self._answer("list", resource)
        return Listing(tuple(map(parse, self._selected(resource, where))), "1")

    async def first(self, resource: Resource, **where: Unpack[Where]) -> Mapping[str, Any] | None:
        await self._answer("list", resource)
        return next(iter(self._selected(resource, where)), None)

    @asynccontextmanager
    async def watch(
        self, resource: Resource, version: str, **where: Unpack[Where]
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self.watched.add(resource.plural)
        await self._answer("open", resource)
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        watch = _passes(where), queue
        self._watches.setdefault(resource.plural, []).append(watch)
        for obj in self._selected(resource, where):  # what has changed since the list
            if int(obj["metadata"]["resourceVersion"]) > int(version or "0"):
                queue.put_nowait(WatchEvent("MODIFIED", obj))

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
            self._watches[resource.plural].remove(watch)

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        await self._answer("get", resource)
        return self._found(resource, name)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._answer("create", resource)
        if body["metadata"]["name"] in self.objects.get(resource.plural, {}):
            raise ConflictError(f"{resource.plural}: it exists", status=409)
        return self._write(resource, body["metadata"]["name"], body)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        await self._answer("patch", resource)
        self._found(resource, name)
        return self._write(resource, name, body)

    async def delete(self, resource: Resource, namespace: str, name: str, **_: Any) -> None:
        await self._answer("delete", resource)
        self._found(resource, name)
        self.remove(resource, name)

    def _found(self, resource: Resource, name: str) -> Mapping[str, Any]:
        try:
            return self.objects[resource.plural][name]
        except KeyError:
            raise GoneError(f"{resource.plural} {name} not found", status=404) from None

    def _write(self, resource: Resource, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        old = self.objects.get(resource.plural, {}).get(name, {"metadata": {"resourceVersion": "0"}})
        version = str(int(old["metadata"]["resourceVersion"]) + 1)
        obj: Mapping[str, Any] = merged(merged(old, body), {"metadata": {"name": name, "resourceVersion": version}})
        self.put(resource, obj)
        return obj

    async def close(self) -> None:
        """Nothing was opened."""


def _passes(where: Where) -> Passes:
    return selector(where.get("label_selector", ""), where.get("field_selector", ""), where.get("namespace", ""))
