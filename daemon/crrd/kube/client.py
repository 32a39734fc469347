"""Calls to the API server over aiohttp: list, watch, get, create, merge patch, delete; each with a deadline.

Answers are plain JSON objects; callers parse them into the core's values at once and drop them. Trying again, watching
on and forgetting are `reflector`'s work and the controllers', except for two things that nobody else can know:
credentials refused once are renewed, and a list that outlived its version is begun anew.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar, Unpack

import aiohttp

from crrd.kube.config import AccessSource
from crrd.kube.errors import MalformedAnswerError, decode, from_status
from crrd.kube.resources import DISCOVERY, PODS, Listing, Page, Resource, WatchEvent, Where
from crrd.kube.stream import lines, listed
from crrd.kube.transport import Call, CallObserver, DateObserver, Transport, unavailable
from crrd.lib.errors import ExpiredError
from crrd.lib.jsonfields import mapping, text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a call may take."""

    connect: float = 10.0
    call: float = 15.0
    page: float = 60.0  # For one page of a list
    watch: tuple[int, int] = (240, 360)
    """A watch ends by itself after a time in here; random, so that a cluster's nodes do not all come back at once."""
    watch_open: float = 20.0  # For the head of a watch's answer, which API servers send at once
    watch_margin: float = 15.0  # How much later than that a watch is given up
    stall: float = 150.0  # For how long a watch may be silent: API servers send a bookmark every minute


