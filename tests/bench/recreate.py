"""How fast, how many writes, how much memory, on a real containerd: one request, 30 at once; and on a full node.

Beside it, the same containers stopped by hand through the CRI, and how long kubelet takes from there: the least that it
can take. Then hooks that flood, for the daemon's memory, and what webhooks add to a POST. Everything runs in processes
of its own (API server, kubelet, node daemon, manager, containerd); with the variables of the end-to-end tests
(CRRD_TEST_KUBECONFIG ...) it runs on the cluster that they name instead.

A container's end is the runtime's own finishedAt; times count from the moment at which the POST was sent.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from crrd.core.api.types import API_VERSION, KIND
from crrd.kube.resources import PODS, REQUESTS
from crrd_localnode.daemons import Daemon
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
    pod_ready,
)
from tests.support.containerd import Containerd, missing
from tests.support.daemons import NodeDaemon
from tests.support.images import BUSYBOX_IMAGE
from tests.support.recreates import has_manager, own_manager

AT_ONCE = 30
SINGLES = 5
FULL = 110
"""Pods of a full node: kubelet's default (--max-pods)."""
ROUNDS = 3
"""With all of them at once: one round says little, containerd's own p99 differs by half from one to the next."""
FULL_KIB = 10
FLOODS = 20
FLOOD = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "head -c 15000000 /dev/zero; exit 1"]}}}
STARTED_AT_ONCE = 20
POSTS = 50
WARM_UP = 10
SETTLED_SECONDS = 5.0
"""After the start and the last request: the daemon gives freed memory back by then."""
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
    api = (f"{programs.NAME}.api", "--late", "--kubeconfig-out", str(kubeconfig))
    kubelet = [f"{programs.NAME}.kubelet", "--kubeconfig", str(kubeconfig), "--cri-endpoint", containerd.endpoint]
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


async def start_pods(cluster: Cluster, prefix: str, count: int, kib: int = 0, **fields: Any) -> list[Json]:
    """Running pods, filled up with variables to about so many KiB each."""
    print(f"  starting {count} pods ({prefix})", flush=True)
    names = [f"{prefix}-{number}" for number in range(count)]
    filling = [{"name": f"VARIABLE_{number}", "value": "x" * 100} for number in range(kib * 7)]
    one = container("app", SCRIPT, **({"env": filling} if filling else {}), **fields)
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


async def _raw(cluster: Cluster, pods: Sequence[Json]) -> tuple[list[float], list[float]]:
    """Seconds until each container has ended, and is ready again, when all are stopped at once through the CRI."""
    old = {pod["metadata"]["name"]: container_id(pod, "app") for pod in pods}
    ready: dict[str, float] = {}
    listing = await cluster.client.list_all(PODS, dict, namespace=cluster.namespace)
    watch = cluster.client.watch(PODS, listing.resource_version, namespace=cluster.namespace)
    async with watch as events, asyncio.timeout(120), asyncio.TaskGroup() as group:
        begin = time.time()
        for each in old.values():
            group.create_task(cluster.stop(bare(each), seconds=30))
        async for event in events:
            pod = dict(event.object)
            name = pod.get("metadata", {}).get("name", "")
            if name in old.keys() - ready.keys() and pod_ready(pod) and container_id(pod, "app") != old[name]:
                ready[name] = time.time() - begin
                if len(ready) == len(old):
                    break
    return [await _ended(cluster, pod) - begin for pod in pods], list(ready.values())


@dataclass
class Sent:
    """What became of requests: seconds from the moment at which each was sent, and its writes."""

    created: list[float]
    """The answer to the POST."""
    stopped: list[float]
    """The container's end."""
    completed: list[float]
    writes: list[int]

    @property
    def created_to_stopped(self) -> list[float]:
        """What is left without the POST."""
        return [end - made for end, made in zip(self.stopped, self.created, strict=True)]


