"""Joins the runtime's data about each running container with its spec in the API."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from crrd.core.api.pod import STATUSES, ContainerKind, pod_containers
from crrd.kubelet.labels import ANNOTATION_CONFIG_HASH, ANNOTATION_MIRROR
from crrd.lib.jsonfields import items, mapping, name_of, text, value_at
from crrd_forecast.report import ForecastInput


class Join:
    """Finds the spec of each running container, pod by pod, so that pods do not have to be kept in memory."""

    def __init__(self, running: Iterable[ForecastInput]) -> None:
        self._waiting: dict[tuple[str, str, str], list[ForecastInput]] = defaultdict(list)
        for each in running:
            self._waiting[each.uid, each.namespace, each.pod].append(each)

    def pod(self, pod: Mapping[str, Any]) -> list[ForecastInput]:
        """Return the pod's running containers with their specs. Return none for a pod that does not run here.

        Anybody can write annotations, so a pod gets only containers that kubelet started under the pod's name.
        """
        metadata = mapping(pod.get("metadata"))
        name = (text(metadata.get("namespace")), text(metadata.get("name")))
        annotations = mapping(metadata.get("annotations"))
        static = text(annotations.get(ANNOTATION_CONFIG_HASH)) if ANNOTATION_MIRROR in annotations else ""
        uids = filter(None, (text(metadata.get("uid")), static))
        running = [each for uid in uids for each in self._waiting.pop((uid, *name), ())]
        if not running:
            return []
        specs = _specs(mapping(pod.get("spec")))
        found = ((each, *specs.get(each.name, (None, ContainerKind.REGULAR))) for each in running)
        return [replace(each, spec=spec or None, kind=kind) for each, spec, kind in found]

    def rest(self) -> list[ForecastInput]:
        """Return the running containers that no call of `pod` has returned."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        return [each for found in waiting.values() for each in found]


def running_by_status(pod: Mapping[str, Any]) -> list[ForecastInput]:
    """Return the pod's containers that run according to its status, without specs, as not listed by the runtime."""
    pod_name = (text(value_at(pod, "metadata.namespace")), name_of(pod))
    specs = _specs(mapping(pod.get("spec")))
    found = []
    for container in (mapping(each) for key in STATUSES for each in items(value_at(pod, f"status.{key}"))):
        container_id = text(container.get("containerID")).partition("://")[2]
        if container_id and "running" in mapping(container.get("state")):
            name = text(container.get("name"))
            _, kind = specs.get(name, (None, ContainerKind.REGULAR))
            found.append(ForecastInput(*pod_name, name, container_id, None, kind=kind, listed=False))
    return found


def _specs(spec: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], ContainerKind]]:
    return {name: (container, kind) for name, container, kind in pod_containers(spec)}
