"""The calls of a run fail for a minute: they become rare, and the run goes on soon afterwards."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Amount
from crrd.kube.resources import Resource
from crrd.lib.backoff import FAILED
from crrd.lib.errors import ConfigurationError
from tests.support.refusing_api import CALL_SECONDS, VERBS, Fault
from tests.support.run_cluster import RunCluster

pytestmark = pytest.mark.virtual_time

A_MINUTE = 30  # Most calls of one kind. Each failed attempt writes the progress twice
RUN_SECONDS = 15.0  # For the rest of the run


class FailingCluster(RunCluster):
    """Counts calls, and fails those of one kind."""

    def __init__(self, pods: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failing: tuple[str, Fault] | None = None
        super().__init__(pods)

    async def _answer(self, verb: str, resource: Resource) -> None:
        await self._call(verb, resource)
        await super()._answer(verb, resource)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._call("create", resource)
        return await super().create(resource, namespace, body)

    async def _call(self, verb: str, resource: Resource) -> None:
        self.counts[f"{verb} {resource.plural}"] += verb != "watch"
        if self.failing is not None and verb in VERBS[self.failing[0]]:
            fault = self.failing[1]
            await asyncio.sleep(CALL_SECONDS if fault is Fault.HANG else 0.01)
            raise fault.error


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("call", ["read", "create"])
async def test_calls_that_fail(call: str, fault: Fault) -> None:
    api = FailingCluster(12)
    aim = api.stateful_set(0)
    running = asyncio.create_task(api.carry_out(api.run_of(aim, max_unavailable=Amount(2)), aim))
    await asyncio.sleep(3)
    api.failing = call, fault
    api.counts.clear()
    await asyncio.sleep(60)
    assert [made for made, number in api.counts.items() if number > A_MINUTE] == []
    api.failing = None
    if (call, fault) == ("read", Fault.FORBIDDEN):
        with pytest.raises(ConfigurationError):
            await running
        return
    plan = await asyncio.wait_for(running, FAILED.maximum * (1 + FAILED.jitter) + CALL_SECONDS + RUN_SECONDS)
    denied = (call, fault) == ("create", Fault.FORBIDDEN)
    assert plan.end is (End.FAILED if denied else End.DONE)
