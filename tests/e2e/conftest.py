"""The cluster that the end-to-end tests run on: the local node on a real containerd, or a foreign one."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, foreign, on_foreign_cluster, on_local_node
from tests.support.containerd import Containerd
from tests.support.faulty_node import FaultyNode
from tests.support.images import BUSYBOX_IMAGE, BUSYBOX_IMAGE_2
from tests.support.real_nodes import installed, machines
from tests.tools.cluster.cluster import RealCluster as Machines


@pytest.fixture(scope="module")
def nodes() -> Iterator[Machines]:
    """The machines of a cluster of several nodes, with crrd installed until the module's last test has cleaned up."""
    found = machines()
    assert found is not None
    with installed(found):
        yield found


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """See the module; skipped where there is neither a foreign cluster nor a way to run containerd."""
    variables = foreign()
    if variables is not None:
        async with on_foreign_cluster(variables, tmp_path) as found:
            yield found
        return
    containerd: Containerd = request.getfixturevalue("containerd")
    if not containerd.running:  # an earlier test has killed it and failed
        await asyncio.to_thread(containerd.start)
    # Another name for each test: a kubelet leaves alone what is not its own.
    async with (
        FaultyNode(node_name=f"node-{secrets.token_hex(4)}", cri_endpoint=containerd.endpoint) as node,
        on_local_node(
            node, tmp_path, image=BUSYBOX_IMAGE, second_image=BUSYBOX_IMAGE_2, containerd=containerd
        ) as found,
    ):
        try:
            yield found
        finally:
            if not containerd.running:
                await asyncio.to_thread(containerd.start)
