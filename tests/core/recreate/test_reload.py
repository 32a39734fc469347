"""A request whose containers reload: which of the turns comes, and what it does. No container is ever stopped."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import (
    Action,
    FailurePolicy,
    RecreateState,
    Request,
    RequestPhase,
    StartTimes,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.actions import EmitEvent, PinContainers, RunHook, RunReload, StopContainer, WriteStatus
from crrd.core.recreate.declared import read_reload
from crrd.core.recreate.invariants import Rule, check
from crrd.core.recreate.observation import HookResult, Instance, Observation, Sandbox, Work, WorkKind
from crrd.core.recreate.outcome import LOOK_AT_UNREADY
from crrd.core.recreate.reload import SYNC_SECONDS, Turn, serve
from crrd.core.recreate.request_view import QUIET, RESTART_SECONDS
from crrd.core.recreate.stop import LOOK_AGAIN
from crrd.core.recreate.view import ContainerView
from crrd.core.recreate.whole_pod import PodView
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from tests.support.worlds import POD_UID, RUNTIME, Scene, decided, exited, instance, observed, pin, pod, request

NOW = 100.0
WEB = '{"httpPost": {"path": "/-/reload", "port": 9090}}'
HUP = '{"signal": "HUP"}'
NOT_PROCESS_1 = (
    "the annotation reload.crrd.dev/app has a signal, but process 1 is not that of the container (hostPID or "
    "shareProcessNamespace)"
)
OLD = instance("old", sandbox="first")
APP = PodContainer("app", container_id=f"{RUNTIME}://old", running=True, ready=True, started=True, reload=HUP)
SANDBOX = Sandbox("first", RUNTIME, "default", "web", POD_UID, ready=True, created_at=1, reloads={"app": HUP})
RELOAD = Strategy(action=Action.RELOAD)
DONE = HookResult(0.4, "", "reread 2 files")
RECORDED = {"pinned": {"app": pin("old")}, "start_times": {"app": StartTimes(reload="2026-01-01T00:00:50Z")}}
STARTED = Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING),))


def asked(**changes: Any) -> Request:
    return request(**{"strategy": RELOAD, **changes})


def declaring(declaration: str = HUP, **changes: Any) -> dict[str, Any]:
    """The pod, and what kubelet recorded of it."""
    return {
        "pod": pod(replace(APP, reload=declaration), **changes),
        "sandboxes": (replace(SANDBOX, reloads={"app": declaration}),),
    }


def scene(*instances: Instance, **changes: Any) -> Scene:
    given = {"first_seen": {"r1": NOW - 50}, "pod": pod(APP), "sandboxes": (SANDBOX,), **changes}
    return observed(*(instances or (OLD,)), **given)


def ran(result: HookResult = DONE, ended: float = NOW - 1, uid: str = "r1") -> dict[tuple[str, str], Work]:
    """The reload has ended in this process."""
    return {(uid, "old"): Work("app", pin("old"), reload_result=result, reload_ended=ended)}


RUNNING = {("r1", "old"): Work("app", pin("old"), WorkKind.RELOAD, NOW + 20)}
OTHER_STOP = {("r0", "old"): Work("app", pin("old"), WorkKind.STOP, NOW + 20, stop_sent=NOW - 1)}
OTHER_SANDBOX = {("r0", "first"): Work("*", SANDBOX.pin, WorkKind.SANDBOX, stop_sent=NOW - 1, pod_grace=30.0)}
OTHER_HOOK_RAN = {
    ("r0", "old"): Work("app", pin("old"), hook_began=90.0, hook_until=120.0, hook_result=HookResult(1.0))
}
FILES = replace(APP, refreshed=True)
NEWER = instance("new", created_at=2, restart_count=1)
TURNS = [
    (Turn.FAILED, asked(), scene(works=ran(HookResult(0.1, "exit code 1")))),
    (Turn.RUNNING, asked(), scene(works=RUNNING)),
    (Turn.UNNAMED, asked(containers=(replace(request().containers[0], context=None),)), scene()),
    (Turn.ENDED_AFTER, asked(status=STARTED), scene(exited("old"))),
    (Turn.ENDED_AFTER, asked(**RECORDED), scene(exited("old"), NEWER)),
    (Turn.ENDED_AFTER, asked(), scene(exited("old"), works=ran())),
    (Turn.ENDED_BEFORE, asked(), scene(exited("old"))),
    (Turn.ENDED_BEFORE, asked(), scene(NEWER)),
    (Turn.ENDED_BEFORE, asked(), scene(OLD, NEWER)),
    (Turn.ENDED_BEFORE, asked(), scene(replace(OLD, restart_count=1))),
    (Turn.NOT_STARTED, asked(), scene(replace(OLD, state=ContainerState.CREATED))),
    (Turn.UNRECORDED, asked(), scene(works=ran())),
    (Turn.UNRECORDED, asked(), scene(works=ran(), pin_errors={"r1": "refused"})),
    (Turn.UNREADY, asked(**RECORDED), scene(pod=pod(replace(APP, ready=False)))),
    (Turn.UNREADY, asked(**RECORDED), scene(pod=pod(replace(APP, container_id="")), works=ran(ended=NOW - 20))),
    (Turn.TOO_SHORT, asked(strategy=replace(RELOAD, min_started_seconds=60), **RECORDED), scene()),
    (Turn.TOO_SHORT, asked(strategy=replace(RELOAD, min_started_seconds=5), **RECORDED), scene(works=ran())),
    (Turn.DONE, asked(strategy=replace(RELOAD, min_started_seconds=5), **RECORDED), scene()),
    (Turn.DONE, asked(strategy=replace(RELOAD, min_started_seconds=50), **RECORDED), scene()),
    (Turn.DONE, asked(**RECORDED), scene(works=ran())),
    (Turn.POD_ENDED, asked(), scene(pod=pod(APP, phase="Succeeded"))),
    (Turn.UNLISTED, asked(), scene(sandboxes=())),
    (Turn.UNDECLARED, asked(), scene(pod=pod(replace(APP, reload="")))),
    (Turn.UNDECLARED, asked(), scene(**declaring("{}"))),
    (Turn.UNDECLARED, asked(), scene(**declaring(shares_pids=True))),
    (Turn.UNDECLARED, asked(), scene(pod=pod(replace(APP, reload=WEB)))),
    (Turn.UNDECLARED, asked(), scene(sandboxes=(replace(SANDBOX, reloads={}),))),
    (
        Turn.BLOCKED,
        asked(strategy=replace(RELOAD, unready_grace_seconds=5)),
        scene(pod=pod(APP, readiness_gate=True)),
    ),
    (Turn.DRAINING, asked(), scene(draining=True)),
    (Turn.RESTARTING, asked(), scene(pod=pod(APP, restarting=True))),
    (Turn.OTHER_WORK, asked(), scene(works=OTHER_STOP)),
    (Turn.OTHER_WORK, asked(), scene(works=OTHER_HOOK_RAN)),
    (
        Turn.OTHER_WORK,
        asked(),
        scene(works=OTHER_SANDBOX),
    ),
    (Turn.KUBELET_SILENT, asked(), scene(kubelet_silent_since=NOW - 4)),
    (Turn.REFRESHING, asked(), scene(pod=pod(FILES))),
    (Turn.REFRESHING, asked(refresh="b"), scene(pod=pod(FILES, refresh="a"), refreshed_at=NOW - 10)),
    (Turn.REFRESHING, asked(refresh="a"), scene(pod=pod(FILES, refresh="a"), refreshed_at=NOW - 1)),
    (Turn.NO_IP, asked(), scene(**declaring(WEB, pod_ip=""))),
    (Turn.SENT, asked(), scene()),
    (Turn.SENT, asked(status=STARTED), scene()),  # the daemon died in it
    (Turn.SENT, asked(), scene(**declaring(WEB))),
    (Turn.SENT, asked(), scene(**declaring('{"httpGet": {"host": "127.0.0.1", "port": 1}}', pod_ip=""))),
    (Turn.SENT, asked(refresh="a"), scene(pod=pod(FILES, refresh="a"), refreshed_at=NOW - 2)),
    (Turn.SENT, asked(), scene(pod=pod(FILES), first_seen={"r1": NOW - SYNC_SECONDS})),
    (Turn.SENT, asked(), scene(pod=pod(replace(APP, restart_policy=RestartPolicy.NEVER)))),
    (Turn.SENT, asked(strategy=replace(RELOAD, unready_grace_seconds=5)), scene()),
    (Turn.SENT, asked(), scene(works=ran(uid="r0"))),
]


def view(req: Request, world: Scene) -> ContainerView:
    """What the decision sees."""
    others = [request(uid=uid) for uid in {uid for uid, _ in world.works} if uid != req.uid]
    known = tuple(replace(world.known(each, NOW), left=each is not req) for each in (req, *others))
    assert world.pod.pod is not None
    whole = PodView(known[0], Observation(world.pod, known, world.node, NOW), world.pod.pod)
    return ContainerView.of(req.containers[0], whole)


@pytest.mark.parametrize(("turn", "req", "world"), TURNS)
def test_the_first_turn_that_applies_is_taken(turn: Turn, req: Request, world: Scene) -> None:
    seen = view(req, world)
    taken, step = serve(seen, blocked=not seen.whole.gate.open)
    assert taken is turn
    assert bool([each for each in step.actions if isinstance(each, RunReload)]) is (turn is Turn.SENT)
    assert not check(step, seen.whole.observation)


def test_every_turn_is_tried() -> None:
    assert {turn for turn, _, _ in TURNS} == set(Turn)


@pytest.mark.parametrize(("turn", "req", "world"), TURNS)
def test_no_container_is_stopped_for_it(turn: Turn, req: Request, world: Scene) -> None:
    decision = decided([req], world, NOW)
    own = [each for each in decision.actions if each.request.uid == req.uid]
    assert not [each for each in own if isinstance(each, StopContainer | RunHook)]
    written = [each.status for each in own if isinstance(each, WriteStatus)]
    assert not any(state.is_killed for status in written for state in status.states), turn


def status(req: Request, world: Scene) -> Status:
    """Return the status that is written."""
    return next(each.status for each in decided([req], world, NOW).actions if isinstance(each, WriteStatus))


def state(req: Request, world: Scene) -> RecreateState:
    """Return the container's state in it."""
    return status(req, world).state("app")


