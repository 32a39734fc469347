"""Everybody else in the cluster: admission and lifecycle of requests, as short as they can be, and the users."""

import json
from typing import TYPE_CHECKING, Any

from crrd.core.api.pod import Readiness, readiness_of
from crrd.core.api.types import (
    ANNOTATION_PINNED,
    ANNOTATION_UNREADY_ACQUIRED,
    API_VERSION,
    KIND,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    PLURAL,
    READINESS_GATE,
)
from crrd.core.lifecycle.readiness import acquired, released
from tests.simulation.schedule import NAMESPACE, NODE, RUNTIME
from tests.simulation.store import Object, states

if TYPE_CHECKING:
    from tests.simulation.world import World

MANAGER_SECONDS = 0.3
NO_ANSWER_SECONDS = 60.0


class Cluster:
    """The manager's controller and the hands of users."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._made = 0

    # Users.

    def create(self, about: dict[str, Any]) -> None:
        """A request that admission lets through."""
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
                    context_id = f"{RUNTIME}://{others[0].id}"
            if about["context"] in ("admission", "foreign"):
                entry["statusContext"] = {"containerID": context_id, "restartCount": known[name]["restartCount"]}
            containers.append(entry)
        labels = {LABEL_NODE_NAME: NODE, LABEL_ACTIVE: "true"}
        if about["context"] != "bare":
            labels[LABEL_POD_UID] = pod["metadata"]["uid"]
        meta = {"namespace": NAMESPACE, "name": about["request"], "uid": f"u{self._made}", "labels": labels}
        spec: dict[str, Any] = {"podName": about["pod"], "containers": containers, "strategy": about["strategy"]}
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

    def label(self, name: str, active: str | None) -> None:
        key = f"{NAMESPACE}/{name}"
        obj = self._world.store.get(PLURAL, key)
        if obj is not None and not _completed(obj):
            self._world.store.patch(PLURAL, key, {"metadata": {"labels": {LABEL_ACTIVE: active}}})

    def annotate(self, name: str, key: str, value: str | None) -> None:
        self._world.store.patch(PLURAL, f"{NAMESPACE}/{name}", {"metadata": {"annotations": {key: value}}})

    def unpin(self, name: str) -> None:
        self.annotate(name, ANNOTATION_PINNED, None)

    def repin(self, name: str) -> bool:
        """Somebody says that what there is now is meant, or what there was at first; False where that says too much."""
        obj, life = self._world.store.get(PLURAL, f"{NAMESPACE}/{name}"), self._world.life
        pod = self._world.kubelet.of(obj["spec"]["podName"]) if obj is not None else None
        if obj is None or pod is None or life is None or obj["metadata"]["uid"] not in life.live_requests():
            return False  # who does not know the request could only believe it
        said = all("statusContext" in container for container in obj["spec"]["containers"])
        meant_already = said and not obj["spec"]["strategy"].get("forceRecreate")
        if not meant_already and ANNOTATION_PINNED not in obj["metadata"].get("annotations", {}):
            return False  # the first to say it
        at = -1 if int(self._world.loop.time() * 100) % 2 else 0
        pins: dict[str, dict[str, object]] = {}
        for container in obj["spec"]["containers"]:
            for one in self._world.containers.history(pod.runtime_uid, container["name"])[at:][:1]:
                pins[one.name] = {"containerID": f"{RUNTIME}://{one.id}", "restartCount": one.attempt}
        value = json.dumps(pins)
        self._world.judge.foreign_pins.add(value)
        self.annotate(name, ANNOTATION_PINNED, value)
        return True

    def unpin_changed(self) -> None:
        """Take away what `repin` has written and nobody has corrected."""
        for obj in self._world.store.all(PLURAL):
            if obj["metadata"].get("annotations", {}).get(ANNOTATION_PINNED) in self._world.judge.foreign_pins:
                self.unpin(obj["metadata"]["name"])

    # The manager.

    def changed(self, obj: Object) -> None:
        """A request is new or has changed: look at it a moment later."""
        self._world.loop.call_later(MANAGER_SECONDS, self._look, obj["metadata"]["uid"])

    def came(self, obj: Object) -> None:
        """Look again when a time of the request's has come."""
        uid = obj["metadata"]["uid"]
        self._world.loop.call_later(NO_ANSWER_SECONDS + 0.1, self._look, uid)
        if deadline := obj["spec"].get("activeDeadlineSeconds"):
            self._world.loop.call_later(deadline + 0.1, self._look, uid)

    def _find(self, uid: str) -> Object | None:
        return next((obj for obj in self._world.store.all(PLURAL) if obj["metadata"]["uid"] == uid), None)

    def _look(self, uid: str) -> None:
        obj = self._find(uid)
        if obj is None:
            return
        key = f"{NAMESPACE}/{obj['metadata']['name']}"
        labels, strategy = obj["metadata"].get("labels", {}), obj["spec"].get("strategy", {})
        if _completed(obj):
            self.release(obj)
            if LABEL_ACTIVE in labels:
                self._world.store.patch(PLURAL, key, {"metadata": {"labels": {LABEL_ACTIVE: None}}})
            return
        age = self._world.loop.time() - self._world.judge.created_at(uid)
        pod = self._world.store.get("pods", f"{NAMESPACE}/{obj['spec']['podName']}")
        wanted = labels.get(LABEL_POD_UID)
        if pod is None or (wanted and pod["metadata"]["uid"] != wanted):
            self._complete(obj, key, "pod has gone")
        elif obj["spec"].get("activeDeadlineSeconds", age + 1) <= age:
            self._complete(obj, key, "not recreated within activeDeadlineSeconds")
        elif age >= NO_ANSWER_SECONDS and not obj.get("status", {}).get("phase"):
            self._complete(obj, key, f"no daemon answered on node {NODE}")
        elif (
            "unreadyGracePeriodSeconds" in strategy
            and pod["spec"].get("readinessGates")
            and ANNOTATION_UNREADY_ACQUIRED not in obj["metadata"].get("annotations", {})
        ):
            self._set_readiness(pod, acquired(readiness_of(pod), key))
            self.annotate(obj["metadata"]["name"], ANNOTATION_UNREADY_ACQUIRED, self._world.loop.true_utc())

    def release(self, obj: Object) -> None:
        """A request has ended, or is no more: it does not keep its pod unready."""
        pod = self._world.store.get("pods", f"{NAMESPACE}/{obj['spec']['podName']}")
        before, key = readiness_of(pod or {}), f"{NAMESPACE}/{obj['metadata']['name']}"
        if pod is not None and key in before.keys:
            self._set_readiness(pod, released(before, key))

    def _set_readiness(self, pod: Object, after: Readiness) -> None:
        others = [each for each in pod["status"].get("conditions", ()) if each["type"] != READINESS_GATE]
        gate = {"type": READINESS_GATE, "status": after.status, "message": after.message}
        status = {**pod["status"], "conditions": [*others, gate]}
        self._world.store.update("pods", {**pod, "status": status})

    def _complete(self, obj: Object, key: str, message: str) -> None:
        known = {state["name"]: state for state in states(obj)}
        ended = []
        for container in obj["spec"]["containers"]:
            state = known.get(container["name"], {"name": container["name"], "phase": "Pending"})
            final = state["phase"] in ("Succeeded", "Failed")
            ended.append(state if final else {**state, "phase": "Failed", "message": message})
        status = {
            "phase": "Completed",
            "message": message,
            "completionTime": self._world.loop.true_utc(),
            "containerRecreateStates": ended,
        }
        self._world.judge.ended_by_manager(obj, message)
        self._world.say("manager", f"completes {obj['metadata']['name']}: {message}")
        self._world.store.patch(PLURAL, key, {"status": status})


def _completed(obj: Object) -> bool:
    return bool(obj.get("status", {}).get("phase") == "Completed")
