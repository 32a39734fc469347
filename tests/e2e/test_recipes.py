"""`docs/recipes.md` and other pages: their commands do what they say, on a cluster of `tests.tools.cluster`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import crrd
from tests.support.pages import run
from tests.support.real_nodes import kubectl, missing, namespace
from tests.tools.cluster.cluster import RealCluster as Machines

Json = dict[str, Any]
NAMESPACE, GPU = "recipes", "example.com/gpu"
IMAGE = "busybox:1.36"
UNSCHEDULABLE_SECONDS = 60
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing(1)), reason=missing(1)),
]


@pytest.fixture
def cluster(nodes: Machines) -> Iterator[Machines]:
    """The cluster with crrd, the image of the page on its nodes, and a namespace that ends with the test."""
    with namespace(nodes, NAMESPACE):
        yield nodes


def pods(cluster: Machines, app: str) -> list[Json]:
    listed = kubectl(cluster, "-n", NAMESPACE, "get", "pods", "-l", f"app={app}", "-o", "json")
    found: list[Json] = json.loads(listed)["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def counts(pod: Json) -> dict[str, int]:
    """The restarts of each container."""
    statuses = [*pod["status"]["containerStatuses"], *pod["status"].get("initContainerStatuses", ())]
    return {each["name"]: each["restartCount"] for each in statuses}


def apply(cluster: Machines, folder: Path, *objects: Json) -> None:
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    kubectl(cluster, "-n", NAMESPACE, "apply", "-f", str(file))


def engines(cluster: Machines) -> list[Json]:
    return [each for each in pods(cluster, "engine") if each["status"]["phase"] == "Running"]


def weights(cluster: Machines) -> list[str]:
    words = ("-n", NAMESPACE, "exec", "-c", "server")
    names = [each["metadata"]["name"] for each in engines(cluster)]
    return [kubectl(cluster, *words, name, "--", "cat", "/models/weights") for name in names]


async def test_full_nodes(cluster: Machines, tmp_path: Path) -> None:
    node = cluster.nodes[0].name
    counted = json.dumps({"status": {"capacity": {GPU: "2"}}})
    kubectl(cluster, "patch", "node", node, "--subresource=status", "--type=merge", "-p", counted)
    heading = "Full nodes: restart a model server without room for a new pod"
    out = run("recipes.md", heading, tmp_path, cluster.plan.kubeconfig, NAMESPACE)
    assert "done: 2 of 2 pods recreated" in out
    before, loaded = engines(cluster), weights(cluster)
    assert [counts(each) for each in before] == [{"server": 1, "weights": 0}] * 2
    assert len(set(loaded)) == 2
    kubectl(cluster, "-n", NAMESPACE, "rollout", "restart", "deployment/engine")
    async with asyncio.timeout(UNSCHEDULABLE_SECONDS):
        while f"Insufficient {GPU}" not in str([each["status"].get("conditions") for each in pods(cluster, "engine")]):
            await asyncio.sleep(0.5)
    kubectl(cluster, "-n", NAMESPACE, "rollout", "undo", "deployment/engine")
    kubectl(cluster, "-n", NAMESPACE, "rollout", "status", "deployment/engine", "--timeout=60s")
    kubeconfig = ("--kubeconfig", str(cluster.plan.kubeconfig))
    ended = await crrd("recreate", "deployment/engine", "-n", NAMESPACE, "-c", "server", *kubeconfig)
    assert ended.code == 0, ended.err
    after = engines(cluster)
    assert [counts(each) for each in after] == [{"server": 2, "weights": 0}] * 2
    assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in before]
    assert weights(cluster) == loaded


def meshed(name: str, *, native: bool) -> Json:
    """A Deployment whose pods have Istio's label and proxy, as a native sidecar or as a container."""
    command = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]
    app, proxy = ({"name": each, "image": IMAGE, "command": command} for each in ("app", "istio-proxy"))
    labels = {"app": name, "security.istio.io/tlsMode": "istio"}
    spec: Json = {"terminationGracePeriodSeconds": 5, "containers": [app, *([] if native else [proxy])]}
    spec |= {"initContainers": [{**proxy, "restartPolicy": "Always"}]} if native else {}
    template = {"metadata": {"labels": labels}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": 2, "selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_the_proxies_of_a_mesh(cluster: Machines, tmp_path: Path) -> None:
    apply(cluster, tmp_path, meshed("one", native=False), meshed("two", native=True))
    for each in ("one", "two"):
        kubectl(cluster, "-n", NAMESPACE, "rollout", "status", f"deployment/{each}", "--timeout=60s")
    heading = "The mesh's proxy in all workloads of a namespace"
    out = run("recipes.md", heading, tmp_path, cluster.plan.kubeconfig, NAMESPACE)
    assert "done: 4 of 4 pods recreated" in out
    found = [*pods(cluster, "one"), *pods(cluster, "two")]
    assert [counts(each) for each in found] == [{"app": 0, "istio-proxy": 1}] * 4


def test_a_sandbox(cluster: Machines, tmp_path: Path) -> None:
    out = run(
        "recipes.md",
        "An agent's sandbox that is set back by a restart",
        tmp_path,
        cluster.plan.kubeconfig,
        NAMESPACE,
    )
    assert out.endswith("result\n"), "and no line of ps after it"
    assert [counts(each) for each in pods(cluster, "sandbox")] == [{"agent": 1}]


def test_a_certificate(cluster: Machines, tmp_path: Path) -> None:
    heading = "A certificate that a program reads only at its start"
    out = run("recipes.md", heading, tmp_path, cluster.plan.kubeconfig, NAMESPACE)
    assert out.endswith("second\nsecond\n")
    assert [counts(each) for each in pods(cluster, "proxy")] == [{"proxy": 1, "app": 0}] * 2


def test_a_cronjob_that_patches(cluster: Machines, tmp_path: Path) -> None:
    out = run("from-cronjobs.md", "A CronJob, and no daemon", tmp_path, cluster.plan.kubeconfig, NAMESPACE)
    assert "restarts by patches: as --via says" in out
    assert "done: 3 of 3 pods recreated" in out
    assert [counts(each) for each in pods(cluster, "web")] == [{"app": 1, "side": 0}] * 3
