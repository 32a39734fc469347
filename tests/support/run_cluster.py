"""A namespace in virtual time: many pods, an API server behind the lanes of a client, and nodes that serve requests.

A run goes over the whole path of `crrd recreate` but the HTTP: watches, plans, reads, creations.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from crrd.core.api.time import rfc3339
from crrd.core.api.types import LABEL_ACTIVE
from crrd.core.rollout.limits import Times
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Options, Run, Target
from crrd.kube.client import KubeClient
from crrd.kube.errors import ResourceMissingError
from crrd.kube.lanes import Lane
from crrd.kube.resources import NODES, PODS, REQUESTS, Listing, Resource
from crrd.lib.errors import ApiUnavailableError, ConflictError
from crrd.rollout.cluster import Cluster
from crrd.rollout.kinds import make_cluster, make_writer
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import Runner
from crrd.rollout.target import Aim
from crrd.rollout.text import TextLines
from tests.support.laned_api import LanedApi
from tests.support.virtual_time import LoopClock

Json = dict[str, Any]
NAMESPACE = "default"
STATEFUL_SETS = Resource("statefulsets", "apps")
WEB = Aim(Target("pods app=web", selector="app=web"))
_DAEMON = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}


class _Shown(TextLines):
    """Keeps all plans."""

    def __init__(self, plans: list[Plan]) -> None:
        super().__init__()
        self._plans = plans

    def show(self, plan: Plan) -> None:
        self._plans.append(plan)
        super().show(plan)


class RunCluster(LanedApi):
    """The API server and the nodes. A restart takes RESTART_SECONDS."""

    RESTART_SECONDS = 2.0

    def __init__(self, pods: int = 0, *, nodes: int = 20, spec: Json | None = None, **meta: Any) -> None:
        """`spec` and `meta` are more fields of each pod."""
        super().__init__(self.latency)
        self._spec, self._meta = spec or {}, meta
        self.clock = LoopClock()
        self.slow: dict[str, float] = {}  # By pod: seconds that each creation of its request takes
        self.refuse: Callable[[str], Exception | None] = lambda pod: None
        """Returns why admission refuses a request for this pod, None to admit it."""
        self.lost: set[str] = set()  # Pods for whose requests the response is lost, once
        self.fails: set[str] = set()  # Pods whose requests fail
        self.down: set[str] = set()  # Nodes that serve no requests
        self.created: list[str] = []  # The pods of requests, in the order in which these were created
        self.restarts: Counter[str] = Counter()  # By pod
        self.away: set[str] = set()  # Pods that are being restarted, or are unready
        self.most_away = 0
        self.plans: list[Plan] = []  # All that were shown
        self._version = 100
        self._serving: set[asyncio.Task[None]] = set()
        for number in range(nodes):
            self.put(NODES, {"metadata": {"name": f"node-{number}", "resourceVersion": "1"}})
            self.daemon(f"node-{number}", ready=True)
        for number in range(pods):
            self.pod(f"web-{number:04}", f"node-{number % nodes}")

    def latency(self, verb: str, kind: str, _: str, name: str) -> float:
        """Seconds of a call, as those of a real API server."""
        return self.slow.get(name, 0.01) if (verb, kind) == ("create", REQUESTS.plural) else 0.003

    # Objects

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        self._version += 1
        super().put(resource, {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}})

    def daemon(self, node: str, *, ready: bool) -> None:
        """The pod of a node daemon."""
        meta = {"name": f"crrd-{node}", "uid": f"crrd-{node}", "labels": _DAEMON}
        self.put(PODS, {"metadata": meta, "spec": {"nodeName": node}, "status": {"conditions": [self._ready(ready)]}})

    def pod(self, name: str, node: str, *, instance: int = 0, ready: bool = True, **meta: Any) -> Json:
        """A pod of the workload; `instance` counts its restarts."""
        status = {
            "name": "app",
            "containerID": f"containerd://{name}-{instance}",
            "restartCount": instance,
            "ready": ready,
            "started": True,
            "state": {"running": {"startedAt": rfc3339(self.clock.now()) if instance else "2025-01-01T00:00:00Z"}},
        }
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "web", "controller": True}
        own: Json = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "labels": {"app": "web"}}
        own |= {"creationTimestamp": "2025-01-01T00:00:00Z", "ownerReferences": [owner]}
        spec = {"containers": [{"name": "app"}], **self._spec, "nodeName": node}
        conditions = [self._ready(ready)]
        pod: Json = {"metadata": {**own, **self._meta, **meta}, "spec": spec}
        pod["status"] = {"phase": "Running", "conditions": conditions, "containerStatuses": [status]}
        self.put(PODS, pod)
        return pod

    def _ready(self, ready: bool) -> Json:
        loop = asyncio._get_running_loop()
        at = rfc3339(self.clock.now()) if loop is not None else "2025-01-01T00:00:00Z"
        return {"type": "Ready", "status": str(ready), "lastTransitionTime": at}

    def stateful_set(self, replicas: int, *, in_order: bool = True) -> Aim:
        """The workload of the pods, as target of a run."""
        target = Target("statefulset.apps/web", "apps/v1", "StatefulSet", "web", "web")
        selector = {"matchLabels": {"app": "web"}}
        status = {"observedGeneration": 1, "updatedReplicas": replicas}
        meta = {"name": "web", "namespace": NAMESPACE, "uid": "web", "generation": 1}
        management = "OrderedReady" if in_order else "Parallel"
        spec = {"replicas": replicas, "selector": selector, "podManagementPolicy": management}
        self.put(STATEFUL_SETS, {"metadata": meta, "spec": spec, "status": status})
        return Aim(target, STATEFUL_SETS, "app=web")

    # Calls

    async def list_all(
        self, resource: Resource, parse: Callable[[Mapping[str, Any]], Any], **where: Any
    ) -> Listing[Any]:
        return replace(await super().list_all(resource, parse, **where), resource_version=str(self._version))

    async def _answer(self, verb: str, resource: Resource) -> None:
        if verb != "watch":  # events are as quick as they come
            await super()._answer(verb, resource)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if resource != REQUESTS:  # it tells nobody who they are, as the local API server
            raise ResourceMissingError("not served", status=404)
        pod, name = body["spec"]["podName"], body["metadata"]["name"]
        async with self._place(Lane.WRITE, "create", resource, namespace, pod):
            if (refusal := self.refuse(pod)) is not None:
                raise refusal
            if name in self.objects.get(resource.plural, {}):
                raise ConflictError("it exists", status=409)
            there = self.objects["pods"][pod]
            (status,) = there["status"]["containerStatuses"]
            context = {"containerID": status["containerID"], "restartCount": status["restartCount"]}
            active = "image" if "image" in body["spec"]["containers"][0] else "true"
            labels = {**body["metadata"]["labels"], LABEL_ACTIVE: active}
            labels |= {"crr.apps.kruise.io/pod-uid": there["metadata"]["uid"]}
            labels |= {"crr.apps.kruise.io/node-name": there["spec"]["nodeName"]}
            meta = {**body["metadata"], "uid": f"uid-{name}", "labels": labels}
            meta["creationTimestamp"] = rfc3339(self.clock.now())
            containers = [{**each, "statusContext": context} for each in body["spec"]["containers"]]
            spec = {**body["spec"], "containers": containers}
            self.put(resource, {**body, "metadata": meta, "spec": spec})
            self.created.append(pod)
            task = asyncio.create_task(self._serve(name, pod))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            if pod in self.lost:
                self.lost.discard(pod)
                raise ApiUnavailableError("the connection was closed")
            return self.objects[resource.plural][name]

    # Nodes

    def report(self, name: str, **status: Any) -> None:
        """Write the status of a request."""
        self.put(REQUESTS, {**self.objects[REQUESTS.plural][name], "status": status})

    async def _serve(self, name: str, pod: str) -> None:
        self.away.add(pod)
        self.most_away = max(self.most_away, len(self.away))
        node = self.objects["pods"][pod]["spec"]["nodeName"]
        if node in self.down:
            return
        self.report(name, phase="Recreating")
        if pod in self.fails:
            await asyncio.sleep(0.5)
            state = {"name": "app", "phase": "Failed", "reason": "StopFailed", "message": "it would not end"}
        else:
            self.restarts[pod] += 1
            self.pod(pod, node, instance=self.restarts[pod], ready=False)
            await asyncio.sleep(self.RESTART_SECONDS)
            self.pod(pod, node, instance=self.restarts[pod])
            state = {"name": "app", "phase": "Succeeded"}
        done = rfc3339(self.clock.now())
        self.report(name, phase="Completed", completionTime=done, containerRecreateStates=[state])
        self.away.discard(pod)

    # Runs

    def run_of(self, aim: Aim = WEB, **options: Any) -> Run:
        """A run that starts now."""
        given = Options(**{"containers": ("app",), **options})
        return Run(NAMESPACE, "nightly", aim.target, given, rfc3339(self.clock.now()))

    async def carry_out(
        self, run: Run, aim: Aim = WEB, peers: list[Cluster] | None = None, times: Times | None = None
    ) -> Plan:
        """Carry out a run to its end, or one turn of it, in a process of its own, or in that of `peers`."""
        client, display = cast("KubeClient", self), _Shown(self.plans)
        async with make_cluster(client, NAMESPACE, aim, run.options, peers=peers) as cluster:
            parts = client, cluster, self.clock, display, make_writer(client, cluster, run, display, self.clock)
            return await Runner(*parts, times=times or Times(), remedies=FLAGS, yes=True).run(run)

    def requests(self) -> dict[str, Mapping[str, Any]]:
        """All requests, by pod."""
        return {each["spec"]["podName"]: each for each in self.objects.get(REQUESTS.plural, {}).values()}
