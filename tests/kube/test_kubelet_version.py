"""Which kubelet runs on a node, and how rarely that is asked."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from crrd.kube.kubelet_version import FRESH_SECONDS, REFRESH_SECONDS, RETRY_SECONDS, KubeletVersions
from crrd.kube.resources import Resource
from crrd.kubelet.version import known_minor, reported_version
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError


def node(version: object) -> dict[str, Any]:
    return {"status": {"nodeInfo": {"kubeletVersion": version}}}


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("v1.36.2", 36),
        ("v1.34.1+k3s1", 34),
        ("1.29.0-gke.100", 29),
        ("", None),
        (None, None),
        ("v2.0.0", None),
        (f"v1.{'9' * 5000}", None),
    ],
)
def test_a_nodes_version(version: object, minor: int | None) -> None:
    assert known_minor(reported_version(node(version))) == minor
    assert known_minor(reported_version({})) is None


class Nodes:
    """An API server with one node."""

    def __init__(self) -> None:
        self.version = "v1.34.0"
        self.asked: list[str] = []
        self.refuses = False
        self.hangs = 0.0
        self.fails = 0
        self.conditions: list[dict[str, str]] = []

    async def get(self, _resource: Resource, _namespace: str, name: str) -> Mapping[str, Any]:
        self.asked.append(name)
        if self.hangs:
            await asyncio.sleep(self.hangs)
            raise ApiUnavailableError("no answer")
        if self.fails:
            self.fails -= 1
            raise ApiUnavailableError("the server is overloaded (503)")
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
async def test_who_is_refused_knows_nothing_and_asks_again_soon() -> None:
    nodes = Nodes()
    nodes.refuses = True
    versions = KubeletVersions(nodes)
    assert await versions.minor("a") is None
    nodes.refuses = False
    await asyncio.sleep(RETRY_SECONDS)
    assert await versions.minor("a") == 34


@pytest.mark.virtual_time
async def test_a_version_that_was_known_still_counts_when_the_node_cannot_be_read() -> None:
    nodes = Nodes()
    versions = KubeletVersions(nodes)
    assert await versions.minor("a") == 34
    await asyncio.sleep(FRESH_SECONDS)
    nodes.refuses = True
    assert await versions.minor("a") == 34
    assert not await versions.ready("a")


@pytest.mark.virtual_time
async def test_nobody_waits_for_more_than_one_question_that_hangs() -> None:
    nodes = Nodes()
    nodes.hangs = 15.0
    versions = KubeletVersions(nodes)
    began = asyncio.get_running_loop().time()
    assert await asyncio.gather(*(versions.minor("a") for _ in range(6))) == [None] * 6
    assert asyncio.get_running_loop().time() - began == pytest.approx(15.0, abs=0.1)


@pytest.mark.virtual_time
async def test_one_read_that_fails_does_not_make_a_version_unknown() -> None:
    """A verdict on a request can hang on it, and is final."""
    nodes = Nodes()
    nodes.fails = 2
    assert await KubeletVersions(nodes).minor("a") == 34
    nodes.fails = 1000
    began = asyncio.get_running_loop().time()
    assert await KubeletVersions(nodes).minor("a") is None
    assert asyncio.get_running_loop().time() - began < 3


@pytest.mark.virtual_time
async def test_who_knows_a_version_does_not_wait_long_for_the_next() -> None:
    """A look at the runtime waits for it, and with that a stop."""
    nodes = Nodes()
    versions = KubeletVersions(nodes)
    assert await versions.minor("a") == 34
    await asyncio.sleep(FRESH_SECONDS)
    nodes.hangs = 15.0
    began = asyncio.get_running_loop().time()
    assert await asyncio.gather(*(versions.minor("a") for _ in range(6))) == [34] * 6
    assert not await versions.ready("a")
    assert asyncio.get_running_loop().time() - began == pytest.approx(REFRESH_SECONDS, abs=0.1)


@pytest.mark.virtual_time
async def test_who_gave_up_a_question_does_not_ask_it_again_at_once() -> None:
    nodes = Nodes()
    nodes.hangs = 15.0
    versions = KubeletVersions(nodes)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await versions.minor("a")
    async with asyncio.timeout(0.1):
        assert await versions.minor("a") is None
    assert nodes.asked == ["a"]
    nodes.hangs = 0.0
    await asyncio.sleep(RETRY_SECONDS)
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


@pytest.mark.virtual_time
async def test_a_caller_with_many_nodes_remembers_them_for_longer() -> None:
    nodes = Nodes()
    versions = KubeletVersions(nodes, fresh=600.0, most=1000)
    names = [f"node-{number}" for number in range(500)]
    for seconds in (0.0, 599.0, 1.0):
        await asyncio.sleep(seconds)
        assert {await versions.version(name) for name in names} == {"v1.34.0"}
    assert len(nodes.asked) == 1000, "twice"
