"""`/healthz` and `/readyz`: a check per loop, each named, and the small HTTP server that answers them."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from crrd.lib.connections import Connections
from crrd.lib.errors import ConfigurationError
from crrd.lib.heartbeat import Sign

Check = Callable[[], str | Awaitable[str]]
"""Returns "" when all is well, else what is wrong, in one line; one that has to ask somebody is awaited."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CONNECTIONS = 64  # To the pages, all together: kubelet opens one for each probe, Prometheus keeps one
YOUNG_SECONDS = 0.1
"""For which a connection is left alone: a thousand that say nothing are worked off within two seconds."""
HEAD_SECONDS = 10.0  # For the first call on a connection to arrive
IDLE_SECONDS = 75.0  # For an unused connection: more than a minute, Prometheus' own scrape interval
ANSWER_SECONDS = 3.0
"""For which a call that is being answered keeps its connection: pages that hang do not keep kubelet from /healthz."""


def loop_check(task: "asyncio.Task[Any]", *heartbeats: Sign) -> Callable[[], str]:
    """A check that a loop's task still runs, and that none of its heartbeats is late."""

    def check() -> str:
        if not task.done():
            return next(filter(None, (heartbeat.check() for heartbeat in heartbeats)), "")
        if task.cancelled() or (error := task.exception()) is None:
            return "the loop has stopped"
        return f"the loop failed: {error!r}"

    return check


@dataclass(slots=True)
class Health:
    """Named checks; `live` ones decide about /healthz, `ready` ones about /readyz."""

    live: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        """The two pages, as kube-apiserver's: `[+]name ok`, `[-]name failed: why`, 503 where one fails."""
        return [web.get("/healthz", self._page(self.live)), web.get("/readyz", self._page(self.ready))]

    @staticmethod
    def _page(checks: Mapping[str, Check]) -> Handler:
        async def page(_: web.Request) -> web.StreamResponse:
            lines, healthy = [], True
            for name, check in checks.items():
                found = check()
                why = found if isinstance(found, str) else await found
                lines.append(f"[-]{name} failed: {why}" if why else f"[+]{name} ok")
                healthy = healthy and not why
            lines.append("check passed" if healthy else "check failed")
            return web.Response(text="\n".join(lines) + "\n", status=200 if healthy else 503)

        return page


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `:port` (every interface, host "") or `[v6]:port`. Raises ConfigurationError for anything else."""
    host, separator, port = address.rpartition(":")
    try:
        host.encode("idna")  # as getaddrinfo does
        number = int(port) if separator and port.isascii() and port.isdigit() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise ConfigurationError(f"bind address {address!r} must be HOST:PORT, for example 127.0.0.1:9420")
    return host.strip("[]"), number


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket to listen on. Without a host, or with `::`, it takes IPv4 and IPv6, as far as the machine has them.

    Kubelet probes the pod's first IP, which is of either family. asyncio would open a socket for each family, each with
    a port of its own where port 0 is asked for. Raises OSError.
    """
    both = host in ("", "::") and socket.has_dualstack_ipv6()
    wanted = "::" if both else "0.0.0.0" if host in ("", "::") else host  # noqa: S104 - as asked for
    family, _, _, _, where = socket.getaddrinfo(wanted, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(where[:2], family=family, dualstack_ipv6=both)


async def listen(runner: web.AppRunner, connections: Connections, address: tuple[str, int], remedy: str) -> str:
    """Serve an application at an address; returns it as `split_address` takes it, with the port that was picked.

    Raises ConfigurationError where the address cannot be bound; `remedy` says what to do.
    """
    host, port = address
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - setup made it
    try:
        bound = bound_socket(host, port)
        connections.listen(bound, server)
    except OSError as error:
        # create_server repeats the address in the text of its errors; those of names have numbers of their own.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}; {remedy}") from error
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class StatusServer:
    """Serves the pages of one daemon to any client (see Connections); port 0 picks a free one."""

    def __init__(self, address: str, routes: list[web.RouteDef]) -> None:
        self._address = split_address(address)
        self._connections = Connections(None, most=CONNECTIONS, young_seconds=YOUNG_SECONDS, head_seconds=HEAD_SECONDS)
        app = web.Application(middlewares=[self._answer])
        app.add_routes(routes)
        app.on_response_prepare.append(self._answered)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS)

    async def start(self) -> str:
        """Listen; returns the address, with the port that was picked. Raises ConfigurationError."""
        return await listen(self._runner, self._connections, self._address, "choose another with --bind-address")

    async def stop(self) -> None:
        """Stop listening."""
        self._connections.stop_accepting()
        self._connections.close()
        with suppress(Exception):
            await self._runner.cleanup()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._connections.busy(request.protocol)
        loop = asyncio.get_running_loop()
        enough = loop.call_later(ANSWER_SECONDS, self._connections.used, request.protocol)
        try:
            return await handler(request)
        finally:
            enough.cancel()

    async def _answered(self, request: web.Request, _: web.StreamResponse) -> None:
        self._connections.used(request.protocol)
