"""When a process ends a run without an end of its plan, and what it waits for before an end."""

from dataclasses import replace

import pytest

from crrd.core.rollout.kind import NO_ACTIONS
from crrd.core.rollout.limits import NODE_SECONDS, PATIENCE_SECONDS, Limits, Times
from crrd.core.rollout.parts import Part, PartState
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.restart import FileActions
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import NO_WAIT, Wait
from tests.support.rollouts import (
    AFTER,
    again,
    budget,
    members,
    planned,
    recreated,
    run,
    stages,
    succeeded,
    workload,
)

RUN = run()
NODES = Wait("web-0: the node is down")


def plan(*stages: Stage, needs_step: bool = False, **changes: object) -> Plan:
    pods = enumerate(stages)
    rows = tuple(Row(f"web-{number}", f"uid-{number}", stage, needs_step=needs_step) for number, stage in pods)
    return replace(Plan(rows or (Row("web-0", "uid-0", Stage.WAITING),)), **changes)  # type: ignore[arg-type]


def ends_at(times: Times, found: Plan, most: int = 10_000, step: float = 1.0) -> tuple[float, End | None]:
    """Return after how many seconds a process ends whose plan never changes, and how."""
    limits = Limits(times, 100.0)
    for count in range(int(most / step)):
        now = 100.0 + count * step
        if (end := limits.apply(found, RUN, now).end) is not None:
            return now - 100.0, end
    return most, None


@pytest.mark.parametrize(
    ("times", "seconds", "end"),
    [
        (Times(), 3600, End.TIMED_OUT),
        (Times(0), 10_000, None),
        (Times(30), 30, End.TIMED_OUT),
        (Times(None, 60.0), 60, End.YIELDED),
        (Times(30, 60.0), 30, End.TIMED_OUT),
        (Times(90, 60.0), 60, End.YIELDED),
        (Times(None, 60.0, 20.0), 20, End.YIELDED),
    ],
)
def test_a_process_without_progress_ends(times: Times, seconds: float, end: End | None) -> None:
    """One that carries out a turn ends that, until the time of the whole run is over."""
    assert ends_at(times, plan(wait=Wait("a budget"))) == (seconds, end)


@pytest.mark.parametrize("times", [Times(10), Times(None, 10.0)])
def test_a_run_that_ends_out_of_date_records_that_its_pods_are_judged(times: Times) -> None:
    """A later process must know that the pods of a step were done."""
    limits = Limits(times, 0.0)
    judged = plan(Stage.DONE, phase=RunPhase.JUDGING, part=Part(state=PartState.JUDGING))
    assert limits.apply(judged, RUN, 0.0, trouble="no answer").phase is RunPhase.JUDGING
    ended = limits.apply(judged, RUN, 10.0, trouble="no answer")
    assert (ended.end, ended.phase) == (End.YIELDED if times.is_turn else End.TIMED_OUT, RunPhase.JUDGING)


@pytest.mark.parametrize(("times", "seconds"), [(Times(None, 60.0), 60.0), (Times(), PATIENCE_SECONDS + 86_400)])
def test_a_pause_and_a_judgement_keep_a_run_but_not_its_turn(times: Times, seconds: float) -> None:
    limits, slow = Limits(times, 0.0), run(steps=(1,), step_pause=80_000, judge=6_400)
    pauses = plan(Stage.DONE, Stage.WAITING, wait=Wait("a pause"), phase=RunPhase.PAUSED)
    assert limits.apply(pauses, slow, 0.0).end is None
    assert limits.apply(pauses, slow, seconds - 1).end is None
    assert limits.apply(pauses, slow, seconds).end in (End.YIELDED, End.TIMED_OUT)


def test_a_pod_may_take_longer_than_the_patience() -> None:
    limits, slow = Limits(Times(), 0.0), run(pod_timeout=5 * 3600)
    waits = plan(Stage.RECREATING, min_ready=60)
    assert limits.apply(waits, slow, 0.0).end is None
    assert limits.apply(waits, slow, 5 * 3600 + 59.0).end is None
    assert limits.apply(waits, slow, 5 * 3600 + 60.0).end is End.TIMED_OUT


