"""`crrd recreate` on a cluster: workloads, the command, and a record of what happened during the run."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.resources import NODES, PODS, REQUESTS, WEBHOOKS, Resource
from crrd.lib.errors import GoneError
from crrd_localnode.daemons import running_manager
from crrd_localnode.node import LocalNode
from crrd_localnode.workload import RESOURCES, Maker
from tests.support.cluster import (
    PATIENCE,
    WAITING_SCRIPT,
    Cluster,
    Json,
    container_id,
    container_status,
    pod_ready,
    restart_count,
)
from tests.support.command import Ended, crrd
from tests.support.daemons import NodeDaemon

BUDGETS = Resource("poddisruptionbudgets", "policy")
DEPLOYMENTS = RESOURCES["Deployment"]
_ROLE_BINDINGS = Resource("rolebindings", "rbac.authorization.k8s.io")
HELD: dict[str, tuple[Json, Json]] = {
    "Deployment": ({"paused": True}, {"paused": False}),
    "StatefulSet": (
        {"updateStrategy": {"rollingUpdate": {"partition": 9}}},
        {"updateStrategy": {"rollingUpdate": {"partition": 0}}},
    ),
    "DaemonSet": (
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}},
        {"updateStrategy": {"type": "RollingUpdate"}},
    ),
}
"""By kind: how a workload is held, and released."""


async def grant(cluster: Cluster, role: str, binding: str = "") -> None:
    """Bind a ClusterRole to the manager in the cluster's namespace. The RoleBinding has its name, or this one."""
    account = {"kind": "ServiceAccount", "name": "crrd-manager", "namespace": "crrd-system"}
    of = {"apiGroup": _ROLE_BINDINGS.group, "kind": "ClusterRole", "name": role}
    body = {"metadata": {"name": binding or role}, "roleRef": of, "subjects": [account]}
    await cluster.client.create(_ROLE_BINDINGS, cluster.namespace, body)


async def give_template(cluster: Cluster, image: str, *, paused: bool = True) -> None:
    """Write an image into the first container of the template of Deployment "web", as from git."""
    found = await cluster.client.get(DEPLOYMENTS, cluster.namespace, "web")
    first, *others = found["spec"]["template"]["spec"]["containers"]
    spec = {"paused": paused, "template": {"spec": {"containers": [{**first, "image": image}, *others]}}}
    await cluster.client.merge_patch(DEPLOYMENTS, cluster.namespace, "web", {"spec": spec})


def pod_spec(cluster: Cluster, *names: str) -> Json:
    """Return a pod spec with containers that end at once on SIGTERM."""
    command = ["/bin/sh", "-c", WAITING_SCRIPT]
    return {
        "nodeName": cluster.node_name,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "containers": [
            {"name": name, "image": cluster.image, "imagePullPolicy": "IfNotPresent", "command": command}
            for name in names
        ],
    }


async def pods_of(cluster: Cluster, app: str) -> list[Json]:
    """Return the workload's current pods, sorted by name."""
    listing = await cluster.client.list_all(PODS, dict, namespace=cluster.namespace, label_selector=f"app={app}")
    return sorted(listing.items, key=lambda pod: str(pod["metadata"]["name"]))


async def workload(
    cluster: Cluster, kind: str, name: str, replicas: int, *containers: str, spec: Json | None = None
) -> list[Json]:
    """Create a running workload, and return its pods. `spec` is that of the pods; else they have these containers."""
    await create_workload(cluster, kind, name, replicas, spec or pod_spec(cluster, *(containers or ("app", "side"))))
    return await wait_ready(cluster, name, replicas)


async def create_workload(cluster: Cluster, kind: str, name: str, replicas: int, spec: Json) -> None:
    """Create a workload, or bare pods (kind Pod). On the local node without controllers, the test creates its pods."""
    if kind == "Pod":
        for number in range(replicas):
            meta = {"name": f"{name}-{number}", "labels": {"app": name}}
            await cluster.client.create(PODS, cluster.namespace, {"metadata": meta, "spec": spec})
    elif cluster.node is not None:
        await Maker(cluster.client, cluster.namespace).workload(kind, name, replicas, spec)
    else:
        labels, spec = {"app": name}, dict(spec)
        template = {"metadata": {"labels": labels}, "spec": spec}
        spec_of: Json = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        if kind == "StatefulSet":
            spec_of["serviceName"] = name
        if kind == "DaemonSet":  # its controller chooses the nodes, by this
            here = {"key": "metadata.name", "operator": "In", "values": [spec.pop("nodeName")]}
            nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [here]}]}}
            spec["affinity"] = {"nodeAffinity": nodes}
            del spec_of["replicas"]
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec_of}
        await cluster.client.create(RESOURCES[kind], cluster.namespace, body)


