"""Watches the pods of the namespaces with the readiness label. Their new pods wait for the readiness condition.

Pods of other namespaces are not listed or watched. The manager gets them by name when a request needs them
(`lifecycle`). Each labelled namespace has its own watch. Above a number of namespaces, one watch of the whole cluster
costs less than these connections. It reports only pods of namespaces that had the label at its last list. A namespace
that gets the label later has its own watch until the whole cluster is listed again.
"""

import asyncio
from functools import partial
from typing import NoReturn

from crrd.core.api.pod import PodMeta, parse_meta
from crrd.core.api.types import LABEL_READINESS_GATE
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Values
from crrd.kube.reflector import Handler, Reflector, Selection
from crrd.kube.resources import NAMESPACES, PODS
from crrd.kube.watchset import ALL_OBJECTS, WatchSet
from crrd.lib.health import loop_check
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.jsonfields import name_of
from crrd.manager.cache import ManagerCache

MOST_WATCHES = 32  # Watches of single namespaces, also in addition to a watch of the whole cluster


class GatedPods:
    """Keeps a cache of the pods of labelled namespaces up to date while `run` runs. The constructor starts nothing."""

    def __init__(self, client: KubeClient, cache: ManagerCache) -> None:
        self._client, self._cache = client, cache
        self._changed = asyncio.Event()
        self._labelled = Values(name_of, self._changed.set)  # Namespaces with the label
        self._pods = WatchSet(self._reflector)  # By namespace; `ALL_OBJECTS` is the whole cluster
        self._shared: set[str] = set()
        """Namespaces that the watch of the whole cluster reports. Pods of other namespaces in its list were dropped."""
        labelled = Selection(NAMESPACES, self._labelled.parse, label_selector=f"{LABEL_READINESS_GATE}=enabled")
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
        found = self._pods.get(ALL_OBJECTS if namespace in self._shared else namespace)
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

    @property
    def _wanted(self) -> set[str]:
        return set(self._labelled.values())

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Start and stop watches, so that exactly the labelled namespaces are watched."""
        few = len(self._wanted) <= MOST_WATCHES
        for namespace in self._shared if few else self._shared - self._wanted:
            self._cache.forget_namespace(namespace)
        self._shared = set() if few else self._shared & self._wanted
        apart = self._wanted - self._shared
        whole = self._pods.get(ALL_OBJECTS)
        if few:
            watched = apart
        elif whole is None or not whole.listed:
            watched = {ALL_OBJECTS}  # its list will include all wanted namespaces
        elif len(apart) <= MOST_WATCHES:
            watched = {ALL_OBJECTS, *apart}
        else:
            watched = {ALL_OBJECTS}
            self._pods.cancel(watched)  # so that it lists again
        unwanted = self._pods.keys - watched
        self._pods.cancel(unwanted)
        for namespace in unwanted - {ALL_OBJECTS}:
            self._cache.forget_namespace(namespace)
        self._pods.begin(watched - self._pods.keys, group)

    def _reflector(self, namespace: str) -> Reflector[PodMeta]:
        cache = self._cache
        handler = Handler(partial(cache.pods_listed, namespace=namespace), cache.pod_changed, cache.pod_deleted)
        if namespace == ALL_OBJECTS:
            handler = Handler(self._all_listed, self._one_changed, self._one_deleted)
        return Reflector(self._client, Selection(PODS, parse_meta, namespace), handler, strict=False)

    def _all_listed(self, pods: tuple[PodMeta, ...], version: str) -> None:
        """Report the pods of all wanted namespaces and end the namespaces' own watches. Leave other pods unchanged."""
        apart = self._pods.keys - {ALL_OBJECTS}
        self._pods.cancel(apart)
        self._shared |= apart | self._wanted  # `_follow` forgets those that are not wanted any more
        known = (pod if pod.namespace in self._shared else self._cache.pod(pod.key) for pod in pods)
        self._cache.pods_listed((pod for pod in known if pod is not None), version)

    def _one_changed(self, pod: PodMeta) -> None:
        if pod.namespace in self._shared:
            self._cache.pod_changed(pod)

    def _one_deleted(self, pod: PodMeta) -> None:
        if pod.namespace in self._shared:
            self._cache.pod_deleted(pod)