def test_the_command_is_that_of_the_pod() -> None:
    run = next(each for each in decided([asked()], scene(), NOW).actions if isinstance(each, RunReload))
    assert run.reload == read_reload(HUP)
    assert run.reload.hook.command == ("kill", "-HUP", "1")
    assert (run.instance, run.pod_ip) == (OLD, "127.0.0.1")


def test_events_say_what_happens() -> None:
    begun = decided([asked(strategy=replace(RELOAD, unready_grace_seconds=5))], scene(), NOW).actions
    assert [each.reason for each in begun if isinstance(each, EmitEvent)] == [
        EventReason.RELOADING,
        EventReason.NO_READINESS_GATE,
    ]
    plain = decided([asked()], scene(), NOW).actions
    assert [each.reason for each in plain if isinstance(each, EmitEvent)] == [EventReason.RELOADING]
    done = decided([asked(**RECORDED)], scene(works=ran()), NOW).actions
    event = next(each for each in done if isinstance(each, EmitEvent))
    assert (event.reason, event.message) == (
        EventReason.RELOADED,
        "Container app: reloaded in 0.4s: reread 2 files",
    )
    failed = decided([asked()], scene(works=ran(HookResult(0.1, "exit code 1"))), NOW).actions
    assert [each.reason for each in failed if isinstance(each, EmitEvent)] == [EventReason.FAILED]


