"""The steps of a run: when each is over, how its pods are judged, and what begins the next one."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import RecreateState, RequestPhase, StatePhase
from crrd.core.rollout.parts import PARTS, Allowed, PartState, place, read_steps, recorded, sizes, written
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.state import Measured, Member, World
from crrd.core.rollout.waits import WaitReason
from tests.support.rollouts import (
    NOW,
    asked,
    chosen,
    container,
    failed,
    member,
    members,
    planned,
    recreated,
    run,
    stages,
    succeeded,
    why,
    workload,
)

DONE = rfc3339(NOW - timedelta(seconds=30))  # When `recreated` pods have started
PODS = members(6)


def stepped(**options: Any) -> Run:
    return run(**{"steps": (1, 3), "step_pause": 0, "max_unavailable": Amount(6), **options})


def world_of(of: Run, *done: Member, **changes: Any) -> World:
    """Return a world in which the run has restarted these pods, and the others have not begun."""
    left = PODS[len(done) :]
    requests = tuple(created(succeeded(of, each, completion_time=DONE), number) for number, each in enumerate(done))
    return replace(World((*done, *left), requests), **changes)


def created(found: RunRequest, second: int) -> RunRequest:
    return replace(found, request=replace(found.request, created=f"2026-01-01T12:00:{second:02}Z"))


def rested(world: World, number: int = 0, phase: RunPhase = RunPhase.JUDGING, seconds: int = 0) -> World:
    """Return the world after a process has recorded that the pods of a step were done."""
    noted = Progress(rfc3339(NOW + timedelta(seconds=seconds)), "host/1", phase, 1, 6, steps=number)
    first, *others = world.requests
    return replace(world, requests=(replace(first, progress=noted), *others))


def beside(pod: Member) -> Member:
    """Return the pod with another container, which has run for long."""
    return replace(pod, pod=replace(pod.pod, containers={"side": container("side"), **pod.pod.containers}))


def crashed(pod: Member, *, times: int = 1, ready: bool = True) -> Member:
    """Return the pod after its container has ended and was started again by kubelet."""
    there = pod.pod.containers["app"]
    again = replace(there, restart_count=there.restart_count + times, container_id="containerd://app-9", exit_code=3)
    return replace(pod, pod=replace(pod.pod, containers={"app": again}), ready=ready)


@pytest.mark.parametrize("given", ["1", "1,2", "10%,50%,100%", "1,10%,5"])
def test_steps_are_read(given: str) -> None:
    assert written(read_steps(given)) == given


@pytest.mark.parametrize("given", ["", "0", "1,", "2,1", "1,1", "50%,10%", "1,-3", "x", "101%"])
def test_bad_steps_are_refused_with_the_shape(given: str) -> None:
    with pytest.raises(ValueError, match="numbers or percentages of pods that increase, for example 1,10%,50%"):
        read_steps(given)


@pytest.mark.parametrize(
    ("given", "total", "found"),
    [
        ("1,10%,50%", 20, (1, 2, 10)),
        ("1,10%,50%", 3, (1, 2)),  # 10 % of 3 is rounded up to 1
        ("1,10%,100%", 1, ()),
        ("5,10", 4, ()),
        ("34%", 3, (2,)),
        ("50%", 1000, (500,)),
        ("5,10%", 20, (5,)),  # 10 % are fewer than the step before
    ],
)
def test_a_percentage_is_rounded_up_and_the_last_step_has_all_pods(
    given: str, total: int, found: tuple[int, ...]
) -> None:
    assert sizes(read_steps(given), total) == found


def test_a_run_without_steps_has_none_that_is_over() -> None:
    part = planned(World(PODS), run()).part
    assert (part.number, part.state, part.left) == (0, PartState.OPEN, None)


def test_each_step_begins_when_the_pods_of_the_one_before_are_done() -> None:
    of = stepped()
    assert chosen(planned(World(PODS), of)) == ["web-0"]
    assert why(planned(World(PODS), of))["web-1"] == "waiting for the first 1 pods"
    under_way = World(PODS, (asked(of, PODS[0]),))
    assert chosen(planned(under_way, of)) == []
    assert chosen(planned(world_of(of, recreated(PODS[0])), of)) == ["web-1", "web-2"]
    three = world_of(of, *map(recreated, PODS[:3]))
    assert chosen(planned(three, of)) == ["web-3", "web-4", "web-5"]
    found = planned(world_of(of, *map(recreated, PODS)), of)
    assert (found.end, found.part.number, found.part.state) == (End.DONE, 2, PartState.OVER)


def test_the_last_pod_of_the_last_step_is_still_to_come() -> None:
    of = stepped(steps=(5,), judge=10)
    found = planned(rested(world_of(of, *map(recreated, PODS[:5]))), of)
    assert (found.part.number, found.part.state) == (1, PartState.OPEN)
    assert chosen(found) == ["web-5"]


def test_two_steps_are_named() -> None:
    of = stepped(steps=(1,), step_pause=60)
    found = planned(world_of(of, recreated(PODS[0])), of)
    assert found.wait.why.startswith("step 1 of 2 is done")


def test_a_pod_that_was_deleted_leaves_its_place_to_another_one() -> None:
    of = stepped()
    gone = World(PODS[1:], (failed(of, PODS[0], Reason.POD_GONE),))
    assert chosen(
        planned(
            gone,
            of,
        )
    ) == ["web-1"]


def test_a_pod_that_restarted_by_itself_takes_a_place() -> None:
    of = stepped()
    found = planned(World((recreated(PODS[0]), *PODS[1:])), of)
    assert (stages(found)["web-0"], chosen(found)) == ("skipped", ["web-1", "web-2"])


@pytest.mark.parametrize(
    ("app", "side", "takes"),
    [
        (DONE, "2026-01-01T11:30:00Z", True),
        ("2026-01-01T12:00:00Z", "2026-01-01T11:30:00Z", False),
        ("2026-01-01T11:30:00Z", "2026-01-01T11:30:00Z", False),
    ],
    ids=["one of them since the start of the run", "in the same second", "before"],
)
def test_a_pod_with_what_the_run_brings_takes_a_place_if_it_has_it_since_the_run_began(
    app: str, side: str, *, takes: bool
) -> None:
    of = stepped(containers=("app", "side"), since="2026-01-01T11:20:00Z")
    pod = member("web-0", container(started_at=app), container("side", started_at=side))
    assert chosen(planned(World((pod, *PODS[1:])), of)) == (["web-1", "web-2"] if takes else ["web-1"])


def test_a_pod_that_was_created_meanwhile_takes_none() -> None:
    of = stepped()
    new = member("new", container(started_at=DONE), created=DONE)
    assert chosen(planned(World((new, *PODS)), of)) == ["web-0"]


def test_the_pause_counts_from_the_last_pod() -> None:
    of = stepped(step_pause=60)
    found = planned(world_of(of, recreated(PODS[0])), of)
    assert found.part.waits_for_user, "resume --yes begins the next step at once"
    assert not planned(World(PODS), of).part.waits_for_user
    assert (found.part.state, found.phase, found.end, chosen(found)) == (PartState.PAUSING, RunPhase.PAUSED, None, [])
    assert found.wake_at == NOW + timedelta(seconds=30)
    at = rfc3339(NOW + timedelta(seconds=30))
    assert found.wait.why == f"step 1 of 3 is done, and the next one begins at {at}"
    assert found.wait.reason is WaitReason.STEP_PAUSE
    later = make_plan(world_of(of, recreated(PODS[0])), of, NOW + timedelta(seconds=30))
    assert chosen(later) == ["web-1", "web-2"]
    assert chosen(planned(world_of(of, recreated(PODS[0])), of, allowed=Allowed(1))) == ["web-1", "web-2"], (
        "resume --yes"
    )


@pytest.mark.parametrize("options", [{"step_pause": 60}, {"judge": 60}])
@pytest.mark.parametrize(("ready", "seconds"), [(10, 50), (40, 30)])
def test_pause_and_judgement_count_from_when_the_last_pod_was_ready_and_its_request_over(
    options: dict[str, int], ready: int, seconds: int
) -> None:
    of, late = stepped(**options), replace(recreated(PODS[0]), ready_since=NOW - timedelta(seconds=ready))
    assert planned(world_of(of, late), of).wake_at == NOW + timedelta(seconds=seconds)


def test_a_node_that_goes_down_after_its_pod_was_done_does_not_prolong_the_pause() -> None:
    of, away = stepped(step_pause=60), recreated(member("web-0", node="node-z"))
    away = replace(away, ready=False, ready_since=NOW - timedelta(seconds=10))
    found = planned(world_of(of, away, down=frozenset({"node-z"})), of)
    assert (stages(found)["web-0"], found.wake_at) == ("done", NOW + timedelta(seconds=30))


def test_without_a_time_a_user_allows_the_next_step() -> None:
    of = stepped(step_pause=None)
    found = planned(world_of(of, recreated(PODS[0])), of)
    assert (found.end, found.message, found.phase) == (End.PAUSED, "step 1 of 3 is done, 5 left", RunPhase.PAUSED)
    assert chosen(planned(world_of(of, recreated(PODS[0])), of, allowed=Allowed(1))) == ["web-1", "web-2"]


def test_pods_that_are_put_off_are_left() -> None:
    of = stepped(step_pause=None)
    away = replace(PODS[5], pod=replace(PODS[5].pod, node_name="node-z"))
    known = world_of(of, recreated(PODS[0]), down=frozenset({"node-z"}))
    found = planned(replace(known, members=(*known.members[:5], away)), of)
    assert found.message == "step 1 of 3 is done, 5 left"


def test_after_a_failed_pod_a_user_allows_the_next_step() -> None:
    of = stepped(max_failures=9)
    bad = World(PODS, (failed(of, PODS[0]),))
    found = planned(bad, of)
    assert (found.end, found.message) == (End.FAILED, "step 1 of 3 is done, 5 left")
    assert chosen(planned(bad, of, allowed=Allowed(1))) == ["web-1", "web-2"]


def test_a_step_that_is_recorded_as_over_stays_over() -> None:
    of = stepped(step_pause=600)
    known = rested(world_of(of, recreated(PODS[0])), number=1, phase=RunPhase.RESTARTING)
    assert chosen(planned(known, of)) == ["web-1", "web-2"], "although the pause is not over by the pods' times"
    (noted,) = (each.progress for each in known.requests if each.progress is not None)
    assert place(of, known.requests) == (2, 3)
    assert place(of, ()) == (1, 3)
    assert place(run(), known.requests) == (0, 0)
    late = replace(known.requests[0], progress=replace(noted, at=rfc3339(NOW + timedelta(seconds=9)), steps=0))
    assert recorded((*known.requests, late)) == 1, "whichever process has written last"


def judged(**options: Any) -> Run:
    return stepped(judge=60, **options)


def ended(found: Plan) -> tuple[End | None, str]:
    return found.end, found.message


def test_pods_must_stay_ready_before_the_next_step() -> None:
    of = judged()
    known = world_of(of, recreated(PODS[0]))
    found = planned(known, of)
    assert (found.part.state, found.phase, found.end, chosen(found)) == (PartState.JUDGING, RunPhase.JUDGING, None, [])
    assert found.wait.why == f"the pods of step 1 of 3 are judged until {rfc3339(NOW + timedelta(seconds=30))}"
    assert found.wake_at == NOW + timedelta(seconds=30)
    assert chosen(make_plan(known, of, NOW + timedelta(seconds=30))) == ["web-1", "web-2"]
    fallen = replace(PODS[5], ready=False, ready_since=NOW - timedelta(seconds=2))
    early = planned(replace(known, members=(*known.members[:5], fallen)), of)
    assert (early.part.state, early.wake_at) == (PartState.JUDGING, NOW + timedelta(seconds=3)), "what comes first"


def test_the_pause_counts_from_the_end_of_the_judgement() -> None:
    of = judged(step_pause=10)
    known = world_of(of, recreated(PODS[0]))
    assert make_plan(known, of, NOW + timedelta(seconds=39)).part.state is PartState.PAUSING
    assert chosen(make_plan(known, of, NOW + timedelta(seconds=40))) == ["web-1", "web-2"]


def test_the_last_step_is_judged_before_the_run_ends() -> None:
    of = run(judge=60, max_unavailable=Amount(6))
    known = world_of(of, *map(recreated, PODS))
    found = planned(known, of)
    assert (found.end, found.phase, found.part.number) == (None, RunPhase.JUDGING, 0)
    assert found.wait.why == f"the pods of the run are judged until {rfc3339(NOW + timedelta(seconds=30))}"
    assert make_plan(known, of, NOW + timedelta(seconds=30)).end is End.DONE
    over = rested(known, number=1, phase=RunPhase.RELEASING)
    assert planned(over, of).end is End.DONE, "what is recorded as judged is not judged again"


HEALTHY = recreated(PODS[0])


@pytest.mark.parametrize(
    ("pod", "had_rest", "options", "refusal"),
    [
        (HEALTHY, True, {}, ""),
        (crashed(HEALTHY), False, {}, "web-0 has restarted once more (app ended with 3)"),
        (crashed(HEALTHY, times=2), False, {}, "web-0 has restarted 2 times more (app ended with 3)"),
        (crashed(HEALTHY), True, {"max_restarts": 1}, ""),
        (crashed(HEALTHY, ready=False), True, {"max_restarts": 1}, ""),
        (crashed(HEALTHY, times=2), True, {"max_restarts": 1}, "web-0 has restarted 2 times more (app ended with 3)"),
        (replace(HEALTHY, ready=False), False, {}, ""),  # it may be about to be ready for the first time
        (replace(HEALTHY, ready=False), True, {}, "web-0 has become unready again"),
        (replace(HEALTHY, ready=False), False, {"pod_timeout": 30}, "web-0 is not ready 30s after its restart"),
        (replace(HEALTHY, ready=False), False, {"pod_timeout": 31}, ""),
    ],
)
def test_what_speaks_against_a_pod(pod: Member, had_rest: bool, options: dict[str, Any], refusal: str) -> None:
    of = judged(**options)
    known = world_of(of, pod)
    found = planned(rested(known) if had_rest else known, of)
    wanted = (End.HALTED, f"the judgement of step 1 of 3 is no: {refusal}; 5 left") if refusal else (None, "")
    assert ended(found) == wanted
    assert (chosen(found), found.part.left) == ([], 0), "no further pod in any case"


@pytest.mark.parametrize("phase", [RequestPhase.RECREATING, RequestPhase.COMPLETED])
def test_a_container_that_ends_at_once_is_judged_before_its_request_is_over(phase: RequestPhase) -> None:
    """The request waits until the container runs for a while. One that has failed is no evidence, but a failure."""
    of, down = judged(), crashed(HEALTHY, ready=False)
    restarts = RecreateState("app", StatePhase.FAILED if phase is RequestPhase.COMPLETED else StatePhase.RECREATING)
    known = World((down, *PODS[1:]), (asked(of, down, phase, states=(restarts,)),))
    wanted = "the judgement of step 1 of 3 is no: web-0 has restarted once more (app ended with 3); 5 left"
    assert (wanted in planned(known, of).message) is (phase is RequestPhase.RECREATING)
    first = replace(known, members=(replace(HEALTHY, ready=False), *PODS[1:]))
    assert planned(first, of).end is not End.HALTED, "this is the restart of the run"


@pytest.mark.parametrize(
    ("pod", "reason", "refusal"),
    [
        (replace(HEALTHY, ready=False), Reason.DEADLINE, "web-0 is not ready 10m after its restart"),
        (crashed(HEALTHY, ready=False), Reason.DEADLINE, "web-0 is not ready 10m after its restart"),
        (beside(replace(HEALTHY, ready=False)), Reason.DEADLINE, "web-0 is not ready 10m after its restart"),
        (HEALTHY, Reason.DEADLINE, ""),
        (replace(HEALTHY, ready=False), Reason.STOP_FAILED, ""),
        (replace(PODS[0], ready=False), Reason.DEADLINE, ""),  # the old instance, which was not stopped in time
    ],
)
def test_a_pod_that_is_never_ready_fails_the_judgement(pod: Member, reason: Reason, refusal: str) -> None:
    """Its request waits for it until the deadline, and fails then."""
    of = judged()
    found = planned(World((pod, *PODS[1:]), (failed(of, PODS[0], reason),)), of)
    halted = (End.HALTED, f"the judgement of step 1 of 3 is no: {refusal}; 5 left")
    assert ended(found) == (halted if refusal else (End.FAILED, "1 failed, 5 not started"))
    plain = stepped()
    assert planned(World((pod, *PODS[1:]), (failed(plain, PODS[0], reason),)), plain).end is End.FAILED


def test_what_is_no_evidence() -> None:
    """A container of which nothing is known, one that kept its image, a pod that has ended."""
    of = judged()
    known = world_of(of, HEALTHY)
    (asks,) = known.requests
    kept = RecreateState("app", StatePhase.SUCCEEDED, reason=Reason.IMAGE_KEPT)
    status = replace(asks.request.status, states=(kept,))
    once = replace(asks, request=replace(asks.request, status=status))
    same = replace(HEALTHY, pod=replace(PODS[0].pod), ready=True)
    assert planned(replace(known, members=(same, *PODS[1:]), requests=(once,)), of).end is None
    assert ended(planned(replace(known, requests=(once,)), of))[0] is End.HALTED, "it restarted, and kept its image"
    pinless = replace(asks.request, containers=tuple(replace(each, context=None) for each in asks.request.containers))
    unknown = replace(known, members=(crashed(HEALTHY), *PODS[1:]), requests=(replace(asks, request=pinless),))
    assert planned(unknown, of).end is None
    removed = replace(HEALTHY, pod=replace(HEALTHY.pod, containers={"side": container("side")}))
    assert planned(replace(known, members=(removed, *PODS[1:])), of).end is None
    over = replace(crashed(HEALTHY), pod=replace(crashed(HEALTHY).pod, phase="Succeeded"))
    assert planned(replace(known, members=(over, *PODS[1:])), of).end is None
    finished = replace(
        crashed(HEALTHY),
        pod=replace(
            crashed(HEALTHY).pod, containers={"app": replace(crashed(HEALTHY).pod.containers["app"], exit_code=0)}
        ),
    )
    found = planned(replace(known, members=(finished, *PODS[1:])), of)
    assert "web-0 has restarted once more; 5 left" in found.message, "an exit code of 0 is not named"


@pytest.mark.parametrize("judge", [0, 60])
def test_a_node_that_goes_down_after_a_restart_holds_the_step(judge: int) -> None:
    """The restart may be the cause."""
    of = stepped(judge=judge)
    pod = replace(HEALTHY, pod=replace(HEALTHY.pod, node_name="node-z"), ready=False)
    found = make_plan(world_of(of, pod, down=frozenset({"node-z"})), of, NOW + timedelta(hours=1))
    assert (found.end, chosen(found), found.part.state) == (None, [], PartState.WORKING)
    assert found.wait.why == "waiting for the first 1 pods: web-0: node node-z is not ready"
    of = stepped(judge=judge, steps=(2,))
    found = make_plan(world_of(of, pod, recreated(PODS[1]), down=frozenset({"node-z"})), of, NOW + timedelta(hours=1))
    assert (found.end, chosen(found), found.part.state) == (None, [], PartState.WORKING), "also one of two"
    of = run(first=1, max_unavailable=Amount(6))
    assert chosen(planned(world_of(of, pod, down=frozenset({"node-z"})), of)) == ["web-1"], "a user looks at the part"


@pytest.mark.parametrize("reason", [None, Reason.POD_ENDED])
def test_an_evicted_pod_speaks_against_the_restart(reason: Reason | None) -> None:
    of = judged()
    pod = replace(HEALTHY, pod=replace(HEALTHY.pod, phase="Failed"), ready=False, disrupted=True)
    known = world_of(of, pod)
    if reason is not None:
        known = replace(known, requests=(failed(of, pod, reason),))
    found = planned(known, of)
    assert found.end is End.HALTED
    assert "web-0 has failed, for example because kubelet has evicted it" in found.message


def test_pods_of_earlier_steps_are_not_judged_again() -> None:
    of = judged()
    known = rested(world_of(of, crashed(recreated(PODS[0])), *map(recreated, PODS[1:3])), number=1)
    assert planned(known, of).part.state is PartState.JUDGING
    known = rested(world_of(of, recreated(PODS[0]), crashed(recreated(PODS[1])), recreated(PODS[2])), number=1)
    assert "step 2 of 3 is no: web-1 has restarted" in planned(known, of).message


@pytest.mark.parametrize("options", [{"first": 1}, {"steps": (1,), "step_pause": 0}])
def test_a_run_that_is_over_is_not_judged_again(options: dict[str, Any]) -> None:
    of = run(judge=60, max_unavailable=Amount(6), **options)
    known = rested(world_of(of, *map(recreated, PODS[:5]), crashed(recreated(PODS[5]))), number=2)
    assert ended(planned(known, of)) == (End.DONE, "")


def test_only_the_first_part_is_named_so() -> None:
    of = run(judge=60, first=1, max_unavailable=Amount(6))
    first = world_of(of, recreated(PODS[0]))
    assert "the pods of the first part of the run are judged until" in planned(first, of).wait.why
    no = planned(world_of(of, crashed(recreated(PODS[0]))), of)
    assert no.message.startswith("the judgement of the first part of the run is no: web-0 has restarted")
    rest = rested(world_of(of, *map(recreated, PODS)), number=1)
    assert "the pods of the rest of the run are judged until" in planned(rest, of).wait.why
    no = planned(rested(world_of(of, *map(recreated, PODS[:5]), crashed(recreated(PODS[5]))), number=1), of)
    assert no.message.startswith("the judgement of the rest of the run is no: web-5 has restarted")


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ((PODS[0], recreated(PODS[1])), PartState.WORKING),  # The second one has crashed
        ((recreated(PODS[0]), recreated(PODS[1])), PartState.ASKING),
        ((recreated(PODS[0]), recreated(PODS[1]), recreated(PODS[2])), PartState.ASKING),
    ],
)
def test_the_rest_begins_only_if_a_user_has_allowed_it(pods: tuple[Member, ...], state: PartState) -> None:
    """Pods that restart by themselves do not allow it."""
    of = run(first=1, max_unavailable=Amount(6))
    first = asked(of, PODS[0]) if state is PartState.WORKING else succeeded(of, PODS[0])
    known = World((*pods, *PODS[len(pods) :]), (first,))
    assert (planned(known, of).part.state, chosen(planned(known, of))) == (state, [])
    left = [each.pod.name for each in PODS[len(pods) :]]
    assert chosen(planned(known, of, allowed=Allowed(1))) == left
    assert chosen(planned(rested(known, number=1, phase=RunPhase.RESTARTING), of)) == left, "another process goes on"


def test_a_pod_of_the_first_part_whose_node_comes_back_does_not_allow_the_rest() -> None:
    """Another pod has taken its place meanwhile."""
    of = run(first=1, max_unavailable=Amount(6))
    away = replace(recreated(PODS[0]), ready=False)
    known = world_of(of, replace(away, pod=replace(away.pod, node_name="node-z")), down=frozenset({"node-z"}))
    assert chosen(planned(known, of)) == ["web-1"]
    back = planned(world_of(of, recreated(PODS[0]), recreated(PODS[1])), of)
    assert (back.end, back.message) == (End.PAUSED, "the first part of the run is done, 4 left")


def test_a_pod_that_falls_during_a_rollout_halts_the_run_after_it() -> None:
    """A process records the phase of each plan, and the judgement goes by it."""
    of, rolling = judged(), workload(6, rolling="3 of 6 pods are updated")
    held = planned(world_of(of, HEALTHY, workload=rolling), of)
    assert (held.end, held.phase, held.part.state) == (None, RunPhase.JUDGING, PartState.JUDGING)
    assert held.wait.reason is WaitReason.ROLLOUT
    fallen = replace(HEALTHY, ready=False)
    found = planned(rested(world_of(of, fallen, workload=rolling), phase=held.phase), of)
    assert ended(found) == (End.HALTED, "the judgement of step 1 of 3 is no: web-0 has become unready again; 5 left")


def test_a_judgement_of_no_stays_no() -> None:
    """Also if the pod is ready again, or another process continues."""
    of = judged()
    known = rested(world_of(of, HEALTHY))
    first, *others = known.requests
    assert first.progress is not None
    halted = replace(first.progress, end=End.HALTED, waits="web-0 has become unready again", phase=RunPhase.OVER)
    known = replace(known, requests=(replace(first, progress=halted), *others))
    found = make_plan(known, of, NOW + timedelta(hours=1))
    assert ended(found) == (End.HALTED, "the judgement of step 1 of 3 is no: web-0 has become unready again; 5 left")
    assert chosen(planned(known, of, allowed=Allowed(1, 1))) == ["web-1", "web-2"]


def test_a_judgement_of_no_about_the_first_part_stays_no_after_other_pods_have_crashed() -> None:
    of = run(judge=60, first=1, max_unavailable=Amount(6))
    known = world_of(of, HEALTHY)
    no = Progress(rfc3339(NOW), "host/1", RunPhase.OVER, 1, 6, "web-0 has become unready again", end=End.HALTED)
    known = replace(known, requests=(replace(known.requests[0], progress=no),))
    others = replace(known, members=(HEALTHY, recreated(PODS[1]), recreated(PODS[2]), *PODS[3:]))
    for world in (known, others):
        assert planned(world, of).end is End.HALTED


def test_what_a_user_allows_early_changes_nothing_before_the_judgement() -> None:
    of = judged(step_pause=None)
    assert chosen(planned(World(PODS), of, allowed=Allowed(1))) == ["web-0"]
    assert planned(World(PODS, (asked(of, PODS[0]),)), of, allowed=Allowed(1)).part.state is PartState.WORKING
    known = world_of(of, recreated(PODS[0]))
    assert planned(known, of, allowed=Allowed(1)).part.state is PartState.JUDGING
    assert chosen(make_plan(known, of, NOW + timedelta(seconds=30), allowed=Allowed(1))) == ["web-1", "web-2"]


def test_a_user_may_overrule_it() -> None:
    of = judged()
    known = world_of(of, crashed(recreated(PODS[0])))
    assert chosen(planned(known, of, allowed=Allowed(1, 1))) == ["web-1", "web-2"]


def test_pods_that_have_it_by_themselves_are_counted() -> None:
    of = judged()
    known = world_of(of, crashed(recreated(PODS[0])))
    first, one, two, *others = known.members
    message = planned(replace(known, members=(first, recreated(one), two, *others)), of).message
    assert message.endswith("; 1 more pod has started without the run since it began; 4 left")
    message = planned(replace(known, members=(first, beside(recreated(one)), recreated(two), *others)), of).message
    assert "; 2 more pods have started without the run since it began; 3 left" in message
    same = member("web-1", container(started_at=of.started))
    message = planned(replace(known, members=(first, same, two, *others)), of).message
    assert message.endswith(" (app ended with 3); 5 left"), "who cannot tell which was first restarts it"


def test_a_long_refusal_names_three_pods() -> None:
    of = judged(steps=(5,))
    found = planned(world_of(of, *(crashed(recreated(each)) for each in PODS[:5])), of)
    assert found.message.count("has restarted once more") == 3
    assert " and 2 more; 1 left" in found.message


ENDS_AT = NOW + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("measured", "now", "state", "text"),
    [
        (None, ENDS_AT, PartState.JUDGING, ""),
        (Measured(NOW, holds=True, words="0.1"), ENDS_AT, PartState.JUDGING, ""),  # the time was not over then
        (Measured(ENDS_AT, holds=True, words="0.1"), ENDS_AT, PartState.OPEN, ""),
        (Measured(ENDS_AT, holds=None, words="no data", unknown=3), ENDS_AT, PartState.JUDGING, ""),
        (
            Measured(NOW, holds=None, words="no data", unknown=4),
            NOW,
            PartState.REFUSED,
            "metrics are not known, 4 times in a row: no data",
        ),
        (Measured(NOW, holds=False, words="0.9 is above 0.5"), NOW, PartState.REFUSED, "0.9 is above 0.5"),
    ],
)
def test_what_metrics_say(measured: Measured | None, now: datetime, state: PartState, text: str) -> None:
    of = judged(metrics_digest="digest")
    found = make_plan(replace(world_of(of, recreated(PODS[0])), measured=measured), of, now)
    assert (found.part.state, found.part.number) == (state, int(state is PartState.OPEN))
    assert text in found.message
    if state is PartState.JUDGING:
        assert found.part.at is None, "what is waited for has no time"
    if state is PartState.JUDGING and measured is not None:
        assert f"({measured.words})" in found.wait.why


def test_metrics_of_another_run_do_not_count() -> None:
    of = judged()
    measured = Measured(NOW, holds=False, words="0.9 is above 0.5")
    assert planned(replace(world_of(of, recreated(PODS[0])), measured=measured), of).part.state is PartState.JUDGING


def test_the_table_has_a_row_for_each_state() -> None:
    assert {state for _, state in PARTS} == {*PartState}


@pytest.mark.parametrize(
    "options",
    [
        {"steps": (2, 1)},
        {"steps": (0,)},
        {"steps": ("1",)},
        {"step_pause": -1},
        {"step_pause": True},
        {"judge": -1},
        {"max_restarts": -1},
        {"failure_limit": -1},
    ],
)
def test_a_request_with_odd_steps_belongs_to_no_run(options: dict[str, Any]) -> None:
    """Others may write requests."""
    of, sound = run(**{"steps": (1,), "step_pause": 0, **options}), run(steps=(1,), step_pause=0)
    assert read_run_request(sound.request("web-1", "uid", ("app",))) is not None
    assert read_run_request(of.request("web-1", "uid", ("app",))) is None
