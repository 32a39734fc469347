"""What a cluster's controllers do for CRDs and namespaces, as far as clients would notice."""

import asyncio
from collections.abc import Sequence

from crrd_localnode.api.admission import User
from crrd_localnode.api.crds import kinds_of
from crrd_localnode.api.deletion import Deletion
from crrd_localnode.api.kinds import Registry
from crrd_localnode.api.objects import Object, dig, metadata, with_metadata
from crrd_localnode.api.resources import CRD, NAMESPACE
from crrd_localnode.api.store import Event, Store
from crrd_localnode.api.writes import Asking, Target, Writes

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")  # The namespaces of every cluster
_SELF = User("system:apiserver", ("system:masters",))


class Controllers:
    """Serves the kinds of the current CRDs, and completes deletions."""

    def __init__(self, store: Store, registry: Registry, writes: Writes, deletion: Deletion) -> None:
        self._store = store
        self._registry = registry
        self._writes = writes
        self._deletion = deletion
        store.subscribe(CRD.key, self._crd_changed)
        store.subscribe(None, self._changed)

    async def create_defaults(self, crds: Sequence[Object]) -> None:
        """Create the default namespaces and these CRDs, if missing."""
        asking = Asking(_SELF)
        namespaces: list[Object] = [{"metadata": {"name": name}} for name in NAMESPACES]
        for kind, obj in [*((NAMESPACE, each) for each in namespaces), *((CRD, each) for each in crds)]:
            if self._store.get(kind.key, ("", metadata(obj)["name"])) is None:
                await self._writes.create(Target(kind), obj, asking)

    def _crd_changed(self, event: Event) -> None:
        if event.new is not None:
            self._registry.set_custom(event.new.name[1], kinds_of(event.new.obj))
            if metadata(event.new.obj).get("deletionTimestamp"):
                asyncio.get_running_loop().call_soon(self._clean_up)
        elif event.old is not None:
            self._registry.set_custom(event.old.name[1], ())

    def _clean_up(self) -> None:
        """Delete the objects of CRDs that are being deleted. Remove CRDs that have no objects any more."""
        for crd in tuple(self._store.objects(CRD.key).values()):
            finalizers = metadata(crd.obj).get("finalizers") or []
            if not metadata(crd.obj).get("deletionTimestamp") or CRD.guard not in finalizers:
                continue
            content = f"{dig(crd.obj, 'spec', 'group')}/{dig(crd.obj, 'spec', 'names', 'plural')}"
            for stored in tuple(self._store.objects(content).values()):
                self._deletion.begin(content, stored)
            if self._store.objects(content):
                continue
            if rest := [name for name in finalizers if name != CRD.guard]:
                self._store.put(CRD.key, crd, with_metadata(crd.obj, finalizers=rest))
            else:
                self._store.delete(CRD.key, crd)

    def _changed(self, event: Event) -> None:
        if event.new is None and event.old is not None:
            asyncio.get_running_loop().call_soon(self._after_deletion, event.key, event.old.obj)

    def _after_deletion(self, key: str, gone: Object) -> None:
        """Remove a terminating CRD or namespace after its last object was deleted."""
        if key != CRD.key:
            self._clean_up()
        namespace = self._store.get(NAMESPACE.key, ("", metadata(gone).get("namespace", "")))
        if namespace is not None and metadata(namespace.obj).get("deletionTimestamp"):
            self._deletion.collect(Target(NAMESPACE, name=namespace.name[1]), namespace)
