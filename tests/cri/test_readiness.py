"""What a runtime says of itself: kubelet starts no container while one of two conditions is not true."""

import asyncio
from dataclasses import dataclass

import pytest

from cri_stubs import api_pb2
from crrd.cri.readiness import FRESH_SECONDS, PATIENCE_SECONDS, Readiness
from crrd.lib.errors import RuntimeCallError

pytestmark = pytest.mark.virtual_time
NO_NETWORK = {"NetworkReady": "cni plugin not initialized"}


@dataclass
class Scripted:
    """A runtime whose network is ready or not, or that does not answer."""

    ready: bool = True
    error: Exception | None = None
    seconds: float = 0.01
    calls: int = 0

    async def status(self) -> api_pb2.StatusResponse:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        conditions = [
            api_pb2.RuntimeCondition(type="RuntimeReady", status=True),
            api_pb2.RuntimeCondition(type="NetworkReady", status=self.ready, message=NO_NETWORK["NetworkReady"]),
        ]
        return api_pb2.StatusResponse(status=api_pb2.RuntimeStatus(conditions=conditions))


async def test_an_answer_is_for_all_that_ask_within_a_moment() -> None:
    runtime = Scripted(ready=False)
    readiness = Readiness(runtime.status)
    assert await asyncio.gather(*(readiness.false_conditions() for _ in range(20))) == [NO_NETWORK] * 20
    assert runtime.calls == 1
    runtime.ready = True
    assert await readiness.false_conditions() == NO_NETWORK
    await asyncio.sleep(FRESH_SECONDS)
    assert await readiness.false_conditions() == {}


@pytest.mark.parametrize(
    "broken", [Scripted(error=RuntimeCallError("no such method", code="UNIMPLEMENTED")), Scripted(seconds=60)]
)
async def test_a_runtime_that_does_not_answer_holds_nothing_back(broken: Scripted) -> None:
    """Its other calls fail, too, and say why. Many that ask wait together, and not for long."""
    readiness, began = Readiness(broken.status), asyncio.get_running_loop().time()
    assert await asyncio.gather(*(readiness.false_conditions() for _ in range(20))) == [{}] * 20
    assert asyncio.get_running_loop().time() - began <= PATIENCE_SECONDS


async def test_what_was_known_before_does_not_count_then() -> None:
    runtime = Scripted(ready=False)
    readiness = Readiness(runtime.status)
    assert await readiness.false_conditions() == NO_NETWORK
    runtime.error = RuntimeCallError("broken", code="INTERNAL")
    await asyncio.sleep(FRESH_SECONDS)
    assert await readiness.false_conditions() == {}
