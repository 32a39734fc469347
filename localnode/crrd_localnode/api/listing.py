"""Lists: selection, order, pages, and which resourceVersion they are of."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from crrd_localnode.api import errors
from crrd_localnode.api.errors import Cause, bad_request
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import dumps, loads
from crrd_localnode.api.selectors import Predicate, both, field_selector, label_selector
from crrd_localnode.api.store import Name, Store, Stored


@dataclass(frozen=True, slots=True)
class Page:
    """One list's answer, or one page of it."""

    items: list[Stored]
    revision: int
    token: str = ""
    remaining: int | None = None
    """How many items are still to come; None where nothing is, or where a selector leaves it open."""


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


def _number(text: str) -> int:
    """A whole number of a query, 0 for one below it. Raises ApiError 400."""
    try:
        return max(0, int(text))
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def check_options(query: Mapping[str, str]) -> None:
    """Refuse what does not go together in a list's query. Raises ApiError 422.

    Source: `ValidateListOptions` in k8s.io/apimachinery's pkg/apis/meta/internalversion/validation.
    """
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if "sendInitialEvents" in query:
        text = "Forbidden: sendInitialEvents is forbidden for list"
        raise errors.invalid_options([Cause("sendInitialEvents", text, "FieldValueForbidden")])
    if not match:
        return
    faults = {
        "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided": not version,
        "Forbidden: resourceVersionMatch is forbidden when continue is provided": bool(query.get("continue")),
        f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""':
            match not in ("Exact", "NotOlderThan"),
        'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"':
            match == "Exact" and version == "0",
    }  # fmt: skip
    reasons = {"Forbidden": "FieldValueForbidden", "Unsupported value": "FieldValueNotSupported"}
    causes = [
        Cause("resourceVersionMatch", text, reasons[text.partition(":")[0]]) for text, holds in faults.items() if holds
    ]
    if causes:
        raise errors.invalid_options(causes)


class Listing:
    """Lists the objects of one store, of now or of any resourceVersion that its history still reaches.

    Which state a list shows and whether it comes in pages is as in Kubernetes 1.36, with the watch cache that every
    API server has: `ShouldDelegateList` and `computeListLimit` in k8s.io/apiserver's pkg/storage/cacher.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> Page:
        """The objects that a list request asks for. Raises ApiError."""
        check_options(query)
        limit = _number(query.get("limit") or "0")
        if query.get("resourceVersion") == "0":
            limit = 0  # out of the watch cache, which gives all that it has, whatever the limit
        token, after = query.get("continue", ""), ("", "")
        if token:
            revision, objects, after = self._continued(kind, query, token)
        else:
            revision, objects = self._state(kind, query, limit)
        selects = selection(kind, namespace, query)
        items = [
            stored for name, stored in sorted(objects.items()) if name > after and (not selects or selects(stored.obj))
        ]  # sorted by namespace and name, as etcd's keys are
        if not limit or len(items) <= limit:
            return Page(items, revision)
        selected = query.get("labelSelector") or query.get("fieldSelector")
        remaining = None if selected else len(items) - limit
        return Page(items[:limit], revision, _token(revision, items[limit - 1].name), remaining)

    def _state(self, kind: Kind, query: Mapping[str, str], limit: int) -> tuple[int, dict[Name, Stored]]:
        text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        asked = parse_revision(text)
        if asked > self._store.revision:
            raise errors.too_large_resource_version(asked, self._store.revision)
        if match == "Exact" or (asked and limit and not match):  # the latter since before there was a match to name
            if asked < self._store.floor(kind.key):
                raise errors.expired_list()
            return asked, self._store.at(kind.key, asked)
        if text:
            revision, objects = self._store.cached(kind.key)
            if revision >= asked:
                return revision, objects
        return self._store.revision, self._store.objects(kind.key)

    def _continued(self, kind: Kind, query: Mapping[str, str], token: str) -> tuple[int, dict[Name, Stored], Name]:
        """The state that a list was begun with, and the last name that has been shown of it."""
        if query.get("resourceVersion") not in (None, "", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        try:
            revision, namespace, name = loads(base64.urlsafe_b64decode(token))
        except ValueError:
            raise bad_request("invalid continue token: continue key is not valid") from None
        if revision == _LATEST:
            revision = self._store.revision
        if revision < self._store.floor(kind.key):
            raise errors.expired_continue(_token(_LATEST, (namespace, name)))
        return revision, self._store.at(kind.key, revision), (namespace, name)


_LATEST = -1  # In a continue token: go on with the state of now, whatever was shown before


def _token(revision: int, last: Name) -> str:
    return base64.urlsafe_b64encode(dumps([revision, *last])).decode()
