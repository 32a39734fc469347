"""What metrics cost the node daemon: their share of its CPU in the 30-pod run, series and memory after 10 000 requests.

The daemon is crrd itself, with every call into its metrics timed (see `timed_daemon`). It has served a request before.
Its page is read once, after the last request, and that is part of the cost.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from crrd.kube.resources import REQUESTS
from tests.bench.recreate import (
    AT_ONCE,
    SETTLED_SECONDS,
    bench_cluster,
    cpu_seconds,
    memory_row,
    metrics_page,
    remove_pods,
    send_requests,
    start_pods,
)
from tests.bench.timed_daemon import OUTPUT
from tests.support.cluster import Cluster, Json, completed, crr_for, foreign
from tests.support.containerd import missing
from tests.support.daemons import NodeDaemon

MANY = 10_000
CREATED_AT_ONCE = 100
SCRAPE_SECONDS = 15
"""A usual scrape interval."""


class TimedDaemon(NodeDaemon):
    """The daemon with its metrics timed."""

    PROGRAM = (sys.executable, "-m", "tests.bench.timed_daemon")


def _series(page: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}


def _requests_total(page: str) -> Counter[str]:
    rows = (line.rpartition(" ") for line in page.splitlines() if line.startswith("crrd_requests_total{"))
    return Counter({labels: int(float(value)) for labels, _, value in rows})


async def _many(cluster: Cluster, pods: list[Json]) -> None:
    """Requests that end at once, for containers that are not there; they go as they end."""
    numbers = iter(range(MANY))

    async def worker() -> None:
        for number in numbers:
            body = crr_for(pods[number % len(pods)], ["app"], name=f"many-{number}")
            body["spec"]["containers"] = [{"name": f"none-{number}"}]
            await cluster.create_request(body)
            async for found in cluster.versions(REQUESTS, body["metadata"]["name"]):
                if completed(found):
                    break
            await cluster.delete_request(body["metadata"]["name"])
            if number % 1000 == 999:
                print(f"  {number + 1} requests sent", flush=True)

    await asyncio.gather(*(worker() for _ in range(CREATED_AT_ONCE)))


async def run() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="crrd-bench-") as name:
        folder = Path(name)
        output = folder / "cost.json"
        async with bench_cluster(folder) as cluster:
            os.environ[OUTPUT] = str(output)  # the daemon inherits it
            daemon = TimedDaemon(cluster, folder / "node.log", "--log-level", "info")
            print(f"metrics: {AT_ONCE} pods, one request each, the page read once after them", flush=True)
            first, *pods = await start_pods(cluster, "cost", AT_ONCE + 1)
            async with daemon:
                await send_requests(cluster, [first])
                await metrics_page(daemon)
                os.kill(daemon.pid, signal.SIGUSR2)
                before = cpu_seconds(daemon.pid)
                began = time.monotonic()
                await send_requests(cluster, pods)
                seconds = time.monotonic() - began
                await metrics_page(daemon)
                cpu = cpu_seconds(daemon.pid) - before
            _tell_cost(json.loads(output.read_text(encoding="utf-8")), cpu, seconds)
            async with daemon:
                await _tell_series(cluster, daemon, pods)
            await remove_pods(cluster, pods)


def _tell_cost(spent: dict[str, list[float]], cpu: float, seconds: float) -> None:
    page, _ = spent.pop("page")
    counting = sum(own for own, _ in spent.values())
    count = sum(calls for _, calls in spent.values())
    scraped = page * seconds / SCRAPE_SECONDS
    print("  CPU time inside every call into the metrics, as part of the process', both of the same run:")
    print(f"  the daemon's CPU in the run of {seconds:.1f} s         {cpu * 1000:.0f} ms")
    print(f"  counting, on the way to a stop               {counting * 1000:.2f} ms, {counting / cpu:.1%}", end="")
    print(f" ({count:.0f} calls)")
    print(f"  writing the page                             {page * 1000:.2f} ms each time; ", end="")
    print(f"read every {SCRAPE_SECONDS} s that is {scraped / cpu:.1%}")
    print(f"  in all                                       {(counting + scraped) / cpu:.1%}", flush=True)


async def _tell_series(cluster: Cluster, daemon: NodeDaemon, pods: list[Json]) -> None:
    await send_requests(cluster, pods[:1])
    body = crr_for(pods[0], ["app"], name="first")
    body["spec"]["containers"] = [{"name": "none"}]
    await cluster.create_request(body)
    await cluster.wait_completed("first")
    before = await metrics_page(daemon)
    await _many(cluster, pods)
    after = await metrics_page(daemon)
    ended = sum((_requests_total(after) - _requests_total(before)).values())
    known, now = _series(before), _series(after)
    print(f"  series before and after {ended} more requests  {len(known)} and {len(now)}")
    for new in sorted(now - known):
        print(f"    new: {new}")
    await asyncio.sleep(SETTLED_SECONDS)
    memory_row("after them", daemon.pid)


def main() -> None:
    """Run the bench where it can be run."""
    if foreign() is None and (reason := missing()):
        print(f"metrics: skipped: {reason}")
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(run())


if __name__ == "__main__":
    main()
