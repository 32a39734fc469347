"""Runs with an image whose objects change between a look and a write."""

import asyncio
import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.pod import parse_pod
from crrd.core.api.types import PLURAL
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.lifecycle.steps import Complete, next_steps
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.controllers import Adoption, set_label
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.steps import ImageActions
from crrd.core.rollout.image.template import LABEL_ADOPTING, LABEL_REVISION
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.progress import ANNOTATION_PROGRESS
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import read_member
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.rollout.kinds import make_cluster, make_writer
from crrd.rollout.target import Aim
from crrd.rollout.text import TextLines
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images
from tests.support.sessions import recreated

Json = dict[str, Any]
CHANGE = ImageChange("i:2", ("i:1",), pulls=False)
RUN = Run(
    NAMESPACE,
    "mine",
    Target("pods app=web", selector="app=web"),
    Options(("app",), image=CHANGE),
    "2026-01-01T12:00:00Z",
)


async def witnessed(cluster: PlayedCluster, *, patched: str) -> None:
    """The run's process was killed after it had patched a pod. The node has not seen that yet."""
    for pod in await cluster.pods():
        name = pod["metadata"]["name"]
        made = await cluster.client.create(REQUESTS, NAMESPACE, RUN.request(name, pod["metadata"]["uid"], ("app",)))
        state = {"name": "app", "phase": "Pending", "reason": "ImagePresent", "message": "present"}
        status = {"status": {"phase": "Recreating", "containerRecreateStates": [state]}}
        await cluster.client.merge_patch(REQUESTS, NAMESPACE, made["metadata"]["name"], status, subresource="status")
    image = {"op": "replace", "path": "/spec/containers/0/image", "value": "i:2"}
    await cluster.client.json_patch(PODS, NAMESPACE, patched, (image,))


async def served(cluster: PlayedCluster) -> list[str]:
    """Return the pods whose requests neither were deleted nor are ended by the manager."""
    pods = {pod["metadata"]["name"]: parse_pod(pod) for pod in await cluster.pods()}
    there, now = map(parse_request, await cluster.requests()), cluster.api.now()
    steps = {each.pod_name: next_steps(each, pods[each.pod_name], now).actions for each in there}
    return [name for name, actions in steps.items() if not any(isinstance(each, Complete) for each in actions)]


@pytest.mark.parametrize("patched", ["web-0", "web-1"])
async def test_an_abort_keeps_the_request_of_a_pod_that_has_just_got_the_image(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], patched: str
) -> None:
    """Kubelet replaces its container. Without the request, the pod would not be drained, and nobody would see it."""
    for name in ("web-0", "web-1"):
        await cluster.pod(name, {"app": "web"})
    await witnessed(cluster, patched=patched)
    assert await recreated(cluster, "abort", "mine") == 0
    assert capsys.readouterr().out == "run mine aborted, pending requests ended: 1; 1 in progress will finish\n"
    assert await served(cluster) == [patched]
    assert await recreated(cluster, "abort", "mine") == 0, "the first one could have been killed before its last write"
    assert await served(cluster) == [patched]


async def test_an_abort_ends_a_request_that_is_created_at_the_same_time(cluster: PlayedCluster) -> None:
    """By a process of the run, which was killed after that."""
    for name in ("web-0", "web-1"):
        await cluster.pod(name, {"app": "web"})

    async def request(name: str) -> None:
        uid = (await cluster.client.get(PODS, NAMESPACE, name))["metadata"]["uid"]
        await cluster.client.create(REQUESTS, NAMESPACE, RUN.request(name, uid, ("app",)))

    async def create(asked: AdmissionRequest) -> None:
        if asked.operation is Operation.UPDATE and asked.kind.plural == PLURAL and len(await cluster.requests()) == 1:
            await request("web-1")

    await request("web-0")
    cluster.api.admission.validating.append(create)
    assert await recreated(cluster, "abort", "mine") == 0
    assert len(await cluster.requests()) == 2
    assert await served(cluster) == []


