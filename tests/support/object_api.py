"""An API server in memory behind `KubeClient`'s methods, for virtual time: versions, selectors, conflicts, watches.

Each call takes a few milliseconds, or hangs until its deadline where a test has it. Tests change objects at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.kube.clock import ServerClock
from crrd.kube.resources import Listing, Resource, WatchEvent
from crrd.lib.errors import ApiUnavailableError, ConflictError, ExpiredError, GoneError
from crrd_localnode.api.patches import merge_patch

Json = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
CALL_SECONDS, DEADLINE_SECONDS = 0.01, 10.0


class _Watch:
    """One watch connection."""

    def __init__(self, plural: str, where: Mapping[str, str]) -> None:
        self._plural, self._where = plural, where
        self.queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        """None breaks the connection."""

    def tell(self, plural: str, old: Json | None, new: Json | None) -> None:
        """Report a change, if the watch selects it."""
        if plural != self._plural:
            return
        before, after = (obj is not None and _matches(obj, self._where) for obj in (old, new))
        if after and new is not None:
            self.queue.put_nowait(WatchEvent("MODIFIED" if before else "ADDED", new))
        elif before and old is not None:
            self.queue.put_nowait(WatchEvent("DELETED", old))


class ObjectApi:
    """The objects, by kind. `created` is called with each object that the client creates."""

    description = "memory"

    def __init__(self, clock: ServerClock, created: Callable[[Resource, Json], Json] = lambda _, obj: obj) -> None:
        self._clock, self._created = clock, created
        self._objects: dict[str, dict[Key, Json]] = {}
        self._version = 1
        self._made = 0
        self._watches: list[_Watch] = []
        self._oldest = 0  # Version before which no watch can begin
        self._log: list[
            tuple[int, str, Json | None, Json | None]
        ] = []  # Version, kind, and the object before and after
        self.hanging: set[str] = set()
        """Namespaces whose calls hang until their deadline."""
        self.wrote: Callable[[Resource], None] = lambda _: None
        """Called after each write of the client, before it has the response."""

    # For tests

    def all(self, resource: Resource, namespace: str) -> list[Json]:
        """Return the objects of a namespace."""
        return [obj for (where, _), obj in self._objects.get(resource.plural, {}).items() if where == namespace]

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return an object, or None."""
        return self._objects.get(resource.plural, {}).get((namespace, name))

    def put(self, resource: Resource, namespace: str, obj: Json) -> Json:
        """Create an object, or change it."""
        name = obj["metadata"]["name"]
        old, self._version = self.find(resource, namespace, name), self._version + 1
        plain = {"uid": f"uid-{self._version}", "creationTimestamp": rfc3339(self._clock.now()), "generation": 1}
        known: Json = plain if old is None else old["metadata"]
        meta: dict[str, Any] = {
            **known,
            **obj["metadata"],
            "namespace": namespace,
            "resourceVersion": str(self._version),
        }
        if old is not None and obj.get("spec") != old.get("spec"):
            meta["generation"] = known["generation"] + 1
        new = {**obj, "metadata": meta}
        self._objects.setdefault(resource.plural, {})[namespace, name] = new
        self._report(resource, old, new)
        return new

    def change(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Apply a merge patch."""
        old = self.find(resource, namespace, name)
        assert old is not None
        return self.put(resource, namespace, merge_patch(old, body))

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object at once."""
        old = self._objects[resource.plural].pop((namespace, name))
        self._version += 1
        gone = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self._version)}}
        self._report(resource, gone, None)

    def end_watches(self, *, expired: bool = False) -> None:
        """Break all connections. If they have `expired`, watches have to list again."""
        if expired:
            self._oldest = self._version
        for watch in self._watches:
            watch.queue.put_nowait(None)

    def _report(self, resource: Resource, old: Json | None, new: Json | None) -> None:
        self._log.append((self._version, resource.plural, old, new))
        for watch in self._watches:
            watch.tell(resource.plural, old, new)

    # KubeClient

    async def _call(self, namespace: str) -> None:
        if namespace in self.hanging:
            await asyncio.sleep(DEADLINE_SECONDS)
            raise ApiUnavailableError("no answer in time")
        await asyncio.sleep(CALL_SECONDS)

    def _selected(self, resource: Resource, where: Mapping[str, str]) -> list[Json]:
        return [obj for obj in self._objects.get(resource.plural, {}).values() if _matches(obj, where)]

    async def first(self, resource: Resource, **where: Any) -> Json | None:
        await self._call(where.get("namespace", ""))
        return next(iter(self._selected(resource, where)), None)

    async def list_all(self, resource: Resource, parse: Callable[[Json], Any], **where: Any) -> Listing[Any]:
        await self._call(where.get("namespace", ""))
        return Listing(tuple(map(parse, self._selected(resource, where))), str(self._version))

    @asynccontextmanager
    async def watch(self, resource: Resource, version: str, **where: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        if int(version) < self._oldest:
            await self._call(where.get("namespace", ""))
            raise ExpiredError("too old resource version")
        opened = _Watch(resource.plural, where)
        for at, plural, old, new in self._log:
            if at > int(version):
                opened.tell(plural, old, new)
        self._watches.append(opened)

        async def events() -> AsyncIterator[WatchEvent]:
            while True:
                try:
                    async with asyncio.timeout(60):
                        event = await opened.queue.get()
                except TimeoutError:
                    event = WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})
                await asyncio.sleep(CALL_SECONDS)
                if event is None:
                    raise ApiUnavailableError("the connection broke")
                yield event

        try:
            await self._call(where.get("namespace", ""))
            yield events()
        finally:
            self._watches.remove(opened)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        await self._call(namespace)
        return self._found(resource, namespace, name)

    def _found(self, resource: Resource, namespace: str, name: str) -> Json:
        if (obj := self.find(resource, namespace, name)) is None:
            raise GoneError(f"{resource.plural} {name} not found", status=404)
        return obj

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        await self._call(namespace)
        if resource.group == "authorization.k8s.io":  # a review, which is not stored
            return {**body, "status": {"allowed": True}}
        if self.find(resource, namespace, body["metadata"]["name"]) is not None:
            raise ConflictError("it exists", status=409)
        made = self.put(resource, namespace, self._created(resource, body))
        self.wrote(resource)
        await asyncio.sleep(CALL_SECONDS)
        return made

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Json, *, subresource: str = ""
    ) -> Json:
        await self._call(namespace)
        old, meta = self._found(resource, namespace, name), body.get("metadata", {})
        if any(meta.get(key, old["metadata"][key]) != old["metadata"][key] for key in ("uid", "resourceVersion")):
            raise ConflictError("it has changed", status=409)
        new = self.change(resource, namespace, name, body)
        self.wrote(resource)
        await asyncio.sleep(CALL_SECONDS)
        return new

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str = "", **_: Any) -> None:
        await self._call(namespace)
        if uid and self._found(resource, namespace, name)["metadata"]["uid"] != uid:
            raise ConflictError("it is another one", status=409)
        self._found(resource, namespace, name)
        self.remove(resource, namespace, name)
        self.wrote(resource)


def _matches(obj: Json, where: Mapping[str, Any]) -> bool:
    """Whether a list or watch has an object. Selectors are `key=value` or `key`, with commas between."""
    meta, labels = obj["metadata"], obj["metadata"].get("labels", {})
    if where.get("namespace") and meta.get("namespace") != where["namespace"]:
        return False
    for part in filter(None, str(where.get("label_selector") or "").split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    key, _, name = str(where.get("field_selector") or "").partition("=")
    return key != "metadata.name" or meta["name"] == name