async def send_requests(cluster: Cluster, pods: Sequence[Json]) -> Sent:
    """Create a request for each pod at once, and wait for the last one's end.

    One watch follows them all: it, too, takes its part of the processor while containers are stopped.
    """
    bodies = [crr_for(pod, ["app"]) for pod in pods]
    names = [str(body["metadata"]["name"]) for body in bodies]
    sent: dict[str, float] = {}
    created: dict[str, float] = {}
    done: dict[str, float] = {}
    versions: dict[str, set[str]] = {name: set() for name in names}

    async def create(name: str, body: Json) -> None:
        sent[name] = time.time()
        await cluster.create_request(body)
        created[name] = time.time()

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
    return Sent(
        [created[name] - sent[name] for name in names],
        [end - sent[name] for name, end in zip(names, ended, strict=True)],
        [done[name] - sent[name] for name in names],
        [len(versions[name]) - 1 for name in names],
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, float]:
    """MiB: resident now, at most, and how much of it is anonymous."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM", "RssAnon")))
    return {key: int(value.split()[0]) / 1024 for key, value in found.items()}


async def metrics_page(daemon: Daemon) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{daemon.address}/metrics") as answer:
        return await answer.text()


async def _api_calls(daemon: Daemon) -> Counter[str]:
    """The daemon's calls to the API server so far, by verb and resource."""
    calls: Counter[str] = Counter()
    for family in text_string_to_metric_families(await metrics_page(daemon)):
        for sample in family.samples:
            if sample.name == "crrd_api_calls_total":
                calls[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    return calls


def p99(values: Sequence[float]) -> float:
    """The value that one in a hundred exceeds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]


def _row(what: str, values: Sequence[float]) -> None:
    print(f"  {what:44} p50 {statistics.median(values):8.4f} s   p99 {p99(values):8.4f} s", flush=True)


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
            await _measure_floods(cluster, daemon)
            await daemon.stop()  # what is posted from here on is to be left alone
            await _measure_posts(cluster, folder)


async def _one_by_one(cluster: Cluster, pods: Sequence[Json]) -> None:
    """Some stopped by hand, some by requests, by turns."""
    by_hand, created, stopped = [], [], []
    for first, second in zip(pods[::2], pods[1::2], strict=True):
        by_hand += (await _raw(cluster, [first]))[0]
        sent = await send_requests(cluster, [second])
        created += sent.created
        stopped += sent.stopped
    _row("one: stopped by hand through the CRI", by_hand)
    _row("one: request sent to created (the POST)", created)
    _row("one: request sent to stopped", stopped)


def _rows_at_once(by_hand: tuple[list[float], list[float]], sent: Sent) -> None:
    count = len(sent.stopped)
    _row(f"{count} at once: stopped by hand through the CRI", by_hand[0])
    _row(f"{count} at once: request sent to created (the POST)", sent.created)
    _row(f"{count} at once: created to stopped", sent.created_to_stopped)
    _row(f"{count} at once: request sent to stopped", sent.stopped)
    _row(f"{count} at once: stopped by hand to ready again", by_hand[1])
    _row(f"{count} at once: request sent to Completed", sent.completed)


def memory_row(what: str, pid: int) -> None:
    found = memory(pid)
    print(f"  node daemon, {what}: resident {found['VmRSS']:.1f} MiB, ", end="")
    print(f"{found['RssAnon']:.1f} of it anonymous, {found['VmHWM']:.1f} at most", flush=True)


async def _measure(cluster: Cluster, daemon: NodeDaemon) -> None:
    print(f"recreate: {AT_ONCE} pods, one request each")
    await asyncio.sleep(SETTLED_SECONDS)
    memory_row("fresh", daemon.pid)
    singles = await start_pods(cluster, "single", 2 * SINGLES)
    calls = await _api_calls(daemon)
    await _one_by_one(cluster, singles)
    await asyncio.sleep(SETTLED_SECONDS)
    calls = await _api_calls(daemon) - calls
    each = ", ".join(f"{count / SINGLES:g} {call}" for call, count in sorted(calls.items()))
    print(f"  one: the node daemon's API calls a request   {each}", flush=True)
    await remove_pods(cluster, singles)
    others = await start_pods(cluster, "raw", AT_ONCE)
    by_hand = await _raw(cluster, others)
    await remove_pods(cluster, others)
    pods = await start_pods(cluster, "web", AT_ONCE)
    before = cpu_seconds(daemon.pid)
    sent = await send_requests(cluster, pods)
    cpu = cpu_seconds(daemon.pid) - before
    _rows_at_once(by_hand, sent)
    print(
        f"  API writes a request (besides events)        {statistics.mean(sent.writes):.2f}, at most {max(sent.writes)}"
    )
    print(f"  node daemon: CPU {cpu / AT_ONCE * 1000:.1f} ms a request")
    await remove_pods(cluster, pods)


async def _measure_full(cluster: Cluster, daemon: NodeDaemon) -> None:
    """No pod twice: kubelet's back-off of a second restart would leave the runtime to the stops."""
    print(f"recreate: a node with {FULL} pods of {FULL_KIB} KiB")
    pods = await start_pods(cluster, "full", FULL, FULL_KIB)
    await _one_by_one(cluster, pods[: 2 * SINGLES])
    await remove_pods(cluster, pods[: 2 * SINGLES])
    pods[: 2 * SINGLES] = await start_pods(cluster, "more", 2 * SINGLES, FULL_KIB)
    cpu, rounds = 0.0, []
    for number in range(ROUNDS):
        if number:
            pods = await start_pods(cluster, f"hand-{number}", FULL, FULL_KIB)
        by_hand = await _raw(cluster, pods)
        await remove_pods(cluster, pods)
        pods = await start_pods(cluster, f"again-{number}", FULL, FULL_KIB)
        before = cpu_seconds(daemon.pid)
        sent = await send_requests(cluster, pods)
        cpu += cpu_seconds(daemon.pid) - before
        await remove_pods(cluster, pods)
        rounds.append((p99(sent.created_to_stopped) / p99(by_hand[0]), by_hand, sent))
    rounds.sort(key=lambda each: each[0])
    _rows_at_once(*rounds[ROUNDS // 2][1:])
    ratios = ", ".join(f"{ratio:.2f}" for ratio, *_ in rounds)
    print(f"  this is the median of {ROUNDS} rounds by created to stopped, p99, beside by hand: {ratios} times")
    print(f"  node daemon: CPU {cpu / FULL / ROUNDS * 1000:.1f} ms a request")
    memory_row("after them", daemon.pid)


async def _measure_floods(cluster: Cluster, daemon: NodeDaemon) -> None:
    pods = await start_pods(cluster, "flood", FLOODS, lifecycle=FLOOD)
    await send_requests(cluster, pods)
    await asyncio.sleep(SETTLED_SECONDS)
    memory_row(f"after {FLOODS} hooks of 15 MB at once", daemon.pid)
    await remove_pods(cluster, pods)


async def _measure_posts(cluster: Cluster, folder: Path) -> None:
    print("admission: the POST of a request")
    (pod,) = await start_pods(cluster, "post", 1)
    if await has_manager(cluster):
        _row("POST with crrd's webhook", await _post(cluster, pod))
    else:
        _row("POST without the webhook", await _post(cluster, pod))
        async with own_manager(cluster, folder):
            _row("POST with the webhook", await _post(cluster, pod))
    await remove_pods(cluster, [pod])


async def _post(cluster: Cluster, pod: Json) -> list[float]:
    """Seconds that each POST takes, one at a time, of what a user writes; the requests are deleted again."""
    took = []
    for number in range(POSTS):
        name = f"post-{number}"
        spec = {"podName": pod["metadata"]["name"], "containers": [{"name": "app"}]}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        began = time.perf_counter()
        await cluster.create_request(body)
        took.append(time.perf_counter() - began)
        await cluster.client.delete(REQUESTS, cluster.namespace, name)
        await asyncio.sleep(0.05)
    return took[WARM_UP:]


def main() -> None:
    """Run the bench where it can be run."""
    if foreign() is None and (reason := missing()):
        print(f"recreate: skipped: {reason}")
        return
    asyncio.run(run())


if __name__ == "__main__":
    main()
