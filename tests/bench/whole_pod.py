"""`make bench CLUSTER=pods`: a whole pod restarted in place, beside a deleted pod and kubelet's own rule, in turn.

For a cluster for tests only, without crrd: its node daemon runs here, as a process. Needs the variables of the
end-to-end tests on a cluster (docs/real-clusters.md), and Kubernetes 1.36 for RestartAllContainers.

Absolute times differ between machines: compare the columns.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from crrd.kube.resources import PODS, REQUESTS
from crrd_localnode.workload import RESOURCES
from tests.bench.compare.measure import writes
from tests.support.cluster import Cluster, Json, container_id, foreign, on_foreign_cluster, pod_ready, whole_pod_request
from tests.support.daemons import NodeDaemon
from tests.support.recreates import pod_spec, pods_of, workload

ONE, MANY, ROUNDS = 1, 30, 5
WAYS = IN_PLACE, DELETED, RULE = "in place", "pod deleted", "RestartAllContainers"
CODE = 42  # With which a container ends whose rule restarts all containers
SCRIPT = f"trap 'exit 0' TERM; trap 'exit {CODE}' USR1; while :; do sleep 0.05; done"
WAITS = 120.0


def spec(cluster: Cluster, way: str) -> Json:
    """A pod with an init container, a sidecar and a container, in a network of its own."""
    plain = pod_spec(cluster, "app", "init", "side")
    app, init, side = plain["containers"]
    app["command"] = ["/bin/sh", "-c", SCRIPT]
    if way == RULE:
        codes = {"operator": "In", "values": [CODE]}
        app |= {"restartPolicy": "Always", "restartPolicyRules": [{"action": RULE, "exitCodes": codes}]}
    inits = [{**init, "command": ["/bin/sh", "-c", "true"]}, {**side, "restartPolicy": "Always"}]
    return {**plain, "hostNetwork": False, "containers": [app], "initContainers": inits}


async def restarted(cluster: Cluster, app: str, before: dict[str, str]) -> None:
    """Wait until as many pods are ready, all with another instance."""
    async with asyncio.timeout(WAITS):
        while True:
            found = [each for each in await pods_of(cluster, app) if not each["metadata"].get("deletionTimestamp")]
            ready = [each for each in found if pod_ready(each)]
            if len(ready) == len(before) and not {container_id(each, "app") for each in ready} & set(before.values()):
                return
            await asyncio.sleep(0.02)


async def restart(cluster: Cluster, way: str, pod: Json) -> None:
    """Begin the restart of a pod."""
    match way:
        case "in place":
            body = whole_pod_request(pod, pod["metadata"]["name"])
            await cluster.client.create(REQUESTS, cluster.namespace, body)
        case "pod deleted":
            await cluster.client.delete(PODS, cluster.namespace, pod["metadata"]["name"])
        case _:
            await cluster.execute(container_id(pod, "app"), "kill", "-USR1", "1")


async def measure(cluster: Cluster, way: str, count: int, number: int) -> tuple[float, float]:
    """Return the seconds until all pods of a new Deployment are ready again, and the writes for each."""
    app = f"{way.lower().replace(' ', '-')}-{count}-{number}"
    pods = await workload(cluster, "Deployment", app, count, spec=spec(cluster, way))
    await asyncio.sleep(4)  # kubelet and API server come to rest
    before = {each["metadata"]["name"]: container_id(each, "app") for each in pods}
    asked = await asyncio.to_thread(writes, cluster.kubeconfig)
    began = time.monotonic()
    await asyncio.gather(*(restart(cluster, way, each) for each in pods))
    await restarted(cluster, app, before)
    took = time.monotonic() - began
    await asyncio.sleep(3)  # what follows is part of the cost
    asked = await asyncio.to_thread(writes, cluster.kubeconfig) - asked
    await cluster.client.delete(RESOURCES["Deployment"], cluster.namespace, app)
    async with asyncio.timeout(WAITS):
        while await pods_of(cluster, app):
            await asyncio.sleep(0.5)
    return took, asked / count


async def main() -> None:
    """Measure, and print the table."""
    variables = foreign()
    if variables is None:
        sys.exit("set the variables of docs/real-clusters.md")
    rows: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with (
            on_foreign_cluster(variables, Path(folder)) as cluster,
            NodeDaemon(cluster, Path(folder) / "node.log"),
        ):
            for number, count, way in product(range(ROUNDS), (ONE, MANY), WAYS):
                took, asked = await measure(cluster, way, count, number)
                print(f"{way}, {count}: {took:.2f} s, {asked:.1f} writes", file=sys.stderr)
                for row, value in (("all ready again, s", took), ("writes to the API server a pod", asked)):
                    rows.setdefault(f"{count} at once, {row}", {}).setdefault(way, []).append(value)
    print(f"| | {' | '.join(WAYS)} |\n|---|---|---|---|")
    for name, columns in rows.items():
        cells = (f"{statistics.median(each):.3g} ({min(each):.3g} to {max(each):.3g})" for each in columns.values())
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    asyncio.run(main())
