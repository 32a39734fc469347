"""`crrd forecast` against the kubelets themselves: each upgrade and downgrade is forecast, done and compared.

Needs a cluster of `python -m tests.tools.cluster` (CRRD_TEST_CLUSTER) and a folder with a folder for each kubelet
(CRRD_TEST_KUBELETS: 1.30.1/kubelet, 1.36.2/kubelet, ...). It replaces the kubelet of the cluster's first node, on the
same containers. `-rP` shows the table of docs/forecast.md.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from cri_stubs import api_pb2 as pb
from crrd.kube.resources import NODES, PODS
from tests.support.cluster import PATIENCE, WAITING_SCRIPT, Cluster, Json, container, pod_ready
from tests.support.command import crrd
from tests.support.real_nodes import VARIABLE, machines
from tests.tools.cluster.node import Node
from tests.tools.cluster.plan import version_of

KUBELETS = "CRRD_TEST_KUBELETS"
SETTLED_SECONDS = 15.0
"""Once a pod is ready that was created after kubelet's start, kubelet compares all hashes within this time."""
RESTART_CONTAINER = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
PROBE = {"exec": {"command": ["/bin/sh", "-c", "true"]}, "periodSeconds": 5}
SECURITY = {"runAsUser": 1000, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
TABLE = "| kubelet | forecast | restarted | kept |\n|---|---|---|---|"
RESIZE_MINOR = 33
"""The first version that resizes containers that an older one has started."""
RESIZED = ("resources", "resize")
"""These pods are not there when it begins to. A resize needs cgroups for pods, which clusters of the tool do not have:
kubelet would end with a panic."""
Names = Mapping[tuple[str, str], str]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (os.environ.get(VARIABLE) and os.environ.get(KUBELETS)), reason=f"needs {VARIABLE} and {KUBELETS}"
    ),
]


def kubelets() -> list[Path]:
    """The kubelets, the oldest first."""
    found = Path(os.environ[KUBELETS]).glob("*/kubelet")
    return sorted(found, key=version_of)


def version(kubelet: Path) -> str:
    return ".".join(map(str, version_of(kubelet)))


def kinds() -> dict[str, tuple[Sequence[Json], Json]]:
    """The pods by name: their containers, and what else they have."""
    proxy = container("proxy", restartPolicy="Always")
    return {
        "plain": ([container("app"), container("side", env=[{"name": "A", "value": "b"}])], {}),
        "security": ([container("app", securityContext=SECURITY)], {}),
        "probes": ([container("app", livenessProbe=PROBE, readinessProbe=PROBE, startupProbe=PROBE)], {}),
        "resources": ([container("app", resources=SMALL)], {}),
        "resize": ([container("app", resources=SMALL, resizePolicy=RESTART_CONTAINER)], {}),
        "sidecar": ([container("app")], {"init_containers": [container("setup", "true"), proxy]}),
        "never": ([container("app")], {"restartPolicy": "Never"}),
        "onfailure": ([container("app")], {"restartPolicy": "OnFailure"}),
    }


async def create_pods(cluster: Cluster, names: Collection[str]) -> None:
    """Create these pods, and wait until they run."""
    for name in names:
        containers, options = kinds()[name]
        await cluster.create_pod(name, containers, **options)
    for name in names:
        await cluster.wait_pod(name, pod_ready, "ready")


async def create_static_pod(cluster: Cluster, node: Node) -> None:
    """Give kubelet the manifest of a pod, and wait until it runs."""
    static = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "static", "namespace": cluster.namespace},
        "spec": {
            "hostNetwork": True,
            "containers": [{"name": "app", "image": cluster.image, "command": ["/bin/sh", "-c", WAITING_SCRIPT]}],
        },
    }
    (node.static_pods / "static.yaml").write_text(yaml.safe_dump(static))
    await cluster.wait_pod(f"static-{node.name}", pod_ready, "ready")


