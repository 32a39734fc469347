"""How runs with an image end: they keep no pod unready, and the last line names what is left."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from crrd.core.rollout.pull import pull_pod
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiUnavailableError
from crrd.rollout import clean_up
from crrd.rollout.session import Session
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import ApiError, Cause, invalid
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images
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


async def interrupted(running: asyncio.Task[int], capsys: pytest.CaptureFixture[str]) -> str:
    """Interrupt a command. Return its last line."""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return capsys.readouterr().out.splitlines()[-1]


async def run_name(cluster: PlayedCluster) -> str:
    return str((await cluster.requests())[0]["metadata"]["labels"]["crr.apps.kruise.io/run"])


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
    monkeypatch.setattr(clean_up.CleanUp.finish, "__defaults__", (1.0,))
    assert await recreated(cluster, "abort", name) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert "; give the command again, because its pull pods could not be deleted: " in line
    assert "1 of 1 pods have i:2; so has the template; give" in line
    assert "paused" not in (await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"]


async def test_an_abort_that_cannot_see_whether_a_controller_is_held_says_so(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await held(cluster, capsys)
    real, calls = Session.cluster_of, list[object]()

    async def fail_later(session: Session, of: Any) -> Any:
        calls.append(of)
        if len(calls) > 1:
            raise ApiUnavailableError("the API server is busy")
        return await real(session, of)

    monkeypatch.setattr(Session, "cluster_of", fail_later)
    assert await recreated(cluster, "abort", name) == 1
    why = "whether the controller of deployment.apps/web is still held is unknown: the API server is busy"
    assert capsys.readouterr().out.endswith(f"; {why}\n")
