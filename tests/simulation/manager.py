"""The users of the cluster, and admission's changes to their requests."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crrd.core.api.types import (
    ANNOTATION_PINNED,
    API_VERSION,
    KIND,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    PLURAL,
)
from crrd.core.api.v1alpha1 import active_value
from tests.simulation.pod_judge import pins_of_pod
from tests.simulation.schedule import NAMESPACE, NODE
from tests.simulation.store import Object

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld


class SimulatedUsers:
    """The users' actions."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self._made = 0

    # Users.

    def create(self, about: dict[str, Any]) -> None:
        """Create a request that admission accepts."""
        pod = self._world.store.get("pods", f"{NAMESPACE}/{about['pod']}")
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        status = pod.get("status", {})
        known = {
            part["name"]: part
            for part in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
        }
        if status.get("phase") not in ("Running", "Pending") or any(
            not known.get(name, {}).get("containerID") for name in about["containers"]
        ):
            return
        self._made += 1
        containers = []
        for name in about["containers"]:
            entry: dict[str, Any] = {"name": name}
            context_id = known[name]["containerID"]
            if about["context"] == "foreign":
                others = [one for one in self._world.containers.present.values() if one.name != name]
                if others:
                    context_id = f"{others[0].runtime}://{others[0].id}"
            if about["context"] in ("admission", "foreign"):
                entry["statusContext"] = {"containerID": context_id, "restartCount": known[name]["restartCount"]}
            containers.append(entry)
        whole = bool(about.get("whole"))
        labels = {LABEL_NODE_NAME: NODE, LABEL_ACTIVE: active_value((), whole_pod=whole, reloads=False)}
        if about["context"] != "bare":
            labels[LABEL_POD_UID] = pod["metadata"]["uid"]
        meta = {"namespace": NAMESPACE, "name": about["request"], "uid": f"u{self._made}", "labels": labels}
        spec: dict[str, Any] = {"podName": about["pod"], "containers": containers, "strategy": about["strategy"]}
        if whole:
            spec["wholePod"] = True
        if about.get("deadline"):
            spec["activeDeadlineSeconds"] = about["deadline"]
        shape = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}
        key = f"{NAMESPACE}/{about['request']}"
        if self._world.store.get(PLURAL, key) is not None:
            return
        self._world.judge.created(meta["uid"], shape, pod)
        self._world.store.create(PLURAL, shape)

    def delete(self, name: str) -> None:
        self._world.store.delete(PLURAL, f"{NAMESPACE}/{name}")

    def label(self, name: str, *, active: bool) -> None:
        """Give a request its label back, or remove it."""
        key = f"{NAMESPACE}/{name}"
        obj = self._world.store.get(PLURAL, key)
        if obj is not None and not _completed(obj):
            value = active_value((), whole_pod=bool(obj["spec"].get("wholePod")), reloads=False) if active else None
            self._world.store.patch(PLURAL, key, {"metadata": {"labels": {LABEL_ACTIVE: value}}})

    def annotate(self, name: str, key: str, value: str | None) -> None:
        self._world.store.patch(PLURAL, f"{NAMESPACE}/{name}", {"metadata": {"annotations": {key: value}}})

    def unpin(self, name: str) -> None:
        self.annotate(name, ANNOTATION_PINNED, None)

    def repin(self, name: str) -> bool:
        """Another client pins the current instance, or the first one. Return False if that would be unrealistic."""
        obj, life = self._world.store.get(PLURAL, f"{NAMESPACE}/{name}"), self._world.life
        pod = self._world.kubelet.of(obj["spec"]["podName"]) if obj is not None else None
        if obj is None or pod is None or life is None or obj["metadata"]["uid"] not in life.live_requests():
            return False  # a daemon that does not know the request would have to believe the pins
        said = all("statusContext" in container for container in obj["spec"]["containers"])
        meant_already = said and not obj["spec"].get("wholePod") and not obj["spec"]["strategy"].get("forceRecreate")
        if not meant_already and ANNOTATION_PINNED not in obj["metadata"].get("annotations", {}):
            return False  # they would be the first pins
        at = -1 if int(self._world.loop.time() * 100) % 2 else 0
        pins: dict[str, Mapping[str, object]] = {}
        for sandbox in self._world.sandboxes.of(pod.runtime_uid)[at:][:1] if obj["spec"].get("wholePod") else []:
            pins |= pins_of_pod(sandbox)
        for container in () if pins else obj["spec"]["containers"]:
            for one in self._world.containers.history(pod.runtime_uid, container["name"])[at:][:1]:
                pins[one.name] = {"containerID": f"{one.runtime}://{one.id}", "restartCount": one.attempt}
        value = json.dumps(pins)
        self._world.judge.foreign_pins.add(value)
        self.annotate(name, ANNOTATION_PINNED, value)
        return True

    def unpin_changed(self) -> None:
        """Remove the pins that `repin` has written and that were not corrected."""
        for obj in self._world.store.all(PLURAL):
            if obj["metadata"].get("annotations", {}).get(ANNOTATION_PINNED) in self._world.judge.foreign_pins:
                self.unpin(obj["metadata"]["name"])


def _completed(obj: Object) -> bool:
    return bool(obj.get("status", {}).get("phase") == "Completed")
