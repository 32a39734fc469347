"""Watches: one stream of events per request, starting at a resourceVersion.

The store reports each change to a watch, which filters it at once and writes the collected events when it runs. Watches
share all bytes of unfiltered forms.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from aiohttp import web

from crrd_localnode.api import store as events
from crrd_localnode.api.errors import ApiError, Cause, invalid_options
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.listing import parse_revision, selection
from crrd_localnode.api.objects import Object, dumps
from crrd_localnode.api.routing import is_true
from crrd_localnode.api.selectors import Predicate
from crrd_localnode.api.store import Event, Store, Stored, event_line
from crrd_localnode.api.tables import Accepted, Form, TableForm, metadata_only

_MOST_PENDING = 100_000  # Events that a client may lag behind before its watch is ended


@dataclass(slots=True)
class Watches:
    """All watches of a server, and their common settings."""

    store: Store
    clock: Callable[[], datetime]
    bookmark_seconds: float = 60  # Interval of bookmarks, for watches that request them
    longest_seconds: float = 3600  # Duration of a watch without timeoutSeconds
    open: set["Watch"] = field(default_factory=set)

    def begin(self, kind: Kind, namespace: str, query: Mapping[str, str], form: Accepted) -> "Watch":
        """Return a watch that collects changes from now on. Raises ApiError."""
        given, match = "sendInitialEvents" in query, query.get("resourceVersionMatch", "")
        if match != ("NotOlderThan" if given else ""):
            text = "Forbidden: resourceVersionMatch goes with sendInitialEvents, and has to be NotOlderThan then"
            raise invalid_options([Cause("resourceVersionMatch", text)])
        watch = Watch(self, kind, selection(kind, namespace, query), form, query)
        watch.begin(parse_revision(query.get("resourceVersion", "")), whole=is_true(query, "sendInitialEvents"))
        return watch

    def end_all(self) -> None:
        """End all watches gracefully."""
        for watch in tuple(self.open):
            watch.end()


class Watch:
    """One watch."""

    def __init__(
        self, watches: Watches, kind: Kind, selects: Predicate | None, form: Accepted, query: Mapping[str, str]
    ) -> None:
        self._watches = watches
        self._kind = kind
        self._selects = selects
        self._form = form
        self._bookmarks = is_true(query, "allowWatchBookmarks")
        given = query.get("timeoutSeconds", "")
        self._seconds = float(given) if given.isdecimal() and given != "0" else watches.longest_seconds
        table = TableForm(kind, form.version, query.get("includeObject", ""))
        self._table = table if form.form == Form.TABLE else None
        self._pending: deque[bytes] = deque()
        self._awake = asyncio.Event()
        self._ending = False
        self._after = 0
        self._initial_end = False  # Whether the next bookmark is the one after the initial events
        self._stop_listening: Callable[[], None] = lambda: None

    def begin(self, revision: int, *, whole: bool = False) -> None:
        """Collect all changes after a resourceVersion. If it is 0, start with the existing objects.

        `whole` starts with the existing objects in any case, followed by a bookmark (sendInitialEvents). As in
        Kubernetes, a future resourceVersion is no error: there are no events until it has passed. If it is too old, the
        stream ends with an ERROR event, like that of a server with a watch cache.
        """
        store, key = self._watches.store, self._kind.key
        self._after = revision
        if whole or revision == 0:
            self._initial_end = True
            revision, objects = (store.revision, store.objects(key)) if whole else store.cached(key)
            for stored in objects.values():
                if self._selects is None or self._selects(stored.obj):
                    self._pending.append(self._line(events.ADDED, stored))
        if whole:
            self._after = revision
            if self._bookmarks:
                self._pending.append(self._bookmark())
        try:
            for event in store.since(key, revision):
                self._note(event)
        except ApiError as error:
            self._pending.append(event_line("ERROR", dumps(error.status)))
            self._ending = True
        self._awake.set()
        self._stop_listening = store.subscribe(key, self._note)
        self._watches.open.add(self)

    def end(self) -> None:
        """End the stream after the pending events."""
        self._ending = True
        self._awake.set()

    def _note(self, event: Event) -> None:
        kind = event.seen_through(self._selects)
        if kind is None or self._ending or event.revision <= self._after:
            return
        if len(self._pending) >= _MOST_PENDING:
            self.end()
        if self._form.form == Form.OBJECT and not self._kind.storage:
            self._pending.append(event.line(kind))
        else:
            self._pending.append(self._line(kind, event.object(kind)))
        self._awake.set()

    def _line(self, kind: str, stored: Stored) -> bytes:
        if self._table is not None:
            meta = {"resourceVersion": stored.obj["metadata"]["resourceVersion"]}
            return event_line(kind, dumps(self._table.table([stored], meta, self._watches.clock())))
        if self._form.form == Form.OBJECT:
            return event_line(kind, self._kind.shown(stored).text)
        return event_line(kind, dumps(metadata_only(stored, self._form.version)))

    @property
    def _revision(self) -> int:
        return self._watches.store.cached(self._kind.key)[0]

    def _bookmark(self) -> bytes:
        revision = str(self._revision)
        meta: Object = {"resourceVersion": revision, "creationTimestamp": None}
        if self._initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        self._initial_end = False
        obj = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": meta}
        if self._table is None:
            return event_line("BOOKMARK", dumps(obj))
        table = self._table.table([], {"resourceVersion": revision}, self._watches.clock())
        return event_line("BOOKMARK", dumps({**table, "rows": [{"cells": [], "object": obj}]}))

    async def run(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Serve the stream until it times out, is ended, or the client disconnects."""
        response = web.StreamResponse(headers=dict(headers))
        response.content_type = "application/json"
        response.enable_chunked_encoding()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds
        bookmark = loop.time() + self._watches.bookmark_seconds
        timers = [loop.call_at(until, self._awake.set)]
        if self._bookmarks:
            timers.append(loop.call_at(bookmark, self._awake.set))
        try:
            await response.prepare(request)
            while True:
                await self._awake.wait()
                self._awake.clear()
                now = loop.time()
                over = self._ending or now >= until
                lines = b"".join(self._pending)
                self._pending.clear()
                if self._bookmarks and not self._ending and (now >= bookmark or over):
                    if self._revision > self._after:
                        lines += self._bookmark()
                    bookmark = now + self._watches.bookmark_seconds
                    timers.append(loop.call_at(bookmark, self._awake.set))
                    del timers[1:-1]
                if lines:
                    await response.write(lines)
                if over and not self._pending:
                    await response.write_eof()
                    return response
                if over:
                    self._awake.set()
        except ConnectionError:
            return response
        finally:
            for timer in timers:
                timer.cancel()
            self._stop_listening()
            self._watches.open.discard(self)
