"""Watches the pods of the namespaces with the readiness gate. Their new pods wait for the readiness condition.

Pods of other namespaces are not listed or watched. The manager gets them by name when a request needs them
(`lifecycle`). Each such namespace has its own watch, however many there are. A watch needs 80 KiB of
memory. With 2,000 pods in 300 labelled namespaces and 8,000 pods elsewhere, this was 67 MiB (anonymous, over TLS).
One watch of the whole cluster needed 48 MiB, but it received 123 MB at the start in place of 26, and all changes of
the other pods, so the manager needed six times as much CPU while there were 50 changes a second.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NoReturn

from crrd.core.api.pod import PodMeta, parse_meta
from crrd.core.api.types import LABEL_READINESS_GATE
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Values
from crrd.kube.reflector import Handler, Reflector, Selection
from crrd.kube.resources import NAMESPACES, PODS
from crrd.kube.watchset import WatchSet
from crrd.lib.health import loop_check
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.jsonfields import name_of
from crrd.manager.cache import ManagerCache

NEVER_GATED = ("kube-system", "kube-public", "kube-node-lease", "crrd-system", "crrd-node")
"""Namespaces whose pods do not get the gate where all others do: they should become ready without the manager."""
GATED_NAMESPACES: Mapping[str, str] = MappingProxyType(
    {
        "labelled": f"{LABEL_READINESS_GATE}=enabled",
        "all": f"{LABEL_READINESS_GATE}!=disabled,kubernetes.io/metadata.name notin ({','.join(NEVER_GATED)})",
    }
)
"""Value of the flag -> label selector of the namespaces. The webhook that adds the gate has the same selector."""


class GatedPods:
    """Keeps a cache of the pods of labelled namespaces up to date while `run` runs. The constructor starts nothing."""

    def __init__(self, client: KubeClient, cache: ManagerCache, namespaces: str) -> None:
        """`namespaces`: a label selector of GATED_NAMESPACES."""
        self._client, self._cache = client, cache
        self._changed = asyncio.Event()
        self._labelled = Values(name_of, self._changed.set)  # Namespaces that the selector selects
        self._pods = WatchSet(self._reflector)  # By namespace
        labelled = Selection(NAMESPACES, self._labelled.parse, label_selector=namespaces)
        self._namespaces = Informer(client, labelled, self._labelled)
        self._naming: asyncio.Task[NoReturn] | None = None
        self._heartbeat = Heartbeat()

    async def run(self) -> NoReturn:
        """Watch until cancelled. May be called once."""
        async with asyncio.TaskGroup() as group:
            self._naming = group.create_task(self._namespaces.run(), name="watch namespaces")
            while True:
                self._heartbeat.until(self._changed, "waiting for namespaces with the readiness label")
                await self._changed.wait()
                self._changed.clear()
                self._follow(group)
        raise AssertionError("runs until it is cancelled")

    def covers(self, namespace: str) -> bool:
        """Whether the pods of this namespace are listed, and their changes are watched."""
        found = self._pods.get(namespace)
        return found is not None and found.listed and not found.last_error

    def ready(self) -> str:
        """For readiness: return "" if everything is listed and connected, else the reason."""
        if error := self._namespaces.ready() or self._pods.last_error:
            return error
        complete = not self._changed.is_set() and self._pods.listed
        return "" if complete else "pods are not listed yet"

    def check(self) -> str:
        """For liveness: return which part has ended or hangs, else ""."""
        if self._naming is None:
            return ""
        naming = loop_check(self._naming, self._namespaces.heartbeat)
        return naming() or self._pods.check() or self._heartbeat.check()

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Start and stop watches, so that exactly the labelled namespaces are watched."""
        wanted = set(self._labelled.values())
        unwanted = self._pods.keys - wanted
        self._pods.cancel(unwanted)
        for namespace in unwanted:
            self._cache.forget_namespace(namespace)
        self._pods.begin(wanted - self._pods.keys, group)

    def _reflector(self, namespace: str) -> Reflector[PodMeta]:
        cache = self._cache
        handler = Handler(partial(cache.pods_listed, namespace=namespace), cache.pod_changed, cache.pod_deleted)
        return Reflector(self._client, Selection(PODS, parse_meta, namespace), handler, strict=False)