async def running(cluster: Cluster) -> Names:
    """The IDs of the running containers, by the names of pod and container."""
    labels = {"io.kubernetes.pod.namespace": cluster.namespace}
    state = pb.ContainerStateValue(state=pb.CONTAINER_RUNNING)
    request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels, state=state))
    listed = (await cluster.cri.ListContainers(request, timeout=PATIENCE)).containers
    return {
        (each.labels["io.kubernetes.pod.name"], each.labels["io.kubernetes.container.name"]): each.id for each in listed
    }


async def forecast(cluster: Cluster, kubelet: Path) -> Names:
    """What the forecast says for each container."""
    where = ("--node-name", cluster.node_name, "--kubeconfig", str(cluster.kubeconfig))
    words = ("--to", version(kubelet), "-o", "json", "--cri-endpoint", cluster.cri_endpoint)
    _, out, _ = await crrd("forecast", *words, *where)
    rows = [row for row in json.loads(out)["containers"] if row["namespace"] == cluster.namespace]
    return {(row["pod"], row["container"]): row["outcome"] for row in rows}


async def replace(cluster: Cluster, node: Node, kubelet: Path, probe: str) -> None:
    """End kubelet, start this one, and wait until it has looked at all pods."""
    await asyncio.to_thread(node.kill, "kubelet", signal.SIGTERM)
    await asyncio.to_thread(node.start_kubelet, kubelet)
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await cluster.client.get(NODES, "", node.name)
            if found["status"]["nodeInfo"]["kubeletVersion"] == f"v{version(kubelet)}":
                break
            await asyncio.sleep(0.5)
    await cluster.run_pod(probe, [container("app")])
    await asyncio.sleep(SETTLED_SECONDS)
    await cluster.delete_pod(probe)
    await asyncio.to_thread(node.need, "kubelet")


@asynccontextmanager
async def restored(cluster: Cluster, node: Node) -> AsyncIterator[None]:
    """Give the node its own kubelet again, and remove the static pod."""
    try:
        yield
    finally:
        (node.static_pods / "static.yaml").unlink(missing_ok=True)
        await asyncio.to_thread(node.kill, "kubelet")
        await asyncio.to_thread(node.start_kubelet)
        await cluster.wait_gone(PODS, f"static-{node.name}")


async def test_each_upgrade_and_downgrade_does_what_the_forecast_says(cluster: Cluster) -> None:
    found = machines()
    assert found is not None
    node = found.node(cluster.node_name)
    versions = kubelets()
    assert len(versions) > 1, f"{KUBELETS} has no two kubelets"
    steps, wrong = [TABLE], []
    async with restored(cluster, node):
        await replace(cluster, node, versions[0], "probe")
        await create_pods(cluster, kinds())
        await create_static_pod(cluster, node)
        path = [*versions, *reversed(versions[:-1])]
        for number, (before, after) in enumerate(pairwise(path)):
            step = f"{version(before)} to {version(after)}"
            begins = version_of(before)[1] < RESIZE_MINOR <= version_of(after)[1]
            for pod in RESIZED if begins else ():
                await cluster.delete_pod(pod)
            expected, ids = await forecast(cluster, after), await running(cluster)
            assert expected.keys() == ids.keys()
            await replace(cluster, node, after, f"probe-{number}")
            async with asyncio.timeout(PATIENCE):
                while (now := await running(cluster)).keys() != ids.keys():
                    await asyncio.sleep(0.5)
            seen = {name: "keep" if now[name] == old else "restart" for name, old in ids.items()}
            for name, outcome in expected.items():
                if outcome not in (seen[name], "unknown"):
                    wrong.append(f"{step}: {'/'.join(name)}: forecast: {outcome}, seen: {seen[name]}")
            forecasts, outcomes = Counter(expected.values()), Counter(seen.values())
            said = ", ".join(f"{forecasts[each]} {each}" for each in ("restart", "keep", "unknown"))
            steps.append(f"| {step} | {said} | {outcomes['restart']} | {outcomes['keep']} |")
            await create_pods(cluster, RESIZED if begins else ())
    print("\n".join(steps))
    assert not wrong, "\n".join(wrong)
