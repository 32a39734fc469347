"""Pods whose kubelet restarts what is spelled anew, as JSON: what it writes into their status.

The functions return another pod, and change none. The digest of an image is that of its repository: `app:1` is an
image of its own, and `app:1@sha256:...` another spelling of it.
"""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.time import rfc3339
from crrd.core.rollout.patched import CANNOT_START
from crrd.core.rollout.state import Member, read_member
from crrd.lib.jsonpatch import Operation
from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.patches import JSON_PATCH, patch_maker
from crrd_localnode.api.resources import POD
from tests.support.rollouts import START

Json = dict[str, Any]
CONTAINERS = ("app", "log")
WRITERS = ("{0}:2", "{0}:1", "mirror.local/{0}:1")
"""What somebody else gives a container: another image, the image of the template, and one of another registry."""


def names_on_pod(container: str, *names: str) -> dict[str, str]:
    """Return the annotation in which restarts by patches have recorded these names of a container's image."""
    return {ANNOTATION_PATCHED: json.dumps({"version": 1, "used": {container: names}})}


def digest_of(image: str) -> str:
    """Return the digest of an image, however it is spelled: that of its repository and tag, if it names none."""
    _, _, digest = image.partition("@")
    return digest or f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def image_of(pod: Json, container: str) -> str:
    """Return the image of a container in the pod's spec."""
    return next(str(each["image"]) for each in pod["spec"]["containers"] if each["name"] == container)


def with_image(pod: Json, container: str, image: str, at: str, manager: str = "kubectl-set") -> Json:
    """Return the pod after somebody has changed the image of a container."""
    containers = [{**each, "image": image} if each["name"] == container else each for each in pod["spec"]["containers"]]
    return owned({**pod, "spec": {**pod["spec"], "containers": containers}}, container, at, manager)


def owned(pod: Json, container: str, at: str, manager: str) -> Json:
    """Return the pod with a new owner of an image, as the API server records it, and its next generation."""
    meta = pod["metadata"]
    fields: dict[str, Any] = {f'k:{{"name":"{container}"}}': {"f:image": {}}}
    entry = {"manager": manager, "time": at, "fieldsV1": {"f:spec": {"f:containers": fields}}}
    others = [each for each in meta.get("managedFields", []) if each["fieldsV1"] != entry["fieldsV1"]]
    changed = {"generation": meta.get("generation", 1) + 1, "managedFields": [*others, entry]}
    return {**pod, "metadata": {**meta, **changed}}


def status_of(pod: Json, container: str) -> Json:
    """Return the status of a container."""
    found: Json = next(each for each in pod["status"]["containerStatuses"] if each["name"] == container)
    return found


def with_status(pod: Json, container: str, at: str, **changes: Any) -> Json:
    """Return the pod with another status of a container, and the condition Ready that follows from it."""
    statuses = [
        {**each, **changes} if each["name"] == container else each for each in pod["status"]["containerStatuses"]
    ]
    ready = str(all(each["ready"] for each in statuses))
    (old,) = pod["status"]["conditions"]
    condition = old if old["status"] == ready else {**old, "status": ready, "lastTransitionTime": at}
    return {**pod, "status": {**pod["status"], "conditions": [condition], "containerStatuses": statuses}}


def observed(pod: Json) -> Json:
    """Return the pod after kubelet has begun to do what its spec says."""
    return {**pod, "status": {**pod["status"], "observedGeneration": pod["metadata"].get("generation", 1)}}


def started(pod: Json, container: str, at: str, *, image: str = "", ready: bool = True) -> Json:
    """Return the pod with the next instance of a container. It runs `image`, or what the spec says."""
    count = status_of(pod, container)["restartCount"] + 1
    return with_status(pod, container, at, **_instance(pod, container, count, at, image=image, ready=ready))


def _instance(pod: Json, container: str, count: int, at: str, *, image: str = "", ready: bool) -> Json:
    image = image or image_of(pod, container)
    return {
        "containerID": f"containerd://{pod['metadata']['uid']}-{container}-{count}",
        "restartCount": count,
        "imageID": f"docker.io/library/{container}@{digest_of(image)}",
        "image": image,
        "ready": ready,
        "started": True,
        "state": {"running": {"startedAt": at}},
    }


def stopped(pod: Json, container: str, at: str) -> Json:
    """Return the pod while a container has ended, and the next instance has not started."""
    return with_status(pod, container, at, ready=False, started=False, state={"terminated": {"finishedAt": at}})


def waiting(pod: Json, container: str, at: str, reason: str) -> Json:
    """Return the pod while kubelet does not start a container. The status still names the last instance."""
    state = {"waiting": {"reason": reason, "message": "as kubelet says"}}
    return with_status(pod, container, at, ready=False, started=False, state=state)


