"""`crrd recreate` on a workload of a real runtime, or of a whole cluster whose own controllers have made the pods."""

from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.recreates import a_deployment_and_a_statefulset, daemons


@pytest.mark.containerd
@pytest.mark.cluster
@pytest.mark.timeout(400)
async def test_a_deployment_and_a_statefulset(cluster: Cluster, tmp_path: Path) -> None:
    async with daemons(cluster, tmp_path):
        await a_deployment_and_a_statefulset(cluster)
