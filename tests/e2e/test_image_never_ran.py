"""`kubectl recreate --image` for containers that kubelet could not start: another image is what they need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Json, container, container_id, container_status, foreign, pod_ready
from tests.support.recreates import (
    create_workload,
    daemons,
    image_of,
    pod_spec,
    pods_of,
    recreate,
    requests_of,
    rolled_out,
    wait_ready,
)

pytestmark = pytest.mark.cluster
NEEDS_CLUSTER = pytest.mark.skipif(foreign() is None, reason="needs kubelet, or the controllers of a cluster")
MISSING = "localhost/does-not-exist:1"
FLAGS = ("-c", "app", "--allow-mutable-tag", "--max-unavailable", "3", "--min-ready", "0")


def waits_for(*reasons: str) -> Callable[[Json], bool]:
    """Return a condition: kubelet has said one of this of the container."""

    def says(pod: Json) -> bool:
        return container_status(pod, "app").get("state", {}).get("waiting", {}).get("reason") in reasons

    return says


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
@NEEDS_CLUSTER
async def test_a_workload_whose_image_cannot_be_pulled(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    image, count = cluster.need_second_image(), 1 if kind == "DaemonSet" else 2
    spec = pod_spec(cluster, "app", "side")
    spec["containers"][0]["image"] = MISSING
    async with daemons(cluster, tmp_path):
        await create_workload(cluster, kind, "web", count, spec)
        first = 1 if kind == "StatefulSet" else count  # it creates the next pod when the first one is ready
        before = await wait_ready(cluster, "web", first, waits_for("ErrImagePull", "ImagePullBackOff"))
        ended = await recreate(cluster, f"{kind.lower()}/web", *FLAGS, "--template", "adopt", "--image", image)
        assert ended.code == 0, ended
        assert image_of((await rolled_out(cluster, kind, "web"))["spec"]["template"]) == image
        after = await wait_ready(cluster, "web", count)
        assert {image_of(pod) for pod in after} == {image}
        sides = {pod["metadata"]["uid"]: container_id(pod, "side") for pod in before}
        kept = {pod["metadata"]["uid"]: container_id(pod, "side") for pod in after if pod["metadata"]["uid"] in sides}
        assert kept == sides, "the pods are the same, and their other containers ran on"
        name = (await requests_of(cluster))[0]["metadata"]["labels"]["crr.apps.kruise.io/run"]
        undone = await recreate(cluster, "undo", name)
        assert (undone.code, "no container was stopped there" in undone.out) == (1, True), undone
        assert {image_of(pod) for pod in await pods_of(cluster, "web")} == {image}
        assert all(map(pod_ready, await pods_of(cluster, "web")))


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"image": MISSING, "imagePullPolicy": "Never"}, ("ErrImageNeverPull",)),
        pytest.param({"image": MISSING}, ("ErrImagePull", "ImagePullBackOff"), marks=NEEDS_CLUSTER),
        pytest.param({"image": "localhost/Upper"}, ("InvalidImageName",), marks=NEEDS_CLUSTER),
        pytest.param({"command": ["/no"]}, ("RunContainerError", "CreateContainerError"), marks=NEEDS_CLUSTER),
    ],
)
async def test_a_pod_without_a_workload(
    cluster: Cluster, tmp_path: Path, fields: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    """The last one gets the image, too, and its container does not start with it either."""
    image, works = cluster.need_second_image(), "command" not in fields
    async with daemons(cluster, tmp_path):
        await cluster.create_pod("one", [container("side"), {**container("app"), **fields}])
        before = await cluster.wait_pod("one", waits_for(*reasons), " or ".join(reasons))
        ended = await recreate(cluster, "pod/one", *FLAGS, "--image", image, "--pod-timeout", "20s")
        assert ended.code == (0 if works else 1), ended
        after = await cluster.pod("one")
        assert (after["spec"]["containers"][1]["image"], pod_ready(after)) == (image, works)
        assert container_id(after, "side") == container_id(before, "side")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
