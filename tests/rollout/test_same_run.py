"""`--run NAME` continues the run of that name, or says in what the command differs from it."""

import pytest

from crrd.core.rollout.run import ANNOTATION_RUN
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ConfigurationError
from crrd_localnode.api.admission import AdmissionRequest
from crrd_localnode.api.objects import Object
from tests.rollout.test_follow_runs import FOLLOW, change, held
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images
from tests.support.sessions import recreated

WEB = ("deployment/web", "-c", "app")
MINE = ("--run", "mine")


async def refused(cluster: PlayedCluster, *words: str) -> str:
    """Return in what a command differs from the existing run."""
    with pytest.raises(ConfigurationError) as caught:
        await recreated(cluster, *words, *MINE)
    began, _, again = str(caught.value).partition(": use another --run NAME, or resume it: ")
    assert again == "crrd recreate resume mine -n default"
    return began.removeprefix("run mine ")


def started(own: str, given: str) -> str:
    return f"was started {own}, but this command has {given}"


async def test_another_image_is_another_run(cluster: PlayedCluster, images: Images) -> None:
    await cluster.workload("Deployment", "web", 2)
    image = (*WEB, "--image", "i:2", "--min-ready", "0")
    assert await recreated(cluster, *image, "--template", "keep", *MINE) == 0
    for words, own, given in (
        ((*WEB, "--image", "i:3"), "with --image i:2", "--image i:3"),
        ((*WEB, "--image", "i:3", "--dry-run"), "with --image i:2", "--image i:3"),
        (WEB, "with --image i:2", "no --image"),
        (FOLLOW, "with --image i:2", "no --image"),
        ((*image, "--template", "adopt"), "with --template keep", "--template adopt"),
        ((*image, "--pull", "never"), "without --pull", "--pull never"),
    ):
        assert await refused(cluster, *words) == started(own, given)
    assert await recreated(cluster, *image, "--template", "keep", *MINE) == 0
    assert await recreated(cluster, *image, "--max-unavailable", "2", *MINE) == 0, "a limit may change"
    assert [pod["spec"]["containers"][0]["image"] for pod in await cluster.pods()] == ["i:2", "i:2"]


async def test_an_image_is_none_of_a_run_without_one(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2)
    assert await recreated(cluster, *WEB, "--partition", "1", *MINE) == 0
    back = (*WEB, "--image", "i:2", "--template", "keep", "--judge", "1m", "--undo-on-failure")
    for words, own, given in (
        ((*WEB, "--image", "i:2", "--template", "keep"), "without --image", "--image i:2"),
        (back, "without --image", "--image i:2"),
        (FOLLOW, "without --image-from-template", "--image-from-template"),
        ((*WEB, "--stale"), "without --stale", "--stale"),
        ((*WEB, "--since", "2026-01-01T00:00:00Z"), "without --since", "--since 2026-01-01T00:00:00Z"),
        ((*WEB, "--partition", "50%"), "with --partition 1", "--partition 50%"),
    ):
        assert await refused(cluster, *words) == started(own, given)
    assert await recreated(cluster, *WEB, "--partition", "1", "--yes", *MINE) == 0
    assert len(cluster.stops) == 2


async def test_an_age_is_that_before_the_begin_of_the_run(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1)
    assert await recreated(cluster, *WEB, "--since", "2h", *MINE) == 0
    assert await recreated(cluster, *WEB, "--since", "2h", *MINE) == 0
    assert (await refused(cluster, *WEB, "--since", "1h")).startswith("was started with --since 20")
    assert (await refused(cluster, *WEB)).endswith("Z, but this command has no --since")


async def test_a_part_of_more_pods_than_there_are_is_the_same(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2)
    words = (*WEB, "--partition", "9", *MINE)
    assert (await recreated(cluster, *words), await recreated(cluster, *words)) == (0, 0)


async def test_an_image_that_a_webhook_pins_is_the_given_one(cluster: PlayedCluster, images: Images) -> None:
    async def pin(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural != "pods" or asked.new is None:
            return None
        new = dict(asked.new)
        entries = [{**each, "image": each["image"].replace("i:2", "i@sha256:2")} for each in new["spec"]["containers"]]
        return {**new, "spec": {**new["spec"], "containers": entries}}

    cluster.api.admission.mutating.append(pin)
    await cluster.pod("web-0", {"app": "web"})
    words = ("-l", "app=web", "-c", "app", "--image", "i:2", "--min-ready", "0", *MINE)
    assert (await recreated(cluster, *words), await recreated(cluster, *words)) == (0, 0)
    (pod,) = await cluster.pods()
    assert pod["spec"]["containers"][0]["image"] == "i@sha256:2"
    assert await refused(cluster, "-l", "app=web", "-c", "app", "--image", "i:3") == started(
        "with --image i:2", "--image i:3"
    )


async def test_a_template_with_another_image_is_another_run(cluster: PlayedCluster, images: Images) -> None:
    await held(cluster, "i:2")
    assert (await recreated(cluster, *FOLLOW, *MINE), await recreated(cluster, *FOLLOW, *MINE)) == (0, 0)
    await change(cluster, "i:3")
    assert await refused(cluster, *FOLLOW) == "gives the pods i:2, but the template has i:3 by now"
    assert await refused(cluster, *WEB, "--image", "i:2") == started("without --image", "--image i:2")


async def test_a_run_of_a_version_that_did_not_record_its_part(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2)
    assert await recreated(cluster, *WEB, "--partition", "1", *MINE) == 0
    (request,) = await cluster.requests()
    stored = request["metadata"]["annotations"][ANNOTATION_RUN]
    older = {"metadata": {"annotations": {ANNOTATION_RUN: stored.replace('"partition":"1",', "")}}}
    await cluster.client.merge_patch(REQUESTS, NAMESPACE, request["metadata"]["name"], older)
    assert await refused(cluster, *WEB, "--partition", "2") == started("with --partition 1", "--partition 2")
    assert await recreated(cluster, *WEB, "--partition", "1", "--yes", *MINE) == 0
