"""Policies for pods whose init containers use configuration, through the local API server."""

import asyncio
from pathlib import Path
from typing import Any

from crrd.core.api.types import ACTIVE_POD, LABEL_ACTIVE
from crrd.kube.resources import PODS
from tests.manager.test_policies import ENV_FROM, Managed, effective, is_done, is_idle, managing, ready
from tests.support.played_cluster import NAMESPACE

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "rendered"}


async def rendered(managed: Managed, *, allowed: bool, **config: Any) -> list[str]:
    """Create a workload whose init container uses the ConfigMap, with its policy. Return its pods."""
    pods = await managed.cluster.workload(
        "Deployment", "rendered", 2, initial=[{"name": "setup", "envFrom": ENV_FROM}], **config
    )
    change = {"settle": "1s", "allowPodRestart": allowed}
    await managed.policy(targetRef=TARGET, triggers={"configChange": change})
    await managed.lead()
    await managed.until(lambda status: bool(ready(status)))
    return pods


async def test_a_change_that_an_init_container_uses_restarts_whole_pods(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        pods = await rendered(managed, allowed=True, envFrom=ENV_FROM)
        await managed.until(is_idle)
        await managed.config(LOG="debug")
        status = await managed.until(is_done)
        assert managed.cluster.stops == [(pod, name) for pod in pods for name in ("app", "side")], "each once"
        requests = await managed.cluster.requests()
        assert [each["spec"]["wholePod"] for each in requests] == [True, True]
        assert {each["metadata"]["labels"][LABEL_ACTIVE] for each in requests} == {ACTIVE_POD}
        run = status["run"]
        assert (run["pods"], run["containers"], run["message"]) == (True, ["setup"], "2 of 2 pods recreated")
        assert "which setup uses; restarting whole pods" in run["reason"]
        assert effective(status) == "True"
        restarts = {
            (pod["metadata"]["name"], each["restartCount"])
            for pod in await managed.cluster.pods()
            for each in pod["status"].get("initContainerStatuses", ())
        }
        assert restarts == {(pod, 1) for pod in pods}
        await managed.config(LOG="info")
        await managed.until(lambda status: is_done(status) and status["run"]["name"] != run["name"])
        assert len(managed.cluster.stops) == 8, "the next change restarts them once more"


async def test_without_leave_it_is_out_of_reach(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        await rendered(managed, allowed=False)
        await managed.config(LOG="debug")
        status = await managed.until(lambda status: ready(status).get("reason") == "ConfigOutOfReach")
        assert "configChange.allowPodRestart" in str(ready(status)["message"])
        assert managed.cluster.stops == []


async def test_pods_that_cannot_restart_yet_are_not_tried_again_and_again(tmp_path: Path) -> None:
    """A container of them waits for its image, so a restart of the whole pod is refused."""
    async with managing(tmp_path) as managed:
        pods = await rendered(managed, allowed=True)
        await managed.until(is_idle)
        for name in pods:
            pod = await managed.cluster.client.get(PODS, NAMESPACE, name)
            first, *others = pod["status"]["containerStatuses"]
            pulls = {key: first[key] for key in ("name", "image")}
            pulls |= {"restartCount": 0, "ready": False, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
            body = {"status": {"containerStatuses": [pulls, *others]}}
            await managed.cluster.client.merge_patch(PODS, NAMESPACE, name, body, subresource="status")
        await managed.config(LOG="debug")
        status = await managed.until(lambda status: ready(status).get("reason") == "WaitingForRetry")
        assert sorted(status["run"]["left"]) == sorted(pods)
        await asyncio.sleep(3)
        assert managed.ended == [("configChange", "incomplete")]
        assert managed.cluster.stops == []
