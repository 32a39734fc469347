"""Brings together what a forecast needs of each running container: the runtime's word on it, and its spec in the API.

Pure: who asked the runtime and the API server, or read a file, is not known here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.core.api.pod import ContainerKind
from daemon.forecast.report import ForecastInput
from daemon.kubelet.labels import ANNOTATION_CONFIG_HASH
from daemon.lib.jsonfields import items, mapping, text

_LISTS = (
    ("containers", ContainerKind.REGULAR),
    ("initContainers", ContainerKind.INIT),
    ("ephemeralContainers", ContainerKind.EPHEMERAL),
)


@dataclass(frozen=True, slots=True)
class Running:
    """A running container, by the labels and annotations that kubelet wrote on it; "" where there are none."""

    id: str
    namespace: str
    pod: str
    uid: str
    name: str
    stored_hash: str | None
    created_at: int = 0
    """Nanoseconds since the epoch, the runtime's clock: for ordering only."""


class Join:
    """Finds the spec of each running container, pod by pod, so that no pod needs to be kept."""

    def __init__(self, running: Iterable[Running]) -> None:
        self._waiting: dict[str, list[Running]] = defaultdict(list)
        for each in running:
            self._waiting[each.uid].append(each)

    def pod(self, pod: Mapping[str, Any]) -> list[ForecastInput]:
        """The pod's running containers, each with its spec; none for a pod that does not run here."""
        metadata = mapping(pod.get("metadata"))
        uids = (text(metadata.get("uid")), text(mapping(metadata.get("annotations")).get(ANNOTATION_CONFIG_HASH)))
        running = [each for uid in uids if uid for each in self._waiting.pop(uid, ())]
        if not running:
            return []
        specs = _specs(mapping(pod.get("spec")))
        return [_input(each, *specs.get(each.name, (None, ContainerKind.REGULAR))) for each in running]

    def rest(self) -> list[ForecastInput]:
        """The running containers that no pod has asked for."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        return [_input(each, None, ContainerKind.REGULAR) for found in waiting.values() for each in found]


def _specs(spec: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], ContainerKind]]:
    found: dict[str, tuple[Mapping[str, Any], ContainerKind]] = {}
    for key, kind in _LISTS:
        for container in map(mapping, items(spec.get(key))):
            sidecar = kind is ContainerKind.INIT and container.get("restartPolicy") == "Always"
            found[text(container.get("name"))] = (container, ContainerKind.SIDECAR if sidecar else kind)
    return found


def _input(running: Running, spec: Mapping[str, Any] | None, kind: ContainerKind) -> ForecastInput:
    return ForecastInput(
        namespace=running.namespace,
        pod=running.pod,
        name=running.name,
        id=running.id,
        stored_hash=running.stored_hash,
        spec=spec or None,
        kind=kind,
        created_at=running.created_at,
    )
