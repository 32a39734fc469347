"""From HTTP to the handlers and back: what is asked, and how answers and refusals look."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from crrd_localnode.api.admission import ANONYMOUS, User
from crrd_localnode.api.discovery import discover
from crrd_localnode.api.errors import NO_SUCH_PATH, ApiError, no_such_path
from crrd_localnode.api.handlers import Handlers, Request
from crrd_localnode.api.kinds import Registry
from crrd_localnode.api.logs import pod_log
from crrd_localnode.api.objects import dumps
from crrd_localnode.api.routing import Route, find_route
from crrd_localnode.api.tables import accepted
from crrd_localnode.api.watching import Watch, Watches

BODY_LIMIT = 3 * 1024 * 1024  # Bytes of a request's body, as the real server has it


def make_request(*arguments: Any) -> web.BaseRequest:
    """A request as aiohttp's own factory makes it, with the API server's limit for bodies."""
    message, payload, protocol, writer, task = arguments
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT)


@dataclass(slots=True, kw_only=True)
class Front:
    """Serves HTTP requests; `handle` is what aiohttp calls."""

    registry: Registry
    handlers: Handlers
    watches: Watches
    clock: Callable[[], datetime]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request."""
        try:
            url = request.rel_url
            return await self.serve(request, find_route(self.registry, request.method, url.path, url.query), ANONYMOUS)
        except ApiError as error:
            return self._refusal(error)
        except web.HTTPRequestEntityTooLarge:
            return self._refusal(ApiError(413, f"Request entity too large: limit is {BODY_LIMIT}"))

    async def serve(self, request: web.BaseRequest, route: Route, user: User) -> web.StreamResponse:
        """What a user gets who asks for something that is here. Raises ApiError."""
        if route.kind is None:
            return self._discovery(route, request.host)
        if route.subresource == "log":
            return await pod_log(self.watches.store, route, request)
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
        return {
            "Cache-Control": "no-cache, private",
            "Date": format_datetime(self.clock().astimezone(UTC), usegmt=True),
        }

    def _json(self, status: int, body: bytes) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json", headers=self._headers())

    def _refusal(self, error: ApiError) -> web.Response:
        if str(error) == NO_SUCH_PATH:
            return web.Response(status=404, text=f"{error}\n", headers=self._headers())
        response = self._json(error.code, dumps(error.status))
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(error.retry_after)
        return response
