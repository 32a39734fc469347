"""Which names of an image restart a container on a real kubelet, and restarts by patches without a registry.

`pytest tests/e2e/test_patch_images.py -rP` prints the row of the cluster for the table in docs/lean.md.
"""

import asyncio
import secrets

import grpc
import pytest

from cri_stubs import api_pb2
from cri_stubs.api_pb2_grpc import ImageServiceStub
from crrd.core.api.pod import parse_pod
from crrd.core.rollout.patched import CANNOT_START
from crrd.core.rollout.spelling import spellings
from crrd.kube.resources import NODES, PODS
from tests.support.cluster import PATIENCE, Cluster, Json, container_id, container_status, foreign, pod_ready
from tests.support.recreates import kept, pods_of, recreate, wait_ready, workload
from tests.support.registry import registry
from tests.support.restarts import ONE_RESTART, logged_spec, wrote
from tests.tools.matrix import versions

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
]
COLUMNS = ("REPO:TAG@DIGEST", "REPO@DIGEST", "REPO:latest@DIGEST", "sha256:ID", "48 digits of the ID")


def spec_of(cluster: Cluster, image: str, pull: str = "IfNotPresent") -> Json:
    """Return a pod spec whose container app has the image, and another one has not."""
    spec = logged_spec(cluster, "app", "other")
    spec["containers"][0] |= {"image": image, "imagePullPolicy": pull}
    return spec


async def image_id(cluster: Cluster, image: str) -> str:
    """Return the ID by which the runtime knows an image."""
    async with grpc.aio.insecure_channel(cluster.cri_endpoint) as channel:
        asked = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=image))
        found = await ImageServiceStub(channel).ImageStatus(asked, timeout=PATIENCE)
    return f"sha256:{found.image.id.removeprefix('sha256:')}"


def names_of(pod: Json, image: str, known_as: str) -> dict[str, str]:
    """Return the other names of the image of a pod, by column. `known_as` is its ID."""
    repository, _, digest = str(container_status(pod, "app")["imageID"]).rpartition("@")
    names = (image, repository, f"{repository}:latest")
    by_digest = [f"{each}@{digest}" if repository else "" for each in names]
    found = (*by_digest, known_as, known_as[: len("sha256:") + 48])
    return {column: name for column, name in zip(COLUMNS, found, strict=True) if name}


async def result(cluster: Cluster, name: str, image: str) -> str:
    """Give the container app of a pod another name of its image. Return "yes", or why kubelet does not start it."""
    before = await cluster.pod(name)
    change = [{"op": "replace", "path": "/spec/containers/0/image", "value": image}]
    await cluster.client.json_patch(PODS, cluster.namespace, name, change)

    def reason(pod: Json) -> str:
        return str(container_status(pod, "app")["state"].get("waiting", {}).get("reason", ""))

    def is_over(pod: Json) -> bool:
        replaced = container_id(pod, "app") != container_id(before, "app")
        return reason(pod) in CANNOT_START or (replaced and pod_ready(pod))

    after = await cluster.wait_pod(name, is_over, f"restarted with {image}")
    if why := reason(after):
        return why
    kept([before], [after], "app")
    assert container_status(after, "app")["imageID"] == container_status(before, "app")["imageID"]
    await wrote(cluster, after, "app", *ONE_RESTART)
    await wrote(cluster, after, "other", "start")
    return "yes"


async def tried(cluster: Cluster, origin: str, image: str) -> dict[str, str]:
    """Try each name of an image on a pod of its own. Return the row of the table."""
    pod = await cluster.pod(f"{origin}-0")
    names, spelled = names_of(pod, image, await image_id(cluster, image)), spellings(parse_pod(pod).containers["app"])
    assert spelled, f"a run would skip the pod of the {origin} image"
    assert set(spelled) <= set(names.values())
    used = (*spelled, names.get("REPO:latest@DIGEST"))
    results = await asyncio.gather(*(result(cluster, f"{origin}-{n}", each) for n, each in enumerate(names.values())))
    row = dict(zip(names, results, strict=True))
    assert {row[column] for column, name in names.items() if name in used} == {"yes"}, row
    return row


async def test_the_names_of_an_image(cluster: Cluster) -> None:
    """Those that a run uses must work: one preStop hook, one start, the same pod and image."""
    async with registry() as found:
        images = {"imported": cluster.image}
        for origin in ("pulled", "index"):
            found.push(tag := secrets.token_hex(4), index=origin == "index")  # not the image of an earlier test
            images[origin] = found.image(tag)
        pods = {f"{origin}-{number}": image for origin, image in images.items() for number in range(len(COLUMNS))}
        for name, image in pods.items():
            body = {"metadata": {"name": name}, "spec": spec_of(cluster, image)}
            await cluster.client.create(PODS, cluster.namespace, body)
        for name in pods:
            await cluster.wait_pod(name, pod_ready, "ready")
    rows = await asyncio.gather(*(tried(cluster, *each) for each in images.items()))
    server, node = await cluster.client.document("/version"), await cluster.client.get(NODES, "", cluster.node_name)
    print(f"| kubelet | runtime | image | {' | '.join(COLUMNS)} |")  # for -rP
    for origin, row in zip(images, rows, strict=True):
        cells = (*versions(server, node)[:2], origin, *(row.get(each, "no digest") for each in COLUMNS))
        print(f"| {' | '.join(cells)} |")


@pytest.mark.parametrize("by", ["tag", "digest"])
async def test_a_pulled_image_without_its_registry(cluster: Cluster, by: str) -> None:
    async with registry() as found:
        digest = found.push(tag := secrets.token_hex(4))
        image = found.image({"tag": tag, "digest": digest}[by])
        before = await workload(cluster, "StatefulSet", "db", 2, spec=spec_of(cluster, image))
    for _ in range(3):
        ended = await recreate(cluster, "statefulset/db", "-c", "app", "--via", "patch")
        assert ended.code == 0, ended
    after = await pods_of(cluster, "db")
    for old, new in zip(before, after, strict=True):
        assert container_status(new, "app")["imageID"] == container_status(old, "app")["imageID"]
        assert container_status(new, "other") == container_status(old, "other")
        await wrote(cluster, new, "app", *ONE_RESTART, *(2 * ONE_RESTART[1:]))


async def test_pull_policy_always_without_its_registry(cluster: Cluster) -> None:
    """The container stays down, as after any other restart, and the run says so, until the registry answers."""
    async with registry() as found:
        found.push(tag := secrets.token_hex(4))
        spec = spec_of(cluster, found.image(tag), "Always")
        before = await workload(cluster, "StatefulSet", "db", 2, spec=spec)
        await found.stop()
        preview = await recreate(cluster, "statefulset/db", "-c", "app", "--via", "patch", "--dry-run")
        failed = await recreate(cluster, "statefulset/db", "-c", "app", "--via", "patch", "--run", "down")
        down = await pods_of(cluster, "db")
        await found.start()
        between = await wait_ready(cluster, "db", 2)
        ended = await recreate(cluster, "resume", "down", "--retry-failed")
    assert (preview.code, "imagePullPolicy of container app is Always" in preview.out) == (0, True), preview
    assert (failed.code, "kubelet cannot start it with the image" in failed.out) == (1, True), failed
    assert [pod["spec"]["containers"][0]["image"] for pod in down] == 2 * [found.image(tag)], "given back"
    kept(before[:1], between[:1])
    kept(before[1:], between[1:], "app")
    assert ended.code == 0, ended
    kept(between, await pods_of(cluster, "db"), "app")
