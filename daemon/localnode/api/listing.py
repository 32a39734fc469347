"""Lists: selection, order, pages, and which resourceVersion they are of.

`Cache` stands for the API server's watch cache: what a list with resourceVersion=0 is answered from, and what watches
are fed from. It is always current here, unless it is held back to show what a slow cache does to clients.
"""

import asyncio
import base64
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from daemon.localnode.api import errors
from daemon.localnode.api.errors import bad_request
from daemon.localnode.api.kinds import Kind
from daemon.localnode.api.selectors import Predicate, both, field_selector, label_selector
from daemon.localnode.api.store import Name, Store, Stored

_KEPT_LISTS = 64
"""How many lists wait for their next page; the oldest is forgotten first and then answers 410."""


@dataclass(frozen=True, slots=True)
class Page:
    """One list's answer, or one page of it."""

    items: list[Stored]
    revision: int
    token: str = ""
    remaining: int = 0


class Cache:
    """The state that lists with resourceVersion=0 show, and the gate that watch events go through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: tuple[int, dict[str, dict[Name, Stored]]] | None = None
        self.flowing = asyncio.Event()
        self.flowing.set()

    def hold(self) -> None:
        """From now on show the state of now, whatever is written."""
        held: dict[str, dict[Name, Stored]] = {}
        for key, stored in self._store.everything():
            held.setdefault(key, {})[stored.name] = stored
        self._held = (self._store.revision, held)
        self.flowing.clear()

    def release(self) -> None:
        """Catch up, and stay current."""
        self._held = None
        self.flowing.set()

    def state(self, key: str) -> tuple[int, dict[Name, Stored]]:
        """A resourceVersion, and the objects as the cache has them at that."""
        if self._held is None:
            return self._store.revision, self._store.objects(key)
        revision, held = self._held
        return revision, held.get(key, {})


def selection(kind: Kind, namespace: str, query: Mapping[str, str]) -> Predicate | None:
    """Which objects a list or watch is about, None for all. Raises ApiError 400."""
    return both(
        (lambda obj: obj["metadata"].get("namespace") == namespace) if namespace else None,
        label_selector(query.get("labelSelector", "")),
        field_selector(query.get("fieldSelector", ""), kind.fields),
    )


def parse_revision(text: str) -> int:
    """A resourceVersion as a number, 0 for none. Raises ApiError 400."""
    if text and not (text.isascii() and text.isdigit()):
        raise bad_request(f'Invalid value: "{text}": resourceVersion: invalid resource version')
    return int(text or "0")


class Listing:
    """Lists the objects of one store."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self._store = store
        self._cache = cache
        self._waiting: OrderedDict[str, Page] = OrderedDict()

    def forget_pages(self) -> None:
        """Compaction: lists that were begun cannot be continued."""
        self._waiting.clear()

    def page(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> Page:
        """The objects that a list request asks for. Raises ApiError."""
        limit = int(query["limit"]) if query.get("limit", "").isdigit() else 0
        token = query.get("continue", "")
        if token:
            waiting = self._waiting.pop(token, None)
            if waiting is None:
                raise errors.expired_continue()
            return self._cut(waiting.items, waiting.revision, limit)
        revision, objects = self._state(kind, query)
        selects = selection(kind, namespace, query)
        chosen = [
            stored for _, stored in sorted(objects.items()) if selects is None or selects(stored.obj)
        ]  # sorted by namespace and name, as etcd's keys are
        return self._cut(chosen, revision, limit)

    def _state(self, kind: Kind, query: Mapping[str, str]) -> tuple[int, dict[Name, Stored]]:
        text = query.get("resourceVersion", "")
        asked, match = parse_revision(text), query.get("resourceVersionMatch", "")
        if match not in ("", "Exact", "NotOlderThan") or (match and not text):
            raise bad_request(f"resourceVersionMatch {match!r} is forbidden or unknown here")
        if asked > self._store.revision:
            raise errors.too_large_resource_version(asked, self._store.revision)
        if match == "Exact" and asked != self._store.revision:
            raise errors.expired(asked, self._store.revision)
        if text and match != "Exact":
            revision, objects = self._cache.state(kind.key)
            if revision >= asked:
                return revision, objects
        return self._store.revision, self._store.objects(kind.key)

    def _cut(self, items: list[Stored], revision: int, limit: int) -> Page:
        if not limit or len(items) <= limit:
            return Page(items, revision)
        token = base64.urlsafe_b64encode(secrets.token_bytes(24)).decode()
        self._waiting[token] = Page(items[limit:], revision)
        while len(self._waiting) > _KEPT_LISTS:
            self._waiting.popitem(last=False)
        return Page(items[:limit], revision, token, len(items) - limit)
