"""Two requests, three containers, and everything that can happen between any two actions.

The assertions stand in `tests.support.simulation`, at the places where a rule could be broken.
"""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.api.reasons import Reason
from crrd.core.api.types import FailurePolicy, RequestPhase, StatePhase, Strategy
from crrd.kubelet.restart_rules import RestartPolicy
from tests.support.simulation import NAMES, SmallWorld

STRATEGIES = [
    Strategy(),
    Strategy(ordered=True),
    Strategy(force=True),
    Strategy(force=True, ordered=True, failure_policy=FailurePolicy.IGNORE),
    Strategy(unready_grace_seconds=3),
]


def succeeded(world: SmallWorld, uid: str) -> None:
    status = world.requests[uid].status
    assert status.phase is RequestPhase.COMPLETED
    assert {state.phase for state in status.states} == {StatePhase.SUCCEEDED}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(STRATEGIES, STRATEGIES)))
@pytest.mark.parametrize("hooks", [False, True], ids=["plain", "hooks"])
@pytest.mark.parametrize("contexts", [False, True], ids=["pinned", "contexts"])
def test_the_daemon_may_die_after_every_single_action(
    first: Strategy, second: Strategy, *, hooks: bool, contexts: bool
) -> None:
    calm = SmallWorld([first, second], hooks=hooks, contexts=contexts)
    calm.settle()
    for moment in range(1, calm.actions):
        world = SmallWorld([first, second], hooks=hooks, contexts=contexts)
        world.settle_with(moment, world.dies)
        for uid in world.requests:
            succeeded(world, uid)


@pytest.mark.parametrize(("strategy", "hooks"), list(itertools.product(STRATEGIES, [False, True])))
def test_the_first_request_may_be_deleted_at_every_step(strategy: Strategy, *, hooks: bool) -> None:
    calm = SmallWorld([strategy, Strategy()], hooks=hooks, contexts=True)
    calm.settle()
    for moment in range(calm.actions + 1):
        world = SmallWorld([strategy, Strategy()], hooks=hooks, contexts=True)

        def delete(world: SmallWorld = world, moment: int = moment) -> None:
            if world.actions >= moment:
                world.delete("r0")

        world.settle(before=delete)
        succeeded(world, "r1")


def test_one_recreation_in_all_without_interference() -> None:
    world = SmallWorld([Strategy(), Strategy()], hooks=True, contexts=True)
    world.settle()
    assert len(world.instances) == 2 * len(NAMES)
    first = {world.instances[name].id for name in world.instances if world.instances[name].restart_count == 0}
    assert world.hook_runs == dict.fromkeys(first, 1)


def test_force_recreates_once_per_request() -> None:
    world = SmallWorld([Strategy(force=True), Strategy(force=True)], hooks=False, contexts=True)
    world.settle()
    assert len(world.instances) == 3 * len(NAMES)


@pytest.mark.parametrize("policy", [RestartPolicy.NEVER, RestartPolicy.ON_FAILURE])
def test_every_request_ends_whatever_the_restart_policy(policy: RestartPolicy) -> None:
    world = SmallWorld([Strategy(failure_policy=FailurePolicy.IGNORE)], hooks=False, contexts=True, policy=policy)
    world.settle()
    states = world.requests["r0"].status.states
    if policy is RestartPolicy.NEVER:
        assert len(world.instances) == len(NAMES)
        assert {state.reason for state in states} == {Reason.NOT_RESTARTABLE}
    else:
        assert {state.phase for state in states} == {StatePhase.SUCCEEDED}


@example(  # the first one ends for good during its hook: the second one's turn comes at once
    strategies=[STRATEGIES[3], STRATEGIES[0]],
    hooks=True,
    contexts=False,
    policy=RestartPolicy.ON_FAILURE,
    script=[*[(0, 0)] * 5, (9, 0), (0, 0)],
)
@example(  # one that has failed after its hook, and a daemon that does not remember it
    strategies=[STRATEGIES[1], STRATEGIES[0]],
    hooks=True,
    contexts=False,
    policy=RestartPolicy.ON_FAILURE,
    script=[*[(0, 0)] * 5, (5, 0), (9, 2), (0, 0), (0, 0), (10, 0)],
)
@settings(max_examples=400, deadline=None)
@given(
    strategies=st.lists(st.sampled_from(STRATEGIES), min_size=2, max_size=2),
    hooks=st.booleans(),
    contexts=st.booleans(),
    policy=st.sampled_from([RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE]),
    script=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 2)), max_size=90),
)
def test_any_interleaving(
    strategies: list[Strategy],
    script: list[tuple[int, int]],
    policy: RestartPolicy,
    *,
    hooks: bool,
    contexts: bool,
) -> None:
    world = SmallWorld(strategies, hooks=hooks, contexts=contexts, policy=policy)
    for what, which in script:
        name = NAMES[which]
        match what:
            case 0 | 1 | 2 | 3 | 4:
                world.act()
            case 5 | 6:
                if world.life.busy:
                    world.ends(sorted(world.life.busy)[which % len(world.life.busy)], code=137 * (which % 2))
            case 7:
                world.kubelet_restarts(name)
            case 8:
                world.kubelet_reports(name)
            case 9:
                world.crashes(name, code=which % 2)
            case 10:
                world.dies()
            case _:
                if which == 0:
                    world.delete("r0")
                else:
                    world.now += 2.0 * which
    world.settle()
