"""One HTTP exchange with the API server over aiohttp: the session, credentials, deadlines, errors translated."""

import errno
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from crrd import __version__
from crrd.kube.config import Access, AccessSource
from crrd.kube.errors import ResourceMissingError, decode, from_answer
from crrd.kube.lanes import Lane, Lanes
from crrd.kube.resources import EVENTS, LEASES, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError

CallObserver = Callable[[str, str, int, float], None]
"""Called for each call: verb, resource, HTTP status (0 for no answer) and seconds until the answer began."""
DateObserver = Callable[[str, float, float], None]
"""Called for each response: its Date header, and the two monotonic times between which it was sent."""

_KEEP_ALIVE_SECONDS = 60.0
"""How long an unused connection is kept, so that a request that comes soon after another needs no TLS handshake before
its stop: well under the 90 s after which API servers close theirs."""
_CUT = (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError)
_CUT_NUMBERS = (errno.ECONNRESET, errno.EPIPE)
"""As aiohttp tells the same where the other side did not close the connection, but knew nothing of it (RST)."""
_WRITES = {"create": ("POST", "json"), "patch": ("PATCH", "merge-patch+json"), "delete": ("DELETE", "json")}
"""HTTP method and media type of the verbs that write; the others are GET and have no body."""
_METADATA = {"list": "PartialObjectMetadataList", "watch": "PartialObjectMetadata"}
"""What a verb is answered with where an object's metadata alone is wanted."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what is sent, and how long it may take."""

    verb: str  # As the rules of RBAC name it
    resource: Resource
    path: str
    timeout: aiohttp.ClientTimeout
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _WRITES[self.verb][0] if self.verb in _WRITES else "GET"

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that say what is sent, and which form the answer should have."""
        headers = {"Content-Type": f"application/{_WRITES[self.verb][1]}"} if self.verb in _WRITES else {}
        if self.verb == "watch":  # a compressed event could be held back until the next one fills a block
            headers["Accept-Encoding"] = "identity"
        if self.resource.metadata_only and self.verb in _METADATA:  # servers that do not know it send whole objects
            headers["Accept"] = f"application/json;as={_METADATA[self.verb]};g=meta.k8s.io;v=v1,application/json"
        return headers

    @property
    def lane(self) -> Lane:
        """What the call is for, by its resource and verb. A leader that cannot renew its lease in time ends."""
        if self.resource == EVENTS:
            return Lane.EVENT
        return Lane.READ if self.method == "GET" or self.resource == LEASES else Lane.WRITE

    @property
    def what(self) -> str:
        """The call in words, for errors."""
        return f"{self.verb} {self.path}"


class Transport:
    """Sends calls to one API server over one session, which is opened by the first of them."""

    def __init__(self, access: AccessSource, on_call: CallObserver | None, on_date: DateObserver | None = None) -> None:
        self._access = access
        self._on_call = on_call
        self._on_date = on_date
        self._session: aiohttp.ClientSession | None = None
        self._lanes = Lanes()
        self._served: dict[Resource, str] = {}  # The version that was answered last, where that is not the usual one

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def answer(self, call: Call) -> Mapping[str, Any]:
        """Send a call and read its answer, one JSON object."""
        return decode(await self.read(call), call.what)

    async def read(self, call: Call) -> bytes:
        """Send a call and read its answer's bytes."""
        try:
            release = await self._lanes.take(call.lane, call.timeout.total)
        except TimeoutError as error:  # those before it may take as long: callers rely on an end
            unavailable(call, error)
        try:
            response = await self.open(call)
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError) as error:
                unavailable(call, error)
            finally:
                response.release()
        finally:
            release()

    async def open(self, call: Call) -> aiohttp.ClientResponse:
        """Send a call, in the version that the server serves: one answers as well as another."""
        resource = call.resource
        served = self._served.get(resource, resource.version)
        try:
            return await self._authorized(_in_version(call, served))
        except ResourceMissingError:
            for version in (resource.version, *resource.others):
                if version != served:
                    with suppress(ResourceMissingError):
                        response = await self._authorized(_in_version(call, version))
                        self._served[resource] = version
                        return response
            raise

    async def _authorized(self, call: Call) -> aiohttp.ClientResponse:
        """Send a call; when the credentials are refused, once more with new ones."""
        access = await self._access.current()
        try:
            return await self._send_twice(call, access)
        except ApiRefusedError as error:
            if error.status != 401:
                raise
            renewed = await self._access.renew(access)
            if renewed == access:
                raise
        return await self._send(call, renewed)

    async def _send_twice(self, call: Call, access: Access) -> aiohttp.ClientResponse:
        """Send a call once more when its connection is cut before the answer: it may have been an old one.

        No write here does harm when it is carried out twice: creations name their object, patches and deletions are
        idempotent or bound to a version. (For reads, aiohttp does the same by itself.)
        """
        try:
            return await self._send(call, access)
        except ApiUnavailableError as error:
            cause = error.__cause__
            was_cut = isinstance(cause, _CUT) or getattr(cause, "errno", None) in _CUT_NUMBERS
            if call.method == "GET" or not was_cut:
                raise
        return await self._send(call, access)

    async def _send(self, call: Call, access: Access) -> aiohttp.ClientResponse:
        """One HTTP exchange up to the answer's head; an answer that is not a success is raised."""
        began = time.monotonic()
        status = 0
        try:
            response = await self._opened_session().request(
                call.method,
                URL(access.server + call.path, encoded=True),
                params=call.params,
                data=None if call.body is None else json.dumps(call.body, separators=(",", ":")).encode(),
                headers=CIMultiDict([*call.headers.items(), *access.headers.items()]),
                timeout=call.timeout,
                allow_redirects=False,
                ssl=access.tls or True,
                server_hostname=access.server_hostname,
                proxy=access.proxy,
            )
            status = response.status
            if self._on_date is not None:
                self._on_date(response.headers.get("Date", ""), began, time.monotonic())
            if 200 <= status < 300:
                return response
            async with response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            unavailable(call, error)
        finally:
            if self._on_call is not None:
                self._on_call(call.verb, call.resource.plural, status, time.monotonic() - began)
        failure = from_answer(status, body, response.headers.get("Retry-After", ""), call.what)
        if isinstance(failure, ApiRefusedError):
            failure.resource = call.resource.full_name
        raise failure

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, socket_factory=_socket),
                headers={"User-Agent": f"crrd/{__version__}", "Accept": "application/json"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _in_version(call: Call, version: str) -> Call:
    usual, other = (f"{call.resource.group}/{each}" for each in (call.resource.version, version))
    if usual == other:
        return call
    # A whole object names its version too.
    body = {**call.body, "apiVersion": other} if call.verb == "create" and call.body is not None else call.body
    return replace(call, path=call.path.replace(f"/{usual}/", f"/{other}/", 1), body=body)


def unavailable(call: Call, error: Exception) -> NoReturn:
    """Translate what aiohttp raises; its time-outs are OSErrors (TimeoutError) with or without words."""
    reason = str(error) or "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):  # its own text has Python's objects in it
        cause, number = error.os_error, error.os_error.errno or 0
        # Numbers of TLS and of the resolver (negative) are not the system's.
        own = number > 0 and not isinstance(cause, ssl.SSLError)
        why = os.strerror(number) if own else cause.strerror or str(cause)
        reason = f"cannot connect to {error.host}:{error.port}: {why}"
    raise ApiUnavailableError(f"{call.what}: {reason}") from error


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket on which the kernel notices, after a minute, that the other side has vanished without a word."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made
