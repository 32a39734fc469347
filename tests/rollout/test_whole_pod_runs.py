"""`crrd recreate --whole-pod` against the local API server, on a simulated node."""

import json

import pytest

from crrd.core.api.types import ACTIVE_POD, LABEL_ACTIVE
from crrd.lib.errors import ConfigurationError
from crrd.lib.formats import read_format
from crrd.rollout.jsonlines import JsonLines
from tests.support.played_cluster import PlayedCluster
from tests.support.sessions import command, recreated

WEB = ("deployment/web", "--whole-pod")
MINE = ("--run", "mine")


async def test_each_pod_restarts_once_with_all_of_its_containers(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = await cluster.workload("Deployment", "web", 3)
    assert await recreated(cluster, *WEB, "--partition", "1", "--yes", *MINE) == 0
    assert cluster.stops == [(pod, name) for pod in pods for name in ("app", "side")]
    for request in await cluster.requests():
        assert request["spec"]["wholePod"] is True
        assert [each["name"] for each in request["spec"]["containers"]] == ["app", "side"]
        assert request["metadata"]["labels"][LABEL_ACTIVE] == ACTIVE_POD
    assert "run mine: all containers (whole pods) of deployment.apps/web, 3 pods" in capsys.readouterr().out
    assert await recreated(cluster, *WEB, *MINE) == 0, "the run of this name goes on"
    assert len(cluster.stops) == 6
    assert await recreated(cluster, "status", "mine") == 0
    assert "all containers (whole pods) of deployment.apps/web" in capsys.readouterr().out


async def test_programs_are_told(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await cluster.workload("Deployment", "web", 1)
    display = JsonLines(cluster.api.now, shape=read_format("json"))
    assert await recreated(cluster, *WEB, *MINE, display=display) == 0
    begin = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (begin["event"], begin["wholePod"], begin["containers"]) == ("begin", True, [])
    assert await recreated(cluster, "status", display=display) == 0
    assert [each["wholePod"] for each in json.loads(capsys.readouterr().out)] == [True]


async def test_a_dry_run_sends_what_a_run_would(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (pod,) = await cluster.workload("Deployment", "web", 1)
    assert await recreated(cluster, *WEB, "--dry-run=server") == 0
    assert capsys.readouterr().out == f"batch 1: {pod} (node-a)\n"
    assert (await cluster.requests(), cluster.stops) == ([], [])


async def test_it_is_another_run_than_a_plain_one(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2)
    assert await recreated(cluster, *WEB, "--partition", "1", *MINE) == 0
    again = ": use another --run NAME, or resume it: crrd recreate resume mine -n default"
    for words, differs in (
        (("deployment/web", "--stale"), "was started with --whole-pod, but this command has no --whole-pod"),
        (("deployment/web", "-c", "app"), "recreates all containers (whole pods), not app"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await recreated(cluster, *words, *MINE)
        assert str(caught.value) == f"run mine {differs}{again}"
    with pytest.raises(ConfigurationError, match="--ordered cannot be used with --whole-pod"):
        await recreated(cluster, "resume", "mine", "--ordered")
    assert await recreated(cluster, "resume", "mine", "--yes") == 0
    assert len(cluster.stops) == 4


@pytest.mark.parametrize("way", [(), ("--via", "daemon")])
async def test_containers_have_no_order_of_the_user(cluster: PlayedCluster, way: tuple[str, ...]) -> None:
    await cluster.workload("Deployment", "web", 1)
    with pytest.raises(ConfigurationError, match="--ordered cannot be used with --whole-pod: kubelet stops and starts"):
        await recreated(cluster, *WEB, "--ordered", *way)


async def test_patches_cannot_do_it(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1)
    with pytest.raises(ConfigurationError, match="--whole-pod needs the node daemon, so a run by patches"):
        await recreated(cluster, *WEB, "--via", "patch")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            ("-c", "app"),
            "--container: all containers of a pod restart (-c is for the init container that gets an --image)",
        ),
        (("--image-from-template",), "--image-from-template: it gives containers that run another image"),
    ],
)
def test_what_does_not_fit_is_refused(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        command(*WEB, *flags)
    assert str(caught.value) == f"--whole-pod cannot be used with {problem}"
