"""How runs with an image end: they keep no pod unready, and the last line names what is left."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_STOPPED as STOPPED
from crrd.core.api.types import PLURAL
from crrd.core.rollout.image.pull import LABEL_PULL, pull_pod
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.rollout import abort, runner
from crrd.rollout.image import abort as image_abort
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import ApiError, Cause, forbidden, invalid
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.rollouts import run
from tests.support.sessions import recreated

Json = dict[str, Any]
TO = ("deployment/web", "-c", "app", "--image", "i:2", "--min-ready", "0")
KEEP = (*TO, "--template", "keep")
ADOPT = (*TO, "--template", "adopt")
DEPLOYMENTS = RESOURCES["Deployment"]


def on_write(
    cluster: PlayedCluster, operation: Operation, plural: str, act: Callable[[AdmissionRequest], Awaitable[object]]
) -> None:
    """Have a webhook for these writes. Dry runs succeed."""

    async def validate(asked: AdmissionRequest) -> None:
        if (asked.operation, asked.kind.plural, asked.dry_run) == (operation, plural, False):
            await act(asked)

    cluster.api.admission.validating.append(validate)


def writes_late(
    monkeypatch: pytest.MonkeyPatch, call: str, plural: str, seconds: float, client: KubeClient
) -> asyncio.Event:
    """Have the API server carry out writes later, also if the caller goes away. Return whether one began."""
    real, tasks, began = getattr(KubeClient, call), list[asyncio.Task[Any]](), asyncio.Event()

    async def late(*parts: Any, **more: Any) -> Any:
        await asyncio.sleep(seconds)
        return await real(client, *parts, **more)

    async def write(caller: KubeClient, resource: Any, *parts: Any, **more: Any) -> Any:
        if resource.plural != plural or more.get("dry_run"):
            return await real(caller, resource, *parts, **more)
        tasks.append(asyncio.create_task(late(resource, *parts, **more)))
        began.set()
        return await asyncio.shield(tasks[-1])

    monkeypatch.setattr(KubeClient, call, write)
    return began


async def left(cluster: PlayedCluster) -> list[str]:
    """Return what a run has left: its pull pods, and pods without the image whose request nobody has ended."""
    pods = {pod["metadata"]["name"]: pod for pod in await cluster.pods()}
    waiting = [
        each["spec"]["podName"]
        for each in await cluster.requests()
        if each.get("status", {}).get("phase") != "Completed" and STOPPED not in each["metadata"]["annotations"]
    ]
    pulls = [name for name, pod in pods.items() if LABEL_PULL in pod["metadata"]["labels"]]
    return [*pulls, *(name for name in waiting if image_of(pods[name]) == "i:1")]


async def phases(cluster: PlayedCluster, *expected: str) -> None:
    """Wait until the requests have these phases."""
    while [each.get("status", {}).get("phase") for each in await cluster.requests()] != [*expected]:
        await asyncio.sleep(0.02)


async def interrupted(running: asyncio.Task[int], capsys: pytest.CaptureFixture[str]) -> str:
    """Interrupt a command. Return its last line."""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return capsys.readouterr().out.splitlines()[-1]


async def run_name(cluster: PlayedCluster) -> str:
    return str((await cluster.requests())[0]["metadata"]["labels"]["crr.apps.kruise.io/run"])


@pytest.mark.parametrize(("aborted", "impatient"), [(True, False), (True, True), (False, False)])
async def test_requests_that_are_being_created_at_the_end_of_a_run_are_ended(
    cluster: PlayedCluster, images: Images, *, aborted: bool, impatient: bool
) -> None:
    """Their pods would be unready until the deadline. The run is aborted, or its first pod fails.

    An impatient user presses Ctrl-C while the process waits for the responses.
    """
    names, slow = await cluster.workload("Deployment", "web", 3), asyncio.Event()
    images.grace = aborted

    async def hold(asked: AdmissionRequest) -> None:
        assert asked.new is not None
        if asked.new["spec"]["podName"] != names[0]:
            await slow.wait()
        elif not aborted:
            images.on_node.discard("i:2")

    on_write(cluster, Operation.CREATE, PLURAL, hold)
    running = asyncio.create_task(recreated(cluster, *KEEP, "--max-unavailable", "3"))
    await phases(cluster, "Recreating" if aborted else "Completed")
    images.grace = True
    images.on_node.add("i:2")
    if aborted:
        assert await recreated(cluster, "abort", await run_name(cluster)) == 0
    await asyncio.sleep(1.5)  # until the process has seen that
    if impatient:
        running.cancel()
        await asyncio.sleep(0.2)
    slow.set()
    if impatient:
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        assert await running == 1
    assert len(await cluster.requests()) == 3
    assert await left(cluster) == []


async def test_a_failed_first_part_ends_the_request_of_the_failed_pod(cluster: PlayedCluster, images: Images) -> None:
    await cluster.workload("Deployment", "web", 3)

    async def refuse(asked: AdmissionRequest) -> None:
        assert asked.new is not None
        if {"name": "app", "image": "i:2"}.items() <= asked.new["spec"]["containers"][0].items():
            raise invalid("", "Pod", asked.name, [Cause("spec", "out of luck")])

    on_write(cluster, Operation.UPDATE, PODS.plural, refuse)
    assert await recreated(cluster, *KEEP, "--partition", "1", "--max-failures", "2") == 1
    assert await left(cluster) == []


async def test_a_request_that_is_being_created_at_ctrl_c_is_ended(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload("Deployment", "web", 1)
    images.grace = True
    began = writes_late(monkeypatch, "create", PLURAL, 0.5, cluster.client)
    running = asyncio.create_task(recreated(cluster, *KEEP))
    await began.wait()
    assert "; to continue: " in await interrupted(running, capsys)
    assert len(await cluster.requests()) == 1
    assert await left(cluster) == []


async def test_a_pod_that_gets_the_image_at_ctrl_c_keeps_its_request(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request drains the pod, and sees its restart."""
    await cluster.workload("Deployment", "web", 1)
    began = writes_late(monkeypatch, "json_patch", PODS.plural, 0.5, cluster.client)
    running = asyncio.create_task(recreated(cluster, *KEEP))
    await began.wait()
    await interrupted(running, capsys)
    await phases(cluster, "Completed")
    (request,) = await cluster.requests()
    assert request["status"]["containerRecreateStates"][0]["phase"] == "Succeeded"