@pytest.mark.parametrize("verb", ["abort", "undo"])
@pytest.mark.parametrize(("completed", "kept"), [(("10", "30", "20"), "web-1"), (("10", "", "20"), "web-1")])
async def test_the_end_of_a_run_is_recorded_where_it_will_live_longest(
    cluster: PlayedCluster, images: Images, verb: str, completed: tuple[str, ...], kept: str
) -> None:
    """On the request that completed last, or is open. With the others, the end would be deleted a moment too early."""
    for name, seconds in zip(("web-0", "web-1", "web-2"), completed, strict=True):
        uid = (await cluster.pod(name, {"app": "web"}))["metadata"]["uid"]
        made = await cluster.client.create(REQUESTS, NAMESPACE, RUN.request(name, uid, ("app",)))
        state = {"name": "app", "phase": "Failed", "reason": "RunStopped", "message": "stopped"}
        status = {"phase": "Completed", "completionTime": f"2026-01-01T12:00:{seconds}Z"} if seconds else {}
        body = {"status": {**status, "containerRecreateStates": [state]}}
        await cluster.client.merge_patch(REQUESTS, NAMESPACE, made["metadata"]["name"], body, subresource="status")
    await images.give("i:2")
    assert await recreated(cluster, verb, "mine", *([] if verb == "abort" else ["--min-ready", "0"])) == 0
    ended = [each for each in map(parse_request, await cluster.requests()) if each.aborted]
    assert [each.pod_name for each in ended] == [kept]


