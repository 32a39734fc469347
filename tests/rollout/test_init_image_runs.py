"""`kubectl recreate -c INIT --image IMAGE --whole-pod` against the local API server, on a simulated node."""

from typing import Any

import pytest

from crrd.core.api.types import ACTIVE_POD, LABEL_ACTIVE
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.resources import PODS
from crrd.lib.errors import ConfigurationError
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.sessions import command, recreated

Json = dict[str, Any]
WEB = ("deployment/web", "-c", "setup", "--whole-pod", "--image", "i:2")
SETUP, PROXY = {"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}


async def web(cluster: PlayedCluster, replicas: int) -> list[str]:
    return await cluster.workload("Deployment", "web", replicas, initial=[SETUP])


async def template_image(cluster: PlayedCluster) -> str:
    found = await cluster.client.get(RESOURCES["Deployment"], NAMESPACE, "web")
    return image_of(dict(found["spec"]["template"]), "setup")


async def ran(cluster: PlayedCluster) -> dict[str, tuple[str, int]]:
    """Return the image that each init container has run with, and how often it has run since the pods came."""
    pods = [pod for pod in await cluster.pods() if LABEL_PULL not in pod["metadata"]["labels"]]
    statuses = {pod["metadata"]["name"]: pod["status"]["initContainerStatuses"][0] for pod in pods}
    return {name: (each["image"], each["restartCount"]) for name, each in statuses.items()}


async def test_the_pods_restart_with_the_image_and_go_back(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = await web(cluster, 3)
    before = {pod["metadata"]["uid"] for pod in await cluster.pods()}
    assert await recreated(cluster, *WEB, "--template", "adopt", "--max-unavailable", "2", "--run", "mine") == 0
    shown = capsys.readouterr().out
    assert "run mine: whole pods, setup with i:2 of deployment.apps/web, 3 pods" in shown
    assert "done: 3 of 3 pods recreated; 3 of 3 pods have i:2; so has the template" in shown
    assert {pod["metadata"]["uid"] for pod in await cluster.pods()} == before, "the same pods, and no pull pod"
    assert await ran(cluster) == dict.fromkeys(pods, ("i:2", 1))
    assert sorted(cluster.stops) == sorted((pod, name) for pod in pods for name in ("app", "side")), "each once"
    assert (images.outages, await template_image(cluster)) == ([], "i:2")
    for request in await cluster.requests():
        assert request["metadata"]["labels"][LABEL_ACTIVE] == ACTIVE_POD
        assert [each["name"] for each in request["spec"]["containers"]] == ["setup", "app", "side"]
    assert await recreated(cluster, "undo", "mine") == 0
    assert await ran(cluster) == dict.fromkeys(pods, ("i:1", 2))
    assert await template_image(cluster) == "i:1"


async def test_an_init_container_that_fails_ends_the_run_and_the_undo_helps(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = await web(cluster, 2)
    images.bad = "i:2"
    words = (*WEB, "--template", "keep", "--run", "mine")
    assert await recreated(cluster, *words, "--timeout", "6s") == 3
    assert "setup: CrashLoopBackOff: back-off" in capsys.readouterr().out
    assert sorted(image for image, _ in (await ran(cluster)).values()) == ["i:1", "i:2"], "only the first pod"
    assert await recreated(cluster, "undo", "mine") == 0
    assert {image for image, _ in (await ran(cluster)).values()} == {"i:1"}
    assert len({pod for pod, _ in cluster.stops}) == 1, "nothing was stopped for the way back"
    assert sorted(await ran(cluster)) == sorted(pods)


async def test_without_the_image_no_pod_restarts(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await web(cluster, 2)
    assert await recreated(cluster, *WEB[:-1], "missing:1", "--template", "keep") == 1
    assert "kubelet cannot pull missing:1" in capsys.readouterr().out
    assert (cluster.stops, images.outages) == ([], [])


async def test_a_pod_that_was_not_restarted_is_restarted_by_the_next_process(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its node was down, so its request has ended after the pod got the image."""
    (pod,) = await web(cluster, 1)
    images.stuck = True
    words = (*WEB, "--template", "adopt", "--run", "mine")
    assert await recreated(cluster, *words) == 1
    assert "0 of 1 pods have i:2" in capsys.readouterr().out
    assert image_of(dict(await cluster.client.get(PODS, NAMESPACE, pod)), "setup") == "i:2"
    assert (await ran(cluster), cluster.stops, await template_image(cluster)) == ({pod: ("i:1", 0)}, [], "i:1")
    images.stuck = False
    assert await recreated(cluster, "resume", "mine", "--retry-failed") == 0
    assert (await ran(cluster), await template_image(cluster)) == ({pod: ("i:2", 1)}, "i:2")


async def test_an_aborted_run_finishes_the_pods_that_have_the_image(cluster: PlayedCluster, images: Images) -> None:
    await web(cluster, 2)
    images.grace = True
    assert await recreated(cluster, *WEB, "--template", "keep", "--run", "mine", "--timeout", "1s") == 3
    assert await recreated(cluster, "abort", "mine") == 0
    images.grace = False
    assert {image for image, _ in (await ran(cluster)).values()} == {"i:1"}, (
        "those that do not have it stay as they are"
    )
    pods = [pod for pod in await cluster.pods() if LABEL_PULL not in pod["metadata"]["labels"]]
    assert {image_of(pod, "setup") for pod in pods} == {"i:1"}


WHY_NEVER = (
    "setup is an init container: only app containers and native sidecars (restartPolicy: Always) can be recreated"
)
WHY_NOT = (
    "{} is an init container: it runs only when its pod starts. With --whole-pod, it gets the image, and the pods "
)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-c", "setup", "--image", "i:2"), WHY_NOT.format("setup") + "restart in place"),
        (
            ("-c", "setup"),
            WHY_NEVER,
        ),
        (
            ("-c", "app", "--image", "i:2", "--whole-pod"),
            "app is no init container: without --whole-pod, only app gets the image",
        ),
        (
            ("-c", "proxy", "--image", "i:2", "--whole-pod"),
            "proxy is no init container: without --whole-pod, only proxy gets the image",
        ),
    ],
)
async def test_what_is_refused_says_what_to_do_instead(
    cluster: PlayedCluster, words: tuple[str, ...], problem: str
) -> None:
    await cluster.workload("Deployment", "web", 1, initial=[SETUP, PROXY])
    with pytest.raises(ConfigurationError) as caught:
        await recreated(cluster, "deployment/web", *words)
    assert str(caught.value) == problem


async def test_it_is_another_run_than_one_without_an_image(cluster: PlayedCluster, images: Images) -> None:
    await web(cluster, 1)
    assert images.outages == []
    assert await recreated(cluster, *WEB, "--template", "keep", "--run", "mine") == 0
    with pytest.raises(ConfigurationError, match="was started with --image i:2, but this command has no --image"):
        await recreated(cluster, "deployment/web", "--whole-pod", "--run", "mine")


@pytest.mark.parametrize("flags", [("--image", "i:2"), ("-c", "a,b", "--image", "i:2")])
def test_one_init_container_must_be_named(flags: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="--image needs one container: -c NAME"):
        command("deployment/web", "--whole-pod", *flags)
