"""Worlds for runs: a played cluster, and the images of its nodes. Some files have a cluster of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.played_cluster import PlayedCluster, played
from tests.support.played_images import Images, played_images


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlayedCluster]:
    async with played(tmp_path) as found:
        yield found


@pytest.fixture
async def images(cluster: PlayedCluster) -> AsyncIterator[Images]:
    async with played_images(cluster) as found:
        yield found