def test_its_success_is_recorded_before_anything_else_follows() -> None:
    actions = decided([asked()], scene(works=ran()), NOW).actions
    record = next(each for each in actions if isinstance(each, PinContainers))
    assert record.pins == {"app": pin("old")}
    assert record.start_times == {"app": StartTimes(reload="2026-01-01T00:01:00Z")}
    written = next(each.status for each in actions if isinstance(each, WriteStatus))
    assert (written.phase, written.state("app").phase) == (RequestPhase.RECREATING, StatePhase.RECREATING)
    assert written.state("app").message == "reloaded in 0.4s: reread 2 files"


def test_it_is_recorded_while_the_request_has_to_wait() -> None:
    away = scene(works=ran(), runtime_error="away")
    assert [each for each in decided([asked()], away, NOW).actions if isinstance(each, PinContainers)]
    first = request(uid="r0", created="2098-01-01T00:00:00Z", status=STARTED)
    served = replace(scene(works=ran()), first_seen={"r1": NOW - 50, "r0": NOW - 50})
    both = decided([asked(status=STARTED), first], served, NOW).actions
    assert "r1" in [each.request.uid for each in both if isinstance(each, PinContainers)]


def test_a_failure_is_not_recorded_as_a_success() -> None:
    works = ran(HookResult(0.1, "exit code 1"))
    for world in (scene(works=works), scene(works=works, runtime_error="away")):
        actions = decided([asked()], world, NOW).actions
        assert not [each for each in actions if isinstance(each, PinContainers)]


