"""`kubectl recreate --image` against the API: pull pods, requests, patches, the adoption, and each refusal."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from crrd.core.api.types import ANNOTATION_STOPPED as STOPPED
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.pull import LABEL_PULL, PullPod, PullState, pull_pod
from crrd.core.rollout.image.steps import ImageActions
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest, newest_run, read_run_request
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Options, Run, Target
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REPLICA_SETS, REQUESTS
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.rollout import abort
from crrd.rollout.carry_out import carry_out
from crrd.rollout.cluster import Cluster
from crrd.rollout.image import abort as image_abort
from crrd.rollout.image.objects import ImageObjects
from crrd.rollout.image.writer import ImageWriter
from crrd.rollout.session import Session
from crrd.rollout.target import Aim
from crrd.rollout.text import TextLines
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import ApiError, Cause, invalid
from crrd_localnode.api.objects import Object
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.rollouts import asked, container, member, run
from tests.support.sessions import command, recreated

Json = dict[str, Any]
TO = ("-c", "app", "--image", "i:2", "--min-ready", "0")
DEPLOYMENTS = RESOURCES["Deployment"]
MAY_REQUEST = ("update pods", "update-images pods.crr.apps.kruise.io")


async def deployment(cluster: PlayedCluster) -> Json:
    return dict(await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))


async def images_of(cluster: PlayedCluster) -> dict[str, str]:
    """Of all pods, the pull pods too."""
    return {pod["metadata"]["uid"]: image_of(pod, pod["spec"]["containers"][0]["name"]) for pod in await cluster.pods()}


async def images_of_new_pods(cluster: PlayedCluster) -> set[str]:
    """Return the images in the templates of the Deployment and its ReplicaSet."""
    (replica_set,) = (await cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)).items
    return {image_of(each["spec"]["template"]) for each in (await deployment(cluster), replica_set)}


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


async def run_name(cluster: PlayedCluster) -> str:
    newest = max(await cluster.requests(), key=lambda each: str(each["metadata"]["creationTimestamp"]))
    return str(newest["metadata"]["labels"]["crr.apps.kruise.io/run"])


async def test_the_pods_get_the_image_then_the_template_and_back(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 3)
    before = await images_of(cluster)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "adopt", "--max-unavailable", "2") == 0
    assert "done: 3 of 3 pods recreated; 3 of 3 pods have i:2; so has the template" in output(capsys)
    assert await images_of(cluster) == dict.fromkeys(before, "i:2"), "the same pods, and no pull pod is left"
    found = await deployment(cluster)
    assert image_of(found["spec"]["template"]) == "i:2"
    assert (found["spec"].get("paused"), found["metadata"].get("labels", {})) == (None, {})
    (replica_set,) = (await cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)).items
    assert image_of(replica_set["spec"]["template"]) == "i:2"
    assert images.outages == []
    name = await run_name(cluster)
    assert await recreated(cluster, "undo", name, "--max-unavailable", "3") == 0
    assert "3 of 3 pods have i:1; so has the template" in output(capsys)
    assert await images_of(cluster) == before
    assert image_of((await deployment(cluster))["spec"]["template"]) == "i:1"


async def test_an_undo_on_failure_is_whole(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first part of the run that it undoes is no first part of its own."""
    ends = iter([End.HALTED])

    async def judged(*args: Any, **named: Any) -> End:
        end = await carry_out(*args, **named)
        return next(ends, end)

    monkeypatch.setattr("crrd.rollout.start.carry_out", judged)
    await cluster.workload("Deployment", "web", 4)
    before, flags = await images_of(cluster), ("--template", "keep", "--judge", "1s", "--undo-on-failure")
    assert await recreated(cluster, "deployment/web", *TO, *flags, "--partition", "50%") == End.HALTED.exit_code
    assert await images_of(cluster) == before
    assert len(await cluster.requests()) == 4, "two pods, there and back"


async def test_an_undo_of_a_policys_run_is_its_users(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the manager would take its pull pods for some that are left of the policy's run."""
    await cluster.workload("Deployment", "web", 1)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "keep") == 0
    name, begun = await run_name(cluster), list[Options]()

    def of_policy(requests: Sequence[RunRequest]) -> Run:
        found = newest_run(requests)
        return replace(found, options=replace(found.options, policy="web"))

    async def started(session: Session, _: Aim) -> tuple[int, bool]:
        begun.append(session.command.options)
        return 0, True

    monkeypatch.setattr("crrd.rollout.start.newest_run", of_policy)
    monkeypatch.setattr("crrd.rollout.start._start", started)
    assert await recreated(cluster, "undo", name) == 0
    assert [(each.policy, each.change.undoes) for each in begun] == [("", name)]


