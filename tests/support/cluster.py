"""A cluster to test against: the local node, or an existing one. The tests do not depend on which it is.

`Cluster` has short methods for what tests do with pods, requests and containers. With `CRRD_TEST_KUBECONFIG`,
`CRRD_TEST_CRI_ENDPOINT`, `CRRD_TEST_NODE` and `CRRD_TEST_IMAGE` (an image with a shell), it uses an existing cluster,
and starts no API server, kubelet or runtime. Then the tests must run on that node, as root.
"""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml

from cri_stubs import api_pb2 as pb
from cri_stubs.api_pb2_grpc import RuntimeServiceStub
from crrd.core.api import types as model
from crrd.core.recreate.observation import ExecResult
from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.discovery import serves
from crrd.kube.resources import NAMESPACES, PODS, POLICIES, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, GoneError
from tests.support.containerd import Containerd
from tests.support.faulty_node import FaultyNode

if TYPE_CHECKING:
    from cri_stubs.api_pb2_grpc import RuntimeServiceAsyncStub

Json = dict[str, Any]

CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
_MANIFESTS = Path(__file__).parents[2] / "manifests" / "base"
CRD_FILES = {REQUESTS: _MANIFESTS / "crd.yaml", POLICIES: _MANIFESTS / "policies-crd.yaml"}
VARIABLES = ("CRRD_TEST_KUBECONFIG", "CRRD_TEST_CRI_ENDPOINT", "CRRD_TEST_NODE", "CRRD_TEST_IMAGE")
SECOND_IMAGE = "CRRD_TEST_IMAGE_2"
"""Another image with a shell, for in-place updates on an existing cluster. Without it, those tests are skipped."""
PATIENCE = 100.0  # Seconds until a test fails because a condition is not met; a loaded machine needs some
AT_ONCE = 30  # Pods that are deleted side by side, so that a small cluster answers each call
WAITING_SCRIPT = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
"""A main process that ends at once on SIGTERM, even as PID 1."""


def foreign() -> dict[str, str] | None:
    """Return the variables that name an existing cluster, or None if they are not set.

    Raises:
        pytest.UsageError: only some of them are set.
    """
    found = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    if not found:
        return None
    missing = [name for name in VARIABLES if name not in found]
    if missing:
        raise pytest.UsageError(f"for tests on a cluster set {', '.join(missing)} too")
    return found


def container(name: str, script: str = WAITING_SCRIPT, **fields: Any) -> Json:
    """Return a container of a pod's spec that runs a shell script, with these additional fields."""
    return {"name": name, "command": ["/bin/sh", "-c", script], **fields}