def test_its_success_is_recorded_once() -> None:
    away = scene(works=ran(), runtime_error="away")
    assert not [each for each in decided([asked(**RECORDED)], away, NOW).actions if isinstance(each, PinContainers)]


def test_a_completed_request_says_what_the_reload_has_printed() -> None:
    written = status(asked(**RECORDED), scene(works=ran()))
    assert (written.phase, written.message) == (RequestPhase.COMPLETED, "1 of 1 containers reloaded")
    assert written.state("app").message == "reloaded in 0.4s: reread 2 files"
    assert written.state("app").reason is Reason.RELOADED


def test_long_output_is_cut() -> None:
    text = state(asked(**RECORDED), scene(works=ran(HookResult(0.4, "", "x" * 2000)))).message
    assert text == f"reloaded in 0.4s: {'x' * 500}"


def test_a_later_process_keeps_the_message() -> None:
    written = Status(
        RequestPhase.RECREATING,
        (RecreateState("app", StatePhase.RECREATING, "reloaded in 0.4s: reread 2 files", reason=Reason.RELOADED),),
    )
    assert state(asked(status=written, **RECORDED), scene()).message == "reloaded in 0.4s: reread 2 files"
    assert state(asked(**RECORDED), scene()).message == "reloaded"


def test_what_only_a_restart_brings_is_named() -> None:
    container = replace(APP, needs_restart=("ConfigMap web-cfg (env)", "Secret tls (subPath)"))
    text = state(asked(**RECORDED), scene(pod=pod(container), works=ran())).message
    kept = "it gets changes of ConfigMap web-cfg (env), Secret tls (subPath) only by a restart"
    assert text == f"reloaded in 0.4s; {kept}: reread 2 files"
    assert status(asked(**RECORDED), scene(pod=pod(container))).message == "1 of 1 containers reloaded"


@pytest.mark.parametrize(
    ("world", "reason", "message"),
    [
        (
            scene(works=ran(HookResult(0.1, "exec ended with exit code 1: bad"))),
            Reason.RELOAD_FAILED,
            "the reload failed, and the container was not stopped: exec ended with exit code 1: bad",
        ),
        (
            scene(pod=pod(replace(APP, reload=""))),
            Reason.RELOAD_UNDECLARED,
            "the pod does not declare how the container reloads: the pod has no annotation reload.crrd.dev/app",
        ),
        (
            scene(sandboxes=(replace(SANDBOX, reloads={"app": WEB}),)),
            Reason.RELOAD_CHANGED,
            Reason.RELOAD_CHANGED.say(annotation="reload.crrd.dev/app"),
        ),
        (
            scene(**declaring(shares_pids=True)),
            Reason.RELOAD_UNDECLARED,
            Reason.RELOAD_UNDECLARED.say(why=NOT_PROCESS_1),
        ),
        (scene(exited("old")), Reason.ENDED_BEFORE_RELOAD, Reason.ENDED_BEFORE_RELOAD.say()),
    ],
)
def test_what_has_failed_says_why(world: Scene, reason: Reason, message: str) -> None:
    written = state(asked(), world)
    assert (written.phase, written.reason, written.message) == (StatePhase.FAILED, reason, message)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (scene(pod=pod(FILES)), Reason.REFRESHING.say(seconds=100)),
        (scene(kubelet_silent_since=NOW - 4), Reason.KUBELET_SILENT.say(seconds=2)),
        (scene(unready={"RuntimeReady": "away"}), Reason.RUNTIME_NOT_READY.say(condition="RuntimeReady", why="away")),
        (scene(works=OTHER_STOP), Reason.OTHER_WORK.say(work="stop")),
        (scene(works=ran(), pin_errors={"r1": "refused"}), Reason.NOT_PINNED.say(error="refused")),
        (scene(pod=pod(APP, restarting=True)), Reason.POD_RESTARTING.say()),
        (scene(**declaring(WEB, pod_ip="")), Reason.WAITING_FOR_IP.say()),
    ],
)
def test_a_wait_says_for_what(world: Scene, message: str) -> None:
    assert state(asked(), world).message == message


def test_a_wait_for_kubelets_health_looks_again_soon() -> None:
    """No watch reports it."""
    assert decided([asked()], scene(kubelet_silent_since=NOW - 4), NOW).wake_at == NOW + LOOK_AGAIN


