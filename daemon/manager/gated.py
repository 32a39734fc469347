"""Watches the pods of the namespaces with the readiness label: a new pod there waits for its condition.

Whatever else the cluster runs is not listed, and not watched: what a manager knows of a pod elsewhere, it asked for by
name, for a request (`lifecycle`). Namespaces come and go by their label; each has a watch of its own, up to a number
above which one watch of the whole cluster costs less than their connections.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from daemon.core.api.pod import PodMeta, parse_meta
from daemon.core.api.types import LABEL_READINESS_GATE
from daemon.kube.cache import ManagerCache
from daemon.kube.client import KubeClient
from daemon.kube.reflector import Handler, Reflector, Selection
from daemon.kube.resources import NAMESPACES, PODS
from daemon.lib.health import loop_check
from daemon.lib.heartbeat import Heartbeat
from daemon.lib.jsonfields import mapping, text

MOST_WATCHES = 32
"""Namespaces that are watched one by one."""
_EVERYWHERE = ""


class GatedPods:
    """Tells a cache about the pods of labelled namespaces for as long as `run` runs. The constructor starts nothing."""

    def __init__(self, client: KubeClient, cache: ManagerCache) -> None:
        self._client = client
        self._cache = cache
        self._wanted: set[str] = set()
        """Namespaces with the label."""
        self._changed = asyncio.Event()
        self._pods: dict[str, tuple[Reflector[PodMeta], asyncio.Task[NoReturn]]] = {}
        """By namespace, `_EVERYWHERE` for the whole cluster."""
        labelled = Selection(NAMESPACES, _name, label_selector=f"{LABEL_READINESS_GATE}=enabled")
        handler = Handler(self._listed, self._appeared, self._vanished)
        self._namespaces = Reflector(client, labelled, handler, strict=False)
        self._naming: asyncio.Task[NoReturn] | None = None
        self._heartbeat = Heartbeat()

    async def run(self) -> NoReturn:
        """Watch until cancelled; once."""
        async with asyncio.TaskGroup() as group:
            self._naming = group.create_task(self._namespaces.run(), name="watch namespaces")
            while True:
                self._heartbeat.until(self._changed, "waiting for namespaces with the readiness label")
                await self._changed.wait()
                self._changed.clear()
                self._follow(group)
        raise AssertionError("runs until it is cancelled")

    def covers(self, namespace: str) -> bool:
        """Whether the pods of this namespace are listed, and changes of them are told."""
        found = self._pods.get(namespace) or self._pods.get(_EVERYWHERE)
        return found is not None and found[0].listed and not found[0].last_error

    def check(self) -> str:
        """For readiness: "" while everything is listed and connected."""
        if not self._namespaces.listed:
            return self._namespaces.last_error or "namespaces are not listed yet"
        watching: list[Reflector[Any]] = [self._namespaces, *(reflector for reflector, _ in self._pods.values())]
        if error := next((each.last_error for each in watching if each.last_error), ""):
            return error
        complete = not self._changed.is_set() and all(each.listed for each in watching)
        return "" if complete else "pods are not listed yet"

    def check_alive(self) -> str:
        """For liveness: what of it has ended or hangs."""
        if self._naming is None:
            return ""
        checks = [loop_check(task, reflector.heartbeat) for reflector, task in self._pods.values()]
        for check in (loop_check(self._naming, self._namespaces.heartbeat), *checks):
            if found := check():
                return found
        return self._heartbeat.check()

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Begin and end watches, so that all that is wanted is watched, and nothing else."""
        wanted = self._wanted if len(self._wanted) <= MOST_WATCHES else {_EVERYWHERE}
        for namespace in self._pods.keys() - wanted:
            self._pods.pop(namespace)[1].cancel()
            self._cache.forget_namespace(namespace)
        for namespace in wanted - self._pods.keys():
            told = Handler(
                partial(self._cache.pods_listed, namespace=namespace), self._cache.pod_changed, self._cache.pod_deleted
            )
            reflector = Reflector(self._client, Selection(PODS, parse_meta, namespace), told, strict=False)
            self._pods[namespace] = reflector, group.create_task(reflector.run(), name="watch pods")

    def _listed(self, names: tuple[str, ...], _: str) -> None:
        self._wanted = set(names)
        self._changed.set()

    def _appeared(self, name: str) -> None:
        self._wanted.add(name)
        self._changed.set()

    def _vanished(self, name: str) -> None:
        self._wanted.discard(name)
        self._changed.set()


def _name(obj: Mapping[str, Any]) -> str:
    return text(mapping(obj.get("metadata")).get("name"))