@pytest.mark.parametrize("template", ["adopt", "keep"])
async def test_an_undo_gives_pods_and_template_each_the_image_that_they_had(
    cluster: PlayedCluster, images: Images, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier run has left the template as it was."""
    await cluster.workload("Deployment", "web", 2)
    await images.give("i:0")
    before, new = await images_of(cluster), "i:2" if template == "adopt" else "i:1"
    assert await recreated(cluster, "deployment/web", *TO, "--template", template) == 0
    first = await run_name(cluster)
    assert await recreated(cluster, "undo", first) == 0
    assert "2 of 2 pods have i:0; the template" in output(capsys)
    assert (await images_of(cluster), await images_of_new_pods(cluster)) == (before, {"i:1"})
    assert (await deployment(cluster))["spec"].get("paused") is None
    assert await recreated(cluster, "undo", await run_name(cluster)) == 0
    assert (await images_of(cluster), await images_of_new_pods(cluster)) == (dict.fromkeys(before, "i:2"), {new})
    assert images.outages == []


async def test_an_undo_of_pods_with_several_images_is_refused(cluster: PlayedCluster, images: Images) -> None:
    (one, _) = await cluster.workload("Deployment", "web", 2)
    images.on_node.add("i:0")
    change = {"op": "replace", "path": "/spec/containers/0/image", "value": "i:0"}
    await cluster.client.json_patch(PODS, NAMESPACE, one, (change,))
    assert await recreated(cluster, "deployment/web", *TO, "--template", "adopt") == 0
    with pytest.raises(ConfigurationError, match="had i:0, i:1 before: set one with --image"):
        await recreated(cluster, "undo", await run_name(cluster))


async def test_a_run_that_cannot_be_undone_does_not_begin_with_undo_on_failure(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 2)
    await images.give("i:0", but=1)
    words = ("deployment/web", *TO, "--template", "keep", "--judge", "1s", "--run", "mine")
    why = "--undo-on-failure needs one image to go back to, but deployment.apps/web had i:0, i:1 before this run: leave"
    for dry_run in ((), ("--dry-run",)):
        with pytest.raises(ConfigurationError, match=why):
            await recreated(cluster, *words, "--undo-on-failure", *dry_run)
    assert await cluster.requests() == []
    images.stuck = True
    assert await recreated(cluster, *words) == End.FAILED.exit_code
    assert "undo" not in output(capsys), "the command would be refused"
    for again in (("resume", "mine"), words):
        with pytest.raises(ConfigurationError, match=why):
            await recreated(cluster, *again, "--undo-on-failure")
    images.stuck = False
    assert await recreated(cluster, "resume", "mine", "--retry-failed") == 0
    assert await recreated(cluster, *words[:-1], "next", "--undo-on-failure") == 0, "there is nothing to do"
    assert await recreated(cluster, "deployment/web", "-c", "app", "--via", "daemon", "--run", "restarts") == 0
    with pytest.raises(ConfigurationError, match="a restart cannot be undone"):
        await recreated(cluster, "resume", "restarts", "--undo-on-failure")


async def test_a_halted_run_that_cannot_be_undone_any_more_keeps_its_exit_code(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def judged(*args: Any, **named: Any) -> End:
        await carry_out(*args, **named)
        await images.give("i:9")
        return End.HALTED

    monkeypatch.setattr("crrd.rollout.start.carry_out", judged)
    await cluster.workload("Deployment", "web", 1)
    words = ("deployment/web", *TO, "--template", "keep", "--judge", "1s", "--undo-on-failure", "--run", "mine")
    assert await recreated(cluster, *words) == End.HALTED.exit_code
    assert "\ncannot undo run mine: deployment.apps/web has i:9 by now, which run mine has not set; " in output(capsys)


async def test_without_a_readiness_probe_each_pod_must_be_ready_for_a_while(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container that crashes a moment after its start must not be taken for done."""
    await cluster.workload("Deployment", "web", 1)
    words = ("deployment/web", *TO[:-2], "--template", "keep")
    assert await recreated(cluster, *words, "--dry-run") == 0
    assert "each pod must be ready for 10s before the next batch" in output(capsys)
    running = asyncio.create_task(recreated(cluster, *words))
    while not (made := await cluster.requests()):
        await asyncio.sleep(0.02)
    recorded = read_run_request(made[0])
    assert recorded is not None
    assert recorded.run.options.min_ready == 10
    assert await recreated(cluster, "abort", recorded.run.name) == 0
    assert await running == 1
    text = output(capsys)
    assert "container app has no readiness probe, so each pod must be ready for 10s before the run continues" in text


async def test_an_image_that_came_later_is_not_undone(cluster: PlayedCluster, images: Images) -> None:
    await cluster.workload("Deployment", "web", 1)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "keep") == 0
    first, (request,) = await run_name(cluster), await cluster.requests()
    recorded = read_run_request(request)
    assert recorded is not None
    assert recorded.run.options.image is not None
    assert recorded.run.options.image.template, "a later rollout of the workload stops the run"
    assert await recreated(cluster, "deployment/web", *TO, "--image", "i:3", "--template", "keep") == 0
    with pytest.raises(ConfigurationError, match=f"web has i:3 by now, which run {first} has not set"):
        await recreated(cluster, "undo", first)
    assert "i:3" in (await images_of(cluster)).values()
    assert images.outages == []