async def test_a_hold_that_is_under_way_at_ctrl_c_is_named(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload("Deployment", "web", 1)
    began = writes_late(monkeypatch, "json_patch", DEPLOYMENTS.plural, 0.5, cluster.client)
    running = asyncio.create_task(recreated(cluster, *ADOPT))
    await began.wait()
    assert "; so has the template, but its controller is still held by run " in await interrupted(running, capsys)
    assert (await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"]["paused"]


async def test_a_write_without_an_answer_at_ctrl_c_is_named(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload("Deployment", "web", 1)
    monkeypatch.setattr(runner, "ANSWER_SECONDS", 0.2)
    began = writes_late(monkeypatch, "json_patch", DEPLOYMENTS.plural, 600.0, cluster.client)
    running = asyncio.create_task(recreated(cluster, *ADOPT))
    await began.wait()
    line = await interrupted(running, capsys)
    assert "the API server has not answered a write within 5s, and may still carry it out; to see what" in line
    assert f"; to end it: crrd recreate abort {await run_name(cluster)} -n default (after" in line


async def test_a_workload_that_cannot_be_read_at_ctrl_c_may_be_held(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload("Deployment", "web", 1)
    began, real = writes_late(monkeypatch, "json_patch", DEPLOYMENTS.plural, 0.2, cluster.client), KubeClient.get

    async def get(client: KubeClient, resource: Any, *parts: Any, **more: Any) -> Any:
        if began.is_set() and resource.plural == DEPLOYMENTS.plural:
            raise ApiUnavailableError("not now")
        return await real(client, resource, *parts, **more)

    monkeypatch.setattr(KubeClient, "get", get)
    running = asyncio.create_task(recreated(cluster, *ADOPT))
    await began.wait()
    line = await interrupted(running, capsys)
    assert "; whether the controller of deployment.apps/web is still held is unknown: not now (after" in line


@pytest.mark.parametrize("ended", [True, False])
async def test_an_event_that_hangs_delays_no_clean_up(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], *, ended: bool
) -> None:
    """The user presses Ctrl-C, also after the end of the run."""
    await cluster.workload("Deployment", "web", 1)
    images.grace, hangs, hanging = True, ended, asyncio.Event()

    async def hang(asked: AdmissionRequest) -> None:
        if hangs and asked.new is not None and asked.new["reason"] != "ContainersRecreating":
            hanging.set()
            await asyncio.sleep(60)

    on_write(cluster, Operation.CREATE, "events", hang)
    running = asyncio.create_task(recreated(cluster, *KEEP, *(["--timeout", "2s"] if ended else [])))
    await phases(cluster, "Recreating")
    hangs = True
    if ended:
        await hanging.wait()
    line = await interrupted(running, capsys)
    assert line.startswith("timed out: 0 of 1 pods" if ended else "interrupted: 0 of 1 pods")
    assert await left(cluster) == []


async def test_a_failure_whose_explanation_hangs_has_its_last_line(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload("Deployment", "web", 1)
    images.stuck = True
    explaining, real = asyncio.Event(), KubeClient.get

    async def get(client: KubeClient, resource: Any, *parts: Any, **more: Any) -> Any:
        if resource.plural == PLURAL:
            explaining.set()
            await asyncio.sleep(60)
        return await real(client, resource, *parts, **more)

    monkeypatch.setattr(KubeClient, "get", get)
    running = asyncio.create_task(recreated(cluster, *KEEP))
    await explaining.wait()
    assert (await interrupted(running, capsys)).startswith("failed: 0 of 1 pods recreated")
    assert await left(cluster) == []


async def test_what_is_left_at_ctrl_c_is_named(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 1)
    images.grace = True

    async def refuse(_: AdmissionRequest) -> None:
        raise ApiError(403, "you may not")

    on_write(cluster, Operation.DELETE, PODS.plural, refuse)
    running = asyncio.create_task(recreated(cluster, *KEEP))
    await phases(cluster, "Recreating")
    line = await interrupted(running, capsys)
    assert "its pull pods could not be deleted: " in line
    assert f"; to delete them: kubectl delete pods -n default -l {LABEL_PULL}={await run_name(cluster)} (" in line


async def held(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> str:
    """Interrupt a run while it holds the controller, and leave a pull pod. Return the run's name."""
    refuses = True

    async def refuse(asked: AdmissionRequest) -> None:
        if refuses:
            raise invalid("", "ReplicaSet", asked.name, [Cause("spec", "not now")])

    (pod,) = await cluster.workload("Deployment", "web", 1)
    on_write(cluster, Operation.UPDATE, "replicasets", refuse)
    running = asyncio.create_task(recreated(cluster, *ADOPT))
    while not (await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"].get("paused"):
        await asyncio.sleep(0.02)
    assert "its controller is still held" in await interrupted(running, capsys)
    refuses, name = False, await run_name(cluster)
    like = await cluster.client.get(PODS, NAMESPACE, pod)
    await cluster.client.create(PODS, NAMESPACE, pull_pod(run(name=name), "node-a", "i:2", like))
    return name


@pytest.mark.parametrize("status", [403, 503])
async def test_an_abort_that_cannot_delete_a_pull_pod_releases_the_controller(
    cluster: PlayedCluster,
    images: Images,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    name = await held(cluster, capsys)

    async def refuse(_: AdmissionRequest) -> None:
        raise ApiError(status, "you may not")

    on_write(cluster, Operation.DELETE, PODS.plural, refuse)
    monkeypatch.setattr(image_abort, "CLEAN_UP_SECONDS", 1.0)
    assert await recreated(cluster, "abort", name) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert "; give the command again, because its pull pods could not be deleted: " in line
    assert "1 of 1 pods have i:2; so has the template; give" in line
    assert "paused" not in (await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"]


async def test_a_second_interruption_does_not_hide_a_write_without_an_answer(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload("Deployment", "web", 1)
    began = writes_late(monkeypatch, "json_patch", DEPLOYMENTS.plural, 600.0, cluster.client)
    running = asyncio.create_task(recreated(cluster, *ADOPT))
    await began.wait()
    running.cancel()
    await asyncio.sleep(0)
    assert "has not answered a write" in await interrupted(running, capsys)


async def test_an_abort_that_cannot_see_whether_a_controller_is_held_says_so(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await held(cluster, capsys)

    async def fail(*_: object) -> None:
        raise ApiUnavailableError("the API server is busy")

    monkeypatch.setattr(abort, "cluster_of", fail)
    assert await recreated(cluster, "abort", name) == 1
    why = "whether the controller of deployment.apps/web is still held is unknown: the API server is busy"
    assert capsys.readouterr().out.endswith(f"; {why}\n")


@pytest.mark.parametrize("template", ["keep", "adopt"])
async def test_a_run_that_is_done_is_not_aborted_once_its_workload_is_gone(
    cluster: PlayedCluster, images: Images, template: str
) -> None:
    await cluster.workload("Deployment", "web", 1)
    assert await recreated(cluster, *TO, "--template", template, "--run", "mine") == 0
    await cluster.client.delete(RESOURCES["Deployment"], NAMESPACE, "web")
    with pytest.raises(ConfigurationError, match=r"run mine has already ended \(done\), so there is nothing to abort"):
        await recreated(cluster, "abort", "mine")


@pytest.mark.parametrize(("words", "plural"), [(TO[:3], PLURAL), (KEEP, PLURAL), (KEEP, "pods")])
@pytest.mark.usefixtures("images")
async def test_a_run_stops_if_its_namespace_is_being_deleted(
    cluster: PlayedCluster, words: tuple[str, ...], plural: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request can be created there, which is no failure of a pod. Nobody can resume or undo the run."""

    async def end(_: AdmissionRequest) -> None:
        cause = Cause("metadata.namespace", "namespace default is being terminated", "NamespaceTerminating")
        raise forbidden("", plural, "one", "unable to create new content in namespace default", cause)

    await cluster.workload("Deployment", "web", 2)
    on_write(cluster, Operation.CREATE, plural, end)
    with pytest.raises(ConfigurationError):
        await recreated(cluster, *words, "--max-failures", "9")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("stopped: 0 of 2 pods recreated; the namespace is being deleted: create /ap")
    assert "bind" not in last