async def test_an_abort_that_may_not_read_a_pod_does_all_the_rest(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("web-0", "web-1"):
        await cluster.pod(name, {"app": "web"})
    await witnessed(cluster, patched="web-0")
    real, asked = KubeClient.get, list[str]()

    async def get(client: KubeClient, resource: Resource, namespace: str, name: str, **more: Any) -> Any:
        if resource is PODS and not asked:
            asked.append(name)
            raise ApiRefusedError("the server refuses this once", status=403)
        return await real(client, resource, namespace, name, **more)

    monkeypatch.setattr(KubeClient, "get", get)
    assert await recreated(cluster, "abort", "mine") == 1
    text = capsys.readouterr().out
    left = "requests of pods without the image end only at their deadline: the server refuses this once"
    assert text.endswith(f"; give the command again, because {left}\n")
    aborted = [parse_request(each).aborted for each in await cluster.requests()]
    assert await recreated(cluster, "abort", "mine") == 0
    assert await served(cluster) == ["web-0"]
    assert [parse_request(each).aborted for each in await cluster.requests()] == aborted, "the time of the first one"


async def test_an_undo_ends_the_requests_of_pods_that_it_does_not_restart(cluster: PlayedCluster) -> None:
    """They do not have the image, and would be unready until their deadline."""
    for name in ("web-0", "web-1"):
        await cluster.pod(name, {"app": "web"})
    await witnessed(cluster, patched="web-1")
    undo = asyncio.create_task(recreated(cluster, "undo", "mine"))
    while len(await cluster.requests()) < 3:
        await asyncio.sleep(0.02)
    (pod,) = await served(cluster)
    assert pod == "web-1", "with the request of the undo"
    undo.cancel()
    with pytest.raises(asyncio.CancelledError):
        await undo


async def test_a_pod_that_is_replaced_before_it_gets_its_label_keeps_its_own(cluster: PlayedCluster) -> None:
    """The watch has not reported it yet. The new pod has the same name, and the run goes on with it."""
    labels = {"app": "web", LABEL_REVISION: "one"}
    old = await cluster.pod("web-0", labels)
    seen = make_cluster(cluster.client, NAMESPACE, Aim(RUN.target), RUN.options)  # without its watches
    seen.pod_written(old)
    await cluster.client.delete(PODS, NAMESPACE, "web-0", grace_seconds=0)
    new = await cluster.pod("web-0", labels)
    facts = ImageRun.of(seen.world(), RUN).with_change(replace(CHANGE, image="i:1"))
    actions = ImageActions(adoption=Adoption((set_label(facts, read_member(old), "one", "two"),)))
    await make_writer(cluster.client, seen, RUN, TextLines(), ServerClock()).carry_out(RUN, Plan((), actions=actions))
    assert [each.pod.uid for each in seen.world().members] == [new["metadata"]["uid"]]
    assert (await cluster.client.get(PODS, NAMESPACE, "web-0"))["metadata"]["labels"] == labels


async def requests_of(cluster: PlayedCluster, running: asyncio.Task[int]) -> list[Json]:
    """Return the requests of a run once it has made one."""
    while not (made := await cluster.requests()):
        assert not running.done()
        await asyncio.sleep(0.02)
    return made


async def recreated_meanwhile(
    cluster: PlayedCluster, images: Images, *, template: str
) -> tuple[asyncio.Task[int], Json]:
    """Return a run whose only pod is deleted while it has its request, and the metadata of the pod."""
    (name,) = await cluster.workload("Deployment", "web", 1)
    images.grace = True
    words = ("deployment/web", "-c", "app", "--image", "i:2", "--min-ready", "0", "--template", template)
    running = asyncio.create_task(recreated(cluster, *words))
    while [each.get("status", {}).get("phase") for each in await cluster.requests()] != ["Recreating"]:
        await asyncio.sleep(0.02)
    (pod,) = [each for each in await cluster.pods() if each["metadata"]["name"] == name]
    await cluster.client.delete(PODS, NAMESPACE, name, grace_seconds=0)
    images.grace = False
    return running, pod["metadata"]


@pytest.mark.parametrize("template", ["adopt", "keep"])
async def test_a_single_pod_that_is_recreated_during_the_run_gets_the_image(
    cluster: PlayedCluster, images: Images, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (running, meta), output = await recreated_meanwhile(cluster, images, template=template), ""
    while "waiting for new pods of deployment.apps/web, it has 0 of 1" not in output:
        await asyncio.sleep(0.05)
        output += capsys.readouterr().out
    owners = {"ownerReferences": meta["ownerReferences"]}
    await cluster.pod("web-next", meta["labels"], "app", "side", **owners)
    assert await running == 0
    assert "1 of 1 pods have i:2" in capsys.readouterr().out


@pytest.mark.parametrize("template", ["adopt", "keep"])
async def test_a_pod_that_is_terminating_when_a_run_starts_is_no_reason_to_do_nothing(
    cluster: PlayedCluster, images: Images, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next one has the image from before, so the run waits for it."""
    (name,) = await cluster.workload("Deployment", "web", 1)
    meta = {"metadata": {"finalizers": ["shop.example/goes-slowly"]}}
    old = dict(await cluster.client.merge_patch(PODS, NAMESPACE, name, meta))["metadata"]
    await cluster.client.delete(PODS, NAMESPACE, name, grace_seconds=0)
    words = ("deployment/web", "-c", "app", "--image", "i:2", "--template", template)
    assert await recreated(cluster, *words, "--dry-run") == 0
    missing = "waiting for new pods of deployment.apps/web, it has 0 of 1"
    assert f"then waits: {missing}" in capsys.readouterr().out
    assert await recreated(cluster, "deployment/web", "-c", "app", "--dry-run") == 0
    assert "nothing to do" in capsys.readouterr().out, "a restart is for pods that were there before it"
    running, output = asyncio.create_task(recreated(cluster, *words)), ""
    while missing not in output and "waiting for a pod of deployment.apps/web" not in output:
        assert not running.done()
        await asyncio.sleep(0.05)
        output += capsys.readouterr().out
    await cluster.pod("web-next", old["labels"], "app", "side", ownerReferences=old["ownerReferences"])
    made = [each for each in await requests_of(cluster, running) if each["spec"]["podName"] == "web-next"]
    recorded = read_run_request(made[0])
    assert recorded is not None
    assert recorded.run.options.min_ready == 10, "its container has no readiness probe, as that of the pod before"
    assert await recreated(cluster, "abort", recorded.run.name) == 0
    assert await running == 1


@pytest.mark.parametrize("scaled", [False, True])
async def test_a_run_does_not_wait_forever_for_pods(
    cluster: PlayedCluster, images: Images, monkeypatch: pytest.MonkeyPatch, scaled: bool
) -> None:
    """The quota of the namespace may not allow the next pod. A workload that was scaled to 0 is not waited for."""
    monkeypatch.setattr("crrd.core.rollout.limits.NODE_SECONDS", 30.0 if scaled else 0.5)
    running, _ = await recreated_meanwhile(cluster, images, template="keep")
    if scaled:
        await cluster.client.merge_patch(RESOURCES["Deployment"], NAMESPACE, "web", {"spec": {"replicas": 0}})
    async with asyncio.timeout(15):
        assert await running == (0 if scaled else 4)


async def one_of_two(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], *more: str) -> asyncio.Task[int]:
    """Return a run that waits because one of two pods was deleted. The other one is done."""
    (*_, gone), output = await cluster.workload("Deployment", "web", 2), ""
    words = (
        "deployment/web",
        "-c",
        "app",
        "--image",
        "i:2",
        "--min-ready",
        "0",
        "--template",
        "keep",
        "--run",
        "first",
    )
    running = asyncio.create_task(recreated(cluster, *words, "--max-unavailable", "2", *more))
    await cluster.client.delete(PODS, NAMESPACE, gone, grace_seconds=0)
    while "waiting for new pods of deployment.apps/web, it has 1 of 2" not in output:
        await asyncio.sleep(0.05)
        output += capsys.readouterr().out
    return running


async def test_others_see_that_a_run_waits_for_a_pod(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await one_of_two(cluster, capsys)
    with pytest.raises(ConfigurationError, match="is not finished"):
        await recreated(cluster, "deployment/web", "-c", "app", "--image", "i:3", "--template", "keep")
    await recreated(cluster, "status", "first")
    assert "waiting (Restarting): 1 of 1" in capsys.readouterr().out
    assert await recreated(cluster, "abort", "first") == 0
    assert await running == 1


async def test_a_run_that_is_done_but_for_a_pod_that_does_not_come_is_done_at_its_timeout(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await (await one_of_two(cluster, capsys, "--timeout", "3s")) == 0


@pytest.mark.parametrize("container", ["app", "side"])
async def test_a_run_that_was_killed_before_it_recorded_its_end_is_ended_by_resume(
    cluster: PlayedCluster, images: Images, container: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then, no other run begins. It still held the controller."""
    await cluster.workload("Deployment", "web", 2)
    words = ("deployment/web", "-c", "app", "--image", "i:2", "--min-ready", "0", "--template", "adopt")
    assert await recreated(cluster, *words, "--run", "first") == 0
    for request in await cluster.requests():
        if progress := request["metadata"]["annotations"].get(ANNOTATION_PROGRESS):
            killed = {**json.loads(progress), "phase": "Releasing", "by": f"{socket.gethostname()}/{2**22 + 1}"}
            killed.pop("end", None)
            body = {"metadata": {"annotations": {ANNOTATION_PROGRESS: json.dumps(killed)}}}
            await cluster.client.merge_patch(REQUESTS, NAMESPACE, request["metadata"]["name"], body)
    resource, labels = RESOURCES["Deployment"], {"labels": {LABEL_ADOPTING: "first"}}
    held = {"metadata": labels, "spec": {"paused": True}}
    await cluster.client.merge_patch(resource, NAMESPACE, "web", held)
    with pytest.raises(ConfigurationError, match=r"run first on deployment\.apps/web is not finished"):
        await recreated(cluster, "deployment/web", "-c", container)
    capsys.readouterr()
    assert await recreated(cluster, "status", "first") == 0
    assert "stopped (Releasing): 2 of 2 pods recreated" in capsys.readouterr().out
    assert await recreated(cluster, "resume", "first") == 0
    assert "done: 2 of 2 pods recreated" in capsys.readouterr().out
    assert "paused" not in (await cluster.client.get(resource, NAMESPACE, "web"))["spec"]
    assert await recreated(cluster, "deployment/web", "-c", container, "--run", "second") == 0
