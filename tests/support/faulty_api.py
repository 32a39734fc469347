"""The local API server for tests: with deliberate faults, its own clock, and a record of all calls.

It works from outside, by replacing the server's store and its HTTP front.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from crrd_localnode.api.admission import AdmissionRequest, User
from crrd_localnode.api.errors import ApiError, Cause, invalid
from crrd_localnode.api.front import Front
from crrd_localnode.api.listing import parse_revision
from crrd_localnode.api.objects import Object
from crrd_localnode.api.routing import Route
from crrd_localnode.api.store import Event, Name, Store, Stored, Subscriber
from crrd_localnode.api.watching import Watch
from crrd_localnode.apiserver import ApiServer
from tests.support.policies import transition_refused

_AUTHENTICATED = "system:authenticated"
_MESSAGES = {
    403: 'things is forbidden: User "somebody" cannot do this to resource "things" in API group ""',
    429: "The apiserver is too busy to serve the request, please try again",
    500: "Internal error occurred: a fault that was asked for",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A request, for records and faults."""

    verb: str  # Kubernetes' verb: get, list, watch, create, update, patch, delete; else the HTTP method
    path: str
    group: str = ""
    resource: str = ""  # The plural name, or "" if it is not a resource (discovery, health)
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    status: int = 0  # The HTTP status of the response, or 0 before it

    @property
    def writes(self) -> bool:
        """Whether the request could change something."""
        return self.verb in ("create", "update", "patch", "delete")


Match = Callable[[Call], bool]
_CALL = web.RequestKey("call", Call)
_NOTED = web.RequestKey("noted", bool)


@dataclass(slots=True)
class Fault:
    """A fault for the next matching requests."""

    left: int
    status: int | None  # HTTP status of the response, or None to cut the connection instead
    retry_after: int | None
    match: Match | None
    after: bool  # Whether the request is carried out first, so that only its response is lost

    def error(self) -> ApiError:
        """Return the error response, for faults with a status."""
        status = self.status or 500
        return ApiError(status, _MESSAGES.get(status, "a fault that was asked for"), retry_after=self.retry_after)


class FaultyStore(Store):
    """A store whose history can be compacted, and whose watch cache can be held back."""

    def __init__(self) -> None:
        super().__init__()
        self._compacted = 0
        self._held: tuple[int, dict[str, dict[Name, Stored]]] | None = None
        self._late: list[Callable[[], None]] = []  # Calls to subscribers that are made when the cache catches up

    def compact(self) -> None:
        """Drop the history, like etcd's compaction."""
        self._compacted = self.revision
        self._history.clear()

    def floor(self, key: str) -> int:
        return max(self._compacted, super().floor(key))

    def hold(self) -> None:
        """Keep the watch cache at the current state from now on."""
        held: dict[str, dict[Name, Stored]] = {}
        for key, stored in self.everything():
            held.setdefault(key, {})[stored.name] = stored
        self._held = (self.revision, held)

    def release(self) -> None:
        """Let the watch cache catch up and stay current."""
        self._held = None
        late, self._late = self._late, []
        for tell in late:
            tell()

    def cached(self, key: str) -> tuple[int, dict[Name, Stored]]:
        if self._held is None:
            return super().cached(key)
        revision, held = self._held
        return revision, held.get(key, {})

    def since(self, key: str, revision: int) -> list[Event]:
        found = super().since(key, revision)
        return found if self._held is None else [event for event in found if event.revision <= self._held[0]]

    def at(self, key: str, revision: int) -> dict[Name, Stored]:
        held, self._held = self._held, None
        try:
            return super().at(key, revision)
        finally:
            self._held = held

    def subscribe(self, key: str | None, subscriber: Subscriber) -> Callable[[], None]:
        """Subscribers to one key, like watches, get only changes that the cache knows."""
        if key is None:
            return super().subscribe(key, subscriber)
        listening = True

        def note(event: Event) -> None:
            if self._held is not None:
                self._late.append(lambda: note(event))
            elif listening:
                subscriber(event)

        if self._held is not None:
            for event in super().since(key, max(self._held[0], self.floor(key))):
                note(event)
        leave = super().subscribe(key, note)

        def end() -> None:
            nonlocal listening
            listening = False
            leave()

        return end


def _nobody(_call: Call) -> None:
    """Record nothing."""


