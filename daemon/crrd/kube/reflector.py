"""List and watch without end: tells a handler about every object of one kind as the API server has it.

One concern per method: `run` reconnects, `_list` lists, `_watch` lives for one connection, `_deliver` handles one
event. What the objects mean is the handler's business; so is that an event can be older than a write of its own.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.errors import FutureVersionError, MalformedAnswerError, ResourceMissingError
from crrd.kube.resources import Resource, WatchEvent, Where
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ExpiredError
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.jsonfields import text, value_at

T = TypeVar("T")

RECONNECT = Backoff(initial=0.25, factor=2.0, maximum=8.0, jitter=0.5)
_STEADY_SECONDS = 5.0
"""A connection that lived this long was a good one: its end is the first failure in a row, not one more."""
_FAILURES_WHILE_REACHABLE = 2
"""A server that accepts watches and drops them is asked again after half a second or so, not ever more rarely."""
_SHORT_SECONDS = 1.0  # A watch that ends before this, without an event, is a short one
_SHORT_WATCHES = 3
"""After so many short watches in a row a list follows each of them: a server that ends every watch at once tells of no
change otherwise. (client-go counts a "very short watch" as a failure, too.)"""
SILENT_SECONDS = 200.0  # The longest that a watch is silent: the client gives it up before (`client.Deadlines.stall`)
_CALL_SECONDS = 240.0
"""The longest that a call takes to be answered, or one more page of a list to come: the client gives up before, and so
does what gives credentials (`config`)."""
APPLY = "kubectl apply -f install.yaml"  # What brings the CRD and the RBAC role

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """What is watched, and how an object is read."""

    resource: Resource
    parse: Callable[[Mapping[str, Any]], T]
    namespace: str = ""  # "" for all
    label_selector: str = ""
    field_selector: str = ""
    list_version: str = ""
    """resourceVersion of the first list: "" for the newest, page by page; "0" for whatever the server has at hand, all
    in one answer, so for small selections only. With "0", later lists are not older than what was seen before."""
    pause: float = 0.0
    """Seconds between a list and the watch that goes on from it: what follows from the list has the processor first."""

    @property
    def where(self) -> Where:
        """For the client's calls."""
        return Where(namespace=self.namespace, label_selector=self.label_selector, field_selector=self.field_selector)


@dataclass(frozen=True, slots=True)
class Handler(Generic[T]):
    """Receives the objects of a watch. Calls are synchronous and quick."""

    listed: Callable[[tuple[T, ...], str], None]  # The whole list, and its resourceVersion
    changed: Callable[[T], None]
    deleted: Callable[[T], None]
    expect_list: Callable[[], None] = lambda: None
    """The newest list is asked for now, which is not older than any event before."""


RestartObserver = Callable[[str, str], None]
"""Called when a connection has ended: the resource's plural, and why: `ended` (in order), `expired` (410), `silent`,
`refused` (4xx) or `error`."""


