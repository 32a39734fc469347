"""A request for a whole pod whose init container gets another image: when the pod restarts, and what counts as done."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind, Pod, PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import (
    WHOLE_POD,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.actions import Decision, EmitEvent, PinContainers, RestartPod, WriteStatus
from crrd.core.recreate.invariants import Rule, check
from crrd.core.recreate.observation import Instance, Observation, Sandbox
from crrd.core.recreate.restart_pod import Turn, serve
from crrd.core.recreate.whole_pod import PodView
from crrd.kubelet.image_hash import hash_of_name_and_image
from crrd.kubelet.restart_rules import RestartPolicy
from tests.support.worlds import POD_UID, RUNTIME, Scene, decided, exited, instance, observed, pin, pod, request

NOW = 100.0
OLD, NEW = "render:1", "render:2"
FIRST = Sandbox("first", RUNTIME, "default", "web", POD_UID, ready=True, created_at=1)
SECOND = replace(FIRST, id="second", attempt=1, created_at=2, request_uid="r1")
THIRD = replace(FIRST, id="third", attempt=2, created_at=3)
GONE = replace(FIRST, ready=False)
RAN_OLD = exited("i1", "init", sandbox="first", image=OLD)
RAN_NEW = exited("i2", "init", sandbox="third", image=NEW, created_at=5)
APP = PodContainer("app", container_id=f"{RUNTIME}://old", running=True, ready=True)
NEXT = replace(APP, container_id=f"{RUNTIME}://new", restart_count=1)
APP_1 = instance("old", sandbox="first")
APP_2 = instance("new", sandbox="third", created_at=6, restart_count=1)
PINNED = {WHOLE_POD: FIRST.pin}


def asked(**changes: Any) -> Request:
    """A request for the pod, whose sandbox is not recorded yet."""
    gets = RequestedContainer("init", pin("i1"), NEW)
    plain = request(whole_pod=True, containers=(gets, RequestedContainer("app", pin("old"))))
    return replace(plain, **changes)


def web(image: str = OLD, app: PodContainer = APP, **changes: Any) -> Pod:
    """The pod in the API, with the image of its init container."""
    init = PodContainer("init", ContainerKind.INIT, image=image, container_id=f"{RUNTIME}://i1", terminated=True)
    names = ("waiting_reason", "terminated", "exit_code", "container_id")
    own = {"exit_code": 0, **{key: changes.pop(key) for key in tuple(changes) if key in names}}
    return pod(app, replace(init, ready=True, **own), **changes)


def scene(*instances: Instance, **changes: Any) -> Scene:
    plain = {"sandboxes": (FIRST,), "pod": web(NEW), "first_seen": {"r1": NOW - 5}, "pod_at": NOW - 5}
    return observed(*(instances or (RAN_OLD, APP_1)), **(plain | {"foreign": {"i1": None, "old": None}} | changes))


def turn(req: Request, world: Scene) -> tuple[Turn, Decision]:
    """Return what is decided, after the invariants were checked."""
    assert world.pod.pod is not None
    known = world.known(req, NOW)
    observation = Observation(world.pod, (known,), world.node, NOW)
    taken, decision = serve(PodView(known, observation, world.pod.pod))
    assert not check(decision, observation)
    return taken, decision


RESTARTED = (RAN_NEW, APP_2)
TURNS: dict[str, tuple[Turn, Request, Scene]] = {
    "the pod lacks the image": (Turn.IMAGE_AWAITED, asked(), scene(pod=web())),
    "the pod cannot be restarted, so it gets no image": (Turn.UNFIT, asked(), scene(pod=web(host_network=True))),
    "kubelet may not know the image yet": (Turn.EARLY, asked(), scene(pod_at=NOW - 5 + 0.1)),
    "kubelet says that it knows it": (
        Turn.NOT_PINNED,
        asked(),
        scene(pod=web(NEW, spec_observed=True), pod_at=NOW),
    ),
    "it has had the time": (Turn.NOT_PINNED, asked(), scene()),
    "it still runs": (Turn.EARLY, asked(), scene(RAN_OLD, pod=web(NEW, terminated=False))),
    "kubelet has not reported how it ended": (Turn.EARLY, asked(), scene(replace(RAN_OLD, id="i0"))),
    "it is done, and a later init container fails": (Turn.NOT_PINNED, asked(), scene(RAN_OLD)),
    "its init container has failed with the old image": (
        Turn.EARLY,
        asked(),
        scene(RAN_OLD, pod=web(NEW, terminated=False, waiting_reason="CrashLoopBackOff")),
    ),
    "it has failed, and is not tried again yet": (Turn.EARLY, asked(), scene(RAN_OLD, pod=web(NEW, exit_code=3))),
    "the pod has no sandbox": (Turn.EARLY, asked(), scene(sandboxes=())),
    "it has failed, and was tried again with the image": (
        Turn.RESTARTED,
        asked(),
        scene(replace(RAN_NEW, sandbox="first")),
    ),
    "the pod has restarted by itself with the image": (
        Turn.RESTARTED,
        asked(),
        scene(*RESTARTED, sandboxes=(GONE, THIRD)),
    ),
    "the pod has restarted by itself before that": (
        Turn.NOT_PINNED,
        asked(),
        scene(replace(RAN_NEW, image=OLD), APP_2, sandboxes=(GONE, THIRD)),
    ),
    "the instance that the request names does not count": (
        Turn.NOT_PINNED,
        asked(),
        scene(replace(RAN_OLD, image=NEW), APP_1),
    ),
    "the runtime has removed the ended init container": (Turn.NOT_PINNED, asked(), scene(APP_1)),
    "the record was removed": (
        Turn.PIN_LOST,
        asked(status=Status(RequestPhase.RECREATING, (RecreateState("app", is_killed=True),))),
        scene(),
    ),
    "the sandbox is recorded": (Turn.SENT, asked(pinned=PINNED), scene()),
    "the image was put back after that": (Turn.IMAGE_AWAITED, asked(pinned=PINNED), scene(pod=web())),
    "the second sandbox is there": (Turn.AWAITED, asked(pinned=PINNED), scene(sandboxes=(FIRST, SECOND))),
    "kubelet has made the third": (
        Turn.RESTARTED,
        asked(pinned=PINNED),
        scene(*RESTARTED, sandboxes=(GONE, SECOND, THIRD)),
    ),
}


@pytest.mark.parametrize("case", TURNS)
def test_the_pod_restarts_once_and_only_with_the_image(case: str) -> None:
    wanted, req, world = TURNS[case]
    taken, decision = turn(req, world)
    assert taken is wanted
    assert any(isinstance(each, RestartPod) for each in decision.actions) is (wanted is Turn.SENT)
    for each in (each for each in decision.actions if isinstance(each, PinContainers)):
        newest = max(world.pod.sandboxes, key=lambda one: one.attempt)
        assert each.pins == {WHOLE_POD: newest.pin}, "only a restart after the pod got the image counts"


def states(req: Request, world: Scene) -> dict[str, tuple[StatePhase, Reason]]:
    decision = decided([req], world, NOW)
    (write,) = [each for each in decision.actions if isinstance(each, WriteStatus)]
    return {each.name: (each.phase, each.reason) for each in write.status.states}


def test_the_node_says_first_that_it_has_the_image() -> None:
    world = scene(pod=web(), images={NEW: True})
    pending = (StatePhase.PENDING, Reason.NONE)
    assert states(asked(), world) == {"init": (StatePhase.PENDING, Reason.IMAGE_PRESENT), "app": pending}
    assert decided([asked()], world, NOW).wake_at is None, "no other container waits for an image"
    gated = replace(web(), readiness_gate=True)
    late = asked(strategy=Strategy(unready_grace_seconds=5))
    assert states(late, scene(pod=gated, images={NEW: True}))["init"] == pending, "after the unready grace period"


def test_without_the_image_nothing_restarts() -> None:
    found = states(asked(), scene(pod=web(), images={NEW: False}))
    assert found == {
        "init": (StatePhase.FAILED, Reason.IMAGE_MISSING),
        "app": (StatePhase.FAILED, Reason.EARLIER_FAILURE),
    }


def test_a_restart_that_is_early_keeps_the_request_at_work() -> None:
    """An abort ends requests that have not begun, but this pod has the image."""
    world = scene(pod_at=NOW - 1)
    assert states(asked(), world)["init"] == (StatePhase.RECREATING, Reason.NONE)
    decision = decided([asked()], world, NOW)
    assert (decision.wake_at, decision.poll_runtime) == (NOW - 1 + 5, True)
    failing = scene(RAN_OLD, pod=web(NEW, terminated=False, waiting_reason="CrashLoopBackOff"))
    assert states(asked(), failing)["init"] == (StatePhase.RECREATING, Reason.HELD_BACK)


DONE, BUSY, FAILED = StatePhase.SUCCEEDED, StatePhase.RECREATING, StatePhase.FAILED
AFTER: dict[str, tuple[tuple[StatePhase, StatePhase], Scene]] = {
    "both are back": ((DONE, DONE), scene(*RESTARTED, pod=web(NEW, NEXT))),
    "the init container has not run yet": ((BUSY, BUSY), scene(RAN_OLD, APP_1)),
    "it runs": ((BUSY, BUSY), scene(replace(RAN_NEW, image=NEW))),
    "it has failed": ((BUSY, BUSY), scene(RAN_NEW, pod=web(NEW, waiting_reason="CrashLoopBackOff"))),
    "the app is not ready": ((DONE, BUSY), scene(*RESTARTED, pod=web(NEW, replace(NEXT, ready=False)))),
    "kubelet did not know the image": ((FAILED, FAILED), scene(replace(RAN_NEW, image=OLD), APP_2)),
    "kubelet's hash says that it ran": (
        (DONE, DONE),
        scene(
            replace(RAN_NEW, image="", hash=hash_of_name_and_image("init", NEW)),
            APP_2,
            pod=web(NEW, NEXT),
            kubelet_minor=36,
        ),
    ),
    "kubelet's hash says that it did not": (
        (FAILED, FAILED),
        scene(replace(RAN_NEW, image="", hash=hash_of_name_and_image("init", OLD)), APP_2, kubelet_minor=36),
    ),
    "an older kubelet has another hash than before": (
        (DONE, DONE),
        scene(replace(RAN_NEW, image="", hash="2"), APP_2, pod=web(NEW, NEXT), kubelet_minor=30, hashes={"i1": "1"}),
    ),
    "an older kubelet whose hashes are not known": (
        (DONE, DONE),
        scene(replace(RAN_NEW, image=""), APP_2, pod=web(NEW, NEXT), kubelet_minor=30),
    ),
}


@pytest.mark.parametrize("case", AFTER)
def test_what_has_become_of_it_after_the_restart(case: str) -> None:
    (init, app), world = AFTER[case]
    world = replace(world, pod=replace(world.pod, sandboxes=(GONE, SECOND, THIRD)))
    begun = Status(RequestPhase.RECREATING, tuple(RecreateState(name) for name in ("init", "app")))
    found = states(asked(pinned=PINNED, status=begun), world)
    assert {name: phase for name, (phase, _) in found.items()} == {"init": init, "app": app}
    assert (found["init"][1] is Reason.IMAGE_NOT_RUN) is (init is FAILED)


def test_what_has_failed_is_not_said_to_have_run() -> None:
    world = scene(replace(RAN_NEW, image=OLD), APP_2, sandboxes=(GONE, SECOND, THIRD))
    decision = decided([asked(pinned=PINNED, status=Status(RequestPhase.RECREATING))], world, NOW)
    (write,) = [each for each in decision.actions if isinstance(each, WriteStatus)]
    assert write.status.message == "0 of 2 containers recreated; failed: init, app"


def test_the_result_is_told() -> None:
    world = scene(*RESTARTED, sandboxes=(GONE, SECOND, THIRD), pod=web(NEW, NEXT))
    decision = decided([asked(pinned=PINNED, status=Status(RequestPhase.RECREATING))], world, NOW)
    (write,) = [each for each in decision.actions if isinstance(each, WriteStatus)]
    assert write.status.message.startswith("2 of 2 containers recreated; init containers ran again: init")
    told = [each.message for each in decision.actions if isinstance(each, EmitEvent)]
    assert told[0] == f"Init container init has run with the image {NEW}"
    assert {each.reason for each in decision.actions if isinstance(each, EmitEvent)} == {EventReason.RECREATED}


@pytest.mark.parametrize(
    ("found", "rule"), [(web(), Rule.TARGET), (None, Rule.RETURNS)], ids=["another image", "no pod"]
)
def test_the_safety_check_sees_a_restart_without_the_image(found: Pod | None, rule: Rule) -> None:
    taken, decision = turn(asked(pinned=PINNED), scene())
    (sent,) = [each for each in decision.actions if isinstance(each, RestartPod)]
    world = scene(pod=found)
    observation = Observation(world.pod, (world.known(asked(pinned=PINNED), NOW),), world.node, NOW)
    assert (taken, [each.rule for each in check(Decision((sent,)), observation)]) == (Turn.SENT, [rule])


def test_a_container_that_runs_is_not_restarted_as_an_init_container() -> None:
    """Admission rejects it. It may have been another container of that name when the request was created."""
    req = asked(containers=(RequestedContainer("app", pin("old"), NEW),))
    assert turn(req, scene())[0] is Turn.MISNAMED


@pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
def test_a_pod_that_would_end_gets_no_image(policy: RestartPolicy) -> None:
    world = scene(pod=web(OLD, replace(APP, restart_policy=policy)), images={NEW: True})
    assert {reason for _, reason in states(asked(), world).values()} == {Reason.POD_WOULD_END}
