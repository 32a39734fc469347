"""Requests for the whole pod and for its containers, and everything that can happen between any two actions.

The assertions stand in `tests.support.pod_world`, at the places where a rule could be broken.
"""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.api.types import Strategy
from tests.support.pod_world import PodWorld
from tests.support.simulation import NAMES

POD, FORCED, CONTAINERS = (Strategy(), True), (Strategy(force=True), True), (Strategy(), False)
ASKED = [POD, FORCED, (Strategy(unready_grace_seconds=3), True), CONTAINERS, (Strategy(force=True), False)]
PAIRS = [pair for pair in itertools.product(ASKED, ASKED) if any(whole for _, whole in pair)]


def _answers(world: PodWorld, which: int) -> None:
    """A hook, a stop or a RunPodSandbox under way ends."""
    if world.life.busy:
        world.ends(sorted(world.life.busy)[which % len(world.life.busy)], code=which)


def _time_passes(world: PodWorld, which: int) -> None:
    world.now += 2.0 * which
    world.kubelet_stops(0)


STEPS: tuple[Callable[[PodWorld, int], object], ...] = (
    *[lambda world, _: world.act()] * 5,
    *[_answers] * 2,
    lambda world, _: world.kubelet_looks(),
    lambda world, which: world.kubelet_stops(which),
    lambda world, which: world.kubelet_restarts(NAMES[which]),
    lambda world, which: world.kubelet_reports(NAMES[which]),
    lambda world, which: world.dies(made=bool(which)),
    lambda world, which: (world.kubelet_dies, world.kubelet_collects, world.sweeps)[which](),
    lambda world, which: (world.sandbox_dies, world.kubelet_collects, world.sweeps)[which](),
    _time_passes,
    lambda world, which: world.delete(f"r{which}") if which == 0 else None,
)


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("hooks", [False, True], ids=["plain", "hooks"])
@pytest.mark.parametrize("made", [False, True], ids=["lost", "made"])
def test_the_daemon_may_die_after_every_single_action(
    first: tuple[Strategy, bool], second: tuple[Strategy, bool], *, hooks: bool, made: bool
) -> None:
    """What it has sent to the runtime may have an effect or not."""
    calm = PodWorld([first, second], hooks=hooks, contexts=True)
    calm.settle()
    for moment in range(1, calm.actions):
        world = PodWorld([first, second], hooks=hooks, contexts=True)
        world.settle_with(moment, partial(world.dies, made=made))


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("hooks", [False, True], ids=["plain", "hooks"])
def test_the_first_request_may_be_deleted_at_every_step(
    first: tuple[Strategy, bool], second: tuple[Strategy, bool], *, hooks: bool
) -> None:
    calm = PodWorld([first, second], hooks=hooks, contexts=True)
    calm.settle()
    for moment in range(calm.actions + 1):
        world = PodWorld([first, second], hooks=hooks, contexts=True)

        def delete(world: PodWorld = world, moment: int = moment) -> None:
            if world.actions >= moment:
                world.delete("r0")

        world.settle(before=delete)


@pytest.mark.parametrize(
    ("asked", "restarts"),
    [
        ([POD], 1),
        ([FORCED], 1),
        ([POD, POD], 1),  # both name the same instances
        ([POD, FORCED], 2),
        ([FORCED, FORCED], 2),
        ([POD, CONTAINERS], 1),  # the containers that it names were replaced
    ],
)
def test_one_restart_a_request(asked: list[tuple[Strategy, bool]], restarts: int) -> None:
    world = PodWorld(asked, hooks=True, contexts=True)
    world.settle()
    assert (world.restarts, set(world.seconds.values())) == (restarts, {1})
    assert len(world.instances) == (restarts + 1) * len(NAMES)


@settings(max_examples=600, deadline=None)
@given(
    asked=st.sampled_from(PAIRS),
    hooks=st.booleans(),
    contexts=st.booleans(),
    script=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 2)), max_size=90),
)
def test_any_interleaving(
    asked: tuple[tuple[Strategy, bool], tuple[Strategy, bool]],
    script: list[tuple[int, int]],
    *,
    hooks: bool,
    contexts: bool,
) -> None:
    world = PodWorld(list(asked), hooks=hooks, contexts=contexts)
    for what, which in script:
        STEPS[what](world, which)
    world.settle()
    assert world.restarts <= len(world.seconds) + world.lost
