"""`kubectl recreate --image` on a cluster with Kubernetes' own controllers: the workload adopts its pods."""

import asyncio
from pathlib import Path

import pytest

from crrd.core.rollout.pull import LABEL_PULL
from crrd.kube.resources import PODS
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import PATIENCE, Cluster, Json, foreign
from tests.support.recreates import daemons, kept, pods_of, recreate, requests_of, wait_ready, workload

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(foreign() is None, reason="needs the controllers of a cluster"),
]


async def rolled_out(cluster: Cluster, kind: str, name: str) -> Json:
    """Wait until the controller has updated all pods, as `kubectl rollout status` does. Return the workload."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = dict(await cluster.client.get(RESOURCES[kind], cluster.namespace, name))
            status, generation = found.get("status", {}), found["metadata"]["generation"]
            counts = {status.get(key) for key in ("replicas", "updatedReplicas", "readyReplicas")}
            if status.get("observedGeneration") == generation and counts == {found["spec"]["replicas"]}:
                return found
            await asyncio.sleep(0.1)


def image_of(template: Json) -> str:
    """Return the image of the first container."""
    return str(template["spec"]["containers"][0]["image"])


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_a_workload_adopts_its_pods(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path):
        before, target = await workload(cluster, kind, "web", 3), f"{kind.lower()}/web"
        words = (target, "-c", "app", "--template", "adopt", "--allow-mutable-tag", "--max-unavailable", "2")
        missing = await recreate(cluster, *words, "--image", "localhost/does-not-exist:1")
        assert (missing.code, "no container was stopped there" in missing.out) == (1, True), missing
        kept(before, await pods_of(cluster, "web"))
        ended = await recreate(cluster, *words, "--image", image)
        assert ended.code == 0, ended
        after = await pods_of(cluster, "web")
        kept(before, after, "app")
        assert {image_of(pod) for pod in after} == {image}
        found = await rolled_out(cluster, kind, "web")
        assert image_of(found["spec"]["template"]) == image
        name = (await requests_of(cluster))[0]["metadata"]["labels"]["crr.apps.kruise.io/run"]
        undone = await recreate(cluster, "undo", name, "--max-unavailable", "3")
        assert undone.code == 0, undone
        assert [pod["metadata"]["uid"] for pod in await pods_of(cluster, "web")] == [
            pod["metadata"]["uid"] for pod in before
        ]
        assert image_of((await rolled_out(cluster, kind, "web"))["spec"]["template"]) == cluster.image
        where = {"namespace": cluster.namespace, "label_selector": LABEL_PULL}
        assert not (await cluster.client.list_all(PODS, dict, **where)).items
        change = {"spec": {"template": {"metadata": {"annotations": {"later": "rollout"}}}}}
        await cluster.client.merge_patch(RESOURCES[kind], cluster.namespace, "web", change)
        await rolled_out(cluster, kind, "web")
        later = await wait_ready(cluster, "web", 3)
        assert not {pod["metadata"]["uid"] for pod in later} & {pod["metadata"]["uid"] for pod in before}
