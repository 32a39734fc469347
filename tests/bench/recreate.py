"""How fast, how many writes, how much memory, on a real containerd: one request, 30 at once; and on a full node.

Beside it, the same containers stopped by hand through the CRI: the least that it can take. Everything runs in
processes of its own (API server, kubelet, node daemon, containerd); with the variables of the end-to-end tests
(CRRD_TEST_KUBECONFIG ...) it runs on the cluster that they name instead.

A container's end is the runtime's own finishedAt; times count from the moment at which the POST was sent.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from daemon.kube.resources import REQUESTS
from tests.support import programs
from tests.support.cluster import (
    VARIABLES,
    Cluster,
    Json,
    bare,
    completed,
    container,
    container_id,
    crr_for,
    foreign,
    on_foreign_cluster,
)
from tests.support.containerd import Containerd, missing
from tests.support.daemons import NodeDaemon
from tests.support.images import BUSYBOX_IMAGE

PODS = 30
SINGLES = 5
FULL = 110
"""Pods of a full node: kubelet's default (--max-pods)."""
FULL_KIB = 10
STARTED_AT_ONCE = 20
SCRIPT = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done"


@asynccontextmanager
async def _process(*command: str, log: Path) -> AsyncIterator[None]:
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", *command, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def bench_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """The foreign cluster, or an API server and a kubelet on a private containerd, each a process of its own."""
    variables = foreign()
    if variables is not None:
        async with on_foreign_cluster(variables, folder) as found:
            yield found
        return
    containerd = Containerd()
    await asyncio.to_thread(containerd.prepare)
    kubeconfig = folder / "kubeconfig"
    api = (programs.MODULE, "api", "--kubeconfig-out", str(kubeconfig))
    kubelet = [programs.MODULE, "kubelet", "--kubeconfig", str(kubeconfig), "--cri-endpoint", containerd.endpoint]
    kubelet += ["--node-name", "bench", "--root", str(folder / "kubelet")]
    values = (str(kubeconfig), containerd.endpoint, "bench", BUSYBOX_IMAGE)
    try:
        async with _process(*api, log=folder / "api.log"):
            async with asyncio.timeout(20):
                while not kubeconfig.exists():
                    await asyncio.sleep(0.05)
            async with (
                _process(*kubelet, log=folder / "kubelet.log"),
                on_foreign_cluster(dict(zip(VARIABLES, values, strict=True)), folder) as found,
            ):
                yield found
    finally:
        await asyncio.to_thread(containerd.destroy)


async def start_pods(cluster: Cluster, prefix: str, count: int, kib: int = 0) -> list[Json]:
    """Running pods, filled up with variables to about so many KiB each."""
    print(f"  starting {count} pods ({prefix})", flush=True)
    names = [f"{prefix}-{number}" for number in range(count)]
    filling = [{"name": f"VARIABLE_{number}", "value": "x" * 100} for number in range(kib * 7)]
    one = container("app", SCRIPT, **({"env": filling} if filling else {}))
    pods: list[Json] = []
    for begin in range(0, count, STARTED_AT_ONCE):
        some = names[begin : begin + STARTED_AT_ONCE]
        pods += await asyncio.gather(*(cluster.run_pod(name, [one], grace=30) for name in some))
    return pods


async def remove_pods(cluster: Cluster, pods: Sequence[Json]) -> None:
    await asyncio.gather(*(cluster.delete_pod(pod["metadata"]["name"], grace=1) for pod in pods))


async def _ended(cluster: Cluster, pod: Json) -> float:
    """When the pod's first container ended, by the runtime's clock."""
    return (await cluster.status(container_id(pod, "app"))).finished_at / 1e9


async def _raw(cluster: Cluster, pods: Sequence[Json]) -> list[float]:
    """Seconds until each container has ended when all are stopped at once through the CRI."""
    begin = time.time()
    await asyncio.gather(*(cluster.stop(bare(container_id(pod, "app")), seconds=30) for pod in pods))
    return [await _ended(cluster, pod) - begin for pod in pods]


async def send_requests(cluster: Cluster, pods: Sequence[Json]) -> tuple[list[float], list[float], list[int]]:
    """Seconds from each request's creation to its container's end and to Completed; writes of each request.

    One watch follows them all: it, too, takes its part of the processor while containers are stopped.
    """
    bodies = [crr_for(pod, ["app"]) for pod in pods]
    names = [str(body["metadata"]["name"]) for body in bodies]
    sent: dict[str, float] = {}
    done: dict[str, float] = {}
    versions: dict[str, set[str]] = {name: set() for name in names}

    async def create(name: str, body: Json) -> None:
        sent[name] = time.time()
        await cluster.create_request(body)

    listing = await cluster.client.list_all(REQUESTS, dict, namespace=cluster.namespace)
    watch = cluster.client.watch(REQUESTS, listing.resource_version, namespace=cluster.namespace)
    async with watch as events, asyncio.timeout(120), asyncio.TaskGroup() as group:
        for name, body in zip(names, bodies, strict=True):
            group.create_task(create(name, body))
        async for event in events:
            found = dict(event.object)
            name = found.get("metadata", {}).get("name", "")
            if name not in versions or name in done:
                continue
            versions[name].add(found["metadata"]["resourceVersion"])
            if completed(found):
                done[name] = time.time()
                if len(done) == len(names):
                    break
    ended = [await _ended(cluster, pod) for pod in pods]
    stops = [end - sent[name] for name, end in zip(names, ended, strict=True)]
    return stops, [done[name] - sent[name] for name in names], [len(versions[name]) - 1 for name in names]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, float]:
    """MiB: resident now, at most, and how much of it is anonymous."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM", "RssAnon")))
    return {key: int(value.split()[0]) / 1024 for key, value in found.items()}


