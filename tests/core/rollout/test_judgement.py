"""Whose pods a judgement is about, and what does not speak against a restart although it looks like that."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import Pin, RecreateState, RequestedContainer, RequestPhase, StatePhase
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.parts import Allowed, PartState
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.state import Member, World
from tests.core.rollout.test_parts import (
    DONE,
    HEALTHY,
    PODS,
    crashed,
    created,
    judged,
    rested,
    world_of,
)
from tests.support.rollouts import (
    NOW,
    again,
    asked,
    chosen,
    container,
    failed,
    member,
    planned,
    recreated,
    run,
    succeeded,
    workload,
)


def in_second_step(of: World) -> World:
    return rested(of, number=1)


def test_a_pod_that_is_retried_stays_in_its_step() -> None:
    """Its newest request is younger than those of the step after it."""
    of = judged(max_failures=9)
    good, bad, last = recreated(PODS[0]), crashed(recreated(PODS[1])), recreated(PODS[2])
    known = world_of(of, good, bad, last)
    first = failed(of, PODS[0])
    retried = created(again(succeeded(of, good, completion_time=DONE), first), 20)
    known = in_second_step(replace(known, requests=(first, *known.requests[1:], retried)))
    assert "step 2 of 3 is no: web-1 has restarted once more" in planned(known, of).message


def test_a_pod_whose_request_was_deleted_stays_in_its_step() -> None:
    """The TTL of requests is a day, and a pause may be longer."""
    of = judged()
    known = world_of(of, recreated(PODS[0]), crashed(recreated(PODS[1])), recreated(PODS[2], seconds=20))
    known = in_second_step(replace(known, requests=known.requests[1:]))
    assert "step 2 of 3 is no: web-1 has restarted once more" in planned(known, of).message


def test_a_step_without_enough_pods_is_judged() -> None:
    """The workload was scaled down since the run began, so the step has places for which there are no pods."""
    of = judged(steps=(5,))
    known = replace(world_of(of, *map(recreated, PODS[:3])), members=tuple(map(recreated, PODS[:3])))
    found = planned(known, of)
    assert (found.end, found.part.state) == (None, PartState.JUDGING)
    assert make_plan(known, of, NOW + timedelta(seconds=30)).end is End.DONE
    bad = (crashed(recreated(PODS[0])), *known.members[1:])
    assert planned(replace(known, members=bad), of).end is End.HALTED


def test_a_step_waits_for_pods_that_are_put_off() -> None:
    """Else their nodes would come back in a step that has all pods."""
    of = judged()
    away = tuple(member(f"web-{number}", node="node-z") for number in range(4))
    found = planned(World(away, workload=workload(4), down=frozenset({"node-z"})), of)
    assert (found.end, found.part.number) == (End.PUT_OFF, 0)


def test_a_run_that_was_judged_is_not_judged_again_for_a_node_that_goes_down() -> None:
    of = run(judge=60)
    away = member("web-1", node="node-z")
    known = replace(world_of(of, HEALTHY), members=(HEALTHY, away), workload=workload(2), down=frozenset({"node-z"}))
    found = planned(rested(known, number=1), of)
    assert (found.end, found.part.number) == (End.PUT_OFF, 1)


def test_steps_that_are_over_stay_so_if_the_workload_gets_smaller() -> None:
    """A run of a policy begins again with fewer steps. Else an older record would count as the newest."""
    of = run(judge=60)
    known = replace(world_of(of, HEALTHY), members=(HEALTHY,), workload=workload(1))
    assert planned(rested(known, number=4), of).part.number == 4


def test_pods_that_were_put_off_are_judged_once_they_were_restarted() -> None:
    of = run(judge=60, max_unavailable=Amount(6))
    away = member("web-1", node="node-z")
    known = replace(world_of(of, HEALTHY), members=(HEALTHY, away), workload=workload(2))
    known = replace(known, down=frozenset({"node-z"}))
    over = make_plan(known, of, NOW + timedelta(hours=1))
    assert over.end is End.PUT_OFF
    noted = rested(known, number=over.part.number, phase=RunPhase.OVER)
    back = replace(noted, down=frozenset[str]())
    assert chosen(make_plan(back, of, NOW + timedelta(hours=1))) == ["web-1"]
    later = created(succeeded(of, away, completion_time=DONE), 50)
    done = replace(back, members=(HEALTHY, crashed(recreated(away))), requests=(*back.requests, later))
    assert planned(done, of).end is End.HALTED


@pytest.mark.parametrize("had_rest", [False, True])
def test_a_pod_that_is_being_deleted_is_no_evidence(had_rest: bool) -> None:
    """For example because the workload is scaled down, or its node is drained."""
    of = judged()
    for phase in "Running", "Failed":
        leaving = replace(HEALTHY, ready=False, pod=replace(HEALTHY.pod, deleting=True, phase=phase))
        known = world_of(of, leaving)
        found = planned(rested(known) if had_rest else known, of)
        assert (found.end, chosen(found)) == (None, ["web-1"])


def test_a_pod_that_goes_before_the_judgement_is_over_leaves_its_place() -> None:
    """It does not show whether the restart works."""
    of = judged()
    known = rested(world_of(of, HEALTHY))
    known = replace(known, members=known.members[1:])
    assert chosen(make_plan(known, of, NOW + timedelta(hours=1))) == ["web-1"]
    known = rested(world_of(of, HEALTHY, *map(recreated, PODS[1:3])), number=1)
    known = replace(known, members=known.members[1:])
    found = planned(known, of)
    assert (found.part.state, chosen(found)) == (PartState.JUDGING, []), "the step before was judged"


def test_metrics_are_not_asked_about_no_pods() -> None:
    of = run(judge=60, metrics_digest="digest")
    assert planned(World((), workload=workload(0)), of).end is End.DONE
    fresh = World(tuple(recreated(each) for each in PODS))
    assert planned(fresh, of).end is End.DONE
    of = judged(metrics_digest="digest")
    gone = replace(world_of(of, HEALTHY), members=())
    assert planned(gone, of).part.state is not PartState.JUDGING


def by_another_run(pod: Member, phase: RequestPhase, restart_count: int) -> RunRequest:
    other = run(name="other", started=DONE)
    made = succeeded(other, pod, completion_time=DONE) if phase is RequestPhase.COMPLETED else asked(other, pod, phase)
    pins = tuple(replace(each, context=Pin("containerd://app-2", restart_count)) for each in made.request.containers)
    return created(replace(made, request=replace(made.request, containers=pins)), 40)


@pytest.mark.parametrize("phase", [RequestPhase.COMPLETED, RequestPhase.RECREATING])
@pytest.mark.parametrize("ready", [True, False])
def test_a_restart_by_another_request_is_none_of_the_pod(phase: RequestPhase, ready: bool) -> None:
    of = judged()
    pod = crashed(HEALTHY, ready=ready)
    known = rested(world_of(of, pod))
    known = replace(known, requests=(*known.requests, by_another_run(pod, phase, 1)))
    assert planned(known, of).end is None
    worse = replace(known, members=(crashed(pod), *known.members[1:]))
    assert planned(worse, of).end is End.HALTED, "a crash after it counts"


def test_a_pod_that_another_request_takes_down_has_not_fallen() -> None:
    of = judged()
    pod = replace(HEALTHY, ready=False)
    known = rested(world_of(of, pod))
    known = replace(known, requests=(*known.requests, by_another_run(pod, RequestPhase.RECREATING, 1)))
    found = planned(known, of)
    assert (found.end, found.part.state, chosen(found)) == (None, PartState.WORKING, [])


@pytest.mark.parametrize(
    ("containers", "restart_count", "reason"),
    [(("app",), 0, None), (("app",), 1, Reason.STOP_FAILED), (("side",), 1, None)],
    ids=["for the instance of the run", "that has failed", "for another container"],
)
def test_another_request_that_has_restarted_nothing_since_excuses_no_crash(
    containers: tuple[str, ...], restart_count: int, reason: Reason | None
) -> None:
    of, bad, other = judged(), crashed(HEALTHY), run(*containers, name="other", started=DONE)
    made = succeeded(other, bad) if reason is None else failed(other, bad, reason)
    pins = tuple(replace(each, context=Pin("id", restart_count)) for each in made.request.containers)
    beside = created(replace(made, request=replace(made.request, containers=pins)), 40)
    known = rested(world_of(of, bad))
    assert planned(replace(known, requests=(*known.requests, beside)), of).end is End.HALTED


def test_restarts_before_the_run_are_none_of_its_own() -> None:
    of, pod = judged(), HEALTHY.pod
    many = replace(HEALTHY, pod=replace(pod, containers={"app": replace(pod.containers["app"], restart_count=8)}))
    known = world_of(of, many)
    asks = known.requests[0].request
    pins = tuple(replace(each, context=Pin("containerd://app-1", 7)) for each in asks.containers)
    known = replace(known, requests=(replace(known.requests[0], request=replace(asks, containers=pins)),))
    assert planned(known, of).part.state is PartState.JUDGING


def test_the_pods_of_a_step_are_those_that_the_run_has_started_first() -> None:
    """By the times of their requests, and before one whose request is being created."""
    of, first, bad = judged(), recreated(PODS[1]), crashed(recreated(PODS[2]))
    known = World((PODS[0], first, bad, *PODS[3:]), starting={PODS[0].pod.uid: of.request_name(PODS[0].pod.uid)})
    asks = [succeeded(of, each, completion_time=DONE) for each in (first, bad)]
    for seconds, end in ((9, End.HALTED), (1, None)):
        both = (created(asks[0], 5), created(asks[1], seconds))
        assert planned(in_second_step(replace(known, requests=both)), of).end is end


def test_what_was_allowed_before_does_not_overrule_a_no() -> None:
    """The user did not know of it. For example, the pod has crashed while the command asked."""
    of = judged(step_pause=None)
    bad = world_of(of, crashed(HEALTHY))
    assert planned(bad, of, allowed=Allowed(1)).end is End.HALTED
    assert chosen(planned(bad, of, allowed=Allowed(1, 1))) == ["web-1", "web-2"]


def test_a_first_part_is_judged_although_the_rest_is_allowed() -> None:
    of = run(first=1, judge=60, max_unavailable=Amount(6))
    assert chosen(planned(World(PODS), of, allowed=Allowed(1))) == ["web-0"]
    assert planned(world_of(of, HEALTHY), of, allowed=Allowed(1)).part.state is PartState.JUDGING
    assert planned(world_of(of, crashed(HEALTHY)), of, allowed=Allowed(1)).end is End.HALTED
    later = make_plan(world_of(of, HEALTHY), of, NOW + timedelta(seconds=30), allowed=Allowed(1))
    assert len(chosen(later)) == 5


def test_a_pod_that_the_api_server_has_refused_stays_in_its_step() -> None:
    of = judged(max_failures=9)
    known = world_of(of, PODS[0], crashed(recreated(PODS[1])), recreated(PODS[2]))
    known = in_second_step(replace(known, requests=known.requests[1:], refused={PODS[0].pod.uid: "denied"}))
    assert "step 2 of 3 is no: web-1 has restarted once more" in planned(known, of).message


def test_a_pod_that_restarted_by_itself_is_not_the_one_by_which_a_step_is_judged() -> None:
    of = judged()
    by_itself = recreated(PODS[0])
    assert chosen(planned(World((by_itself, *PODS[1:])), of)) == ["web-1"]
    known = World((by_itself, recreated(PODS[1]), *PODS[2:]), (succeeded(of, PODS[1], completion_time=DONE),))
    assert planned(known, of).part.state is PartState.JUDGING


def test_metrics_are_not_asked_about_failed_and_leaving_pods() -> None:
    of = judged(metrics_digest="digest", max_failures=9)
    found = planned(World(PODS, (failed(of, PODS[0]),)), of)
    assert (found.end, found.message) == (End.FAILED, "step 1 of 3 is done, 5 left")
    leaving = replace(HEALTHY, pod=replace(HEALTHY.pod, deleting=True))
    assert chosen(planned(world_of(of, leaving), of)) == ["web-1"]


def test_a_failed_pod_that_comes_and_goes_does_not_prolong_the_judgement() -> None:
    of = run(judge=60, max_failures=9, max_unavailable=Amount(6))
    good, flaps = recreated(PODS[0]), replace(PODS[1], ready_since=NOW)
    known = World((good, flaps), (succeeded(of, good, completion_time=DONE), failed(of, flaps)))
    found = planned(known, of)
    assert (found.part.state, found.part.at) == (PartState.JUDGING, NOW + timedelta(seconds=30))
    assert make_plan(known, of, NOW + timedelta(seconds=30)).end is End.FAILED


OLD, NEW, BY_DIGEST = "i:1", "i:2", f"i@sha256:{'2' * 64}"
OPEN, OVER = RequestPhase.RECREATING, RequestPhase.COMPLETED
EARLIER, AT_COMPLETION, LATER = (rfc3339(NOW - timedelta(seconds=seconds)) for seconds in (40, 30, 20))


def running(count: int, shown: str, started: str) -> dict[str, Any]:
    """Return the status of a container that runs. Admission has recorded 4 restarts, and the run makes one."""
    return {"restart_count": 4 + count, "image_shown": f"docker.io/library/{shown}", "started_at": started}


def down(count: int, shown: str, finished: str = "") -> dict[str, Any]:
    """Return the status of a container that has ended."""
    ended = {"running": False, "ready": False, "finished_at": finished, "exit_code": 3}
    return {**running(count, shown, ""), **ended}


def only_pod(of: Run, phase: RequestPhase, *containers: PodContainer) -> World:
    """Return a world with one pod. Its request was completed 30 seconds ago, if it is over."""
    pod = member("web-0", *containers, ready=all(each.running for each in containers if each.kind.recreatable))
    found = succeeded(of, pod, completion_time=AT_COMPLETION) if phase is OVER else asked(of, pod, phase)
    image = of.options.image.image if of.options.image is not None else ""
    init = [each.name for each in containers if each.kind is ContainerKind.INIT]
    pins = tuple(
        RequestedContainer(each.name, Pin("containerd://old", 4), image=image if each.name in (init or ["app"]) else "")
        for each in containers
    )
    states = tuple(RecreateState(each.name, StatePhase.SUCCEEDED) for each in containers if phase is OVER)
    status = replace(found.request.status, states=states)
    whole = of.options.whole_pod
    made = replace(found.request, containers=pins, status=status, whole_pod=whole)
    return World((pod,), (replace(found, request=made),), workload(1))


@pytest.mark.parametrize(
    ("phase", "spec", "status", "restarts"),
    [
        (OPEN, OLD, running(1, OLD, EARLIER), 0),  # old crash
        (OPEN, OLD, down(2, OLD, EARLIER), 0),  # two of them, and one that kubelet has not answered yet
        (OPEN, NEW, down(2, OLD, EARLIER), 0),  # the pod has the image, and kubelet has not begun to replace it
        (OPEN, NEW, running(1, NEW, EARLIER), 0),  # new start
        (OPEN, NEW, running(2, NEW, EARLIER), 0),  # old crash, new start; or new start, new crash
        (OPEN, NEW, down(1, NEW, EARLIER), 0),  # new start, new crash, and it has not restarted yet
        (OPEN, NEW, down(2, NEW, EARLIER), 1),  # new start, two new crashes
        (OPEN, BY_DIGEST, down(2, NEW, EARLIER) | {"image_id": BY_DIGEST}, 1),
        (OVER, NEW, running(1, NEW, EARLIER), 0),  # new start, completion
        (OVER, NEW, running(2, NEW, EARLIER), 0),  # old crash, new start, completion
        (OVER, NEW, running(2, NEW, AT_COMPLETION), 0),  # the same within a second
        (OVER, NEW, down(3, OLD, EARLIER), 0),  # the same with another old crash, and the pod as it was before
        (OVER, NEW, running(2, NEW, LATER), 1),  # new start, completion, new crash
        (OVER, NEW, down(2, NEW, LATER), 1),  # new start, completion, two new crashes
        (OVER, NEW, down(2, NEW, AT_COMPLETION), 1),  # the same within a second
        (OVER, NEW, running(3, NEW, LATER), 2),  # old crash, new start, completion, new crash: how many is not known
    ],
)
def test_crashes_of_the_image_from_before_are_not_those_of_the_new_one(
    phase: RequestPhase, spec: str, status: dict[str, Any], restarts: int
) -> None:
    """Admission records the restart count, and the pod gets the image later."""
    for most in range(3):
        of = run(image=ImageChange(spec if spec != OLD else NEW), judge=60, max_restarts=most)
        app = container(image=spec, container_id="containerd://new", **status)
        found = planned(only_pod(of, phase, app), of)
        assert ("restarted" in found.message, found.end is End.HALTED) == (restarts > most,) * 2


@pytest.mark.parametrize(
    ("phase", "app", "setup", "restarts"),
    [
        (OPEN, running(1, NEW, EARLIER), 1, 0),  # old crash
        (OPEN, down(3, NEW, EARLIER), 1, 0),  # three of them, or a new start and two new crashes
        (OVER, running(2, NEW, EARLIER), 1, 0),  # old crash, new start, completion
        (OVER, running(1, NEW, EARLIER), 3, 0),  # the init container has failed twice first
        (OVER, running(2, NEW, LATER), 1, 1),  # new start, completion, new crash
        (OVER, down(2, NEW, LATER), 1, 1),  # new start, completion, two new crashes
    ],
)
@pytest.mark.parametrize("image", [None, ImageChange(NEW)])
def test_crashes_before_a_pod_is_restarted_are_not_those_of_the_restart(
    phase: RequestPhase, app: dict[str, Any], setup: int, restarts: int, image: ImageChange | None
) -> None:
    of = run(*(("setup",) if image else ()), whole_pod=True, image=image, judge=60)
    init = container("setup", kind=ContainerKind.INIT, **{**down(setup, NEW, EARLIER), "started_at": EARLIER})
    init = replace(init, terminated=True, image=NEW, exit_code=0)
    new = container(image="j:1", container_id="containerd://new", **app)
    found = planned(only_pod(of, phase, *([init] if image else []), new), of)
    assert ("restarted" in found.message, found.end is End.HALTED) == (bool(restarts),) * 2


@pytest.mark.parametrize("phase", [RequestPhase.COMPLETED, RequestPhase.RECREATING])
@pytest.mark.parametrize("image", [None, ImageChange(NEW)])
def test_a_restart_by_another_run_brings_no_crash_from_before_to_light(
    phase: RequestPhase, image: ImageChange | None
) -> None:
    of = run(image=image, whole_pod=image is None, judge=60)
    app = container(image=NEW, container_id="containerd://newer", **running(3, NEW, DONE))  # old crash, and two runs
    known = only_pod(of, OVER, app)
    known = replace(known, requests=(*known.requests, by_another_run(known.members[0], phase, 6)))
    assert "restarted" not in planned(known, of).message
    worse = replace(app, restart_count=8, started_at=rfc3339(NOW + timedelta(seconds=1)))
    pod = replace(known.members[0], pod=replace(known.members[0].pod, containers={"app": worse}))
    found = planned(replace(known, members=(pod,)), of)
    assert ("web-0 has restarted again" in found.message) is (phase is RequestPhase.COMPLETED)


@pytest.mark.parametrize(
    ("of", "phase", "state", "counts"),
    [
        ("side", OPEN, StatePhase.PENDING, True),
        ("side", OVER, StatePhase.SUCCEEDED, True),
        ("app", OPEN, StatePhase.FAILED, True),
        ("app", OVER, StatePhase.FAILED, True),
        ("app", OPEN, StatePhase.PENDING, False),
        ("app", OVER, StatePhase.SUCCEEDED, False),
        ("", OPEN, StatePhase.PENDING, False),  # the whole pod
    ],
)
@pytest.mark.parametrize("image", [None, ImageChange(NEW)])
def test_only_another_request_that_may_have_restarted_the_container_hides_a_crash(
    of: str, phase: RequestPhase, state: StatePhase, counts: bool, image: ImageChange | None
) -> None:
    """New start, completion, new crash."""
    judged_run = run(image=image, whole_pod=image is None, judge=60)
    app = container(image=NEW, container_id="containerd://newer", **running(2, NEW, LATER))
    known = only_pod(judged_run, OVER, app, container("side", container_id="containerd://side"))
    first = replace(known.requests[0].request, containers=known.requests[0].request.containers[:1])
    other = by_another_run(known.members[0], phase, 4).request
    completed = rfc3339(NOW - timedelta(seconds=5)) if phase is OVER else ""
    status = replace(other.status, states=(RecreateState(of, state),), completion_time=completed)
    pins = (RequestedContainer(of, Pin("containerd://app-2", 4)),)
    other = replace(other, containers=pins, status=status, whole_pod=not of)
    requests = (replace(known.requests[0], request=first), replace(known.requests[0], request=other))
    found = planned(replace(known, requests=requests), judged_run)
    assert ("restarted" in found.message) is counts
    stopped = replace(status, states=(RecreateState(of, state, is_killed=True),))
    requests = (requests[0], replace(requests[1], request=replace(other, status=stopped)))
    late = planned(replace(known, requests=requests), judged_run)
    assert ("restarted" in late.message) is (counts and of == "side"), "kubelet may have started it late"


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (RecreateState("app", StatePhase.SUCCEEDED, is_killed=True), False),
        (RecreateState("app", StatePhase.FAILED, is_killed=True), False),  # kubelet has started it after the deadline
        (RecreateState("app", StatePhase.FAILED), True),
    ],
)
def test_a_later_request_that_has_stopped_the_container_is_no_crash(state: RecreateState, counts: bool) -> None:
    of = run(judge=60)
    known = only_pod(of, OVER, container(container_id="containerd://newer", started_at=LATER))
    own = known.requests[0].request.containers[0].context
    assert own is not None
    app = replace(known.members[0].pod.containers["app"], restart_count=own.restart_count + 2)
    known = only_pod(of, OVER, app)
    other = by_another_run(known.members[0], OVER, own.restart_count + 1).request
    other = replace(other, status=replace(other.status, states=(state,)))
    first = replace(known.requests[0].request, containers=(RequestedContainer("app", own),))
    requests = (replace(known.requests[0], request=first), replace(known.requests[0], request=other))
    assert ("restarted" in planned(replace(known, requests=requests), of).message) is counts


@pytest.mark.parametrize(("spec", "end"), [(OLD, End.FAILED), (NEW, End.HALTED)])
def test_a_pod_that_never_got_the_image_says_nothing_about_it(spec: str, end: End) -> None:
    """It has crashed meanwhile, so it runs another instance than the one that admission has recorded."""
    of = run(image=ImageChange(NEW), judge=60)
    app = container(image=spec, container_id="containerd://new", **down(1, spec, EARLIER))
    known = only_pod(of, OPEN, app)
    late = failed(of, known.members[0], Reason.DEADLINE)
    status, made = late.request.status, known.requests[0].request
    known = replace(known, requests=(replace(late, request=replace(made, status=status)),))
    assert planned(known, of).end is end
