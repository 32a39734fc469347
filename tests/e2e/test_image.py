"""`kubectl recreate --image` on a cluster with Kubernetes' own controllers: the workload adopts its pods."""

import asyncio
from pathlib import Path

import pytest

from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.resources import PODS
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import Cluster, foreign
from tests.support.recreates import (
    HELD,
    daemons,
    hold,
    image_of,
    kept,
    pods_of,
    recreate,
    release,
    requests_of,
    rolled_out,
    wait_ready,
    workload,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(foreign() is None, reason="needs the controllers of a cluster"),
]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
async def test_a_workload_adopts_its_pods(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    image, count = cluster.need_second_image(), 1 if kind == "DaemonSet" else 3
    async with daemons(cluster, tmp_path):
        before, target = await workload(cluster, kind, "web", count), f"{kind.lower()}/web"
        budget = ("--max-unavailable", "2", "--min-ready", "0")
        words = (target, "-c", "app", "--template", "adopt", "--allow-mutable-tag", *budget)
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
        later = await wait_ready(cluster, "web", count)
        assert not {pod["metadata"]["uid"] for pod in later} & {pod["metadata"]["uid"] for pod in before}


@pytest.mark.parametrize("kind", sorted(HELD))
async def test_pods_follow_the_template_of_a_held_workload(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    image, count = cluster.need_second_image(), 1 if kind == "DaemonSet" else 3
    resource, target = RESOURCES[kind], f"{kind.lower()}/web"

    async def follow() -> None:
        budget = ("--max-unavailable", "3", "--min-ready", "0")
        words = (target, "--image-from-template", "--allow-mutable-tag", *budget)
        ended = await recreate(cluster, *words)
        assert ended.code == 0, ended

    async with daemons(cluster, tmp_path):
        before = await workload(cluster, kind, "web", count)
        written = await hold(cluster, kind, "web", image)
        await follow()
        pods = await pods_of(cluster, "web")
        kept(before, pods, "app")
        assert {image_of(pod) for pod in pods} == {image}
        name = (await requests_of(cluster))[0]["metadata"]["labels"]["crr.apps.kruise.io/run"]
        undone = await recreate(cluster, "undo", name, "--max-unavailable", "3")
        assert undone.code == 0, undone
        assert {image_of(pod) for pod in await pods_of(cluster, "web")} == {cluster.image}
        await follow()
        now = dict(await cluster.client.get(resource, cluster.namespace, "web"))
        assert (now["spec"], now["metadata"].get("labels")) == (written["spec"], written["metadata"].get("labels"))
        await release(cluster, kind, "web")
        await rolled_out(cluster, kind, "web")
        await asyncio.sleep(3)  # in which a controller would begin a rollout
        assert {pod["metadata"]["uid"] for pod in await pods_of(cluster, "web")} == {
            pod["metadata"]["uid"] for pod in before
        }
        change = {"spec": {"template": {"metadata": {"annotations": {"later": "rollout"}}}}}
        await cluster.client.merge_patch(resource, cluster.namespace, "web", change)
        await rolled_out(cluster, kind, "web")
        later = await wait_ready(cluster, "web", count)
        assert not {pod["metadata"]["uid"] for pod in later} & {pod["metadata"]["uid"] for pod in before}