def _row(what: str, values: Sequence[float]) -> None:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    print(f"  {what:44} p50 {statistics.median(ordered):7.3f} s   p99 {p99:7.3f} s", flush=True)


async def run() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="crrd-bench-") as name:
        folder = Path(name)
        async with (
            bench_cluster(folder) as cluster,
            NodeDaemon(cluster, folder / "node.log", "--log-level", "info") as daemon,
        ):
            await _measure(cluster, daemon)
            await _measure_full(cluster, daemon)


async def _measure(cluster: Cluster, daemon: NodeDaemon) -> None:
    fresh = memory(daemon.pid)["VmRSS"]
    singles = await start_pods(cluster, "single", 2 * SINGLES)
    raw_one, one = [], []
    for pod in singles[:SINGLES]:
        raw_one += await _raw(cluster, [pod])
    for pod in singles[SINGLES:]:
        stops, _, _ = await send_requests(cluster, [pod])
        one += stops
    await remove_pods(cluster, singles)
    by_hand = await start_pods(cluster, "raw", PODS)
    raw = await _raw(cluster, by_hand)
    await remove_pods(cluster, by_hand)
    pods = await start_pods(cluster, "web", PODS)
    before = cpu_seconds(daemon.pid)
    stops, ends, writes = await send_requests(cluster, pods)
    cpu = cpu_seconds(daemon.pid) - before
    found = memory(daemon.pid)
    print(f"recreate: {PODS} pods, one request each")
    _row("one: stopped by hand through the CRI", raw_one)
    _row("one: request created to stopped", one)
    _row(f"{PODS} at once: stopped by hand through the CRI", raw)
    _row(f"{PODS} at once: request created to stopped", stops)
    _row(f"{PODS} at once: request created to Completed", ends)
    print(f"  API writes a request (besides events)        {statistics.mean(writes):.2f}, at most {max(writes)}")
    print(f"  node daemon: CPU {cpu / PODS * 1000:.1f} ms a request; resident {fresh:.1f} MiB fresh, ", end="")
    print(f"{found['VmRSS']:.1f} after, {found['VmHWM']:.1f} at most")
    await remove_pods(cluster, pods)


async def _measure_full(cluster: Cluster, daemon: NodeDaemon) -> None:
    pods = await start_pods(cluster, "full", FULL, FULL_KIB)
    raw_one, one = [], []
    for by_hand, asked in zip(pods[:SINGLES], pods[SINGLES : 2 * SINGLES], strict=True):
        raw_one += await _raw(cluster, [by_hand])
        stops, _, _ = await send_requests(cluster, [asked])
        one += stops
    half = (FULL - 2 * SINGLES) // 2
    raw = await _raw(cluster, pods[-half:])
    before = cpu_seconds(daemon.pid)
    stops, _, _ = await send_requests(cluster, pods[2 * SINGLES : -half])
    cpu = cpu_seconds(daemon.pid) - before
    found = memory(daemon.pid)
    print(f"recreate: a node with {FULL} pods of {FULL_KIB} KiB")
    _row("one: stopped by hand through the CRI", raw_one)
    _row("one: request created to stopped", one)
    _row(f"{half} at once: stopped by hand through the CRI", raw)
    _row(f"{half} at once: request created to stopped", stops)
    print(f"  node daemon: CPU {cpu / half * 1000:.1f} ms a request; resident {found['VmRSS']:.1f} MiB, ", end="")
    print(f"{found['VmHWM']:.1f} at most")
    await remove_pods(cluster, pods)


def main() -> None:
    """Run the bench where it can be run."""
    if foreign() is None and (reason := missing()):
        print(f"recreate: skipped: {reason}")
        return
    asyncio.run(run())


if __name__ == "__main__":
    main()
