"""Fixtures that several folders of the suite share."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.containerd import Containerd, missing
from tests.support.node_daemon import NodeDaemon


@pytest.fixture(scope="session", autouse=True)
def _loop_of_sync_tests() -> Iterator[None]:
    """The plugin looptime asks for an event loop around sync tests too: give it one that is closed in the end."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
        asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A private containerd with the tests' images, one for the whole session; tests keep to pods of their own."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    runtime = Containerd()
    try:
        runtime.prepare()
        yield runtime
    finally:
        runtime.destroy()


@pytest.fixture
async def node_daemon(cluster: Cluster, tmp_path: Path) -> AsyncIterator[NodeDaemon]:
    """`crrd node` as a process on the cluster of the test's folder, running and ready; ended with the test."""
    daemon = NodeDaemon(
        tmp_path / "node.log",
        node_name=cluster.node_name,
        kubeconfig=cluster.kubeconfig,
        cri_endpoint=cluster.cri_endpoint,
    )
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.kill()
