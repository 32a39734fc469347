"""A request for a whole pod: which of the turns comes, and what it does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind, Pod, PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import WHOLE_POD, Pin, RecreateState, Request, RequestPhase, StatePhase, Status, Strategy
from crrd.core.recreate.actions import Decision, EmitEvent, PinContainers, RestartPod, WriteStatus
from crrd.core.recreate.invariants import Rule, check
from crrd.core.recreate.observation import NO_WORK, Instance, Observation, Sandbox, StopAttempt, Work, WorkKind
from crrd.core.recreate.request_view import RESTART_SECONDS
from crrd.core.recreate.restart_pod import Turn, serve
from crrd.core.recreate.sandbox_view import unfit
from crrd.core.recreate.stop import stop_pause
from crrd.core.recreate.whole_pod import PodView
from crrd.kubelet.restart_rules import RestartPolicy
from tests.support.worlds import POD_UID, RUNTIME, Scene, decided, exited, instance, observed, pin, pod, request

NOW = 100.0
WALL = 1767225660.0
FIRST = Sandbox("first", RUNTIME, "default", "web", POD_UID, ready=True, created_at=1)
SECOND = replace(FIRST, id="second", attempt=1, created_at=int((WALL - 1) * 1e9), request_uid="r1")
THIRD = replace(FIRST, id="third", attempt=2, created_at=int(WALL * 1e9))
OLD = instance("old", sandbox="first")
NEW = instance("new", sandbox="third", created_at=2, restart_count=1)
APP = PodContainer("app", container_id=f"{RUNTIME}://old", running=True, ready=True)
NEXT = replace(APP, container_id=f"{RUNTIME}://new", restart_count=1)
INIT = PodContainer("init", ContainerKind.INIT)
PINNED = {WHOLE_POD: FIRST.pin}
OWN_ALWAYS: Any = {"own_restart_policy": RestartPolicy.ALWAYS}
ZERO = {"operator": "In", "values": [0]}


def asked(**changes: Any) -> Request:
    """A request for the pod, whose sandbox is recorded."""
    return request(**{"whole_pod": True, "pinned": PINNED, **changes})


def fresh(**changes: Any) -> Request:
    """A request for the pod whose sandbox is not recorded yet."""
    return asked(pinned={}, **changes)


def scene(*instances: Instance, sandboxes: tuple[Sandbox, ...] = (FIRST,), **changes: Any) -> Scene:
    given = {"first_seen": {"r1": NOW - 5}, **changes}
    return observed(*(instances or (OLD,)), sandboxes=sandboxes, **given)


def stopped(**sandbox: Any) -> Sandbox:
    return replace(FIRST, ready=False, **sandbox)


def tried(error: str = "", *, count: int = 1, sent: float = NOW - 1, **work: Any) -> dict[tuple[str, str], Work]:
    """The daemon has asked for the second sandbox."""
    attempt = StopAttempt(count, NOW - 0.1, error)
    return {("r1", "first"): Work(WHOLE_POD, FIRST.pin, stop_sent=sent, last_stop=attempt, **work)}


MAKING = {("r1", "first"): Work(WHOLE_POD, FIRST.pin, WorkKind.SANDBOX, stop_sent=NOW - 0.5)}
OF_OTHER = {("r0", "old"): Work("app", pin("old"), WorkKind.STOP, NOW + 20, stop_sent=NOW - 1)}
TWO = pod(APP, replace(APP, name="side", kind=ContainerKind.SIDECAR))
TURNS = [
    (Turn.MISNAMED, asked(), scene(pod=TWO)),
    (Turn.MISNAMED, asked(containers=()), scene()),
    (Turn.FOREIGN, fresh(), scene(instance("old", pod_name="other", sandbox="first"))),
    (Turn.UNANSWERED, fresh(), scene(instance("b"), foreign={}, unanswered={pin("old"): ""})),
    (Turn.UNANSWERED, fresh(), scene(instance("b"), foreign={}, unanswered={pin("old"): "away"})),
    (Turn.UNANSWERED, fresh(), scene(instance("b"), foreign={})),
    (Turn.PIN_LOST, fresh(status=Status(RequestPhase.RECREATING, (RecreateState("app", is_killed=True),))), scene()),
    (Turn.NOT_CREATED, fresh(), scene(sandboxes=())),
    (Turn.NOT_CREATED, fresh(), scene(sandboxes=(SECOND,))),
    (Turn.NOT_PINNED, fresh(), scene()),
    (Turn.NOT_PINNED, fresh(), scene(pin_errors={"r1": "refused"})),
    (Turn.UNFIT, fresh(), scene(pod=pod(replace(APP, restart_policy=RestartPolicy.NEVER)))),
    (Turn.UNFIT, fresh(), scene(sandboxes=(replace(FIRST, runtime="docker"),))),
    (Turn.POD_ENDED, asked(), scene(pod=pod(APP, phase="Failed"))),
    (Turn.RESTARTED, asked(), scene(exited("old", sandbox="first"), NEW, sandboxes=(stopped(), SECOND, THIRD))),
    (Turn.RESTARTED, asked(), scene(sandboxes=(THIRD,))),
    (Turn.RESTARTED, asked(), scene(sandboxes=())),
    (Turn.AWAITED, asked(), scene(sandboxes=(FIRST, SECOND))),
    (Turn.RETRIED, asked(), scene(works=tried())),
    (Turn.AWAITED, asked(), scene(sandboxes=(stopped(),))),
    (Turn.MAKING, asked(), scene(works=MAKING)),
    (Turn.UNFIT, asked(), scene(pod=pod(APP, host_network=True))),
    (Turn.UNFIT, asked(), scene(sandboxes=(replace(FIRST, runtime="docker"),))),
    (Turn.UNREADY, asked(strategy=Strategy(unready_grace_seconds=5)), scene(pod=pod(APP, readiness_gate=True))),
    (Turn.DRAINING, asked(), scene(draining=True)),
    (Turn.RESTARTING, asked(), scene(pod=pod(APP, restarting=True))),
    (Turn.KUBELET_SILENT, asked(), scene(kubelet_silent_since=NOW - 4)),
    (Turn.KUBELET_SILENT, asked(), scene(unready={"NetworkReady": "no CNI"})),
    (Turn.OTHER_WORK, asked(), scene(works=OF_OTHER)),
    (Turn.OTHER_WORK, asked(), scene(sandboxes=(FIRST, replace(SECOND, request_uid="r0")))),
    (Turn.ABANDONED, asked(), scene(works=tried("full", count=8, sent=NOW - 130))),
    (Turn.RETRIED, asked(), scene(works=tried("full"))),
    (Turn.RETRIED, asked(), scene(works=tried("full", count=3))),
    (Turn.NO_SLOT, asked(), scene(may_stop=False)),
    (Turn.SENT, asked(), scene()),
    (Turn.SENT, asked(strategy=Strategy(unready_grace_seconds=5)), scene()),
    (Turn.SENT, asked(), scene(works=tried("full", count=1, sent=NOW - 1) | {("r0", "x"): NO_WORK}, listed_at=NOW)),
]


def view(req: Request, world: Scene, now: float = NOW) -> PodView:
    """What the decision sees."""
    others = [request(uid=uid) for uid in {uid for uid, _ in world.works} if uid != req.uid]
    known = tuple(replace(world.known(each, now), left=each is not req) for each in (req, *others))
    assert world.pod.pod is not None
    return PodView(known[0], Observation(world.pod, known, world.node, now), world.pod.pod)


@pytest.mark.parametrize(("turn", "req", "world"), TURNS[:-1])
def test_the_first_turn_that_applies_is_taken(turn: Turn, req: Request, world: Scene) -> None:
    seen = view(req, world)
    taken, decision = serve(seen)
    assert taken is turn
    made = [each for each in decision.actions if isinstance(each, RestartPod)]
    assert bool(made) is (turn is Turn.SENT)
    assert not check(decision, seen.observation)


def test_every_turn_is_tried() -> None:
    of_images = {Turn.IMAGE_AWAITED, Turn.EARLY}  # in test_init_image
    assert {turn for turn, _, _ in TURNS} == set(Turn) - of_images


def status_of(decision: Decision) -> Status:
    (write,) = [each for each in decision.actions if isinstance(each, WriteStatus)]
    return write.status


def why(req: Request, world: Scene) -> set[Reason]:
    """The reasons of the containers."""
    return {state.reason for state in status_of(decided([req], world, NOW)).states}


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (Reason.POD_WOULD_END, {"pod": pod(replace(APP, restart_policy=RestartPolicy.ON_FAILURE))}),
        (Reason.HOOK_NEEDS_IP, {"pod": pod(replace(APP, hook_needs_ip=True))}),
        (Reason.HOST_NETWORK, {"pod": pod(APP, host_network=True)}),
        (Reason.RUNTIME_UNFIT, {"sandboxes": (replace(FIRST, runtime="docker"),)}),
        (Reason.POD_ENDED, {"pod": pod(APP, phase="Succeeded")}),
        (Reason.POD_DELETING, {"pod": pod(APP, deleting=True)}),
        (Reason.SANDBOX_FAILED, {"works": tried("full", count=8, sent=NOW - 130)}),
        (Reason.INVALID_REQUEST, {"pod": TWO}),
    ],
)
def test_what_ends_the_request(reason: Reason, changes: dict[str, Any]) -> None:
    decision = decided([asked()], scene(**changes), NOW)
    status = status_of(decision)
    assert (status.phase, status.reason) == (RequestPhase.COMPLETED, reason)
    assert {state.phase for state in status.states} == {StatePhase.FAILED}
    assert [each.reason for each in decision.actions if isinstance(each, EmitEvent)] == [EventReason.FAILED]


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (Reason.POD_RESTARTING, {"pod": pod(APP, restarting=True)}),
        (Reason.KUBELET_SILENT, {"kubelet_silent_since": NOW - 4}),
        (Reason.RUNTIME_NOT_READY, {"unready": {"NetworkReady": "no CNI"}}),
        (Reason.OTHER_WORK, {"works": OF_OTHER}),
        (Reason.OTHER_WORK, {"sandboxes": (FIRST, replace(SECOND, request_uid="r0"))}),
        (Reason.SANDBOX_RETRIED, {"works": tried("full")}),
        (Reason.SANDBOX_RETRIED, {"works": tried("full", count=3)}),
        (Reason.POD_NOT_RESTARTED, {"sandboxes": (FIRST, replace(SECOND, created_at=int((WALL - 60) * 1e9)))}),
        (Reason.HELD_BACK, {"pod": pod(APP, replace(INIT, waiting_reason="CrashLoopBackOff")), "sandboxes": (THIRD,)}),
    ],
)
def test_what_it_waits_for_is_said(reason: Reason, changes: dict[str, Any]) -> None:
    assert why(asked(), scene(**changes)) == {reason}


LATE = replace(SECOND, created_at=int((WALL - 37) * 1e9))  # The pod's grace period is over since 7 seconds
MADE = {("r0", "first"): Work(WHOLE_POD, FIRST.pin, stop_sent=NOW - 1, last_stop=StopAttempt(1, NOW - 1), pod_grace=30)}


@pytest.mark.parametrize(
    ("changes", "message", "wake_at"),
    [
        ({"kubelet_silent_since": NOW - 14}, "kubelet on this node has not answered /healthz for 10s; ", NOW + 1),
        ({"works": OF_OTHER}, "an earlier request that has ended is still working on this container (stop)", None),
        (
            {"sandboxes": (FIRST, replace(SECOND, request_uid="r0")), "works": MADE},
            "an earlier request that has ended is still working on this container (second sandbox)",
            NOW + 30 + RESTART_SECONDS,
        ),
        ({"works": tried("full")}, "RunPodSandbox failed once, retrying: full", NOW - 0.1 + stop_pause(1, "r1")),
        (
            {"works": tried("full", count=3)},
            "RunPodSandbox failed 3 times, retrying: full",
            NOW - 0.1 + stop_pause(3, "r1"),
        ),
        (
            {"works": tried()},
            "RunPodSandbox failed once, retrying: the second sandbox was removed",
            NOW - 0.1 + stop_pause(1, "r1"),
        ),
        (
            {"sandboxes": (FIRST, LATE)},
            "kubelet has not restarted the pod 5s after the end of its grace period",
            NOW + 3,
        ),
        ({"sandboxes": (FIRST, SECOND)}, "", NOW + 34),
        ({"sandboxes": (stopped(),)}, "", None),
        ({"sandboxes": (stopped(),), "pod": pod(replace(APP, waiting_reason="CrashLoopBackOff"), INIT)}, "", None),
    ],
)
def test_what_it_waits_for_and_until_when(changes: dict[str, Any], message: str, wake_at: float | None) -> None:
    killed = asked(status=Status(RequestPhase.RECREATING, (RecreateState("app"),)))
    decision = decided([killed], scene(**changes), NOW)
    (state,) = status_of(decision).states
    assert (state.message[: len(message) or None], decision.wake_at) == (message, wake_at)
    assert decision.poll_runtime is ("retrying" not in message)


OTHERS = replace(SECOND, request_uid="r0")
IN_GRACE = 30 + RESTART_SECONDS


@pytest.mark.parametrize(
    ("changes", "sandboxes", "until"),
    [
        ({}, (FIRST, OTHERS), NOW + IN_GRACE),
        ({}, (FIRST,), NOW - 1 + IN_GRACE),
        ({}, (FIRST, replace(OTHERS, ready=False)), NOW - 1 + IN_GRACE),
        ({}, (FIRST, OTHERS, THIRD), None),
        ({"last_stop": None, "under_way": WorkKind.SANDBOX}, (FIRST,), NOW + IN_GRACE),
        ({"under_way": WorkKind.SANDBOX}, (FIRST,), NOW + IN_GRACE),
        ({"last_stop": StopAttempt(1, NOW - 1, "lost")}, (FIRST, OTHERS), NOW + IN_GRACE),
        ({"last_stop": StopAttempt(1, NOW - 1, "lost")}, (FIRST, replace(OTHERS, ready=False)), NOW - 1 + IN_GRACE),
        ({"last_stop": StopAttempt(1, NOW - 1, "full")}, (FIRST,), None),
        ({"last_stop": StopAttempt(1, NOW - IN_GRACE)}, (FIRST,), None),
        ({"name": "app"}, (FIRST, OTHERS), None),
    ],
)
def test_until_when_kubelet_may_restart_the_pod_for_another_request(
    changes: dict[str, Any], sandboxes: tuple[Sandbox, ...], until: float | None
) -> None:
    works = {key: replace(work, **changes) for key, work in MADE.items()}
    assert view(asked(), scene(sandboxes=sandboxes, works=works)).pod_restart_until == until
    own = {("r1", container_id): work for (_, container_id), work in works.items()}
    assert view(asked(), scene(sandboxes=sandboxes, works=own)).pod_restart_until is None


def test_the_last_of_several_requests_counts() -> None:
    for ended in (NOW - 20, NOW - 0.5):
        works = {**MADE, ("r00", "first"): replace(MADE["r0", "first"], last_stop=StopAttempt(1, ended))}
        assert view(asked(), scene(works=works)).pod_restart_until == max(NOW - 1, ended) + IN_GRACE


def test_what_ended_it_is_said() -> None:
    status = status_of(decided([asked()], scene(works=tried("full", count=8, sent=NOW - 130)), NOW))
    assert status.message == "RunPodSandbox failed 8 times in 130s, last error: full"


def test_what_was_sent_is_not_written_at_once() -> None:
    """As with stops, it may be over before. The second sandbox is sent a moment after it was decided on."""
    sent, unsent = (
        scene(works=MAKING),
        scene(works={key: replace(work, stop_sent=None) for key, work in MAKING.items()}),
    )
    for world, wake_at in ((sent, NOW + 1.5), (unsent, NOW + 2), (scene(), NOW + 2)):
        decision = decided([asked()], world, NOW)
        assert not [each for each in decision.actions if isinstance(each, WriteStatus)]
        assert decision.wake_at == wake_at
    late = decided([asked()], scene(works=MAKING), NOW + 2)
    assert status_of(late) == Status(
        RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING, is_killed=True),)
    )


@pytest.mark.parametrize(
    ("sandbox", "before", "after"),
    [(SECOND, False, True), (stopped(), False, False), (stopped(), True, True)],
    ids=["made", "died by itself", "made before"],
)
def test_a_container_counts_as_stopped_once_the_second_sandbox_is_made(
    sandbox: Sandbox, *, before: bool, after: bool
) -> None:
    states = (RecreateState("app", is_killed=before),)
    found = scene(sandboxes=(FIRST, sandbox) if sandbox is SECOND else (sandbox,))
    status = status_of(decided([asked(status=Status(RequestPhase.RECREATING, states))], found, NOW))
    assert status.states == (RecreateState("app", StatePhase.RECREATING, is_killed=after),)


def test_all_its_containers_count_as_stopped_while_the_runtime_is_away() -> None:
    begun = Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING),))
    away = scene(works=tried(), runtime_error="away")
    assert status_of(decided([asked(status=begun)], away, NOW)).states[0].is_killed


@pytest.mark.parametrize(("may_stop", "sent"), [(True, True), (False, False)])
def test_a_slot_is_waited_for(*, may_stop: bool, sent: bool) -> None:
    decision = decided([asked()], scene(may_stop=may_stop), NOW)
    assert decision.waits_for_slot is not sent
    assert any(isinstance(each, RestartPod) for each in decision.actions) is sent


def test_the_grace_period_is_that_of_the_pod() -> None:
    for found, grace in ((pod(APP), 30), (pod(APP, grace_seconds=7), 7)):
        (sent,) = [each for each in decided([asked()], scene(pod=found), NOW).actions if isinstance(each, RestartPod)]
        assert sent.grace == grace


BOTH = request("app", "side").containers


@pytest.mark.parametrize(
    ("turn", "req", "changes"),
    [
        (Turn.FOREIGN, fresh(containers=BOTH), {"instances": (OLD, instance("old-side", "side", pod_name="other"))}),
        (
            Turn.UNANSWERED,
            fresh(containers=BOTH),
            {"foreign": {"old-app": None}, "unanswered": {pin("old-side"): "away"}},
        ),
        (Turn.UNANSWERED, fresh(containers=BOTH), {"foreign": {"old-app": None}}),
        (
            Turn.PIN_LOST,
            fresh(
                containers=BOTH,
                status=Status(RequestPhase.RECREATING, (RecreateState("app"), RecreateState("side", is_killed=True))),
            ),
            {},
        ),
    ],
)
def test_one_container_of_two_is_enough(turn: Turn, req: Request, changes: dict[str, Any]) -> None:
    assert serve(view(req, scene(pod=TWO, **changes)))[0] is turn


def test_the_runtime_is_looked_at_again_at_once_for_an_id_that_is_not_known() -> None:
    asks = fresh(containers=BOTH)
    known: dict[str, Any] = {"pod": TWO, "foreign": {"old-app": None}}
    for unanswered, why, wake_at in (
        ({}, Reason.NONE, NOW),
        ({pin("old-side"): ""}, Reason.NONE, NOW),
        ({pin("old-side"): "away"}, Reason.RUNTIME_UNAVAILABLE, None),
    ):
        decision = decided([asks], scene(unanswered=unanswered, **known), NOW)
        assert {state.reason for state in status_of(decision).states} == {why}
        assert decision.wake_at == wake_at


def test_what_it_waits_for_before_the_record_is_said() -> None:
    assert why(fresh(), scene(sandboxes=())) == {Reason.NOT_CREATED}
    assert why(fresh(), scene(instance("b"), foreign={}, unanswered={pin("old"): "away"})) == {
        Reason.RUNTIME_UNAVAILABLE
    }
    assert why(fresh(), scene(pin_errors={"r1": "refused"})) == {Reason.NOT_PINNED}


INSTANCES = (exited("old-app", sandbox="third"), exited("old-side", "side", sandbox="first"))
HOMES: list[tuple[str, Request, Scene]] = [
    ("first", fresh(), scene()),
    ("first", fresh(), scene(exited("old", sandbox="first"), NEW, sandboxes=(stopped(), THIRD))),
    ("third", fresh(strategy=Strategy(force=True)), scene(OLD, NEW, sandboxes=(stopped(), THIRD))),
    ("third", fresh(), scene(NEW, sandboxes=(stopped(), THIRD), pod=pod(NEXT))),
    ("first", fresh(), scene(sandboxes=(FIRST, SECOND))),
    ("first", fresh(containers=BOTH), scene(*INSTANCES, sandboxes=(stopped(), THIRD), pod=TWO)),
    ("first", fresh(containers=(replace(request().containers[0], context=None),)), scene()),
]


@pytest.mark.parametrize(("home", "req", "world"), HOMES)
def test_the_sandbox_that_is_meant_is_recorded_first(home: str, req: Request, world: Scene) -> None:
    (action,) = decided([req], world, NOW).actions
    assert isinstance(action, PinContainers)
    wanted = next(each for each in world.pod.sandboxes if each.id == home)
    assert action.pins == {WHOLE_POD: Pin(f"{RUNTIME}://{home}", wanted.attempt)}


def test_the_second_sandbox_is_asked_for_once() -> None:
    decision = decided([asked()], scene(), NOW)
    assert [each.target for each in decision.actions if isinstance(each, RestartPod)] == [FIRST]
    assert [each.reason for each in decision.actions if isinstance(each, EmitEvent)] == [EventReason.RECREATING]
    again = decided([asked()], scene(works=tried("full", sent=NOW - 9)), NOW - 0.1 + stop_pause(1, "r1"))
    assert [type(each) for each in again.actions if not isinstance(each, WriteStatus)] == [RestartPod]


def test_an_ignored_grace_period_is_told() -> None:
    decision = decided([asked(strategy=Strategy(unready_grace_seconds=5))], scene(), NOW)
    told = [each.reason for each in decision.actions if isinstance(each, EmitEvent)]
    assert told == [EventReason.RECREATING, EventReason.NO_READINESS_GATE]


def test_it_is_done_when_all_containers_are_ready_in_a_later_sandbox() -> None:
    side = PodContainer("side", ContainerKind.SIDECAR, container_id=f"{RUNTIME}://old-side", running=True, ready=True)
    req = asked(containers=request("app", "side").containers, status=Status(RequestPhase.RECREATING))
    old_side = instance("old-side", "side", sandbox="first")
    world = scene(NEW, old_side, sandboxes=(stopped(), THIRD), pod=pod(NEXT, side, INIT))
    begun = status_of(decided([req], world, NOW))
    assert [each.phase for each in begun.states] == [StatePhase.SUCCEEDED, StatePhase.RECREATING]
    assert begun.states[1].message == ""
    unready = replace(world, pod=replace(world.pod, pod=pod(replace(NEXT, ready=False), side, INIT)))
    assert not decided([replace(req, status=begun)], unready, NOW).actions, "what is done stays done"
    back = replace(side, container_id=f"{RUNTIME}://new-side")
    world = scene(
        NEW, replace(NEW, id="new-side", name="side"), sandboxes=(stopped(), THIRD), pod=pod(NEXT, back, INIT)
    )
    done = status_of(decided([replace(req, status=begun)], world, NOW))
    assert done.phase is RequestPhase.COMPLETED
    ended = "2 of 2 containers recreated; init containers ran again: init"
    assert done.message == f"{ended}; the pod's IP is 127.0.0.1"
    world = replace(world, pod=replace(world.pod, pod=pod(NEXT, back, INIT, pod_ip="")))
    assert status_of(decided([replace(req, status=begun)], world, NOW)).message == ended


def test_an_instance_in_an_earlier_sandbox_is_not_the_next_one() -> None:
    """The container never came up in the recorded sandbox, whose init container failed."""
    now = replace(THIRD, id="now", ready=False)
    world = scene(exited("old", sandbox="first"), sandboxes=(stopped(), now))
    status = status_of(decided([asked(pinned={WHOLE_POD: now.pin})], world, NOW))
    assert {(each.phase, each.reason) for each in status.states} == {(StatePhase.RECREATING, Reason.NONE)}


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        (Rule.LIVE, lambda req, world: (replace(req, active=False), world)),
        (Rule.LIVE, lambda req, world: (replace(req, whole_pod=False), world)),
        (Rule.TARGET, lambda req, world: (replace(req, pinned={}), world)),
        (Rule.TARGET, lambda req, world: (replace(req, pinned={WHOLE_POD: SECOND.pin}), world)),
        (Rule.TARGET, lambda req, world: (req, with_pod(world, sandboxes=(FIRST, SECOND)))),
        (Rule.TARGET, lambda req, world: (req, with_pod(world, sandboxes=(FIRST, replace(THIRD, ready=False))))),
        (Rule.TARGET, lambda req, world: (replace(req, pod_name="other"), world)),
        (Rule.ALONE, lambda req, world: (req, replace(world, works=MAKING))),
        (Rule.RETURNS, lambda req, world: (req, with_pod(world, pod=None))),
        (Rule.RETURNS, lambda req, world: (req, with_pod(world, pod=pod(APP, deleting=True)))),
        (Rule.RETURNS, lambda req, world: (req, with_pod(world, pod=pod(APP, phase="Failed")))),
        (Rule.RETURNS, lambda req, world: (req, with_pod(world, pod=pod(APP, restarting=True)))),
        (Rule.RETURNS, lambda req, world: (req, with_pod(world, pod=pod(APP, uid="another")))),
        (
            Rule.RETURNS,
            lambda req, world: (req, with_pod(world, pod=pod(replace(APP, restart_policy=RestartPolicy.NEVER)))),
        ),
        (
            Rule.RETURNS,
            lambda req, world: (
                req,
                with_pod(world, pod=pod(APP, replace(APP, name="b", restart_policy=RestartPolicy.NEVER))),
            ),
        ),
        (
            Rule.RETURNS,
            lambda req, world: (req, replace(world, node=replace(world.node, kubelet_silent_since=NOW - 1))),
        ),
    ],
)
def test_the_safety_check_sees_a_wrong_restart(
    rule: Rule, spoil: Callable[[Request, Scene], tuple[Request, Scene]]
) -> None:
    """The decision is right for what was known, and is checked with something else."""
    seen = view(asked(), scene())
    (sent,) = [each for each in serve(seen)[1].actions if isinstance(each, RestartPod)]
    assert not check(Decision((sent,)), seen.observation)
    req, world = spoil(asked(), scene())
    observation = Observation(world.pod, (world.known(req, NOW),), world.node, NOW)
    found = check(Decision((replace(sent, request=req),)), observation)
    assert [each.rule for each in found] == [rule]
    assert found[0].container == ""


def test_the_safety_check_ignores_a_sandbox_that_has_ended() -> None:
    world = scene(sandboxes=(stopped(id="ended"), FIRST))
    (sent,) = [each for each in serve(view(asked(), world))[1].actions if isinstance(each, RestartPod)]
    assert not check(Decision((sent,)), view(asked(), world).observation)


def with_pod(world: Scene, **changes: Any) -> Scene:
    return replace(world, pod=replace(world.pod, **changes))


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        (Reason.NONE, pod()),
        (Reason.NONE, pod(APP, replace(INIT, own_restart_policy=RestartPolicy.ON_FAILURE))),
        (Reason.POD_WOULD_END, pod(APP, replace(INIT, own_restart_policy=RestartPolicy.NEVER))),
        (Reason.NONE, pod(APP, PodContainer("debug", ContainerKind.EPHEMERAL, RestartPolicy.NEVER))),
        (Reason.NONE, pod(replace(APP, restart_policy=RestartPolicy.ON_FAILURE, **OWN_ALWAYS))),
        (Reason.POD_WOULD_END, pod(replace(APP, restart_policy=RestartPolicy.NEVER, **OWN_ALWAYS))),
        (Reason.NONE, pod(APP, static_uid="file")),
        (Reason.NONE, pod(APP, replace(INIT, hook_needs_ip=True))),
        (Reason.HOOK_NEEDS_IP, pod(APP, replace(INIT, kind=ContainerKind.SIDECAR, hook_needs_ip=True))),
        (Reason.POD_WOULD_END, pod(replace(APP, restart_policy=RestartPolicy.NEVER))),
        (Reason.POD_WOULD_END, pod(replace(APP, own_restart_policy=RestartPolicy.ON_FAILURE))),
        (Reason.HOST_NETWORK, pod(APP, host_network=True)),
        (
            Reason.RESTARTS_TWICE,
            pod(
                replace(
                    APP,
                    restart_rules=({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [0]}},),
                )
            ),
        ),
    ],
)
def test_which_pods_must_not_be_restarted_in_place(reason: Reason, found: Pod) -> None:
    assert unfit(found, 36).reason is reason


def test_the_message_says_whose_restart_policy_it_is() -> None:
    whole, own = (
        unfit(pod(replace(APP, **changes)), 36).text
        for changes in (
            {"restart_policy": RestartPolicy.NEVER, **OWN_ALWAYS},
            {"own_restart_policy": RestartPolicy.NEVER},
        )
    )
    assert "because the restartPolicy of the pod is Never, and" in whole
    assert "because the restartPolicy of container app is Never, and" in own
    assert not unfit(pod(APP, replace(INIT, own_restart_policy=RestartPolicy.NEVER)), 34), "it has no effect there"


def test_only_the_containers_that_are_asked_about_are_looked_at() -> None:
    never = replace(APP, name="b", restart_policy=RestartPolicy.NEVER)
    assert not unfit(pod(APP, never), 36, (APP,))
    assert unfit(pod(APP, never), 36, (never,))
