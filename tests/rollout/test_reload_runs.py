"""`crrd recreate --reload` against the local API server, on a simulated node: no container is ever stopped."""

import json

import pytest

from crrd.core.api.types import ACTIVE_RELOAD, ANNOTATION_REFRESH, ANNOTATION_RELOAD, LABEL_ACTIVE
from crrd.kube.resources import PODS
from crrd.lib.errors import ConfigurationError
from crrd.lib.formats import read_format
from crrd.rollout.jsonlines import JsonLines
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.sessions import command, recreated

WEB = ("deployment/web", "--reload")
MINE = ("--run", "mine")
HUP = '{"signal": "HUP"}'


async def reloading(cluster: PlayedCluster, replicas: int, *containers: str) -> list[str]:
    """Create a workload whose pods declare how these containers reload."""
    pods = await cluster.workload("Deployment", "web", replicas)
    annotations = {f"{ANNOTATION_RELOAD}{name}": HUP for name in containers or ("app",)}
    for pod in pods:
        await cluster.client.merge_patch(PODS, NAMESPACE, pod, {"metadata": {"annotations": annotations}})
    return pods


async def test_each_pod_reloads_once(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    pods = await reloading(cluster, 3)
    assert await recreated(cluster, *WEB, "--partition", "1", "--yes", *MINE) == 0
    assert (cluster.reloads, cluster.stops) == ([(pod, "app") for pod in pods], [])
    refreshed = {each["metadata"]["annotations"][ANNOTATION_REFRESH] for each in await cluster.pods()}
    for request in await cluster.requests():
        assert request["spec"]["strategy"]["action"] == "Reload"
        assert request["spec"]["strategy"]["reloadContainers"] == ["app"]
        assert request["metadata"]["labels"][LABEL_ACTIVE] == ACTIVE_RELOAD
        assert {request["metadata"]["annotations"][ANNOTATION_REFRESH]} == refreshed
    out = capsys.readouterr().out
    assert "run mine: reload of all containers that declare it of deployment.apps/web, 3 pods" in out
    assert "done: 3 of 3 pods reloaded" in out
    assert await recreated(cluster, *WEB, *MINE) == 0, "the run of this name goes on"
    assert len(cluster.reloads) == 3
    assert await recreated(cluster, "status", "mine") == 0


async def test_a_reload_that_fails_stops_the_run_and_is_tried_again(cluster: PlayedCluster) -> None:
    first, second = await reloading(cluster, 2)
    cluster.fails[first] = ("ReloadFailed", "the reload failed")
    assert await recreated(cluster, *WEB, *MINE) == 1
    assert [pod for pod, _ in cluster.reloads] == [first]
    before = (await cluster.client.get(PODS, NAMESPACE, first))["metadata"]["annotations"][ANNOTATION_REFRESH]
    del cluster.fails[first]
    assert await recreated(cluster, "resume", "mine", "--retry-failed") == 0
    assert [pod for pod, _ in cluster.reloads] == [first, first, second]
    after = (await cluster.client.get(PODS, NAMESPACE, first))["metadata"]["annotations"][ANNOTATION_REFRESH]
    assert before != after, "the files may have changed since"
    assert cluster.stops == []


async def test_containers_that_declare_none_are_left(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1)
    with pytest.raises(ConfigurationError, match="does not declare how container app reloads"):
        await recreated(cluster, *WEB)
    assert (await cluster.requests(), cluster.stops) == ([], [])


async def test_named_containers_reload_in_their_order(cluster: PlayedCluster) -> None:
    (pod,) = await reloading(cluster, 1, "app", "side")
    assert await recreated(cluster, *WEB, "-c", "side,app") == 0
    assert cluster.reloads == [(pod, "side"), (pod, "app")]


async def test_programs_are_told(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await reloading(cluster, 1)
    display = JsonLines(cluster.api.now, shape=read_format("json"))
    assert await recreated(cluster, *WEB, *MINE, display=display) == 0
    begin = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (begin["event"], begin["reload"], begin["containers"]) == ("begin", True, [])
    assert await recreated(cluster, "status", display=display) == 0
    assert [each["reload"] for each in json.loads(capsys.readouterr().out)] == [True]


async def test_a_dry_run_sends_what_a_run_would(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (pod,) = await reloading(cluster, 1)
    assert await recreated(cluster, *WEB, "--dry-run=server") == 0
    assert capsys.readouterr().out == f"batch 1: {pod} (node-a)\n"
    assert (await cluster.requests(), cluster.reloads) == ([], [])


async def test_it_is_another_run_than_a_restart(cluster: PlayedCluster) -> None:
    await reloading(cluster, 2)
    assert await recreated(cluster, *WEB, "--partition", "1", *MINE) == 0
    with pytest.raises(ConfigurationError, match="was started with --reload, but this command has no --reload"):
        await recreated(cluster, "deployment/web", "--stale", *MINE)
    assert await recreated(cluster, "resume", "mine", "--yes") == 0
    assert (len(cluster.reloads), cluster.stops) == (2, [])


async def test_patches_cannot_do_it(cluster: PlayedCluster) -> None:
    await reloading(cluster, 1)
    with pytest.raises(ConfigurationError, match="--reload needs the node daemon, so a run by patches"):
        await recreated(cluster, *WEB, "--via", "patch")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--whole-pod",), "--whole-pod: no container is stopped"),
        (("-c", "app", "--image", "i:2"), "--image: no container is stopped"),
        (("--image-from-template",), "--image-from-template: no container is stopped"),
        (
            ("--stale",),
            "--stale: a container that has reloaded is as old as before, so --stale would find it again",
        ),
    ],
)
def test_what_does_not_fit_is_refused(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        command(*WEB, *flags)
    assert str(caught.value) == f"--reload cannot be used with {problem}"
