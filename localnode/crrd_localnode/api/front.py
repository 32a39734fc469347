"""Translates between HTTP and the handlers: requests, responses and errors."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import aiohttp
from aiohttp import web

from crrd_localnode.api.admission import ANONYMOUS, User
from crrd_localnode.api.discovery import discover
from crrd_localnode.api.errors import NO_SUCH_PATH, ApiError, bad_request, no_such_path, not_found
from crrd_localnode.api.handlers import Handlers, Request
from crrd_localnode.api.kinds import Registry
from crrd_localnode.api.objects import dig, dumps
from crrd_localnode.api.routing import Route, find_route
from crrd_localnode.api.store import Store
from crrd_localnode.api.tables import accepted
from crrd_localnode.api.watching import Watch, Watches

_PASSED_ON = ("follow", "previous", "tailLines", "timestamps")  # Query parameters of a log
_LISTS = ("containers", "initContainers", "ephemeralContainers")
BODY_LIMIT = 3 * 1024 * 1024  # Limit for a request's body in bytes, the real server's


def make_request(*arguments: Any) -> web.BaseRequest:
    """Create a request like aiohttp's own factory, but with the API server's limit for bodies."""
    message, payload, protocol, writer, task = arguments
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT)


@dataclass(slots=True, kw_only=True)
class Front:
    """Serves HTTP requests. aiohttp calls `handle`."""

    registry: Registry
    handlers: Handlers
    watches: Watches
    clock: Callable[[], datetime]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to one request."""
        try:
            url = request.rel_url
            return await self.serve(request, find_route(self.registry, request.method, url.path, url.query), ANONYMOUS)
        except ApiError as error:
            return self._refusal(error)
        except web.HTTPRequestEntityTooLarge:
            return self._refusal(ApiError(413, f"Request entity too large: limit is {BODY_LIMIT}"))

    async def serve(self, request: web.BaseRequest, route: Route, user: User) -> web.StreamResponse:
        """Serve a routed request of a user. Raises ApiError."""
        if route.kind is None:
            return self._discovery(route, request.host)
        if route.subresource == "log":
            return await _pod_log(self.watches.store, route, request)
        query = request.rel_url.query
        form = accepted(request.headers.get("Accept", ""))
        if route.verb == "watch":
            return await self.stream(request, self.watches.begin(route.kind, route.namespace, query, form))
        body = await request.read() if request.body_exists else b""
        given = request.headers.get("Content-Type", "").partition(";")[0].strip()
        answer = await self.handlers.answer(Request(route, route.kind, query, body, given, form, user))
        response = self._json(answer.status, answer.body)
        for text in answer.warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
        return response

    async def stream(self, request: web.BaseRequest, watch: Watch) -> web.StreamResponse:
        """Serve a watch that has begun."""
        return await watch.run(request, self._headers())

    def _discovery(self, route: Route, host: str) -> web.Response:
        found = discover(self.registry, route.path, host) if route.verb == "get" else None
        if found is None:
            raise no_such_path()
        if isinstance(found, str):
            return web.Response(text=found, headers=self._headers())
        return self._json(200, dumps(found))

    def _headers(self) -> dict[str, str]:
        date = format_datetime(self.clock().astimezone(UTC), usegmt=True)
        return {"Cache-Control": "no-cache, private", "Date": date}

    def _json(self, status: int, body: bytes) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json", headers=self._headers())

    def _refusal(self, error: ApiError) -> web.Response:
        if str(error) == NO_SUCH_PATH:
            return web.Response(status=404, text=f"{error}\n", headers=self._headers())
        response = self._json(error.code, dumps(error.status))
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(error.retry_after)
        return response


async def _pod_log(store: Store, route: Route, request: web.BaseRequest) -> web.StreamResponse:
    """`pods/NAME/log`: stream the log from the kubelet of the pod's node. Raises ApiError."""
    pod = store.get("/pods", (route.namespace, route.name))
    if pod is None:
        raise not_found("", "pods", route.name)
    query = request.rel_url.query
    names = [str(each["name"]) for key in _LISTS for each in dig(pod.obj, "spec", key) or []]
    container = query.get("container") or (names[0] if len(names) == 1 else "")
    if not container:
        choice = f"choose one of: [{' '.join(names)}]"
        raise bad_request(f"a container name must be specified for pod {route.name}, {choice}")
    if container not in names:
        raise bad_request(f"container {container} is not valid for pod {route.name}")
    node = store.get("/nodes", ("", str(dig(pod.obj, "spec", "nodeName") or "")))
    port = dig(node.obj, "status", "daemonEndpoints", "kubeletEndpoint", "Port") if node is not None else None
    if not port:
        raise ApiError(500, f"no kubelet is known for pod {route.name}")
    url = f"http://127.0.0.1:{port}/containerLogs/{route.namespace}/{route.name}/{container}"
    wanted = {key: query[key] for key in _PASSED_ON if key in query}
    try:
        async with aiohttp.ClientSession() as session, session.get(url, params=wanted) as answer:
            if answer.status != 200:
                raise bad_request(await answer.text())
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(500, f"the kubelet of pod {route.name} does not answer: {error}") from error
