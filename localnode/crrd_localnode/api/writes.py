"""Create, update and patch, from the client's body to the stored object. Deletions are in `deletion`.

The steps are those of k8s.io/apiserver's generic registry: decode, mutate, prepare, check, validate, and then one
atomic write. It starts over if the object has changed meanwhile and the client did not require a version.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from crrd.core.api.time import rfc3339
from crrd_localnode.api import errors, meta
from crrd_localnode.api.admission import ANONYMOUS, Admission, AdmissionRequest, Operation, User
from crrd_localnode.api.errors import ApiError, Cause, bad_request
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import Object, metadata
from crrd_localnode.api.resources import CRD, NAMESPACE
from crrd_localnode.api.store import Changed, Store, Stored

_ATTEMPTS = 8  # Attempts of a write without a required version, before the client gets the conflict


@dataclass(frozen=True, slots=True)
class Target:
    """The object of a request."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The object's name in the store."""
        return self.namespace, self.name

    def missing(self) -> ApiError:
        """404 for this object."""
        return errors.not_found(self.kind.group, self.kind.plural, self.name)

    def conflict(self, why: str = errors.MODIFIED) -> ApiError:
        """409 for this object."""
        return errors.conflict(self.kind.group, self.kind.plural, self.name, why)

    def invalid(self, causes: list[Cause]) -> ApiError:
        """422 for this object."""
        return errors.invalid(self.kind.group, self.kind.kind, self.name, causes)


@dataclass(slots=True)
class Asking:
    """The user and options of a write."""

    user: User = ANONYMOUS
    dry_run: bool = False
    strict: bool = False  # Unknown fields are an error (fieldValidation=Strict), not a warning
    warnings: list[str] = field(default_factory=list)  # For the client, collected during the write

    def to(self, operation: Operation, target: Target, old: Object | None, new: Object | None) -> AdmissionRequest:
        """Return the admission request of this write."""
        return AdmissionRequest(
            operation=operation, kind=target.kind, subresource=target.subresource, namespace=target.namespace,
            name=target.name, old=old, new=new, user=self.user, dry_run=self.dry_run, warnings=self.warnings,
        )  # fmt: skip


_T = TypeVar("_T")
Make = Callable[[Object], Any]  # Returns the new object for the current one


