"""Keeps the last good data of ConfigMaps for policies with `onFailure: Restore`, and writes it back.

It decides nothing (`core.policy.revisions` does). Each write is repeated at the next look if it is still wanted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import structlog

from crrd.core.config.objects import whole_data, whole_hash
from crrd.core.policy.observed import Observed
from crrd.core.policy.revisions import NOTHING, DataActions, Keep, Restore
from crrd.core.policy.stored import LABEL_KEPT, read_stored, restore_body, revision_body
from crrd.core.policy.types import API_VERSION, KIND, OnFailure, Policy
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import Event, KubeEventSink
from crrd.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS, metadata_of
from crrd.lib.errors import ApiRefusedError, ConflictError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.manager.policies.look import Memory
from crrd.manager.policies.rights import Rights

log = structlog.get_logger(__name__)


class Restorer:
    """Keeps and restores the data of ConfigMaps."""

    def __init__(self, client: KubeClient, events: KubeEventSink, clock: ServerClock, account: str) -> None:
        """`account` as in `TargetObserver`."""
        self._client, self._events, self._clock, self._account = client, events, clock, account

    async def look(self, policy: Policy, memory: Memory, found: Observed) -> Observed:
        """Return what was observed, with the ControllerRevisions of the policy, if they matter.

        Raises ApiUnavailableError.
        """
        wanted = policy.on_failure is OnFailure.RESTORE and policy.config is not None
        if policy.is_off or found.stopped or not (wanted or policy.status.revisions):
            return found
        namespace = policy.namespace
        if missing := await Rights.RESTORE.missing(self._client, namespace, self._account):
            return replace(found, unrestorable=missing)
        selector = f"{LABEL_KEPT}={policy.uid}"
        kind = metadata_of(CONTROLLER_REVISIONS)
        try:
            listing = await self._client.list_all(kind, read_stored, namespace=namespace, label_selector=selector)
        except ApiRefusedError as error:
            return replace(found, unrestorable=str(error))
        stored = listing.items
        return replace(found, stored=stored, written=frozenset(memory.written), refused=memory.refused)

    async def carry_out(self, policy: Policy, memory: Memory, wanted: DataActions) -> bool:
        """Do what the policy wants. Return whether the next look should follow soon.

        What the API server refuses is noted in `memory`. Raises ApiUnavailableError.
        """
        memory.refused = {}
        for keep in wanted.keep:
            try:
                await self._keep(policy, memory, keep)
            except ApiRefusedError as error:
                memory.refused[keep.object] = f"its data cannot be kept: {error}"
        for restore in wanted.restore:
            try:
                await self._restore(policy, memory, restore)
            except ConflictError:  # somebody has written it
                pass
            except ApiRefusedError as error:
                memory.refused[restore.object] = f"its data cannot be restored: {error}"
        for name in wanted.forget:
            try:
                await self._client.delete(CONTROLLER_REVISIONS, policy.namespace, name)
            except GoneError:  # somebody else has deleted it
                pass
            except ApiRefusedError as error:
                memory.refused[name] = f"ControllerRevision {name} cannot be deleted: {error}"
                log.warning("kept data not deleted", policy=policy.key, revision=name, error=str(error))
        return wanted != NOTHING and not memory.refused

    async def _keep(self, policy: Policy, memory: Memory, keep: Keep) -> None:
        namespace, name = policy.namespace, keep.revision
        data = whole_data(await self._client.get(CONFIG_MAPS, namespace, keep.object))
        if whole_hash(data) != keep.hash:
            return
        body = revision_body(policy, keep, data)
        try:
            await self._client.create(CONTROLLER_REVISIONS, namespace, body)
        except ConflictError:  # an earlier manager has created it, or looks do not find it as it is now
            there = await self._client.get(CONTROLLER_REVISIONS, namespace, name)
            if lost := " and ".join(_changed(mapping(there.get("metadata")), body["metadata"])):
                why = f"ControllerRevision {name} exists, but its {lost} was changed: delete it"
                memory.refused[keep.object] = f"its data cannot be kept: {why}"

    async def _restore(self, policy: Policy, memory: Memory, restore: Restore) -> None:
        namespace, name = policy.namespace, restore.object
        stored = await self._client.get(CONTROLLER_REVISIONS, namespace, restore.revision)
        kept = whole_data(mapping(stored.get("data")))
        if whole_hash(kept) != restore.kept:  # somebody else has made it
            memory.refused[name] = f"ControllerRevision {restore.revision} does not have the data that was kept"
            return
        obj = await self._client.get(CONFIG_MAPS, namespace, name)
        meta = mapping(obj.get("metadata"))
        if text(meta.get("resourceVersion")) != restore.version or whole_hash(whole_data(obj)) != restore.hash:
            return
        body = restore_body(whole_data(obj), kept, restore.version)
        await self._client.merge_patch(CONFIG_MAPS, namespace, name, body)
        memory.written.add((name, restore.version))
        log.warning("data of a ConfigMap restored", policy=policy.key, configmap=name, revision=restore.revision)
        message = f"wrote the last good data of ConfigMap {name} back, because a run with the newer data has failed"
        about = ("v1", "ConfigMap", name, text(meta.get("uid"))), (API_VERSION, KIND, policy.name, policy.uid)
        for version, kind, of, uid in about:
            involved = {"apiVersion": version, "kind": kind, "namespace": namespace, "name": of, "uid": uid}
            now = self._clock.now()
            self._events.record(Event(involved, "ConfigRestored", message, True, "crrd-policy", restore.version, now))


def _changed(there: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[str]:
    """Yield the labels and annotations that an object does not have as it was made. Both are metadata."""
    for kind in ("labels", "annotations"):
        known = mapping(there.get(kind))
        yield from (f"{kind[:-1]} {key}" for key, value in made[kind].items() if known.get(key) != value)