class KubeClient:
    """One API server, one session. Nothing is opened before the first call; `close` or `async with` ends it.

    Every call raises ApiUnavailableError and ApiRefusedError, for an object that is not there GoneError.
    """

    def __init__(
        self,
        access: AccessSource,
        *,
        deadlines: Deadlines | None = None,
        on_call: CallObserver | None = None,
        on_date: DateObserver | None = None,
    ) -> None:
        self.description = access.description  # Whose credentials are used, for messages
        self._deadlines = deadlines or Deadlines()
        self._transport = Transport(access, on_call, on_date)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def list_pages(
        self, resource: Resource, *, resource_version: str = "", limit: int | None = None, **where: Unpack[Where]
    ) -> AsyncIterator[Page]:
        """The pages of a list, `limit` objects each (0 for all at once, None for what suits the resource).

        ExpiredError: the list took so long that its version is gone; what was yielded is void.
        """
        limit = resource.page if limit is None else limit
        path, params = _selected(resource, where)
        if limit:
            params["limit"] = str(limit)
        if resource_version:
            params["resourceVersion"] = resource_version
        while True:
            call = self._call("list", resource, path, seconds=self._deadlines.page, params=params)
            meta, objects = listed(await self._transport.read(call), call.what)
            yield Page(objects, text(meta.get("resourceVersion")))
            token = text(meta.get("continue"))
            if not token:
                return
            params = {**params, "continue": token}
            params.pop("resourceVersion", None)  # the token stands for it; API servers refuse both together

    async def list_all(
        self,
        resource: Resource,
        parse: Callable[[Mapping[str, Any]], T],
        *,
        resource_version: str = "",
        **where: Unpack[Where],
    ) -> Listing[T]:
        """A whole list, each page parsed and dropped before the next. Raises as `list_pages` does.

        A list that is to be of no version is the newest, page by page. One that is to be "not older than" comes from
        the API server's cache as a whole: that is for selections which are small by their nature. When a list expires
        between two pages, it is begun anew, once.
        """

        async def collect(version: str, limit: int | None) -> Listing[T]:
            found: list[T] = []
            newest = ""
            async for page in self.list_pages(resource, resource_version=version, limit=limit, **where):
                found += map(parse, page.items)
                newest = page.resource_version
            if not newest:
                raise MalformedAnswerError(f"list {resource.plural}: the response has no resourceVersion")
            return Listing(tuple(found), newest)

        try:
            # With a version and a limit, API servers read past their cache (before 1.33) or ignore the limit ("0").
            return await collect(resource_version, 0 if resource_version else None)
        except ExpiredError:
            return await collect("", None)

    @asynccontextmanager
    async def watch(
        self, resource: Resource, resource_version: str, **where: Unpack[Where]
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """One connection of a watch, open once entered; its events, until the server ends it in good order.

        Raises (on entering, and from the iterator):
            ExpiredError: the version is too old, said either way (an HTTP status, or an ERROR event).
            ApiUnavailableError: the connection broke or went silent, or an event cannot be read.
        """
        deadlines = self._deadlines
        seconds = random.randint(*deadlines.watch)  # noqa: S311 - spreads load, guards nothing
        path, selectors = _selected(resource, where)
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        params |= {"resourceVersion": resource_version, **selectors}
        timeout = aiohttp.ClientTimeout(
            total=seconds + deadlines.watch_margin, sock_connect=deadlines.connect, sock_read=deadlines.stall
        )
        call = Call("watch", resource, path, timeout, params)
        try:
            async with asyncio.timeout(deadlines.watch_open):
                response = await self._transport.open(call)
        except TimeoutError as error:
            unavailable(call, error)
        try:
            yield _events(response, call)
        finally:
            response.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        """One object."""
        return await self._object(self._call("get", resource, resource.path(namespace, name)), name)

    async def document(self, path: str) -> Mapping[str, Any]:
        """What the API server says of itself at a path (`/version`, `/apis`), which everybody may ask for."""
        return await self._transport.answer(self._call("get", DISCOVERY, path))

    async def through_pod(
        self, namespace: str, name: str, port: int, page: str, params: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """A JSON object that a pod serves over HTTP (GoneError for none), through the API server (pods/proxy)."""
        path = f"{PODS.path(namespace, name)}:{port}/proxy/{page}"
        call = self._call("get", PODS, path, seconds=self._deadlines.page, params=params)
        return await self._transport.answer(call)

    async def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Create an object; returns it as the server keeps it. ConflictError where the name is taken.

        With `dry_run` it is only checked, by admission too, and not kept.
        """
        params = {"dryRun": "All"} if dry_run else {}
        call = self._call("create", resource, resource.path(namespace), params=params, body=body)
        return await self._object(call, text(mapping(body.get("metadata")).get("name")))

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        """JSON merge patch (RFC 7386) of an object or of its subresource; returns the whole object.

        ConflictError: `metadata.resourceVersion` stands in the body and is not the object's.
        """
        call = self._call("patch", resource, resource.path(namespace, name, subresource), body=body)
        return await self._object(call, name)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object; with `uid`, only if it is the one with that UID (else ConflictError).

        `grace_seconds`: in place of a pod's own grace period; 0 removes the object at once, as kubelet does in the end.
        """
        body: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._transport.answer(self._call("delete", resource, resource.path(namespace, name), body=body))

    async def _object(self, call: Call, name: str) -> Mapping[str, Any]:
        """The object that a call is answered with. A proxy in between can answer with JSON of its own.

        `name`: "" where the server gives one, or where the object has none, as reviews of access.
        """
        found = await self._transport.answer(call)
        kind, given = text(found.get("kind")), mapping(found.get("metadata")).get("name")
        if kind == "Status" or kind.endswith("List") or (name and given != name):
            message = f"{call.what}: the response is not the object, but {kind or 'JSON'} {given or ''}"
            raise MalformedAnswerError(message)
        return found

    def _call(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        seconds: float | None = None,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Call:
        total = seconds or self._deadlines.call
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=self._deadlines.connect)
        return Call(verb, resource, path, timeout, params or {}, body)


def _selected(resource: Resource, where: Where) -> tuple[str, dict[str, str]]:
    """The path and the parameters of a list or a watch."""
    found = {"labelSelector": where.get("label_selector"), "fieldSelector": where.get("field_selector")}
    return resource.path(where.get("namespace", "")), {key: value for key, value in found.items() if value}


async def _events(response: aiohttp.ClientResponse, call: Call) -> AsyncIterator[WatchEvent]:
    try:
        async for line in lines(response.content.iter_any()):
            shape = decode(line, call.what)
            kind, found = text(shape.get("type")), mapping(shape.get("object"))
            if kind == "ERROR":
                raise from_status(found, call.what)
            yield WatchEvent(kind, found)
    except (aiohttp.ClientError, OSError) as error:
        unavailable(call, error)