class Writes:
    """Writes to one store."""

    def __init__(self, store: Store, admission: Admission, clock: Callable[[], datetime]) -> None:
        self.store = store
        self.admission = admission
        self.clock = clock

    async def create(self, target: Target, body: Any, asking: Asking) -> Stored:
        """Create an object, and return it as stored. Raises ApiError."""
        kind = target.kind
        obj = self._decode(target, meta.check_shape(kind, body, target.namespace), asking)
        version = metadata(obj).get("resourceVersion")
        definition = self.store.get(CRD.key, ("", f"{kind.plural}.{kind.group}")) if kind.custom else None
        if definition is not None and metadata(definition.obj).get("deletionTimestamp"):
            why = "create not allowed while custom resource definition is terminating"
            raise errors.forbidden(kind.group, kind.plural, metadata(obj).get("name", ""), why)
        if kind.namespaced:
            self._require_namespace(target)
        if self.admission.mutating:
            asked = Target(kind, target.namespace, metadata(obj).get("name", ""))
            mutated = await self.admission.mutate(asking.to(Operation.CREATE, asked, None, obj))
            obj = self._decode(target, meta.check_shape(kind, mutated, target.namespace), asking)
        obj = {**obj, "metadata": meta.new_metadata(kind, obj, rfc3339(self.clock()))}
        if kind.status and not kind.status_on_create:
            obj.pop("status", None)
            if kind.schema is not None:  # the real server sets defaults again when it reads what it has stored
                obj, _ = kind.schema.complete(obj)
        target = Target(kind, target.namespace, obj["metadata"]["name"])
        self._check(target, obj, None, meta.name_causes(kind, target.name))
        obj = kind.on_create(obj)
        if kind.managed_fields:
            obj = meta.with_managed_fields(obj, rfc3339(self.clock()))
        if self.admission.validating:
            await self.admission.validate(asking.to(Operation.CREATE, target, None, obj))
        if version:  # the real server's storage returns this untranslated error
            raise ApiError(500, "resourceVersion should not be set on objects to be created")
        present = self.store.get(kind.key, target.key)
        if present is not None:
            going = bool(metadata(present.obj).get("deletionTimestamp"))
            raise errors.already_exists(kind.group, kind.plural, target.name, going=going)
        return Stored(obj, 0) if asking.dry_run else self.store.put(kind.key, None, kind.to_store(obj))

    async def update(self, target: Target, make: Make, asking: Asking, *, put: bool = False) -> Stored:
        """Replace the current object by the result of `make`, and return it as stored. Does nothing without a change.

        `put` means that the client sent a whole object, whose uid and resourceVersion are conditions. Raises ApiError.
        """
        return await self.with_present(target, lambda old: self._replace(target, old, make, asking, put=put))

    async def with_present(self, target: Target, write: Callable[[Stored], Awaitable[_T]]) -> _T:
        """Return the result of `write` for the current object. Repeats it if the object has changed. ApiError."""
        for _ in range(_ATTEMPTS):
            old = self.store.get(target.kind.key, target.key)
            if old is None:
                raise target.missing()
            with suppress(Changed):
                return await write(old)
        raise target.conflict()

    async def _replace(self, target: Target, old: Stored, make: Make, asking: Asking, *, put: bool) -> Stored:
        kind = target.kind
        present = kind.shown(old).obj
        new = self._decode(target, meta.check_shape(kind, make(present), target.namespace), asking)
        if self.admission.mutating:
            mutated = await self.admission.mutate(asking.to(Operation.UPDATE, target, present, new))
            new = self._decode(target, meta.check_shape(kind, mutated, target.namespace), asking)
        _check_conditions(target, metadata(new), metadata(present), put=put)
        new = prepare_update(target, new, present)
        if new == present:
            return old
        self._check(target, new, present, [])
        if kind.managed_fields:
            new = meta.with_managed_fields(new, rfc3339(self.clock()), present)
        if self.admission.validating:
            await self.admission.validate(asking.to(Operation.UPDATE, target, present, new))
        if asking.dry_run:
            return Stored(new, old.revision)
        had, has = metadata(present), metadata(new)
        kept = had.get("deletionTimestamp") and had.get("finalizers")
        if kept and not has.get("finalizers") and not has.get("deletionGracePeriodSeconds"):
            self.store.delete(kind.key, old)
            return Stored(new, self.store.revision)
        return self.store.put(kind.key, old, kind.to_store(new))

    def _require_namespace(self, target: Target) -> None:
        """Check that the namespace exists and is not being deleted (NamespaceLifecycle)."""
        namespace = self.store.get(NAMESPACE.key, ("", target.namespace))
        if namespace is None:
            raise errors.not_found("", "namespaces", target.namespace)
        if metadata(namespace.obj).get("deletionTimestamp"):
            why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            text = f"namespace {target.namespace} is being terminated"
            cause = Cause("metadata.namespace", text, "NamespaceTerminating")
            raise errors.forbidden(target.kind.group, target.kind.plural, target.name, why, cause)

    def _decode(self, target: Target, obj: Object, asking: Asking) -> Object:
        """Return the object with its kind's defaults and without unknown fields."""
        given = metadata(obj)
        dropped = [f"metadata.{name}" for name in given if name not in meta.METADATA_FIELDS]
        obj = {**obj, "metadata": {name: value for name, value in given.items() if name in meta.METADATA_FIELDS}}
        if target.kind.schema is None:
            obj = target.kind.complete(obj)
        else:
            obj, unknown = target.kind.schema.complete(obj)
            dropped += unknown
        texts = [f'unknown field "{path}"' for path in sorted(dropped)]
        if texts and asking.strict:
            name, why = target.kind.kind, f"strict decoding error: {', '.join(texts)}"
            raise bad_request(f'{name} in version "{target.kind.version}" cannot be handled as a {name}: {why}')
        texts += target.kind.warnings(obj)
        asking.warnings += [text for text in texts if text not in asking.warnings]
        return obj

    def _check(self, target: Target, new: Object, old: Object | None, causes: list[Cause]) -> None:
        causes = causes + meta.metadata_causes(new["metadata"], None if old is None else metadata(old))
        if target.kind.schema is not None:
            causes += target.kind.schema.check(new, old)
        if not causes:
            causes = target.kind.rules(new, old)
        if causes:
            raise target.invalid(causes)


def _check_conditions(target: Target, given: Object, old: Object, *, put: bool) -> None:
    """Compare the new object's name, uid and resourceVersion with the current one.

    Only in a PUT is the uid a condition of the write. In a patch, another uid is an invalid change if the version is
    right. For the status of a custom resource it is ignored, because all metadata of the patch is. Source: `Update` in
    k8s.io/apiserver's registry/store.go; k8s.io/apiextensions-apiserver's status_strategy.go.
    """
    if given.get("name") != target.name:
        name = given.get("name", "")
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
    uid, version = given.get("uid") or old["uid"], given.get("resourceVersion")
    if put and uid != old["uid"]:
        raise target.conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['uid']}")
    if version in (None, "", "0"):
        if not target.kind.unconditional_update:
            kind, text = target.kind, "Invalid value: 0: must be specified for an update"
            raise errors.invalid(kind.group, kind.plural, target.name, [Cause("metadata.resourceVersion", text)])
    elif version != old["resourceVersion"]:
        raise target.conflict()
    if uid != old["uid"] and not (target.kind.custom and target.subresource == "status"):
        raise target.invalid([Cause("metadata.uid", f'Invalid value: "{uid}": field is immutable')])


def prepare_update(target: Target, new: Object, old: Object) -> Object:
    """Return the object to write: system fields are kept, and each subresource changes only its own fields."""
    kind = target.kind
    updated = meta.updated_metadata(metadata(new), metadata(old))
    if target.subresource == "status":
        kept = {name: value for name, value in old.items() if name != "status"}
        status = {"status": new["status"]} if "status" in new else {}
        return {**kept, **status} if kind.custom else {**kept, "metadata": updated, **status}
    if kind.status:
        new = {name: value for name, value in new.items() if name != "status"}
        if "status" in old:
            new["status"] = old["status"]
    names = (new.keys() | old.keys()) - {"metadata", "status"}
    if kind.generation and any(new.get(name) != old.get(name) for name in names):
        updated["generation"] = int(updated.get("generation") or 0) + 1
    return {**new, "metadata": updated}
