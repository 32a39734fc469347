"""Runs with an image on pods whose image has another name since a restart by a patch."""

import asyncio
import json

import pytest

from crrd.core.rollout.requests import read_run_request
from crrd.rollout.image.leftovers import stop_requests
from crrd.rollout.jsonlines import JsonLines
from tests.rollout.test_follow_runs import FOLLOW, change, held, spec_of
from tests.rollout.test_image_runs import TO, images_of, images_of_new_pods, output, run_name
from tests.support.played_cluster import PlayedCluster
from tests.support.played_images import Images
from tests.support.sessions import recreated
from tests.support.spelled import digest_of

ADOPT = ("--template", "adopt", "--max-unavailable", "3")


def spelled(image: str) -> str:
    """The name that a restart by a patch gives to an image."""
    return f"docker.io/library/{image}@{digest_of(image)}"


async def test_the_image_that_the_pods_have_by_another_name_is_nothing_to_do(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 3)
    await images.give(spelled("i:1"), but=1, before="i:1")
    before = await images_of(cluster)
    to = "-c", "app", "--image", "i:1", "--min-ready", "0"
    assert await recreated(cluster, "deployment/web", *to, *ADOPT) == 0
    assert "done: nothing to do: 0 of 0 pods recreated, 3 skipped" in output(capsys)
    assert (await images_of(cluster), await cluster.requests()) == (before, [])


async def test_pods_with_other_names_get_an_image_and_the_one_of_the_template_back(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some were restarted by a patch before the run, and some after it."""
    await cluster.workload("Deployment", "web", 3)
    await images.give(spelled("i:1"), but=1, before="i:1")
    assert await recreated(cluster, "deployment/web", *TO, *ADOPT) == 0
    assert "done: 3 of 3 pods recreated; 3 of 3 pods have i:2; so has the template" in output(capsys)
    first = await run_name(cluster)
    await images.give(spelled("i:2"), but=2, before="i:2")
    assert await recreated(cluster, "status", first, display=JsonLines(cluster.api.now)) == 0
    assert json.loads(output(capsys))["state"] == "done"
    assert await recreated(cluster, "undo", first) == 0
    assert "3 of 3 pods have i:1; so has the template" in output(capsys)
    assert {*(await images_of(cluster)).values()} == await images_of_new_pods(cluster) == {"i:1"}
    assert images.outages == []


def pinned(digest: str) -> str:
    return f"i:1@sha256:{digest * 64}"


@pytest.mark.parametrize("template", ["keep", "adopt"])
async def test_a_digest_of_the_tag_that_the_pods_had_is_undone(
    cluster: PlayedCluster, images: Images, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tag was moved since the pods have started."""
    await cluster.workload("Deployment", "web", 2)
    to = ("-c", "app", "--image", pinned("b"), "--min-ready", "0", "--template", template)
    assert await recreated(cluster, "deployment/web", *to) == 0
    assert {*(await images_of(cluster)).values()} == {pinned("b")}
    assert await recreated(cluster, "undo", await run_name(cluster)) == 0
    assert "done: 2 of 2 pods recreated; 2 of 2 pods have i:1; so has the template" in output(capsys)
    assert {*(await images_of(cluster)).values()} == await images_of_new_pods(cluster) == {"i:1"}


@pytest.mark.parametrize("template", ["keep", "adopt"])
async def test_a_tag_is_given_to_pods_that_have_its_digest_from_before(
    cluster: PlayedCluster, images: Images, template: str
) -> None:
    await cluster.workload("Deployment", "web", 2)
    for image in (pinned("a"), "i:1"):
        to = ("-c", "app", "--image", image, "--min-ready", "0", "--template", template)
        assert await recreated(cluster, "deployment/web", *to) == 0
        assert {*(await images_of(cluster)).values()} == {image}
    assert await recreated(cluster, "undo", await run_name(cluster)) == 0
    assert {*(await images_of(cluster)).values()} == {pinned("a")}


async def test_the_request_of_a_pod_that_has_the_image_by_another_name_is_kept(
    cluster: PlayedCluster, images: Images
) -> None:
    """It makes the pod unready, and sees it restart."""
    await cluster.workload("Deployment", "web", 1)
    images.grace = True
    images.on_node.add("i:2")
    words = "deployment/web", *TO, "--template", "keep", "--pull", "never"
    running = asyncio.create_task(recreated(cluster, *words))
    while not await cluster.requests():
        await asyncio.sleep(0.01)
    asked, ended = [read_run_request(each) for each in await cluster.requests()], set[str]()
    assert all(each is not None and each.is_open for each in asked)
    await images.give("i:2")
    assert await running == 0
    await images.give(spelled("i:2"), before="i:2")
    await stop_requests(cluster.client, filter(None, asked), ended)
    assert ended == set(), "as they were listed before"


@pytest.mark.parametrize("but", [0, 1])
async def test_a_template_whose_image_has_another_name_in_pods_is_followed_already(
    cluster: PlayedCluster, images: Images, but: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await held(cluster, "i:1")
    await images.give(spelled("i:1"), but=but, before="i:1")
    assert await recreated(cluster, *FOLLOW) == 0
    assert output(capsys).startswith("nothing to do: the pods of deployment.apps/web have the image")
    await change(cluster, "i:2")
    assert await recreated(cluster, *FOLLOW) == 0
    assert "2 of 2 pods recreated; 2 of 2 pods have i:2" in output(capsys)
    name = await run_name(cluster)
    assert await recreated(cluster, "undo", name) == 0
    assert {*(await images_of(cluster)).values()} == {"i:1"}
    assert (await spec_of(cluster))["paused"] is before["spec"]["paused"]