@dataclass(slots=True)
class Cluster:
    """One node of a cluster, and the test's own namespace in it."""

    client: KubeClient
    kubeconfig: Path
    cri_endpoint: str
    node_name: str
    image: str
    second_image: str
    namespace: str
    folder: Path  # On the node, for hostPath volumes
    cri: "RuntimeServiceAsyncStub"
    node: FaultyNode | None = None  # The local node, or None for an existing cluster
    containerd: Containerd | None = None  # The private containerd, or None for another runtime

    # Only for the local node

    @property
    def local(self) -> FaultyNode:
        """The local node. Skips the test on an existing cluster."""
        if self.node is None:
            pytest.skip("needs the local node's API server or kubelet")
        return self.node

    def need_second_image(self) -> str:
        """Return the image for an in-place update. Skips the test if there is none."""
        if not self.second_image:
            pytest.skip(f"needs {SECOND_IMAGE}")
        return self.second_image

    # Pods

    async def create_gated_pod(self, name: str) -> Json:
        """Create a pod with the readiness gate. Also set the label for it on the namespace."""
        labels = {"metadata": {"labels": {model.LABEL_READINESS_GATE: "enabled"}}}
        await self.client.merge_patch(NAMESPACES, "", self.namespace, labels)
        gates = [{"conditionType": model.READINESS_GATE}]
        return await self.create_pod(name, [container("app")], readinessGates=gates)

    async def create_pod(
        self,
        name: str,
        containers: Sequence[Json],
        *,
        init_containers: Sequence[Json] = (),
        grace: int = 5,
        metadata: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Json:
        """Create a pod bound to the node, on the host's network, and return it at once.

        Containers without an image get the cluster's. Each has the node's folder `shared(name)` at `/shared`.
        """
        shared = self.shared(name)
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(0o777)
        volume = {"name": "shared", "hostPath": {"path": str(shared), "type": "Directory"}}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, **(metadata or {})},
            "spec": {
                "nodeName": self.node_name,
                "hostNetwork": True,
                "terminationGracePeriodSeconds": grace,
                "automountServiceAccountToken": False,
                "tolerations": [{"operator": "Exists"}],
                **spec,
                "containers": [self._complete(each) for each in containers],
                "volumes": [*spec.get("volumes", []), volume],
            },
        }
        if init_containers:
            body["spec"]["initContainers"] = [self._complete(each) for each in init_containers]
        return dict(await self.client.create(PODS, self.namespace, body))

    def _complete(self, spec: Json) -> Json:
        mounts = [*(spec.get("volumeMounts") or []), {"name": "shared", "mountPath": "/shared"}]
        return {"image": self.image, "imagePullPolicy": "IfNotPresent", **spec, "volumeMounts": mounts}

    async def run_pod(self, name: str, containers: Sequence[Json], **options: Any) -> Json:
        """Create a pod like `create_pod`, and wait until it is ready. Return it in that state."""
        await self.create_pod(name, containers, **options)
        return await self.wait_pod(name, pod_ready, "ready")

    async def pod(self, name: str) -> Json:
        """Return the current pod."""
        return dict(await self.client.get(PODS, self.namespace, name))

    async def wait_pod(
        self, name: str, condition: Callable[[Json], bool], what: str, seconds: float = PATIENCE
    ) -> Json:
        """Wait until the pod meets the condition, and return it."""
        return await self.wait(PODS, name, condition, f"pod {name}: {what}", seconds)

    async def delete_pod(self, name: str, grace: int | None = None) -> None:
        """Delete the pod, and wait until it is gone."""
        with suppress(GoneError):
            await self.client.delete(PODS, self.namespace, name, grace_seconds=grace)
            await self.wait_gone(PODS, name)

    async def set_image(self, pod_name: str, container_name: str, image: str) -> None:
        """Update a container's image in place."""
        while True:
            pod = await self.pod(pod_name)
            containers = pod["spec"]["containers"]
            for spec in containers:
                if spec["name"] == container_name:
                    spec["image"] = image
            version = pod["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"containers": containers}}
            with suppress(ConflictError):
                await self.client.merge_patch(PODS, self.namespace, pod_name, body)
                return

    def shared(self, pod_name: str) -> Path:
        """Return the folder that the pod's containers see as `/shared`."""
        return self.folder / pod_name

    def read(self, pod_name: str, file: str) -> str:
        """Return the content of a file below `/shared`, or "" if it does not exist."""
        path = self.shared(pod_name) / file
        return path.read_text() if path.exists() else ""

    async def wait_words(self, pod_name: str, file: str, *words: str, seconds: float = PATIENCE) -> None:
        """Wait until a file below `/shared` contains exactly these words, because a running container may need time.

        Raises:
            AssertionError: on a timeout; shows the content.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    if self.read(pod_name, file).split() == [*words]:
                        return
                    await asyncio.sleep(0.01)
        assert self.read(pod_name, file).split() == [*words]

    # Requests

    async def create_request(self, body: Json) -> Json:
        """Create a request, for example one of `crr_for`."""
        return dict(await self.client.create(REQUESTS, self.namespace, body))

    async def recreate(self, pod: Json, containers: Sequence[str], *, name: str = "", **strategy: Any) -> Json:
        """Create a request for the pod in the state `pod`. Return it as created."""
        return await self.create_request(crr_for(pod, containers, name=name, **strategy))

    async def request(self, name: str) -> Json:
        """Return the current request."""
        return dict(await self.client.get(REQUESTS, self.namespace, name))

    async def wait_request(
        self, name: str, condition: Callable[[Json], bool], what: str, seconds: float = PATIENCE
    ) -> Json:
        """Wait until the request meets the condition, and return it."""
        return await self.wait(REQUESTS, name, condition, f"request {name}: {what}", seconds)

    async def wait_completed(self, name: str, seconds: float = PATIENCE) -> Json:
        """Wait until the request is Completed, and return it."""
        return await self.wait_request(name, completed, "Completed", seconds)

    async def delete_request(self, name: str) -> None:
        """Delete a request, if it exists."""
        with suppress(GoneError):
            await self.client.delete(REQUESTS, self.namespace, name)

    # Watching

    async def wait(
        self, resource: Resource, name: str, condition: Callable[[Json], bool], what: str, seconds: float = PATIENCE
    ) -> Json:
        """Watch one object of the namespace until it exists and meets the condition.

        Raises:
            AssertionError: on a timeout; shows the condition and the last state of the object.
        """
        return await self._first(resource, name, lambda found: bool(found) and condition(found), what, seconds)

    async def wait_gone(self, resource: Resource, name: str, seconds: float = PATIENCE) -> None:
        """Watch one object of the namespace until it is gone. Raises the errors of `wait`."""
        await self._first(resource, name, lambda found: not found, f"{name} gone", seconds)

    async def _first(
        self, resource: Resource, name: str, condition: Callable[[Json], bool], what: str, seconds: float
    ) -> Json:
        last: Json = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for last in self.versions(resource, name):
                    if condition(last):
                        return last
        shown = json.dumps({key: last.get(key) for key in ("metadata", "status")}, indent=1)
        raise AssertionError(f"not within {seconds:g} s: {what}; last:\n{shown}")

    async def versions(self, resource: Resource, name: str) -> AsyncIterator[Json]:
        """Yield the object in its current state and after each change, or {} if it does not exist. Never ends."""
        selector = f"metadata.name={name}"
        while True:
            with suppress(ApiUnavailableError, ApiRefusedError):
                listing = await self.client.list_all(resource, dict, namespace=self.namespace, field_selector=selector)
                yield dict(listing.items[0]) if listing.items else {}
                version = listing.resource_version
                async with self.client.watch(
                    resource, version, namespace=self.namespace, field_selector=selector
                ) as events:
                    async for event in events:
                        if event.kind in ("ADDED", "MODIFIED"):
                            yield dict(event.object)
                        elif event.kind == "DELETED":
                            yield {}
            await asyncio.sleep(0.1)  # the API server is unavailable, or the version too old: list again

    # The runtime

    async def instances(self, pod: Json, container_name: str) -> list[pb.Container]:
        """Return all instances of the container in the runtime, including exited ones, the newest first."""
        labels = {
            "io.kubernetes.pod.uid": pod["metadata"]["uid"],
            "io.kubernetes.container.name": container_name,
        }
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels))
        listed = await self.cri.ListContainers(request, timeout=PATIENCE)
        return sorted(listed.containers, key=lambda entry: entry.created_at, reverse=True)

    async def sandboxes(self, pod: Json) -> list[pb.PodSandbox]:
        """Return all sandboxes of the pod in the runtime, the newest first."""
        labels = {"io.kubernetes.pod.uid": pod["metadata"]["uid"]}
        request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=labels))
        listed = await self.cri.ListPodSandbox(request, timeout=PATIENCE)
        return sorted(listed.items, key=lambda entry: entry.created_at, reverse=True)

    async def status(self, container_id: str) -> pb.ContainerStatus:
        """Return the runtime's status of an instance. The ID may have the runtime's name as prefix."""
        request = pb.ContainerStatusRequest(container_id=bare(container_id))
        return (await self.cri.ContainerStatus(request, timeout=PATIENCE)).status

    async def execute(self, container_id: str, *command: str, seconds: int = 30) -> ExecResult:
        """Run a command in an instance through the CRI. The ID may have the runtime's name as prefix."""
        request = pb.ExecSyncRequest(container_id=bare(container_id), cmd=command, timeout=seconds)
        answer = await self.cri.ExecSync(request, timeout=seconds + PATIENCE)
        return ExecResult(answer.exit_code, answer.stdout, answer.stderr)

    async def stop(self, container_id: str, seconds: int = 0) -> None:
        """Stop an instance directly through the CRI, without kubelet and the node daemon."""
        request = pb.StopContainerRequest(container_id=bare(container_id), timeout=seconds)
        await self.cri.StopContainer(request, timeout=seconds + PATIENCE)

    # Clean-up

    async def clear(self) -> None:
        """Delete what the test has created, and wait until its pods are gone."""
        for name in await self._names(REQUESTS) if await serves(self.client, REQUESTS) else ():
            with suppress(GoneError):
                await self.client.merge_patch(REQUESTS, self.namespace, name, {"metadata": {"finalizers": None}})
                await self.client.delete(REQUESTS, self.namespace, name)
        free = asyncio.Semaphore(AT_ONCE)

        async def delete(name: str) -> None:
            async with free:
                await self.delete_pod(name, grace=1)

        await asyncio.gather(*(delete(name) for name in await self._names(PODS)))
        await self.client.delete(NAMESPACES, "", self.namespace)

    async def _names(self, resource: Resource) -> list[str]:
        listing = await self.client.list_all(resource, dict, namespace=self.namespace)
        return [entry["metadata"]["name"] for entry in listing.items]


def bare(container_id: str) -> str:
    """Return a container's ID without the runtime's name."""
    return container_id.rpartition("://")[2]


def container_status(pod: Json, name: str) -> Json:
    """Return the status of a container or native sidecar, or {} if there is none yet."""
    status = pod.get("status") or {}
    found = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return next((dict(entry) for entry in found if entry["name"] == name), {})


def container_id(pod: Json, name: str) -> str:
    """Return the ID of a container in the API, with the runtime's name as prefix."""
    return str(container_status(pod, name)["containerID"])


def restart_count(pod: Json, name: str) -> int:
    """Return the restart count of a container in the API."""
    return int(container_status(pod, name)["restartCount"])


def condition(pod: Json, kind: str) -> str:
    """Return the status of a condition: "True", "False", or "" if it does not exist."""
    found = (pod.get("status") or {}).get("conditions") or []
    return next((str(entry["status"]) for entry in found if entry["type"] == kind), "")


def pod_ready(pod: Json) -> bool:
    """Whether the pod's condition Ready is True."""
    return condition(pod, "Ready") == "True"


def restarted(name: str, times: int = 1) -> Callable[[Json], bool]:
    """Return a condition for `wait_pod`: the container is ready and was restarted at least this often."""

    def check(pod: Json) -> bool:
        status = container_status(pod, name)
        return bool(status) and bool(status["ready"]) and int(status["restartCount"]) >= times

    return check


def completed(request: Json) -> bool:
    """Whether a request is Completed."""
    return bool((request.get("status") or {}).get("phase") == "Completed")


def states(request: Json) -> dict[str, str]:
    """Return the phase of each container of a request."""
    found = (request.get("status") or {}).get("containerRecreateStates") or []
    return {entry["name"]: entry["phase"] for entry in found}


def crr_for(pod: Json, containers: Sequence[str], *, name: str = "", **strategy: Any) -> Json:
    """Return a request for the pod's containers, with the labels and statusContexts that admission would set.

    `strategy` has fields of spec.strategy. `name` is generated if it is "".
    """
    metadata = pod["metadata"]
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {
            "name": name or f"{metadata['name']}-{secrets.token_hex(3)}",
            "namespace": metadata["namespace"],
            "labels": {
                model.LABEL_POD_UID: metadata["uid"],
                model.LABEL_NODE_NAME: pod["spec"]["nodeName"],
                model.LABEL_ACTIVE: "true",
            },
        },
        "spec": {
            "podName": metadata["name"],
            "containers": [
                {
                    "name": each,
                    "statusContext": {
                        "containerID": container_id(pod, each),
                        "restartCount": restart_count(pod, each),
                    },
                }
                for each in containers
            ],
            "strategy": {"failurePolicy": "Fail", **strategy},
        },
    }


