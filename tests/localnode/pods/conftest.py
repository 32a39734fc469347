"""The node of the local kubelet's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, local_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A local node that is quicker than a real one, its runtime in this process."""
    async with local_cluster(tmp_path, relist=0.05, backoff=0.5, retry=0.2, remount=0.1) as found:
        yield found
