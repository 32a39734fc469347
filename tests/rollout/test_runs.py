"""`crrd recreate` on the local node, with the daemons beside it: what it promises, and what stops it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, local_cluster, restart_count
from tests.support.mounted import create_config, edit_known, reader, run_settled, starts
from tests.support.recreates import (
    a_deployment_and_a_statefulset,
    daemons,
    often_killed,
    recreate,
    requests_of,
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
    async def written() -> int:
        return len(await requests_of(cluster, "often-killed"))

    await often_killed(cluster, written)


async def test_files_are_new_and_no_start_fails(cluster: Cluster) -> None:
    """As kubelet, the local node refreshes files later than a restart, unless the pod's annotations change."""
    await create_config(cluster, "old")
    await run_settled(cluster, "web", reader())
    await edit_known(cluster, "new")
    ended = await recreate(cluster, "pod/web", "--stale")
    assert ended.code == 0, ended
    assert starts(cluster, "web") == ["old old old", "new new new"]
    assert restart_count(await cluster.pod("web"), "app") == 1, "kubelet needed no second attempt"
