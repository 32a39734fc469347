"""`crrd recreate` on the local node, with the daemons beside it: what it promises, and what stops it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, local_cluster
from tests.support.recreates import a_deployment_and_a_statefulset, daemons


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A node whose kubelet holds no container back for long, and the daemons."""
    async with local_cluster(tmp_path, backoff=0.05) as found, daemons(found, tmp_path):
        yield found


@pytest.mark.timeout(400)
async def test_a_deployment_and_a_statefulset(cluster: Cluster) -> None:
    await a_deployment_and_a_statefulset(cluster)
