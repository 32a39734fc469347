"""An HTTP client session in memory that replaces aiohttp's, for the product's transport and hooks.

Requests go to the server behind a URL's host. Responses, and aiohttp's errors if there is none, arrive in virtual time.
A request that was sent is carried out even if its caller has gone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol, Self

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict
from yarl import URL


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as a server receives it."""

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    body: bytes | None
    port: int | None = None


class Reply:
    """Receives a server's response. The caller may have gone meanwhile."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.whole = False  # Whether the response was delivered completely, with status and body

    def answer(self, response: "Response") -> None:
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    @property
    def given_up(self) -> bool:
        return self.future.cancelled() or (self.future.done() and self.future.exception() is not None)


class Network(Protocol):
    """The network of a process."""

    def send(self, sent: Sent, reply: Reply) -> None: ...


NETWORK: ContextVar[Network] = ContextVar("NETWORK")  # The network of the daemon's life to which a task belongs


class Stream:
    """The body of a response, as it arrives."""

    def __init__(self) -> None:
        self._chunks: deque[bytes | Exception | None] = deque()
        self._wanted: asyncio.Future[None] | None = None
        self.silence: float | None = None  # aiohttp's sock_read
        self.deadline: float | None = None  # Loop time at which the whole call times out

    def feed(self, chunk: bytes | Exception | None) -> None:
        """Add a chunk of the body, an error of the connection, or None for the end."""
        self._chunks.append(chunk)
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def next(self) -> bytes:
        """Return the next chunk, or b"" at the end."""
        if not self._chunks:
            await self._wait()
        found = self._chunks[0]
        if isinstance(found, bytes):
            self._chunks.popleft()
            return found
        if found is None:
            return b""
        raise found

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._wanted = wanted = loop.create_future()
        limits: list[tuple[float, Exception]] = []
        if self.silence is not None:
            limits.append(
                (loop.time() + self.silence, aiohttp.SocketTimeoutError("Timeout on reading data from socket"))
            )
        if self.deadline is not None:
            limits.append((self.deadline, TimeoutError()))
        if not limits:
            await wanted
            return
        at, error = min(limits, key=lambda limit: limit[0])
        timer = loop.call_at(at, lambda: None if wanted.done() else wanted.set_exception(error))
        try:
            await wanted
        finally:
            timer.cancel()

    async def iter_any(self) -> AsyncIterator[bytes]:
        while chunk := await self.next():
            yield chunk

    async def read(self, most: int = -1) -> bytes:
        """Like aiohttp's: return what has arrived, if it is small."""
        return await self.next()


class Response:
    """A response: its head, and a body that may still be arriving."""

    def __init__(self, status: int, body: bytes | None = b"", headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.headers: CIMultiDict[str] = CIMultiDict(headers or {})
        self.content = Stream()
        self.closed = False
        if body is not None:
            if body:
                self.content.feed(body)
            self.content.feed(None)

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.content.iter_any()])

    async def text(self) -> str:
        return (await self.read()).decode()

    def release(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


class _Getting:
    """`async with session.get(...)`, which can also be awaited."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __await__(self) -> Any:
        return self._work.__await__()

    async def __aenter__(self) -> Response:
        response: Response = await self._work
        return response

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""


class Session:
    """Replaces `aiohttp.ClientSession`."""

    def __init__(self, *, timeout: aiohttp.ClientTimeout | None = None, **_: Any) -> None:
        self._timeout = timeout or aiohttp.ClientTimeout(total=300)
        self._network = NETWORK.get()
        self.closed = False

    def request(self, method: str, url: URL | str, **options: Any) -> _Getting:
        return _Getting(self._request(method, URL(url), **options))

    def get(self, url: URL | str, **options: Any) -> _Getting:
        return self.request("GET", url, **options)

    def post(self, url: URL | str, **options: Any) -> _Getting:
        return self.request("POST", url, **options)

    async def _request(
        self,
        method: str,
        url: URL,
        *,
        params: Mapping[str, str] | None = None,
        data: bytes | BytesIO | None = None,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 - aiohttp's
        **_: Any,
    ) -> Response:
        if self.closed:
            raise RuntimeError("Session is closed")
        limits = timeout or self._timeout
        loop = asyncio.get_running_loop()
        reply = Reply()
        deadline = None if limits.total is None else loop.time() + limits.total
        timer = None if deadline is None else loop.call_at(deadline, reply.fail, TimeoutError())
        silence = None
        if limits.sock_read is not None:  # applies to the response's head too
            late = aiohttp.SocketTimeoutError("Timeout on reading data from socket")
            silence = loop.call_later(limits.sock_read, reply.fail, late)
        query = dict(params) if params else dict(url.query)
        try:
            body = data.read() if isinstance(data, BytesIO) else data
            self._network.send(Sent(method, url.host or "", url.path, query, body, url.port), reply)
            response = await reply.future
        finally:
            for pending in (timer, silence):
                if pending is not None:
                    pending.cancel()
        response.content.silence, response.content.deadline = limits.sock_read, deadline
        return response

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Raw:
    """Both ends of a raw connection for HTTP: one request, and the start of its response."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reply = Reply()

    def write(self, data: bytes) -> None:
        method, path, _ = data.decode().split(" ", 2)
        NETWORK.get().send(Sent(method, self._host, path, {}, None, self._port), self._reply)

    async def read(self, most: int) -> bytes:
        try:
            await self._reply.future
        except aiohttp.ClientConnectorError as error:
            raise ConnectionRefusedError(111, "Connection refused") from error
        return b"HTTP/1.1"[:most]

    def close(self) -> None:
        """The response is not read any more."""


async def open_connection(host: str, port: int) -> tuple[_Raw, _Raw]:
    """Replaces `asyncio.open_connection`."""
    raw = _Raw(host, port)
    return raw, raw


def refused(host: str, port: int) -> aiohttp.ClientConnectorError:
    """Return the error of a host on which nothing listens."""
    key = ConnectionKey(host, port, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)
    return aiohttp.ClientConnectorError(key, ConnectionRefusedError(111, "Connection refused"))
