"""Kubelet, node daemon, manager and the controller of Deployments on a PlayedCluster, for runs that set images.

Each round reads everything and does what is due in one step. Images whose name has `missing` cannot be pulled.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.api.types import ANNOTATION_STOPPED, LABEL_ACTIVE
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.core.rollout.image.template import read_content
from crrd.kube.resources import PODS, REPLICA_SETS, REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster, gets_image
from tests.support.spelled import digest_of, names_on_pod

Json = dict[str, Any]


def image_of(pod: Json, name: str = "app") -> str:
    """Return the image of a container, or of an init container, in the spec."""
    there = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    return next(str(each["image"]) for each in there if each["name"] == name)


def image_id_of(image: str) -> str:
    """Return the ID of an image as kubelet reports it. The digest is that of its repository and tag."""
    repository = image.partition("@")[0].rpartition(":")[0].removeprefix("docker.io/library/")
    return f"docker.io/library/{repository}@{digest_of(image)}"


def _runs(pod: Json, image: str) -> bool:
    """Whether the container is one with the image."""
    return any((each["name"], each["image"]) == ("app", image) for each in pod["status"]["containerStatuses"])


@dataclass
class Images:
    """What is on the one node, and what the play has done."""

    cluster: PlayedCluster
    on_node: set[str] = field(default_factory=lambda: {"i:1"})
    outages: list[str] = field(default_factory=list)  # Pods whose container was stopped without its image on the node
    grace: bool = False  # Whether pods are in their unready grace period
    bad: str = ""  # The image with which containers do not become ready
    stuck: bool = False  # Whether kubelet replaces no container, so requests reach their deadline

    async def give(self, image: str, *, but: int = 0, before: str = "") -> None:
        """Give all pods, but the last ones, an image, as an earlier run. Return once their containers have it.

        `before`: record that they had this name of it, as a restart by a patch.
        """
        meta = {"annotations": names_on_pod("app", before, image)} if before else {}
        self.on_node.add(image)
        pods = await self.cluster.pods()
        for pod in pods[: len(pods) - but]:
            containers = [
                each | ({"image": image} if each["name"] == "app" else {}) for each in pod["spec"]["containers"]
            ]
            await self.cluster.client.merge_patch(
                PODS, NAMESPACE, pod["metadata"]["name"], {"metadata": meta, "spec": {"containers": containers}}
            )
        while sum(_runs(pod, image) for pod in await self.cluster.pods()) < len(pods) - but:
            await asyncio.sleep(0.01)

    async def play(self) -> None:
        """Play until cancelled."""
        while True:
            with suppress(ApiRefusedError, ApiUnavailableError):
                await self._round()
            await asyncio.sleep(0.01)

    async def _round(self) -> None:
        pods = await self.cluster.pods()
        for pod in pods:
            if LABEL_PULL in pod["metadata"].get("labels", {}):
                await self._pull(pod)
            else:
                await self._kubelet(pod)
        by_name = {pod["metadata"]["name"]: pod for pod in pods}
        for request in await self.cluster.requests():
            if gets_image(request) is not None and LABEL_ACTIVE in request["metadata"]["labels"]:
                await self._serve(request, by_name.get(request["spec"]["podName"]))
        for deployment in (
            await self.cluster.client.list_all(RESOURCES["Deployment"], dict, namespace=NAMESPACE)
        ).items:
            await self._control(deployment)

    async def _pull(self, pod: Json) -> None:
        image = pod["spec"]["containers"][0]["image"]
        if pod.get("status", {}).get("containerStatuses"):
            return
        state: Json = {"terminated": {"reason": "StartError", "exitCode": 128}}
        if "missing" in image:
            state = {"waiting": {"reason": "InvalidImageName", "message": "no such image"}}
        else:
            self.on_node.add(image)
        status = {"containerStatuses": [{"name": "pull", "state": state}]}
        await self._write_pod(pod, status)

    async def _kubelet(self, pod: Json) -> None:
        if self.stuck:
            return
        statuses = pod.get("status", {}).get("containerStatuses") or []
        changed = [each for each in statuses if each["image"] != image_of(pod, each["name"])]
        for each in changed:
            image = image_of(pod, each["name"])
            if image not in self.on_node:
                self.outages.append(pod["metadata"]["name"])
            each |= {"image": image, "restartCount": each["restartCount"] + 1, "imageID": image_id_of(image)}
            each |= {"containerID": f"containerd://{secrets.token_hex(32)}"}
            each["state"] = {"running": {"startedAt": rfc3339(self.cluster.api.now())}}
        if changed:
            await self._write_pod(pod, {"containerStatuses": statuses})

    async def _write_pod(self, pod: Json, status: Json) -> None:
        name = pod["metadata"]["name"]
        await self.cluster.client.merge_patch(PODS, NAMESPACE, name, {"status": status}, subresource="status")

    async def _serve(self, request: Json, pod: Json | None) -> None:
        wanted = gets_image(request) or {}
        name, image = wanted["name"], wanted["image"]
        if request.get("status", {}).get("phase") == "Completed":
            return
        if pod is None or pod["metadata"]["uid"] != request["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"]:
            gone = {"name": name, "phase": "Failed", "reason": "PodGone", "message": "the pod was deleted"}
            body = {"status": {"phase": "Completed", "containerRecreateStates": [gone]}}
            where = NAMESPACE, request["metadata"]["name"]
            await self.cluster.client.merge_patch(REQUESTS, *where, body, subresource="status")
            return
        kinds = ("containerStatuses", "initContainerStatuses")
        found = next(each for kind in kinds for each in pod["status"].get(kind, ()) if each["name"] == name)
        if request["spec"].get("wholePod") and image_of(pod, name) == image and not self.stuck:
            found = await self._restart(request, pod, name)
        state = {"name": name, "phase": "Pending", "reason": "ImagePresent", "message": "present"}
        phase = "Recreating"
        if self.grace:
            state = {"name": name, "phase": "Pending"}
        if ANNOTATION_STOPPED in request["metadata"]["annotations"]:  # the manager ends it
            state, phase = {"name": name, "phase": "Failed", "reason": "RunStopped", "message": "stopped"}, "Completed"
        elif image_of(pod, name) == image and self.stuck:
            state, phase = (
                {"name": name, "phase": "Failed", "reason": "DeadlineExceeded", "message": "late"},
                "Completed",
            )
        elif image_of(pod, name) == image:
            over = found["image"] == image != self.bad
            state, phase = (
                {"name": name, "phase": "Succeeded" if over else "Recreating"},
                "Completed" if over else phase,
            )
        elif image not in self.on_node:
            state, phase = (
                {"name": name, "phase": "Failed", "reason": "ImageMissing", "message": "missing"},
                "Completed",
            )
        at = {"completionTime": rfc3339(self.cluster.api.now())} if phase == "Completed" else {}
        others = ({**state, "name": each["name"]} for each in request["spec"]["containers"] if each["name"] != name)
        status = {"phase": phase, "containerRecreateStates": [state, *others], **at}
        body, subject = {"status": status}, request["metadata"]["name"]
        await self.cluster.client.merge_patch(REQUESTS, NAMESPACE, subject, body, subresource="status")

    async def _restart(self, request: Json, pod: Json, name: str) -> Json:
        """Restart a pod that has the image of its init container, once. Return the status of that."""
        pod_name, image = pod["metadata"]["name"], image_of(pod, name)
        (found,) = (each for each in pod["status"]["initContainerStatuses"] if each["name"] == name)
        if found["image"] == image:
            return dict(found)
        if image not in self.on_node:
            self.outages.append(pod_name)
        waits = "waiting" in found["state"]  # it has failed, and kubelet has not started the others since
        await self.cluster.restart(request, pod_name, runs=not waits, starts=image != self.bad)
        if image == self.bad:  # kubelet tries it again and again
            waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
            status = {"initContainerStatuses": [{**found, "image": image, "ready": False, "state": waiting}]}
            await self._write_pod(pod, status)
        else:
            await self.cluster.settle(pod_name)
        return {**found, "image": image}

    async def _control(self, deployment: Json) -> None:
        """Count the pods of the ReplicaSet with the Deployment's template, as its controller does."""
        found = await self.cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)
        wanted = read_content(deployment["spec"]["template"], "app")
        same = any(read_content(each["spec"]["template"], "app") == wanted for each in found.items)
        count, generation = deployment["spec"]["replicas"], deployment["metadata"]["generation"]
        status = {"observedGeneration": generation, "replicas": count, "updatedReplicas": count if same else 0}
        if {key: deployment["status"].get(key) for key in status} != status:
            resource, name = RESOURCES["Deployment"], deployment["metadata"]["name"]
            await self.cluster.client.merge_patch(resource, NAMESPACE, name, {"status": status}, subresource="status")


@asynccontextmanager
async def played_images(cluster: PlayedCluster) -> AsyncIterator[Images]:
    """Play beside a cluster."""
    images = Images(cluster)
    task = asyncio.create_task(images.play())
    try:
        yield images
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
