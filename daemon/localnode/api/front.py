"""From HTTP to the handlers and back: who asks, which faults the request meets, what is logged, how refusals look."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from daemon.localnode.api.admission import ANONYMOUS, AUTHENTICATED_GROUP, User
from daemon.localnode.api.discovery import discover
from daemon.localnode.api.errors import ApiError, no_such_path
from daemon.localnode.api.faults import Faults
from daemon.localnode.api.handlers import Handlers, Request
from daemon.localnode.api.kinds import Registry
from daemon.localnode.api.objects import dumps
from daemon.localnode.api.routing import Call, Route, find_route
from daemon.localnode.api.tables import accepted
from daemon.localnode.api.watching import Watches

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes of a request's body, as the real server has it."""


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
    faults: Faults
    clock: Callable[[], datetime]
    tokens: Mapping[str, User] = field(default_factory=dict)
    """Bearer tokens; where there are none, tokens are not looked at."""
    log: Callable[[Call], None] | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request."""
        query, path = request.rel_url.query, request.rel_url.path
        call = Call(request.method.lower(), path)
        try:
            await self.faults.gate()
            user = self._user(request)
            route = find_route(self.registry, request.method, path, query)
            call = route.call(user.name)
            fault = self.faults.take(call)
            if fault is not None:
                if fault.after:
                    await self._answer(request, route, user, query)
                if fault.status is None:
                    return self._cut(request, call)
                raise fault.error()
            if route.verb == "watch" and route.kind is not None:
                form = accepted(request.headers.get("Accept", ""))
                watch = self.watches.begin(route.kind, route.namespace, query, form)
                self._note(call, 200)
                return await watch.run(request, self._headers())
            response = await self._answer(request, route, user, query)
        except ApiError as error:
            response = self._refusal(error)
        except web.HTTPRequestEntityTooLarge:
            response = self._refusal(ApiError(413, f"Request entity too large: limit is {BODY_LIMIT}"))
        self._note(call, response.status)
        return response

    async def _answer(
        self, request: web.BaseRequest, route: Route, user: User, query: Mapping[str, str]
    ) -> web.Response:
        if route.kind is None:
            return self._discovery(route, request.host)
        body = await request.read() if request.body_exists else b""
        form = accepted(request.headers.get("Accept", ""))
        given = request.headers.get("Content-Type", "").partition(";")[0].strip()
        answer = await self.handlers.answer(Request(route, route.kind, query, body, given, form, user))
        response = self._json(answer.status, answer.body)
        for text in answer.warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
        return response

    def _discovery(self, route: Route, host: str) -> web.Response:
        found = discover(self.registry, route.path, host) if route.verb == "get" else None
        if found is None:
            raise no_such_path()
        if isinstance(found, str):
            return web.Response(text=found, headers=self._headers())
        return self._json(200, dumps(found))

    def _user(self, request: web.BaseRequest) -> User:
        """Who asks. Raises ApiError 401 for an unknown token."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.tokens:
            user = self.tokens.get(token.strip())
            if user is None:
                raise ApiError(401, "Unauthorized")
            return (
                user
                if AUTHENTICATED_GROUP in user.groups
                else replace(user, groups=(*user.groups, AUTHENTICATED_GROUP))
            )
        return ANONYMOUS

    def _headers(self) -> dict[str, str]:
        return {
            "Cache-Control": "no-cache, private",
            "Date": format_datetime(self.clock().astimezone(UTC), usegmt=True),
        }

    def _json(self, status: int, body: bytes) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json", headers=self._headers())

    def _refusal(self, error: ApiError) -> web.Response:
        response = self._json(error.code, dumps(error.status))
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(error.retry_after)
        return response

    def _cut(self, request: web.BaseRequest, call: Call) -> web.Response:
        self._note(call, 0)
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    def _note(self, call: Call, status: int) -> None:
        if self.log is not None:
            self.log(replace(call, status=status))
