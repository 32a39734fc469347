"""What a way costs: when the pods are ready again, for how long they were not, calls, CPU, and what a pod keeps."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
from kubernetes import config
from prometheus_client.parser import text_string_to_metric_families

from crrd.kube.resources import PODS
from crrd_localnode.workload import RESOURCES
from tests.bench.compare.ways import APP, GRACE, Scene, Way
from tests.support.cluster import Cluster, Json, container_id, pod_ready
from tests.support.recreates import BUDGETS, pods_of
from tests.tools.cluster.cluster import RealCluster as Machines
from tests.tools.cluster.parts import seconds_of_machine, used

WAITS = 900.0
SHARED = "/shared"
SCRIPT = "trap 'exit 0' TERM; sleep 1000000 & wait"
HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", f"echo $HOSTNAME >> {SHARED}/hooked"]}}}
ALL, COMMANDS = "all", "commands"
KEPT = ("UID", "IP", "emptyDir", "preStop hook run", "PodDisruptionBudget respected")


@dataclass(slots=True)
class Seen:
    """The pods of a Deployment by a watch, since a way has begun."""

    before: frozenset[str]  # IDs of their containers
    count: int
    began: float
    renewed: dict[str, float] = field(default_factory=dict)  # UID -> seconds until it was ready with a new container
    missing: float = 0.0  # Seconds without a ready pod, all replicas taken together
    most_missing: int = 0
    task: asyncio.Task[None] | None = None
    _ready: set[str] = field(default_factory=set)
    _at: float = 0.0

    def start(self, pods: Sequence[Json]) -> None:
        """Take over the pods of the list."""
        self._ready, self._at = {pod["metadata"]["uid"] for pod in pods if _serves(pod)}, self.began

    def add(self, pod: Json, *, gone: bool) -> None:
        """Take over a pod's next version."""
        now, uid = time.monotonic(), pod["metadata"]["uid"]
        lacking = max(0, self.count - len(self._ready))
        self.missing, self._at = self.missing + lacking * (now - self._at), now
        serves = not gone and _serves(pod)
        (self._ready.add if serves else self._ready.discard)(uid)
        self.most_missing = max(self.most_missing, self.count - len(self._ready))
        if serves and container_id(pod, APP) not in self.before:
            self.renewed.setdefault(uid, now - self.began)
        elif not serves:
            self.renewed.pop(uid, None)

    @property
    def over(self) -> bool:
        """Whether all replicas are ready with a new container."""
        return len(self.renewed) == self.count == len(self._ready)


