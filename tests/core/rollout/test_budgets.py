"""How much work a plan is for many pods."""

from dataclasses import replace

import pytest

from crrd.core.rollout.run import Amount
from crrd.core.rollout.state import Member, World
from tests.support.rollouts import budget, member, planned, run, workload


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: str) -> bool:
        Name.compared += 1
        return str.__lt__(self, other)


def named(number: int) -> Member:
    """A pod; every second one is unready."""
    found = member(f"web-{number:05}", node=f"node-{number % 50}", ready=bool(number % 2))
    return replace(found, pod=replace(found.pod, name=Name(found.pod.name)))


def comparisons(pods: int, most: Amount) -> int:
    """How often one plan compares names of pods."""
    world = World(tuple(map(named, range(pods))), (), workload(pods), (budget(pods), budget(1, "other")))
    Name.compared = 0
    assert planned(world, run(max_unavailable=most, max_per_node=1)).rows
    return Name.compared


@pytest.mark.parametrize("most", [Amount(1), Amount(10, percent=True), Amount(60, percent=True)])
def test_it_is_in_proportion_to_the_number_of_pods(most: Amount) -> None:
    assert 0 < comparisons(800, most) < 3 * comparisons(400, most), "twice the pods, and a little for sorting them"
