"""Lists: selection, order, pages, and their resourceVersion, which is the latest or any one in the history.

The returned state and paging are those of Kubernetes 1.36 with the watch cache that every API server has:
`ShouldDelegateList` and `computeListLimit` in k8s.io/apiserver's pkg/storage/cacher.
"""

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
    """A list, or one page of it."""

    items: list[Stored]
    revision: int
    token: str = ""
    remaining: int | None = None  # Number of remaining items. None if there are none, or unknown (with a selector)


def selection(kind: Kind, namespace: str, query: Mapping[str, str]) -> Predicate | None:
    """Return the predicate of a list or watch, or None for all objects. Raises ApiError 400."""
    return both(
        (lambda obj: obj["metadata"].get("namespace") == namespace) if namespace else None,
        label_selector(query.get("labelSelector", "")),
        field_selector(query.get("fieldSelector", ""), kind.fields),
    )


def parse_revision(text: str) -> int:
    """Parse a resourceVersion; 0 if it is empty. Raises ApiError 400."""
    if text and not (text.isascii() and text.isdigit()):
        raise bad_request(f'Invalid value: "{text}": resourceVersion: invalid resource version')
    return int(text or "0")


def check_options(query: Mapping[str, str]) -> None:
    """Raise 422 if a list's parameters contradict each other: apimachinery's `ValidateListOptions`."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if "sendInitialEvents" in query:
        text = "Forbidden: sendInitialEvents is forbidden for list"
        raise errors.invalid_options([Cause("sendInitialEvents", text)])
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
    causes = [Cause("resourceVersionMatch", text) for text, holds in faults.items() if holds]
    if causes:
        raise errors.invalid_options(causes)


def list_page(store: Store, kind: Kind, namespace: str, query: Mapping[str, str]) -> Page:
    """Return the objects of a list request. Raises ApiError."""
    check_options(query)
    text = query.get("limit") or "0"
    try:
        limit = max(0, int(text))
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
    if query.get("resourceVersion") == "0":
        limit = 0  # from the watch cache, which ignores the limit
    token, after = query.get("continue", ""), ("", "")
    if token:
        revision, objects, after = _continued(store, kind, query, token)
    else:
        revision, objects = _state(store, kind, query, limit)
    selects = selection(kind, namespace, query)
    items = [
        stored for name, stored in sorted(objects.items()) if name > after and (not selects or selects(stored.obj))
    ]  # sorted by namespace and name, as etcd's keys
    if not limit or len(items) <= limit:
        return Page(items, revision)
    selected = query.get("labelSelector") or query.get("fieldSelector")
    remaining = None if selected else len(items) - limit
    return Page(items[:limit], revision, _token(revision, items[limit - 1].name), remaining)


def _state(store: Store, kind: Kind, query: Mapping[str, str], limit: int) -> tuple[int, dict[Name, Stored]]:
    text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    asked = parse_revision(text)
    if asked > store.revision:
        raise errors.too_large_resource_version(asked, store.revision)
    if match == "Exact" or (asked and limit and not match):  # the latter is older than resourceVersionMatch
        if asked < store.floor(kind.key):
            raise errors.ApiError(410, "The resourceVersion for the provided list is too old.")
        return asked, store.at(kind.key, asked)
    if text:
        revision, objects = store.cached(kind.key)
        if revision >= asked:
            return revision, objects
    return store.revision, store.objects(kind.key)


def _continued(store: Store, kind: Kind, query: Mapping[str, str], token: str) -> tuple[int, dict[Name, Stored], Name]:
    """Return the state of a continued list, and the last name that was returned."""
    if query.get("resourceVersion") not in (None, "", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    try:
        revision, namespace, name = loads(base64.urlsafe_b64decode(token))
    except ValueError:
        raise bad_request("invalid continue token: continue key is not valid") from None
    if revision == _LATEST:
        revision = store.revision
    if revision < store.floor(kind.key):
        raise errors.expired_continue(_token(_LATEST, (namespace, name)))
    return revision, store.at(kind.key, revision), (namespace, name)


_LATEST = -1  # In a continue token: continue with the latest state


def _token(revision: int, last: Name) -> str:
    return base64.urlsafe_b64encode(dumps([revision, *last])).decode()
