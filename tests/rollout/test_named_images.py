"""Runs with an image on pods whose image has another name since a restart by a patch."""

import pytest

from tests.rollout.test_follow_runs import FOLLOW, change, held, spec_of
from tests.rollout.test_image_runs import TO, images_of, images_of_new_pods, output, run_name
from tests.support.played_cluster import PlayedCluster
from tests.support.played_images import Images
from tests.support.sessions import recreated

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
ADOPT = ("--template", "adopt", "--max-unavailable", "3")


def spelled(image: str) -> str:
    """The name that a restart by a patch gives to an image."""
    return f"docker.io/library/{image}@{DIGEST}"


async def test_the_image_that_the_pods_have_by_another_name_is_nothing_to_do(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 3)
    await images.give(spelled("i:1"), but=1)
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
    await images.give(spelled("i:1"), but=1)
    assert await recreated(cluster, "deployment/web", *TO, *ADOPT) == 0
    assert "done: 3 of 3 pods recreated; 3 of 3 pods have i:2; so has the template" in output(capsys)
    first = await run_name(cluster)
    await images.give(spelled("i:2"), but=2)
    assert await recreated(cluster, "undo", first) == 0
    assert "3 of 3 pods have i:1; so has the template" in output(capsys)
    assert {*(await images_of(cluster)).values()} == await images_of_new_pods(cluster) == {"i:1"}
    assert images.outages == []


@pytest.mark.parametrize("but", [0, 1])
async def test_a_template_whose_image_has_another_name_in_pods_is_followed_already(
    cluster: PlayedCluster, images: Images, but: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await held(cluster, "i:1")
    await images.give(spelled("i:1"), but=but)
    assert await recreated(cluster, *FOLLOW) == 0
    assert output(capsys).startswith("nothing to do: the pods of deployment.apps/web have the image")
    await change(cluster, "i:2")
    assert await recreated(cluster, *FOLLOW) == 0
    assert "2 of 2 pods recreated; 2 of 2 pods have i:2" in output(capsys)
    name = await run_name(cluster)
    assert await recreated(cluster, "undo", name) == 0
    assert {*(await images_of(cluster)).values()} == {"i:1"}
    assert (await spec_of(cluster))["paused"] is before["spec"]["paused"]
