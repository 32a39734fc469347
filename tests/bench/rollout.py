"""Runs of `crrd recreate` over thousands of pods: `python -m tests.bench.rollout`.

The command is a process of its own. Against it stands an API server in memory that answers no faster than a real one
(13 ms a read, 10 ms a creation, 12 KB a pod), and nodes that restart a container in two seconds. Measures the time and
what the budget would allow, the command's CPU and memory, and what it asks of the API server. Fails beyond 1.5 times
what the budget allows, 30 s of CPU or 100 MiB for 2 000 pods, or if a plan takes more than 50 ms for 500 pods.
"""

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import format_datetime
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from aiohttp import web

from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.run import Amount
from crrd.core.rollout.state import World
from crrd.kube.resources import BUDGETS, EVENTS, NODES, PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError
from tests.bench import big_cluster
from tests.support.rollouts import NOW, budget, member, recreated, run, succeeded, workload
from tests.support.run_cluster import NAMESPACE, STATEFUL_SETS, RunCluster

SIZES = (2_000, 10_000)
READ_SECONDS = 0.013
SHARE, RESTARTS = 10, 10  # Per cent of the pods at once, so the budget allows so many restarts one after the other
MOST_MS, MOST_RATIO, MOST_CPU, MOST_MIB = 50.0, 1.5, 30.0, 100.0
_KINDS = {each.plural: each for each in (PODS, REQUESTS, BUDGETS, NODES, EVENTS, STATEFUL_SETS)}
Json = dict[str, Any]


