"""The local kubelet and another spelling of a running container's image: what kubelet 1.36 and containerd 2.1 do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import (
    WAITING_SCRIPT,
    Cluster,
    Json,
    container,
    container_id,
    container_status,
    local_cluster,
    pod_ready,
    restart_count,
)

OTHER_DIGEST = f"sha256:{'0' * 64}"
HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log"]}}}
STARTS = f"echo started >> /shared/log; {WAITING_SCRIPT}"
PATIENT = 300.0  # A back-off that no test waits for, in seconds


async def pulled(cluster: Cluster, pod: Json) -> tuple[str, str, str]:
    """The repository and the digest of the container's image, and its ID in the runtime."""
    repository, _, digest = str(container_status(pod, "app")["imageID"]).partition("@")
    return repository, digest, (await cluster.status(container_id(pod, "app"))).image_id


def ready_again(count: int) -> Callable[[Json], bool]:
    return lambda pod: restart_count(pod, "app") == count and pod_ready(pod)


def held(reason: str, image: str = "") -> Callable[[Json], bool]:
    """The container waits for this reason, and because of this image, if one is named."""

    def check(pod: Json) -> bool:
        waiting = (container_status(pod, "app").get("state") or {}).get("waiting", {})
        message = str(waiting.get("message"))
        return waiting.get("reason") == reason and (not image or f"'{image}'" in message or f'"{image}"' in message)

    return check


async def test_each_spelling_restarts_that_container_alone(cluster: Cluster) -> None:
    before = await cluster.run_pod("web", [container("app", STARTS, lifecycle=HOOK), container("side")])
    image, log = container_status(before, "app")["image"], ["started"]
    await cluster.wait_words("web", "log", *log)
    repository, digest, _ = await pulled(cluster, before)
    spellings = (f"{image}@{digest}", f"{repository}@{digest}", f"{repository}:other@{digest}", image)
    for count, spelling in enumerate(spellings, 1):
        await cluster.set_image("web", "app", spelling)
        after = await cluster.wait_pod("web", ready_again(count), spelling)
        log += ["hook", "started"]
        await cluster.wait_words("web", "log", *log)
        assert container_status(after, "app")["image"] == image, "the name that the runtime has for it"
        assert container_status(after, "app")["imageID"] == container_status(before, "app")["imageID"]
        assert container_status(after, "side") == container_status(before, "side")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_short_name_is_reported_in_full(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", image="busybox")])
    assert container_status(pod, "app")["image"] == "docker.io/library/busybox:latest"
    assert container_status(pod, "app")["imageID"].startswith("docker.io/library/busybox@sha256:")


@pytest.mark.parametrize(("policy", "absent"), [("IfNotPresent", "ErrImagePull"), ("Never", "ErrImageNeverPull")])
async def test_a_name_that_is_not_on_the_node_leaves_the_container_down_until_it_is_changed_back(
    cluster: Cluster, policy: str, absent: str
) -> None:
    app = container("app", STARTS, imagePullPolicy=policy, lifecycle=HOOK)
    before = await cluster.run_pod("web", [app, container("side")])
    await cluster.wait_words("web", "log", "started")
    image = container_status(before, "app")["image"]
    repository, _, image_id = await pulled(cluster, before)
    names = {
        f"{image}@{OTHER_DIGEST}": absent,
        f"{repository}@{image_id}": absent,
        image_id: absent,  # known to the runtime, but no name of the repository that it was pulled from
        image_id[:40]: absent,
        image_id.removeprefix("sha256:"): "InvalidImageName",
    }
    for name, reason in names.items():
        await cluster.set_image("web", "app", name)
        down = await cluster.wait_pod("web", held(reason, name), f"{reason}: {name}")
        assert (restart_count(down, "app"), pod_ready(down)) == (0, False)
        assert container_status(down, "side") == container_status(before, "side")
    await cluster.wait_words("web", "log", "started", "hook")
    await cluster.set_image("web", "app", image)
    await cluster.wait_pod("web", ready_again(1), "the image that was there before")
    await cluster.wait_words("web", "log", "started", "hook", "started")


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
async def test_a_pod_that_is_not_restarted_ends_if_the_next_image_is_not_there(cluster: Cluster, policy: str) -> None:
    app = container("app", WAITING_SCRIPT.replace("; ", "; echo started >> /shared/log; ", 1))
    before = await cluster.run_pod("web", [app], restartPolicy=policy)
    await cluster.wait_words("web", "log", "started")  # so that it ends with exit code 0
    await cluster.set_image("web", "app", f"{container_status(before, 'app')['image']}@{OTHER_DIGEST}")
    await cluster.wait_pod("web", lambda pod: bool(pod["status"]["phase"] == "Succeeded"), "the end")


async def test_a_pod_that_is_not_restarted_goes_on_with_another_spelling(cluster: Cluster) -> None:
    before = await cluster.run_pod("web", [container("app")], restartPolicy="Never")
    await cluster.set_image("web", "app", str(container_status(before, "app")["imageID"]))
    await cluster.wait_pod("web", ready_again(1), "restarted")


async def test_a_container_in_crash_loop_back_off_starts_at_once(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, relist=0.05, backoff=PATIENT) as cluster:
        script = f"test -e /shared/good || exit 3; {WAITING_SCRIPT}"
        await cluster.create_pod("web", [container("app", script)])
        before = await cluster.wait_pod("web", held("CrashLoopBackOff"), "CrashLoopBackOff")
        (cluster.shared("web") / "good").touch()
        await cluster.set_image("web", "app", str(container_status(before, "app")["imageID"]))
        await cluster.wait_pod("web", ready_again(2), "another spelling has no back-off")


async def test_a_spelling_that_is_used_again_meets_its_back_off(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, relist=0.05, backoff=PATIENT) as cluster:
        before = await cluster.run_pod("web", [container("app"), container("side")])
        image, digest = (str(container_status(before, "app")[name]) for name in ("image", "imageID"))
        # Kubelet counts a spelling from its first start at which an earlier instance has ended.
        for count, spelling in enumerate((digest, image, digest), 1):
            await cluster.set_image("web", "app", spelling)
            await cluster.wait_pod("web", ready_again(count), spelling)
        await cluster.set_image("web", "app", image)
        down = await cluster.wait_pod("web", held("CrashLoopBackOff"), "CrashLoopBackOff")
        assert "back-off 5m0s restarting failed container=app" in str(container_status(down, "app")["state"])
        await cluster.set_image("web", "app", f"{image}@{digest.partition('@')[2]}")
        after = await cluster.wait_pod("web", ready_again(4), "a new spelling")
        assert container_status(after, "side") == container_status(before, "side")
