"""An API server on loopback with scripted responses, for what a healthy server does rarely or never."""

import asyncio
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from crrd.kube.access.config import Access

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ScriptedApi:
    """Answers each request with the next reply. If none is left, requests stay open without a response."""

    url: str
    script: deque[Reply] = field(default_factory=deque)
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    silent: asyncio.Event = field(default_factory=asyncio.Event)  # Set when a request has arrived and no reply was left

    def then(self, *replies: Reply) -> None:
        self.script.extend(replies)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        if self.script:
            return await self.script.popleft()(request)
        response = web.StreamResponse()
        await response.prepare(request)
        self.silent.set()
        await asyncio.Event().wait()
        return response

    def calls(self) -> list[str]:
        """The requests in short form: `list`, `watch 17`, or the method and path."""
        return [
            f"{request.method} {request.path}"
            if request.method != "GET"
            else f"watch {request.query['resourceVersion']}"
            if "watch" in request.query
            else "list"
            for request in self.seen
        ]


@asynccontextmanager
async def scripted_api(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedApi]:
    api = ScriptedApi("")
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield api
    finally:
        await runner.cleanup()


class FixedAccess:
    """Credentials that never change."""

    description = "a fixed token"

    def __init__(self, server: str, authorization: str = "") -> None:
        self._access = Access(server, authorization)

    async def current(self) -> Access:
        return self._access

    async def renew(self, refused: Access) -> Access:
        return self._access


def echo(status: int = 201) -> Reply:
    """Return the object that the request sent, like the response to a create."""

    async def send(request: web.Request) -> web.StreamResponse:
        return web.json_response(await request.json(), status=status)

    return send


def reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    async def send(_: web.Request) -> web.StreamResponse:
        if isinstance(body, bytes):
            return web.Response(body=body, status=status, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return send


def refuse(status: int, message: str = "no", headers: Mapping[str, str] | None = None, **details: object) -> Reply:
    """Return an error with a `Status` object, like the API server."""
    return reply(failure(status, message, **details), status, headers)


def failure(status: int, message: str = "no", **details: object) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": status, "message": message, "details": details}


def listing(version: str, *objects: Mapping[str, Any], token: str = "") -> Reply:
    return reply({"kind": "List", "metadata": {"resourceVersion": version, "continue": token}, "items": list(objects)})


def event(kind: str, obj: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def bookmark(version: str) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": version}})


def stream(*chunks: bytes, end: str = "well") -> Reply:
    """Return a watch that sends these bytes and then ends well, `breaks` in the middle, or goes `silent`."""

    async def send(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if end == "silent":
            await asyncio.Event().wait()
        if end == "breaks" and request.transport is not None:
            request.transport.abort()
        return response

    return send


def vanish(*, reset: bool = False) -> Reply:
    """Return a reply without a response: the connection is closed, or `reset` as by a peer that has lost its state."""

    async def send(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if reset:
            used = request.transport.get_extra_info("socket")
            used.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
        return web.Response()

    return send


def hang() -> Reply:
    """Return a reply without a response: the connection stays open."""

    async def send(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    return send
