"""Which kubelet runs on a node, and how rarely that is asked."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from crrd.kube.kubelet_version import FRESH_SECONDS, KubeletVersions, minor_of
from crrd.kube.resources import Resource
from crrd.lib.errors import ApiRefusedError


def node(version: object) -> dict[str, Any]:
    return {"status": {"nodeInfo": {"kubeletVersion": version}}}


@pytest.mark.parametrize(
    ("version", "minor"),
    [("v1.36.2", 36), ("v1.34.1+k3s1", 34), ("1.29.0-gke.100", 29), ("", None), (None, None), ("v2.0.0", None)],
)
def test_a_nodes_version(version: object, minor: int | None) -> None:
    assert minor_of(node(version)) == minor
    assert minor_of({}) is None


class Nodes:
    """An API server with one node."""

    def __init__(self) -> None:
        self.version = "v1.34.0"
        self.asked: list[str] = []
        self.refuses = False
        self.conditions: list[dict[str, str]] = []

    async def get(self, _resource: Resource, _namespace: str, name: str) -> Mapping[str, Any]:
        self.asked.append(name)
        if self.refuses:
            raise ApiRefusedError("forbidden", status=403)
        found = node(self.version)
        found["status"]["conditions"] = self.conditions
        return found


@pytest.mark.virtual_time
async def test_it_is_asked_for_once_a_minute() -> None:
    nodes = Nodes()
    versions = KubeletVersions(nodes)
    assert await asyncio.gather(*(versions.minor("a") for _ in range(5))) == [34] * 5
    assert await versions.minor("b") == 34
    assert nodes.asked == ["a", "b"]
    nodes.version = "v1.35.0"  # a kubelet is replaced
    await asyncio.sleep(FRESH_SECONDS)
    assert await versions.minor("a") == 35


@pytest.mark.virtual_time
async def test_who_is_refused_knows_nothing_and_asks_again() -> None:
    nodes = Nodes()
    nodes.refuses = True
    versions = KubeletVersions(nodes)
    assert await versions.minor("a") is None
    nodes.refuses = False
    assert await versions.minor("a") == 34


@pytest.mark.virtual_time
async def test_whether_the_node_is_ready() -> None:
    """As the API server says; a node that cannot be read is not."""
    nodes = Nodes()
    versions = KubeletVersions(nodes)
    assert not await versions.ready("a")
    nodes.conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": "True"}]
    assert not await versions.ready("a"), "known for a minute"
    await asyncio.sleep(FRESH_SECONDS)
    assert await versions.ready("a")
    nodes.conditions = [{"type": "Ready", "status": "Unknown"}]
    assert not await versions.ready("b")
    nodes.refuses = True
    assert not await versions.ready("c")
