"""Which API servers are said to be too old, and that nothing hangs on their answer."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from crrd.kube.client import KubeClient
from crrd.kube.discovery import LEAST, warn_of_old_server
from crrd_localnode.api import discovery
from crrd_localnode.daemons import running_manager
from tests.support.cluster import Cluster
from tests.support.daemons import NodeDaemon
from tests.support.scripted_api import FixedAccess, Reply, refuse, reply, scripted_api, vanish


def version(major: Any, minor: Any) -> Reply:
    return reply({"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.1"})


async def told(*answers: Reply) -> list[Any]:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        api.then(*answers)
        with capture_logs() as logs:
            await warn_of_old_server(client)
        assert {request.path for request in api.seen} == {"/version"}
        return [line for line in logs if line["log_level"] != "debug"]


@pytest.mark.parametrize("minor", ["29", "29+", "9"])
async def test_an_old_server_is_told_in_one_line(minor: str) -> None:
    (line,) = await told(version("1", minor))
    assert (line["log_level"], line["version"], line["least"]) == ("warning", f"v1.{minor}.1", "1.30")
    assert "upgrade" in line["remedy"]


@pytest.mark.parametrize(
    "answer",
    [version("1", "30"), version("1", "30+"), version("1", "36"), version("2", "0"), version("", ""), version(1, 2),
     reply({}), reply([]), reply(b"no JSON"), refuse(403), refuse(404), refuse(500)],
)  # fmt: skip
async def test_of_others_nothing_is_said(answer: Reply) -> None:
    assert await told(answer) == []


async def test_a_server_that_does_not_answer_is_no_matter() -> None:
    assert await told(vanish(), vanish()) == []


async def test_both_daemons_ask_at_their_start(
    cluster: Cluster, node_daemon: NodeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MINOR", str(LEAST[1] - 1))
    await node_daemon.restart()
    async with running_manager(cluster.local) as manager, asyncio.timeout(30):
        for daemon in (node_daemon, manager):
            while "API server too old" not in daemon.log_file.read_text(encoding="utf-8"):
                await asyncio.sleep(0.05)
