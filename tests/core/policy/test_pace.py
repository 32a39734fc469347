"""How long the turns of a policy's run go on, and when a run that gets nowhere is ended."""

from dataclasses import replace

import pytest

from crrd.core.policy.pace import CHECK_SECONDS, MOST_SECONDS, STUCK_SECONDS, TURN_SECONDS, Pace
from crrd.core.rollout.limits import Limits, Times
from crrd.core.rollout.phases import GOES_ON, End, RunPhase, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import Row
from crrd.core.rollout.waits import Wait
from tests.support.rollouts import run

WAITING = Plan((Row("web-0", "u", Stage.WAITING),), end=End.YIELDED)
STARTS = Wait("waiting until container app of pod web-1 has started")
ADOPTING = replace(WAITING, phase=RunPhase.ADOPTING, wait=STARTS)
NEW_PODS = replace(
    WAITING, phase=RunPhase.PULLING, wait=Wait("waiting for new pods"), wait_before_end=Wait("waiting for new pods")
)


@pytest.mark.parametrize("end", End)
def test_a_turn_keeps_its_end(end: End) -> None:
    plan = replace(WAITING, end=end)
    assert Pace(0.0).after(plan, 1.0) is plan
    if end.over:
        assert end not in GOES_ON, "other runs may follow, so this one must not take another turn"


def test_a_turn_is_short_only_after_one_in_vain_and_if_others_need_it() -> None:
    pace = Pace(0.0)
    assert pace.times(None, 0.0, full=True) == Times(None, TURN_SECONDS, MOST_SECONDS)
    assert pace.after(WAITING, 60.0) is WAITING
    assert pace.times(None, 60.0, full=True).patience == CHECK_SECONDS
    assert pace.times(None, 60.0, full=False).patience == TURN_SECONDS
    pace.after(replace(WAITING, rows=(Row("web-0", "u", Stage.RECREATING),)), 65.0)
    assert pace.moved_at == 65.0
    assert pace.times(None, 65.0, full=True).patience == TURN_SECONDS, "it has made progress"


def test_a_turn_with_progress_to_its_end_was_not_in_vain() -> None:
    """Else each other one would be last in its namespace, and short."""
    pace, now = Pace(0.0), 0.0
    for stage in (Stage.RECREATING, Stage.SETTLING, Stage.DONE):
        assert pace.times(None, now, full=True).patience == TURN_SECONDS
        now += MOST_SECONDS
        pace.after(replace(WAITING, rows=(Row("web-0", "u", stage),)), now)
        assert not pace.idle
    pace.times(None, now, full=True)
    pace.after(replace(WAITING, rows=(Row("web-0", "u", Stage.FAILED),)), now + TURN_SECONDS + 1)
    assert pace.idle, "it has made progress once, and then none for a minute"


def test_a_pod_that_comes_and_goes_is_no_progress() -> None:
    """Else the policy would never say that its run is blocked, for example by a budget."""
    pace, turns = Pace(0.0), (Stage.DONE, Stage.SETTLING, Stage.DONE, Stage.SETTLING)
    for turn, stage in enumerate(turns):
        waiting = replace(WAITING.rows[0], uid="other")
        pace.after(replace(WAITING, rows=(Row("web-0", "u", stage), waiting)), 120.0 * turn)
    assert (pace.moved_at, pace.idle) == (120.0, True)


def test_a_run_whose_nodes_are_down_has_time_to_end() -> None:
    """It waits for them for a minute of one turn. A run that can still start pods has less time for that."""
    row = Row("web-0", "u", Stage.PUT_OFF)
    for rows, patience in (((row,), TURN_SECONDS), ((row, replace(row, stage=Stage.WAITING)), CHECK_SECONDS)):
        pace = Pace(0.0)
        for now in (60.0, 120.0):
            pace.after(replace(WAITING, rows=rows), now)
        assert pace.times(None, 120.0, full=True).patience == patience


def test_a_window_limits_the_whole_run() -> None:
    assert Pace(0.0).times(40.0, 0.0, full=False).timeout == 40.0
    assert Pace(0.0).times(-3.0, 0.0, full=False).timeout == 1.0, "there is none of 0 seconds"


@pytest.mark.parametrize("stuck", [ADOPTING, NEW_PODS])
def test_a_run_that_only_waits_for_a_pod_to_start_lets_others_start(stuck: Plan) -> None:
    pace = Pace(0.0)
    assert pace.after(stuck, 0.0) is stuck
    assert pace.after(stuck, STUCK_SECONDS - 1) is stuck
    over = pace.after(stuck, STUCK_SECONDS)
    assert (over.end, over.message) == (End.LEFT_OUT, stuck.wait.why)


def test_a_run_that_was_stuck_and_goes_on_is_not() -> None:
    pace = Pace(0.0)
    pace.after(ADOPTING, 0.0)
    pace.after(WAITING, 100.0)
    assert pace.after(ADOPTING, STUCK_SECONDS) is ADOPTING
    assert pace.after(WAITING, 3600.0) is WAITING, "who waits for a budget waits for as long as it takes"


@pytest.mark.parametrize("known", [ADOPTING, NEW_PODS])
def test_an_outage_of_the_api_server_is_no_wait_for_a_pod(known: Plan) -> None:
    """The run may be past it by now. Only turns that have seen it still waiting count."""
    pace, now, trouble = Pace(0.0), 0.0, ""
    while now < 2 * STUCK_SECONDS:
        limits, plan = Limits(pace.times(None, now, full=True), now), replace(known, end=None)
        while plan.end is None:
            plan = limits.apply(replace(known, end=None), run(), now, trouble=trouble)
            now += 1.0
        assert pace.after(plan, now) is plan, "nobody has seen that it still waits"
        trouble = "the API server does not answer"
    assert pace.after(replace(known, end=End.YIELDED), now).end is End.YIELDED