@pytest.mark.parametrize("ago", [0, 1])
def test_a_short_wait_for_kubelet_is_not_written(ago: int) -> None:
    soon = scene(pod=pod(FILES, refresh="a"), refreshed_at=NOW - ago)
    decision = decided([asked(refresh="a", status=STARTED)], soon, NOW)
    assert not [each for each in decision.actions if isinstance(each, WriteStatus)]
    assert decision.wake_at == NOW + 2 - ago


UNREADY_POD = pod(replace(APP, ready=False))


@pytest.mark.parametrize(
    ("req", "world", "wake_at"),
    [
        (asked(**RECORDED), scene(pod=UNREADY_POD), NOW + LOOK_AT_UNREADY),
        (asked(**RECORDED), scene(pod=UNREADY_POD, works=ran(ended=NOW - 8)), NOW + 2),  # the message after 10 s
        (asked(strategy=replace(RELOAD, min_started_seconds=60), **RECORDED), scene(), NOW + 10),
        (asked(), scene(sandboxes=()), NOW + LOOK_AGAIN),
        (asked(), scene(works=OTHER_STOP), NOW + LOOK_AGAIN),
        (asked(), scene(works=OTHER_SANDBOX), NOW + 30 + RESTART_SECONDS),
    ],
)
def test_a_wait_looks_at_the_runtime_again(req: Request, world: Scene, wake_at: float) -> None:
    decision = decided([req], world, NOW)
    assert (decision.wake_at, decision.poll_runtime) == (wake_at, True)


def test_the_api_server_is_asked_for_the_ip_that_is_missing() -> None:
    assert decided([asked()], scene(**declaring(WEB, pod_ip="")), NOW).ask_api


@pytest.mark.parametrize("works", [{}, RUNNING], ids=["begins", "runs"])
def test_a_reload_that_may_be_over_soon_is_not_written(works: dict[tuple[str, str], Work]) -> None:
    decision = decided([asked()], scene(works=works, first_seen={"r1": NOW}), NOW)
    assert not [each for each in decision.actions if isinstance(each, WriteStatus)]
    assert decision.wake_at == NOW + QUIET


@pytest.mark.parametrize("works", [{}, RUNNING], ids=["begins", "runs"])
def test_a_wait_that_is_over_is_not_told_while_it_reloads(works: dict[tuple[str, str], Work]) -> None:
    waited = RecreateState("app", message=Reason.WAITING_FOR_IP.say(), reason=Reason.WAITING_FOR_IP)
    req = asked(status=Status(RequestPhase.RECREATING, (waited,)))
    assert state(req, scene(works=works)) == RecreateState("app", StatePhase.RECREATING)


def test_a_container_that_is_not_ready_says_so() -> None:
    world = scene(pod=pod(replace(APP, ready=False)), works=ran(ended=NOW - 20))
    assert state(asked(**RECORDED), world).message == Reason.NOT_READY.say(
        seconds=10, why="its readiness probe has not succeeded yet"
    )


def test_an_instance_that_nobody_named_is_pinned_first() -> None:
    bare = asked(containers=(replace(request().containers[0], context=None),))
    never = pod(replace(APP, restart_policy=RestartPolicy.NEVER))
    actions = decided([bare], scene(pod=never), NOW).actions
    assert [each.pins for each in actions if isinstance(each, PinContainers)] == [{"app": pin("old")}]
    lost = replace(bare, status=STARTED)
    assert state(lost, scene()).reason is Reason.PIN_LOST
    refused = scene(pin_errors={"r1": "refused"})
    assert state(bare, refused).message == Reason.NOT_PINNED.say(error="refused")
    for errors in ({}, {"r1": "refused"}):
        gone = scene(instance("x", "other"), pin_errors=errors)
        assert state(bare, gone).message == Reason.NOT_CREATED.say()


def two(**strategy: Any) -> Request:
    return request("app", "side", strategy=replace(RELOAD, **strategy))


def world_of_two(**changes: Any) -> Scene:
    sides = [replace(APP, name=name, container_id=f"{RUNTIME}://old-{name}") for name in ("app", "side")]
    known = [instance(f"old-{name}", name, sandbox="first") for name in ("app", "side")]
    sandbox = replace(SANDBOX, reloads={"app": HUP, "side": HUP})
    return scene(*known, pod=pod(*sides), sandboxes=(sandbox,), **changes)


