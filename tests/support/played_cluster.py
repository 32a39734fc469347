"""The local API server with admission, and a simulated node that serves requests at once and records each stop.

For tests that only use the API. The node does the work of a node daemon and kubelet in one step each.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from crrd.core.admission.rules import Denied
from crrd.core.api.time import rfc3339
from crrd.core.api.types import ACTIVE, ACTIVE_POD, ACTIVE_RELOAD, LABEL_ACTIVE, PLURAL, StatePhase
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import Cause, invalid
from crrd_localnode.api.objects import Object
from crrd_localnode.workload import Maker
from tests.support.admission import reviewed
from tests.support.command import Ended, crrd
from tests.support.faulty_api import FaultyApiServer
from tests.support.local_api import LocalAccess

Json = dict[str, Any]
NAMESPACE = "default"
BUDGETS = Resource("poddisruptionbudgets", "policy")


def gets_image(request: Json) -> Json | None:
    """Return the container of a request that gets another image, None if there is none."""
    return next((dict(each) for each in request["spec"]["containers"] if each.get("image")), None)


class PlayedCluster:
    """One namespace of a cluster. `played` yields a running one."""

    def __init__(self, api: FaultyApiServer, client: KubeClient, kubeconfig: Path) -> None:
        self.api, self.client, self.kubeconfig = api, client, kubeconfig
        self.fails: dict[str, tuple[str, str]] = {}  # By pod: reason and message with which its request fails
        self.deaf: set[str] = set()  # Pods whose requests nobody answers
        self.stops: list[tuple[str, str]] = []  # Pods and containers, in order
        self.reloads: list[tuple[str, str]] = []  # The same for containers that reload
        self.goes_on = asyncio.Event()  # While it is not set, the node starts requests but does not complete them
        self.goes_on.set()
        self._serving: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()

    # For tests

    async def workload(
        self,
        kind: str,
        name: str,
        replicas: int,
        *containers: str,
        node: str = "node-a",
        volumes: Sequence[Json] = (),
        initial: Sequence[Json] = (),
        **fields: Any,
    ) -> list[str]:
        """Create a running workload, and return the names of its pods. `fields` are those of its first container.

        `initial` are init containers.
        """
        first, *others = containers or ("app", "side")
        spec = {
            "nodeName": node,
            "volumes": list(volumes),
            **({"initContainers": [{"image": "i:1", **each} for each in initial]} if initial else {}),
            "containers": [
                {"name": first, "image": "i:1", **fields},
                *({"name": each, "image": "i:1"} for each in others),
            ],
        }
        await Maker(self.client, NAMESPACE).workload(kind, name, replicas, spec)
        pods = [pod for pod in await self.pods() if pod["metadata"]["labels"]["app"] == name]
        for pod in pods:
            await self.run(pod)
        return [pod["metadata"]["name"] for pod in pods]

    async def pod(
        self,
        name: str,
        labels: Json,
        *containers: str,
        node: str = "node-a",
        config: Json | None = None,
        **metadata: Any,
    ) -> Json:
        """Create a running pod. `config` are fields of each container."""
        names = containers or ("app",)
        spec = {"nodeName": node, "containers": [{"name": each, "image": "i:1", **(config or {})} for each in names]}
        meta = {"name": name, "labels": labels, **metadata}
        pod = dict(await self.client.create(PODS, NAMESPACE, {"metadata": meta, "spec": spec}))
        await self.run(pod)
        return pod

    async def run(self, pod: Json, *, ready: bool = True, started: str = "2026-01-01T00:00:00Z") -> None:
        """Set its containers to running, ready or not."""
        statuses = [
            {
                "name": spec["name"],
                "image": "i:1",
                "imageID": "",
                "containerID": f"containerd://{secrets.token_hex(32)}",
                "restartCount": 0,
                "ready": ready,
                "started": True,
                "state": {"running": {"startedAt": started}},
            }
            for spec in pod["spec"]["containers"]
        ]
        await self._status(pod["metadata"]["name"], statuses, ready=ready)
        await self.run_initial(pod, started)

    async def run_initial(self, pod: Json, started: str) -> None:
        """Set its init containers to ended, if it has any."""
        images = {each["name"]: each["image"] for each in pod["spec"].get("initContainers", ())}
        before = {each["name"]: each for each in pod.get("status", {}).get("initContainerStatuses", ())}
        statuses = [
            {
                "name": name,
                "image": image,
                "imageID": "",
                "containerID": f"containerd://{secrets.token_hex(32)}",
                "restartCount": before[name]["restartCount"] + 1 if name in before else 0,
                "ready": True,
                "state": {"terminated": {"exitCode": 0, "startedAt": started, "finishedAt": started}},
            }
            for name, image in images.items()
        ]
        if statuses:
            body = {"status": {"initContainerStatuses": statuses}}
            await self.client.merge_patch(PODS, NAMESPACE, pod["metadata"]["name"], body, subresource="status")

    async def _status(self, name: str, statuses: Sequence[Json], *, ready: bool) -> None:
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": rfc3339(self.api.now()),
        }
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [condition], "containerStatuses": statuses}
        await self.client.merge_patch(PODS, NAMESPACE, name, {"status": status}, subresource="status")

    async def set_ready(self, name: str, *, ready: bool) -> None:
        """Set the pod to ready or not ready."""
        pod = dict(await self.client.get(PODS, NAMESPACE, name))
        await self._status(name, pod["status"]["containerStatuses"], ready=ready)

    async def crash(self, name: str, *, ready: bool = True) -> None:
        """End the first container of a pod. kubelet has started it again."""
        pod = dict(await self.client.get(PODS, NAMESPACE, name))
        first, *others = pod["status"]["containerStatuses"]
        new = {"containerID": f"containerd://{secrets.token_hex(32)}", "restartCount": first["restartCount"] + 1}
        new["state"] = {"running": {"startedAt": rfc3339(self.api.now())}}
        await self._status(name, [{**first, **new}, *others], ready=ready)

    async def stopped(self, count: int) -> None:
        """Return once this many containers were stopped, and each pod is ready again."""
        async with asyncio.timeout(20):
            while len(self.stops) < count or not all(map(_is_ready, await self.pods())):
                await asyncio.sleep(0.02)

    async def budget(self, name: str, labels: Json, allowed: int) -> None:
        """Create a PodDisruptionBudget with the status of its controller."""
        body = {"metadata": {"name": name}, "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": labels}}}
        made = await self.client.create(BUDGETS, NAMESPACE, body)
        status = {"disruptionsAllowed": allowed, "observedGeneration": made["metadata"]["generation"]}
        await self.client.merge_patch(BUDGETS, NAMESPACE, name, {"status": status}, subresource="status")

    async def pods(self) -> list[Json]:
        """Return all pods, sorted by name."""
        return list((await self.client.list_all(PODS, dict, namespace=NAMESPACE)).items)

    async def requests(self) -> list[Json]:
        """Return all requests, sorted by name."""
        return list((await self.client.list_all(REQUESTS, dict, namespace=NAMESPACE)).items)

    async def recreate(self, *words: str, stdin: str = "", **environment: str) -> Ended:
        """Run `crrd recreate` to its end."""
        return await crrd("recreate", *words, stdin=stdin, **{"KUBECONFIG": str(self.kubeconfig), **environment})

    # The simulation

    async def admit(self, asked: AdmissionRequest) -> Object | None:
        """Admit requests like the manager."""
        if asked.kind.plural != PLURAL or asked.operation is not Operation.CREATE or asked.new is None:
            return None
        pod: Json | None = None
        with suppress(GoneError):
            pod = dict(await self.client.get(PODS, NAMESPACE, str(asked.new["spec"]["podName"])))
        found = reviewed(asked.new, pod, asked.user.name)
        if isinstance(found, Denied):
            raise invalid(asked.kind.group, asked.kind.kind, asked.name, [Cause("spec", found.message)])
        return found

    async def play(self) -> None:
        """Serve all requests until cancelled."""
        while True:
            with suppress(ApiUnavailableError, ApiRefusedError):
                listing = await self.client.list_all(REQUESTS, dict)
                for request in listing.items:
                    self._begin(request)
                async with self.client.watch(REQUESTS, listing.resource_version) as events:
                    async for event in events:
                        if event.kind == "ADDED":
                            self._begin(dict(event.object))
            await asyncio.sleep(0.01)

    def _begin(self, request: Json) -> None:
        meta = request["metadata"]
        own = (meta.get("labels") or {}).get(LABEL_ACTIVE) in (ACTIVE, ACTIVE_POD, ACTIVE_RELOAD)
        if meta["uid"] in self._seen or not own or gets_image(request) is not None:  # see `played_images`
            return
        self._seen.add(meta["uid"])
        task = asyncio.create_task(self._serve(request))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, request: Json) -> None:
        name, pod_name = request["metadata"]["name"], request["spec"]["podName"]
        with suppress(ApiRefusedError):  # the request was deleted meanwhile
            if pod_name in self.deaf:
                return
            await self._told(name, {"phase": "Recreating"})
            reason, message = self.fails.get(pod_name, ("", ""))
            if request["metadata"]["labels"][LABEL_ACTIVE] == ACTIVE_RELOAD:
                self.reloads += [(pod_name, each["name"]) for each in request["spec"]["containers"]]
            elif not reason:
                await self.restart(request, pod_name)
            await self.goes_on.wait()
            if not reason:
                await self.settle(pod_name)
            phase = StatePhase.FAILED if reason else StatePhase.SUCCEEDED
            states = [
                {
                    "name": each["name"],
                    "phase": phase.value,
                    **({"reason": reason, "message": message} if reason else {}),
                }
                for each in request["spec"]["containers"]
            ]
            done = {"phase": "Completed", "completionTime": rfc3339(self.api.now()), "containerRecreateStates": states}
            await self._told(name, done)

    async def restart(self, request: Json, pod_name: str, *, runs: bool = True, starts: bool = True) -> None:
        """Replace the target instances by the next ones, except those that have changed since.

        `runs`: whether they run until then. `starts`: whether the next ones start.
        """
        pod = dict(await self.client.get(PODS, NAMESPACE, pod_name))
        named = (each for each in request["spec"]["containers"] if "statusContext" in each)
        meant = {each["name"]: each["statusContext"]["containerID"] for each in named}
        statuses = []
        for each in pod["status"]["containerStatuses"]:
            if meant.get(each["name"]) != each["containerID"]:
                statuses.append(each)
                continue
            if runs:
                self.stops.append((pod_name, each["name"]))
            if not starts:
                statuses.append({**each, "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}})
                continue
            new = {
                "containerID": f"containerd://{secrets.token_hex(32)}",
                "restartCount": each["restartCount"] + 1,
                "ready": False,
                "state": {"running": {"startedAt": rfc3339(self.api.now())}},
            }
            statuses.append({**each, **new})
        await self._status(pod_name, statuses, ready=False)
        if request["spec"].get("wholePod"):
            await self.run_initial(pod, rfc3339(self.api.now()))

    async def _told(self, name: str, status: Json) -> None:
        await self.client.merge_patch(REQUESTS, NAMESPACE, name, {"status": status}, subresource="status")

    async def settle(self, pod_name: str) -> None:
        """Let all containers of a pod become ready."""
        pod = dict(await self.client.get(PODS, NAMESPACE, pod_name))
        ready = [{**each, "ready": True} for each in pod["status"]["containerStatuses"]]
        await self._status(pod_name, ready, ready=True)

    async def end(self) -> None:
        """Stop serving."""
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@asynccontextmanager
async def played(folder: Path, *, admission: bool = True, **options: Any) -> AsyncIterator[PlayedCluster]:
    """Yield a running one. The options are those of FaultyApiServer."""
    async with FaultyApiServer(**options) as api, KubeClient(LocalAccess(api.url)) as client:
        cluster = PlayedCluster(api, client, api.kubeconfig(folder / "kubeconfig"))
        if admission:
            api.admission.mutating.append(cluster.admit)
        task = asyncio.create_task(cluster.play())
        try:
            yield cluster
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cluster.end()


def _is_ready(pod: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"]["conditions"])
