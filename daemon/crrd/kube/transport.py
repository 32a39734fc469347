"""HTTP calls to the API server over aiohttp: session, credentials, deadlines and the translation of errors."""

import errno
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from crrd import __version__
from crrd.kube.access.config import Access, AccessSource
from crrd.kube.errors import ResourceMissingError, decode, from_answer
from crrd.kube.lanes import Lane, Lanes, routine
from crrd.kube.resources import EVENTS, LEASES, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.lib.workqueue import progressed, waits_for_turn

CallObserver = Callable[[str, str, int, float], None]
"""Called for each call: verb, resource, HTTP status (0 for no response) and seconds until the response headers."""
DateObserver = Callable[[str, float, float], None]
"""Called for each response: its Date header, and the monotonic times before the request and after the response."""

_KEEP_ALIVE_SECONDS = 60.0
"""How long an idle connection is kept, so that requests in short succession need no TLS handshake before their stop.
Well under the 90 s after which API servers close idle connections."""
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options of TCP keep-alive, as far as the system has them. macOS has TCP_KEEPALIVE instead of TCP_KEEPIDLE."""
_CONNECTION_LOST = (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError)
_CONNECTION_LOST_ERRNOS = (errno.ECONNRESET, errno.EPIPE)
"""Numbers of an aiohttp error with the same meaning: the other side did not know the connection any more (RST)."""
_WRITES = {"create": ("POST", "json"), "patch": ("PATCH", "merge-patch+json"), "delete": ("DELETE", "json")}
"""HTTP method and media type of the verbs that write; all others use GET, without a body."""
_METADATA = {"list": "PartialObjectMetadataList", "watch": "PartialObjectMetadata"}
"""The kind to request for a verb if only metadata is wanted."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the request, and how long it may take."""

    verb: str  # As in RBAC rules
    resource: Resource
    path: str
    timeout: aiohttp.ClientTimeout
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None  # A list is a JSON patch

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _WRITES[self.verb][0] if self.verb in _WRITES else "GET"

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers for the types of the request and of the response."""
        media = "json-patch+json" if isinstance(self.body, Sequence) else _WRITES.get(self.verb, ("", ""))[1]
        headers = {"Content-Type": f"application/{media}"} if media else {}
        if self.verb == "watch":  # compression could delay an event until a block is full
            headers["Accept-Encoding"] = "identity"
        if self.resource.metadata_only and self.verb in _METADATA:  # servers without support return whole objects
            headers["Accept"] = f"application/json;as={_METADATA[self.verb]};g=meta.k8s.io;v=v1,application/json"
        return headers

    @property
    def lane(self) -> Lane:
        """The call's lane, by resource and verb. Leases go first, because a leader must renew in time."""
        if self.resource == EVENTS:
            return Lane.EVENT
        if self.method != "GET" and self.resource != LEASES:
            return Lane.WRITE
        return Lane.ROUTINE if routine.get() else Lane.READ

    @property
    def namespace(self) -> str:
        """The namespace of the object, or "" for an object without one, and for calls across namespaces."""
        return self.path.partition("/namespaces/")[2].partition("/")[0]

    @property
    def what(self) -> str:
        """Verb and path, for error messages."""
        return f"{self.verb} {self.path}"


class Transport:
    """Sends calls to one API server over one session. The first call opens it."""

    def __init__(
        self,
        access: AccessSource,
        on_call: CallObserver | None,
        on_date: DateObserver | None = None,
        *,
        patient: bool = False,
    ) -> None:
        self._access = access
        self._on_call = on_call
        self._on_date = on_date
        self._patient = patient
        self._session: aiohttp.ClientSession | None = None
        self._lanes = Lanes()
        self._served: dict[Resource, str] = {}  # The version that the server serves, if it is not the usual one

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def answer(self, call: Call) -> Mapping[str, Any]:
        """Send a call, and return the response: one JSON object."""
        return decode(await self.read(call), call.what)

    async def read(self, call: Call) -> bytes:
        """Send a call, and return the response's bytes."""
        patience = None if self._patient and call.lane is not Lane.EVENT else call.timeout.total
        waits_for_turn()
        try:
            release = await self._lanes.take(call.lane, patience, call.namespace)
        except TimeoutError as error:  # the calls before it may take long, but callers rely on the deadline
            unavailable(call, error)
        finally:
            progressed()
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
            progressed()

    async def open(self, call: Call) -> aiohttp.ClientResponse:
        """Send a call, in the API version that the server serves, and return its response with the body unread."""
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
        """Send a call. If the server refuses the credentials, renew them and send it once more."""
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
        """Send a call. If the connection is cut before the response, send it once more: the connection may be stale.

        It does no harm if a write is carried out twice: creations name their object, and patches and deletions are
        idempotent or bound to a version. (aiohttp itself retries reads.)
        """
        try:
            return await self._send(call, access)
        except ApiUnavailableError as error:
            cause = error.__cause__
            was_cut = isinstance(cause, _CONNECTION_LOST) or getattr(cause, "errno", None) in _CONNECTION_LOST_ERRNOS
            if call.method == "GET" or not was_cut:
                raise
        return await self._send(call, access)

    async def _send(self, call: Call, access: Access) -> aiohttp.ClientResponse:
        """Send a request, and return the response once its headers are here. Raises an error unless it is a success."""
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
    # The body of a create names the version, too.
    body = call.body
    if call.verb == "create" and isinstance(body, Mapping):
        body = {**body, "apiVersion": other}
    return replace(call, path=call.path.replace(f"/{usual}/", f"/{other}/", 1), body=body)


def unavailable(call: Call, error: Exception) -> NoReturn:
    """Raise ApiUnavailableError for an error of aiohttp."""
    raise ApiUnavailableError(f"{call.what}: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return the text of an error of aiohttp for users. Its timeouts are TimeoutErrors, with or without a text."""
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its own text contains the proxy's password
        return f"the proxy refuses the connection: {error.message} ({error.status})"
    if isinstance(error, aiohttp.ClientConnectorError):  # its own text contains reprs of Python objects
        cause, number = error.os_error, error.os_error.errno or 0
        # TLS and the resolver (negative) have numbers of their own, which are not errno values.
        own = number > 0 and not isinstance(cause, ssl.SSLError)
        why = os.strerror(number) if own else cause.strerror or str(cause)
        proxy = "the proxy " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
        return f"cannot connect to {proxy}{error.host}:{error.port}: {why}"
    return str(error) or "no answer in time"


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket with TCP keep-alive, so that the kernel notices a dead peer after a minute."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
