"""Limits the number of a server's connections. An unused one is closed to make room for a new one.

Every client that reaches the port can open connections and send nothing. Each costs memory at once, so connections
count from the accept on. Above the limit, the least recently used one is closed. So clients that use their connections,
like an API server, keep them, and new connections are accepted. Two kinds are not closed to make room: connections
whose call is being answered, and new ones, because many come at once if a client makes many calls. If only these are
left, further connections wait to be accepted.
"""

import asyncio
import errno
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from aiohttp import web

from crrd.lib.looptime import loop_time

log = structlog.get_logger(__name__)

CROWDED, SILENT = "crowded", "silent"  # Why a connection is closed: to make room, or no call came on it in time
_BACKLOG = 256
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_PAUSE_SECONDS = 1.0  # Pause after accept failed and no connection can be closed, as in asyncio
_BUSY_SECONDS = 0.05  # Pause while the calls of all connections are being answered
_LOG_INTERVAL_SECONDS = 60.0  # Between two log lines about connections closed to make room

CloseObserver = Callable[[str], None]  # Called for each connection that is closed early, with CROWDED or SILENT


@dataclass(slots=True)
class _Connection:
    handler: web.RequestHandler
    set_up: "asyncio.Task[None]"
    since: float  # The event loop's time at which it was accepted or last used
    timer: asyncio.TimerHandle | None = None  # Closes the connection if no call comes in time
    busy: bool = False  # Whether a call has arrived completely, and is not answered yet

    @property
    def ended(self) -> bool:
        return self.set_up.done() and self.handler.transport is None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Connections:
    """Accepts connections, and sets up TLS. The constructor starts nothing."""

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext] | None,
        *,
        most: int,
        min_open_seconds: float,
        head_seconds: float,
        handshake_seconds: float | None = None,
        on_close: CloseObserver | None = None,
    ) -> None:
        self._tls, self._handshake_seconds = tls, handshake_seconds  # Asked for each connection; None for plain TCP
        self._most = most
        self._min_open_seconds = min_open_seconds  # A connection is not closed for this long after its last use
        self._head_seconds = head_seconds  # Longest time from the set-up to the first call
        self._on_close = on_close
        self._bound: socket.socket | None = None
        self._make: Callable[[], web.RequestHandler] | None = None
        self._known: OrderedDict[web.RequestHandler, _Connection] = OrderedDict()  # Least recently used first
        self._waiting: asyncio.TimerHandle | None = None  # Set during a pause; then accepts again
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        """Number of connections that are open or being set up."""
        return sum(not one.ended for one in self._known.values())

    @property
    def listening(self) -> bool:
        """Whether the socket listens for new connections."""
        return self._bound is not None and self._bound.fileno() >= 0

    def listen(self, bound: socket.socket, make: Callable[[], web.RequestHandler]) -> None:
        """Accept connections on this socket, each with a protocol from `make`. Raises OSError."""
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        self._bound, self._make = bound, make
        self._accept_again()

    def stop_accepting(self) -> None:
        """Accept no more connections. Those already accepted are still set up and served."""
        bound, self._bound = self._bound, None
        if bound is not None:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()
        if self._waiting is not None:
            self._waiting.cancel()

    def close(self) -> None:
        """Cancel the connections that are not set up yet. The server closes the others."""
        for one in self._known.values():
            one.set_up.cancel()
            one.stop_timer()

    def busy(self, handler: web.RequestHandler) -> None:
        """Record that a call has arrived."""
        self._record_use(handler, busy=True)

    def used(self, handler: web.RequestHandler) -> None:
        """Record that a call was answered."""
        self._record_use(handler, busy=False)

    def _record_use(self, handler: web.RequestHandler, *, busy: bool) -> None:
        if one := self._known.get(handler):
            one.busy, one.since = busy, loop_time()
            one.stop_timer()
            self._known.move_to_end(handler)

    def _accept_again(self) -> None:
        self._waiting = None
        if self._bound is not None:
            asyncio.get_running_loop().add_reader(self._bound, self._accept)

    def _pause(self, seconds: float) -> None:
        """Stop accepting for a while."""
        loop = asyncio.get_running_loop()
        if self._bound is not None:
            loop.remove_reader(self._bound)
        self._waiting = loop.call_later(seconds, self._accept_again)

    def _accept(self) -> None:
        """Accept one connection if there is room, else pause."""
        if self._bound is None or self._make is None:
            return
        if seconds := self._make_room():
            self._pause(seconds)
            return
        try:
            made, _ = self._bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            retry = self._close_oldest(str(error)) if error.errno in _NO_DESCRIPTORS else None
            if retry is None:
                retry = _PAUSE_SECONDS
                log.warning("cannot accept connections", error=str(error), retry_in=retry)
            self._pause(retry)  # even with 0 s the event loop takes a turn, which closes the dropped connection
            return
        made.setblocking(False)
        handler, loop = self._make(), asyncio.get_running_loop()
        self._known[handler] = _Connection(handler, loop.create_task(self._set_up(handler, made)), loop.time())

    async def _set_up(self, handler: web.RequestHandler, made: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: handler, made, ssl=self._tls and self._tls(), ssl_handshake_timeout=self._handshake_seconds
            )
        except OSError:  # an error of TLS or the network, caused by the client
            self._known.pop(handler, None)
            return
        if one := self._known.get(handler):
            one.timer = loop.call_later(self._head_seconds, self._drop, one, SILENT)

    def _make_room(self) -> float:
        """Close the least recently used connection if needed. Return 0 if there is room, else the seconds to wait."""
        if len(self._known) >= self._most:
            for one in [one for one in self._known.values() if one.ended]:
                self._forget(one)
        if len(self._known) < self._most:
            return 0.0
        seconds = self._close_oldest(f"the limit is {self._most}")
        return _BUSY_SECONDS if seconds is None else seconds

    def _close_oldest(self, why: str) -> float | None:
        """Close the least recently used connection. Return 0, or the seconds until it may be closed; None: all busy."""
        one = next((each for each in self._known.values() if not each.busy and not each.ended), None)
        if one is None:
            return None
        now = loop_time()
        if now - one.since < self._min_open_seconds:
            return self._min_open_seconds - (now - one.since)
        if now - self._logged_at > _LOG_INTERVAL_SECONDS:
            log.warning("too many connections, closing the oldest", why=why)
            self._logged_at = now
        self._drop(one, CROWDED)
        return 0.0

    def _drop(self, one: _Connection, reason: str) -> None:
        self._forget(one)
        if one.ended:
            return
        one.set_up.cancel()
        if one.handler.transport is not None:
            one.handler.transport.abort()
        if self._on_close is not None:
            self._on_close(reason)

    def _forget(self, one: _Connection) -> None:
        del self._known[one.handler]
        one.stop_timer()