async def wait_ready(
    cluster: Cluster, app: str, count: int, condition: Callable[[Json], bool] = pod_ready
) -> list[Json]:
    """Wait until the workload has this many pods and all are ready, or meet the condition. Return them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            pods = await pods_of(cluster, app)
            if len(pods) == count and all(map(condition, pods)):
                return pods
            await asyncio.sleep(0.1)


async def rolled_out(cluster: Cluster, kind: str, name: str) -> Json:
    """Wait until the controller has updated all pods, as `kubectl rollout status` does. Return the workload."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = dict(await cluster.client.get(RESOURCES[kind], cluster.namespace, name))
            status, generation = found.get("status", {}), found["metadata"]["generation"]
            of_set = [f"{key}Scheduled" for key in ("desiredNumber", "updatedNumber")]
            keys = ("numberReady", *of_set) if kind == "DaemonSet" else ("replicas", "updatedReplicas", "readyReplicas")
            counts = {status.get(key) for key in keys}
            wanted = status.get("desiredNumberScheduled") if kind == "DaemonSet" else found["spec"]["replicas"]
            if status.get("observedGeneration") == generation and counts == {wanted}:
                return found
            await asyncio.sleep(0.1)


async def hold(cluster: Cluster, kind: str, name: str, image: str) -> Json:
    """Hold a workload, and give the first container of its template an image. Return the workload."""
    spec = (await cluster.client.get(RESOURCES[kind], cluster.namespace, name))["spec"]["template"]["spec"]
    containers = [{**spec["containers"][0], "image": image}, *spec["containers"][1:]]
    change = {"spec": {**HELD[kind][0], "template": {"spec": {"containers": containers}}}}
    return dict(await cluster.client.merge_patch(RESOURCES[kind], cluster.namespace, name, change))


async def release(cluster: Cluster, kind: str, name: str) -> None:
    """Let the controller of a held workload roll out its template."""
    await cluster.client.merge_patch(RESOURCES[kind], cluster.namespace, name, {"spec": HELD[kind][1]})


def image_of(template: Json) -> str:
    """Return the image of the first container."""
    return str(template["spec"]["containers"][0]["image"])


@asynccontextmanager
async def daemons(cluster: Cluster, folder: Path) -> AsyncIterator[NodeDaemon]:
    """Run the node daemon, and a manager if the cluster has none."""
    async with NodeDaemon(cluster, folder / "crrd-node.log") as node:
        if await has_manager(cluster):
            yield node
            return
        async with own_manager(cluster, folder):
            yield node


async def has_manager(cluster: Cluster) -> bool:
    """Whether the cluster has crrd's webhook configuration."""
    with suppress(GoneError):
        await cluster.client.get(WEBHOOKS, "", "crrd")
        return True
    return False


@asynccontextmanager
async def own_manager(cluster: Cluster, folder: Path) -> AsyncIterator[object]:
    """Run a manager whose webhook the API server calls. On another cluster, it calls the address of this node."""
    if cluster.node is not None:
        async with running_manager(cluster.node) as manager:
            yield manager
        return
    addresses = (await cluster.client.get(NODES, "", cluster.node_name))["status"]["addresses"]
    host = next(each["address"] for each in addresses if each["type"] == "InternalIP")
    async with running_manager(cast("LocalNode", _Place(cluster, folder)), host=host) as manager:
        yield manager


@dataclass
class _Place:
    """The parts of a local node that a manager needs, for another cluster."""

    cluster: Cluster
    root: Path

    @property
    def client(self) -> object:
        return self.cluster.client

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig


async def recreate(cluster: Cluster, *words: str, kubeconfig: Path | None = None) -> Ended:
    """Run `crrd recreate` to its end."""
    where = ("-n", cluster.namespace, "--kubeconfig", str(kubeconfig or cluster.kubeconfig))
    return await crrd("recreate", *words, *where)


async def killed(cluster: Cluster, writes: int, *arguments: str) -> int:
    """Run `crrd recreate`, and kill it after so many writes. Return its exit code, negative if it was killed."""
    where = ("-n", cluster.namespace, "--kubeconfig", str(cluster.kubeconfig))
    command = (sys.executable, "-m", "tests.support.killed", str(writes), "recreate", *arguments, *where)
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=nowhere, stderr=nowhere)
    return await process.wait()


def lines(ended: Ended) -> list[Json]:
    """Return the output of `-o json`."""
    return [json.loads(line) for line in ended.out.splitlines()]


async def requests_of(cluster: Cluster, run: str = "") -> list[Json]:
    """Return the requests of one or all runs."""
    selector = f"{LABEL_RUN}={run}" if run else LABEL_RUN
    return list(
        (await cluster.client.list_all(REQUESTS, dict, namespace=cluster.namespace, label_selector=selector)).items
    )


