"""Calls to the API server over aiohttp: list, watch, get, create, merge patch, delete; each with a deadline.

Results are plain JSON objects. Callers parse them into the core's values at once and drop them. `reflector` and the
controllers retry, reconnect and re-list, with two exceptions that are made here: a call whose credentials were refused
is sent again with renewed ones, and a list whose version has expired starts again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar, Unpack

import aiohttp

from crrd.kube.access.config import AccessSource
from crrd.kube.errors import MalformedAnswerError, decode, from_status
from crrd.kube.resources import DISCOVERY, PODS, Listing, Page, Resource, WatchEvent, Where
from crrd.kube.stream import lines, listed
from crrd.kube.transport import Call, CallObserver, DateObserver, Transport, unavailable
from crrd.lib.errors import ExpiredError
from crrd.lib.jsonfields import mapping, name_of, text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a call may take."""

    connect: float = 10.0
    call: float = 15.0
    page: float = 60.0  # For one page of a list
    watch: tuple[int, int] = (240, 360)
    """Range of a watch's timeoutSeconds; the value is random, so that not all nodes reconnect at the same time."""
    watch_open: float = 20.0  # Until the response headers of a watch, which API servers send at once
    watch_margin: float = 15.0  # The client closes a watch this much later than its timeoutSeconds
    stall: float = 150.0  # Longest time without data on a watch; API servers send a bookmark every minute

    def limited(self, seconds: float | None) -> "Deadlines":
        """Return these with another limit for each call but watches; 0 for none (in fact a week), None for the same."""
        if seconds is None:
            return self
        limit = seconds or 7 * 86_400.0
        return replace(self, call=limit, page=limit, watch_open=limit)


class KubeClient:
    """One API server, one session. The first call opens it; `close` or `async with` closes it.

    Every call can raise ApiUnavailableError and ApiRefusedError; GoneError if the object does not exist.
    """

    def __init__(
        self,
        access: AccessSource,
        *,
        deadlines: Deadlines | None = None,
        on_call: CallObserver | None = None,
        on_date: DateObserver | None = None,
        patient: bool = False,
    ) -> None:
        """`patient`: a call waits for its turn without limit, and its deadline counts from there (not for events)."""
        self.description = access.description  # Names the source of the credentials, for messages
        self._access, self._deadlines = access, deadlines or Deadlines()
        self._transport = Transport(access, on_call, on_date, patient=patient)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def default_namespace(self) -> str:
        """Return the namespace of the kubeconfig's context, as kubectl takes it. Raises the errors of AccessSource."""
        return (await self._access.current()).namespace or "default"

    async def list_pages(
        self, resource: Resource, *, resource_version: str = "", limit: int | None = None, **where: Unpack[Where]
    ) -> AsyncIterator[Page]:
        """Yield the pages of a list, `limit` objects each (0: all in one page, None: the resource's page size).

        ExpiredError: the list took so long that its version has expired; discard the pages yielded so far.
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
            params.pop("resourceVersion", None)  # the token includes it; API servers reject both together

    async def list_all(
        self,
        resource: Resource,
        parse: Callable[[Mapping[str, Any]], T],
        *,
        resource_version: str = "",
        **where: Unpack[Where],
    ) -> Listing[T]:
        """Return a whole list; each page is parsed and dropped before the next one. Raises as `list_pages` does.

        Without `resource_version` the list is the newest, read page by page. With it, the list is not older than that
        version and comes from the API server's cache in one response, so use it for small selections only. If the list
        expires between two pages, it starts again, once.
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
            # With a version and a limit, API servers before 1.33 bypass their cache, or ignore the limit (version "0").
            return await collect(resource_version, 0 if resource_version else None)
        except ExpiredError:
            return await collect("", None)

    async def first(self, resource: Resource, **where: Unpack[Where]) -> Mapping[str, Any] | None:
        """Return one object of a list, None if the list is empty. So it shows whether the user may list the objects."""
        async for page in self.list_pages(resource, limit=1, **where):
            return next(iter(page.items), None)
        return None

    @asynccontextmanager
    async def watch(
        self, resource: Resource, resource_version: str, **where: Unpack[Where]
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Open one watch connection, and iterate over its events until the server ends it normally.

        Raises (on entering, and from the iterator):
            ExpiredError: the version is too old (HTTP status 410, or an ERROR event).
            ApiUnavailableError: the connection broke or went silent, or an event cannot be read.
        """
        deadlines = self._deadlines
        seconds = random.randint(*deadlines.watch)  # noqa: S311 - spreads load, not for security
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
        """Return one object."""
        return await self._object(self._call("get", resource, resource.path(namespace, name)), name)

    async def document(self, path: str) -> Mapping[str, Any]:
        """Return the API server's own document at a path (`/version`, `/apis`); every client may read these."""
        return await self._transport.answer(self._call("get", DISCOVERY, path))

    async def through_pod(
        self, namespace: str, name: str, port: int, page: str, params: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Return a JSON object that a pod serves over HTTP, read through pods/proxy. GoneError if not found."""
        path = f"{PODS.path(namespace, name)}:{port}/proxy/{page}"
        call = self._call("get", PODS, path, seconds=self._deadlines.page, params=params)
        return await self._transport.answer(call)

    async def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Create an object and return it as stored. ConflictError if the name is taken.

        With `dry_run` the API server runs validation and admission, but does not store the object.
        """
        params = {"dryRun": "All"} if dry_run else {}
        call = self._call("create", resource, resource.path(namespace), params=params, body=body)
        return await self._object(call, name_of(body))

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        """JSON merge patch (RFC 7386) of an object or of its subresource; returns the whole object.

        ConflictError: the body has a `metadata.resourceVersion` that is not the object's.
        """
        call = self._call("patch", resource, resource.path(namespace, name, subresource), body=body)
        return await self._object(call, name)

    async def json_patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """JSON patch (RFC 6902) of an object; returns the whole object. `dry_run` as in `create`.

        ApiRefusedError 422: one of its tests has failed, or the API server does not accept the result.
        """
        params = {"dryRun": "All"} if dry_run else {}
        call = self._call("patch", resource, resource.path(namespace, name), params=params, body=operations)
        return await self._object(call, name)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object; with `uid` or `version`, only if the object has that one (else ConflictError).

        `grace_seconds` replaces a pod's own grace period; 0 removes the object at once, as kubelet does at the end.
        """
        expected = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        body: dict[str, Any] = {"preconditions": expected} if expected else {}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._transport.answer(self._call("delete", resource, resource.path(namespace, name), body=body))

    async def _object(self, call: Call, name: str) -> Mapping[str, Any]:
        """Send a call and check that the response is the object, because a proxy can answer with JSON of its own.

        `name`: "" if the server generates the name, or if the object has none (access reviews).
        """
        found = await self._transport.answer(call)
        kind, given = text(found.get("kind")), mapping(found.get("metadata")).get("name")
        if kind == "Status" or kind.endswith("List") or (name and given != name):
            other = f"{kind} {given or ''}".strip() or "other JSON"
            raise MalformedAnswerError(f"{call.what}: the response is not the object, but {other}")
        return found

    def _call(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        seconds: float | None = None,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Call:
        total = seconds or self._deadlines.call
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=self._deadlines.connect)
        return Call(verb, resource, path, timeout, params or {}, body)


def _selected(resource: Resource, where: Where) -> tuple[str, dict[str, str]]:
    """Return the URL path and the query parameters of a list or a watch."""
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
