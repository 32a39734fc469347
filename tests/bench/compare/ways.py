"""The ways to restart a container of a pod that runs: the rows of the comparison."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from crrd.core.rollout.patch.operations import restart
from crrd.core.rollout.run import LABEL_RUN
from crrd.core.rollout.state import read_member
from crrd.kube.resources import PODS, REQUESTS
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import Cluster, Json, container_id, request_for

AT_A_TIME = 16
"""Calls of one client to the API server. More at once only wait there."""
APP = "app"
GRACE = 30


@dataclass(frozen=True, slots=True)
class Scene:
    """A Deployment with pods that are ready."""

    cluster: Cluster
    name: str
    pods: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One of them."""

    name: str
    begin: Callable[[Scene], Awaitable[None]]  # Returns when all calls are answered
    of: str = ""  # What must be installed: crrd, OpenKruise, or nothing
    run: Callable[[Scene], Awaitable[None]] | None = None
    """A run over all pods of which at most 10 % are unready at once; None if there is no such thing."""
    guarded: Callable[[Scene], Awaitable[None]] | None = None
    """How it is asked so that it looks at PodDisruptionBudgets, for some seconds; None if there is no such thing."""
    single: bool = True  # Whether it can restart one of several pods
    only_run: bool = False
    most: str = "10%"  # Of a rollout in a run: how many pods it may take away
    surge: str = "0%"  # ... and add


async def _each(scene: Scene, call: Callable[[Json], Awaitable[object]]) -> None:
    free = asyncio.Semaphore(AT_A_TIME)

    async def one(pod: Json) -> None:
        async with free:
            await call(pod)

    await asyncio.gather(*map(one, scene.pods))


async def delete(scene: Scene) -> None:
    """`kubectl delete pod`."""
    client, space = scene.cluster.client, scene.cluster.namespace
    await _each(scene, lambda pod: client.delete(PODS, space, pod["metadata"]["name"]))


async def roll_out(scene: Scene) -> None:
    """`kubectl rollout restart`. The Deployment says how many pods at once."""
    stamp = {"kubectl.kubernetes.io/restartedAt": time.strftime("%Y-%m-%dT%H:%M:%S") + secrets.token_hex(2)}
    body = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
    await scene.cluster.client.merge_patch(RESOURCES["Deployment"], scene.cluster.namespace, scene.name, body)


async def kill(scene: Scene) -> None:
    """`kubectl exec POD -- kill 1`."""
    flags = ["--kubeconfig", str(scene.cluster.kubeconfig), "-n", scene.cluster.namespace]
    where = asyncio.subprocess.DEVNULL

    async def exec_(pod: Json) -> None:
        words = ["exec", pod["metadata"]["name"], "-c", APP, *flags, "--", "kill", "1"]
        process = await asyncio.create_subprocess_exec("kubectl", *words, stdout=where, stderr=where)
        await process.wait()  # it fails if the container ends first

    await _each(scene, exec_)


async def stop(scene: Scene) -> None:
    """StopContainer on the node, as `crictl stop` sends it. All at once, as each is answered only when it has ended."""
    stops = (scene.cluster.stop(container_id(pod, APP), GRACE) for pod in scene.pods)
    await asyncio.gather(*stops)


async def request(scene: Scene) -> None:
    """A ContainerRecreateRequest for each pod. OpenKruise and crrd have the same."""
    client, space = scene.cluster.client, scene.cluster.namespace
    await _each(scene, lambda pod: client.create(REQUESTS, space, request_for(pod, APP)))


async def patch(scene: Scene) -> None:
    """A patch of each pod, as `kubectl recreate --via patch` sends it: tried first, without effect."""
    client, space = scene.cluster.client, scene.cluster.namespace

    async def one(pod: Json) -> None:
        read = await client.get(PODS, space, pod["metadata"]["name"])
        spec = {"strategy": {"orderedRecreate": False}, "containers": [{"name": APP}]}
        meta = {"name": read["metadata"]["name"], "labels": {LABEL_RUN: "compare"}, "annotations": {}}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        changes = list(restart(read_member(read), {"metadata": meta, "spec": spec}, now))
        for dry_run in (True, False):
            await client.json_patch(PODS, space, read["metadata"]["name"], changes, dry_run=dry_run)

    await _each(scene, one)


def command(*flags: str) -> Callable[[Scene], Awaitable[None]]:
    """Return `kubectl recreate` for the Deployment, with these flags."""

    async def run(scene: Scene) -> None:
        code, said = await recreate(scene, *flags)
        assert code == 0, said

    return run


async def recreate(scene: Scene, *flags: str) -> tuple[int, str]:
    """Run `kubectl recreate` for the Deployment. Return its exit code, and what it said."""
    where = ("-n", scene.cluster.namespace, "--kubeconfig", str(scene.cluster.kubeconfig))
    words = ("recreate", f"deployment/{scene.name}", "-c", APP, "-o", "json", *where, *flags)
    pipe = asyncio.subprocess.PIPE
    program = str(Path(__file__).parents[3] / ".venv" / "bin" / "crrd")
    process = await asyncio.create_subprocess_exec(program, *words, stdout=pipe, stderr=pipe)
    said = b"".join(await process.communicate())
    assert process.returncode is not None
    return process.returncode, said.decode()


def asked(*flags: str) -> Callable[[Scene], Awaitable[None]]:
    """Return the same for some seconds, in which a PodDisruptionBudget allows nothing."""

    async def run(scene: Scene) -> None:
        _, said = await recreate(scene, "--timeout", "5s", *flags)
        assert "PodDisruptionBudget" in said, said

    return run


_TEN, _PATCH = ("--max-unavailable", "10%"), ("--via", "patch")
BY_HAND = Way("stopped by hand", stop)
WAYS = (
    Way("pod deleted", delete),
    Way("rollout restart", roll_out, run=roll_out, single=False),
    Way("rollout restart, surge 10 %", roll_out, run=roll_out, only_run=True, most="0%", surge="10%"),
    Way("kubectl exec kill 1", kill),
    BY_HAND,
    Way("OpenKruise", request, of="OpenKruise"),
    Way("crrd", request, of="crrd", run=command(*_TEN), guarded=asked()),
    Way("crrd, by patch", patch, of="crrd", run=command(*_PATCH, *_TEN), guarded=asked(*_PATCH)),
)
