"""A thousand requests at once, on three nodes. None is lost. It prints what each part of the cluster has used.

Runs on a cluster of `python -m tests.tools.cluster --nodes 3`. `-rP` shows the tables of docs/scale.md.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.errors import ApiUnavailableError, ConflictError
from tests.support.cluster import PATIENCE, Cluster, Json, container, pod_ready, request_for, restart_count, states
from tests.support.real_nodes import kubectl, missing
from tests.tools.cluster.cluster import RealCluster as Machines
from tests.tools.cluster.parts import used

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
PODS_AT_ALL, NAMES, REQUESTS_AT_ONCE = 300, ("a", "b", "c", "d"), 1000
"""The last containers of the pods have no request, and must not be restarted."""
PODS_AT_ONCE, CREATORS = 30, 32
METRICS_PORT = 9420
"""Of the node daemon, in manifests/node/daemonset.yaml."""
SECONDS = 1800.0
SCRIPT = "trap 'exit 0' TERM; sleep 1000000 & wait"


async def create_pods(cluster: Cluster, nodes: Machines) -> list[Json]:
    """Create the pods, the same number on each node and some at a time, and return them when all are ready."""

    async def create(number: int) -> None:
        node = nodes.plan.names[number % len(nodes.nodes)]
        await cluster.create_pod(f"web-{number}", [container(name, SCRIPT) for name in NAMES], nodeName=node)

    async with asyncio.timeout(SECONDS):
        for first in range(0, PODS_AT_ALL, PODS_AT_ONCE):
            await asyncio.gather(*(create(number) for number in range(first, first + PODS_AT_ONCE)))
            while not all(map(pod_ready, await listed(cluster))):
                await asyncio.sleep(1)
    return await listed(cluster)


async def listed(cluster: Cluster, resource: Resource = PODS) -> list[Json]:
    """List the objects of the namespace; again without an answer, as all parts share these cores."""
    while True:
        try:
            return [
                dict(each)
                for each in (await cluster.client.list_all(resource, dict, namespace=cluster.namespace)).items
            ]
        except ApiUnavailableError:
            await asyncio.sleep(1)


async def create_requests(cluster: Cluster, wanted: Sequence[tuple[Json, str]]) -> int:
    """Create a request for each of these containers, some at a time, and again without an answer, as clients do.

    Return how many calls had no answer.
    """
    free, unanswered = asyncio.Semaphore(CREATORS), 0

    async def create(pod: Json, name: str) -> None:
        nonlocal unanswered
        async with free:
            while True:
                try:
                    await cluster.create_request(request_for(pod, name))
                except ConflictError:  # an earlier call has created it
                    return
                except ApiUnavailableError:
                    unanswered += 1
                    await asyncio.sleep(1)
                else:
                    return

    await asyncio.gather(*(create(pod, name) for pod, name in wanted))
    return unanswered


# What each part needs


def costs(
    before: Mapping[str, Sequence[tuple[float, float]]], after: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """The table of CPU and memory."""
    lines = ["| | processes | CPU, s | of a request, ms | memory of the largest, MiB |", "|---|---|---|---|---|"]
    for part, found in sorted(after.items()):
        seconds = sum(cpu for cpu, _ in found) - sum(cpu for cpu, _ in before.get(part, ()))
        largest, each = max(memory for _, memory in found), seconds / REQUESTS_AT_ONCE * 1000
        lines.append(f"| {part} | {len(found)} | {seconds:.1f} | {each:.0f} | {largest:.0f} |")
    return "\n".join(lines)


def calls(log: Path, since: int) -> str:
    """The table of calls to the API server, from its audit log: those of crrd and kubelet, each for a request."""
    counts: Counter[tuple[str, str]] = Counter()
    with log.open(encoding="utf-8") as file:
        file.seek(since)
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:  # the last line is being written
                continue
            user, of = found["user"]["username"], found.get("objectRef", {})
            short = {"system:serviceaccount:crrd-node:crrd-node": "node daemon"}.get(user)
            short = short or ("manager" if user.endswith(":crrd-manager") else "kubelet" if ":node:" in user else None)
            if short and of.get("resource") != "leases":
                what = "/".join(filter(None, (of.get("resource"), of.get("subresource"))))
                counts[short, f"{found['verb']} {what}"] += 1
    often = [(who, what, count) for (who, what), count in counts.most_common() if count >= REQUESTS_AT_ONCE / 20]
    lines = ["| who | call | for a request |", "|---|---|---|"]
    lines += [f"| {who} | {what} | {count / REQUESTS_AT_ONCE:.2f} |" for who, what, count in sorted(often)]
    return "\n".join(lines)


async def stages(nodes: Machines) -> tuple[str, float]:
    """The table of where requests spend their time, from the node daemons, and the number of events they dropped."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    dropped = 0.0
    names = kubectl(nodes, "-n", "crrd-node", "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "name")
    for pod in names.split():
        path = f"/api/v1/namespaces/crrd-node/pods/{pod.partition('/')[2]}:{METRICS_PORT}/proxy/metrics"
        page = await asyncio.to_thread(kubectl, nodes, "get", "--raw", path)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if family.name == "crrd_stage_duration_seconds" and sample.name.endswith(("_sum", "_count")):
                    sums[sample.labels["stage"], sample.name.rpartition("_")[2]] += sample.value
                if sample.name == "crrd_events_dropped_total":
                    dropped += sample.value
    lines = ["| stage | mean, s |", "|---|---|"]
    names_of = sorted({stage for stage, _ in sums if sums[stage, "count"]})
    lines += [f"| {stage} | {sums[stage, 'sum'] / sums[stage, 'count']:.1f} |" for stage in names_of]
    return "\n".join(lines), dropped


def seconds_of(request: Json) -> float:
    """From the creation to the end."""
    times = (request["metadata"]["creationTimestamp"], request["status"]["completionTime"])
    began, ended = map(datetime.fromisoformat, times)
    return (ended - began).total_seconds()


async def test_a_thousand_requests_at_once(cluster: Cluster, nodes: Machines) -> None:
    pods = sorted(await create_pods(cluster, nodes), key=lambda pod: str(pod["metadata"]["name"]))
    wanted = [(pod, name) for name in NAMES for pod in pods][:REQUESTS_AT_ONCE]
    log = nodes.control_plane.folder / "audit.log"
    await asyncio.sleep(20)  # else it would measure the start of the pods, too
    before, since, began = used(nodes), log.stat().st_size, time.monotonic()
    unanswered = await create_requests(cluster, wanted)
    created = time.monotonic() - began
    async with asyncio.timeout(SECONDS):
        while open_ := [
            each for each in await listed(cluster, REQUESTS) if (each.get("status") or {}).get("phase") != "Completed"
        ]:
            print(f"{time.monotonic() - began:.0f} s: {len(open_)} requests are open")
            await asyncio.sleep(5)
    took = time.monotonic() - began
    async with asyncio.timeout(PATIENCE):
        while not all(map(pod_ready, await listed(cluster))):
            await asyncio.sleep(1)
    after = used(nodes)
    ended = await listed(cluster, REQUESTS)
    times = sorted(map(seconds_of, ended))
    table, dropped = await stages(nodes)
    print(f"created within {created:.0f} s ({unanswered} calls again), all ended after {took:.0f} s")
    print(f"events dropped: {dropped:.0f}")
    print(f"a request: median {times[len(times) // 2]:.0f} s, p99 {times[len(times) * 99 // 100]:.0f} s")
    print(costs(before, after), calls(log, since), table, sep="\n\n")
    assert Counter(tuple(states(each).values()) for each in ended) == {("Succeeded",): REQUESTS_AT_ONCE}
    now = {pod["metadata"]["name"]: pod for pod in await listed(cluster)}
    assert {name: pod["metadata"]["uid"] for name, pod in now.items()} == {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods
    }
    asked = {(pod["metadata"]["name"], name) for pod, name in wanted}
    counts = {(each, name): restart_count(now[each], name) for each in now for name in NAMES}
    assert counts == {key: int(key in asked) for key in counts}
