"""Policies with `action: ReloadOrRestart` through the local API server: containers reload, and stay who they are."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_RELOAD, NODE_DAEMONS
from crrd.kube.resources import CONFIG_MAPS, PODS, POLICIES, REQUESTS
from tests.manager.test_policies import Managed, effective, is_done, is_idle, managing, ready
from tests.manager.test_policy_files import TARGET, VOLUMES
from tests.manager.test_policy_steps import judged
from tests.support.played_cluster import NAMESPACE

FILES = [{"name": "cfg", "mountPath": "/etc/cfg"}]
TRIGGERS = {"configChange": {"settle": "1s", "action": "ReloadOrRestart"}}
HUP = {f"{ANNOTATION_RELOAD}app": '{"signal": "HUP"}'}


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Managed]:
    """Deployment reader has two pods, whose only container reads files, and declares how it reloads."""
    async with managing(tmp_path) as found:
        pods = await found.cluster.workload("Deployment", "reader", 2, "app", volumes=VOLUMES, volumeMounts=FILES)
        for pod in pods:
            await found.cluster.client.merge_patch(PODS, NAMESPACE, pod, {"metadata": {"annotations": HUP}})
        yield found


async def readers(managed: Managed) -> dict[str, str]:
    """The containers of the pods, by pod."""
    pods = [pod for pod in await managed.cluster.pods() if pod["metadata"]["name"].startswith("reader")]
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"] for pod in pods}


async def led(managed: Managed, **spec: Any) -> None:
    await managed.policy(**{"targetRef": TARGET, "triggers": TRIGGERS, **spec})
    await managed.lead()
    await managed.until(is_idle)


async def edit(managed: Managed, **values: str) -> dict[str, Any]:
    """Change the data. Return the status after the run for it."""
    before = (await managed.until(is_idle)).get("run", {}).get("name")
    await managed.config(**values)
    return await managed.until(lambda status: is_done(status) and status["run"]["name"] != before)


async def test_all_pods_reload_once_and_no_container_is_restarted(managed: Managed) -> None:
    await led(managed)
    before = await readers(managed)
    status = await edit(managed, LOG="debug")
    assert [pod for pod, _ in managed.cluster.reloads] == sorted(before)
    assert status["run"]["reload"] is True
    assert status["run"]["message"] == "2 of 2 pods reloaded"
    assert status["run"]["reason"] == "policy web: ConfigMap cfg changed; app reloads"
    assert managed.ended == [("configChange", "succeeded")]
    assert [each for each in await managed.events() if each.startswith("Containers")] == [
        "ContainersRecreating",
        "ContainersRecreated",
    ]
    await managed.die()
    await managed.lead()
    await managed.until(is_idle)
    await edit(managed, LOG="info")
    assert len(managed.cluster.reloads) == 4, "each change once, whoever leads"
    assert (await readers(managed), managed.cluster.stops) == (before, [])


async def test_a_manager_that_dies_in_the_run_is_followed_by_one_that_goes_on(managed: Managed) -> None:
    await led(managed)
    managed.cluster.goes_on.clear()
    await managed.config(LOG="debug")
    await managed.until(lambda _: len(managed.cluster.reloads) == 1)
    await managed.die()
    managed.cluster.goes_on.set()
    await managed.lead()
    await managed.until(is_done)
    assert len(managed.cluster.reloads) == 2
    assert managed.cluster.stops == []


async def test_a_reload_that_fails_stops_the_policy_until_a_user_has_helped(managed: Managed) -> None:
    await led(managed)
    first, *_ = await readers(managed)
    managed.cluster.fails[first] = ("ReloadFailed", "unknown directive")
    await managed.config(LOG="debug")
    status = await managed.until(lambda found: ready(found).get("reason") == "RunFailed")
    assert "unknown directive" in ready(status)["message"]
    assert managed.cluster.reloads == [(first, "app")]
    del managed.cluster.fails[first]
    run = status["run"]["name"]
    assert (await managed.cluster.recreate("resume", run, "--retry-failed", "-n", NAMESPACE)).code == 0
    await managed.cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"metadata": {"labels": {"look": "now"}}})
    status = await managed.until(is_idle)
    assert status["run"]["message"].endswith("all containers of the run have reloaded or were restarted and are ready")
    assert (len(managed.cluster.reloads), managed.cluster.stops) == (3, [])


async def test_the_last_good_data_is_reloaded(managed: Managed) -> None:
    await led(managed, onFailure="Restore")
    await managed.until(lambda found: all(each.get("kept") for each in found.get("revisions", ({},))))
    first, second = await readers(managed)
    managed.cluster.fails[second] = ("ReloadFailed", "unknown directive")
    await managed.config(LOG="debug")
    await managed.until(lambda found: bool(found.get("bad")))
    managed.cluster.fails.clear()
    status = await managed.until(lambda found: is_done(found) and found["run"].get("back", False))
    assert (status["run"]["reload"], status["run"]["message"]) == (True, "2 of 2 pods reloaded")
    assert [pod for pod, _ in managed.cluster.reloads[:3]] == [first, second, first]
    assert managed.cluster.stops == []


async def test_a_pod_that_crashes_after_its_reload_halts_the_run(managed: Managed) -> None:
    await led(managed, budget={"steps": [1]}, judge={"for": "60s"})
    await managed.config(LOG="debug")
    await managed.until(lambda found: "Judging" in ready(found).get("message", ""))
    first, _ = managed.cluster.reloads[0]
    await managed.cluster.crash(first)
    status = await managed.until(lambda found: judged(found).get("status") == "False")
    assert f"{first} has restarted once more" in judged(status)["message"]
    assert managed.cluster.reloads == [(first, "app")]


async def test_a_pod_without_a_declaration_leads_to_a_restart_that_says_why(managed: Managed) -> None:
    await led(managed)
    pods = sorted(await readers(managed))
    without = {"metadata": {"annotations": dict.fromkeys(HUP)}}
    await managed.cluster.client.merge_patch(PODS, NAMESPACE, pods[1], without)
    status = await edit(managed, LOG="debug")
    assert [pod for pod, _ in managed.cluster.stops] == pods
    assert status["run"]["reason"].endswith(
        "; restarting app, because the pod does not declare how the container reloads: the pod has no annotation "
        "reload.crrd.dev/app"
    )
    assert managed.cluster.reloads == []


async def test_an_old_node_daemon_leads_to_a_restart(managed: Managed) -> None:
    labels = dict(each.split("=") for each in NODE_DAEMONS.split(","))
    await managed.cluster.pod("crrd-node-1", labels, "node")
    await led(managed)
    status = await edit(managed, LOG="debug")
    assert "the node daemon on node node-a is too old" in status["run"]["reason"]
    assert (len(managed.cluster.stops), managed.cluster.reloads) == (2, [])
    assert effective(status) == "False"


async def test_an_edit_of_the_policy_in_a_run_ends_it(managed: Managed) -> None:
    """No pod shows that it has reloaded, so the next run restarts all of them."""
    await led(managed)
    managed.cluster.goes_on.clear()
    await managed.config(LOG="debug")
    await managed.until(lambda _: len(managed.cluster.reloads) == 1)
    plain = {"spec": {"triggers": {"configChange": {"action": "Restart"}}}}
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", plain)
    managed.cluster.goes_on.set()
    status = await managed.until(lambda found: is_done(found) and not found["run"].get("reload"))
    assert (len(managed.cluster.stops), len(managed.cluster.reloads)) == (2, 1)
    assert status["run"]["reason"] == "policy web: ConfigMap cfg changed"


async def test_a_window_that_closes_leaves_the_rest_for_the_next_one(managed: Managed) -> None:
    """Also if the requests, which show what has reloaded, are gone by then."""
    await led(managed)
    managed.cluster.goes_on.clear()
    await managed.config(LOG="debug")
    await managed.until(lambda _: len(managed.cluster.reloads) == 1)
    closed = {"spec": {"window": {"cron": "0 0 29 2 *", "duration": "1m"}}}
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", closed)
    await managed.until(lambda found: ready(found).get("reason") == "WaitingForWindow")
    managed.cluster.goes_on.set()
    first, *others = sorted(await readers(managed))
    await managed.die()
    async with asyncio.timeout(20):
        while any(each["status"]["phase"] != "Completed" for each in await managed.cluster.requests()):
            await asyncio.sleep(0.02)
    await managed.lead()
    status = await managed.until(lambda found: bool(found["config"][0].get("lacking")))
    assert status["config"][0]["lacking"] == others
    for request in await managed.cluster.requests():
        await managed.cluster.client.delete(REQUESTS, NAMESPACE, request["metadata"]["name"])
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", {"spec": {"window": None}})
    status = await managed.until(is_done)
    assert [pod for pod, _ in managed.cluster.reloads] == [first, *others]
    assert managed.cluster.stops == []
    assert "lacking" not in status["config"][0]
