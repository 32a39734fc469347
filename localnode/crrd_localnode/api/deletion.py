"""Deletes objects: at once, after a grace period, after finalizers, or with everything in a namespace.

The rules are those of k8s.io/apiserver's `rest.BeforeDelete` and of the pod strategy's `CheckGracefulDelete`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import DEFAULT_GRACE_SECONDS
from crrd_localnode.api import errors
from crrd_localnode.api.admission import Operation
from crrd_localnode.api.errors import bad_request
from crrd_localnode.api.kinds import Registry
from crrd_localnode.api.objects import Object, dig, metadata, with_metadata
from crrd_localnode.api.store import Changed, Stored
from crrd_localnode.api.writes import Asking, Target, Writes


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The client's options for a deletion."""

    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None


def delete_options(body: Any, grace: str | None) -> DeleteOptions:
    """Read the options from a request's body (a DeleteOptions object or None) and its query. Raises ApiError 400."""
    body = {} if body is None else body
    if not isinstance(body, dict):
        raise bad_request("the body of a deletion is not a DeleteOptions object")
    given = body.get("gracePeriodSeconds")
    if given is None and grace is not None:
        try:
            given = int(grace)
        except ValueError:
            raise bad_request(f"gracePeriodSeconds is not a number: {grace}") from None
    if given is not None and (not isinstance(given, int) or isinstance(given, bool)):
        raise bad_request(f"gracePeriodSeconds is not a number: {given}")
    conditions = body.get("preconditions") or {}
    return DeleteOptions(given, conditions.get("uid"), conditions.get("resourceVersion"))


class Deletion:
    """Deletes objects of one store."""

    def __init__(self, writes: Writes, registry: Registry) -> None:
        self._writes = writes
        self._store = writes.store
        self._registry = registry

    async def delete(self, target: Target, options: DeleteOptions, asking: Asking) -> tuple[Stored, bool]:
        """Delete an object. Return its last or current state, and whether it is gone. Raises ApiError."""

        async def write(old: Stored) -> tuple[Stored, bool]:
            self._check_conditions(target, old, options)
            if self._writes.admission.validating:
                request = asking.to(Operation.DELETE, target, target.kind.shown(old).obj, None)
                await self._writes.admission.validate(request)
            return self._delete_now(target, old, options, asking)

        return await self._writes.with_present(target, write)

    def _delete_now(self, target: Target, old: Stored, options: DeleteOptions, asking: Asking) -> tuple[Stored, bool]:
        if self._store.get(target.kind.key, target.key) is not old:
            raise Changed
        if target.kind.contains:
            return self._delete_container(target, old, asking)
        marked = self._marked(target, old.obj, options)
        if marked is None:
            if asking.dry_run:
                return old, True
            if target.kind.graceful:  # mark it first, so that watchers see the deletion before it is gone
                old = self._store.put(target.kind.key, old, self._with_deletion_time(old.obj, self._writes.clock(), 0))
            return self._store.delete(target.kind.key, old), True
        if asking.dry_run or marked == old.obj:
            return old, False
        return self._store.put(target.kind.key, old, marked), False

    @staticmethod
    def _check_conditions(target: Target, old: Stored, options: DeleteOptions) -> None:
        meta = metadata(old.obj)
        for what, wanted, present, event in (
            ("UID", options.uid, meta["uid"], "deleted and then recreated"),
            ("ResourceVersion", options.resource_version, meta["resourceVersion"], "modified"),
        ):
            if wanted not in (None, present):
                text = f"the {what} in the precondition ({wanted}) does not match the {what} in record ({present})."
                why = f"{text} The object might have been {event}"
                # This conflict names the kind instead of the resource.
                raise errors.conflict(target.kind.group, target.kind.kind, target.name, why)

    def _marked(self, target: Target, obj: Object, options: DeleteOptions) -> Object | None:
        """Return the object marked as being deleted, or None if it can be removed at once."""
        if target.kind.guard and not metadata(obj).get("deletionTimestamp"):
            obj = with_metadata(obj, finalizers=[*(metadata(obj).get("finalizers") or ()), target.kind.guard])
        meta = metadata(obj)
        period = self._grace(obj, options) if target.kind.graceful else 0
        moment = self._writes.clock() + timedelta(seconds=period)
        if meta.get("deletionTimestamp"):
            had = meta.get("deletionGracePeriodSeconds") or 0
            if had and (options.grace_seconds is None or period >= had):
                return obj
            began = parse_time(meta["deletionTimestamp"])
            if began is not None:
                moment = began - timedelta(seconds=had - period)
        if period == 0 and not meta.get("finalizers"):
            return None
        if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds") == period:
            return obj
        return self._with_deletion_time(obj, moment, period)

    @staticmethod
    def _with_deletion_time(obj: Object, moment: datetime, period: int) -> Object:
        """Return the object with its deletion time."""
        meta = metadata(obj)
        changes: Object = {"deletionTimestamp": rfc3339(moment), "deletionGracePeriodSeconds": period}
        if meta.get("generation") and not meta.get("deletionTimestamp"):
            changes["generation"] = meta["generation"] + 1
        return with_metadata(obj, **changes)

    @staticmethod
    def _grace(obj: Object, options: DeleteOptions) -> int:
        """Return a pod's grace period. It is 0 if the pod has no node or has ended."""
        if not dig(obj, "spec", "nodeName") or dig(obj, "status", "phase") in ("Succeeded", "Failed"):
            return 0
        given = (options.grace_seconds, dig(obj, "spec", "terminationGracePeriodSeconds"), DEFAULT_GRACE_SECONDS)
        period = next(seconds for seconds in given if seconds is not None)
        return int(period) if period >= 0 else 1

    def _delete_container(self, target: Target, old: Stored, asking: Asking) -> tuple[Stored, bool]:
        """Delete a namespace: delete its objects, then remove it. Objects that are left keep it."""
        if asking.dry_run:
            return old, False
        if not metadata(old.obj).get("deletionTimestamp"):
            marked = with_metadata(old.obj, deletionTimestamp=rfc3339(self._writes.clock()))
            old = self._store.put(target.kind.key, old, {**marked, "status": {"phase": "Terminating"}})
        for key, stored in self._content(target.name):
            self.begin(key, stored)
        return self.collect(target, old)

    def begin(self, key: str, stored: Stored) -> None:
        """Delete an object as a controller does. With finalizers or a grace period, it is only marked."""
        kind = self._registry.by_key(key)
        target = Target(kind, *stored.name) if kind is not None else None
        marked = self._marked(target, stored.obj, DeleteOptions()) if target is not None else None
        if marked is None:
            self._store.delete(key, stored)
        elif marked != stored.obj:
            self._store.put(key, stored, marked)

    def collect(self, target: Target, namespace: Stored) -> tuple[Stored, bool]:
        """Remove a namespace that is being deleted, if it is empty."""
        if self._content(target.name):
            return namespace, False
        return self._store.delete(target.kind.key, namespace), True

    def _content(self, namespace: str) -> list[tuple[str, Stored]]:
        return [(key, stored) for key, stored in self._store.everything() if stored.name[0] == namespace]
