"""The state machine, rule by rule; numbers are the contract's steps."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import (
    FailurePolicy,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StartTimes,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.actions import (
    Action,
    Decision,
    EmitEvent,
    PinContainers,
    RunHook,
    StopContainer,
    WriteStatus,
)
from crrd.core.recreate.decide import in_serving_order
from crrd.core.recreate.messages import Message, waited
from crrd.core.recreate.observation import (
    HASTE_SECONDS,
    LATE_STOP_SECONDS,
    ApiAnswer,
    Ending,
    Hook,
    HookKind,
    HookResult,
    Instance,
    ObservedRequest,
    StopAttempt,
    Work,
    WorkKind,
)
from crrd.core.recreate.outcome import LOOK_AT_UNREADY
from crrd.core.recreate.stop import LOOK_AGAIN, stop_pause
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from tests.support.worlds import (
    NODE,
    POD_UID,
    decided,
    exited,
    hooked,
    hooking,
    instance,
    killed,
    observed,
    pin,
    pod,
    recreating,
    request,
    stopped,
    stopping,
)

Wanted = TypeVar("Wanted", bound=Action)
HOOK = Hook(HookKind.EXEC, command=("true",))
NOW = 100.0
START_TIMES = StartTimes(stop="2026-01-01T00:00:00Z")
RETRIED = {("gone", "old"): replace(hooked(HookResult(3.0))["r1", "old"], last_stop=StopAttempt(1, NOW, "broken"))}
"""A hook that has run for a request that is gone, whose stop has failed and is not due again yet."""
HOOKED_B = {("r1", "old-b"): Work("b", pin("old-b"), hook_began=90.0, hook_until=120.0, hook_result=HookResult(2.0))}


def actions(decision: Decision, kind: type[Wanted]) -> list[Wanted]:
    return [action for action in decision.actions if isinstance(action, kind)]


def only(decision: Decision, kind: type[Wanted]) -> Wanted:
    found = actions(decision, kind)
    assert len(found) == 1, decision
    return found[0]


def stops(decision: Decision) -> list[str]:
    return [action.instance.id for action in actions(decision, StopContainer)]


def reasons(decision: Decision) -> list[EventReason]:
    return [action.reason for action in actions(decision, EmitEvent)]


def one(req: Request, *instances: Instance, now: float = NOW, **changes: Any) -> Decision:
    return decided([req], observed(*instances, **changes), now)


def ended(container_id: str, policy: RestartPolicy, exit_code: int = 0) -> PodContainer:
    """As kubelet shows an instance that has ended, and after which it has begun nothing."""
    plain = PodContainer("app", restart_policy=policy, container_id=f"containerd://{container_id}")
    return replace(plain, terminated=True, exit_code=exit_code)


def written(decision: Decision) -> Status:
    return only(decision, WriteStatus).status


class TestPlainRequest:
    def test_a_stop_is_told_when_it_goes_on(self) -> None:
        decision = one(request(), instance("old"))
        assert only(decision, StopContainer).seconds == 30
        assert not actions(decision, WriteStatus), "most stops are over before the API server has taken a write"
        assert decision.wake_at == NOW + 2
        assert only(decision, EmitEvent) == EmitEvent(
            request(), EventReason.RECREATING, "Stopping container app to recreate it", "app", pod=pod()
        )

    def test_nothing_to_say_while_the_stop_is_under_way(self) -> None:
        req = request(status=recreating(killed()))
        decision = one(req, instance("old"), works=stopping())
        assert decision.actions == ()

    def test_a_stop_that_goes_on_is_told_and_persisted(self) -> None:
        early = one(request(), instance("old"), works=stopping(since=NOW - 1.9))
        assert not early.actions
        assert early.wake_at == pytest.approx(NOW + 0.1)
        decision = one(request(), instance("old"), works=stopping(since=NOW - 2))
        assert written(decision) == recreating(killed())
        assert only(decision, PinContainers).start_times["app"].stop
        assert not stops(decision)
        assert decision.wake_at == NOW + 33, "5 s after the end of its grace period"

    def test_a_stop_that_waits_to_be_sent_is_not_told(self) -> None:
        queued = {("r1", "old"): Work("app", pin("old"), WorkKind.STOP)}
        decision = one(request(), instance("old"), works=queued)
        assert (decision.actions, decision.wake_at) == ((), NOW + 2)

    def test_an_exited_container_is_awaited(self) -> None:
        decision = one(request(), exited("old"))
        assert written(decision) == recreating(RecreateState("app", StatePhase.RECREATING))
        assert decision.poll_runtime

    def test_succeeds_when_the_new_container_is_running_and_ready_in_the_api(self) -> None:
        req = request(status=recreating(killed()))
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        decision = one(req, exited("old"), instance("new", created_at=2, restart_count=1), pod=view)
        status = written(decision)
        assert status.phase is RequestPhase.COMPLETED
        assert status.completion_time == "2026-01-01T00:01:00Z"
        assert status.states == (RecreateState("app", StatePhase.SUCCEEDED, is_killed=True),)
        assert status.message == "1 of 1 containers recreated"
        assert reasons(decision) == [EventReason.RECREATED]

    @pytest.mark.parametrize(
        "status",
        [
            PodContainer("app", container_id="containerd://old", running=True, ready=True),
            PodContainer("app", container_id="containerd://new", running=True, ready=False),
            PodContainer("app", container_id="containerd://new", running=False, ready=True),
        ],
    )
    def test_does_not_succeed_before_the_api_shows_it(self, status: PodContainer) -> None:
        req = request(status=recreating(killed()))
        decision = one(req, instance("new", created_at=2, restart_count=1), pod=pod(status))
        assert decision.actions == ()

    def test_does_not_succeed_while_the_runtime_has_it_created_only(self) -> None:
        req = request(status=recreating(killed()))
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        decision = one(req, instance("new", created_at=2, state=ContainerState.CREATED), pod=view)
        assert decision.actions == ()
        assert decision.poll_runtime

    @pytest.mark.parametrize("since", [{"new-a": 95.0, "new-b": 99.0}, {"new-a": 99.0, "new-b": 95.0}])
    def test_of_two_times_to_look_again_the_earlier_counts(self, since: dict[str, float]) -> None:
        req = request("a", "b", status=recreating(killed("a"), killed("b")), strategy=Strategy(min_started_seconds=10))
        made = [instance(f"new-{name}", name, created_at=2, restart_count=1) for name in ("a", "b")]
        view = pod(
            *(PodContainer(each.name, container_id=each.pin.container_id, running=True, ready=True) for each in made)
        )
        assert one(req, *made, pod=view, running_since=since).wake_at == 105.0

    def test_what_is_not_ready_yet_is_looked_at_again(self) -> None:
        view = pod(PodContainer("app", container_id="containerd://new", running=True))
        waiting = one(request(status=recreating(killed())), instance("new", created_at=2), pod=view)
        assert (waiting.actions, waiting.wake_at) == ((), NOW + 5.0)

    def test_min_started_seconds(self) -> None:
        req = request(status=recreating(killed()), strategy=Strategy(min_started_seconds=10))
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        early = one(req, instance("new", created_at=2), pod=view, running_since={"new": NOW - 4})
        assert early.actions == ()
        assert early.wake_at == NOW + 6.0
        late = one(req, instance("new", created_at=2), pod=view, running_since={"new": NOW - 10})
        assert written(late).phase is RequestPhase.COMPLETED
        unknown = one(req, instance("new", created_at=2), pod=view)
        assert unknown.wake_at == NOW + 10.0

    def test_kubelets_words_while_it_holds_the_container_back(self) -> None:
        waiting = PodContainer("app", waiting_reason="CrashLoopBackOff", waiting_message="back-off 10s restarting")
        req = request(status=recreating(killed()))
        decision = one(req, exited("old"), pod=pod(waiting))
        assert written(decision) == recreating(killed(message="CrashLoopBackOff: back-off 10s restarting"))
        ordinary = replace(waiting, waiting_reason="ContainerCreating", waiting_message="")
        assert one(req, exited("old"), pod=pod(ordinary)).actions == ()

    def test_kubelets_words_about_a_container_that_is_created_and_does_not_start(self) -> None:
        waiting = PodContainer("app", waiting_reason="RunContainerError", waiting_message="no such file")
        req = request(status=recreating(killed(message="preStop hook failed: no")))
        req = replace(req, status=recreating(replace(req.status.states[0], reason=Reason.HOOK_FAILED)))
        new = instance("new", created_at=2, state=ContainerState.CREATED)
        assert written(one(req, new, pod=pod(waiting))) == recreating(killed(message="RunContainerError: no such file"))
        assert one(req, new, pod=pod(replace(waiting, waiting_reason=""))).actions == ()

    def test_kubelets_words_are_taken_back_when_it_runs(self) -> None:
        req = request(status=recreating(killed(message="CrashLoopBackOff: back-off 10s restarting")))
        view = pod(PodContainer("app", container_id="containerd://new", running=True))
        decision = one(req, instance("new", created_at=2), pod=view)
        assert written(decision) == recreating(killed())

    def test_deleted_completed_or_inactive_requests_start_nothing(self) -> None:
        done = Status(RequestPhase.COMPLETED, completion_time="2026-01-01T00:00:30Z")
        for dead in (request(deleting=True), request(active=False), request(status=done)):
            assert one(dead, instance("old")) == Decision()


class TestOneAtATime:
    """Step 2."""

    def test_the_oldest_runs_and_the_others_are_pending(self) -> None:
        old, young = request(), request(uid="r0", created="2099-01-01T00:00:01Z")
        decision = decided([young, old], observed(instance("old")), NOW)
        assert only(decision, StopContainer).request is old
        pending = [action for action in actions(decision, WriteStatus) if action.request is young]
        assert pending[0].status == Status(RequestPhase.PENDING, (RecreateState("app"),))

    def test_by_name_when_created_in_the_same_second(self) -> None:
        decision = decided([request(uid="b"), request(uid="a")], observed(instance("old")), NOW)
        assert only(decision, StopContainer).request.uid == "a"

    def test_a_recreating_one_goes_first(self) -> None:
        old, young = request(), request(uid="r2", created="2099-01-02T00:00:00Z", status=recreating())
        assert only(decided([old, young], observed(instance("old")), NOW), StopContainer).request is young

    def test_the_next_one_starts_when_the_first_is_deleted(self) -> None:
        first, second = request(deleting=True), request(uid="r2", status=Status(RequestPhase.PENDING))
        assert only(decided([first, second], observed(instance("old")), NOW), StopContainer).request is second

    def test_a_stop_of_a_deleted_request_is_not_repeated_by_the_next(self) -> None:
        second = request(uid="r2")
        decision = decided([second], observed(instance("old"), works=stopping(), first_seen={"r2": 0.0}), NOW)
        assert not stops(decision)
        assert written(decision) == recreating(
            RecreateState(
                "app",
                message="an earlier request that has ended is still working on this container (stop)",
            )
        )

    def test_pending_ones_are_written_once(self) -> None:
        second = request(uid="r2", status=Status(RequestPhase.PENDING))
        works = stopping(since=NOW - 2)
        decision = decided([request(), second], observed(instance("old"), works=works), NOW)
        assert only(decision, WriteStatus).request.uid == "r1"


class TestTrust:
    """Step 3, and bad input."""

    def failed(self, decision: Decision) -> str:
        assert not actions(decision, StopContainer)
        assert not actions(decision, RunHook)
        assert not actions(decision, PinContainers)
        status = written(decision)
        assert status.phase is RequestPhase.COMPLETED
        event = only(decision, EmitEvent)
        assert (event.reason, event.warning) == (EventReason.FAILED, True)
        assert status.states[0].phase is StatePhase.FAILED
        return status.states[0].message

    def test_unknown_container(self) -> None:
        message = self.failed(one(request("nope"), instance("old"), answer=ApiAnswer(pod(node_name=NODE), NOW)))
        assert message == 'pod default/web has no container "nope"'

    @pytest.mark.parametrize(
        ("instances", "changes", "state"),
        [
            ((instance("old"),), {}, None),
            ((instance("old", hook=HOOK),), {"works": hooking()}, RecreateState("app", StatePhase.RECREATING)),
            ((instance("old", hook=HOOK),), {"works": hooked(HookResult(3.0))}, killed()),
            ((instance("old"),), {"works": stopping()}, killed()),
            ((instance("old"),), {"works": stopped(NOW - 9, StopAttempt(1, NOW - 8, "broken"))}, killed()),
            ((exited("old"),), {}, killed()),
            ((), {}, killed()),
            ((instance("old", state=ContainerState.CREATED),), {}, None),
            ((exited("old"), instance("new", restart_count=1)), {}, killed()),
        ],
        ids=[
            "before its stop",
            "during its hook",
            "after its hook",
            "during its stop",
            "before its stop is retried",
            "after its end",
            "when the runtime has forgotten it",
            "before it has started",
            "when the next instance runs",
        ],
    )
    def test_a_container_that_is_removed_from_the_running_pod(
        self, instances: tuple[Instance, ...], changes: dict[str, Any], state: RecreateState | None
    ) -> None:
        """The request ends with the reason, and what else it names is restarted if its failurePolicy is Ignore."""
        side = PodContainer("side", container_id="containerd://old-side", running=True, ready=True)
        left = pod(side, node_name=NODE)
        changes |= {"pod": left, "answer": ApiAnswer(left, NOW)}
        asked = request() if state is None else replace(request(), status=recreating(state))
        message = self.failed(one(asked, *instances, **changes))
        assert message == 'pod default/web has no container "app"'
        assert not stops(one(replace(asked, status=Status(RequestPhase.COMPLETED)), *instances, **changes))
        both = (RequestedContainer("app", pin("old")), RequestedContainer("side", pin("old-side")))
        asked = replace(asked, containers=both, strategy=Strategy(failure_policy=FailurePolicy.IGNORE, ordered=True))
        decision = one(asked, *instances, instance("old-side", "side"), **changes)
        assert stops(decision) == ["old-side"]
        assert written(decision).states[0].reason is Reason.CONTAINER_NOT_FOUND

    @pytest.mark.parametrize("app", [PodContainer("app", container_id="containerd://new"), PodContainer("app")])
    def test_a_container_that_comes_back_under_its_name(self, app: PodContainer) -> None:
        """Kubelet may count its restarts from 0 again. It is another instance, which is never stopped."""
        app = replace(app, image="other", running=True, ready=bool(app.container_id))
        decision = one(request(), instance("new", created_at=2, hash="other"), pod=pod(app), first_seen={"r1": 90.0})
        assert not stops(decision)
        assert written(decision).states[0].phase is (StatePhase.SUCCEEDED if app.ready else StatePhase.RECREATING)

    def test_a_container_that_no_watch_has_reported_yet(self) -> None:
        """It was added, and the request names it. The watch of the pod is behind that of the requests."""
        asked, was, lost = request("new"), pod(node_name=NODE), pod(uid="another")
        now = replace(was, containers={**was.containers, "new": PodContainer("new")})
        for answer in (None, ApiAnswer(now, NOW), ApiAnswer(was, NOW - 5)):
            decision = one(asked, instance("old", "new"), pod=was, answer=answer, first_seen={"r1": NOW - 1})
            assert decision.ask_api
            assert not stops(decision)
            assert written(decision) == recreating(RecreateState("new"))
        for found, reason in ((was, Reason.CONTAINER_NOT_FOUND), (lost, Reason.POD_REPLACED), (None, Reason.POD_GONE)):
            decision = one(asked, instance("old", "new"), pod=was, answer=ApiAnswer(found, NOW))
            assert written(decision).states[0].reason is reason

    def test_a_container_that_is_added_to_the_running_pod(self) -> None:
        both = pod(*pod().containers.values(), PodContainer("new", container_id="containerd://new", running=True))
        assert stops(one(request(), instance("old"), instance("new", "new"), pod=both)) == ["old"]
        asked = request("new", uid="r2")
        assert stops(decided([asked], observed(instance("old", "new"), pod=both), NOW)) == ["old"]

    @pytest.mark.parametrize("kind", [ContainerKind.INIT, ContainerKind.EPHEMERAL])
    def test_not_restartable_kinds(self, kind: ContainerKind) -> None:
        message = self.failed(one(request(), instance("old"), pod=pod(PodContainer("app", kind=kind))))
        assert message == f"this is an {kind}; only containers and native sidecars can be recreated"

    def test_native_sidecars_are_recreated(self) -> None:
        view = pod(PodContainer("app", kind=ContainerKind.SIDECAR))
        assert stops(one(request(), instance("old"), pod=view)) == ["old"]

    def test_container_of_another_pod(self) -> None:
        other = instance("old", pod_name="db", pod_uid="uid-of-db")
        message = self.failed(one(request(), instance("own"), foreign={"old": other}))
        assert message == "container ID containerd://old belongs to pod default/db with UID uid-of-db"

    def test_another_container_of_the_pod(self) -> None:
        message = self.failed(one(request(), instance("own"), instance("old", "side")))
        assert message == 'container ID containerd://old belongs to container "side", not to container "app"'

    def test_labels_in_the_runtime_that_are_not_the_requests(self) -> None:
        odd = instance("old", pod_namespace="kube-system")
        assert "belongs to pod kube-system/web" in self.failed(one(request(), odd))

    def test_odd_labels_on_an_instance_that_nobody_named(self) -> None:
        odd = instance("new", created_at=2, pod_namespace="kube-system")
        assert "containerd://new belongs to pod kube-system/web" in self.failed(one(request(), odd))

    def test_another_runtime(self) -> None:
        req = request(pinned={"app": replace(pin("old"), container_id="docker://old")})
        message = self.failed(one(req, instance("old")))
        assert message == "container ID docker://old belongs to runtime 'docker', but this node runs containerd"

    def test_pod_of_another_uid(self) -> None:
        other = request(pod_uid="other")
        asked = one(other, instance("old"), first_seen={"r1": NOW})
        assert asked.ask_api
        assert asked.actions == ()
        message = self.failed(one(other, instance("old"), answer=ApiAnswer(pod(), NOW)))
        assert message == "the pod was replaced: the request is for UID other, but default/web now has UID uid-of-web"

    def test_without_the_label_the_pods_own_uid_counts(self) -> None:
        req = request(pod_uid="")
        assert stops(one(req, instance("old"))) == ["old"]
        assert "belongs to pod" in self.failed(one(req, instance("old", pod_uid="earlier web")))

    def test_a_static_pod_goes_by_its_uid_on_the_node(self) -> None:
        mirror = pod(static_uid="0f1e")
        assert stops(one(request(), instance("old", pod_uid="0f1e"), pod=mirror)) == ["old"]
        assert "belongs to pod" in self.failed(one(request(), instance("old"), pod=mirror))

    def test_events_carry_the_requests_pod_and_no_other(self) -> None:
        mirror = pod(static_uid="0f1e")
        assert only(one(request(pod_uid=""), instance("old", pod_uid="0f1e"), pod=mirror), EmitEvent).pod == mirror
        other = one(request(pod_uid="other"), instance("old"), answer=ApiAnswer(pod(), NOW))
        assert only(other, EmitEvent).pod is None

    def test_one_that_has_fallen_behind_another_says_no_old_news(self) -> None:
        first = request(status=recreating(killed()))
        away = Message.of(Reason.RUNTIME_UNAVAILABLE, error="away")
        waited = RecreateState("app", message="not started yet", reason=Reason.NOT_STARTED)
        second = request(uid="r2", status=Status(RequestPhase.PENDING, (waited,), away.text, reason=away.reason))
        decision = decided([first, second], observed(instance("old"), works=stopping(since=99.0)), NOW)
        assert written(decision) == Status(RequestPhase.PENDING, (RecreateState("app"),))

    def test_the_hook_of_one_that_came_back_behind_another_is_told(self) -> None:
        first = request(status=recreating(killed()))
        second = request(uid="r2", status=Status(RequestPhase.PENDING, (RecreateState("app"),)))
        works = {
            **stopping(since=99.0),
            ("r2", "old"): Work("app", pin("old"), hook_began=95.0, hook_until=125.0, hook_result=HookResult(4.0)),
        }
        decision = decided([first, second], observed(instance("old"), works=works), NOW)
        assert only(decision, WriteStatus).request.uid == "r2"
        assert written(decision) == recreating(killed())
        assert only(decision, PinContainers).start_times == {"app": StartTimes(hook="2026-01-01T00:00:55Z")}

    def test_and_one_that_was_begun_before_it_too(self) -> None:
        waited = RecreateState("app", message="a stop is under way", reason=Reason.OTHER_WORK)
        away = Message.of(Reason.RUNTIME_UNAVAILABLE, error="away")
        behind = Status(RequestPhase.RECREATING, (waited,), away.text, reason=away.reason)
        second = request(uid="r2", status=behind)
        first = request(status=recreating(killed()))
        decision = decided([second, first], observed(instance("old"), works=stopping(since=99.0)), NOW)
        assert written(decision) == recreating(RecreateState("app"))

    def test_one_that_has_fallen_behind_goes_on_saying_that_its_hook_has_failed(self) -> None:
        first = request(status=recreating(killed()))
        failed = replace(killed(message="preStop hook failed: no"), reason=Reason.HOOK_FAILED)
        second = request(uid="r2", status=recreating(failed))
        assert not actions(
            decided([first, second], observed(instance("old"), works=stopping(since=99.0)), NOW), WriteStatus
        )

    def test_one_that_was_begun_is_first_before_its_status_says_so(self) -> None:
        active, older = request(uid="r2"), request(uid="r1")
        work = Work("app", pin("old"), WorkKind.STOP, stop_sent=NOW - 2)
        observation = observed(instance("old"), works={("r2", "old"): work})
        known = [observation.known(each, NOW) for each in (older, active)]
        assert [each.request for each in in_serving_order(known)] == [active, older]
        decision = decided([older, active], observation, NOW)
        assert {action.request.name: action.status.phase for action in actions(decision, WriteStatus)} == {
            "r2": RequestPhase.RECREATING,
            "r1": RequestPhase.PENDING,
        }
        assert not stops(decision)

    def test_a_malformed_request_fails_whoevers_turn_it_is(self) -> None:
        bad = request(uid="bad", created="2099-01-02T00:00:00Z", error="spec.podName must be a string")
        decision = decided([request(), bad], observed(instance("old")), NOW)
        status = next(action.status for action in actions(decision, WriteStatus) if action.request is bad)
        assert status.phase is RequestPhase.COMPLETED
        assert status.message == "spec.podName must be a string"
        assert status.states == (RecreateState("app", StatePhase.FAILED, "spec.podName must be a string"),)
        assert only(decision, StopContainer).request.uid == "r1"


class TestAlreadyRecreated:
    """Steps 4 and 5."""

    def test_another_id_is_awaited(self) -> None:
        decision = one(request(), instance("new", created_at=2))
        assert not stops(decision)
        assert written(decision).states == (RecreateState("app", StatePhase.RECREATING),)

    def test_a_higher_restart_count_is_awaited(self) -> None:
        assert not stops(one(request(), instance("old", restart_count=1)))

    def test_a_collected_id_is_no_mistake(self) -> None:
        decision = one(request(), instance("new", created_at=2), foreign={"old": None})
        assert written(decision).states[0].phase is StatePhase.RECREATING

    def test_an_id_that_nobody_has_looked_up_decides_nothing(self) -> None:
        decision = one(request(), instance("new", created_at=2), foreign={})
        assert written(decision).states == (RecreateState("app"),)
        assert decision.wake_at == NOW

    def test_force_pins_what_runs_now_before_it_stops(self) -> None:
        req = request(strategy=Strategy(force=True))
        first = one(req, instance("new", created_at=2, restart_count=3))
        assert only(first, PinContainers).pins == {"app": pin("new", 3)}
        assert not stops(first)
        assert not actions(first, WriteStatus)
        second = one(replace(req, pinned={"app": pin("new", 3)}), instance("new", created_at=2, restart_count=3))
        assert stops(second) == ["new"]

    def test_force_does_not_stop_the_successor(self) -> None:
        req = request(strategy=Strategy(force=True), pinned={"app": pin("new", 3)})
        decision = one(req, instance("newer", created_at=3, restart_count=4), foreign={"new": None, "old": None})
        assert written(decision).states[0].phase is StatePhase.RECREATING
        assert not stops(decision)

    def test_without_status_context_all_are_pinned_at_once(self) -> None:
        req = request("app", "side", pinned={})
        req = replace(req, containers=tuple(replace(container, context=None) for container in req.containers))
        view = pod(PodContainer("app"), PodContainer("side"))
        decision = one(req, instance("a"), instance("s", "side"), pod=view)
        assert only(decision, PinContainers).pins == {"app": pin("a"), "side": pin("s")}

    def test_what_would_fail_anyway_is_not_pinned(self) -> None:
        req = replace(request(), containers=tuple(replace(c, context=None) for c in request().containers))
        view = pod(PodContainer("app", restart_policy=RestartPolicy.NEVER))
        decision = one(req, instance("a"), pod=view)
        assert not actions(decision, PinContainers)
        assert written(decision).states[0].phase is StatePhase.FAILED

    def test_one_that_has_exited_is_pinned_whatever_its_exit_code(self) -> None:
        req = replace(request(), containers=tuple(replace(c, context=None) for c in request().containers))
        view = pod(ended("a", RestartPolicy.ON_FAILURE))
        pinned = one(req, exited("a"), pod=view)
        assert only(pinned, PinContainers).pins == {"app": pin("a")}
        left = one(replace(req, pinned={"app": pin("a")}), exited("a"), pod=view)
        assert written(left).states[0].reason is Reason.LEFT_DOWN

    def test_a_container_that_was_never_created_is_waited_for(self) -> None:
        req = replace(request(), containers=tuple(replace(c, context=None) for c in request().containers))
        quiet = one(req, first_seen={"r1": NOW})
        assert quiet.wake_at == NOW + 1
        assert written(quiet).states[0].message == ""
        told = one(req, first_seen={"r1": NOW - 1})
        assert written(told).states == (RecreateState("app", message="the container has not been created yet"),)
        assert told.poll_runtime

    def test_everything_collected_is_awaited(self) -> None:
        decision = one(request(), foreign={"old": None})
        assert written(decision).states[0].phase is StatePhase.RECREATING


class TestRestartPolicy:
    """Step 6."""

    def test_never_is_not_stopped(self) -> None:
        view = pod(PodContainer("app", restart_policy=RestartPolicy.NEVER))
        decision = one(request(), instance("old"), pod=view)
        assert not stops(decision)
        message = written(decision).states[0].message
        assert message == "restartPolicy is Never, so kubelet would not start the container again"

    def test_never_leaves_one_down_that_has_ended_by_itself(self) -> None:
        view = pod(PodContainer("app", restart_policy=RestartPolicy.NEVER))
        assert written(one(request(), instance("old"), pod=view)).states[0].reason is Reason.NOT_RESTARTABLE
        view = pod(ended("old", RestartPolicy.NEVER))
        assert written(one(request(), exited("old"), pod=view)).states[0].reason is Reason.LEFT_DOWN

    def test_on_failure_is_stopped_and_fails_when_it_exits_0(self) -> None:
        view = pod(PodContainer("app", restart_policy=RestartPolicy.ON_FAILURE))
        assert stops(one(request(), instance("old"), pod=view)) == ["old"]
        req = request(status=recreating(killed()))
        view = pod(ended("old", RestartPolicy.ON_FAILURE))
        failed = written(one(req, exited("old"), pod=view))
        assert failed.states[0].message.startswith("the container exited with code 0 and restartPolicy is OnFailure")
        view = pod(ended("old", RestartPolicy.ON_FAILURE, exit_code=143))
        assert one(req, exited("old"), pod=view).actions == ()

    @pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
    @pytest.mark.parametrize(
        "view",
        [
            PodContainer("app", container_id="containerd://old", running=True, ready=True),
            PodContainer("app", container_id="containerd://before", terminated=True),
            PodContainer("app", container_id="containerd://old", waiting_reason="ContainerCreating"),
        ],
    )
    def test_what_kubelet_itself_replaces_is_awaited(self, policy: RestartPolicy, view: PodContainer) -> None:
        """A new image, a failed probe: kubelet starts the next one whatever the exit code, and shows no end before."""
        req = request(status=recreating(killed()))
        assert not one(req, exited("old"), pod=pod(replace(view, restart_policy=policy))).actions

    @pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
    def test_what_a_rule_restarts_is_awaited(self, policy: RestartPolicy) -> None:
        rules = ({"action": "Restart", "exitCodes": {"operator": "In", "values": [0, 7]}},)
        view = pod(replace(ended("old", policy), restart_rules=rules))
        req = request(status=recreating(killed()))
        assert not one(req, exited("old"), pod=view).actions
        without = pod(ended("old", policy))
        assert written(one(req, exited("old"), pod=without)).states[0].reason is Reason.LEFT_DOWN

    def test_a_rule_that_this_kubelet_does_not_know_restarts_nothing(self) -> None:
        rules = ({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}},)
        view = pod(replace(ended("old", RestartPolicy.NEVER), exit_code=137, restart_rules=rules))
        left = one(request(status=recreating(killed())), exited("old"), pod=view, kubelet_minor=35)
        assert written(left).states[0].reason is Reason.LEFT_DOWN
        assert Reason.NOT_RESTARTABLE.say() in written(left).states[0].message

    def test_a_hook_that_begins_as_another_container_fails_has_its_stop(self) -> None:
        view = pod(PodContainer("a"), PodContainer("b", restart_policy=RestartPolicy.NEVER))
        both = (instance("old-a", "a", hook=HOOK), instance("old-b", "b"))
        active = one(request("a", "b"), *both, pod=view, first_seen={"r1": NOW - 5})
        assert only(active, RunHook).instance.id == "old-a"
        assert [state.phase for state in written(active).states] == [StatePhase.RECREATING, StatePhase.FAILED]

    def test_before_its_stop_a_rule_promises_nothing(self) -> None:
        rules = ({"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0]}},)
        view = pod(PodContainer("app", restart_policy=RestartPolicy.NEVER, restart_rules=rules))
        assert written(one(request(), instance("old"), pod=view)).states[0].reason is Reason.NOT_RESTARTABLE

    @pytest.mark.parametrize("state", [ContainerState.CREATED, ContainerState.EXITED])
    def test_a_pod_that_has_ended_starts_nothing_that_was_created(self, state: ContainerState) -> None:
        next_one = instance("new", created_at=2, restart_count=1, state=state)
        decision = one(request(status=recreating(killed())), exited("old"), next_one, pod=pod(phase="Failed"))
        assert written(decision).states[0].reason is Reason.POD_ENDED

    def test_a_pod_that_has_ended(self) -> None:
        for known in (instance("old"), exited("old")):
            decision = one(request(), known, pod=pod(phase="Failed"))
            assert not stops(decision)
            assert "the pod has ended (phase Failed)" in written(decision).states[0].message

    def test_a_pod_that_is_being_deleted(self) -> None:
        decision = one(request(), instance("old"), pod=pod(deleting=True))
        assert not stops(decision)
        assert written(decision).message == "the pod is being deleted"

    def test_a_pod_not_seen_yet_is_waited_for(self) -> None:
        quiet = one(request(), instance("old"), pod=None, first_seen={"r1": NOW})
        assert quiet.actions == ()
        assert quiet.wake_at == NOW + 1
        told = one(request(), instance("old"), pod=None, first_seen={"r1": NOW - 2}, known_since=NOW - 1)
        assert written(told).message == "waiting for pod default/web to appear on node node-a"
        assert written(told).phase is RequestPhase.PENDING
        assert told.wake_at == NOW + 59
        unlisted = one(request(), pod=None, first_seen={"r1": NOW - 999}, known_since=None)
        assert written(unlisted).phase is RequestPhase.PENDING
        resumed = one(request(status=recreating()), pod=None, first_seen={"r1": NOW - 2})
        assert written(resumed).phase is RequestPhase.RECREATING

    @pytest.mark.parametrize(
        "hint",
        [
            {"gone": True, "first_seen": {"r1": NOW - 2}},
            {"first_seen": {"r1": NOW - 60}, "known_since": 0.0},
        ],
    )
    def test_a_pod_that_has_gone(self, hint: dict[str, Any]) -> None:
        asked = one(request(), pod=None, **hint)
        assert asked.ask_api
        assert written(asked).phase is RequestPhase.PENDING
        assert written(asked).reason is Reason.WAITING_FOR_POD
        decision = one(request(), pod=None, answer=ApiAnswer(None, NOW), **hint)
        assert not decision.ask_api
        assert asked.wake_at is decision.wake_at is None
        assert written(decision).message == "the pod no longer exists"
        assert written(decision).reason is Reason.POD_GONE
        assert written(decision).states[0].phase is StatePhase.FAILED
        assert reasons(decision) == [EventReason.FAILED]

    def test_a_watch_that_is_behind_ends_nothing(self) -> None:
        answer = ApiAnswer(pod(node_name="node-a"), NOW)
        decision = one(request(), pod=None, gone=True, answer=answer, first_seen={"r1": 0.0})
        assert written(decision).phase is RequestPhase.PENDING
        assert not decision.ask_api

    def test_while_the_pod_is_asked_for_the_end_of_a_hook_is_told(self) -> None:
        works = hooked(HookResult(2.0))
        decision = one(request(), pod=None, gone=True, works=works, first_seen={"r1": NOW - 20})
        assert written(decision).states[0].is_killed
        assert only(decision, PinContainers)

    def test_never_is_left_down_whoever_has_collected_it(self) -> None:
        view = pod(PodContainer("app", restart_policy=RestartPolicy.NEVER))
        decision = one(request(), pod=view, foreign={"old": None})
        assert written(decision).states[0].reason is Reason.LEFT_DOWN

    def test_the_exit_code_of_one_that_was_collected_decides_nothing(self) -> None:
        view = pod(ended("old", RestartPolicy.ON_FAILURE))
        decision = one(request(status=recreating(killed())), pod=view)
        assert (decision.actions, decision.poll_runtime) == ((), True)

    def test_an_answer_from_before_the_request_ends_nothing(self) -> None:
        before = ApiAnswer(None, NOW - 5)
        decision = one(request(), pod=pod(uid="earlier"), answer=before, first_seen={"r1": NOW - 4.9})
        assert decision.ask_api
        assert written(decision).reason is Reason.WAITING_FOR_POD
        assert written(one(request(), pod=None, gone=True, answer=before, first_seen={"r1": NOW - 5})).message

    def test_a_container_that_is_not_there_is_not_to_be_pinned(self) -> None:
        req = request(strategy=Strategy(force=True))
        decision = one(req, pin_errors={"r1": "refused"}, first_seen={"r1": 0.0})
        assert written(decision).states[0].reason is Reason.NOT_CREATED

    def test_a_pin_that_is_refused_holds_up_nothing_about_the_others(self) -> None:
        req = request(
            *("a", "b"),
            strategy=Strategy(force=True),
            pinned={"a": pin("old-a")},
            status=recreating(RecreateState("a", StatePhase.RECREATING), RecreateState("b")),
        )
        changes: dict[str, Any] = {"pin_errors": {"r1": "too long"}, "first_seen": {"r1": 0.0}}
        view = pod(
            PodContainer("a", container_id="containerd://new", running=True, ready=True),
            PodContainer("b", container_id="containerd://old-b", running=True, ready=True),
        )
        b = instance("old-b", "b")
        ran = Work("a", pin("old-a"), hook_began=90.0, hook_until=120.0, hook_result=HookResult(2.0))
        hook = one(req, instance("old-a", "a", hook=HOOK), b, pod=view, works={("r1", "old-a"): ran}, **changes)
        assert written(hook).states[0].is_killed
        done = one(req, instance("new", "a", created_at=2, restart_count=1), b, pod=view, **changes)
        assert [state.phase for state in written(done).states] == [StatePhase.SUCCEEDED, StatePhase.PENDING]
        assert written(done).states[1].reason is Reason.NOT_PINNED

    @pytest.mark.parametrize(("node", "where"), [("node-b", "node node-b"), ("", "no node (not scheduled yet)")])
    def test_a_pod_on_another_node(self, node: str, where: str) -> None:
        decision = one(request(), pod=None, gone=True, answer=ApiAnswer(pod(node_name=node), NOW))
        assert written(decision).message == f"pod default/web is on {where}, not on node node-a"

    def test_a_request_without_the_label_takes_the_pod_that_is_there(self) -> None:
        req = request(pod_uid="")
        asked = one(req, pod=None, gone=True, answer=ApiAnswer(pod(uid="other", node_name="node-a"), NOW))
        assert not actions(asked, EmitEvent)

    def test_a_pod_that_has_ended_with_its_containers_collected(self) -> None:
        decision = one(request(status=recreating(killed())), foreign={"old": None}, pod=pod(phase="Failed"))
        assert written(decision).states[0].reason is Reason.POD_ENDED
        nobody = replace(request(), containers=tuple(replace(c, context=None) for c in request().containers))
        assert written(one(nobody, pod=pod(phase="Succeeded"))).states[0].reason is Reason.POD_ENDED
        view = pod(PodContainer("app", restart_policy=RestartPolicy.ON_FAILURE), phase="Succeeded")
        assert written(one(nobody, exited("a"), pod=view)).states[0].reason is Reason.POD_ENDED

    def test_exit_code_0_under_always_comes_back(self) -> None:
        decision = one(request(status=recreating(killed())), exited("old"))
        assert decision.actions == ()
        assert decision.poll_runtime


class TestRuntimeDown:
    """Step 12."""

    def test_is_told_when_it_takes_a_while(self) -> None:
        quiet = one(request(), runtime_error="connection refused", first_seen={"r1": NOW})
        assert quiet.actions == ()
        assert quiet.wake_at == NOW + 1
        told = one(request(), runtime_error="connection refused", first_seen={"r1": NOW - 1})
        assert written(told).phase is RequestPhase.PENDING
        assert written(told).message == "waiting for the container runtime: connection refused"
        assert written(told).reason is Reason.RUNTIME_UNAVAILABLE
        going = request(status=recreating(killed()))
        assert written(one(going, runtime_error="x", first_seen={"r1": 0.0})).states == (killed(),)

    def test_what_was_begun_is_persisted_all_the_same(self) -> None:
        status = Status(
            RequestPhase.RECREATING,
            (RecreateState("app", StatePhase.RECREATING),),
            "waiting for the container runtime: x",
        )
        anothers = {("r0", "s1"): Work("side", pin("s1"), stop_sent=80.0)}
        works = {**anothers, **hooking(since=90.0)}
        decision = one(request(status=status), runtime_error="x", works=works, first_seen={"r1": 0.0})
        assert only(decision, PinContainers).start_times == {"app": StartTimes(hook="2026-01-01T00:00:50Z")}
        early = one(request(status=status), runtime_error="x", works=hooking(since=NOW - 1), first_seen={"r1": 0.0})
        assert not actions(early, PinContainers)
        assert early.wake_at == NOW + 1

    @pytest.mark.parametrize("status", [Status(), recreating(RecreateState("app", StatePhase.RECREATING))])
    def test_a_hook_that_has_ended_is_told_all_the_same(self, status: Status) -> None:
        req = request(status=status)
        works = hooked(HookResult(0.3))
        decision = one(req, runtime_error="x", works=works, first_seen={"r1": 0.0})
        assert written(decision).phase is RequestPhase.RECREATING
        assert written(decision).states == (killed(),)
        told = replace(req, status=written(decision))
        assert not actions(one(told, runtime_error="x", works=works, first_seen={"r1": 0.0}), WriteStatus)
        pruned = replace(req, status=replace(written(decision), states=(replace(killed(), is_killed=False),)))
        again = one(pruned, runtime_error="x", works=works, first_seen={"r1": 0.0}, prunes_is_killed=True)
        action = only(again, PinContainers)
        assert action.start_times["app"].stop == "2026-01-01T00:01:00Z"
        done = replace(pruned, pinned=action.pins, start_times=action.start_times)
        later = one(
            done, runtime_error="x", works=works, first_seen={"r1": 0.0}, prunes_is_killed=True, wall=1767225690.0
        )
        assert later.actions == ()

    def test_a_stop_is_told_all_the_same(self) -> None:
        """Who reads "Pending" would take the container for one that has not been touched."""
        works = stopped(95.0, StopAttempt(1, ended=96.0))
        decision = one(request(status=Status()), runtime_error="x", works=works, first_seen={"r1": 0.0})
        assert written(decision).phase is RequestPhase.RECREATING
        assert written(decision).states == (killed(),)
        assert not actions(decision, PinContainers), "a later daemon sees that it has ended"
        ended = Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.SUCCEEDED),))
        decision = one(request(status=ended), runtime_error="x", works=works, first_seen={"r1": 0.0})
        assert written(decision).states == ended.states

    def test_a_hook_that_has_ended_makes_the_request_recreating_whatever_waits_beside_it(self) -> None:
        works = hooked(HookResult(0.3), "old-app")
        decision = one(request("app", "side"), runtime_error="x", works=works, first_seen={"r1": 0.0})
        assert written(decision).phase is RequestPhase.RECREATING
        assert written(decision).states == (killed(), RecreateState("side"))

    @pytest.mark.parametrize(
        ("work", "unrecorded"),
        [
            (Work("app", pin("old"), WorkKind.HOOK), True),
            (hooking()["r1", "old"], True),
            (hooked(HookResult(1.0))["r1", "old"], True),
            (stopping()["r1", "old"], False),
        ],
        ids=["a hook that waits to begin", "a hook", "a hook that has ended", "a stop without a hook"],
    )
    def test_only_the_end_of_a_hook_cannot_wait_for_the_runtime(self, work: Work, *, unrecorded: bool) -> None:
        assert work.hook_unrecorded(request()) is unrecorded

    @pytest.mark.parametrize(
        ("work", "unrecorded"),
        [
            (stopping(since=NOW - HASTE_SECONDS + 0.1), True),
            (stopping(since=NOW - HASTE_SECONDS), False),
            (stopped(NOW - 1, StopAttempt(1, NOW, "broken")), True),
            (stopped(NOW - 1, StopAttempt(1, NOW)), False),
            (hooking(), False),
        ],
        ids=["a stop", "a stop of long ago", "one that has failed", "one that has succeeded", "a hook"],
    )
    def test_looks_are_short_after_a_stop_that_is_not_recorded(
        self, work: dict[tuple[str, str], Work], *, unrecorded: bool
    ) -> None:
        begun = work["r1", "old"]
        assert begun.stop_unrecorded(request(), NOW) is unrecorded
        recorded = request(pinned={"app": pin("old")}, start_times={"app": START_TIMES})
        assert not begun.stop_unrecorded(recorded, NOW)

    def test_what_is_over_is_left_as_it_is(self) -> None:
        failed = recreating(RecreateState("app", StatePhase.FAILED))
        decision = one(request(status=failed), runtime_error="x", works=hooked(HookResult(0.3)), first_seen={"r1": 0.0})
        assert written(decision).states == failed.states

    def test_does_not_keep_a_request_whose_pod_has_gone(self) -> None:
        decision = one(request(), runtime_error="x", pod=None, gone=True, answer=ApiAnswer(None, NOW))
        assert written(decision).phase is RequestPhase.COMPLETED


class TestUnreadyGrace:
    """Step 7."""

    STRATEGY = Strategy(unready_grace_seconds=20)

    def test_waits_for_the_mark(self) -> None:
        decision = one(request(strategy=self.STRATEGY), instance("old"), pod=pod(readiness_gate=True))
        assert not stops(decision)
        assert written(decision).phase is RequestPhase.RECREATING
        assert written(decision).message == "waiting for the manager to make the pod unready"

    def test_waits_for_the_grace_period_since_the_mark_was_seen(self) -> None:
        req = request(strategy=self.STRATEGY, unready_acquired=True)
        early = one(req, instance("old"), pod=pod(readiness_gate=True), unready_seen={"r1": 95.0})
        assert not stops(early)
        assert early.wake_at == 115.0
        late = one(req, instance("old"), pod=pod(readiness_gate=True), unready_seen={"r1": 95.0}, now=115.0)
        assert stops(late) == ["old"]

    def test_a_pod_without_the_gate_is_not_waited_for(self) -> None:
        decision = one(request(strategy=self.STRATEGY), instance("old"))
        assert stops(decision) == ["old"]
        assert "no readiness gate KruisePodReady" in written(decision).message
        assert reasons(decision) == [EventReason.RECREATING, EventReason.NO_READINESS_GATE]

    def test_is_behind_a_request_that_has_stopped_something(self) -> None:
        req = request("app", "side", strategy=self.STRATEGY, status=recreating(killed()))
        view = pod(PodContainer("app"), PodContainer("side"), readiness_gate=True)
        assert stops(one(req, exited("old-app"), instance("old-side", "side"), pod=view)) == ["old-side"]

    def test_the_missing_gate_is_told_at_the_end_too(self) -> None:
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        req = request(strategy=self.STRATEGY, status=recreating(killed()))
        decision = one(req, instance("new", created_at=2), pod=view)
        assert written(decision).message.startswith("1 of 1 containers recreated; the pod has no readiness gate")


class TestOrder:
    """Step 8."""

    VIEW = pod(PodContainer("a"), PodContainer("b"))

    def two(self, **strategy: Any) -> Request:
        return request("a", "b", strategy=Strategy(**strategy))

    def test_the_second_waits_for_the_first_stop_to_end(self) -> None:
        both = (instance("old-a", "a"), instance("old-b", "b"))
        assert stops(one(self.two(), *both, pod=self.VIEW)) == ["old-a"]
        going = one(self.two(), *both, pod=self.VIEW, works=stopping("old-a", "a"))
        assert stops(going) == []
        ended = one(self.two(), exited("old-a", "a"), both[1], pod=self.VIEW)
        assert stops(ended) == ["old-b"]

    @pytest.mark.parametrize(
        ("first", "changes"),
        [
            (instance("new-a", "a", created_at=2), {"foreign": {}}),
            (
                instance("old-a", "a"),
                {"pod": pod(PodContainer("a", container_id="containerd://new-a"), PodContainer("b")), "pod_at": 101.0},
            ),
            (instance("old-a", "a", state=ContainerState.CREATED), {"first_seen": {"r1": NOW}}),
            (instance("old-a", "a", state=ContainerState.CREATED), {"first_seen": {"r1": 0.0}}),
            (instance("old-a", "a"), {"works": stopped(90.0, StopAttempt(2, 99.5, "broken"), "old-a", name="a")}),
            (instance("old-a", "a", hook=HOOK), {}),
            (instance("old-a", "a", hook=HOOK), {"works": hooked(HookResult(1.0), "old-a")}),
            (instance("old-a", "a"), {"works": {("gone", "old-b"): RETRIED["gone", "old"]}, "draining": True}),
        ],
        ids=[
            "nobody has looked its ID up",
            "the list is behind",
            "created, since a moment ago",
            "created",
            "its stop has erred",
            "its hook begins",
            "that its hook has ended is not written",
            "the daemon is going down",
        ],
    )
    @pytest.mark.parametrize("policy", FailurePolicy)
    def test_whatever_holds_the_first_holds_the_second(
        self, first: Instance, changes: dict[str, Any], policy: FailurePolicy
    ) -> None:
        decision = one(
            self.two(failure_policy=policy), first, instance("old-b", "b", hook=HOOK), **{"pod": self.VIEW, **changes}
        )
        assert not stops(decision)
        assert "b" not in [action.instance.name for action in actions(decision, RunHook)]
        assert all(write.status.states[1] == RecreateState("b") for write in actions(decision, WriteStatus))

    def test_ordered_waits_for_the_first_to_succeed(self) -> None:
        req = self.two(ordered=True)
        ended = one(req, exited("old-a", "a"), instance("old-b", "b"), pod=self.VIEW)
        assert stops(ended) == []
        done = replace(req, status=recreating(RecreateState("a", StatePhase.SUCCEEDED, is_killed=True)))
        decision = one(done, instance("new-a", "a"), instance("old-b", "b"), pod=self.VIEW)
        assert stops(decision) == ["old-b"]
        assert decision.wake_at == NOW + 2, "then the beginning of the stop is to be persisted"

    def test_ordered_goes_on_after_a_failure_under_ignore(self) -> None:
        req = self.two(ordered=True, failure_policy=FailurePolicy.IGNORE)
        view = pod(PodContainer("a", restart_policy=RestartPolicy.NEVER), PodContainer("b"))
        assert stops(one(req, instance("old-a", "a"), instance("old-b", "b"), pod=view)) == ["old-b"]

    @pytest.mark.parametrize(
        ("known", "changes", "sent"),
        [
            pytest.param({}, {"works": hooking("old-b", "b")}, [], id="its hook runs"),
            pytest.param({"status": "killed"}, {"works": HOOKED_B}, ["old-b"], id="its hook has ended"),
            pytest.param({"status": "killed"}, {}, ["old-b"], id="an earlier life has said so"),
            pytest.param(
                {"start_times": {"b": START_TIMES}}, {"prunes_is_killed": True}, ["old-b"], id="in the annotation"
            ),
        ],
    )
    def test_before_it_ends_what_was_begun_is_stopped(
        self, known: dict[str, Any], changes: dict[str, Any], sent: list[str]
    ) -> None:
        b = killed("b") if known.pop("status", "") else RecreateState("b", StatePhase.RECREATING)
        failed = RecreateState("a", StatePhase.FAILED, "why", reason=Reason.LEFT_DOWN)
        req = request(
            "a", "b", "c", status=recreating(failed, b, RecreateState("c")), pinned={"b": pin("old-b")}, **known
        )
        running = (instance("old-b", "b", hook=HOOK), instance("old-c", "c"))
        view = pod(PodContainer("a"), PodContainer("b"), PodContainer("c"))
        decision = one(req, *running, pod=view, **changes)
        assert stops(decision) == sent
        assert written(decision).phase is RequestPhase.RECREATING
        phases = [state.phase for state in written(decision).states]
        assert phases == [StatePhase.FAILED, StatePhase.RECREATING, StatePhase.FAILED]

    def test_what_gets_ready_only_then_was_not_awaited(self) -> None:
        failed = RecreateState("a", StatePhase.FAILED, "why", reason=Reason.LEFT_DOWN)
        req = request("a", "b", "c", status=recreating(failed, killed("b"), killed("c")))
        ready = PodContainer("c", container_id="containerd://new-c", running=True, ready=True)
        c = instance("new-c", "c", created_at=2, restart_count=1)
        decision = one(req, instance("old-b", "b"), c, pod=pod(PodContainer("a"), PodContainer("b"), ready))
        assert stops(decision) == ["old-b"]
        assert written(decision).states[2].message == 'stopped waiting: container "a" failed and failurePolicy is Fail'

    @pytest.mark.parametrize(
        ("b", "works"),
        [
            pytest.param(instance("old-b", "b"), stopping("old-b", "b"), id="its stop was sent"),
            pytest.param(instance("new-b", "b", created_at=2, restart_count=1), {}, id="the next one runs"),
            pytest.param(exited("old-b", "b"), {}, id="it has ended"),
            pytest.param(None, {}, id="it was collected"),
        ],
    )
    def test_what_was_stopped_is_not_awaited(self, b: Instance | None, works: dict[tuple[str, str], Work]) -> None:
        failed = RecreateState("a", StatePhase.FAILED, "why", reason=Reason.LEFT_DOWN)
        req = request("a", "b", status=recreating(failed, killed("b")))
        view = pod(PodContainer("a"), PodContainer("b"))
        known = [] if b is None else [b]
        decision = one(req, *known, pod=view, works=works, foreign={"old-a": None, "old-b": None})
        assert not stops(decision)
        assert written(decision).phase is RequestPhase.COMPLETED
        assert written(decision).states[1].message == 'stopped waiting: container "a" failed and failurePolicy is Fail'

    def test_a_failure_ends_the_request_under_fail(self) -> None:
        view = pod(PodContainer("a"), PodContainer("b", restart_policy=RestartPolicy.NEVER), PodContainer("c"))
        req = request("a", "b", "c")
        decision = one(req, exited("old-a", "a"), instance("old-b", "b"), instance("old-c", "c"), pod=view)
        assert not stops(decision)
        status = written(decision)
        assert status.phase is RequestPhase.COMPLETED
        assert [state.phase for state in status.states] == [StatePhase.FAILED] * 3
        assert status.states[0].message == 'stopped waiting: container "b" failed and failurePolicy is Fail'
        assert status.states[2].message == 'skipped: container "b" failed and failurePolicy is Fail'
        assert status.message == "0 of 3 containers recreated; failed: a, b, c"


class TestStop:
    """Step 9."""

    def test_the_requests_grace_wins_then_the_pods_then_30(self) -> None:
        strategy = Strategy(grace_seconds=5)
        assert only(one(request(strategy=strategy), instance("old")), StopContainer).seconds == 5
        assert only(one(request(), instance("old", grace_seconds=7)), StopContainer).seconds == 7
        assert only(one(request(), instance("old", grace_seconds=None)), StopContainer).seconds == 30
        assert only(one(request(), instance("old", grace_seconds=0)), StopContainer).seconds == 2

    def test_the_hook_comes_first(self) -> None:
        decision = one(request(), instance("old", hook=HOOK, grace_seconds=12), first_seen={"r1": NOW})
        assert only(decision, RunHook).seconds == 12
        assert not stops(decision)
        assert not actions(decision, WriteStatus)
        assert decision.wake_at == NOW + 1

    def test_a_hook_that_takes_a_while_is_told(self) -> None:
        decision = one(request(), instance("old", hook=HOOK), first_seen={"r1": NOW - 1}, works=hooking())
        assert written(decision) == recreating(RecreateState("app", StatePhase.RECREATING))
        begins = one(request(), instance("old", hook=HOOK), first_seen={"r1": NOW - 5})
        assert begins.wake_at == NOW + 2  # from then on its beginning is to be persisted

    def test_a_hook_that_goes_on_for_less_than_a_second_is_not_told(self) -> None:
        decision = one(request(), instance("old", hook=HOOK), first_seen={"r1": NOW - 0.5}, works=hooking())
        assert decision.actions == ()
        assert decision.wake_at == NOW + 0.5
        both, view = (
            (instance("old-a", "a", hook=HOOK), instance("old-b", "b")),
            pod(PodContainer("a"), PodContainer("b")),
        )
        works = hooking("old-a", "a")
        beside = one(request("a", "b"), *both, pod=view, first_seen={"r1": NOW - 0.5}, works=works)
        assert (beside.actions, beside.wake_at) == ((), NOW + 0.5)

    def test_what_else_has_happened_is_told_at_once(self) -> None:
        view = pod(
            PodContainer("a", container_id="containerd://new", running=True, ready=True),
            PodContainer("b"),
        )
        instances = (instance("new", "a", created_at=2), instance("old-b", "b", hook=HOOK))
        decision = one(request("a", "b"), *instances, pod=view, first_seen={"r1": NOW})
        assert actions(decision, RunHook)
        assert written(decision).states[0].phase is StatePhase.SUCCEEDED
        assert written(decision).phase is RequestPhase.RECREATING

    def test_what_another_container_waits_for_is_told_at_once(self) -> None:
        view = pod(PodContainer("a", waiting_reason="ErrImagePull"), PodContainer("b"))
        instances = (exited("old-a", "a"), instance("old-b", "b", hook=HOOK))
        decision = one(request("a", "b"), *instances, pod=view, first_seen={"r1": NOW})
        assert actions(decision, RunHook)
        assert written(decision).states[0].message == "ErrImagePull"

    def test_a_hook_over_http_waits_for_the_pods_ip(self) -> None:
        asks = instance("old", hook=Hook(HookKind.HTTP_GET, port=80))
        waits = one(request(), asks, pod=pod(pod_ip=""), first_seen={"r1": NOW - 2})
        assert not actions(waits, RunHook)
        assert written(waits).states[0].reason is Reason.WAITING_FOR_IP
        assert waits.wake_at == NOW + 8
        assert actions(one(request(), asks, first_seen={"r1": NOW - 2}), RunHook)
        seen_before: dict[str, Any] = {"pod": pod(pod_ip=""), "first_seen": {"r1": NOW - 10}}
        late = one(request(), asks, **seen_before)
        assert late.ask_api
        assert not actions(late, RunHook)
        assert not actions(late, EmitEvent), "nothing is stopped yet"
        asked = one(request(), asks, answer=ApiAnswer(pod(node_name=NODE, pod_ip="10.0.0.9"), NOW), **seen_before)
        assert only(asked, RunHook).pod_ip == "10.0.0.9"
        lost = one(request(), asks, answer=ApiAnswer(None, NOW), **seen_before)
        assert not actions(lost, RunHook)
        assert written(lost).states[0].reason is Reason.POD_GONE
        elsewhere = instance("old", hook=Hook(HookKind.HTTP_GET, port=80, host="hooks.example"))
        assert actions(one(request(), elsewhere, pod=pod(pod_ip="")), RunHook)

    def test_no_hook_without_grace(self) -> None:
        decision = one(request(strategy=Strategy(grace_seconds=0)), instance("old", hook=HOOK))
        assert not actions(decision, RunHook)
        assert only(decision, StopContainer).seconds == 2
        least = one(request(strategy=Strategy(grace_seconds=1)), instance("old", hook=HOOK))
        assert only(least, RunHook).seconds == 1

    def test_the_end_of_the_hook_is_written_before_the_stop(self) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        ended = hooked(HookResult(3.0))
        first = one(req, instance("old", hook=HOOK), works=ended)
        assert written(first) == recreating(killed())
        assert not stops(first)
        second = one(request(status=recreating(killed())), instance("old", hook=HOOK), works=ended)
        assert only(second, StopContainer).seconds == 27
        assert not actions(second, WriteStatus)

    def test_a_failed_hook_is_an_event_and_a_message(self) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        decision = one(req, instance("old", hook=HOOK), works=hooked(HookResult(40.0, "exit code 1: no")))
        assert written(decision) == recreating(killed(message="preStop hook failed: exit code 1: no"))
        assert reasons(decision) == [EventReason.HOOK_FAILED]
        assert only(decision, EmitEvent).warning
        later = request(status=recreating(killed(message="preStop hook failed: exit code 1: no")))
        stop = one(later, instance("old", hook=HOOK), works=hooked(HookResult(40.0, "exit code 1: no")))
        assert only(stop, StopContainer).seconds == 2
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        after_restart = request(
            status=recreating(replace(later.status.states[0], reason=Reason.HOOK_FAILED)),
        )
        assert not actions(one(after_restart, instance("old", hook=HOOK)), WriteStatus)
        done = one(after_restart, instance("new", created_at=2), pod=view)
        assert written(done).states[0].message == "preStop hook failed: exit code 1: no"
        pruned = one(later, instance("new", created_at=2), pod=view, works=hooked(HookResult(40.0, "exit code 1: no")))
        assert written(pruned).states[0].message == "preStop hook failed: exit code 1: no"

    @pytest.mark.parametrize("works", [{}, hooked(HookResult(1.0, "no"))], ids=["of an earlier daemon", "of this one"])
    def test_a_failed_hook_is_told_on_while_its_stop_waits_for_a_slot(self, works: dict[tuple[str, str], Work]) -> None:
        failed = replace(killed(message="preStop hook failed: no"), reason=Reason.HOOK_FAILED)
        decision = one(request(status=recreating(failed)), instance("old", hook=HOOK), works=works, may_stop=False)
        assert not actions(decision, WriteStatus)
        assert decision.waits_for_slot

    def test_hooks_of_other_requests_and_containers_are_not_told(self) -> None:
        failed = HookResult(1.0, "broken")
        works = {
            ("gone", "old"): Work("app", pin("old"), hook_began=90.0, hook_result=failed),
            ("r1", "old-side"): Work("side", pin("old-side"), hook_began=90.0, hook_result=failed),
        }
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        decision = one(request(status=recreating(killed())), instance("new", created_at=2), pod=view, works=works)
        assert written(decision).states[0].message == ""

    def test_is_killed_means_no_second_hook(self) -> None:
        decision = one(request(status=recreating(killed())), instance("old", hook=HOOK))
        assert not actions(decision, RunHook)
        assert stops(decision) == ["old"]

    def test_a_created_container_is_waited_for(self) -> None:
        decision = one(request(), instance("old", state=ContainerState.CREATED), first_seen={"r1": 0.0})
        assert not stops(decision)
        assert written(decision).states[0].message == "the container has been created, but not started yet"
        assert decision.poll_runtime

    def test_an_unknown_state_is_stopped(self) -> None:
        assert stops(one(request(), instance("old", state=ContainerState.UNKNOWN))) == ["old"]

    def test_errors_are_retried_with_back_off_and_the_grace_that_is_left(self) -> None:
        req = request(status=recreating(killed()))
        failed = stopped(90.0, StopAttempt(2, ended=99.5, error="broken"))
        wait = one(req, instance("old"), works=failed)
        assert not stops(wait)
        retry_at = 99.5 + stop_pause(2, "old")
        assert wait.wake_at == retry_at
        assert written(wait).states[0].message == "StopContainer failed 2 times, retrying: broken"
        assert written(wait).states[0].reason is Reason.STOP_RETRIED
        once = one(req, instance("old"), works=stopped(90.0, StopAttempt(1, ended=99.9, error="broken")))
        assert written(once).states[0].message == "StopContainer failed once, retrying: broken"
        again = one(replace(req, status=written(wait)), instance("old"), works=failed, now=retry_at)
        assert only(again, StopContainer).seconds == pytest.approx(30 - (retry_at - 90.0))
        assert written(again) == recreating(killed())

    def test_the_wait_doubles_up_to_20_seconds_with_a_jitter_of_its_own(self) -> None:
        for attempts, base in ((1, 0.5), (2, 1), (3, 2), (6, 16), (7, 20), (60, 20)):
            delays = {stop_pause(attempts, f"container {number}") for number in range(50)}
            assert base <= min(delays) < max(delays) <= base * 1.2
            assert stop_pause(attempts, "a") == stop_pause(attempts, "a")

    @pytest.mark.parametrize(("count", "ended"), [(8, 119.0), (7, 500.0)])
    def test_a_stop_is_tried_for_two_minutes_and_eight_times(self, count: int, ended: float) -> None:
        req = request(status=recreating(killed()))
        going = one(req, instance("old"), works=stopped(0.0, StopAttempt(count, ended, "broken")), now=ended)
        assert written(going).states[0].phase is StatePhase.RECREATING

    def test_then_it_is_given_up(self) -> None:
        failed = stopped(10.0, StopAttempt(8, 130.0, "broken"))
        decision = one(request(status=recreating(killed())), instance("old"), works=failed, now=130.0)
        assert written(decision).states[0].message == "StopContainer failed 8 times in 120s, last error: broken"
        assert written(decision).reason is Reason.STOP_FAILED

    def test_what_was_cut_off_before_it_was_sent_is_tried_again(self) -> None:
        cut_off = {("r1", "old"): Work("app", pin("old"), last_stop=StopAttempt(9, 50.0, "it was interrupted"))}
        assert stops(one(request(), instance("old"), works=cut_off)) == ["old"]

    def test_errors_of_another_request_are_not_ours(self) -> None:
        failed = stopped(0.0, StopAttempt(9, 50.0, "broken"), uid="earlier")
        assert only(one(request(), instance("old"), works=failed), StopContainer).seconds == 30

    def test_a_container_that_runs_on_after_its_stop(self) -> None:
        req = request(status=recreating(killed()))
        done = stopped(95.0, StopAttempt(1, ended=99.0))
        settling = one(req, instance("old"), works=done)
        assert settling.actions == ()
        assert settling.wake_at == 100.5
        assert settling.poll_runtime
        decision = one(req, instance("old"), works=done, now=109.0, listed_at=109.0)
        assert "but it is still running" in written(decision).states[0].message

    @pytest.mark.parametrize("listed_at", [98.0, 99.0])
    def test_what_was_listed_before_the_stop_returned_says_nothing(self, listed_at: float) -> None:
        req = request(status=recreating(killed()))
        done = stopped(95.0, StopAttempt(1, ended=99.0))
        late = one(req, instance("old"), works=done, now=150.0, listed_at=listed_at)
        assert late.actions == ()
        assert late.wake_at == pytest.approx(150.05)

    def test_nor_does_a_list_from_before_the_request_was_seen(self) -> None:
        early = one(request(), instance("old"), listed_at=99.0, first_seen={"r1": 99.5})
        assert early.actions == ()
        assert early.wake_at == NOW
        assert stops(one(request(), instance("old"), listed_at=99.5, first_seen={"r1": 99.5})) == ["old"]

    def test_a_list_older_than_the_pod_decides_nothing(self) -> None:
        view = pod(PodContainer("app", container_id="containerd://new", running=True, ready=True))
        behind = one(request(), instance("old"), pod=view, pod_at=101.0, listed_at=100.0, now=101.0)
        assert not stops(behind)
        assert behind.wake_at == pytest.approx(101.05)
        for pod_at in (99.0, 100.0):
            collected = one(request(), instance("old"), pod=view, pod_at=pod_at, listed_at=100.0)
            assert stops(collected) == ["old"]

    def test_a_stop_that_takes_a_while_is_persisted_once(self) -> None:
        req = request(status=recreating(killed()))
        early = one(req, instance("old"), works=stopping(since=99.0))
        assert early.actions == ()
        assert early.wake_at == 101.0
        late = one(req, instance("old"), works=stopping(since=98.0))
        assert only(late, PinContainers).pins == {"app": pin("old")}
        assert only(late, PinContainers).start_times == {"app": StartTimes(stop="2026-01-01T00:00:58Z")}
        known = replace(req, pinned={"app": pin("old")}, start_times={"app": StartTimes(stop="2026-01-01T00:00:58Z")})
        assert one(known, instance("old"), works=stopping(since=98.0)).actions == ()

    def test_when_a_hook_began_is_persisted_before_its_end_where_that_was_seen_late(self) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        decision = one(req, instance("old", hook=HOOK), works=hooked(HookResult(0.3)), first_seen={"r1": 0.0})
        first, second = (action for action in decision.actions if not isinstance(action, EmitEvent))
        assert isinstance(first, PinContainers)
        assert first.start_times == {"app": StartTimes(hook="2026-01-01T00:00:50Z")}
        assert isinstance(second, WriteStatus)
        assert second.status == recreating(killed())

    def test_a_stop_that_errs_for_a_while_is_persisted_too(self) -> None:
        req = request(status=recreating(killed()))
        attempt = StopAttempt(3, NOW - 0.1, "shim is stuck")
        works = {("r1", "old"): Work("app", pin("old"), stop_sent=NOW - 5, last_stop=attempt)}
        decision = one(req, instance("old"), works=works)
        assert only(decision, PinContainers).start_times == {"app": StartTimes(stop="2026-01-01T00:00:55Z")}

    def test_a_hook_that_takes_a_while_is_persisted_too(self) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        late = one(req, instance("old", hook=HOOK), works=hooking(since=97.0), first_seen={"r1": 0.0})
        assert only(late, PinContainers).start_times == {"app": StartTimes(hook="2026-01-01T00:00:57Z")}
        earlier = replace(req, pinned={"app": pin("old")}, start_times={"app": StartTimes(hook="2026-01-01T00:00:50Z")})
        again = one(earlier, instance("old", hook=HOOK), works=hooking(since=97.0), first_seen={"r1": 0.0})
        assert again.actions == ()  # what is left of its time counts from its first beginning

    def test_a_stop_after_a_hook_is_persisted_beside_it(self) -> None:
        hook = StartTimes(hook="2026-01-01T00:00:50Z")
        req = request(status=recreating(killed()), pinned={"app": pin("old")}, start_times={"app": hook})
        decision = one(req, instance("old", hook=HOOK), works=stopping(since=98.0))
        assert only(decision, PinContainers).start_times == {"app": replace(hook, stop="2026-01-01T00:00:58Z")}

    def test_a_restarted_daemon_grants_no_new_grace(self) -> None:
        start_times = {"app": StartTimes(stop="2026-01-01T00:00:50Z")}
        req = request(status=recreating(killed()), pinned={"app": pin("old")}, start_times=start_times)
        action = only(one(req, instance("old", hook=HOOK)), StopContainer)
        assert (action.seconds, action.spent_before) == (20, 10)
        jumped = one(req, instance("old", hook=HOOK), wall=9e9)
        assert only(jumped, StopContainer).seconds == 2
        stepped_back = one(req, instance("old", hook=HOOK), wall=0.0)
        assert only(stepped_back, StopContainer).seconds == 30

    def test_a_hook_that_was_cut_off_runs_for_what_is_left(self) -> None:
        start_times = {"app": StartTimes(hook="2026-01-01T00:00:50Z")}
        req = request(pinned={"app": pin("old")}, start_times=start_times)
        action = only(one(req, instance("old", hook=HOOK)), RunHook)
        assert (action.seconds, action.spent_before) == (20, 10)
        over = replace(req, start_times={"app": StartTimes(hook="2026-01-01T00:00:00Z")})
        decision = one(over, instance("old", hook=HOOK))
        assert not actions(decision, RunHook)
        assert only(decision, StopContainer).seconds == 2

    def test_what_was_begun_with_another_instance_counts_for_nothing(self) -> None:
        start_times = {"app": StartTimes(stop="2026-01-01T00:00:50Z")}
        req = request(pinned={"app": pin("earlier")}, start_times=start_times)
        decision = one(req, instance("old"), foreign={"earlier": None})
        assert only(decision, StopContainer).seconds == 30

    def test_grace_spent_by_an_earlier_life_stays_spent(self) -> None:
        req = request(status=recreating(killed()))
        result = HookResult(4.0)
        works = {("r1", "old"): Work("app", pin("old"), hook_began=95.0, hook_result=result, spent_before=10.0)}
        assert only(one(req, instance("old", hook=HOOK), works=works), StopContainer).seconds == 16

    def test_a_hook_that_a_request_waited_for_is_not_run_again(self) -> None:
        ended = NOW - 5
        hook = Work("app", pin("old"), hook_began=ended - 30, hook_until=ended, hook_result=HookResult(30.0, "cut off"))
        works = {("gone", "old"): hook}
        waited = one(request(), instance("old", hook=HOOK), works=works, first_seen={"r1": ended})
        assert not actions(waited, RunHook)
        assert written(waited).states[0].is_killed
        later = one(request(), instance("old", hook=HOOK), works=works, first_seen={"r1": ended + 0.1})
        assert actions(later, RunHook)

    def test_no_hook_is_run_beside_the_stop_that_an_earlier_one_still_owes(self) -> None:
        ended = NOW - 5 + 0.1
        hook = Work("app", pin("old"), hook_began=ended - 30, hook_until=ended, hook_result=HookResult(1.0))
        found = one(request(), instance("old", hook=HOOK), works={("gone", "old"): hook}, first_seen={"r1": NOW})
        assert not actions(found, RunHook)

    def test_a_wait_that_is_over_is_not_told_behind_a_closed_gate(self) -> None:
        waited = RecreateState("app", message="not started yet", reason=Reason.NOT_STARTED)
        req = request(strategy=Strategy(unready_grace_seconds=600), status=recreating(waited))
        closed = one(req, instance("old"), pod=pod(readiness_gate=True), first_seen={"r1": 0.0})
        assert written(closed).states == (RecreateState("app"),)

    def test_a_silent_kubelet_keeps_no_hook_from_being_told_as_ended(self) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        old, works = instance("old", hook=HOOK), hooked(HookResult(1.0))
        told = one(req, old, kubelet_silent_since=NOW, works=works)
        assert written(told).states[0].is_killed
        assert not stops(told)
        done = replace(req, status=written(told))
        assert not actions(one(done, old, kubelet_silent_since=NOW, works=works), WriteStatus)

    @pytest.mark.parametrize("ended", [False, True])
    def test_nor_in_the_annotation_where_the_crd_prunes_is_killed(self, *, ended: bool) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)), pinned={"app": pin("old")})
        works = hooked(HookResult(1.0)) if ended else {}
        told = one(req, instance("old", hook=HOOK), kubelet_silent_since=NOW, works=works, prunes_is_killed=True)
        times = [each.start_times for each in actions(told, PinContainers)]
        assert times == ([{"app": StartTimes(stop="2026-01-01T00:01:00Z")}] if ended else [])
        assert not stops(told)

    @pytest.mark.parametrize("prunes", [True, False])
    def test_what_got_its_term_before_a_restart_waits_for_no_readiness(self, *, prunes: bool) -> None:
        req = request(
            strategy=Strategy(unready_grace_seconds=600),
            pinned={"app": pin("old")},
            start_times={"app": StartTimes(stop="2026-01-01T00:00:50Z")},
            status=recreating(RecreateState("app", StatePhase.RECREATING)),
        )
        assert stops(one(req, instance("old"), pod=pod(readiness_gate=True), prunes_is_killed=prunes)) == ["old"]

    def test_where_the_end_of_anothers_hook_stands_as_a_stop_no_grace_is_spent_by_it(self) -> None:
        req = request(
            status=recreating(RecreateState("app", StatePhase.RECREATING)),
            pinned={"app": pin("old")},
            start_times={"app": StartTimes(stop="2026-01-01T00:00:20Z")},  # 40 s ago: kubelet was silent since
        )
        of_this_life = one(req, instance("old", hook=HOOK), prunes_is_killed=True, first_seen={"r1": NOW - 40.9})
        assert only(of_this_life, StopContainer).seconds == 30
        of_an_earlier = one(req, instance("old", hook=HOOK), prunes_is_killed=True, first_seen={"r1": NOW - 39})
        assert only(of_an_earlier, StopContainer).seconds == 2

    @pytest.mark.parametrize("hook", [None, HOOK])
    def test_a_wait_that_is_over_is_not_told_while_the_stop_or_its_hook_goes_on(self, hook: Hook | None) -> None:
        waits = written(
            one(request(), instance("old", hook=hook), kubelet_silent_since=NOW - 12, first_seen={"r1": 0.0})
        )
        assert waits.states[0].message
        goes_on = written(one(request(status=waits), instance("old", hook=hook), first_seen={"r1": 0.0}))
        assert goes_on.states == (RecreateState("app", StatePhase.RECREATING, is_killed=hook is None),)

    @pytest.mark.parametrize(
        ("unready", "changes", "held"),
        [
            ({}, {}, ""),
            ({"NetworkReady": "cni plugin not initialized"}, {}, "NetworkReady"),
            ({"NetworkReady": "cni plugin not initialized"}, {"host_network": True}, ""),
            ({"RuntimeReady": "it starts"}, {"host_network": True}, "RuntimeReady"),
            ({"RuntimeReady": "it starts", "NetworkReady": "none"}, {}, "RuntimeReady"),
        ],
    )
    @pytest.mark.parametrize("hook", [None, HOOK])
    def test_a_runtime_that_is_not_ready_holds_the_stop_back(
        self, unready: dict[str, str], changes: dict[str, Any], held: str, hook: Hook | None
    ) -> None:
        """Kubelet would not start the container again."""
        known = pod(**changes)
        decision = one(request(), instance("old", hook=hook), unready=unready, pod=known, first_seen={"r1": 0.0})
        assert bool(stops(decision) or actions(decision, RunHook)) is not bool(held)
        if held:
            (state,) = written(decision).states
            assert state.message == Reason.RUNTIME_NOT_READY.say(condition=held, why=unready[held])
            assert decision.wake_at == NOW + LOOK_AGAIN

    def test_nor_is_an_ended_hook_followed_by_a_stop_then(self) -> None:
        """Its end is recorded, so that a restarted daemon does not run it again."""
        works = hooked(HookResult(1.0))
        decision = one(request(), instance("old", hook=HOOK), works=works, unready={"NetworkReady": "none"})
        assert not stops(decision)
        assert written(decision).states[0].is_killed

    @pytest.mark.parametrize("of_host", [False, True])
    def test_the_late_stop_of_a_deleted_request_waits_for_the_network_too(self, *, of_host: bool) -> None:
        answer, works = ApiAnswer(pod(host_network=of_host), NOW), hooked(HookResult(1.0))
        late = observed(
            instance("old"), ended=(request(),), works=works, pod=None, answer=answer, unready={"NetworkReady": "none"}
        )
        decision = decided([], late, NOW)
        assert bool(stops(decision)) is of_host

    @pytest.mark.parametrize(("left", "sent"), [(-4.9, False), (-5.0, True)])
    def test_the_record_of_a_hook_is_waited_for_until_its_grace_period_is_over(
        self, left: float, *, sent: bool
    ) -> None:
        """The API server may be away for long, and a program whose hook has run has left its work."""
        works = hooked(HookResult(1.0), until=NOW + left)
        decision = one(request(), instance("old", hook=HOOK), works=works)
        assert stops(decision) == ["old"] * sent
        assert sent or decision.wake_at == NOW + left + LATE_STOP_SECONDS

    def test_a_kubelet_that_does_not_answer_holds_the_stop_back(self) -> None:
        decision = one(request(), instance("old"), kubelet_silent_since=NOW - 12, first_seen={"r1": 0.0})
        assert not stops(decision)
        message = (
            "kubelet on this node has not answered /healthz for 10s; not stopping the container, because "
            "kubelet could not start it again"
        )
        assert written(decision).states[0].message == message
        assert written(decision).states[0].reason is Reason.KUBELET_SILENT
        assert decision.wake_at == NOW + 1
        assert not written(decision).states[0].started

    def test_a_crd_that_prunes_is_killed_is_served_by_the_annotation(self) -> None:
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        ended = hooked(HookResult(3.0))
        first = one(req, instance("old", hook=HOOK), works=ended, prunes_is_killed=True)
        assert not stops(first)
        assert not actions(first, WriteStatus)
        assert only(first, PinContainers).start_times == {"app": StartTimes(stop="2026-01-01T00:01:00Z")}
        pinned = replace(req, pinned={"app": pin("old")}, start_times={"app": StartTimes(stop="2026-01-01T00:01:00Z")})
        second = one(pinned, instance("old", hook=HOOK), works=ended, prunes_is_killed=True)
        assert only(second, StopContainer).seconds == 27
        assert not actions(second, WriteStatus)


class TestOfAnotherRequest:
    """Step 9: what a request that is gone has left under way."""

    def test_a_shorter_grace_is_sent_beside_a_longer_one(self) -> None:
        works = stopping(uid="gone", since=50.0, seconds=3600.0)
        decision = one(request(strategy=Strategy(grace_seconds=0)), instance("old", hook=HOOK), works=works)
        assert only(decision, StopContainer).seconds == 2
        assert not actions(decision, RunHook)

    @pytest.mark.parametrize("seconds", [10.0, 35.0])
    def test_one_that_is_not_shorter_waits(self, seconds: float) -> None:
        works = stopping(uid="gone", since=95.0, seconds=seconds)
        decision = one(request(), instance("old"), works=works, first_seen={"r1": 0.0})
        assert not stops(decision)
        assert (
            written(decision).states[0].message
            == "an earlier request that has ended is still working on this container (stop)"
        )

    def test_the_longest_of_two_is_what_a_shorter_grace_is_sent_beside(self) -> None:
        short = stopping(uid="gone", since=95.0, seconds=15.0)
        works = short | stopping(uid="gone too", since=90.0, seconds=110.0)
        assert only(one(request(), instance("old"), works=works), StopContainer).seconds == 30

    def test_a_stop_that_has_not_been_sent_is_not_waited_for(self) -> None:
        queued = {("gone", "old"): Work("app", pin("old"), WorkKind.STOP)}
        assert stops(one(request(), instance("old"), works=queued)) == ["old"]
        works = stopping(uid="gone too", since=90.0, seconds=20.0)
        assert stops(one(request(), instance("old"), works=works | queued)) == ["old"]

    def test_work_on_another_container_holds_nothing_back(self) -> None:
        works = stopping("old-side", "side", uid="gone", since=99.0, seconds=10.0)
        assert stops(one(request(), instance("old"), works=works)) == ["old"]

    def test_a_hook_is_waited_for_as_long_as_our_own_grace(self) -> None:
        works = hooking(uid="gone", since=90.0, seconds=3600.0)
        strategy = Strategy(grace_seconds=5)
        early = one(request(strategy=strategy), instance("old", hook=HOOK), works=works, first_seen={"r1": 97.0})
        assert not stops(early)
        assert early.wake_at == 102.0
        late = one(request(strategy=strategy), instance("old", hook=HOOK), works=works, first_seen={"r1": 95.0})
        assert stops(late) == ["old"]
        assert not actions(late, RunHook)

    def test_a_hook_that_ran_for_a_request_that_is_gone_is_not_run_again(self) -> None:
        works = RETRIED
        first = one(request(), instance("old", hook=HOOK), works=works)
        assert not actions(first, RunHook)
        assert written(first) == recreating(killed())
        second = one(request(status=recreating(killed())), instance("old", hook=HOOK), works=works)
        assert only(second, StopContainer).seconds == 30

    def test_but_once_no_stop_can_follow_that_ends(self) -> None:
        works = hooked(HookResult(3.0), uid="gone", until=NOW - 5)
        assert actions(one(request(), instance("old", hook=HOOK), works=works), RunHook)

    def test_a_request_that_comes_back_does_not_run_its_hook_again(self) -> None:
        works = hooked(HookResult(3.0), until=NOW - 50)
        assert not actions(one(request(), instance("old", hook=HOOK), works=works), RunHook)


class TestPinsThatWereTakenAway:
    """Steps 5 and 12."""

    FORCED = Strategy(force=True)

    def test_what_this_process_stopped_is_known_without_the_annotation(self) -> None:
        done = stopped(95.0, StopAttempt(1, ended=96.0))
        req = request(strategy=self.FORCED, status=recreating(killed()))
        decision = one(req, exited("old"), instance("new", created_at=2, restart_count=1), works=done)
        assert not stops(decision)
        assert not actions(decision, PinContainers)

    def test_by_its_own_work_on_this_container(self) -> None:
        works = {
            ("gone", "older"): Work("app", pin("older"), hook_began=90.0, hook_result=HookResult(1.0)),
            ("r1", "old-side"): Work("side", pin("old-side"), stop_sent=90.0, last_stop=StopAttempt(1, 91.0)),
            **hooked(HookResult(1.0)),
        }
        req = request(strategy=self.FORCED, status=recreating(killed()))
        assert stops(one(req, instance("old", hook=HOOK), works=works)) == ["old"]

    def test_after_a_restart_nobody_can_tell(self) -> None:
        req = request(strategy=self.FORCED, status=recreating(killed()))
        decision = one(req, instance("new", created_at=2, restart_count=1))
        assert not stops(decision)
        assert not actions(decision, PinContainers)
        assert written(decision).states[0].reason is Reason.PIN_LOST

    def test_nor_where_the_crd_has_pruned_what_would_tell(self) -> None:
        req = request(strategy=self.FORCED, status=recreating(RecreateState("app", StatePhase.RECREATING)))
        decision = one(req, instance("new", created_at=2, restart_count=1, hook=HOOK))
        assert not actions(decision, PinContainers)
        assert not actions(decision, RunHook)
        assert written(decision).states[0].reason is Reason.PIN_LOST

    def test_before_the_stop_it_is_pinned_again(self) -> None:
        decision = one(request(strategy=self.FORCED, status=recreating()), instance("old"))
        assert only(decision, PinContainers).pins == {"app": pin("old")}


class TestBackOff:
    """Step 10: what is known before kubelet says it."""

    REQ = request(status=recreating(killed()))

    def at(self, seconds: float, **last: Any) -> Decision:
        ending = Ending(NOW - seconds, 1767225660.0 - seconds)
        return one(self.REQ, exited("old", **last), endings={"app": ending})

    def test_nothing_for_five_seconds(self) -> None:
        quiet = self.at(4.5)
        assert quiet.actions == ()
        assert quiet.wake_at == NOW + 0.5

    def test_then_that_it_has_not_come(self) -> None:
        assert written(self.at(5.0)).states[0].reason is Reason.NOT_STARTED_AGAIN
        assert self.at(5.0).wake_at == NOW + 5
        told = self.at(5.5)
        assert written(told).states[0].message == "kubelet has not restarted the container for 5s"
        assert written(told).states[0].reason is Reason.NOT_STARTED_AGAIN
        assert told.wake_at == NOW + 4.5
        assert written(self.at(59.0)).states[0].message == "kubelet has not restarted the container for 30s"

    def test_and_that_a_second_restart_is_held_back(self) -> None:
        created = int((1767225660.0 - 6 - 42) * 1e9)
        told = self.at(6, restart_count=1, created_at=created)
        message = "kubelet has not restarted the container for 5s; the previous instance ran for only 42s,"
        assert written(told).states[0].message == f"{message} so kubelet's restart back-off (at least 10s) may apply"
        for restarts, lived, held in ((1, 600, False), (1, 599, True), (1, 0, True), (1, -1, False), (0, 42, False)):
            created = int((1767225660.0 - 6 - lived) * 1e9)
            found = written(self.at(6, restart_count=restarts, created_at=created)).states[0].message
            assert ("back-off" in found) is held
        collected = one(self.REQ, endings={"app": Ending(NOW - 6, 1767225654.0)})
        assert written(collected).states[0].message == "kubelet has not restarted the container for 5s"

    @pytest.mark.parametrize(
        ("steps", "seconds"), list(pairwise([0, 2, 10, 30, 60, 120, 300, 600, 1800, 3600, 14_400, 86_400]))
    )
    def test_a_wait_is_told_in_few_steps(self, steps: int, seconds: int) -> None:
        assert waited(100.0, 100.0 + seconds - 0.1) == (steps, 100.0 + seconds)
        assert waited(100.0, 100.0 + seconds)[0] == seconds

    def test_kubelets_own_words_go_first(self) -> None:
        waiting = PodContainer("app", waiting_reason="ErrImagePull", waiting_message="no such image")
        ending = {"app": Ending(NOW - 30, 0.0)}
        decision = one(self.REQ, exited("old"), endings=ending, pod=pod(waiting))
        assert written(decision).states[0].message == "ErrImagePull: no such image"
        assert written(decision).states[0].reason is Reason.HELD_BACK


class TestStopAndDrain:
    """Step 9."""

    @pytest.mark.parametrize(
        ("created", "written_at_once"), [("00:00:28", True), ("00:00:30", False), ("00:00:32", False)]
    )
    def test_a_late_answer_does_not_wait(self, created: str, *, written_at_once: bool) -> None:
        """Else the manager would end a request whose stop goes on, because no daemon has answered for 60 s."""
        for works in (stopping(), hooking()):
            req = request(created=f"2026-01-01T{created}Z")
            assert bool(actions(one(req, instance("old", hook=HOOK), works=works), WriteStatus)) is written_at_once
            answered = replace(req, status=Status(RequestPhase.PENDING, (RecreateState("app"),)))
            assert not actions(one(answered, instance("old", hook=HOOK), works=works), WriteStatus)
        waits = one(request(created=f"2026-01-01T{created}Z"), pod=None)
        assert bool(actions(waits, WriteStatus)) is written_at_once

    def test_draining_records_when_a_stop_was_sent_that_failed(self) -> None:
        """The next daemon must not give the container its whole grace period again."""
        failed = stopped(97.0, StopAttempt(1, ended=97.1, error="no answer in time"))
        decision = one(request(status=recreating(killed())), instance("old"), works=failed, draining=True)
        assert not stops(decision)
        assert only(decision, PinContainers).start_times == {"app": StartTimes(stop="2026-01-01T00:00:57Z")}

    def test_draining_starts_nothing_but_finishes_a_hook(self) -> None:
        assert not stops(one(request(), instance("old"), draining=True))
        assert not actions(one(request(), instance("old", hook=HOOK), draining=True), RunHook)
        assert not stops(one(request(), instance("old", hook=HOOK), works=hooking(uid="gone"), draining=True))
        active = request(status=recreating(killed()))
        assert stops(one(active, instance("old", hook=HOOK), works=hooked(HookResult(1.0)), draining=True)) == ["old"]


class TestRestartOfTheWholePod:
    """Step 6: rules of a container that have kubelet restart all containers of its pod."""

    RULES = ({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}},)
    ALLOWED = Strategy(allow_pod_restart=True)

    def pod(self, app: str = "old", side: str = "side-1", **changes: Any) -> Any:
        shown = {
            name: PodContainer(name, container_id=f"containerd://{id_}", running=True, ready=True, restart_rules=rules)
            for name, id_, rules in (("app", app, self.RULES), ("side", side, ()))
        }
        return pod(*shown.values(), **changes)

    @pytest.mark.parametrize("minor", [None, 36, 40])
    def test_it_is_refused(self, minor: int | None) -> None:
        decision = one(request(), instance("old"), pod=self.pod(), kubelet_minor=minor)
        assert not stops(decision)
        state = written(decision).states[0]
        assert (state.phase, state.reason) == (StatePhase.FAILED, Reason.RESTARTS_POD)
        assert "exit code 143" in state.message

    def test_before_its_hook_and_before_it_is_pinned(self) -> None:
        plain = request()
        unnamed = replace(plain, containers=tuple(replace(each, context=None) for each in plain.containers))
        decision = one(unnamed, instance("old", hook=HOOK), pod=self.pod(), kubelet_minor=36)
        assert not actions(decision, RunHook)
        assert not actions(decision, PinContainers)
        assert written(decision).states[0].reason is Reason.RESTARTS_POD

    def test_an_older_kubelet_heeds_no_such_rule(self) -> None:
        assert stops(one(request(), instance("old"), pod=self.pod(), kubelet_minor=35)) == ["old"]

    def test_what_has_begun_is_ended(self) -> None:
        seen_so = {"pod": self.pod(), "works": hooked(HookResult(1.0)), "kubelet_minor": 36}
        active = recreating(killed())
        assert stops(one(request(status=active), instance("old", hook=HOOK), **seen_so)) == ["old"]

    def test_which_containers_were_stopped_for_it(self) -> None:
        works = {"old": stopping()["r1", "old"], "old-side": hooking("old-side", "side")["r1", "old-side"]}
        known = ObservedRequest(request("app", "side", "log", status=recreating(killed("log"))), 0.0, works=works)
        assert [name for name in ("app", "side", "log", "other") if known.stop_sent(name)] == ["app", "log"]

    def test_it_can_be_allowed(self) -> None:
        decision = one(
            request(strategy=self.ALLOWED),
            instance("old"),
            instance("side-1", "side"),
            pod=self.pod(),
            kubelet_minor=36,
        )
        assert only(decision, StopContainer).beside == {"side": "side-1"}

    def test_what_is_no_container_to_recreate_need_not_come_back(self) -> None:
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        done = {("r1", "old"): replace(stopped(90.0, StopAttempt(1, 91.0))[("r1", "old")], beside={"side": "side-1"})}
        shown = self.pod("new", "side-2")
        init = PodContainer("init", ContainerKind.INIT, terminated=True, exit_code=1)
        seen_pod = replace(shown, containers={**shown.containers, "init": init})
        now = (instance("new", restart_count=1), instance("side-2", "side", restart_count=1))
        decision = one(req, *now, pod=seen_pod, works=done, kubelet_minor=36, running_since={"new": 95.0})
        assert written(decision).phase is RequestPhase.COMPLETED

    def test_a_stop_that_can_restart_nothing_else_has_no_others_to_name(self) -> None:
        both = (instance("old"), instance("side-1", "side"))
        decision = one(request(strategy=self.ALLOWED), *both, pod=self.pod(), kubelet_minor=35)
        assert only(decision, StopContainer).beside == {}

    def test_then_all_containers_have_to_come_back_and_are_named(self) -> None:
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        done = {("r1", "old"): replace(stopped(90.0, StopAttempt(1, 91.0))[("r1", "old")], beside={"side": "side-1"})}
        back: dict[str, Any] = {
            "works": done,
            "kubelet_minor": 36,
            "running_since": {"new": 95.0},
            "first_seen": {"r1": 80.0},
        }
        now = (instance("new", restart_count=1), exited("side-1", "side"))
        decision = one(req, *now, pod=self.pod("new"), **back)
        assert written(decision).states[0].reason is Reason.NOT_BACK
        assert written(decision).states[0].message.endswith("waiting for: side")
        now = (instance("new", restart_count=1), instance("side-2", "side", restart_count=1))
        restarting = one(req, *now, pod=self.pod("new", "side-2", restarting=True), **back)
        assert written(restarting).states[0].reason is Reason.NOT_BACK
        decision = one(req, *now, pod=self.pod("new", "side-2"), **back)
        status = written(decision)
        assert (status.phase, status.states[0].phase) == (RequestPhase.COMPLETED, StatePhase.SUCCEEDED)
        assert status.message == (
            "1 of 1 containers recreated; app: kubelet also restarted other containers of the pod: side"
        )
        assert only(decision, EmitEvent).message.endswith("kubelet also restarted other containers of the pod: side")

    @pytest.mark.parametrize(
        ("app", "code", "waits"),
        [("running", None, True), ("exited", None, True), ("exited", 143, True), ("exited", 0, False)],
    )
    def test_another_container_of_the_request_is_awaited_whose_stop_may_restart_the_pod(
        self, app: str, code: int | None, *, waits: bool
    ) -> None:
        """`side` is back, and would be killed again."""
        req = request("app", "side", strategy=self.ALLOWED, status=recreating(killed(), killed("side")))
        shown = self.pod("old-app", "side-2")
        containers = {**shown.containers, "app": replace(shown.containers["app"], exit_code=code)}
        over = app == "exited"
        decision = one(
            req,
            exited("old-app") if over else instance("old-app"),
            instance("side-2", "side", restart_count=1),
            pod=replace(shown, containers=containers),
            works=stopped(90.0, StopAttempt(1, 91.0), "old-app") if over else stopping("old-app"),
            kubelet_minor=36,
            running_since={"side-2": 95.0},
            first_seen={"r1": 80.0},
        )
        side = written(decision).states[1]
        assert (side.reason is Reason.NOT_BACK, side.phase is StatePhase.RECREATING) == (waits, waits)

    def test_so_is_one_that_was_recreated_before_and_is_killed_by_the_restart(self) -> None:
        done = RecreateState("side", StatePhase.SUCCEEDED, is_killed=True)
        req = request("app", "side", strategy=self.ALLOWED, status=recreating(killed(), done))
        seen: dict[str, Any] = {
            "works": stopped(90.0, StopAttempt(1, 91.0), "old-app"),
            "kubelet_minor": 36,
            "running_since": {"new": 95.0},
            "first_seen": {"r1": 80.0},
        }
        new = instance("new", restart_count=1)
        decision = one(req, new, exited("side-2", "side"), pod=self.pod("new", "side-2"), **seen)
        assert written(decision).states[0].message.endswith("waiting for: side")
        decision = one(req, new, instance("side-3", "side"), pod=self.pod("new", "side-3"), **seen)
        assert written(decision).phase is RequestPhase.COMPLETED

    def test_a_pod_that_was_not_restarted_is_not_said_to_be(self) -> None:
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        done = {("r1", "old"): replace(stopped(90.0, StopAttempt(1, 91.0))[("r1", "old")], beside={"side": "side-1"})}
        now = (instance("new", restart_count=1), instance("side-1", "side"))
        decision = one(req, *now, pod=self.pod("new"), works=done, kubelet_minor=36, running_since={"new": 95.0})
        assert written(decision).message == "1 of 1 containers recreated"

    @pytest.mark.parametrize(("code", "waits"), [(0, False), (143, True), (None, True)])
    def test_what_was_down_before_is_awaited_only_where_the_pod_was_restarted(
        self, code: int | None, *, waits: bool
    ) -> None:
        """`side` has ended by itself, and its restartPolicy keeps it down."""
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        done = {("r1", "old"): replace(stopped(90.0, StopAttempt(1, 91.0))[("r1", "old")], beside={"side": "side-1"})}
        now = (instance("new", restart_count=1), exited("side-1", "side"))
        found = self.pod("new")
        app = replace(found.containers["app"], exit_code=code)
        found = replace(found, containers={**found.containers, "app": app})
        decision = one(
            req,
            *now,
            pod=found,
            works=done,
            kubelet_minor=36,
            running_since={"new": 95.0},
            first_seen={"r1": 80.0},
        )
        assert (written(decision).states[0].reason is Reason.NOT_BACK) is waits

    @pytest.mark.parametrize(
        ("code", "policy", "created", "reason"),
        [
            (128, RestartPolicy.NEVER, 59.0, Reason.REST_LEFT_DOWN),
            (128, RestartPolicy.NEVER, 52.0, Reason.REST_LEFT_DOWN),
            (128, RestartPolicy.NEVER, 51.0, Reason.NOT_BACK),
            (0, RestartPolicy.NEVER, 59.0, Reason.POD_RESTARTED),  # it has done its work once more
            (0, RestartPolicy.ON_FAILURE, 59.0, Reason.POD_RESTARTED),
            (1, RestartPolicy.ON_FAILURE, 59.0, Reason.NOT_BACK),
            (0, RestartPolicy.ALWAYS, 59.0, Reason.NOT_BACK),
            (137, RestartPolicy.NEVER, 50.0, Reason.NOT_BACK),  # the restart has killed it, and its successor comes
        ],
    )
    def test_what_ends_after_the_restart_and_stays_down_is_not_awaited(
        self, code: int, policy: RestartPolicy, created: float, reason: Reason
    ) -> None:
        """The stop ended 9 s ago, at 51 s of the node's clock."""
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        works = {("r1", "old"): replace(stopped(90.0, StopAttempt(1, 91.0))[("r1", "old")], beside={"side": "side-1"})}
        ended = replace(exited("side-2", "side"), created_at=int((1767225600 + created) * 1e9))
        now = (instance("new", restart_count=1), ended)
        found = self.pod("new", "side-2")
        shown: dict[str, Any] = {"container_id": "containerd://side-2", "terminated": True, "exit_code": code}
        side = PodContainer("side", restart_policy=policy, **shown)
        found = replace(found, containers={**found.containers, "side": side})
        since: dict[str, Any] = {"running_since": {"new": 95.0}, "first_seen": {"r1": 70.0}}
        decision = one(req, *now, pod=found, works=works, kubelet_minor=36, **since)
        assert written(decision).states[0].reason is reason

    def test_what_was_down_before_is_not_awaited_where_the_runtime_still_lists_the_old_instance(self) -> None:
        """Kubelet's version is not known: an older one knows no such rules, and shows no exit code once it starts."""
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        now = (exited("old"), instance("new", restart_count=1), exited("side-1", "side"))
        works = stopped(90.0, StopAttempt(1, 91.0))
        decision = one(req, *now, pod=self.pod("new"), works=works, running_since={"new": 95.0})
        assert written(decision).message == "1 of 1 containers recreated"

    @pytest.mark.parametrize(
        ("side", "reason"),
        [("side-1", Reason.NONE), ("side-2", Reason.POD_RESTARTED), ("", Reason.NOT_BACK)],
        ids=["not restarted", "restarted", "down"],
    )
    def test_a_container_that_is_added_after_the_stop_is_neither_awaited_nor_said_to_be_restarted(
        self, side: str, reason: Reason
    ) -> None:
        work = Work("app", pin("old"), stop_sent=90.0, last_stop=StopAttempt(1, 91.0), beside={"side": "side-1"})
        changes: dict[str, Any] = {"kubelet_minor": 36, "running_since": {"new": 95.0}, "works": {("r1", "old"): work}}
        changes["first_seen"] = {"r1": 90.0}
        sides = [instance(side, "side")] if side else []
        now = (instance("new", restart_count=1), *sides, instance("added", "added"))
        for added in (PodContainer("added"), PodContainer("added", container_id="containerd://added", running=True)):
            found = self.pod("new", side)
            found = replace(found, containers={**found.containers, "added": added})
            decision = one(request(strategy=self.ALLOWED, status=recreating(killed())), *now, pod=found, **changes)
            state = written(decision).states[0]
            assert (state.reason, "added" in state.message) == (reason, False)

    @pytest.mark.parametrize(
        ("there", "created", "shown", "awaited"),
        [
            (False, 0, {}, False),
            (True, 52.0, {"container_id": "containerd://more", "running": True}, False),
            # kubelet has not reached it yet; its second is that of the stop, or an earlier one
            (True, 49.0, {"container_id": "containerd://more", "running": True}, True),
            (True, 51.0, {"container_id": "containerd://more", "running": True}, True),
            (True, 52.0, {"restart_count": 1}, True),
            (False, 0, {"container_id": "containerd://more", "running": True}, True),  # removed, as all are
        ],
        ids=["added", "added and created", "from before", "from the same second", "restarted", "removed"],
    )
    @pytest.mark.parametrize("recorded", [True, False])
    def test_nor_by_a_daemon_that_was_restarted_after_the_stop(
        self, created: float, shown: dict[str, Any], *, there: bool, awaited: bool, recorded: bool
    ) -> None:
        """The stop of an earlier process is known by its time, 50 s of the node's clock, if it was recorded."""
        req = request(strategy=self.ALLOWED, status=recreating(killed()))
        if recorded:
            req = replace(req, pinned={"app": pin("old")}, start_times={"app": StartTimes(stop="2026-01-01T00:00:50Z")})
        count = shown.get("restart_count", 0)
        made = instance("more", "more", created_at=int((1767225600 + created) * 1e9), restart_count=count)
        now = (
            instance("new", restart_count=1),
            instance("side-2", "side", restart_count=1),
            *([made] if there else []),
        )
        found = self.pod("new", "side-2")
        found = replace(found, containers={**found.containers, "more": PodContainer("more", **shown)})
        decision = one(req, *now, pod=found, kubelet_minor=36, running_since={"new": 95.0}, first_seen={"r1": 95.0})
        reason = written(decision).states[0].reason
        assert (reason is Reason.NOT_BACK) is (awaited or not recorded)

    @pytest.mark.parametrize(
        ("side", "awaited"), [(StatePhase.SUCCEEDED, True), (StatePhase.RECREATING, True), (StatePhase.FAILED, False)]
    )
    def test_what_the_request_recreated_before_is_awaited_once_more(self, side: StatePhase, *, awaited: bool) -> None:
        """`side` was recreated first. The stop of `app` has kubelet restart it again, and `app` is back before it."""
        strategy = replace(self.ALLOWED, ordered=side is StatePhase.SUCCEEDED, failure_policy=FailurePolicy.IGNORE)
        status = recreating(RecreateState("side", side, is_killed=True), killed())
        req = request("side", "app", strategy=strategy, status=status)
        works = {
            ("r1", "old-app"): Work("app", pin("old-app"), stop_sent=90.0, last_stop=StopAttempt(1, 91.0)),
            ("r1", "old-side"): Work("side", pin("old-side"), stop_sent=80.0, last_stop=StopAttempt(1, 81.0)),
        }
        now = (instance("new", restart_count=1), exited("side-2", "side", restart_count=1))
        since: dict[str, Any] = {"running_since": {"new": 95.0}, "first_seen": {"r1": 70.0}}
        found = self.pod("new", "side-2")
        down = replace(found.containers["side"], running=False, ready=False)
        found = replace(found, containers={**found.containers, "side": down})
        decision = one(req, *now, pod=found, works=works, kubelet_minor=36, **since)
        app = written(decision).states[1]
        assert (app.reason is Reason.NOT_BACK, app.phase is StatePhase.SUCCEEDED) == (awaited, not awaited)

    def test_nothing_is_stopped_while_kubelet_restarts_the_pod(self) -> None:
        decision = one(request(), instance("old"), pod=pod(restarting=True), first_seen={"r1": NOW - 5})
        assert not stops(decision)
        assert written(decision).states[0].reason is Reason.POD_RESTARTING