class Reflector(Generic[T]):
    """Lists and watches one selection for as long as `run` runs; may be run again after it was cancelled."""

    last_activity: float | None = None  # Monotonic time at which the API server last said anything, None before
    last_list_time: float | None = None  # Monotonic time of the last whole list, None before
    listed: bool = False  # Whether the handler has a whole list and is kept up to date from there
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
        # `strict`: until the first watch is established, a refusal that only an administrator can heal is raised as
        # ConfigurationError. Afterwards, or else, it is retried like any other.
        self.plural = selection.resource.plural  # What it watches, as in URLs
        self._client = client
        self._selection = selection
        self._handler = handler
        self._strict = strict
        self._on_restart = on_restart
        self._version = ""
        self.list_version = selection.list_version
        """What the next list must not be older than, "" for the newest; kept over a cancelled run."""
        self._failures = 0
        self._short_watches = 0  # In a row; the one that is open counts until it has proved to be none
        self.heartbeat = Heartbeat()  # Resting while it does not run

    async def run(self) -> NoReturn:
        """List, watch, reconnect, until cancelled. ConfigurationError: see `strict`."""
        self._version = ""
        self._failures = self._short_watches = 0
        try:
            while True:
                delay = await self._connect_once()
                self.heartbeat.within(delay + LATE_SECONDS, "waiting before it reconnects")
                await asyncio.sleep(delay)
        finally:
            self.heartbeat.rest()
            self.listed = False

    async def _connect_once(self) -> float:
        """One connection from its list or its version to its end; the seconds to wait before the next one."""
        began = time.monotonic()
        failures, short_watches, had_version = self._failures, self._short_watches, bool(self._version)
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
            if had_version:  # else a list expired before it was watched: that could go round and round
                return 0.0
        except (ApiUnavailableError, ApiRefusedError) as error:
            silent = isinstance(error.__cause__, TimeoutError)
            self._ended("refused" if isinstance(error, ApiRefusedError) else "silent" if silent else "error")
            patience = self._failed(error)
            if isinstance(error, MalformedAnswerError):
                self._failures = failures  # the server that accepted the watch is not an API server
        if self._short_watches > short_watches and self._short_watches >= _SHORT_WATCHES:
            self._forget_version()
            self._unavailable(f"the API server ends each watch of {self.plural} at once")
        if time.monotonic() - began >= _STEADY_SECONDS:
            self._failures = 0
            if ended_well:
                return 0.0
        self._failures += 1
        return max(RECONNECT.delay(self._failures), patience)

    def _ended(self, reason: str) -> None:
        if self._on_restart is not None:
            self._on_restart(self.plural, reason)

    async def _list(self) -> None:
        selection, version = self._selection, self.list_version

        def parse(obj: Mapping[str, Any]) -> T:
            self.heartbeat.within(_CALL_SECONDS, "listing")
            return selection.parse(obj)

        self.heartbeat.within(_CALL_SECONDS, "listing")
        if not version:
            self._handler.expect_list()
        listing = await self._client.list_all(selection.resource, parse, resource_version=version, **selection.where)
        self._seen(listing.resource_version)
        self.last_activity = self.last_list_time = time.monotonic()
        self._handler.listed(listing.items, listing.resource_version)
        self.listed = True
        if selection.pause:
            self.heartbeat.within(selection.pause + LATE_SECONDS, "waiting before it watches")
            await asyncio.sleep(selection.pause)

    async def _watch(self) -> None:
        selection = self._selection
        self.heartbeat.within(_CALL_SECONDS, "opening a watch")
        async with self._client.watch(selection.resource, self._version, **selection.where) as events:
            self._established()
            lasting = asyncio.get_running_loop().call_later(_SHORT_SECONDS, self._lasts)
            try:
                async for event in events:
                    self._lasts()
                    self._deliver(event)
            finally:
                lasting.cancel()

    def _deliver(self, event: WatchEvent) -> None:
        self.last_activity = time.monotonic()
        self.heartbeat.within(SILENT_SECONDS, "watching")
        self._seen(text(value_at(event.object, "metadata.resourceVersion")) or self._version)
        if event.kind in ("ADDED", "MODIFIED"):
            self._handler.changed(self._selection.parse(event.object))
        elif event.kind == "DELETED":
            self._handler.deleted(self._selection.parse(event.object))

    def _seen(self, version: str) -> None:
        """Go on from this version; what is listed after it must not be older (client-go's relistResourceVersion)."""
        self._version = version
        if self._selection.list_version:
            self.list_version = version

    def _forget_version(self) -> None:
        """The server has no way on from this version, or never had it: its newest list is never older."""
        self._version = self.list_version = ""

    def _established(self) -> None:
        self.last_activity = time.monotonic()
        self.heartbeat.within(SILENT_SECONDS, "watching")
        self._strict = False
        self._short_watches += 1
        if self._short_watches <= _SHORT_WATCHES:
            self._failures = min(self._failures, _FAILURES_WHILE_REACHABLE)
            self._available()

    def _lasts(self) -> None:
        """The watch is not a short one."""
        self._short_watches = 0
        self._available()

    def _available(self) -> None:
        if self.last_error:
            log.info("API server available", resource=self.plural)
        self.last_error = ""

    def _unavailable(self, error: str) -> None:
        (log.debug if self.last_error else log.warning)("API server unavailable", resource=self.plural, error=error)
        self.last_error = error

    def _failed(self, error: ApiUnavailableError | ApiRefusedError) -> float:
        """Note a failure; the seconds that the server asked to wait."""
        if isinstance(error, ApiUnavailableError):
            message, patience = str(error), error.retry_after
        else:
            message, patience = explain(error, self.plural, self._client.description), 0.0
            if self._strict and error.status in (400, 401, 403, 404):
                raise ConfigurationError(message) from error
        if isinstance(error, ApiRefusedError | MalformedAnswerError | FutureVersionError):
            self._forget_version()  # asked the same way, the server would answer the same
        self._unavailable(message)
        return patience


def explain(error: ApiRefusedError, resource: str, credentials: str) -> str:
    """What the server said, and what an administrator has to do about it."""
    if isinstance(error, ResourceMissingError):
        return f"the API server has no {resource}: install the CRD with `{APPLY}` ({error})"
    if error.status == 401:
        return f"the API server does not accept {credentials}: give crrd valid credentials ({error})"
    if error.status == 403:
        return f"crrd lacks the right to read {resource}: apply its RBAC role with `{APPLY}` ({error})"
    return str(error)
