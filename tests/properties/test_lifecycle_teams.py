"""Two teams whose calls hang, each in ways of its own, over everything that the manager does for requests.

What is due for other teams is done within five seconds, whatever hangs, and however many requests the two teams have.

LIFECYCLE_WORLDS=500 plays so many worlds.
"""

import asyncio
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crrd.kube.resources import PODS, REQUESTS
from tests.manager.test_fairness import OTHERS, GatedPods, managed
from tests.simulation.clock import virtual_time
from tests.support.laned_api import LanedApi

WORLDS = int(os.environ.get("LIFECYCLE_WORLDS", "3"))
BOUND = 5.0
"""Seconds, a promise of docs/operations.md ("Other namespaces are handled within 5 s")."""
DEADLINE = 20
TEAMS = ("hooked", "lost")
CALLS = (("get", PODS.plural), ("patch", PODS.plural), ("patch", REQUESTS.plural), ("delete", REQUESTS.plural))
Hang = tuple[str, str, str]

HANGS = st.tuples(st.sampled_from(TEAMS), st.sampled_from(CALLS))
STEPS = st.one_of(
    st.tuples(st.just("hang"), HANGS, st.sampled_from((0.6, 3.0, 10.0))),
    st.tuples(st.just("heal"), HANGS, st.just(0.0)),
    st.tuples(st.just("requests"), HANGS, st.sampled_from((1.0, 20.0, 80.0))),
    st.tuples(st.just("wait"), HANGS, st.sampled_from((1.0, 10.0, 31.0))),
    st.tuples(st.just("others"), HANGS, st.sampled_from((1.0, 6.0))),
)
Step = tuple[str, tuple[str, tuple[str, str]], float]


class Teams:
    """A cluster in which calls of the two teams hang, and the checks that are still to come."""

    def __init__(self) -> None:
        self.hangs: dict[Hang, float] = {}
        self.api = LanedApi(lambda verb, kind, namespace, _: self.hangs.get((namespace, verb, kind), 0.01))
        self.made = 0
        self.checks: list[asyncio.Task[None]] = []
        self.faults: list[str] = []

    async def take(self, cluster: GatedPods, step: Step) -> None:
        action, (team, call), number = step
        match action:
            case "hang":
                self.hangs[team, *call] = number
            case "heal":
                self.hangs.pop((team, *call), None)
            case "requests":
                for each in range(int(number)):
                    self.request(cluster, team, ("first", "done", "late")[each % 3])
            case "others":
                for other in OTHERS[: int(number)]:
                    for kind in ("first", "done", "late"):
                        name = self.request(cluster, other, kind)
                        self.checks.append(asyncio.create_task(self.check(cluster, kind, name)))
            case _:
                await asyncio.sleep(number)
        await asyncio.sleep(0.5)

    def request(self, cluster: GatedPods, team: str, kind: str) -> str:
        """A request that needs something of the manager: at once, or at its deadline."""
        self.made += 1
        name = f"{kind}-{self.made}"
        cluster.pod(team, name)
        if kind == "late":
            cluster.request(team, name, grace=None, activeDeadlineSeconds=DEADLINE)
        else:
            cluster.request(team, name, "Completed" if kind == "done" else "Recreating")
        return name

    async def check(self, cluster: GatedPods, kind: str, name: str) -> None:
        await asyncio.sleep(BOUND + DEADLINE * (kind == "late"))
        done = {
            "first": lambda: cluster.unready(name),
            "done": lambda: not cluster.active(name),
            "late": lambda: cluster.phase(name) == "Completed",
        }
        if not done[kind]():
            self.faults.append(f"{name} is late, while these hang: {self.hangs}")


async def play(steps: list[Step]) -> list[str]:
    """The faults of a world with these steps. In the end, both teams hang in two ways."""
    world = Teams()
    async with managed(world.api, *TEAMS) as cluster:
        for step in steps:
            await world.take(cluster, step)
        for hang in ((TEAMS[0], *CALLS[0]), (TEAMS[0], *CALLS[2]), (TEAMS[1], *CALLS[1]), (TEAMS[1], *CALLS[3])):
            world.hangs[hang] = 10.0
        for team in TEAMS:
            await world.take(cluster, ("requests", (team, CALLS[0]), 60.0))
        await world.take(cluster, ("others", (TEAMS[0], CALLS[0]), 6.0))
        await asyncio.gather(*world.checks)
    return world.faults


@given(st.lists(STEPS, max_size=12))
@settings(max_examples=WORLDS, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_teams_that_hang_delay_no_other(steps: list[Step]) -> None:
    with virtual_time() as loop:
        assert loop.run_until_complete(play(steps)) == []
