"""Lists and watches objects of one kind, and passes every object and every change to a handler.

One concern per method: `run` reconnects, `_list` lists, `_watch` lives for one connection, `_deliver` handles one
event. `State` names what it does, as in kube-rs' `watcher.rs`. An event can be older than a write that crrd made
itself; the handler must cope with that.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, NoReturn, TypeVar

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.errors import FutureVersionError, MalformedAnswerError, ResourceMissingError
from crrd.kube.resources import Resource, WatchEvent, Where
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ExpiredError
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.jsonfields import text, value_at
from crrd.lib.supervise import Loop

T = TypeVar("T")

RECONNECT = Backoff(initial=0.25, factor=2.0, maximum=8.0, jitter=0.5)
_STEADY_SECONDS = 5.0
"""The end of a connection that lived this long resets the count of failures in a row."""
_FAILURES_WHILE_REACHABLE = 2
"""Limits the back-off to 1.0 to 1.5 s while the server accepts watches and drops them."""
_SHORT_SECONDS = 1.0  # A watch that ends sooner than this, without an event, is a short watch
_SHORT_WATCHES = 3
"""From this many short watches in a row, each is followed by a list, because a server that ends every watch at once
reports no changes. (client-go counts a "very short watch" as a failure, too.)"""
SILENT_SECONDS = 200.0  # Longest silence of a watch; the client ends it before that (`client.Deadlines.stall`)
_CALL_SECONDS = 240.0
"""Longest time of a call, or of one more page of a list; the client and the renewal of credentials (`config`) time out
before that."""
APPLY = "kubectl apply -f install.yaml"  # Installs the CRD and the RBAC role

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Which objects to watch, and how to parse one."""

    resource: Resource
    parse: Callable[[Mapping[str, Any]], T]
    namespace: str = ""  # "" for all
    label_selector: str = ""
    field_selector: str = ""
    list_version: str = ""
    """resourceVersion of the first list: "" for the newest, page by page; "0" for any version in the server's cache, in
    one response, so for small selections only. With "0", later lists are not older than the versions seen before."""
    pause: float = 0.0  # Seconds between a list and its watch, so that the work that the list causes gets the CPU first

    @property
    def where(self) -> Where:
        """The selection as arguments of the client's calls."""
        return Where(namespace=self.namespace, label_selector=self.label_selector, field_selector=self.field_selector)


@dataclass(frozen=True, slots=True)
class Handler(Generic[T]):
    """Receives the objects of a watch. The callbacks must be quick."""

    listed: Callable[[tuple[T, ...], str], None]  # Called with the whole list, and its resourceVersion
    changed: Callable[[T], None]
    deleted: Callable[[T], None]
    expect_list: Callable[[], None] = lambda: None
    """Called before the newest list is requested, which is not older than any event so far."""


class State(Enum):
    """What a reflector does, and the seconds after which that counts as hanging. The client times out before that."""

    LISTING = "listing", _CALL_SECONDS  # For each page
    PAUSING = "waiting before it watches", LATE_SECONDS
    OPENING = "opening a watch", _CALL_SECONDS
    WATCHING = "watching", SILENT_SECONDS  # For each event or bookmark
    WAITING = "waiting before it reconnects", LATE_SECONDS

    def __init__(self, doing: str, seconds: float) -> None:
        self.doing, self.seconds = doing, seconds


@dataclass(frozen=True, slots=True)
class Failures:
    """What went wrong with the last connections, and so how long to wait before the next one."""

    in_a_row: int = 0
    short_watches: int = 0  # In a row. An open watch counts until it has lasted

    def opened(self) -> "Failures":
        """Count a watch that the server has accepted. Only the first short ones are a success."""
        short = self.short_watches + 1
        least = _FAILURES_WHILE_REACHABLE if short <= _SHORT_WATCHES else self.in_a_row
        return Failures(min(self.in_a_row, least), short)


