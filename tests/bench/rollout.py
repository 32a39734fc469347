"""A run over a Deployment of 500 pods in a played cluster: `python -m tests.bench.rollout`.

Measures a round of the planner, the memory of `crrd recreate`, and what it asks of the API server. Fails beyond 50 ms a
round, 150 MiB, or one list and one watch of a kind; each page of a list counts.
"""

import asyncio
import math
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.run import Amount
from crrd.core.rollout.state import World
from crrd.kube.resources import PODS as POD_RESOURCE
from crrd_localnode.api.admission import User
from tests.support.faulty_api import Call
from tests.support.played_cluster import played
from tests.support.rollouts import NOW, budget, member, recreated, run, succeeded, workload

PODS = 500
MOST_MS, MOST_MIB = 50.0, 150.0
PAGES = {("list", "pods"): math.ceil(PODS / POD_RESOURCE.page)}
"""Of one list, where they are several."""


def slowest_round() -> float:
    """Milliseconds of CPU of the slowest of some rounds, from the first pod to the last."""
    of = run(max_unavailable=Amount(10, percent=True), max_per_node=2, max_per_zone=50)
    pods = tuple(member(f"web-{number:03}", node=f"node-{number % 50}") for number in range(PODS))
    zones = {f"node-{number}": f"zone-{number % 3}" for number in range(50)}
    slowest = 0.0
    for done in range(0, PODS + 1, 50):
        members = (*map(recreated, pods[:done]), *pods[done:])
        requests = tuple(succeeded(of, pod) for pod in pods[:done])
        world = World(members, requests, workload(PODS), (budget(40), budget(60, "other")), zones)
        began = time.process_time()
        make_plan(world, of, NOW)
        slowest = max(slowest, time.process_time() - began)
    return slowest * 1000


async def whole_run(folder: Path) -> tuple[float, Counter[tuple[str, str]], int]:
    """Seconds of a run, how often it lists and watches what, and its exit code."""
    calls: Counter[tuple[str, str]] = Counter()

    def note(call: Call) -> None:
        if call.user == "recreate" and call.verb in ("list", "watch") and call.namespace:
            calls[call.verb, call.resource] += 1

    async with played(folder, tokens={"r": User("recreate")}, log=note, history=100_000) as cluster:
        cluster.api.kubeconfig(cluster.kubeconfig, token="r")
        await cluster.workload("Deployment", "web", PODS)
        command = ("recreate", "deployment/web", "-c", "app", "--max-unavailable", "10%")
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crrd", *command, "--kubeconfig", str(cluster.kubeconfig)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        code = await process.wait()
        assert len(cluster.stops) == len(set(cluster.stops)), "a container was restarted twice"
        return time.monotonic() - began, calls, code


def main() -> int:
    milliseconds = slowest_round()
    print(f"rollout: {PODS} pods, the slowest round of the planner takes {milliseconds:.1f} ms")
    with tempfile.TemporaryDirectory() as folder:
        seconds, calls, code = asyncio.run(whole_run(Path(folder)))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    asked = ", ".join(f"{count} {verb} {resource_}" for (verb, resource_), count in sorted(calls.items()))
    print(f"rollout: {PODS} pods recreated in {seconds:.0f} s, peak {peak:.0f} MiB; calls: {asked}")
    asks_more = any(count > PAGES.get(what, 1) for what, count in calls.items())
    return int(milliseconds > MOST_MS or peak > MOST_MIB or code != 0 or asks_more)


if __name__ == "__main__":
    sys.exit(main())
