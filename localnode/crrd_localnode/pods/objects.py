"""The node's cache of ConfigMaps and Secrets: a watch for each object that a pod on the node uses.

An object that is immutable is kept as it is until no pod uses it, even if it is deleted and created again. Source:
pkg/kubelet/util/manager/watch_based_manager.go in Kubernetes.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from crrd.core.config.references import Kind
from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, Selection
from crrd.kube.resources import CONFIGURATION
from crrd_localnode.pods.spec import Json

SYNC_SECONDS = 1.0  # Longest wait for the first list of an object

Key = tuple[Kind, str, str]  # Kind, namespace, name


class NotSyncedError(Exception):
    """An object's state is not known yet. The message is kubelet's."""


@dataclass(eq=False, slots=True)
class _Entry:
    users: set[str] = field(default_factory=set)  # UIDs of pods
    known: asyncio.Event = field(default_factory=asyncio.Event)
    found: Json | None = None
    task: asyncio.Task[None] | None = None

    def set(self, found: Json | None = None) -> None:
        self.found = found
        self.known.set()

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class ConfigObjects:
    """What pods on one node know of ConfigMaps and Secrets."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._entries: dict[Key, _Entry] = {}

    def register(self, uid: str, keys: Iterable[Key]) -> None:
        """Watch what a pod uses, and nothing that only it has used before."""
        wanted = set(keys)
        for key in wanted - self._entries.keys():
            self._entries[key] = self._watched(*key)
        for key, entry in list(self._entries.items()):
            if key in wanted:
                entry.users.add(uid)
            elif uid in entry.users:
                entry.users.remove(uid)
                if not entry.users:
                    entry.stop()
                    del self._entries[key]

    def _watched(self, kind: Kind, namespace: str, name: str) -> _Entry:
        entry, only = _Entry(), f"metadata.name={name}"
        selection: Selection[Json] = Selection(CONFIGURATION[kind], dict, namespace, field_selector=only)
        handler: Handler[Json] = Handler(lambda found, _: entry.set(*found), entry.set, lambda _: entry.set())
        entry.task = asyncio.create_task(Reflector(self._client, selection, handler, strict=False).run())
        return entry

    async def wait(self, keys: Iterable[Key]) -> None:
        """Wait until the state of registered objects is known. Raises NotSyncedError after a second."""
        for key in keys:
            try:
                async with asyncio.timeout(SYNC_SECONDS):
                    await self._entries[key].known.wait()
            except TimeoutError:
                why = "timed out waiting for the condition"
                raise NotSyncedError(f"failed to sync {key[0].lower()} cache: {why}") from None

    def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Return a registered object, or None if it does not exist. An immutable one is watched no more."""
        entry = self._entries[kind, namespace, name]
        if (entry.found or {}).get("immutable"):
            entry.stop()
        return entry.found

    def close(self) -> None:
        """Stop all watches."""
        for entry in self._entries.values():
            entry.stop()