def reloading(req: Request, world: Scene) -> list[str]:
    return [each.name for each in decided([req], world, NOW).actions if isinstance(each, RunReload)]


def test_containers_reload_one_after_the_other() -> None:
    times = {"app": StartTimes(reload="2026-01-01T00:00:50Z")}
    recorded = replace(two(), pinned={"app": pin("old-app")}, start_times=times)
    first = {("r1", "old-app"): Work("app", pin("old-app"), WorkKind.RELOAD, NOW + 20)}
    assert reloading(two(), world_of_two()) == ["app"]
    assert reloading(two(), world_of_two(works=first)) == []
    assert reloading(recorded, world_of_two()) == ["side"]
    unready = world_of_two()
    assert unready.pod.pod is not None
    containers = {**unready.pod.pod.containers, "app": replace(unready.pod.pod.containers["app"], ready=False)}
    unready = replace(unready, pod=replace(unready.pod, pod=replace(unready.pod.pod, containers=containers)))
    assert reloading(recorded, unready) == ["side"]
    ordered = replace(recorded, strategy=replace(RELOAD, ordered=True))
    assert reloading(ordered, unready) == []


@pytest.mark.parametrize(("policy", "others"), [(FailurePolicy.FAIL, []), (FailurePolicy.IGNORE, ["side"])])
def test_a_failure_follows_the_failure_policy(policy: FailurePolicy, others: list[str]) -> None:
    failed = {("r1", "old-app"): Work("app", pin("old-app"), reload_result=HookResult(0.1, "no"), reload_ended=NOW - 1)}
    assert reloading(two(failure_policy=policy), world_of_two(works=failed)) == others


def test_a_request_without_containers_is_invalid() -> None:
    written = status(asked(containers=()), scene())
    assert (written.phase, written.reason) == (RequestPhase.COMPLETED, Reason.INVALID_REQUEST)


# The safety check, by code of its own.


def broken(run: RunReload, world: Scene, req: Request) -> set[Rule]:
    known = world.known(req, NOW)
    observation = Observation(world.pod, (known,), world.node, NOW)
    decision = replace(decided([], scene(), NOW), actions=(run,))
    return {each.rule for each in check(decision, observation)}


def run_of(req: Request, declaration: str = HUP) -> RunReload:
    return RunReload(req, OLD, read_reload(declaration))


@pytest.mark.parametrize(
    ("req", "world", "declaration", "rule"),
    [
        (asked(), scene(), WEB, Rule.TARGET),
        (asked(), scene(sandboxes=(replace(SANDBOX, reloads={"app": WEB}),)), WEB, Rule.TARGET),
        (asked(), scene(sandboxes=()), HUP, Rule.TARGET),
        (asked(), scene(pod=pod(replace(APP, name="b"))), HUP, Rule.TARGET),
        (asked(), scene(**declaring(shares_pids=True)), HUP, Rule.TARGET),
        (request(), scene(), HUP, Rule.TARGET),
        (asked(status=Status(RequestPhase.COMPLETED)), scene(), HUP, Rule.LIVE),
        (asked(), scene(exited("old")), HUP, Rule.TARGET),
        (asked(), scene(works=RUNNING), HUP, Rule.ALONE),
        (asked(), scene(kubelet_silent_since=NOW - 4), HUP, Rule.RETURNS),
        (asked(), scene(pod=pod(APP, deleting=True)), HUP, Rule.RETURNS),
    ],
)
def test_the_safety_check_withholds_it(req: Request, world: Scene, declaration: str, rule: Rule) -> None:
    assert rule in broken(run_of(req, declaration), world, req)


def test_the_safety_check_lets_it_run() -> None:
    assert broken(run_of(asked()), scene(), asked()) == set()


def test_the_safety_check_stops_no_container_of_such_a_request() -> None:
    stop = StopContainer(asked(), OLD, 30.0, 0.0)
    observation = Observation(scene().pod, (scene().known(asked(), NOW),), scene().node, NOW)
    found = check(replace(decided([], scene(), NOW), actions=(stop,)), observation)
    assert Rule.TARGET in {each.rule for each in found}


def test_the_names_of_a_violation() -> None:
    world = scene(sandboxes=())
    observation = Observation(world.pod, (world.known(asked(), NOW),), world.node, NOW)
    found = check(replace(decided([], scene(), NOW), actions=(run_of(asked()),)), observation)
    assert [each.container for each in found] == ["app"]
