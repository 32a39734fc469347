"""Many requests for one pod: what an event costs, and that other pods and health checks get their turn."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from crrd.core.api.types import RecreateState, RequestPhase, StatePhase
from crrd.core.recreate.actions import Decision
from crrd.core.recreate.decide import decide
from crrd.core.recreate.observation import Observation
from crrd.lib.errors import ApiUnavailableError
from crrd.node.agenda import LOOKS
from tests.support.standins import MemoryNode
from tests.support.worlds import recreating, request

pytestmark = pytest.mark.virtual_time


class Calls:
    """Counts function calls."""

    made = 0

    def __enter__(self) -> "Calls":
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _frame: object, event: str, _argument: object) -> None:
        self.made += event == "call"


async def busy(node: MemoryNode, requests: int) -> None:
    """Post requests for the pod. The first one is served for an hour."""
    node.stop_seconds = 3600.0
    for number in range(requests):
        node.post(request(uid=f"r{number:04}"))
    pending = [f"r{number:04}" for number in range(1, requests)]
    await node.until(lambda: all(node.status(uid).phase is RequestPhase.PENDING for uid in pending))
    await asyncio.sleep(60)


async def cost(event: Callable[[MemoryNode], None], requests: int) -> int:
    """Return how many functions are called for an event, and in the second after it."""
    async with MemoryNode() as node:
        await busy(node, requests)
        with Calls() as calls:
            event(node)
            await asyncio.sleep(1)
        return calls.made


def one_is_changed(node: MemoryNode) -> None:
    node.post(replace(node.requests["r0005"], resource_version="100", unready_acquired=True))


def one_is_created(node: MemoryNode) -> None:
    node.post(request(uid="another"))


def one_is_deleted(node: MemoryNode) -> None:
    node.delete("r0005")


def the_pod_is_changed(node: MemoryNode) -> None:
    node.controller.pods.pod_changed(replace(node.view(), pod_ip="127.0.0.2"))


def a_write_fails(node: MemoryNode) -> None:
    node.write_errors = [ApiUnavailableError("no")]
    node.post(request(uid="another"))


EVENTS = [one_is_changed, one_is_created, one_is_deleted, the_pod_is_changed, a_write_fails]


@pytest.mark.parametrize("event", EVENTS)
async def test_an_event_costs_the_same_however_many_requests_wait(event: Callable[[MemoryNode], None]) -> None:
    few, many = [await cost(event, requests) for requests in (20, 200)]
    assert many < 1.2 * few


async def test_a_burst_of_requests_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two rounds the loop gets its turn, and a round does not look again at what has not changed."""
    looks: list[int] = []

    def counting(observation: Observation) -> Decision:
        looks.append(len(observation.requests))
        return decide(observation)

    monkeypatch.setattr("crrd.node.reconcile.decide", counting)
    async with MemoryNode() as node:
        await busy(node, 500)
    assert max(looks) <= LOOKS + 1
    assert sum(looks) < 5 * 500


async def test_while_writes_fail_each_request_is_looked_at_when_its_next_try_is_due() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiUnavailableError("no")] * 900
        await busy(node, 300)
        assert node.write_errors == []


async def test_a_request_that_is_deleted_while_its_pod_is_observed_is_forgotten() -> None:
    async with MemoryNode() as node:
        await busy(node, 1)
        node.list_seconds = 1.0
        node.post(request(uid="r2", created="2099-01-01T00:00:01Z"))
        await asyncio.sleep(0.5)
        node.delete("r2")
        await asyncio.sleep(10)
        assert set(node.controller.pods.peek("default/web").requests) == {"r0000"}


async def test_a_request_that_another_one_overtakes_says_no_more_what_it_waits_for() -> None:
    async with MemoryNode() as node:
        node.kubelet_silent = 0.0
        node.post(request())
        await node.until(lambda: bool(node.status().states and node.status().states[0].message))
        await asyncio.sleep(60)
        earlier = "2098-01-01T00:00:00Z"
        node.post(request(uid="r2", created=earlier, status=recreating(RecreateState("app", StatePhase.RECREATING))))
        await node.until(lambda: node.status().states[0].message == "")
