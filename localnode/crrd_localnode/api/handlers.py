"""One method per verb: from a routed request to its answer; what writes mean is in `writes` and `deletion`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonpatch

from crrd_localnode.api.admission import User
from crrd_localnode.api.deletion import Deletion, delete_options
from crrd_localnode.api.errors import ApiError, bad_request, unsupported_media_type
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.listing import Listing, Page
from crrd_localnode.api.merge_patch import merge_patch
from crrd_localnode.api.objects import Object, dumps, loads, metadata
from crrd_localnode.api.routing import Route
from crrd_localnode.api.store import Stored
from crrd_localnode.api.strategic_patch import strategic_merge_patch
from crrd_localnode.api.tables import Accepted, Form, TableForm, metadata_only
from crrd_localnode.api.writes import Asking, Make, Target, Writes

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read whole."""

    route: Route
    kind: Kind
    query: Mapping[str, str]
    body: bytes
    content_type: str
    form: Accepted
    user: User

    @property
    def target(self) -> Target:
        """What it is about."""
        return Target(self.kind, self.route.namespace, self.route.name, self.route.subresource)

    def asking(self) -> Asking:
        """Who writes and how, from the query. Raises ApiError 400."""
        dry_run = self.query.get("dryRun", "")
        if dry_run not in ("", "All"):
            raise bad_request(f'Invalid value: "{dry_run}": dryRun: supported values: "All"')
        return Asking(self.user, dry_run == "All", self.query.get("fieldValidation") == "Strict")

    def json(self) -> Any:
        """The body's value. Raises ApiError 400 or 415."""
        if self.content_type not in ("application/json", "", "application/octet-stream"):
            raise unsupported_media_type(self.content_type, ["application/json"])
        return _parsed(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, JSON body, and what the client is to be warned of."""

    status: int
    body: bytes
    warnings: list[str] = field(default_factory=list)


def _parsed(body: bytes) -> Any:
    try:
        return loads(body)
    except ValueError as error:
        raise bad_request(f"the object provided is unrecognized (not JSON): {error}") from error


def patch_maker(kind: Kind, content_type: str, body: bytes) -> Make:
    """What a patch of this content type makes of an object. Raises ApiError 415 for other types, 400 for bad bodies."""
    supported = [JSON_PATCH, MERGE_PATCH, *([] if kind.custom else [STRATEGIC_MERGE_PATCH])]
    if content_type not in supported:
        raise unsupported_media_type(content_type, supported)
    patch = _parsed(body)
    if content_type == JSON_PATCH:
        if not isinstance(patch, list) or not all(isinstance(operation, dict) for operation in patch):
            raise bad_request("a JSON patch is a list of operations")
        return lambda obj: _json_patched(obj, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch is an object")
    if content_type == MERGE_PATCH:
        return lambda obj: merge_patch(obj, patch)
    return lambda obj: strategic_merge_patch(obj, patch)


def _json_patched(obj: Object, patch: list[Object]) -> Any:
    try:
        return jsonpatch.apply_patch(obj, patch)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        # The real server does not say more either, be it a `test` that said no or a path that leads nowhere.
        raise ApiError(422, "the server rejected our request due to an error in our request") from error


class Handlers:
    """Answers requests for resources, all but watches."""

    def __init__(self, writes: Writes, deletion: Deletion, listing: Listing) -> None:
        self._writes = writes
        self._store = writes.store
        self._deletion = deletion
        self._listing = listing

    async def answer(self, request: Request) -> Answer:
        """The answer. Raises ApiError."""
        match request.route.verb:
            case "get":
                return self._get(request)
            case "list":
                page = self._listing.page(request.kind, request.route.namespace, request.query)
                return Answer(200, self._list_body(request, page))
            case "create":
                asking = request.asking()
                stored = await self._writes.create(request.target, request.json(), asking)
                return self._object(request, stored, 201, asking.warnings)
            case "update":
                asking, body = request.asking(), request.json()
                stored = await self._writes.update(request.target, lambda _old: body, asking, put=True)
                return self._object(request, stored, 200, asking.warnings)
            case "patch":
                asking = request.asking()
                make = patch_maker(request.kind, request.content_type, request.body)
                stored = await self._writes.update(request.target, make, asking)
                return self._object(request, stored, 200, asking.warnings)
            case _:
                return await self._delete(request)

    def _get(self, request: Request) -> Answer:
        stored = self._store.get(request.kind.key, request.target.key)
        if stored is None:
            raise request.target.missing()
        return self._object(request, stored, 200, [])

    def _object(self, request: Request, stored: Stored, status: int, warnings: list[str]) -> Answer:
        stored = request.kind.shown(stored)
        match request.form.form:
            case Form.TABLE:
                meta = {"resourceVersion": stored.obj["metadata"]["resourceVersion"]}
                return Answer(status, self._table(request, [stored], meta), warnings)
            case Form.METADATA:
                return Answer(status, dumps(metadata_only(stored, request.form.version)), warnings)
            case _:
                return Answer(status, stored.text, warnings)

    def _table(self, request: Request, items: Iterable[Stored], meta: Object) -> bytes:
        form = TableForm(request.kind, request.form.version, request.query.get("includeObject", ""))
        return dumps(form.table(items, meta, self._writes.clock()))

    def _list_body(self, request: Request, page: Page) -> bytes:
        meta: Object = {"resourceVersion": str(page.revision)}
        if page.token:
            meta["continue"] = page.token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
        kind = request.kind
        match request.form.form:
            case Form.TABLE:
                return self._table(request, page.items, meta)
            case Form.METADATA_LIST:
                items = [metadata_only(item, request.form.version) for item in page.items]
                version = f"meta.k8s.io/{request.form.version}"
                return dumps({"kind": request.form.form, "apiVersion": version, "metadata": meta, "items": items})
            case _:
                head = dumps({"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": meta})[:-1]
                return b'%s,"items":[%s]}' % (head, b",".join(_items(kind, page.items)))

    async def _delete(self, request: Request) -> Answer:
        asking = request.asking()
        body = request.json() if request.body else None
        options = delete_options(body, request.query.get("gracePeriodSeconds"))
        asking.dry_run = asking.dry_run or bool(body and body.get("dryRun"))
        stored, gone = await self._deletion.delete(request.target, options, asking)
        if not gone or request.kind.returns_deleted:
            return self._object(request, stored, 200, [])
        kind = request.kind
        details = {
            "name": request.route.name,
            "group": kind.group,
            "kind": kind.plural,
            "uid": metadata(stored.obj)["uid"],
        }
        if not kind.group:
            del details["group"]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Answer(200, dumps(status))


def _items(kind: Kind, items: Iterable[Stored]) -> Iterable[bytes]:
    """The objects as a list has them: those of built-in kinds leave out what the list says of them all."""
    if kind.custom:
        return (kind.shown(item).text for item in items)
    head = dumps({"kind": kind.kind, "apiVersion": kind.api_version})[:-1] + b","
    return (b"{" + item.text[len(head) :] if item.text.startswith(head) else _without_kind(item) for item in items)


def _without_kind(stored: Stored) -> bytes:
    return dumps({name: value for name, value in stored.obj.items() if name not in ("kind", "apiVersion")})