def slowest_plan(pods: int) -> float:
    """Milliseconds of CPU of the slowest of some plans, from the first pod to the last."""
    of = run(max_unavailable=Amount(SHARE, percent=True), max_per_node=2, max_per_zone=50)
    there = tuple(member(f"web-{number:05}", node=f"node-{number % 50}") for number in range(pods))
    zones = {f"node-{number}": f"zone-{number % 3}" for number in range(50)}
    slowest = 0.0
    for done in range(0, pods + 1, pods // 10):
        members = (*map(recreated, there[:done]), *there[done:])
        requests = tuple(succeeded(of, pod) for pod in there[:done])
        world = World(members, requests, workload(pods), (budget(40), budget(60, "other")), zones)
        gc.collect()  # what was allocated before this plan is not its work
        began = time.process_time()
        make_plan(world, of, NOW)
        slowest = max(slowest, time.process_time() - began)
    return slowest * 1000


class Server:
    """The HTTP of an API server in memory."""

    def __init__(self, pods: int) -> None:
        spec = dict(big_cluster.pod(0)["spec"])
        managed = big_cluster.pod(0)["metadata"]["managedFields"]
        self.cluster = RunCluster(pods, nodes=max(1, pods // 50), spec=spec, managedFields=managed)
        self.cluster.stateful_set(pods, in_order=False)
        self.calls: Counter[str] = Counter()
        self.lists: dict[tuple[str, str], tuple[Json, ...]] = {}
        """By kind and label selector: the last one, whose pages are read. Lists of several selections overlap."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one call, and count it."""
        parts = request.path.strip("/").split("/")
        of_cluster = ["", *parts[3 if parts[0] == "apis" else 2 :]]
        names = parts[parts.index("namespaces") + 1 :] if "namespaces" in parts else of_cluster
        namespace, kind, name = (*names, "", "")[:3]
        if kind == "selfsubjectaccessreviews":
            return self._reply({"status": {"allowed": True}}, 201)
        resource = _KINDS[kind]
        watches, lists = "watch" in request.query, request.method == "GET" and not name
        verb = {"GET": "watch" if watches else "list" if lists else "get", "POST": "create", "PATCH": "patch"}
        self.calls[f"{verb[request.method]} {kind}"] += 1
        where = {"label_selector": request.query.get("labelSelector", "")}
        try:
            if watches:
                return await self._watch(request, resource, where)
            if lists:
                return self._reply(await self._list(request, resource, where))
            if request.method == "GET":
                return self._reply(dict(await self.cluster.get(resource, namespace, name)))
            body = await request.json()
            if resource is EVENTS:
                return self._reply(body)
            if request.method == "POST":
                return self._reply(dict(await self.cluster.create(resource, namespace, body)), 201)
            return self._reply(dict(await self.cluster.merge_patch(resource, namespace, name, body)))
        except ApiRefusedError as error:
            status = {"kind": "Status", "status": "Failure", "code": error.status, "message": str(error)}
            return self._reply(status, error.status)

    def _date(self) -> dict[str, str]:
        return {"Date": format_datetime(self.cluster.clock.now(), usegmt=True)}

    def _reply(self, body: Json, status: int = 200) -> web.Response:
        return web.json_response(body, status=status, headers=self._date())

    async def _list(self, request: web.Request, resource: Resource, where: Json) -> Json:
        first, kept = int(request.query.get("continue") or 0), (resource.plural, where["label_selector"])
        if first:  # a later page of the same list
            await asyncio.sleep(READ_SECONDS)
            found = self.lists[kept]
        else:
            found = self.lists[kept] = (await self.cluster.list_all(resource, dict, **where)).items
        last = first + int(request.query.get("limit") or len(found))
        meta = {"resourceVersion": "1000", "continue": str(last) if last < len(found) else ""}
        return {"kind": "List", "metadata": meta, "items": found[first:last]}

    async def _watch(self, request: web.Request, resource: Resource, where: Json) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._date())
        await response.prepare(request)
        async with self.cluster.watch(resource, "1000", **where) as events:
            async for event in events:
                await response.write(json.dumps({"type": event.kind, "object": event.object}).encode() + b"\n")
        return response


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Json]:
    """Serve on loopback. Yield a kubeconfig."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = {
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": ""}}],
    }
    try:
        yield {"current-context": "a", **access}
    finally:
        await runner.cleanup()


def _peak(pid: int) -> float:
    """The most memory that a process has used so far, in MiB; 0 if it has ended. (ru_maxrss counts its parent, too.)"""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


async def whole_run(pods: int, folder: Path) -> bool:
    """Measure one run, and print its row. Return whether it is within the limits of 2 000 pods."""
    server, kubeconfig = Server(pods), folder / "kubeconfig"
    async with served(server) as access:
        await asyncio.to_thread(kubeconfig.write_text, json.dumps(access))
        words = ("recreate", "statefulset/web", "-c", "app", "--max-unavailable", f"{SHARE}%", "-n", NAMESPACE)
        began = time.monotonic()
        command = (sys.executable, "-m", "crrd", *words, "--kubeconfig", str(kubeconfig))
        before, peak = getrusage(RUSAGE_CHILDREN), 0.0
        process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            peak = _peak(process.pid) or peak
            await asyncio.sleep(0.05)
        seconds, used = time.monotonic() - began, getrusage(RUSAGE_CHILDREN)
    cluster = server.cluster
    wrongs = {
        "the run has failed": process.returncode != 0,
        "a container was restarted twice": set(cluster.restarts.values()) != {1},
        "a pod was left out": len(cluster.restarts) != pods,
        "more pods were away than the budget allows": cluster.most_away > pods * SHARE // 100,
    }
    for wrong in (each for each, is_so in wrongs.items() if is_so):  # benches run without asserts, as the image does
        raise SystemExit(f"rollout: {pods} pods: {wrong}")
    allowed = cluster.RESTART_SECONDS * RESTARTS
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    calls = ", ".join(f"{count} {call}" for call, count in sorted(server.calls.items()))
    print(
        f"rollout: {pods} pods, {pods * SHARE // 100} at once: {seconds:.0f} s (the budget allows {allowed:.0f} s), "
        f"{cpu:.0f} s of CPU, peak {peak:.0f} MiB; calls: {calls}",
        flush=True,
    )
    return seconds <= MOST_RATIO * allowed and cpu <= MOST_CPU and peak <= MOST_MIB


def main() -> int:
    plans = {pods: slowest_plan(pods) for pods in (500, *SIZES)}
    print(f"rollout: the slowest plan takes {', '.join(f'{ms:.0f} ms for {pods} pods' for pods, ms in plans.items())}")
    with tempfile.TemporaryDirectory() as folder:
        within = [asyncio.run(whole_run(pods, Path(folder))) for pods in SIZES]
    return int(plans[500] > MOST_MS or not within[0])


if __name__ == "__main__":
    sys.exit(main())