def image_request(pod: Json, name: str, image: str, request: str) -> Json:
    """Return a request for another image of one container, as admission leaves it."""
    body = crr_for(pod, [name], name=request)
    body["spec"]["containers"][0]["image"] = image
    body["metadata"]["labels"][model.LABEL_ACTIVE] = model.ACTIVE_IMAGE
    return body


def whole_pod_request(pod: Json, request: str, **strategy: Any) -> Json:
    """Return a request for the whole pod, as admission leaves it."""
    spec = pod["spec"]
    sidecars = [each for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"]
    names = [each["name"] for each in (*spec["containers"], *sidecars)]
    body = crr_for(pod, names, name=request, **strategy)
    body["spec"]["wholePod"] = True
    body["metadata"]["labels"][model.LABEL_ACTIVE] = model.ACTIVE_POD
    return body


def reload_request(pod: Json, request: str, *containers: str, refresh: str = "", **strategy: Any) -> Json:
    """Return a request that has containers reload, as admission leaves it. `refresh`: the annotation of the pod."""
    body = crr_for(pod, [*containers], name=request, action="Reload", reloadContainers=[*containers], **strategy)
    body["metadata"]["labels"][model.LABEL_ACTIVE] = model.ACTIVE_RELOAD
    body["metadata"].setdefault("annotations", {})[model.ANNOTATION_REFRESH] = refresh
    return body


def request_for(pod: Json, *containers: str) -> Json:
    """A request as users write it, named after pod and containers: admission adds the rest."""
    name = pod["metadata"]["name"]
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": "-".join((name, *containers))},
        "spec": {"podName": name, "containers": [{"name": each} for each in containers]},
    }


