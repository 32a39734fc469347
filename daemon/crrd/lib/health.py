"""`/healthz` and `/readyz`: a named check for each loop, and the small HTTP server for these pages."""

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
"""Returns "" if all is well, else what is wrong, in one line. A check that makes a call is a coroutine."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CONNECTIONS = 64  # For all pages together: kubelet opens one for each probe, Prometheus keeps one open
YOUNG_SECONDS = 0.1
"""A connection is not closed for this long after its last use. A thousand silent ones are closed within two seconds."""
HEAD_SECONDS = 10.0  # Until the first call on a connection
IDLE_SECONDS = 75.0  # For an idle connection: longer than Prometheus' default scrape interval of a minute
ANSWER_SECONDS = 3.0
"""How long a call that is being answered protects its connection. So hanging pages do not block kubelet's probes."""


def loop_check(task: "asyncio.Task[Any]", *heartbeats: Sign) -> Callable[[], str]:
    """Make a check that a loop's task still runs, and that none of its heartbeats is late."""

    def check() -> str:
        if not task.done():
            return next(filter(None, (heartbeat.check() for heartbeat in heartbeats)), "")
        if task.cancelled() or (error := task.exception()) is None:
            return "the loop has stopped"
        return f"the loop failed: {error!r}"

    return check


@dataclass(slots=True)
class Health:
    """Named checks: `live` for /healthz, `ready` for /readyz. Those in `shown` are on /readyz, but do not count."""

    live: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)
    shown: dict[str, Check] = field(default_factory=dict)

    def not_needed_to_serve(self) -> "Health":
        """Return one for loops that may lack something while the daemon is ready: their readiness is only shown."""
        return Health(self.live, self.shown)

    def routes(self) -> list[web.RouteDef]:
        """The two pages, in kube-apiserver's format: `[+]name ok`, `[-]name failed: why`; 503 if a check fails."""
        return [web.get("/healthz", self._page(self.live, {})), web.get("/readyz", self._page(self.ready, self.shown))]

    @staticmethod
    def _page(checks: Mapping[str, Check], shown: Mapping[str, Check]) -> Handler:
        async def page(_: web.Request) -> web.StreamResponse:
            lines, healthy = [], True
            for name, check in [*checks.items(), *shown.items()]:
                found = check()
                why = found if isinstance(found, str) else await found
                lines.append(f"[-]{name} failed: {why}" if why else f"[+]{name} ok")
                healthy = healthy and not (why and name in checks)
            lines.append("check passed" if healthy else "check failed")
            return web.Response(text="\n".join(lines) + "\n", status=200 if healthy else 503)

        return page


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`, `:port` (all interfaces, host "") or `[v6]:port`. Raises ConfigurationError if invalid."""
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
    """Bind a TCP socket. Without a host, or with `::`, it accepts IPv4 and IPv6, if the machine supports both.

    Kubelet probes the pod's first IP, which can be of either family. asyncio would open one socket per family, with
    different ports for port 0. Raises OSError.
    """
    both = host in ("", "::") and socket.has_dualstack_ipv6()
    wanted = "::" if both else "0.0.0.0" if host in ("", "::") else host  # noqa: S104 - as asked for
    family, _, _, _, where = socket.getaddrinfo(wanted, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(where[:2], family=family, dualstack_ipv6=both)


async def listen(runner: web.AppRunner, connections: Connections, address: tuple[str, int], remedy: str) -> str:
    """Serve an application at an address. Return the address in the form of `split_address`, with the actual port.

    Raises ConfigurationError if the address cannot be bound; `remedy` says what to do.
    """
    host, port = address
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - setup made it
    try:
        bound = bound_socket(host, port)
        connections.listen(bound, server)
    except OSError as error:
        # create_server repeats the address in its messages; numbers of gaierror are not errno values.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}; {remedy}") from error
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class StatusServer:
    """Serves the pages of one daemon, with limited connections (see Connections). Port 0 picks a free port."""

    def __init__(self, address: str, routes: list[web.RouteDef]) -> None:
        self._address = split_address(address)
        self._connections = Connections(
            None, most=CONNECTIONS, min_open_seconds=YOUNG_SECONDS, head_seconds=HEAD_SECONDS
        )
        app = web.Application(middlewares=[self._answer])
        app.add_routes(routes)
        app.on_response_prepare.append(self._answered)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS)

    async def start(self) -> str:
        """Listen, and return the address with the actual port. Raises ConfigurationError."""
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
