"""A request for another image of an init container, and everything that can happen between any two actions.

The assertions stand in `tests.support.init_world`, at the places where a rule could be broken.
"""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.init_world import NEW, OLD, InitWorld
from tests.support.simulation import NAMES


def _answers(world: InitWorld, which: int) -> None:
    """RunPodSandbox ends."""
    if world.life.busy:
        world.ends(sorted(world.life.busy)[which % len(world.life.busy)], code=which)


STEPS: tuple[Callable[[InitWorld, int], object], ...] = (
    *[lambda world, _: world.act()] * 5,
    *[_answers] * 2,
    *[lambda world, _: world.somebody_sets_it()] * 2,
    lambda world, _: world.kubelet_sees(),
    lambda world, _: world.kubelet_tries_again(),
    lambda world, _: world.kubelet_looks(),
    lambda world, which: world.kubelet_stops(which),
    lambda world, which: world.kubelet_restarts(NAMES[which]),
    lambda world, which: world.kubelet_reports(("init", *NAMES)[which]),
    lambda world, which: world.dies(made=bool(which)),
    lambda world, which: (world.kubelet_dies, world.kubelet_collects, world.sweeps)[which](),
    lambda world, which: (world.sandbox_dies, world.kubelet_collects, world.sweeps)[which](),
    lambda world, which: world.passes(2.0 * which),
)


@pytest.mark.parametrize("made", [False, True], ids=["lost", "made"])
def test_the_daemon_may_die_after_every_single_action(*, made: bool) -> None:
    calm = InitWorld(hooks=True)
    calm.settle()
    for moment in range(1, calm.actions):
        world = InitWorld(hooks=True)
        world.settle_with(moment, partial(world.dies, made=made))
        assert world.runs == [OLD, NEW]


def test_the_pod_may_restart_by_itself_at_every_step() -> None:
    """Before it has the image, that restart does not count. After that, it does."""
    calm = InitWorld(hooks=False)
    calm.settle()
    for moment in range(calm.actions):
        world = InitWorld(hooks=False)
        world.settle_with(moment, world.sandbox_dies)
        assert world.runs.count(NEW) <= 1 + world.lost


def test_an_init_container_that_fails_is_tried_again_with_the_image() -> None:
    """Kubelet does so by itself. A second sandbox would start the pod's restart anew."""
    world = InitWorld(hooks=False, fails=True)
    world.settle()
    assert (world.runs[-2:], world.restarts, dict(world.seconds)) == ([OLD, NEW], 0, {})


@settings(max_examples=600, deadline=None)
@given(
    hooks=st.booleans(),
    fails=st.booleans(),
    script=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 2)), max_size=90),
)
def test_any_interleaving(script: list[tuple[int, int]], *, hooks: bool, fails: bool) -> None:
    world = InitWorld(hooks=hooks, fails=fails)
    for what, which in script:
        STEPS[what](world, which)
    world.settle()
    assert world.restarts <= 1 + world.lost