def _serves(pod: Json) -> bool:
    return pod_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def _spec(cluster: Cluster, *, one_node: bool, hook: bool) -> Json:
    app: Json = {"name": APP, "image": cluster.image, "imagePullPolicy": "IfNotPresent"}
    app |= {"command": ["/bin/sh", "-c", SCRIPT], "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes: list[Json] = [{"name": "data", "emptyDir": {}}]
    if hook:
        app["lifecycle"] = HOOK
        app["volumeMounts"].append({"name": "shared", "mountPath": SHARED})
        volumes.append({"name": "shared", "hostPath": {"path": str(cluster.folder), "type": "Directory"}})
    spec: Json = {"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": GRACE}
    return spec | ({"nodeSelector": {"kubernetes.io/hostname": cluster.node_name}} if one_node else {})


@asynccontextmanager
async def deployed(
    cluster: Cluster,
    name: str,
    replicas: int,
    *,
    most: str = "100%",
    surge: str = "0%",
    one_node: bool = True,
    hook: bool = False,
) -> AsyncIterator[Scene]:
    """Run a Deployment whose pods are ready, on one node or all.

    `most` and `surge` are what a rollout may take away and add at once, in percent.
    """
    template = {"metadata": {"labels": {"app": name}}, "spec": _spec(cluster, one_node=one_node, hook=hook)}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    spec["strategy"] = {"rollingUpdate": {"maxUnavailable": most, "maxSurge": surge}}
    client, space = cluster.client, cluster.namespace
    await client.create(RESOURCES["Deployment"], space, {"metadata": {"name": name}, "spec": spec})
    try:
        async with asyncio.timeout(WAITS):
            while len(pods := [each for each in await pods_of(cluster, name) if _serves(each)]) < replicas:
                await asyncio.sleep(1)
        await asyncio.sleep(5)  # kubelet and API server come to rest
        yield Scene(cluster, name, tuple(pods))
    finally:
        await client.delete(RESOURCES["Deployment"], space, name)  # its pods stay until kubelet has stopped them
        async with asyncio.timeout(WAITS):
            while await pods_of(cluster, name):
                await asyncio.sleep(1)


@asynccontextmanager
async def watched(scene: Scene) -> AsyncIterator[Seen]:
    """Watch the pods of a Deployment. It has begun now."""
    client, where = scene.cluster.client, {"namespace": scene.cluster.namespace, "label_selector": f"app={scene.name}"}
    before = frozenset(container_id(pod, APP) for pod in scene.pods)
    listing = await client.list_all(PODS, dict, **where)
    seen = Seen(before, len(scene.pods), time.monotonic())
    seen.start(listing.items)

    async def follow() -> None:
        version = listing.resource_version
        while True:  # the API server ends each watch after some minutes
            async with client.watch(PODS, version, **where) as events:
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.kind in ("ADDED", "MODIFIED", "DELETED"):
                        seen.add(dict(event.object), gone=event.kind == "DELETED")

    seen.task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        seen.task.cancel()
        await asyncio.gather(seen.task, return_exceptions=True)


def writes(kubeconfig: Path) -> float:
    """How many writes the API server has answered, without leases."""
    api = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
    asked = api.call_api(*api.param_serialize("GET", "/metrics", auth_settings=["BearerToken"]))
    return sum(
        sample.value
        for family in text_string_to_metric_families(asked.read().decode())
        for sample in family.samples
        if sample.name == "apiserver_request_total"
        and sample.labels["verb"] in {"POST", "PUT", "PATCH", "APPLY", "DELETE"}
        and sample.labels["resource"] != "leases"
    )


def cpu(nodes: Machines) -> dict[str, float]:
    """By part of the cluster: seconds of CPU that its processes have used. Those that have ended are in ALL."""
    found = {part: sum(seconds for seconds, _ in found) for part, found in used(nodes).items()}
    return found | {ALL: seconds_of_machine(), COMMANDS: sum(os.times()[2:4])}


async def begun(way: Callable[[Scene], Awaitable[None]], scene: Scene) -> None:
    """Begin, and give up if it takes too long."""
    async with asyncio.timeout(WAITS):
        await way(scene)


def memory(nodes: Machines) -> dict[str, float]:
    """By part of the cluster: MiB of its largest process."""
    return {part: max(size for _, size in found) for part, found in used(nodes).items()}


async def until_over(seen: Seen) -> None:
    """Wait until all replicas are ready again."""
    async with asyncio.timeout(WAITS):
        while not seen.over:
            if seen.task is not None and seen.task.done():
                seen.task.result()  # the watch was lost
            await asyncio.sleep(0.02)


async def down(scene: Scene) -> list[float]:
    """For how long the container of each pod did not run, in seconds by the runtime's clock.

    Without new pods, and without old containers that kubelet has removed already.
    """
    found = []
    for pod in await pods_of(scene.cluster, scene.name):
        old = next((each for each in scene.pods if each["metadata"]["uid"] == pod["metadata"]["uid"]), None)
        if old is not None:
            try:
                ended = (await scene.cluster.status(container_id(old, APP))).finished_at
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                continue
            started = (await scene.cluster.status(container_id(pod, APP))).started_at
            found.append(round((started - ended) / 1e9, 3))
    return sorted(found)


async def measured(scene: Scene, way: Way, nodes: Machines, *, run: bool = False) -> Json:
    """Restart all pods of a Deployment, at once or in a run with a budget, and return what it took and cost."""
    begin = way.run if run and way.run is not None else way.begin
    count, kubeconfig = len(scene.pods), scene.cluster.kubeconfig
    asked, before, since = await asyncio.to_thread(writes, kubeconfig), cpu(nodes), time.monotonic()
    async with watched(scene) as seen:
        await begun(begin, scene)
        answered = time.monotonic() - seen.began
        await until_over(seen)
    await asyncio.sleep(3)  # what follows is part of the cost
    after, passed = cpu(nodes), time.monotonic() - since
    used_ = {part: value - before.get(part, 0.0) for part, value in after.items()}
    return {
        "way": way.name,
        "pods": count,
        "seconds": [round(each, 3) for each in sorted(seen.renewed.values())],
        "answered": round(answered, 3),
        "took": round(passed, 3),  # With what follows
        "missing": round(seen.missing / count, 3),
        "most": seen.most_missing,
        "writes": round((await asyncio.to_thread(writes, kubeconfig) - asked) / count, 2),
        "down": [] if run else await down(scene),
        "cpu": {part: round(1000 * value / count, 1) for part, value in used_.items()},
        "memory": {part: round(value, 1) for part, value in memory(nodes).items()},
    }


async def singles(cluster: Cluster, way: Way, count: int) -> Json:
    """Restart one pod after the other, each of them once: a container that is restarted often has to wait."""
    found = list[tuple[float, float]]()
    stopped = list[float]()
    if way.single:
        async with deployed(cluster, "one", count) as scene:
            for pod in scene.pods:
                there = [each for each in await pods_of(cluster, scene.name) if _serves(each)]
                found.append(await _single(way, scene, pod, there))
                await asyncio.sleep(1 + random.random())  # kubelet looks once a second; do not fall into step with it
            stopped += await down(scene)
    else:
        for number in range(count):
            async with deployed(cluster, f"one-{number}", 1, most="0%", surge="100%") as scene:
                found.append(await _single(way, scene, scene.pods[0], scene.pods))
    took, missing = (sorted(round(each[index], 3) for each in found) for index in (0, 1))
    return {"way": way.name, "pods": 1, "seconds": took, "missing": missing, "down": sorted(stopped)}


async def _single(way: Way, scene: Scene, pod: Json, there: Sequence[Json]) -> tuple[float, float]:
    """Restart one pod of those that are there. Return after how many seconds it was ready, and how many it was not."""
    async with watched(replace(scene, pods=tuple(there))) as seen:
        seen.renewed = {
            each["metadata"]["uid"]: 0.0 for each in there if each["metadata"]["uid"] != pod["metadata"]["uid"]
        }
        await begun(way.begin, replace(scene, pods=(pod,)))
        await until_over(seen)
    return max(seen.renewed.values()), seen.missing


async def keeps(cluster: Cluster, way: Way) -> Json:
    """Return what a pod keeps, as it was seen."""
    found = dict.fromkeys(KEPT, False)
    hooked = cluster.folder / "hooked"
    hooked.unlink(missing_ok=True)
    async with deployed(cluster, "kept", 1, hook=True) as scene:
        (pod,) = scene.pods
        await cluster.execute(container_id(pod, APP), "touch", "/data/mark")
        async with watched(scene) as seen:
            await begun(way.begin, scene)
            await until_over(seen)
        after = next(each for each in await pods_of(cluster, scene.name) if each["metadata"]["uid"] in seen.renewed)
        for name, path in (("UID", ("metadata", "uid")), ("IP", ("status", "podIP"))):
            found[name] = pod[path[0]][path[1]] == after[path[0]][path[1]]
        found["emptyDir"] = (await cluster.execute(container_id(after, APP), "ls", "/data/mark")).exit_code == 0
        await asyncio.sleep(2)  # the hook of a pod that is deleted may be running
        found["preStop hook run"] = hooked.exists()
    async with deployed(cluster, "guarded", 1) as scene:
        labels = {"matchLabels": {"app": scene.name}}
        budget = {"metadata": {"name": scene.name}, "spec": {"minAvailable": 1, "selector": labels}}
        await cluster.client.create(BUDGETS, cluster.namespace, budget)
        await asyncio.sleep(2)  # its controller has seen it
        async with watched(scene) as seen:
            await begun(way.guarded or way.begin, scene)
            await asyncio.sleep(8)
        in_place = any(pod["metadata"]["uid"] in seen.renewed for pod in scene.pods)  # also if no gap was shown
        found["PodDisruptionBudget respected"] = seen.most_missing == 0 and not in_place
        await cluster.client.delete(BUDGETS, cluster.namespace, scene.name)
    return {"way": way.name, "keeps": found, "asked by": "kubectl recreate" if way.guarded else ""}


def machine() -> Mapping[str, str]:
    """Return what this machine is."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    total = next(line for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines() if "MemTotal" in line)
    return {
        "processor": model[0] if model else "unknown",
        "cores": str(len(model)),
        "memory": total.split(":")[1].strip(),
    }