async def test_an_undo_does_not_wait_for_the_run_that_it_undoes(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request of a pod that does not become ready stays open until its deadline."""
    await cluster.workload("Deployment", "web", 2)
    images.bad = "i:2"
    running = asyncio.create_task(recreated(cluster, "deployment/web", *TO, "--template", "keep"))
    while ("app", "i:2") not in [
        (each["spec"]["containers"][0]["name"], each["spec"]["containers"][0]["image"]) for each in await cluster.pods()
    ]:
        await asyncio.sleep(0.02)
    first = await run_name(cluster)
    assert await recreated(cluster, "undo", first, "--dry-run") == 0
    (request,) = await cluster.requests()
    assert "crr.apps.kruise.io/run-aborted" not in request["metadata"]["annotations"], "nothing is written"
    assert await recreated(cluster, "undo", first) == 0
    assert await running == 1
    assert "aborted: 0 of 2 pods recreated" in output(capsys), "the process of the first run has stopped"
    assert set((await images_of(cluster)).values()) == {"i:1"}
    assert await run_name(cluster) != first
    assert await recreated(cluster, "status", first) == 0, "the undo could be killed before it has a request"
    assert "aborted" in output(capsys)


async def test_a_wrong_tag_stops_nothing(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 2)
    before = await images_of(cluster)
    words = ("-c", "app", "--image", "missing:2", "--template", "keep")
    assert await recreated(cluster, "deployment/web", *words) == 1
    text = output(capsys)
    assert "kubelet cannot pull missing:2 on node node-a, and no container was stopped there: InvalidImageName" in text
    assert "0 of 2 pods have missing:2; the template still has i:1, so a new pod gets i:1" in text
    assert (await images_of(cluster), await cluster.requests()) == (before, [])


async def test_without_pulls_a_node_without_the_image_fails_and_stops_nothing(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 1)
    before = await images_of(cluster)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "keep", "--pull", "never") == 1
    name = await run_name(cluster)
    assert f"to give the pods the image back that they had: crrd recreate undo {name}" in output(capsys)
    assert (await images_of(cluster), images.outages) == (before, [])
    images.on_node.add("i:2")
    assert await recreated(cluster, "resume", name, "--retry-failed") == 0
    assert set((await images_of(cluster)).values()) == {"i:2"}
    assert image_of((await deployment(cluster))["spec"]["template"]) == "i:1"


async def test_pods_of_a_selector_keep_their_template(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.pod("one", {"app": "solo"})
    assert await recreated(cluster, "-l", "app=solo", *TO) == 0
    assert "done: 1 of 1 pods recreated; 1 of 1 pods have i:2" in output(capsys)


async def test_a_webhook_that_pins_tags_decides_the_image(cluster: PlayedCluster, images: Images) -> None:
    async def pin(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural != "pods" or asked.operation is Operation.DELETE or asked.new is None:
            return None
        for each in asked.new["spec"]["containers"]:
            each["image"] = "i@sha256:2" if each["image"] == "i:2" else each["image"]
        return asked.new

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.mutating.append(pin)
    assert await recreated(cluster, "pod/one", *TO) == 0
    assert set((await images_of(cluster)).values()) == {"i@sha256:2"}
    (request,) = await cluster.requests()
    assert request["spec"]["containers"][0]["image"] == "i@sha256:2"


async def test_a_webhook_that_pins_tags_only_in_new_pods_is_refused(cluster: PlayedCluster, images: Images) -> None:
    """The pull pod would pull another image."""

    async def pin(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural == "pods" and asked.operation is Operation.CREATE and asked.new is not None:
            asked.new["spec"]["containers"][0]["image"] = "mirror/i:2"
        return asked.new

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.mutating.append(pin)
    with pytest.raises(ConfigurationError, match="sets mirror/i:2 in new pods instead of i:2"):
        await recreated(cluster, "pod/one", *TO)
    assert await cluster.requests() == []


async def test_pods_whose_images_are_pulled_in_several_ways_are_refused(cluster: PlayedCluster, images: Images) -> None:
    async def add(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural == "pods" and asked.name == "two" and asked.new is not None:
            asked.new["spec"]["imagePullSecrets"] = [{"name": "expired"}]
        return asked.new

    cluster.api.admission.mutating.append(add)
    await cluster.pod("one", {"app": "solo"})
    await cluster.pod("two", {"app": "solo"})
    with pytest.raises(
        ConfigurationError, match="pod two differs in imagePullSecrets from the pod that would pull i:2"
    ):
        await recreated(cluster, "-l", "app=solo", *TO)
    assert await recreated(cluster, "-l", "app=solo", *TO, "--dry-run", "--pull", "never") == 0


async def test_a_pod_that_is_older_than_the_secrets_of_its_service_account_is_refused(
    cluster: PlayedCluster, images: Images
) -> None:
    """The pull pod gets them, as each new pod without any. Kubelet would stop the container, and could not pull."""

    async def add(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural == "pods" and asked.operation is Operation.CREATE and asked.new is not None:
            asked.new["spec"].setdefault("imagePullSecrets", [{"name": "new"}])
        return asked.new

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.mutating.append(add)
    with pytest.raises(ConfigurationError, match="pod one differs in imagePullSecrets"):
        await recreated(cluster, "pod/one", *TO)
    assert await cluster.requests() == []


async def test_a_run_that_adopts_beside_a_gitops_controller_says_so(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 1)
    marks = {"metadata": {"annotations": {"argocd.argoproj.io/tracking-id": "x"}}}
    await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", marks)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "adopt", "--dry-run") == 0
    assert "Argo CD manages deployment.apps/web: set the image there, too" in output(capsys)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "keep", "--dry-run") == 0
    assert "Argo CD" not in output(capsys)


async def test_all_targets_are_checked_before_the_first_gets_the_image(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("web", "api"):
        await cluster.workload("Deployment", name, 1)
    await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "api", {"spec": {"paused": True}})
    with pytest.raises(ConfigurationError, match=r"deployment\.apps/api is paused"):
        await recreated(cluster, "deployment/web", "deployment/api", *TO, "--template", "adopt")
    assert (output(capsys), await cluster.requests()) == ("", [])


async def test_an_abort_that_leaves_a_controller_held_says_so_each_time(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = await cluster.workload("Deployment", "web", 1)
    held = {"metadata": {"labels": {"crr.apps.kruise.io/adopting-run": "begun"}}, "spec": {"paused": True}}
    found = await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", held)
    web = Target("deployment.apps/web", "apps/v1", "Deployment", "web", found["metadata"]["uid"])
    change = ImageChange("i:2", ("i:1",), mode=TemplateMode.ADOPT, template="what it was")
    uid = (await cluster.client.get(PODS, NAMESPACE, name))["metadata"]["uid"]
    await cluster.client.create(
        REQUESTS, NAMESPACE, run(image=change, name="begun", target=web).request(name, uid, ("app",))
    )
    for _ in range(2):
        assert await recreated(cluster, "abort", "begun") == 1
        assert "the template of deployment.apps/web was changed meanwhile, and its controller is held" in output(capsys)

    async def fail(*_: object) -> None:
        raise ConfigurationError("you may not list replicasets")

    monkeypatch.setattr(abort, "cluster_of", fail)
    assert await recreated(cluster, "abort", "begun") == 1
    assert "web is still held is unknown: you may not list replicasets" in output(capsys)


async def test_an_abort_leaves_the_pods_as_they_are(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request whose pod does not have the image yet would keep the pod unready until its deadline."""
    await cluster.workload("Deployment", "web", 2)
    images.grace = True
    words = (*TO, "--template", "keep", "--max-unavailable", "2")
    running = asyncio.create_task(recreated(cluster, "deployment/web", *words))
    while [each.get("status", {}).get("phase") for each in await cluster.requests()] != ["Recreating"] * 2:
        await asyncio.sleep(0.02)
    assert await recreated(cluster, "abort", await run_name(cluster)) == 0
    assert await running == 1
    text = output(capsys)
    assert "aborted: 0 of 2 pods recreated" in text
    assert re.search(r"aborted, pending requests ended: \d", text)
    assert set((await images_of(cluster)).values()) == {"i:1"}, "and no pull pod is left"
    kept = [each["metadata"]["annotations"] for each in await cluster.requests()]
    assert [STOPPED in each for each in kept] == [True, True], "for which the manager ends them"
    assert ["crr.apps.kruise.io/run-aborted" in each for each in kept].count(True) == 1


async def refuse_replica_sets(asked: AdmissionRequest) -> Object | None:
    if asked.kind.plural == "replicasets" and not asked.dry_run:
        raise invalid("", "ReplicaSet", asked.name, [Cause("spec", "not now")])
    return None


async def interrupted_while_it_holds(cluster: PlayedCluster) -> str:
    """Interrupt a run in the middle of its adoption, because no ReplicaSet can be written. Return its name."""
    await cluster.workload("Deployment", "web", 1)
    cluster.api.admission.mutating.append(refuse_replica_sets)
    running = asyncio.create_task(recreated(cluster, "deployment/web", *TO, "--template", "adopt"))
    while not (await deployment(cluster))["spec"].get("paused"):
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return await run_name(cluster)


async def test_an_abort_in_the_middle_of_an_adoption_leaves_nothing_paused(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await interrupted_while_it_holds(cluster)
    assert "1 of 1 pods have i:2; so has the template, but its controller is still held" in output(capsys)
    limit = image_abort._ADOPTION_SECONDS
    monkeypatch.setattr(image_abort, "_ADOPTION_SECONDS", 0.1)
    assert await recreated(cluster, "abort", name) == 1
    text = output(capsys).splitlines()[-1]
    assert "; the adoption has not ended within 0s; 1 of 1 pods have i:2; so has the template, but" in text
    assert text.endswith("kubectl rollout resume deployment.apps/web -n default")
    cluster.api.admission.mutating.remove(refuse_replica_sets)
    monkeypatch.setattr(image_abort, "_ADOPTION_SECONDS", limit)
    assert await recreated(cluster, "abort", name) == 0, "a second time"
    assert output(capsys).endswith("pending requests ended: 0; 1 of 1 pods have i:2; so has the template\n")
    found = await deployment(cluster)
    assert (found["spec"].get("paused"), found["metadata"].get("labels", {})) == (None, {})


async def test_an_abort_takes_its_label_from_a_workload_that_the_user_has_released(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `kubectl rollout resume` does, which the last line names. A later pause is the user's own."""
    name = await interrupted_while_it_holds(cluster)
    await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", {"spec": {"paused": None}})
    assert await recreated(cluster, "abort", name) == 0
    assert "crr.apps.kruise.io/adopting-run" not in (await deployment(cluster))["metadata"].get("labels", {})


async def test_an_abort_of_a_run_that_has_only_pulled_deletes_its_pull_pods(cluster: PlayedCluster) -> None:
    like = await cluster.pod("one", {"app": "solo"})
    await cluster.client.create(PODS, NAMESPACE, pull_pod(run(name="begun"), "node-a", "i:2", like))
    assert await recreated(cluster, "abort", "begun") == 0
    assert [pod["metadata"]["name"] for pod in await cluster.pods()] == ["one"]
    with pytest.raises(ConfigurationError, match="run 'begun' not found"):
        await recreated(cluster, "abort", "begun")


async def stop_running(cluster: PlayedCluster, name: str, **waiting: str) -> None:
    """Make a pod one whose container has never run."""
    status = {"name": "app", "image": "i:1", "imageID": "", "ready": False, "restartCount": 0}
    body = {"status": {"containerStatuses": [{**status, "state": {"waiting": waiting}}]}}
    await cluster.client.merge_patch(PODS, NAMESPACE, name, body, subresource="status")


@pytest.mark.usefixtures("images")
async def test_a_pod_whose_image_cannot_be_pulled_gets_another_one(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _ = await cluster.workload("Deployment", "web", 2)
    await stop_running(cluster, name, reason="ImagePullBackOff")
    assert await recreated(cluster, "deployment/web", *TO, "--template", "adopt") == 0
    text = output(capsys)
    assert re.search(rf"{name}  node-a  done  containerd://\w+  in", text), text
    assert "2 of 2 pods have i:2" in text


@pytest.mark.usefixtures("images")
async def test_a_run_is_not_done_while_a_pod_that_is_not_scheduled_lacks_the_image(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("crrd.core.rollout.limits.NODE_SECONDS", 0.2)
    await cluster.pod("one", {"app": "solo"})
    await cluster.pod("two", {"app": "solo"}, node="")
    await stop_running(cluster, "two")
    assert await recreated(cluster, "-l", "app=solo", *TO, "--max-unavailable", "2") == 4
    text = output(capsys)
    assert "incomplete: 1 of 1 pods recreated, 1 skipped; two: container app is not running; to restart the" in text
    assert "1 of 2 pods have i:2" in text


@pytest.mark.usefixtures("images")
async def test_pods_without_the_container_are_no_reason_to_call_a_run_incomplete(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.pod("one", {"app": "solo"})
    await cluster.pod("two", {"app": "solo"}, "other")
    assert await recreated(cluster, "-l", "app=solo", *TO, "--max-unavailable", "2") == 0
    assert "done: 1 of 1 pods recreated, 1 skipped" in output(capsys)


async def test_a_container_that_kubelet_has_not_replaced_is_waited_for(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run has failed, and the command is given again: the pod has the image, and runs the old one."""
    await cluster.workload("Deployment", "web", 1)
    images.stuck = True
    words = ("deployment/web", *TO, "--template", "keep")
    assert await recreated(cluster, *words) == 1
    assert "late" in output(capsys)
    again = asyncio.create_task(recreated(cluster, *words))
    await asyncio.sleep(2)
    assert not again.done()
    images.stuck = False
    assert await again == 0
    assert "1 of 1 pods have i:2" in output(capsys)


@pytest.mark.usefixtures("images")
async def test_a_workload_that_loses_its_pods_before_the_run_begins_is_not_done(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("crrd.core.rollout.limits.NODE_SECONDS", 0.5)

    async def lose(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural == "pods" and asked.operation is Operation.UPDATE and asked.dry_run:
            await cluster.client.delete(PODS, NAMESPACE, asked.name, grace_seconds=0)
        return None

    await cluster.workload("Deployment", "web", 1)
    cluster.api.admission.mutating.append(lose)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "adopt") == 4
    assert "deployment.apps/web owns no pods any more" in output(capsys)


@pytest.mark.usefixtures("images")
async def test_an_abort_of_a_run_that_was_killed_at_its_very_end_deletes_its_pull_pods(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    like = await cluster.pod("one", {"app": "solo"})
    assert await recreated(cluster, "pod/one", *TO, "--run", "begun") == 0
    await cluster.client.create(PODS, NAMESPACE, pull_pod(run(name="begun"), "node-a", "i:2", like))
    assert await recreated(cluster, "abort", "begun") == 0
    assert "run begun has already ended (done), so only its pull pods were deleted" in output(capsys)
    assert [pod["metadata"]["name"] for pod in await cluster.pods()] == ["one"]
    with pytest.raises(ConfigurationError, match=r"already ended \(done\), so there is nothing to abort"):
        await recreated(cluster, "abort", "begun")


async def test_a_policy_that_refuses_the_image_of_a_pod_ends_the_run_before_it_begins(
    cluster: PlayedCluster, images: Images
) -> None:
    async def refuse(asked: AdmissionRequest) -> Object | None:
        patched = asked.kind.plural == "pods" and asked.operation is Operation.UPDATE and asked.new is not None
        if patched and image_of(asked.new or {}) == "i:2":
            raise invalid("", "Pod", asked.name, [Cause("spec", "only images of our registry")])
        return None

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.mutating.append(refuse)
    with pytest.raises(ConfigurationError, match=r"rejects the image for pod one, nothing was changed: .* registry"):
        await recreated(cluster, "pod/one", *TO)
    assert await cluster.requests() == []


async def test_a_crd_that_does_not_know_images_is_found_out_first(cluster: PlayedCluster, images: Images) -> None:
    async def prune(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural == "containerrecreaterequests" and asked.new is not None:
            asked.new["spec"]["containers"][0].pop("image", None)
        return asked.new

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.mutating.insert(0, prune)
    with pytest.raises(ConfigurationError, match="the installed CRD or manager does not know images of requests"):
        await recreated(cluster, "pod/one", *TO)
    assert (await cluster.requests(), cluster.stops) == ([], [])


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        (TO, {}, "container 'app' is in the template of deployment.apps/web. Use --template adopt"),
        (("-c", "app", "--image", "i"), {}, "i has no fixed tag"),
        (
            (*TO, "--template", "adopt"),
            {"spec": {"paused": True}},
            "deployment.apps/web is paused: use --template keep, or resume it first",
        ),
        (
            (*TO, "--template", "adopt"),
            {
                "metadata": {
                    "ownerReferences": [
                        {"apiVersion": "x/v1", "kind": "Rollout", "name": "r", "uid": "u", "controller": True}
                    ]
                }
            },
            "deployment.apps/web is owned by Rollout r, which would set its image back",
        ),
        (
            TO,
            {"metadata": {"annotations": {"argocd.argoproj.io/tracking-id": "x"}}},
            "Argo CD manages deployment.apps/web: set the image there, too",
        ),
    ],
)
async def test_what_is_refused(
    cluster: PlayedCluster, images: Images, words: tuple[str, ...], change: Json, message: str
) -> None:
    await cluster.workload("Deployment", "web", 1)
    if change:
        await cluster.client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", change)
    with pytest.raises(ConfigurationError) as caught:
        await recreated(cluster, "deployment/web", *words)
    assert message in str(caught.value)
    assert await cluster.requests() == []


async def test_a_pod_that_can_never_get_the_image_is_named_before_anything_is_written(
    cluster: PlayedCluster, images: Images
) -> None:
    """It would be found out after the last of the other pods."""
    await cluster.workload("Deployment", "web", 2, restartPolicy="OnFailure")
    for more in ((), ("--dry-run",)):
        with pytest.raises(ConfigurationError) as caught:
            await recreated(cluster, "deployment/web", *TO, "--template", "adopt", *more)
        why = "so kubelet may not start it again with an image): fix this first, or use --template keep"
        assert str(caught.value).startswith("deployment.apps/web cannot adopt its pods, because pod web-")
        assert str(caught.value).endswith(why)
    assert await cluster.requests() == []


async def test_what_is_refused_of_pods(cluster: PlayedCluster, images: Images) -> None:
    mirror = {"kubernetes.io/config.mirror": "m", "kubernetes.io/config.hash": "h"}
    await cluster.pod("static", {"app": "static"}, annotations=mirror)
    await cluster.pod("injected", {"app": "injected"}, annotations={"kruise.io/sidecarset-hash": "{}"})
    for words, message in (
        (("pod/static", *TO), "pod static is a static pod: change the image in its file on the node"),
        (("pod/injected", *TO), "container 'app' may be injected by a SidecarSet"),
        (("pod/injected", *TO, "--template", "adopt"), "the template of pod/injected has no container 'app' to change"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await recreated(cluster, *words)
        assert message in str(caught.value)


async def test_a_missing_right_is_named_before_anything_is_written(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lacks(_client: object, wanted: tuple[str, ...], namespace: str) -> tuple[str, ...]:
        rights = ("patch pods", "create,delete pods", "patch deployments.apps", "patch,delete replicasets.apps")
        assert (wanted, namespace) == ((*rights, *MAY_REQUEST), NAMESPACE)
        return ("patch pods", "delete replicasets.apps")

    monkeypatch.setattr("crrd.rollout.image.start.missing_rights", lacks)
    (name,) = await cluster.workload("Deployment", "web", 1)
    message = r"you may not patch pods, delete replicasets\.apps in namespace default"
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, "deployment/web", *TO, "--template", "adopt")
    uid = (await deployment(cluster))["metadata"]["uid"]
    change, web = (
        ImageChange("i:2", ("i:1",), mode=TemplateMode.ADOPT),
        Target("web", "apps/v1", "Deployment", "web", uid),
    )
    uid = (await cluster.client.get(PODS, NAMESPACE, name))["metadata"]["uid"]
    begun = run(image=change, name="begun", target=web).request(name, uid, ("app",))
    await cluster.client.create(REQUESTS, NAMESPACE, begun)
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, "resume", "begun")


@pytest.mark.parametrize("missing", [*((each,) for each in MAY_REQUEST), MAY_REQUEST])
async def test_requests_with_an_image_need_one_of_two_rights(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    async def lacks(*_: object) -> tuple[str, ...]:
        return missing

    monkeypatch.setattr("crrd.rollout.image.start.missing_rights", lacks)
    await cluster.workload("Deployment", "web", 1)
    words = ("deployment/web", *TO, "--template", "keep")
    if missing != MAY_REQUEST:
        assert await recreated(cluster, *words) == 0
        return
    message = "you may not update pods in namespace default; bind the ClusterRole crrd-recreate-image"
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, *words)


@pytest.mark.parametrize(
    ("plural", "change", "message"),
    [
        ("deployments", {}, "rejects the image for deployments web, nothing was changed: .*not by hand"),
        ("replicasets", {}, "rejects the image for replicasets web-.*, nothing was changed: .*not by hand"),
        (
            "deployments",
            {"image": "i@sha256:2"},
            "gives deployments web the image i@sha256:2 instead: use --template keep",
        ),
        (
            "deployments",
            {"imagePullPolicy": "Always"},
            "changes more than the image in the template of deployments web: use --template keep",
        ),
    ],
)
async def test_a_policy_that_refuses_the_template_ends_the_run_before_it_begins(
    cluster: PlayedCluster, images: Images, plural: str, change: Json, message: str
) -> None:
    """It would be found out after the last pod, with the controller held."""

    async def refuse(asked: AdmissionRequest) -> Object | None:
        found = asked.new if asked.kind.plural == plural and asked.operation is Operation.UPDATE else None
        if found is None or image_of(found["spec"]["template"]) != "i:2":
            return None
        if not change:
            raise invalid("apps", "Deployment", asked.name, [Cause("spec", "not by hand")])
        found["spec"]["template"]["spec"]["containers"][0] |= change
        return found

    await cluster.workload("Deployment", "web", 1)
    cluster.api.admission.mutating.append(refuse)
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, "deployment/web", *TO, "--template", "adopt")
    assert await cluster.requests() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--image", "i:2"), "--image needs one container: -c NAME"),
        (("-c", "a,b", "--image", "i:2"), "--image needs one container: -c NAME"),
        (("-c", "a", "--image", "i:2", "--stale"), "--image cannot be used with --stale"),
        (("-c", "a", "--image", "i:2", "--since", "2h"), "--image cannot be used with --since"),
        (("-c", "a", "--template", "keep"), "--template needs --image IMAGE"),
        (("-c", "a", "--allow-mutable-tag"), "--allow-mutable-tag needs --image IMAGE"),
        (("-c", "a", "--pull-resources", "cpu=50m"), "--pull-resources needs --image IMAGE"),
    ],
)
def test_flags_that_do_not_fit(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        command("deployment/web", *words)


async def test_only_a_run_with_an_image_can_be_undone(cluster: PlayedCluster) -> None:
    await cluster.pod("one", {"app": "solo"})
    assert await recreated(cluster, "pod/one", "-c", "app") == 0
    with pytest.raises(ConfigurationError, match="only a run with --image can be undone"):
        await recreated(cluster, "undo", await run_name(cluster))


@pytest.mark.parametrize("pulled", [True, False])
async def test_a_write_that_is_refused_after_all_stops_nothing(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], *, pulled: bool
) -> None:
    """A quota for pull pods, or a policy for pods, that came after the dry run."""
    operation, name = (Operation.UPDATE, "app") if pulled else (Operation.CREATE, "pull")

    async def refuse(asked: AdmissionRequest) -> Object | None:
        pod = asked.new if asked.kind.plural == "pods" and asked.operation is operation and not asked.dry_run else None
        if pod is not None and {"name": name, "image": "i:2"}.items() <= pod["spec"]["containers"][0].items():
            raise invalid("", "Pod", asked.name, [Cause("spec", "out of luck")])
        return None

    await cluster.workload("Deployment", "web", 2)
    before = await images_of(cluster)
    cluster.api.admission.mutating.append(refuse)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "keep") == 1
    text = output(capsys)
    assert "out of luck" in text
    assert ("the API server rejects the pod that would pull i:2" in text) is not pulled
    assert "kubelet cannot pull" not in text
    assert (await images_of(cluster), images.outages) == (before, [])
    open_requests = [each for each in await cluster.requests() if each["status"]["phase"] != "Completed"]
    assert all(STOPPED in each["metadata"]["annotations"] for each in open_requests), "for which the manager ends them"


@pytest.mark.usefixtures("images")
async def test_an_interrupted_clean_up_keeps_the_result(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "pods" and asked.operation is Operation.DELETE:
            raise ApiError(503, "not now")

    cluster.api.admission.validating.append(fail)
    await cluster.workload("Deployment", "web", 1)
    running, text = asyncio.create_task(recreated(cluster, "deployment/web", *TO, "--template", "keep")), ""
    while "cleaning up, retrying" not in text:
        await asyncio.sleep(0.02)
        text += output(capsys)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    text = output(capsys)
    assert text.startswith("done: 1 of 1 pods recreated")
    assert "cleaning up was interrupted; to delete pull pods that are left: kubectl delete pods" in text
    (request,) = await cluster.requests()
    assert '"end":"Done"' in request["metadata"]["annotations"]["crr.apps.kruise.io/run-progress"]


@pytest.mark.parametrize(("status", "failures"), [(503, 2), (503, 9999), (403, 9999)])
@pytest.mark.usefixtures("images")
async def test_what_a_run_leaves_behind_is_deleted_or_named(
    cluster: PlayedCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    failures: int,
) -> None:
    """Pull pods use a node's places for pods, and nobody else deletes them."""
    tried = 0

    async def fail(asked: AdmissionRequest) -> None:
        nonlocal tried
        if asked.kind.plural == "pods" and asked.operation is Operation.DELETE:
            tried += 1
            if tried <= failures:
                raise ApiError(status, "not now")

    monkeypatch.setattr("crrd.rollout.carry_out.CLEAN_UP_SECONDS", 30.0 if failures < 9 else 1.0)
    cluster.api.admission.validating.append(fail)
    await cluster.workload("Deployment", "web", 1)
    assert await recreated(cluster, "deployment/web", *TO, "--template", "keep") == 0
    left = [pod for pod in await cluster.pods() if LABEL_PULL in pod["metadata"].get("labels", {})]
    text = output(capsys)
    remedy = f"to delete them: kubectl delete pods -n {NAMESPACE} -l {LABEL_PULL}={await run_name(cluster)}"
    assert (bool(left), remedy in text.splitlines()[-1]) == (failures > 9, failures > 9)


async def test_a_run_that_stopped_before_its_only_pod_had_the_image_can_be_continued(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 1)
    images.grace = True
    running = asyncio.create_task(recreated(cluster, "deployment/web", *TO, "--template", "keep"))
    while [each.get("status", {}).get("phase") for each in await cluster.requests()] != ["Recreating"]:
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "interrupted: 0 of 1 pods recreated" in output(capsys)
    (first,) = await cluster.requests()
    assert first["metadata"]["annotations"][STOPPED] == "true"
    images.grace = False
    assert await recreated(cluster, "resume", await run_name(cluster)) == 0
    assert "1 of 1 pods have i:2" in output(capsys)
    assert [each["status"]["containerRecreateStates"][0]["phase"] for each in await cluster.requests()] == [
        "Failed",
        "Succeeded",
    ]
    assert images.outages == []


async def test_an_api_server_that_is_busy_for_a_moment_ends_no_run() -> None:
    """What could not be deleted or patched is due again in the next plan."""
    of = run(image=ImageChange("i:2", ("i:1",)))
    pod = member("web-0", container(image="i:1"))
    row = Row("web-0", "uid-web-0", Stage.REQUESTED, member=pod, request=asked(of, pod), containers=("app",))
    pull = PullPod("pull", "u", "run", "node-a", PullState.PULLED)
    busy = Busy()
    writer = ImageWriter(cast("KubeClient", busy), cast("Cluster", busy), cast("ImageObjects", busy), of, TextLines())
    await writer.carry_out(of, Plan((row,), actions=ImageActions(patch=(row,), stop=(row,), drop=(pull,))))
    await writer.end()
    assert sorted(busy.calls) == ["delete", "json_patch", "look_again", "look_again"], "no request of an unknown pod"


class Busy:
    """All calls fail."""

    def __init__(self) -> None:
        self.calls, self.changed, self.sent = list[str](), asyncio.Event(), dict[str, str]()

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: object, **__: object) -> None:
            self.calls.append(name)
            raise ApiUnavailableError("busy")

        return fail
