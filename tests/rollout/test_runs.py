"""`crrd recreate` on the local node, with the daemons beside it: what it promises, and what stops it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import PATIENCE, Cluster, local_cluster, restart_count
from tests.support.mounted import create_config, edit_known, reader, run_settled, starts
from tests.support.recreates import (
    a_deployment_and_a_statefulset,
    daemons,
    kept,
    pods_of,
    recorded,
    recreate,
    requests_of,
    workload,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A node whose kubelet holds no container back for long, and the daemons."""
    async with local_cluster(tmp_path, backoff=0.05) as found, daemons(found, tmp_path):
        yield found


@pytest.mark.timeout(400)
async def test_a_deployment_and_a_statefulset(cluster: Cluster) -> None:
    await a_deployment_and_a_statefulset(cluster)


@pytest.mark.timeout(400)
async def test_killed_while_each_pod_is_recreated_and_resumed(cluster: Cluster) -> None:
    before = await workload(cluster, "StatefulSet", "db", 3)
    words = ["statefulset/db", "-c", "app", "--run", "often-killed"]
    async with recorded(cluster, "db") as record:
        for number in range(3):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "crrd", "recreate", *words),
                *("-n", cluster.namespace, "--kubeconfig", str(cluster.kubeconfig)),
                stdout=asyncio.subprocess.DEVNULL,
            )
            async with asyncio.timeout(PATIENCE):
                while len(await requests_of(cluster, "often-killed")) <= number:
                    await asyncio.sleep(0.01)
            process.kill()
            await process.wait()
        ended = await recreate(cluster, *words)
    assert ended.code == 0, ended
    kept(before, await pods_of(cluster, "db"), "app")
    assert record.restarts == [("db-2", "app"), ("db-1", "app"), ("db-0", "app")]
    assert record.most_unready <= 1


async def test_files_are_new_and_no_start_fails(cluster: Cluster) -> None:
    """As kubelet, the local node refreshes files later than a restart, unless the pod's annotations change."""
    await create_config(cluster, "old")
    await run_settled(cluster, "web", reader())
    await edit_known(cluster, "new")
    ended = await recreate(cluster, "pod/web", "--stale")
    assert ended.code == 0, ended
    assert starts(cluster, "web") == ["old old old", "new new new"]
    assert restart_count(await cluster.pod("web"), "app") == 1, "kubelet needed no second attempt"