@dataclass(kw_only=True)
class FaultyFront(Front):
    """Applies the faults to requests, before and after the server itself."""

    tokens: Mapping[str, User] = field(default_factory=dict)  # Bearer tokens. If empty, tokens are not checked
    note: Callable[[Call], None] = _nobody
    """Called with every request when its status is known (for a watch, when it begins)."""
    expired_as_event: bool = True
    """Whether a watch from a too old resourceVersion gets an ERROR event in a 200 stream, or else HTTP 410."""
    faults: list[Fault] = field(default_factory=list)
    running: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.running.wait()
        request[_CALL] = Call(request.method.lower(), request.path)
        response = await super().handle(request)
        if _NOTED not in request:
            self._note(request, response.status)
        return response

    async def serve(self, request: web.BaseRequest, route: Route, user: User) -> web.StreamResponse:
        user = self._user(request, user)
        kind = route.kind
        call = request[_CALL] = Call(
            route.verb, route.path, kind.group if kind else "", kind.plural if kind else "", route.subresource,
            route.namespace, route.name, user.name,
        )  # fmt: skip
        fault = self._met(call)
        if fault is not None:
            if fault.after:
                await super().serve(request, route, user)
            if fault.status is not None:
                raise fault.error()
            self._note(request, 0)
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if kind is not None and route.verb == "watch" and not self.expired_as_event:
            self.watches.store.since(kind.key, parse_revision(request.query.get("resourceVersion", "")))
        return await super().serve(request, route, user)

    async def stream(self, request: web.BaseRequest, watch: Watch) -> web.StreamResponse:
        self._note(request, 200)
        return await super().stream(request, watch)

    def _user(self, request: web.BaseRequest, anonymous: User) -> User:
        """Return the request's user. Raises ApiError 401 for an unknown token."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self.tokens:
            return anonymous
        user = self.tokens.get(token.strip())
        if user is None:
            raise ApiError(401, "Unauthorized")
        return user if _AUTHENTICATED in user.groups else replace(user, groups=(*user.groups, _AUTHENTICATED))

    def _met(self, call: Call) -> Fault | None:
        """Return the fault for this request, or None."""
        for fault in self.faults:
            if fault.match is None or fault.match(call):
                fault.left -= 1
                if fault.left <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    def _note(self, request: web.BaseRequest, status: int) -> None:
        request[_NOTED] = True
        self.note(replace(request[_CALL], status=status))


def _now() -> datetime:
    return datetime.now(UTC)


async def _hold_to_rules(asked: AdmissionRequest) -> None:
    """Check the CRD's transition rules, which the local API server does not evaluate. Raises 422 if one is violated.

    Validation is later than in a real server, but like there only objects that match the schema are checked.
    """
    if asked.kind.schema is None or asked.old is None or asked.new is None:
        return
    if message := transition_refused(dict(asked.kind.schema.openapi), asked.old, asked.new):
        cause = Cause("<nil>", f'Invalid value: "object": {message}')
        raise invalid(asked.kind.group, asked.kind.kind, asked.name, [cause])


class FaultyApiServer(ApiServer):
    """The API server with faults on request."""

    STORE = FaultyStore
    FRONT = FaultyFront
    store: FaultyStore
    front: FaultyFront

    def __init__(
        self,
        port: int = 0,
        crds: Sequence[Object] | None = None,
        *,
        tokens: Mapping[str, User] | None = None,
        log: Callable[[Call], None] = _nobody,
        clock: Callable[[], datetime] = _now,
        bookmark_seconds: float = 60,
        watch_seconds: float = 3600,
        expired_as_event: bool = True,
        history: int = 4096,
    ) -> None:
        """`crds` replaces the project's own. The other options are those of `FaultyFront`, `Watches`, `Store.kept`."""
        self._clock = clock
        super().__init__(port)
        self.admission.validating.append(_hold_to_rules)
        if crds is not None:
            self.crds = list(crds)
        self.store.kept = history
        self.watches.bookmark_seconds = bookmark_seconds
        self.watches.longest_seconds = watch_seconds
        self.front.tokens = dict(tokens or {})
        self.front.note = log
        self.front.expired_as_event = expired_as_event
        self.front.running.set()

    def now(self) -> datetime:
        return self._clock()

    async def stop(self) -> None:
        self.resume()
        await super().stop()

    def kubeconfig(self, path: Path, *, token: str = "") -> Path:
        """Write a kubeconfig file, with a bearer token if one is given."""
        super().kubeconfig(path)
        if token:
            config = json.loads(path.read_bytes())
            config["users"][0]["user"] = {"token": token}
            path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def compact(self) -> None:
        """Drop all history: earlier watches and continued lists get 410 Expired. Running watches continue."""
        self.store.compact()

    def drop_connections(self) -> None:
        """Abort every open connection, like a crash or a network failure. New connections are accepted."""
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def pause(self) -> None:
        """Stall: connections and requests are accepted, but there are no responses and no events.

        A request whose client gives up during the stall is not carried out.
        """
        self.front.running.clear()
        self.store.hold()

    def resume(self) -> None:
        """End a stall, and handle the waiting requests."""
        self.front.running.set()
        self.store.release()

    def hold_cache(self) -> None:
        """Let the watch cache fall behind: watches get no events, and lists with resourceVersion=0 show the past."""
        self.store.hold()

    def release_cache(self) -> None:
        """Let the watch cache catch up."""
        self.store.release()

    def end_watches(self) -> None:
        """End all open watches gracefully, like the server after their timeout."""
        self.watches.end_all()

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
        return len(self.watches.open)

    def fail_next(
        self,
        count: int = 1,
        status: int | None = 500,
        retry_after: int | None = None,
        match: Match | None = None,
        *,
        after: bool = False,
    ) -> None:
        """Make the next requests fail.

        Args:
            count: the number of requests.
            status: their HTTP status; None to cut the connection.
            retry_after: seconds for a Retry-After header.
            match: selects the requests; all without it.
            after: carry the request out, and lose only its response.
        """
        self.front.faults.append(Fault(count, status, retry_after, match, after))

    def clear_faults(self) -> None:
        """Remove the faults of `fail_next` that have not happened yet."""
        self.front.faults.clear()
