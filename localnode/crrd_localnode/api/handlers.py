"""One method per verb, from a routed request to its response. `writes` and `deletion` implement writes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crrd_localnode.api.admission import User
from crrd_localnode.api.deletion import Deletion, delete_options
from crrd_localnode.api.errors import bad_request, details, unsupported_media_type
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.listing import Page, list_page
from crrd_localnode.api.meta import check_shape
from crrd_localnode.api.objects import Object, dumps, metadata
from crrd_localnode.api.patches import parsed, patch_maker
from crrd_localnode.api.routing import Route
from crrd_localnode.api.store import Stored
from crrd_localnode.api.tables import Accepted, Form, TableForm, metadata_only
from crrd_localnode.api.writes import Asking, Target, Writes


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its body."""

    route: Route
    kind: Kind
    query: Mapping[str, str]
    body: bytes
    content_type: str
    form: Accepted
    user: User

    @property
    def target(self) -> Target:
        """The object of the request."""
        return Target(self.kind, self.route.namespace, self.route.name, self.route.subresource)

    def asking(self) -> Asking:
        """Read the options of a write from the query. Raises ApiError 400."""
        dry_run = self.query.get("dryRun", "")
        if dry_run not in ("", "All"):
            raise bad_request(f'Invalid value: "{dry_run}": dryRun: supported values: "All"')
        return Asking(self.user, dry_run == "All", self.query.get("fieldValidation") == "Strict")

    def json(self) -> Any:
        """Parse the body. Raises ApiError 400 or 415."""
        if self.content_type not in ("application/json", "", "application/octet-stream"):
            raise unsupported_media_type(self.content_type, ["application/json"])
        return parsed(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, JSON body, and warnings for the client."""

    status: int
    body: bytes
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Handlers:
    """Answers requests for resources, except watches."""

    _writes: Writes
    _deletion: Deletion

    async def answer(self, request: Request) -> Answer:
        """Return the answer. Raises ApiError."""
        verb, target = request.route.verb, request.target
        if not request.kind.stored:
            return Answer(201, dumps(request.kind.on_create(check_shape(request.kind, request.json(), ""))))
        if verb == "get":
            stored = self._writes.store.get(request.kind.key, target.key)
            if stored is None:
                raise target.missing()
            return Answer(200, self._object_body(request, stored))
        if verb == "list":
            page = list_page(self._writes.store, request.kind, request.route.namespace, request.query)
            return Answer(200, self._list_body(request, page))
        asking = request.asking()
        if verb == "delete":
            return Answer(200, await self._delete(request, asking))
        if verb == "create":
            stored = await self._writes.create(target, request.json(), asking)
        elif verb == "update":
            body = request.json()
            stored = await self._writes.update(target, lambda _old: body, asking, put=True)
        else:
            make = patch_maker(request.kind, request.content_type, request.body)
            stored = await self._writes.update(target, make, asking)
        return Answer(201 if verb == "create" else 200, self._object_body(request, stored), asking.warnings)

    def _object_body(self, request: Request, stored: Stored) -> bytes:
        stored = request.kind.shown(stored)
        match request.form.form:
            case Form.TABLE:
                meta = {"resourceVersion": stored.obj["metadata"]["resourceVersion"]}
                return self._table(request, [stored], meta)
            case Form.METADATA:
                return dumps(metadata_only(stored, request.form.version))
            case _:
                return stored.text

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
                head = dumps({"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta})[:-1]
                return b'%s,"items":[%s]}' % (head, b",".join(_items(kind, page.items)))

    async def _delete(self, request: Request, asking: Asking) -> bytes:
        body = request.json() if request.body else None
        options = delete_options(body, request.query.get("gracePeriodSeconds"))
        asking.dry_run = asking.dry_run or bool(body and body.get("dryRun"))
        stored, gone = await self._deletion.delete(request.target, options, asking)
        if not gone or request.kind.returns_deleted:
            return self._object_body(request, stored)
        about = details(request.kind.group, request.kind.plural, request.route.name)
        about["uid"] = metadata(stored.obj)["uid"]
        return dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": about})


def _items(kind: Kind, items: Iterable[Stored]) -> Iterable[bytes]:
    """Return the items of a list. Items of built-in kinds have no kind and apiVersion, because the list has them."""
    if kind.custom:
        return (kind.shown(item).text for item in items)
    head = dumps({"kind": kind.kind, "apiVersion": kind.api_version})[:-1] + b","
    return (b"{" + item.text[len(head) :] if item.text.startswith(head) else _without_kind(item) for item in items)


def _without_kind(stored: Stored) -> bytes:
    return dumps({name: value for name, value in stored.obj.items() if name not in ("kind", "apiVersion")})