@dataclass
class Record:
    """Every version of every pod of a workload, as reported by a watch."""

    pods: dict[str, Json]
    most_unready: int = 0
    unready: list[list[Json]] = field(default_factory=list)
    """The unready pods after each event."""
    restarts: list[tuple[str, str]] = field(default_factory=list)
    """Pods and containers, in the order in which new instances appeared."""
    images: set[tuple[str, str]] = field(default_factory=set)
    """Pods, and the images of their containers at any time."""

    def add(self, pod: Json) -> None:
        """Record the next version of a pod."""
        name = pod["metadata"]["name"]
        before, self.pods[name] = self.pods.get(name, {}), pod
        self.images |= {(name, each["image"]) for each in pod["spec"]["containers"]}
        for status in pod.get("status", {}).get("containerStatuses") or ():
            old = container_status(before, status["name"])
            if old and int(status["restartCount"]) > int(old["restartCount"]):
                self.restarts.append((name, status["name"]))
        unready = [each for each in self.pods.values() if not pod_ready(each)]
        self.unready.append(unready)
        self.most_unready = max(self.most_unready, len(unready))

    def most_unready_of(self, key: Callable[[Json], str]) -> int:
        """Return how many pods of one group, for example of a node, were unready at once."""
        groups = (Counter(map(key, pods)) for pods in self.unready)
        return max((max(each.values(), default=0) for each in groups), default=0)


@asynccontextmanager
async def recorded(cluster: Cluster, app: str) -> AsyncIterator[Record]:
    """Record the workload's pods, which are ready now, until the block ends."""
    client, where = cluster.client, {"namespace": cluster.namespace, "label_selector": f"app={app}"}
    listing = await client.list_all(PODS, dict, **where)
    record = Record({pod["metadata"]["name"]: pod for pod in listing.items})

    async def follow() -> None:
        async with client.watch(PODS, listing.resource_version, **where) as events:
            async for event in events:
                if event.kind in ("ADDED", "MODIFIED"):
                    record.add(dict(event.object))

    task = asyncio.create_task(follow())
    try:
        yield record
        newest = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in await pods_of(cluster, app)}
        async with asyncio.timeout(PATIENCE):
            while any(record.pods[name]["metadata"]["resourceVersion"] != version for name, version in newest.items()):
                assert not task.done(), "the watch has ended"
                await asyncio.sleep(0.05)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def kept(before: list[Json], after: list[Json], *recreated: str) -> None:
    """Assert that the pods are unchanged, except that these containers were restarted once."""
    for old, new in zip(before, after, strict=True):
        assert new["metadata"]["uid"] == old["metadata"]["uid"]
        assert new["status"]["podIP"] == old["status"]["podIP"]
        for spec in old["spec"]["containers"]:
            name = spec["name"]
            more = restart_count(new, name) - restart_count(old, name)
            assert more == (1 if name in recreated else 0), f"{name} of {new['metadata']['name']}: {more} restarts"
            assert (container_id(new, name) == container_id(old, name)) is (name not in recreated)


async def often_killed(cluster: Cluster, written: Callable[[], Awaitable[int]], *flags: str) -> None:
    """Kill a run on a StatefulSet after each of its writes, which `written` counts. Nothing is restarted twice."""
    before = await workload(cluster, "StatefulSet", "db", 3)
    words = ["statefulset/db", "-c", "app", "--run", "often-killed", *flags]
    async with recorded(cluster, "db") as record:
        for number in range(3):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "crrd", "recreate", *words),
                *("-n", cluster.namespace, "--kubeconfig", str(cluster.kubeconfig)),
                stdout=asyncio.subprocess.DEVNULL,
            )
            async with asyncio.timeout(PATIENCE):
                while await written() <= number:
                    await asyncio.sleep(0.01)
            process.kill()
            await process.wait()
        ended = await recreate(cluster, *words)
    assert ended.code == 0, ended
    kept(before, await pods_of(cluster, "db"), "app")
    assert record.restarts == [("db-2", "app"), ("db-1", "app"), ("db-0", "app")]
    assert record.most_unready <= 1


async def a_deployment_and_a_statefulset(cluster: Cluster, *way: str) -> None:
    """A run's guarantees: pods, IPs and other containers stay, budgets hold at every moment, the order is kept.

    `way` are flags that choose how containers are restarted.
    """
    before = await workload(cluster, "Deployment", "web", 10)
    async with recorded(cluster, "web") as record:
        ended = await recreate(cluster, "deployment/web", "-c", "app", "--max-unavailable", "30%", "-o", "json", *way)
    assert ended.code == 0, ended
    assert lines(ended)[-1]["pods"]["done"] == 10
    kept(before, await pods_of(cluster, "web"), "app")
    assert record.most_unready <= 3
    assert sorted(record.restarts) == [(pod["metadata"]["name"], "app") for pod in before]

    before = await workload(cluster, "StatefulSet", "db", 3)
    async with recorded(cluster, "db") as record:
        ended = await recreate(cluster, "statefulset", "db", "-c", "app,side", "--ordered", "--min-ready", "2s", *way)
    assert ended.code == 0, ended
    kept(before, await pods_of(cluster, "db"), "app", "side")
    assert record.most_unready <= 1
    assert record.restarts == [(f"db-{number}", name) for number in (2, 1, 0) for name in ("app", "side")]