async def _apply_crds(client: KubeClient) -> None:
    """Create the CRDs that do not exist, and wait until they are served."""
    for resource, file in CRD_FILES.items():
        try:
            await client.get(CRDS, "", resource.full_name)
        except GoneError:
            await client.create(CRDS, "", yaml.safe_load(file.read_text()))
            async with asyncio.timeout(PATIENCE):
                while True:
                    with suppress(ApiRefusedError):
                        await client.list_all(resource, dict)
                        break
                    await asyncio.sleep(0.1)


@asynccontextmanager
async def _opened(build: Callable[[str, "RuntimeServiceAsyncStub"], Cluster], endpoint: str) -> AsyncIterator[Cluster]:
    """Create a namespace and a connection to the runtime while the test runs."""
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
        cluster = build(f"crrd-test-{secrets.token_hex(4)}", RuntimeServiceStub(channel))
        await cluster.client.create(NAMESPACES, "", {"metadata": {"name": cluster.namespace}})
        try:
            yield cluster
        finally:
            await cluster.clear()


@asynccontextmanager
async def on_local_node(
    node: FaultyNode,
    folder: Path,
    *,
    image: str = "localhost/shell:1",
    second_image: str = "localhost/shell:2",
    containerd: Containerd | None = None,
) -> AsyncIterator[Cluster]:
    """Yield the helper for a running local node. The default images are those of its own runtime."""

    def build(namespace: str, cri: "RuntimeServiceAsyncStub") -> Cluster:
        return Cluster(
            client=node.client,
            kubeconfig=node.kubeconfig,
            cri_endpoint=node.cri_endpoint,
            node_name=node.node_name,
            image=image,
            second_image=second_image,
            namespace=namespace,
            folder=folder,
            cri=cri,
            node=node,
            containerd=containerd,
        )

    async with _opened(build, node.cri_endpoint) as cluster:
        yield cluster


@asynccontextmanager
async def local_cluster(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    """Yield the helper for a local node with these options, and a runtime of plain processes."""
    async with FaultyNode(**options) as node, on_local_node(node, folder) as cluster:
        yield cluster


@asynccontextmanager
async def on_foreign_cluster(variables: Mapping[str, str], folder: Path) -> AsyncIterator[Cluster]:
    """Yield the helper for an existing cluster. The CRDs are created if they do not exist."""
    kubeconfig, endpoint, node_name, image = (variables[name] for name in VARIABLES)
    async with KubeClient(KubeconfigAccess(kubeconfig)) as client:
        await _apply_crds(client)

        def build(namespace: str, cri: "RuntimeServiceAsyncStub") -> Cluster:
            return Cluster(
                client=client,
                kubeconfig=Path(kubeconfig),
                cri_endpoint=endpoint,
                node_name=node_name,
                image=image,
                second_image=os.environ.get(SECOND_IMAGE, ""),
                namespace=namespace,
                folder=folder,
                cri=cri,
            )

        async with _opened(build, endpoint) as cluster:
            yield cluster
