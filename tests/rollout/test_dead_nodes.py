"""`crrd recreate` on pods of which some are on a node that is down."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crrd.core.api.reasons import Reason
from crrd.kube.resources import NODES, REQUESTS
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.sessions import recreated

DAEMON = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}
COMMAND = ("-l", "app=web", "-c", "app", "--run", "r")
OTHERS = [("web-1", "app"), ("web-2", "app"), ("web-3", "app")]


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayedCluster]:
    """Four pods, one on node-b, and a daemon on each node."""
    monkeypatch.setattr("crrd.core.rollout.limits.NODE_SECONDS", 0.3)
    async with played(tmp_path) as found:
        for number in range(4):
            await found.pod(f"web-{number}", {"app": "web"}, node="node-a" if number else "node-b")
        for node in ("node-a", "node-b"):
            await found.pod(f"crrd-{node}", DAEMON, node=node)
        yield found


async def goes_down(cluster: PlayedCluster) -> None:
    """The node controller notices that node-b is dead."""
    for name in ("web-0", "crrd-node-b"):
        await cluster.set_ready(name, ready=False)


async def test_the_others_are_restarted_and_the_rest_when_the_node_is_back(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await goes_down(cluster)
    assert await recreated(cluster, *COMMAND, "--max-unavailable", "2", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "put off: web-0 (the node daemon on node node-b is not ready (kubectl get pods -A -l " in out
    assert await recreated(cluster, *COMMAND, "--max-unavailable", "2") == 4
    assert sorted(cluster.stops) == OTHERS
    out = capsys.readouterr().out
    assert "incomplete: 3 of 4 pods recreated, 1 put off; web-0: the node daemon on node node-b is not ready" in out
    assert "once the node is back, to continue: crrd recreate resume r -n default" in out
    assert await recreated(cluster, "status", "r") == 0
    assert "\nincomplete (Over): 3 of 4 pods recreated, 1 put off; " in capsys.readouterr().out
    await cluster.set_ready("crrd-node-b", ready=True)
    assert await recreated(cluster, "resume", "r") == 0
    assert cluster.stops[3:] == [("web-0", "app")]


async def test_a_node_that_is_back_in_time_is_not_left(cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As during an update of the node daemons."""
    monkeypatch.setattr("crrd.core.rollout.limits.NODE_SECONDS", 30.0)
    await cluster.set_ready("crrd-node-b", ready=False)
    running = asyncio.create_task(recreated(cluster, *COMMAND))
    async with asyncio.timeout(30):
        while len(cluster.stops) < 3:
            await asyncio.sleep(0.01)
    assert cluster.stops == OTHERS
    await cluster.set_ready("crrd-node-b", ready=True)
    assert await running == 0
    assert cluster.stops[3:] == [("web-0", "app")]


async def test_a_request_that_nobody_answered_is_put_off(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node dies right before its pod gets its request."""
    cluster.deaf.add("web-0")
    running = asyncio.create_task(recreated(cluster, *COMMAND, "--max-unavailable", "2"))
    async with asyncio.timeout(30):
        while len(cluster.stops) < 3:
            await asyncio.sleep(0.01)
        await goes_down(cluster)
        (request,) = [each for each in await cluster.requests() if each["spec"]["podName"] == "web-0"]
        state = {"name": "app", "phase": "Failed", "reason": Reason.NO_ANSWER.value, "message": "no answer"}
        status = {"phase": "Completed", "containerRecreateStates": [state], "reason": Reason.NO_ANSWER.value}
        name = request["metadata"]["name"]
        await cluster.client.merge_patch(REQUESTS, NAMESPACE, name, {"status": status}, subresource="status")
        assert await running == 4
    assert "incomplete: 3 of 4 pods recreated, 1 put off; " in capsys.readouterr().out
    cluster.deaf.clear()
    await cluster.set_ready("crrd-node-b", ready=True)
    assert await recreated(cluster, "resume", "r") == 0
    assert cluster.stops[3:] == [("web-0", "app")], "with another request"


async def test_without_known_daemons_the_node_is_read(cluster: PlayedCluster) -> None:
    conditions = [{"type": "Ready", "status": "Unknown"}]
    await cluster.client.create(NODES, "", {"metadata": {"name": "node-b"}, "status": {"conditions": conditions}})
    await cluster.set_ready("web-0", ready=False)
    cluster.api.fail_next(1000, status=403, match=lambda call: call.resource == "pods" and not call.namespace)
    assert await recreated(cluster, *COMMAND, "--max-unavailable", "2") == 4
    assert sorted(cluster.stops) == OTHERS
