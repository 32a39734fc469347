"""Managers that are killed after any of their writes while bad data is replaced by the last good data, in virtual time.

The end is the same as without, and so is what happens if other writers write the bad data again and again.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from crrd.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS, POLICIES, REQUESTS, Resource
from tests.simulation.clock import virtual_time
from tests.support.policy_world import DEPLOYMENTS, NODE_NAMES, QUIET, SETTLE, PolicyWorld

LONG = 120.0
"""Seconds, after which nothing is left to do."""


class RestoringWorld(PolicyWorld):
    """One policy that restores data, for pods that use a ConfigMap with an optional value."""

    def __init__(self, killed_after: int = 0) -> None:
        super().__init__()
        self.writes, self.killed_after = 0, killed_after
        self.api.wrote = self._count
        self.bad = {"bad"}

    def _count(self, resource: Resource) -> None:
        self.writes += 1
        if resource == CONFIG_MAPS:
            self.configs["a"].value = self.data["K"]
            self.configs["a"].visible.append((self.loop.time(), {*NODE_NAMES}))
        if self.writes == self.killed_after and self._leader is not None:
            self._leader.cancel()

    def _report(self, name: str, phase: str, state: str, reason: str = "") -> None:
        """A container that does not become ready has failed. The node daemon would wait longer for it."""
        request = self.api.find(REQUESTS, QUIET, name)
        assert request is not None
        if state == "Succeeded" and self.bad & {*self.pods[request["spec"]["podName"]].values.values()}:
            state, reason = "Failed", "DeadlineExceeded"
        super()._report(name, phase, state, reason)

    async def live(self, seconds: float) -> None:
        """Let time pass. A manager that was killed is followed by another one."""
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            if self._leader is not None and self._leader.done():
                await asyncio.sleep(0.1)
                self.lead()

    async def begin(self) -> None:
        """Let the first data become known as good."""
        await asyncio.sleep(5)
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        change = {"triggers": {"configChange": {"settle": f"{SETTLE}s"}}}
        self._policy(QUIET, "web", {**change, "targetRef": target, "onFailure": "Restore"})
        await asyncio.sleep(2)
        self.lead()
        await self.live(20)

    @property
    def policy(self) -> Any:
        return self.api.find(POLICIES, QUIET, "web")

    @property
    def data(self) -> Any:
        found = self.api.find(CONFIG_MAPS, QUIET, "a")
        assert found is not None
        return found["data"]

    def result(self) -> Any:
        """What must not depend on when a manager was killed."""
        status = self.policy["status"]
        web = [(pod.values, pod.ready) for pod in self.pods.values() if pod.kind.app == "web" and "b" not in pod.values]
        kept = [each["data"] for each in self.api.all(CONTROLLER_REVISIONS, QUIET)]
        bad = [(each["name"], each["restored"]) for each in status["bad"]]
        return self.data, web, kept, bad, self.condition("web")


async def poison(killed_after: int = 0) -> RestoringWorld:
    world = RestoringWorld(killed_after)
    await world.begin()
    world.write("a", "bad")
    await world.live(LONG)
    return world


def played(story: Awaitable[RestoringWorld]) -> RestoringWorld:
    """The world after a story, without a manager."""

    async def to_the_end() -> RestoringWorld:
        world = await story
        await world.die()
        return world

    with virtual_time() as loop:
        return loop.run_until_complete(to_the_end())


@pytest.fixture(scope="module")
def calm() -> tuple[int, Any, list[str]]:
    world = played(poison())
    assert world.faults == []
    return world.writes, world.result(), [pod for _, pod, _ in world.stops]


def test_the_bad_data_costs_one_pod(calm: tuple[int, Any, list[str]]) -> None:
    _, result, stops = calm
    assert result == ({"K": "0"}, [({"a": "0"}, True)] * 2, [{"data": {"K": "0"}}], [("a", True)], "Idle")
    assert len(stops) == 2
    assert len({*stops}) == 1, "forth and back"


def test_a_manager_that_is_killed_after_a_write_changes_nothing(calm: tuple[int, Any, list[str]]) -> None:
    writes, result, stops = calm
    for number in range(1, writes + 1):
        world = played(poison(number))
        assert (world.result(), world.faults) == (result, []), number
        assert [pod for _, pod, _ in world.stops] == stops, number


async def rewrite(times: int) -> RestoringWorld:
    world = await poison()
    for _ in range(times):
        world.api.change(CONFIG_MAPS, QUIET, "a", {"data": {"K": "bad"}})
        await world.live(LONG / 4)
        assert world.condition("web") == "BadRevision"
    return world


def test_a_gitops_controller_that_writes_it_again_restarts_nothing(calm: tuple[int, Any, list[str]]) -> None:
    world = played(rewrite(4))
    assert len(world.stops) == len(calm[2])
    assert world.data == {"K": "bad"}, "no war"


async def two_policies(**spec: Any) -> RestoringWorld:
    """Another policy has the other pods that use the object."""
    world = RestoringWorld()
    own = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}}
    status = {"observedGeneration": 10**6, "replicas": 1, "updatedReplicas": 1}
    workload = {"metadata": {"name": "canary", "uid": "canary"}, "spec": own, "status": status}
    world.api.put(DEPLOYMENTS, QUIET, workload)
    await asyncio.sleep(5)
    canary = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "canary"}, **spec}
    change = {"triggers": {"configChange": {"settle": f"{SETTLE}s"}}}
    world._policy(QUIET, "all", {**change, **canary})
    await world.begin()
    return world


async def poison_two(*after: str) -> RestoringWorld:
    world = await two_policies(onFailure="Restore", after=[*after])
    world.write("a", "bad")
    await world.live(LONG)
    return world


def test_bad_data_of_two_policies_costs_one_pod_of_the_first(calm: tuple[int, Any, list[str]]) -> None:
    world = played(poison_two("web"))
    assert [pod for _, pod, _ in world.stops] == calm[2]
    assert {policy for _, _, policy in world.stops} == {"web"}
    assert [world.condition(each) for each in ("web", "all")] == ["Idle", "Idle"]


async def rewrite_two() -> RestoringWorld:
    world = await poison_two()
    world.api.change(CONFIG_MAPS, QUIET, "a", {"data": {"K": "bad"}})
    await world.live(LONG)
    return world


def test_bad_data_costs_one_pod_of_two_policies_without_an_order() -> None:
    world = played(rewrite_two())
    assert len({pod for _, pod, _ in world.stops}) == 1
    assert len(world.stops) == 2, "forth and back, and nothing when it is written again"
    first = world.stops[0][2]
    assert world.condition(first) == "BadRevision"
    assert world.condition({"web": "all", "all": "web"}[first]) == "WaitingForPolicy"


async def edit_two(**spec: Any) -> RestoringWorld:
    world = await two_policies(**spec)
    world.write("a", "better")
    await world.live(LONG)
    return world


@pytest.mark.parametrize(("after", "stops"), [([], 1), (["web"], 2)])
def test_a_change_of_two_policies_reaches_one_after_the_other(after: list[str], stops: int) -> None:
    world = played(edit_two(after=after))
    begins = [policy for _, _, policy in world.stops]
    assert (begins.count("web"), begins.count("all")) == (2, 1)
    first, second = ("web", "all") if after else (begins[0], {"web": "all", "all": "web"}[begins[0]])
    assert begins[:stops] == [first] * stops
    assert begins[stops:].count(second) == begins.count(second)
    assert world.faults == []
