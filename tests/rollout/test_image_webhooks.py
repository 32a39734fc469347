"""Runs with an image where a webhook sets another image in pods, or changes the template."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from crrd.kube.resources import REPLICA_SETS
from crrd.lib.errors import ConfigurationError
from crrd_localnode.api.admission import AdmissionRequest, Mutating, Operation
from crrd_localnode.api.errors import Cause, invalid
from crrd_localnode.api.objects import Object
from tests.rollout.test_image_runs import TO, deployment, images_of, output, run_name
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.sessions import recreated
from tests.support.spelled import digest_of

WEB = ("deployment/web", *TO)
PINNED = f"i:2@{digest_of('i:2')}"


def rewriting(images: Mapping[str, str], *operations: Operation, pod: str = "") -> Mutating:
    """Return a webhook that sets other images in pods: in all of them, or in the one of this name."""

    async def hook(asked: AdmissionRequest) -> Object | None:
        is_meant = asked.kind.plural == "pods" and asked.operation in (
            operations or (Operation.CREATE, Operation.UPDATE)
        )
        if not is_meant or asked.new is None or pod not in ("", asked.name):
            return None
        for each in asked.new["spec"]["containers"]:
            each["image"] = images.get(each["image"], each["image"])
        return asked.new

    return hook


@pytest.mark.parametrize("template", ["keep", "adopt"])
async def test_a_webhook_that_puts_the_image_back_is_noticed_before_the_run(
    cluster: PlayedCluster, images: Images, template: str
) -> None:
    await cluster.workload("Deployment", "web", 2)
    cluster.api.admission.mutating.append(rewriting({"i:2": "i:1"}))
    with pytest.raises(ConfigurationError, match=r"a webhook sets i:1 back in pod web-.*, so it cannot get i:2"):
        await recreated(cluster, *WEB, "--pull", "never", "--template", template)
    assert {*(await images_of(cluster)).values()} == {"i:1"}


@pytest.mark.parametrize("made", ["i:1", "mirror/i:2"])
async def test_a_webhook_that_sets_another_image_in_one_pod_gets_one_patch(
    cluster: PlayedCluster, images: Images, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = max(await cluster.workload("Deployment", "web", 2))
    patches: list[str] = []

    async def count(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "pods" and asked.name == odd and asked.new is not None:
            patches.extend(["i:2"] if image_of(asked.new) == "i:2" else [])

    cluster.api.admission.mutating += [count, rewriting({"i:2": made}, Operation.UPDATE, pod=odd)]
    assert await recreated(cluster, *WEB, "--template", "keep") == 1
    assert f"a webhook sets {made} in this pod instead of i:2" in output(capsys)
    assert patches == ["i:2"]


@pytest.mark.parametrize("made", ["mirror/i:2", PINNED])
async def test_a_run_whose_image_a_webhook_decides_can_be_given_again_and_undone(
    cluster: PlayedCluster, images: Images, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some pods have it from an earlier run: it is not one of the images that the run goes back to."""
    await cluster.workload("Deployment", "web", 3)
    cluster.api.admission.mutating.append(rewriting({"i:2": made}))
    assert await recreated(cluster, *WEB, "--template", "keep", "--partition", "1") == 0
    assert await recreated(cluster, "abort", await run_name(cluster)) == 0
    assert await recreated(cluster, *WEB, "--template", "keep", "--judge", "1s", "--undo-on-failure") == 0
    assert f"done: 2 of 2 pods recreated, 1 skipped; 3 of 3 pods have {made}" in output(capsys)
    name = await run_name(cluster)
    assert await recreated(cluster, *WEB, "--template", "keep") == 0
    assert "done: nothing to do: 0 of 0 pods recreated, 3 skipped" in output(capsys)
    assert await recreated(cluster, "undo", name) == 0
    assert {*(await images_of(cluster)).values()} == {"i:1"}


@pytest.mark.parametrize(
    ("denies", "why"), [(True, "i:2 is not signed"), (False, "changes more than the image in the")]
)
async def test_the_hold_is_tried_also_if_an_old_replicaset_has_the_image(
    cluster: PlayedCluster, images: Images, denies: bool, why: str
) -> None:
    """It is deleted first. Without the trial, the Deployment would stay paused after the last pod."""
    await cluster.workload("Deployment", "web", 1)
    await create_twin(cluster)

    async def refuse(asked: AdmissionRequest) -> Object | None:
        found = asked.new if asked.kind.plural == "deployments" and asked.operation is Operation.UPDATE else None
        if found is None or image_of(found["spec"]["template"]) != "i:2":
            return None
        if denies:
            raise invalid("apps", "Deployment", asked.name, [Cause("spec", "i:2 is not signed")])
        found["spec"]["template"]["metadata"].setdefault("annotations", {})["scanned"] = "yes"
        return found

    cluster.api.admission.mutating.append(refuse)
    with pytest.raises(ConfigurationError, match=why):
        await recreated(cluster, *WEB, "--template", "adopt")
    assert {*(await images_of(cluster)).values()} == {"i:1"}
    assert "paused" not in (await deployment(cluster))["spec"]


async def create_twin(cluster: PlayedCluster) -> None:
    """Create a ReplicaSet without pods, of an earlier revision with the image."""
    (own,) = (await cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)).items
    old: dict[str, Any] = deepcopy(dict(own))
    kept = ("labels", "ownerReferences", "annotations")
    meta = {key: value for key, value in old["metadata"].items() if key in kept}
    old["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2"
    twin = {"metadata": {**meta, "name": "web-old"}, "spec": {**old["spec"], "replicas": 0}}
    await cluster.client.create(REPLICA_SETS, NAMESPACE, {"apiVersion": "apps/v1", "kind": "ReplicaSet", **twin})


async def test_a_run_is_undone_in_a_pod_whose_tag_a_webhook_has_pinned_since(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """The webhook sees only new pods. The template has the tag."""
    await cluster.workload("Deployment", "web", 2)
    assert await recreated(cluster, *WEB, "--template", "adopt") == 0
    name = await run_name(cluster)
    await images.give(PINNED, but=1)
    assert await recreated(cluster, "undo", name) == 0
    assert "2 of 2 pods have i:1; so has the template" in output(capsys)