def test_progress_extends_the_time_but_not_that_of_the_whole_run() -> None:
    for times, least in ((Times(), None), (Times(4000), End.TIMED_OUT)):
        limits = Limits(times, 0.0)
        assert limits.apply(plan(Stage.WAITING), RUN, 0.0).end is None
        assert limits.apply(plan(Stage.RECREATING), RUN, 3000.0).end is None
        assert limits.apply(plan(Stage.RECREATING), RUN, 4000.0).end is least
    refreshed = Limits(Times(), 0.0)
    files = FileActions(((Row("web-0", "uid-0", Stage.WAITING), "token"),))
    assert refreshed.apply(plan(), RUN, 0.0).end is None
    assert refreshed.apply(plan(actions=files), RUN, 3000.0).end is None
    assert refreshed.apply(plan(actions=files), RUN, 4000.0).end is None, "the refresh is progress"
    asked = Limits(Times(), 0.0)
    assert asked.apply(plan(), RUN, 0.0).end is None
    asked.restart()
    assert asked.apply(plan(), RUN, 3500.0).end is None
    assert asked.apply(plan(), RUN, 4000.0).end is None, "a user has answered"


def test_what_comes_back_is_no_progress() -> None:
    """One pod crashes again and again, and the other one waits for a budget that allows no disruption."""
    of, (one, two) = run(), members(2)
    first, limits = succeeded(of, one, completion_time=AFTER), Limits(Times(), 0.0)

    def ends(now: float, *, ready: bool, asked: RunRequest = first) -> End | None:
        world = World((recreated(one, ready=ready), two), (asked,), workload(2), budgets=(budget(0),))
        found = planned(world, of)
        assert stages(found) == {"web-0": "done" if ready else "getting ready", "web-1": "waiting"}
        return limits.apply(found, of, now).end

    assert [ends(now, ready=now % 20 == 0) for now in range(0, 3610, 10)] == [None] * 361
    assert ends(3610.0, ready=True) is End.TIMED_OUT, "an hour after it was unready for the first time"
    limits = Limits(Times(), 0.0)
    assert ends(0.0, ready=True) is None
    assert ends(3500.0, ready=True, asked=again(first, first)) is None
    assert ends(7000.0, ready=True, asked=again(first, first)) is None, "another request is progress"


def test_another_step_is_progress() -> None:
    limits = Limits(Times(), 0.0)
    for now, part in ((0.0, Part()), (3500.0, Part(1)), (7000.0, Part(1, PartState.ASKING)), (7001.0, Part(1))):
        assert limits.apply(plan(part=part), RUN, now).end is None
    assert limits.apply(plan(part=Part(1)), RUN, 10_600.0).end is End.TIMED_OUT


def test_a_turn_that_has_lasted_for_long_begins_no_pod_and_ends_once_none_waits_for_it() -> None:
    limits = Limits(Times(None, 60.0, 120.0), 0.0)
    row = Row("web-1", "uid-1", Stage.WAITING)
    files = FileActions(((row, "token"),))
    busy = plan(Stage.RECREATING, create=(row,), actions=files, needs_step=True)
    assert limits.apply(busy, RUN, 60.0).create == (row,)
    late = limits.apply(busy, RUN, 120.0)
    assert (late.create, late.actions, late.end) == ((), NO_ACTIONS, None)
    assert limits.apply(busy, RUN, 500.0).end is None, "a pod is unready, and waits for its image"
    assert limits.apply(plan(Stage.RECREATING), RUN, 502.0).end is End.YIELDED


def test_a_turn_that_must_not_leave_a_pod_still_ends_with_the_whole_time() -> None:
    assert ends_at(Times(300, 60.0, 120.0), plan(Stage.RECREATING, needs_step=True)) == (300, End.TIMED_OUT)


@pytest.mark.parametrize("end", [End.DONE, End.PUT_OFF, End.LEFT_OUT, End.FAILED])
def test_a_run_waits_for_nodes_before_it_ends(end: End) -> None:
    limits, ended = Limits(Times(), 0.0), plan(Stage.PUT_OFF).ended(end, "why")
    ended = replace(ended, wait_before_end=NODES)
    waiting = limits.apply(ended, RUN, 0.0)
    assert (waiting.end, waiting.wait, waiting.phase) == (None, NODES, RunPhase.RESTARTING)
    assert limits.apply(ended, RUN, NODE_SECONDS - 1).end is None
    assert limits.apply(ended, RUN, NODE_SECONDS).end is end
    assert limits.apply(replace(ended, wait_before_end=NO_WAIT), RUN, 1.0).end is end


