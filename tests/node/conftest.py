"""The cluster that the node tests run on: the local node with its runtime of plain processes, in its own process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.localnode.node import LocalNode
from tests.support.cluster import Cluster, on_local_node


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """See the module."""
    async with (
        LocalNode(runtime_process=True) as node,
        on_local_node(node, tmp_path, image="local/shell:1", second_image="local/shell:2") as found,
    ):
        yield found