def running_pod(name: str, uid: str, created: str, at: str, **meta: Any) -> Json:
    """Return a ready pod of the Deployment `web` whose containers have run since `at`."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "web-1", "controller": True}
    own = {"name": name, "namespace": "default", "uid": uid, "creationTimestamp": created, "ownerReferences": [owner]}
    spec = {"nodeName": "node-a", "containers": [{"name": each, "image": f"{each}:1"} for each in CONTAINERS]}
    pod: Json = {"kind": "Pod", "metadata": {**own, "labels": {"app": "web"}, **meta}, "spec": spec}
    statuses = [{"name": each, **_instance(pod, each, 0, at, ready=True)} for each in CONTAINERS]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
    return {**pod, "status": {"phase": "Running", "conditions": [ready], "containerStatuses": statuses}}


@dataclass(frozen=True)
class Stored:
    """A pod in the API, and how it is read."""

    obj: Json
    member: Member

    @property
    def due(self) -> bool:
        """Whether kubelet has yet to restart a container, because a run has spelled its image anew."""
        record = json.loads(self.obj["metadata"].get("annotations", {}).get(ANNOTATION_PATCHED, "{}"))
        return any(
            image_of(self.obj, each["name"]) == each["given"]
            and status_of(self.obj, each["name"])["containerID"] == each["container_id"]
            for each in record.get("containers", ())
        )


@dataclass
class SpelledPods:
    """The pods of a workload in the API, and the kubelets that run them. `which` chooses a container."""

    now: datetime = START + timedelta(seconds=1)
    pods: dict[str, Stored] = field(default_factory=dict)
    runs: dict[tuple[str, str], str] = field(default_factory=dict)
    """By pod (UID) and container: how the image of its last instance was spelled."""
    lost: set[tuple[str, str]] = field(default_factory=set)
    """Names by which the runtime does not know an image any more, by pod (UID)."""
    stopping: dict[tuple[str, str], str] = field(default_factory=dict)
    """By pod (UID) and container that is stopped: the image with which kubelet starts it, as it was then."""
    changed: dict[str, str] = field(default_factory=dict)
    """The containers whose image the last patch has changed, and the image before it."""
    made: int = 0

    @property
    def time(self) -> str:
        """The time as RFC 3339."""
        return rfc3339(self.now)

    def add(self, at: str) -> None:
        """Create a pod, whose containers run."""
        self.made += 1
        pod = running_pod(f"web-{self.made}", f"uid-{self.made}", at, at)
        self.runs |= {(f"uid-{self.made}", name): image_of(pod, name) for name in CONTAINERS}
        self.store(pod)

    def store(self, pod: Json) -> Stored:
        """Write a pod."""
        found = self.pods[pod["metadata"]["uid"]] = Stored(pod, read_member(pod, with_config=False))
        return found

    def patch(self, uid: str, operations: tuple[Operation, ...]) -> Stored | None:
        """Carry out a JSON patch, as the API server does. Return None if it is refused, or the pod is gone."""
        if uid not in self.pods:
            return None
        apply = patch_maker(POD, JSON_PATCH, json.dumps(operations).encode())
        before = self.pods[uid].obj
        try:
            after = apply(before)
        except ApiError:
            return None
        self.changed = {name: old for name in CONTAINERS if (old := image_of(before, name)) != image_of(after, name)}
        for name in self.changed:
            after = owned(after, name, self.time, "crrd")
        return self.store(after)

    def _pick(self, which: int) -> tuple[Stored, str]:
        keys = [(uid, name) for uid in self.pods for name in CONTAINERS]
        uid, name = keys[which % len(keys)]
        return self.pods[uid], name

    def kubelet(self, which: int) -> None:
        """It stops a container whose image is spelled anew, or starts one that has ended, if it finds the image.

        It starts what it has stopped with the image that it knew then, and sees a newer one at its next look.
        """
        pod, name = self._pick(which)
        pod = self.store(observed(pod.obj))
        uid, image = pod.member.pod.uid, image_of(pod.obj, name)
        state, ready = status_of(pod.obj, name)["state"], status_of(pod.obj, name)["ready"]
        if "running" not in state:
            image = self.stopping.get((uid, name), image)
        if "running" in state and self.runs[uid, name] != image:
            self.stopping[uid, name] = image
            self.store(stopped(pod.obj, name, self.time))
        elif "running" in state and not ready:
            self.store(with_status(pod.obj, name, self.time, ready=True))
        elif "running" not in state and (uid, image) in self.lost:
            self.stopping.pop((uid, name), None)  # from now on, each try is with the newest one
            self.store(waiting(pod.obj, name, self.time, CANNOT_START[which % len(CANNOT_START)]))
        elif "running" not in state:
            self.stopping.pop((uid, name), None)
            self.runs[uid, name] = image
            self.store(started(pod.obj, name, self.time, image=image, ready=which % 2 == 0))

    def crashes(self, which: int) -> None:
        """A container ends by itself."""
        pod, name = self._pick(which)
        if "running" in status_of(pod.obj, name)["state"]:
            held = waiting(pod.obj, name, self.time, "CrashLoopBackOff")
            self.store(held if which % 3 else stopped(pod.obj, name, self.time))

    def collects(self, which: int) -> None:
        """The runtime forgets a spelling of an image that no instance runs with."""
        pod, name = self._pick(which)
        uid, image = pod.member.pod.uid, image_of(pod.obj, name)
        running = self.runs[uid, name]
        for gone in {image, f"docker.io/library/{name}:1@{digest_of(running)}"} - {running}:
            if "@" in gone:
                self.lost.add((uid, gone))

    def edits(self, which: int) -> None:
        """Somebody changes the image of a container."""
        pod, name = self._pick(which)
        writer = which // (len(CONTAINERS) * len(self.pods))  # so that it may give a container its image back
        if (image := WRITERS[writer % len(WRITERS)].format(name)) != image_of(pod.obj, name):
            self.store(with_image(pod.obj, name, image, self.time))

    def annotates(self, which: int) -> None:
        """Somebody annotates a pod."""
        pod, _ = self._pick(which)
        meta = pod.obj["metadata"]
        self.store({**pod.obj, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), "note": self.time}}})

    def is_deleted(self, which: int) -> None:
        """Somebody deletes a pod, which goes on for its grace period."""
        pod, _ = self._pick(which)
        self.store({**pod.obj, "metadata": {**pod.obj["metadata"], "deletionTimestamp": self.time}})

    def kubelet_catches_up(self) -> None:
        """Kubelet does all that is to be done."""
        for which in range(4 * len(CONTAINERS) * len(self.pods)):
            self.kubelet(which)