def test_the_wait_for_nodes_begins_anew_after_another_pod() -> None:
    limits = Limits(Times(), 0.0)
    ended = replace(plan(Stage.PUT_OFF).ended(End.PUT_OFF), wait_before_end=NODES)
    assert limits.apply(ended, RUN, 0.0).end is None
    assert limits.apply(plan(create=(Row("web-0", "uid-0", Stage.WAITING),)), RUN, 30.0).end is None
    assert limits.apply(ended, RUN, NODE_SECONDS).end is None
    assert limits.apply(plan(Stage.WAITING, wait=Wait("a budget")), RUN, NODE_SECONDS + 1).end is None
    assert limits.apply(ended, RUN, 2 * NODE_SECONDS).end is End.PUT_OFF, "it has begun with no other pod since"


def test_a_run_that_is_done_is_not_timed_out_while_it_waits_for_pods() -> None:
    done = replace(plan(Stage.DONE).ended(End.DONE), wait_before_end=Wait("waiting for new pods"))
    assert ends_at(Times(10), done) == (10, End.DONE)
    away = replace(plan(Stage.PUT_OFF).ended(End.PUT_OFF), wait_before_end=NODES)
    assert ends_at(Times(10), away) == (10, End.TIMED_OUT)


def test_while_the_state_may_be_out_of_date_nothing_begins_and_nothing_ends() -> None:
    limits, row = Limits(Times(), 0.0), Row("web-0", "uid-0", Stage.WAITING)
    found = limits.apply(plan(create=(row,), actions=FileActions(((row, "t"),))), RUN, 0.0, trouble="no answer")
    assert (found.create, found.actions, found.wait.why) == ((), NO_ACTIONS, "no answer")
    done = limits.apply(plan(Stage.DONE).ended(End.DONE), RUN, 1.0, trouble="no answer")
    assert (done.end, done.wait.why, done.phase) == (None, "no answer", RunPhase.RESTARTING)
    assert limits.apply(plan().ended(End.ABORTED), RUN, 2.0, trouble="no answer").end is End.ABORTED


@pytest.mark.parametrize(
    "known",
    [
        plan(Stage.DONE, phase=RunPhase.ADOPTING, wait=Wait("waiting for the controller")),
        plan(Stage.DONE, phase=RunPhase.RELEASING),
        replace(plan(Stage.DONE).ended(End.DONE), wait_before_end=Wait("waiting for new pods")),
    ],
)
def test_an_outage_is_no_time_in_which_a_run_waits_for_what_follows_its_pods(known: Plan) -> None:
    """A policy ends a run that only waits for that for a few minutes. Nobody knows whether it still does."""
    limits = Limits(Times(None, 60.0), 0.0)
    assert limits.apply(known, RUN, 0.0).end is None
    for now in (1.0, 60.0):
        found = limits.apply(known, RUN, now, trouble="no answer")
        assert (found.phase, found.wait_before_end, found.wait.why) == (RunPhase.RESTARTING, NO_WAIT, "no answer")
    assert found.end is End.YIELDED
    after = Limits(Times(None, 60.0), 61.0).apply(known, RUN, 61.0)
    assert after.phase is known.going_on().phase
    assert after.wait_before_end == known.wait_before_end, "the next turn sees it again"


def test_a_turn_does_not_leave_an_unready_pod_because_an_end_is_put_off() -> None:
    """One pod has failed, and another one waits for its image. The API server does not answer, so nothing ends."""
    limits = Limits(Times(None, 60.0), 0.0)
    ended = plan(Stage.FAILED, Stage.RECREATING, needs_step=True).ended(End.FAILED)
    assert limits.apply(ended, RUN, 0.0, trouble="no answer").end is None
    assert limits.apply(ended, RUN, 500.0, trouble="no answer").end is None
    assert limits.apply(ended, RUN, 501.0).end is End.FAILED


def test_a_request_that_cannot_be_created_is_shown_while_the_run_goes_on() -> None:
    limits = Limits(Times(), 0.0)
    assert limits.apply(plan(), RUN, 0.0, problem="a webhook is down").wait.why == "a webhook is down"
    assert not limits.apply(plan().ended(End.FAILED), RUN, 0.0, problem="a webhook is down").wait.why


def test_the_next_plan_follows_within_a_second_or_when_the_time_is_over() -> None:
    limits = Limits(Times(10), 0.0)
    assert (limits.seconds_left(0.0), limits.seconds_left(9.75)) == (1.0, 0.25)