RestartObserver = Callable[[str, str], None]
"""Called when a connection has ended, with the resource's plural and the reason: `ended` (normally), `expired` (410),
`silent`, `refused` (4xx) or `error`."""


class Reflector(Generic[T]):
    """Lists and watches one selection while `run` runs. After a cancellation, `run` may be called again."""

    last_activity: float | None = None  # Monotonic time of the last list, event or bookmark
    last_list_time: float | None = None  # Monotonic time of the last whole list
    listed: bool = False  # Whether the handler has received a whole list, and gets its changes
    last_error: str = ""  # Why there is no connection now, "" while there is one

    def __init__(
        self,
        client: KubeClient,
        selection: Selection[T],
        handler: Handler[T],
        *,
        strict: bool,
        on_restart: RestartObserver | None = None,
    ) -> None:
        # `strict`: until the first watch is established, raise ConfigurationError for errors that only an administrator
        # can fix (400, 401, 403, 404). Later, and without `strict`, they are retried like all others.
        self.plural = selection.resource.plural  # The watched resource, as in URLs
        self._client = client
        self._selection = selection
        self._handler = handler
        self._strict = strict
        self._on_restart = on_restart
        self._version = ""
        self.list_version = selection.list_version
        """The next list must not be older than this version; "" for the newest. It survives a cancelled run."""
        self._failures = Failures()
        self._mute = False  # Whether the current watch has delivered nothing, not even a bookmark
        self.heartbeat = Heartbeat()  # Resting while `run` does not run

    def loop(self, name: str) -> Loop:
        """Return the loop of `run`, with its health and readiness."""
        return Loop(name, self.run, (self.heartbeat,), self.ready)

    def ready(self) -> str:
        """For readiness: return "" if there are a whole list and a connection, else the reason."""
        return self.last_error or ("" if self.listed else f"{self.plural} are not listed yet")

    async def run(self) -> NoReturn:
        """List, watch, reconnect, until cancelled. ConfigurationError: see `strict`."""
        self._version, self._failures = "", Failures()
        try:
            while True:
                delay = await self._connect_once()
                self._enter(State.WAITING, delay)
                await asyncio.sleep(delay)
        finally:
            self.heartbeat.rest()
            self.listed = False

    async def _connect_once(self) -> float:
        """List if needed, and watch until the connection ends. Return the seconds to wait before the next one."""
        began, self._mute = time.monotonic(), False
        before, had_version = self._failures, bool(self._version)
        ended_well, patience = False, 0.0
        try:
            if not self._version:
                await self._list()
            await self._watch()
            ended_well = True
            self._ended("ended")
        except ExpiredError as error:
            self._ended("expired")
            log.debug("watch expired", resource=self.plural, error=str(error))
            self._forget_version()
            if had_version:  # else the version expired between list and watch: without a pause this could loop
                return 0.0
        except (ApiUnavailableError, ApiRefusedError) as error:
            silent = isinstance(error.__cause__, TimeoutError)
            self._ended("refused" if isinstance(error, ApiRefusedError) else "silent" if silent else "error")
            patience = self._failed(error)
            if isinstance(error, MalformedAnswerError):
                # Not an API server, so the watch that it accepted is no success.
                self._failures = replace(self._failures, in_a_row=before.in_a_row)
        if self._failures.short_watches > max(before.short_watches, _SHORT_WATCHES - 1):
            self._forget_version()
            self._unavailable(f"the API server ends each watch of {self.plural} at once")
        if time.monotonic() - began >= _STEADY_SECONDS:
            self._failures = replace(self._failures, in_a_row=0)
            if ended_well:
                return 0.0
        self._failures = replace(self._failures, in_a_row=self._failures.in_a_row + 1)
        return max(RECONNECT.delay(self._failures.in_a_row), patience)

    def _enter(self, state: State, longer: float = 0.0) -> None:
        """Record what the reflector does now, and that it does so for this much longer than usual."""
        self.heartbeat.within(state.seconds + longer, state.doing)

    def _ended(self, reason: str) -> None:
        if self._on_restart is not None:
            self._on_restart(self.plural, reason)

    async def _list(self) -> None:
        selection, version = self._selection, self.list_version

        def parse(obj: Mapping[str, Any]) -> T:
            self._enter(State.LISTING)
            return selection.parse(obj)

        self._enter(State.LISTING)
        if not version:
            self._handler.expect_list()
        listing = await self._client.list_all(selection.resource, parse, resource_version=version, **selection.where)
        self._seen(listing.resource_version)
        self.last_activity = self.last_list_time = time.monotonic()
        self._handler.listed(listing.items, listing.resource_version)
        self.listed = True
        if selection.pause:
            self._enter(State.PAUSING, selection.pause)
            await asyncio.sleep(selection.pause)

    async def _watch(self) -> None:
        selection = self._selection
        self._enter(State.OPENING)
        async with self._client.watch(selection.resource, self._version, **selection.where) as events:
            self._established()
            lasting = asyncio.get_running_loop().call_later(_SHORT_SECONDS, self._mark_long_lived)
            try:
                async for event in events:
                    self._mark_long_lived()
                    self._deliver(event)
            finally:
                lasting.cancel()

    def _deliver(self, event: WatchEvent) -> None:
        self.last_activity, self._mute = time.monotonic(), False
        self._enter(State.WATCHING)
        self._seen(text(value_at(event.object, "metadata.resourceVersion")) or self._version)
        if event.kind in ("ADDED", "MODIFIED"):
            self._handler.changed(self._selection.parse(event.object))
        elif event.kind == "DELETED":
            self._handler.deleted(self._selection.parse(event.object))

    def _seen(self, version: str) -> None:
        """Watch on from this version; later lists must not be older (client-go's relistResourceVersion)."""
        self._version = version
        if self._selection.list_version:
            self.list_version = version

    def _forget_version(self) -> None:
        """Make the next list the newest one, because the server cannot watch from this version, or never had it."""
        self._version = self.list_version = ""

    def _established(self) -> None:
        self._mute = True
        self._enter(State.WATCHING)
        self._strict = False
        self._failures = self._failures.opened()
        if self._failures.short_watches <= _SHORT_WATCHES:
            self._available()

    def _mark_long_lived(self) -> None:
        """Record that the open watch is not a short one."""
        self._failures = replace(self._failures, short_watches=0)
        self._available()

    def _available(self) -> None:
        if self.last_error:
            log.info("API server available", resource=self.plural)
        self.last_error = ""

    def _unavailable(self, error: str) -> None:
        (log.debug if self.last_error else log.warning)("API server unavailable", resource=self.plural, error=error)
        self.last_error = error

    def _failed(self, error: ApiUnavailableError | ApiRefusedError) -> float:
        """Record a failure. Return the seconds to wait that the server asked for."""
        if isinstance(error, ApiUnavailableError):
            message, patience = str(error), error.retry_after
        else:
            message, patience = explain(error, self.plural, self._client.description), 0.0
            if self._strict and error.status in (400, 401, 403, 404):
                raise ConfigurationError(message) from error
        mute = self._mute and isinstance(error.__cause__, TimeoutError)
        if mute or isinstance(error, ApiRefusedError | MalformedAnswerError | FutureVersionError):
            # The same request would get the same answer. A watch from a version that a restored etcd has not reached
            # yet gets none at all: API servers accept it, and send no event and no bookmark.
            self._forget_version()
        self._unavailable(message)
        return patience


def explain(error: ApiRefusedError, resource: str, credentials: str) -> str:
    """Return the server's message, and what an administrator has to do."""
    if isinstance(error, ResourceMissingError):
        return f"the API server has no {resource}: install the CRD with `{APPLY}` ({error})"
    if error.status == 401:
        return f"the API server does not accept {credentials}: give crrd valid credentials ({error})"
    if error.status == 403:
        return f"crrd lacks the right to read {resource}: apply its RBAC role with `{APPLY}` ({error})"
    return str(error)