class TestOwnRestartPolicy:
    """Step 6: a container's own restartPolicy counts from kubelet 1.35 on."""

    @pytest.mark.parametrize(
        ("of_pod", "own", "minor", "comes"),
        [
            (RestartPolicy.NEVER, RestartPolicy.ALWAYS, 34, False),
            (RestartPolicy.NEVER, RestartPolicy.ALWAYS, 35, True),
            (RestartPolicy.NEVER, RestartPolicy.ALWAYS, None, False),
            (RestartPolicy.ALWAYS, RestartPolicy.NEVER, 34, True),
            (RestartPolicy.ALWAYS, RestartPolicy.NEVER, 35, False),
            (RestartPolicy.ALWAYS, RestartPolicy.NEVER, None, False),
            (RestartPolicy.ALWAYS, None, None, True),
        ],
    )
    def test_by_version(
        self, of_pod: RestartPolicy, own: RestartPolicy | None, minor: int | None, *, comes: bool
    ) -> None:
        container = PodContainer("app", restart_policy=of_pod, own_restart_policy=own, container_id="containerd://old")
        decision = one(request(), instance("old"), pod=pod(container), kubelet_minor=minor)
        assert stops(decision) == (["old"] if comes else [])

    @staticmethod
    def ended(of_pod: RestartPolicy, own: RestartPolicy, code: int) -> PodContainer:
        """The container, whose instance `old` has ended."""
        policies: dict[str, Any] = {"restart_policy": of_pod, "own_restart_policy": own}
        return PodContainer("app", container_id="containerd://old", terminated=True, exit_code=code, **policies)

    def test_what_was_begun_is_ended_though_the_version_is_not_known_any_more(self) -> None:
        """The next daemon cannot read the Node yet."""
        policies: dict[str, Any] = {"restart_policy": RestartPolicy.NEVER, "own_restart_policy": RestartPolicy.ALWAYS}
        begun: dict[str, Any] = {
            "pinned": {"app": pin("old")},
            "start_times": {"app": StartTimes(hook="2026-01-01T00:00:50Z")},
            "status": recreating(RecreateState("app", StatePhase.RECREATING)),
        }
        up = PodContainer("app", container_id="containerd://old", running=True, **policies)
        decision = one(request(**begun), instance("old", hook=HOOK), pod=pod(up))
        assert only(decision, RunHook).instance.id == "old"
        assert stops(one(request(status=recreating(killed())), instance("old"), pod=pod(up))) == ["old"]

    def test_what_was_stopped_is_not_said_to_stay_down_before_the_version_is_known(self) -> None:
        ended = self.ended(RestartPolicy.NEVER, RestartPolicy.ALWAYS, 143)
        req = request(status=recreating(killed()))
        assert not actions(one(req, exited("old"), pod=pod(ended)), WriteStatus)
        assert written(one(req, exited("old"), pod=pod(ended), kubelet_minor=34)).states[0].reason is Reason.LEFT_DOWN

    def test_what_ended_by_itself_is_not_awaited_for_ever(self) -> None:
        """Kubelet leaves it down, the version is not known, and nothing was stopped for the request."""
        ended = self.ended(RestartPolicy.ALWAYS, RestartPolicy.NEVER, 137)
        req = request(status=recreating(RecreateState("app", StatePhase.RECREATING)))
        assert written(one(req, exited("old"), pod=pod(ended))).states[0].reason is Reason.LEFT_DOWN

    @pytest.mark.parametrize(
        ("of_pod", "own"),
        [(RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE), (RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS)],
    )
    def test_what_both_policies_let_stop_is_not_awaited_for_ever(
        self, of_pod: RestartPolicy, own: RestartPolicy
    ) -> None:
        """Nobody ever learns the version, and kubelet leaves the container down: it ended with code 0."""
        ended = self.ended(of_pod, own, 0)
        decision = one(request(status=recreating(killed())), exited("old"), pod=pod(ended))
        assert written(decision).states[0].reason is Reason.LEFT_DOWN

    def test_rules_are_not_heeded_by_an_older_kubelet(self) -> None:
        rules = ({"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}},)
        ended = PodContainer(
            "app",
            restart_policy=RestartPolicy.ON_FAILURE,
            restart_rules=rules,
            container_id="containerd://old",
            terminated=True,
            exit_code=0,
        )
        req = request(status=recreating(killed()))
        for minor, phase in ((34, StatePhase.FAILED), (35, StatePhase.RECREATING), (None, StatePhase.RECREATING)):
            decision = one(req, exited("old"), pod=pod(ended), kubelet_minor=minor)
            states = written(decision).states if actions(decision, WriteStatus) else req.status.states
            assert states[0].phase is phase


class TestTwoInstancesOfOneName:
    """Step 4: kubelet can leave an instance behind, which runs on beside a newer one."""

    def test_the_one_that_is_meant_is_stopped(self) -> None:
        both = (instance("old"), instance("new", created_at=2, restart_count=1))
        assert stops(one(request(), *both)) == ["old"]

    def test_and_only_that_one(self) -> None:
        both = (instance("older"), instance("old", created_at=2, restart_count=1))
        plain = request()
        meant = tuple(replace(each, context=pin("old", 1)) for each in plain.containers)
        assert stops(one(replace(plain, containers=meant), *both)) == ["old"]

    def test_one_that_was_never_started_is_not(self) -> None:
        left = instance("old", state=ContainerState.CREATED)
        assert stops(one(request(), left, instance("new", created_at=2, restart_count=1))) == []


class TestTheStopAfterAHookOfAnEndedRequest:
    """Step 9: a container whose preStop hook has run is stopped, though its request has ended or gone."""

    def test_is_sent_when_it_may_be(self) -> None:
        looked = observed(instance("old"), ended=(request(),), works=hooked(HookResult(2.0)))
        sent = only(decided([], looked, NOW), StopContainer)
        assert (sent.instance.id, sent.seconds) == ("old", 28), "of 30 s, its hook took 2"
        decision = decided([], replace(looked, pod=replace(looked.pod, may_stop=False)), NOW)
        assert stops(decision) == []
        assert decision.waits_for_slot

    @pytest.mark.parametrize(
        "seen",
        [
            {"pod": None, "answer": ApiAnswer(None, NOW)},
            {"pod": pod(uid="another")},
            {"pod": pod(deleting=True)},
            {"pod": pod(phase="Failed")},
            {"pod": None, "api_silent": True, "deleting_uid": "uid-of-web"},
        ],
    )
    def test_is_left_to_kubelet_where_the_pod_goes_or_has_gone(self, seen: dict[str, Any]) -> None:
        works = hooked(HookResult(2.0), until=NOW)
        looked = observed(instance("old"), ended=(request(),), works=works, **seen)
        assert not stops(decided([], looked, NOW))

    @pytest.mark.parametrize(("pod_uid", "wake_at"), [(POD_UID, None), ("", None), ("of the mirror pod", NOW + 1)])
    def test_of_a_static_pod_waits_for_its_next_mirror_pod(self, pod_uid: str, wake_at: float | None) -> None:
        req, works = request(pod_uid=pod_uid), hooked(HookResult(2.0))
        looked = observed(instance("old"), ended=(req,), works=works, pod=None, answer=ApiAnswer(None, NOW))
        assert decided([], looked, NOW) == Decision(wake_at=wake_at)

    @pytest.mark.parametrize(
        ("work", "live", "sent"),
        [
            (stopping(uid="r2"), False, False),
            (stopped(90.0, StopAttempt(1, 99.9, "broken"), uid="r2"), True, False),
            (stopped(90.0, StopAttempt(1, 99.9, "broken"), uid="r2"), False, True),
        ],
        ids=["which stops it now", "which is live and will retry", "which has gone after a failure"],
    )
    def test_is_left_to_another_request(self, work: dict[tuple[str, str], Work], live: bool, sent: bool) -> None:
        works = hooked(HookResult(2.0)) | work
        looked = observed(instance("old"), ended=(request(),), works=works)
        assert stops(decided([request(uid="r2")] if live else [], looked, NOW)) == ["old"] * sent

    def test_the_live_requests_are_looked_at_right_after_it(self) -> None:
        looked = observed(instance("old"), ended=(request(),), works=hooked(HookResult(2.0)))
        decision = decided([request(uid="r2")], looked, NOW)
        assert (stops(decision), decision.wake_at) == (["old"], NOW)

    @pytest.mark.parametrize(
        ("changes", "left", "sent"),
        [
            ({}, 20, False),
            ({}, -1, False),
            ({"api_silent": True}, 20, False),
            ({"api_silent": True, "draining": True}, 20, True),
            ({"draining": True}, 20, False),
            ({"api_silent": True}, 0, True),
        ],
    )
    def test_waits_for_the_api_server_to_say_that_the_pod_stays(
        self, changes: dict[str, Any], left: float, *, sent: bool
    ) -> None:
        """At most until the grace period ends, or until the daemon shuts down."""
        works = hooked(HookResult(2.0), until=NOW + left)
        looked = observed(instance("old"), ended=(request(),), works=works, pod=None, known_since=None, **changes)
        decision = decided([], looked, NOW)
        assert (stops(decision), decision.ask_api) == (["old"] * sent, not sent)
        assert sent or decision.wake_at == max(NOW, NOW + left)

    @pytest.mark.parametrize("failed", [(), (StopAttempt(1, ended=NOW - 5, error="broken"),)])
    def test_a_silent_kubelet_is_looked_at_once_a_second(self, failed: tuple[StopAttempt, ...]) -> None:
        last = next(iter(failed), None)
        works = {key: replace(work, last_stop=last) for key, work in hooked(HookResult(2.0)).items()}
        looked = observed(instance("old"), ended=(request(),), works=works, kubelet_silent_since=NOW - 60)
        decision = decided([], looked, NOW)
        assert (stops(decision), decision.wake_at) == ([], NOW + 1)


class TestWhatIsWaitedFor:
    """Steps 9 and 10: a wait that takes longer than a healthy container's is told."""

    def test_a_stop_that_outlasts_the_grace_period(self) -> None:
        req = request(status=recreating(killed()))
        works = stopping(since=NOW - 40, seconds=30.0)  # since 10 s it should have ended
        state = written(one(req, instance("old"), works=works)).states[0]
        assert state.reason is Reason.NOT_ENDING
        assert state.message.startswith("the container is still running 10s after the end of its grace period")
        early = one(req, instance("old"), works=stopping(since=NOW - 34, seconds=30.0))
        assert not [each for each in actions(early, WriteStatus) if each.status.states[0].message]
        assert early.wake_at == NOW + 1

    def test_after_a_day_there_is_no_more_to_say(self) -> None:
        day = 24 * 3600
        req, works = request(status=recreating(killed())), stopping(since=NOW - 30 - day, seconds=30.0)
        decision = one(req, instance("old"), works=works)
        assert written(decision).states[0].message.startswith(f"the container is still running {day}s")
        assert decision.wake_at is None
        view = PodContainer("app", container_id="containerd://new", running=True)
        decision = one(req, instance("new", restart_count=1), pod=pod(view), running_since={"new": NOW - day})
        assert written(decision).states[0].message.startswith(f"the new container has been running for {day}s")
        assert decision.wake_at == NOW + LOOK_AT_UNREADY

    @pytest.mark.parametrize(
        ("shown", "why"),
        [
            ({"started": True}, "its readiness probe has not succeeded yet"),
            ({"started": False}, "its startup probe has not succeeded yet"),
            ({"container_id": "containerd://old"}, "kubelet has not reported it yet"),
        ],
    )
    def test_an_instance_that_does_not_get_ready(self, shown: dict[str, Any], why: str) -> None:
        req = request(status=recreating(killed()))
        view = replace(PodContainer("app", container_id="containerd://new", running=True), **shown)
        new = instance("new", restart_count=1)
        decision = one(req, new, pod=pod(view), running_since={"new": NOW - 12})
        state = written(decision).states[0]
        assert state.reason is Reason.NOT_READY
        assert state.message == f"the new container has been running for 10s, but is not ready: {why}"
        early = one(req, new, pod=pod(view), running_since={"new": NOW - 4})
        assert not actions(early, WriteStatus)
        assert early.wake_at == NOW + 1
