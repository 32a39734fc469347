"""How much work a plan is for many pods."""

from dataclasses import replace
from datetime import timedelta

import pytest

from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.run import Amount
from crrd.core.rollout.state import Member, World
from tests.support.rollouts import NOW, budget, chosen, member, members, planned, run, succeeded, workload


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: str) -> bool:
        Name.compared += 1
        return str.__lt__(self, other)


def test_a_budget_may_not_know_yet_that_a_pod_is_unready_and_knows_of_ready_ones() -> None:
    """A pod that has just become ready is none of them, nor one of which nobody knows since when it is unready."""
    pods = members(3)
    unknown = replace(pods[0], ready=False, ready_since=None)
    just = replace(pods[0], ready_since=NOW)
    for first, begins in ((just, ["web-0"]), (unknown, ["web-0", "web-1"])):
        world = World((first, *pods[1:]), (), workload(3), (budget(1),))
        assert chosen(planned(world, run(max_unavailable=Amount(3)))) == begins


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


class Labels(dict[str, str]):
    """The labels of a pod, which count how often any are looked at."""

    __slots__ = ()
    looks = 0

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        Labels.looks += 1
        return super().get(key, default)


def looks_at_labels(pods: int) -> int:
    """How often one plan looks at labels while all pods of a run with an image get ready, and serve."""
    of = run(image=ImageChange("app:2", pulls=False), min_ready=300, max_unavailable=Amount(pods))
    there = [replace(each, ready_since=NOW, labels=Labels(each.labels)) for each in members(pods)]
    created = (NOW - timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    asked = [succeeded(of, each) for each in there]
    requests = tuple(replace(each, request=replace(each.request, created=created)) for each in asked)
    Labels.looks = 0
    found = planned(World(tuple(there), requests, workload(pods), (budget(pods), budget(pods, "other"))), of)
    assert all(row.stage.under_way for row in found.rows)
    return Labels.looks


def test_the_pods_that_get_ready_are_counted_once() -> None:
    """Each of them may have to wait for its image, if its budget is used up by the others."""
    assert 0 < looks_at_labels(80) < 3 * looks_at_labels(40)
