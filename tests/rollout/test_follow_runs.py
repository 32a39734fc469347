"""`kubectl recreate --image-from-template` against the API: its ReplicaSet follows, the workload is not written."""

import asyncio
import json
from typing import Any

import pytest

from crrd.core.rollout.run import ANNOTATION_RUN, Target
from crrd.kube.resources import PODS, REPLICA_SETS, Resource
from crrd.lib.errors import ConfigurationError
from crrd.rollout.image import follow
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.target import Aim
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.objects import Object
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.sessions import command, recreated

Json = dict[str, Any]
FOLLOW = ("deployment/web", "--image-from-template", "--max-unavailable", "3", "--min-ready", "0")
DEPLOYMENTS = RESOURCES["Deployment"]


async def change(cluster: PlayedCluster, *images: str, paused: bool = True) -> Json:
    """Give the template these images, as from git."""
    found = dict(await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))
    containers = found["spec"]["template"]["spec"]["containers"]
    for entry, image in zip(containers, images, strict=False):
        entry["image"] = image
    body = {"spec": {"paused": paused, "template": {"spec": {"containers": containers}}}}
    return dict(await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", body))


async def held(cluster: PlayedCluster, *images: str, pods: int = 2) -> Json:
    await cluster.workload("Deployment", "web", pods)
    return await change(cluster, *images)


async def spec_of(cluster: PlayedCluster) -> Json:
    return dict((await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"])


async def replica_set(cluster: PlayedCluster) -> Json:
    (found,) = (await cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)).items
    return dict(found["spec"]["template"])


async def images_of(cluster: PlayedCluster) -> dict[str, str]:
    return {pod["metadata"]["uid"]: image_of(pod) for pod in await cluster.pods()}


async def test_the_pods_and_the_replicaset_follow_and_go_back(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await held(cluster, "i:2")
    pods = await images_of(cluster)
    assert await recreated(cluster, *FOLLOW, "--dry-run", display=JsonLines(cluster.api.now, dry_run=True)) == 0
    preview = json.loads(capsys.readouterr().out)
    assert "gets i:2 in its template; deployment.apps/web itself is not changed" in preview["writes"][0]
    assert await recreated(cluster, *FOLLOW, "--dry-run=server") == 0
    assert "then ReplicaSet web-" in capsys.readouterr().out
    assert await images_of(cluster) == pods
    assert await recreated(cluster, *FOLLOW) == 0
    assert "done: 2 of 2 pods recreated; 2 of 2 pods have i:2; so has the template" in capsys.readouterr().out
    assert await images_of(cluster) == dict.fromkeys(pods, "i:2")
    assert (image_of(await replica_set(cluster)), await spec_of(cluster)) == ("i:2", before["spec"])
    assert images.outages == []
    assert await recreated(cluster, *FOLLOW) == 0
    assert capsys.readouterr().out.startswith("nothing to do: the pods of deployment.apps/web have the image")
    name = (await cluster.requests())[0]["metadata"]["labels"]["crr.apps.kruise.io/run"]
    assert await recreated(cluster, "status", name) == 0
    assert "done" in capsys.readouterr().out
    assert await recreated(cluster, "undo", name) == 0
    assert "the template still has i:2: set the image in its source, too" in capsys.readouterr().out
    assert await images_of(cluster) == pods
    assert (image_of(await replica_set(cluster)), await spec_of(cluster)) == ("i:1", before["spec"])
    await change(cluster, "i:1")
    assert await recreated(cluster, "status", name, display=JsonLines(cluster.api.now)) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "done", "a later template is no failure of this run"


async def test_pods_that_are_made_during_the_run_have_the_image_of_the_replicaset(
    cluster: PlayedCluster, images: Images
) -> None:
    """All pods have another image by now, from an earlier run that has failed."""
    await held(cluster, "i:2")
    await images.give("i:bad")
    assert await recreated(cluster, *FOLLOW) == 0
    requests = await cluster.requests()
    found = [json.loads(each["metadata"]["annotations"][ANNOTATION_RUN]) for each in requests]
    assert [each["options"]["image"]["before"] for each in found] == [["i:1", "i:bad"]] * 2
    assert await recreated(cluster, "undo", requests[0]["metadata"]["labels"]["crr.apps.kruise.io/run"]) == 0
    assert set((await images_of(cluster)).values()) == {"i:bad"}
    assert (image_of(await replica_set(cluster)), image_of((await spec_of(cluster))["template"])) == ("i:1", "i:2")


async def test_a_container_that_has_its_image_needs_nothing(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await held(cluster, "i:2", pods=1)
    assert await recreated(cluster, *FOLLOW, "-c", "side") == 0
    assert (
        "nothing to do: the pods of deployment.apps/web have the image of container 'side'" in capsys.readouterr().out
    )
    assert await cluster.requests() == []


async def test_a_workload_without_pods_follows_before_it_is_scaled_up(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else its next pods would have the old image."""
    await held(cluster, "i:2", pods=0)
    assert await recreated(cluster, *FOLLOW) == 0
    assert (image_of(await replica_set(cluster)), await cluster.requests()) == ("i:2", [])
    assert "0 of 0 pods have i:2; so has the template" in capsys.readouterr().out


async def test_several_containers_follow_one_after_the_other(cluster: PlayedCluster, images: Images) -> None:
    await held(cluster, "i:2", "i:3", pods=1)
    with pytest.raises(ConfigurationError, match="other images for app and side: use -c NAME for one at a time"):
        await recreated(cluster, *FOLLOW)
    assert await recreated(cluster, *FOLLOW, "-c", "app") == 0
    assert await recreated(cluster, *FOLLOW) == 0
    template = await replica_set(cluster)
    assert [image_of(template, name) for name in ("app", "side")] == ["i:2", "i:3"]


async def test_a_run_whose_template_is_set_back_stops(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await held(cluster, "i:2")
    images.grace = True
    running = asyncio.create_task(recreated(cluster, *FOLLOW))
    while not await cluster.requests():
        await asyncio.sleep(0.01)
    await change(cluster, "i:1")
    assert await running == 1
    assert "the image of deployment.apps/web was set to i:1 meanwhile" in capsys.readouterr().out
    assert set((await images_of(cluster)).values()) == {"i:1"}


async def test_a_run_that_was_interrupted_before_the_replicaset_goes_on(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held(cluster, "i:2")
    for pod in await cluster.pods():
        body = {
            "spec": {"containers": [{**pod["spec"]["containers"][0], "image": "i:2"}, *pod["spec"]["containers"][1:]]}
        }
        images.on_node.add("i:2")
        await cluster.client.merge_patch(PODS, NAMESPACE, pod["metadata"]["name"], body)
    assert await recreated(cluster, *FOLLOW) == 0
    assert image_of(await replica_set(cluster)) == "i:2"
    assert await cluster.requests() == []


@pytest.mark.parametrize(
    ("paused", "words", "message"),
    [
        (False, FOLLOW, "deployment.apps/web is not held"),
        (True, ("pod/one", "--image-from-template"), "only the pods of a Deployment, StatefulSet, DaemonSet can"),
    ],
)  # fmt: skip
async def test_what_is_refused(cluster: PlayedCluster, paused: bool, words: tuple[str, ...], message: str) -> None:
    await held(cluster, "i:2", pods=1)
    await change(cluster, "i:2", paused=paused)
    status = {"status": {"observedGeneration": 9}}
    await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", status, subresource="status")
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, *words)
    assert await cluster.requests() == []


async def test_a_controller_that_has_not_seen_the_template_is_waited_for(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_PAUSE_SECONDS", 0.0)
    await held(cluster, "i:2", pods=1)
    with pytest.raises(ConfigurationError, match="has not observed the last change of its template; try again"):
        await recreated(cluster, *FOLLOW)


async def test_a_webhook_that_sets_another_image_is_named(cluster: PlayedCluster, images: Images) -> None:
    async def pin(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural != "pods" or asked.operation is not Operation.UPDATE or asked.new is None:
            return None
        for each in asked.new["spec"]["containers"]:
            each["image"] = "i@sha256:2" if each["image"] == "i:2" else each["image"]
        return asked.new

    cluster.api.admission.mutating.append(pin)
    await held(cluster, "i:2", pods=1)
    with pytest.raises(ConfigurationError, match=r"a webhook sets i@sha256:2 in the pods of deployment\.apps/web"):
        await recreated(cluster, *FOLLOW)


async def test_no_right_to_change_the_workload_is_needed(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lacks(_client: object, wanted: tuple[str, ...], _namespace: str) -> tuple[str, ...]:
        rights = ("patch pods", "create,delete pods", "patch,delete replicasets.apps")
        assert wanted == (*rights, "update pods", "update-images pods.crr.apps.kruise.io")
        return ("delete pods",)

    monkeypatch.setattr("crrd.rollout.image.start.missing_rights", lacks)
    await held(cluster, "i:2", pods=1)
    with pytest.raises(ConfigurationError, match="you may not delete pods in namespace default"):
        await recreated(cluster, *FOLLOW)


async def test_kinds_of_other_groups_are_not_followed(cluster: PlayedCluster) -> None:
    other = Target("statefulset.apps.kruise.io/web", "apps.kruise.io/v1beta1", "StatefulSet", "web", "uid")
    aim = Aim(other, Resource("statefulsets", "apps.kruise.io"), "app=web")
    found = await follow.find_template_images(cluster.client, NAMESPACE, aim)
    assert "only the pods of a Deployment, StatefulSet, DaemonSet can follow" in found.problem


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--image-from-template", "--image", "i:2", "-c", "a"), "needs a workload, and no --image"),
        (("--image-from-template", "--template", "keep"), "needs a workload, and no --image and --template"),
        (("--image-from-template", "-c", "a,b"), "--image-from-template needs one container: -c NAME"),
        (("--image-from-template", "--stale"), "--image-from-template cannot be used with --stale"),
    ],
)
def test_flags_that_do_not_fit(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        command("deployment/web", *words)
