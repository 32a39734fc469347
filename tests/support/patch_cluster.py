"""A namespace in virtual time where nothing of crrd is installed, and kubelet restarts what is patched.

A run by patches goes over the whole path of `crrd recreate` but the HTTP.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from crrd.core.api.time import rfc3339
from crrd.kube.client import KubeClient
from crrd.kube.errors import ResourceMissingError
from crrd.kube.lanes import Lane
from crrd.kube.resources import PODS, REQUESTS, Listing, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.session import Session
from crrd.rollout.text import TextLines
from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.patches import JSON_PATCH, merge_patch, patch_maker
from crrd_localnode.api.resources import POD
from tests.support.run_cluster import NAMESPACE, RunCluster
from tests.support.sessions import command, parsed
from tests.support.spelled import digest_of, image_of, started, stopped, waiting


class PatchCluster(RunCluster):
    """Pods `web-0000` ... of a StatefulSet. Kubelet stops a container after STOP_SECONDS, and starts it as late.

    As the real one, it stops the containers of a pod one after the other before it starts any, and starts them with the
    images that the pod had when it began.
    """

    STOP_SECONDS = 1.0

    def __init__(self, pods: int, containers: Sequence[str] = ("app",)) -> None:
        self.kubelets: dict[str, asyncio.Task[None]] = {}  # By pod
        self.runs: dict[tuple[str, str], str] = {}  # By pod (UID), container: how its last instance's image was spelled
        self.missing: set[str] = set()  # Pods whose kubelet finds no image by another spelling
        self.frozen: set[str] = set()  # Pods whose kubelet does nothing
        self.denies: Callable[[str], Exception | None] = lambda pod: None
        """Returns why a policy refuses a patch of this pod, None to admit it."""
        self.mutates: Callable[[dict[str, Any]], dict[str, Any]] = lambda pod: pod  # What a webhook makes of a pod
        self.before: Callable[[str], None] = lambda pod: None  # Called before each patch that is no dry run
        self.hangs: set[int] = set()  # Patches, by number, whose response never arrives
        self.may_not: set[str] = set()  # Verbs that the user has not
        self.crds = False  # Whether the API server has ContainerRecreateRequests
        self._names = tuple(containers)
        super().__init__(0, nodes=1, spec={"containers": [{"name": each, "image": f"{each}:1"} for each in containers]})
        for number in range(pods):
            self.pod(f"web-{number:04}", "node-0")

    # Objects

    def pod(self, name: str, node: str, *, instance: int = 0, ready: bool = True, **meta: Any) -> dict[str, Any]:
        """See RunCluster. The image is one that was pulled."""
        pod = super().pod(name, node, instance=instance, ready=ready, **meta)
        pod["kind"] = "Pod"
        (status,) = pod["status"]["containerStatuses"]
        own = {each: {"imageID": f"docker.io/library/{each}@{digest_of(f'{each}:1')}"} for each in self._names}
        for each in self._names[1:]:
            own[each] |= {"name": each, "containerID": f"containerd://{name}-{each}-{instance}"}
        pod["status"]["containerStatuses"] = [{**status, **own[each]} for each in self._names]
        self.runs |= {(pod["metadata"]["uid"], each): f"{each}:1" for each in self._names}
        self.put(PODS, pod)
        return pod

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """See RunCluster."""
        super().put(resource, obj)
        name, uid = obj["metadata"]["name"], obj["metadata"].get("uid")
        known = resource == PODS and (uid, self._names[0]) in self.runs and name not in self.kubelets
        if known and self._due(cast("Any", obj)):
            self.kubelets[name] = asyncio.create_task(self._kubelet(name, uid))

    def _due(self, pod: dict[str, Any]) -> dict[str, str]:
        """Return the containers that do not run what the spec says, and what that is."""
        images = {each: image_of(pod, each) for each in self._names}
        return {each: image for each, image in images.items() if image != self.runs[pod["metadata"]["uid"], each]}

    def now(self, name: str) -> dict[str, Any]:
        """Return a pod."""
        return cast("dict[str, Any]", self.objects["pods"][name])

    async def _kubelet(self, name: str, uid: str) -> None:
        """Replace the containers until they run what the spec says."""

        def there() -> bool:
            return name in self.objects["pods"] and bool(self.now(name)["metadata"]["uid"] == uid)

        try:
            await asyncio.sleep(self.STOP_SECONDS)
            while name in self.frozen:
                await asyncio.sleep(1)
            while there() and (due := self._due(self.now(name))):
                self.away.add(name)
                self.most_away = max(self.most_away, len(self.away))
                for each in due:
                    if there():
                        super().put(PODS, stopped(self.now(name), each, self._time()))
                    await asyncio.sleep(self.STOP_SECONDS)
                for each, image in due.items():
                    await self._start(name, each, image, there)
        finally:
            del self.kubelets[name]
            self.away.discard(name)

    async def _start(self, name: str, container: str, image: str, there: Callable[[], bool]) -> None:
        """Start a container. After a failure, kubelet takes the newest image."""
        while there() and name in self.missing and "@" in image:
            super().put(PODS, waiting(self.now(name), container, self._time(), "ErrImageNeverPull"))
            await asyncio.sleep(self.STOP_SECONDS)
            image = image_of(self.now(name), container) if there() else image
        if there():
            self.runs[self.now(name)["metadata"]["uid"], container] = image
            self.restarts[name if container == self._names[0] else f"{name}/{container}"] += 1
            super().put(PODS, started(self.now(name), container, self._time(), image=image))

    def _time(self) -> str:
        return rfc3339(self.clock.now())

    # Calls

    async def document(self, path: str) -> Mapping[str, Any]:
        if path == "/apis/apps/v1":
            return {"resources": [{"name": "statefulsets", "kind": "StatefulSet", "namespaced": True}]}
        if path.startswith("/apis/apps.kruise.io") and self.crds:
            return {"resources": [{"name": REQUESTS.plural, "kind": "ContainerRecreateRequest", "namespaced": True}]}
        raise ResourceMissingError("not served", status=404)

    async def list_all(
        self, resource: Resource, parse: Callable[[Mapping[str, Any]], Any], **where: Any
    ) -> Listing[Any]:
        self._check(resource)
        return await super().list_all(resource, parse, **where)

    async def first(self, resource: Resource, **where: Any) -> Mapping[str, Any] | None:
        self._check(resource)
        return await super().first(resource, **where)

    def _check(self, resource: Resource) -> None:
        if resource == REQUESTS and not self.crds:
            raise ResourceMissingError("not served", status=404)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if resource.plural == "selfsubjectaccessreviews":
            return {"status": {"allowed": body["spec"]["resourceAttributes"]["verb"] not in self.may_not}}
        return await super().create(resource, namespace, body)

    async def json_patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        async with self._place(Lane.WRITE, "patch", resource, namespace, name):
            if not dry_run and any(each["path"].endswith("/image") for each in operations):
                self.before(name)
            old = self._found(resource, name)
            if (refusal := self.denies(name)) is not None:
                raise refusal
            try:
                made = patch_maker(POD, JSON_PATCH, json.dumps(operations).encode())(dict(old))
            except ApiError as error:
                raise ApiRefusedError(str(error), status=422) from error
            made = self.mutates(made)
            if dry_run:
                return cast("Mapping[str, Any]", made)
            self.put(resource, made)
            if not any(each["path"].endswith("/image") for each in operations):  # an annotation
                return self.objects[resource.plural][name]
            self.created.append(name)
            if len(self.created) in self.hangs:
                await asyncio.Event().wait()
            if name in self.lost:
                self.lost.discard(name)
                raise ApiUnavailableError("the connection was closed")
            return self.objects[resource.plural][name]

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        async with self._place(Lane.WRITE, "patch", resource, namespace, name):
            old = self._found(resource, name)
            if body["metadata"].get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                raise ApiRefusedError("the UID in the precondition differs", status=422)
            self.put(resource, merge_patch(old, body))
            return self.objects[resource.plural][name]

    # Commands

    def session(self, *words: str) -> Session:
        """A command in a process of its own."""
        asked = command(*words)
        lines = JsonLines(self.clock.now, shape=asked.output, dry_run=bool(asked.dry_run))
        display = TextLines() if asked.output.is_text else lines
        return Session(cast("KubeClient", self), self.clock, NAMESPACE, display, asked, _unexplained)

    async def recreate(self, *words: str) -> int:
        """Carry out a command line. Return its exit code."""
        args: argparse.Namespace = parsed(*words)
        session = self.session(*words)
        code: int = await args.work(session)
        session.display.close()
        return code


async def _unexplained(*_: object) -> str:
    return "explained"
