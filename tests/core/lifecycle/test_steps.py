"""The manager's rules one by one, and small worlds in which anything happens between any two of its writes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crrd.core.api.gate import NO_CONDITION, Readiness
from crrd.core.api.pod import PodMeta
from crrd.core.api.reasons import EventReason, Reason, reason_of
from crrd.core.api.time import rfc3339
from crrd.core.api.types import (
    FINALIZER,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.lifecycle import steps as lc
from crrd.core.lifecycle.readiness import acquired, released
from crrd.core.lifecycle.steps import ABORT_SECONDS, Steps, next_steps, pod_steps
from crrd.core.recreate.actions import EmitEvent

CREATED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
READY = Readiness("True")


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def request(name: str = "r", **changes: Any) -> Request:
    base = Request(
        namespace="ns",
        name=name,
        uid=f"uid-{name}",
        resource_version="1",
        created=rfc3339(CREATED),
        pod_name="web-0",
        pod_uid="pod-1",
        node_name="node-a",
        containers=(RequestedContainer("app"), RequestedContainer("side")),
    )
    return replace(base, **changes)


RECREATING = Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING), RecreateState("side")))
PENDING = Status(RequestPhase.PENDING, (RecreateState("app"), RecreateState("side")))
COMPLETED = Status(
    RequestPhase.COMPLETED,
    (RecreateState("app", StatePhase.SUCCEEDED), RecreateState("side", StatePhase.SUCCEEDED)),
    "2 of 2 containers recreated",
    rfc3339(at(10)),
)
GRACE = Strategy(unready_grace_seconds=5)
POD = PodMeta("ns", "web-0", "pod-1", readiness_gate=True, readiness=READY)
UNREADY = replace(POD, readiness=acquired(READY, "ns/r"))
NO_GATE = PodMeta("ns", "web-0", "pod-1")


def serving(**changes: Any) -> Request:
    return request(status=RECREATING, strategy=GRACE, **changes)


def completes(steps: Steps) -> bool:
    return any(isinstance(each, lc.Complete) for each in steps.actions)


def reasons(steps: Steps) -> list[Reason]:
    """Of the status that the first step writes, and of its containers."""
    complete = steps.actions[0]
    assert isinstance(complete, lc.Complete)
    return [complete.status.reason, *(state.reason for state in complete.status.states)]


class TestEnds:
    def test_a_served_request_is_left_alone(self) -> None:
        assert next_steps(request(status=RECREATING), POD, at(3000)) == Steps((), at(3660))

    def test_a_pod_that_has_gone_completes_the_request(self) -> None:
        steps = next_steps(request(status=RECREATING), None, at(7))
        status = Status(
            RequestPhase.COMPLETED,
            (
                RecreateState("app", StatePhase.FAILED, "the pod no longer exists"),
                RecreateState("side", StatePhase.FAILED, "the pod no longer exists"),
            ),
            "the pod no longer exists",
            "2026-03-01T12:00:07Z",
        )
        event = EmitEvent(
            request(status=RECREATING),
            EventReason.FAILED,
            "Request r: the pod no longer exists",
            container="",
            warning=True,
        )
        assert steps == Steps((lc.Complete(status), event))
        assert reasons(steps) == [Reason.POD_GONE] * 3

    def test_a_pod_that_was_replaced_is_gone(self) -> None:
        steps = next_steps(request(), replace(POD, uid="pod-2"), at(7))
        complete = steps.actions[0]
        assert isinstance(complete, lc.Complete)
        assert complete.status.message == (
            "the pod was replaced: the request is for UID pod-1, but ns/web-0 now has UID pod-2"
        )
        assert reasons(steps) == [Reason.POD_REPLACED] * 3

    def test_a_request_without_the_uid_label_takes_the_pod_of_its_name(self) -> None:
        assert next_steps(request(pod_uid="", status=PENDING), POD, at(7)).actions == ()

    @pytest.mark.parametrize(
        ("node", "message"),
        [
            ("node-a", "no node daemon answered the request on node node-a"),
            (
                "",
                "no node daemon answered the request, because admission set no label crr.apps.kruise.io/node-name",
            ),
        ],
    )
    def test_an_unanswered_request_ends_after_a_minute(self, node: str, message: str) -> None:
        view = request(node_name=node)
        assert next_steps(view, POD, at(59.9)) == Steps((), at(60))
        steps = next_steps(view, POD, at(60))
        complete = steps.actions[0]
        assert isinstance(complete, lc.Complete)
        assert complete.status.message == message
        assert reasons(steps) == [Reason.NO_ANSWER] * 3
        assert {state.phase for state in complete.status.states} == {StatePhase.FAILED}

    def test_a_request_of_an_api_server_whose_clock_is_behind_is_as_old_as_it_was_seen(self) -> None:
        view = request(deadline_seconds=30)
        assert next_steps(view, POD, at(91), since=at(90)).wake_at == at(120)
        assert reasons(next_steps(view, POD, at(120), since=at(90))) == [Reason.DEADLINE] * 3
        assert reasons(next_steps(request(), POD, at(150), since=at(90))) == [Reason.NO_ANSWER] * 3

    def test_a_pod_that_should_have_gone_long_ago_ends_its_requests(self) -> None:
        """Its node is dead, or the daemon there: nobody else says that nothing will be recreated any more."""
        going = replace(POD, deleting=True, grace_ends=rfc3339(at(40)))
        for view in (request(status=PENDING), serving(unready_acquired=True)):
            assert next_steps(view, going, at(69.9)).wake_at == at(70)
            steps = next_steps(view, going, at(70))
            assert reasons(steps) == [Reason.POD_DELETING] * 3
            assert isinstance(steps.actions[0], lc.Complete)
            assert steps.actions[0].status.message == "the pod is being deleted"

    @pytest.mark.parametrize("grace_ends", ["", "soon", "9999-12-31T23:59:59Z"])
    def test_a_pod_that_goes_nobody_knows_when_is_waited_for(self, grace_ends: str) -> None:
        going = replace(POD, deleting=True, grace_ends=grace_ends)
        assert next_steps(request(status=PENDING), going, at(3000)) == Steps((), at(3660))

    def test_the_deadline_ends_a_request_and_keeps_what_is_final(self) -> None:
        states = (
            RecreateState("app", StatePhase.SUCCEEDED, "kept", reason=Reason.HOOK_FAILED),
            RecreateState("side", StatePhase.RECREATING, "", True),
        )
        view = replace(request(status=Status(RequestPhase.RECREATING, states)), deadline_seconds=30)
        assert next_steps(view, POD, at(29)) == Steps((), at(30))
        steps = next_steps(view, POD, at(30))
        complete = steps.actions[0]
        assert isinstance(complete, lc.Complete)
        assert reasons(steps) == [Reason.DEADLINE, Reason.HOOK_FAILED, Reason.DEADLINE]
        reason = "activeDeadlineSeconds (30s) has passed"
        assert complete.status.states == (states[0], replace(states[1], phase=StatePhase.FAILED, message=reason))
        assert complete.status.message == reason
        assert complete.status.completion_time == "2026-03-01T12:00:30Z"

    def test_what_was_waited_for_last_stays_in_the_message(self) -> None:
        states = (RecreateState("app", StatePhase.RECREATING, "the new container is not ready", is_killed=True),)
        view = replace(request(status=Status(RequestPhase.RECREATING, states)), deadline_seconds=30)
        complete = next_steps(view, POD, at(30)).actions[0]
        assert isinstance(complete, lc.Complete)
        told = "activeDeadlineSeconds (30s) has passed; container app was still waiting: the new container is not ready"
        assert (complete.status.message, complete.status.states[0].message) == (told, told)
        assert reason_of(told, final=True) is Reason.DEADLINE

    @pytest.mark.parametrize(
        ("strategy", "containers", "seconds"),
        [
            (Strategy(), 1, 3630),
            (Strategy(), 2, 3660),
            (Strategy(grace_seconds=0), 2, 3600),
            (Strategy(grace_seconds=100, unready_grace_seconds=5, min_started_seconds=7), 2, 3600 + 5 + 2 * 107),
        ],
    )
    def test_a_request_without_a_deadline_has_one_all_the_same(
        self, strategy: Strategy, containers: int, seconds: int
    ) -> None:
        names = tuple(RequestedContainer(f"c{number}") for number in range(containers))
        view = request(status=PENDING, strategy=strategy, containers=names)
        assert next_steps(view, POD, at(seconds - 1)) == Steps((), at(seconds))
        complete = next_steps(view, POD, at(seconds)).actions[0]
        assert isinstance(complete, lc.Complete)
        assert complete.status.message == f"activeDeadlineSeconds ({seconds}s, the manager's default) has passed"
        assert complete.status.reason is Reason.DEADLINE
        assert next_steps(view, POD, at(0), slack=60).wake_at == at(seconds - 3600 + 60)

    def test_a_dead_node_keeps_no_pod_unready_for_ever(self) -> None:
        view = replace(serving(unready_acquired=True), finalizers=(FINALIZER,))
        complete = next_steps(view, UNREADY, at(3665)).actions[0]
        assert isinstance(complete, lc.Complete)
        ended = replace(view, status=complete.status)
        assert next_steps(ended, UNREADY, at(3665)).actions[0] == lc.ReleaseUnready(UNREADY, "ns/r")

    def test_the_earlier_of_two_times_wakes(self) -> None:
        assert next_steps(replace(request(), deadline_seconds=300), POD, at(1)).wake_at == at(60)
        assert next_steps(replace(request(), deadline_seconds=3), POD, at(1)).wake_at == at(3)

    def test_a_request_that_lost_its_active_label_ends_too(self) -> None:
        view = replace(request(active=False, status=RECREATING), deadline_seconds=30)
        assert isinstance(next_steps(view, POD, at(31)).actions[0], lc.Complete)

    @pytest.mark.parametrize("created", ["", "yesterday", "2026-03-01T12:00:00", "9999-12-31T23:59:59Z"])
    def test_an_impossible_creation_time_sets_no_timer(self, created: str) -> None:
        view = replace(request(created=created), deadline_seconds=2**62)
        assert next_steps(view, POD, at(10_000)) == Steps()

    def test_a_deadline_in_ages_to_come_sets_no_timer(self) -> None:
        view = replace(request(status=PENDING), deadline_seconds=2**62)
        assert next_steps(view, POD, at(10_000)) == Steps()


class TestUnready:
    def test_acquiring_takes_three_steps_in_this_order(self) -> None:
        mark = lc.RecordUnready("2026-03-01T12:00:02Z")
        acquire = lc.AcquireUnready(POD, "ns/r")
        assert next_steps(serving(), POD, at(2)).actions == (lc.AddFinalizer(), acquire, mark)
        guarded = replace(serving(), finalizers=("other", FINALIZER))
        assert next_steps(guarded, POD, at(2)).actions == (acquire, mark)
        assert next_steps(guarded, UNREADY, at(2)).actions == (mark,)
        done = replace(guarded, unready_acquired=True)
        assert next_steps(done, UNREADY, at(2)).actions == ()

    def test_an_entry_that_somebody_took_away_is_put_back(self) -> None:
        view = replace(serving(unready_acquired=True), finalizers=(FINALIZER,))
        assert next_steps(view, POD, at(2)).actions == (lc.AcquireUnready(POD, "ns/r"),)

    def test_the_deadline_is_watched_meanwhile(self) -> None:
        assert next_steps(replace(serving(), deadline_seconds=30), POD, at(2)).wake_at == at(30)

    @pytest.mark.parametrize(
        ("view", "pod"),
        [
            (serving(), NO_GATE),
            (serving(), replace(POD, deleting=True)),
            (serving(active=False), POD),
            (request(status=RECREATING), POD),
            (request(status=PENDING, strategy=GRACE), POD),
        ],
        ids=["no gate", "the pod is being deleted", "not active", "no grace period", "not its turn yet"],
    )
    def test_the_pod_is_not_made_unready(self, view: Request, pod: PodMeta) -> None:
        assert next_steps(view, pod, at(2)).actions == ()

    def test_what_was_acquired_is_released_when_it_is_wanted_no_more(self) -> None:
        view = replace(request(status=PENDING, strategy=GRACE), finalizers=(FINALIZER,))
        assert next_steps(view, UNREADY, at(2)).actions == (lc.ReleaseUnready(UNREADY, "ns/r"), lc.RemoveFinalizer())


class TestCleansUp:
    def test_a_completed_request_releases_the_pod_then_its_label(self) -> None:
        view = replace(request(status=COMPLETED, strategy=GRACE), finalizers=(FINALIZER,))
        assert next_steps(view, UNREADY, at(11)) == Steps(
            (lc.ReleaseUnready(UNREADY, "ns/r"), lc.RemoveFinalizer(), lc.RemoveActive())
        )

    @pytest.mark.parametrize("pod", [None, NO_GATE, replace(POD, uid="pod-2")], ids=["gone", "no gate", "replaced"])
    def test_without_its_pod_there_is_nothing_to_release(self, pod: PodMeta | None) -> None:
        view = replace(request(status=COMPLETED, active=False), finalizers=(FINALIZER,))
        assert next_steps(view, pod, at(11)) == Steps((lc.RemoveFinalizer(),))

    def test_a_completed_request_is_kept_without_a_time_to_live(self) -> None:
        assert next_steps(request(status=COMPLETED, active=False), None, at(10**8)) == Steps()

    @pytest.mark.parametrize(
        "told", ["2026-03-01T12:00:10Z", "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "", "soon"]
    )
    def test_the_time_to_live_counts_from_when_the_completion_was_seen(self, told: str) -> None:
        """Whatever the node's clock said of it."""
        view = replace(request(status=replace(COMPLETED, completion_time=told)), ttl_seconds=20)
        assert next_steps(view, POD, at(10)) == Steps((lc.RemoveActive(),), at(30))
        assert next_steps(view, POD, at(29), since=at(10)) == Steps((lc.RemoveActive(),), at(30))
        assert next_steps(view, POD, at(30), since=at(10)) == Steps((lc.RemoveActive(), lc.Delete()))

    def test_a_deleted_request_releases_the_pod_and_nothing_else(self) -> None:
        view = replace(serving(deleting=True), finalizers=(FINALIZER,), deadline_seconds=3)
        steps = Steps((lc.ReleaseUnready(UNREADY, "ns/r"), lc.RemoveFinalizer()))
        assert next_steps(view, UNREADY, at(100)) == steps
        assert next_steps(replace(view, finalizers=()), UNREADY, at(100)) == Steps(), "it vanishes anyhow"

    @pytest.mark.parametrize("status", [Status(), RECREATING, COMPLETED])
    def test_a_deleted_request_that_somebody_else_holds_loses_its_label(self, status: Status) -> None:
        view = request(deleting=True, status=status, finalizers=("other",))
        assert next_steps(view, UNREADY, at(100)) == Steps((lc.RemoveActive(),))
        assert next_steps(replace(view, active=False), UNREADY, at(100)) == Steps()
        both = replace(view, finalizers=("other", FINALIZER))
        assert next_steps(both, UNREADY, at(100)).actions == (lc.ReleaseUnready(UNREADY, "ns/r"), lc.RemoveFinalizer())


GUARDED = (FINALIZER,)


class TestPodThatCannotBeLookedUp:
    @pytest.mark.parametrize(
        ("view", "seconds", "expected"),
        [
            (request(), 59, Steps((), at(60))),
            (request(status=RECREATING, deadline_seconds=30), 29, Steps((), at(30))),
            (serving(), 2, Steps((), at(3665))),
            (serving(unready_acquired=True, finalizers=GUARDED), 2, Steps((), at(3665))),
            (request(status=PENDING, strategy=GRACE, finalizers=GUARDED), 2, Steps((), at(3665))),
            (request(status=COMPLETED, finalizers=GUARDED), 11, Steps((lc.RemoveActive(),))),
            (request(status=COMPLETED, finalizers=GUARDED, active=False), 11, Steps()),
            (request(status=COMPLETED, ttl_seconds=20), 29, Steps((lc.RemoveActive(),), at(30))),
            (request(status=COMPLETED, ttl_seconds=20), 30, Steps((lc.RemoveActive(), lc.Delete()))),
            (request(status=COMPLETED, ttl_seconds=20, active=False, finalizers=GUARDED), 30, Steps((lc.Delete(),))),
            (serving(deleting=True, finalizers=GUARDED), 100, Steps()),
            (serving(deleting=True, finalizers=("other",)), 100, Steps((lc.RemoveActive(),))),
        ],
    )
    def test_what_needs_no_pod_is_done_and_nothing_else(self, view: Request, seconds: float, expected: Steps) -> None:
        assert next_steps(view, None, at(seconds), known=False, since=at(10) if view.completed else None) == expected

    @pytest.mark.parametrize(
        ("view", "seconds", "reason"),
        [
            (request(), 60, Reason.NO_ANSWER),
            (request(status=RECREATING, deadline_seconds=30), 30, Reason.DEADLINE),
            (serving(finalizers=GUARDED), 3665, Reason.DEADLINE),
        ],
    )
    def test_time_alone_ends_a_request(self, view: Request, seconds: float, reason: Reason) -> None:
        steps = next_steps(view, None, at(seconds), known=False)
        assert steps == next_steps(view, POD, at(seconds))
        assert reasons(steps) == [reason] * 3

    def test_a_request_keeps_its_finalizer_while_kubelet_is_about_to_restart_a_container_for_it(self) -> None:
        ended = request(status=COMPLETED, finalizers=GUARDED)
        assert next_steps(ended, POD, at(11), held=True).actions == (lc.RemoveActive(),)
        assert next_steps(serving(deleting=True, finalizers=GUARDED), POD, at(11), held=True) == Steps()
        assert lc.RemoveFinalizer() in next_steps(ended, POD, at(11)).actions

    def test_a_run_that_stops_keeps_no_pod_unready_that_does_not_get_the_image(self) -> None:
        wanted = (RequestedContainer("app", image="app:2"),)
        status = Status(RequestPhase.RECREATING, (RecreateState("app"),))
        view = request(containers=wanted, status=status, strategy=GRACE, stopped=True)
        assert reasons(next_steps(view, POD, at(5))) == [Reason.RUN_STOPPED] * 2
        assert not completes(next_steps(serving(stopped=True), POD, at(5))), "a restart goes on"

    def test_an_abort_that_was_killed_keeps_no_pod_unready(self) -> None:
        """First, a pod may have the image, and its node not know it yet."""
        wanted = (RequestedContainer("app", image="app:2"),)
        status = Status(RequestPhase.RECREATING, (RecreateState("app"),))
        view = request(containers=wanted, status=status, strategy=GRACE, aborted=rfc3339(at(0)))
        early = next_steps(view, POD, at(ABORT_SECONDS - 1))
        assert (completes(early), early.wake_at) == (False, at(ABORT_SECONDS))
        assert reasons(next_steps(view, POD, at(ABORT_SECONDS))) == [Reason.RUN_STOPPED] * 2
        begun = replace(status, states=(RecreateState("app", StatePhase.RECREATING),))
        for other in (replace(view, status=begun), replace(view, aborted="yes"), serving(aborted=view.aborted)):
            assert not completes(next_steps(other, POD, at(ABORT_SECONDS)))


class TestPod:
    def test_a_gate_without_a_condition_gets_one(self) -> None:
        pod = replace(POD, readiness=NO_CONDITION)
        assert pod_steps(pod, ()) == Steps((lc.InitReadiness(pod),))

    @pytest.mark.parametrize("change", [{"readiness_gate": False}, {"deleting": True}, {"phase": "Failed"}])
    def test_other_pods_are_left_alone(self, change: dict[str, Any]) -> None:
        assert pod_steps(replace(POD, readiness=NO_CONDITION, **change), ()) == Steps()

    def test_an_entry_without_its_request_is_taken_back(self) -> None:
        both = replace(POD, readiness=acquired(UNREADY.readiness, "ns/s"))
        held = replace(request(), finalizers=(FINALIZER,))
        assert pod_steps(both, (held,)) == Steps((lc.ReleaseUnready(both, "ns/s"),))
        assert pod_steps(UNREADY, (serving(),)) == Steps()
        assert pod_steps(UNREADY, (request(status=COMPLETED),)).actions == (lc.ReleaseUnready(UNREADY, "ns/r"),)


@dataclass
class LifecycleWorld:
    """A pod, its requests and a clock; the manager's actions happen to it one by one, and a crash may cut them off."""

    requests: dict[str, Request] = field(default_factory=dict)
    pod: PodMeta | None = field(default_factory=lambda: replace(POD, readiness=NO_CONDITION))
    seconds: float = 0.0
    completed: dict[str, Status] = field(default_factory=dict)
    seen_ended: dict[str, datetime] = field(default_factory=dict)
    """By name of a request when this manager first saw that it was completed."""
    forced: bool = False
    """Somebody took a finalizer by force."""

    def put(self, view: Request) -> None:
        name = view.name
        if view.completed:
            assert self.completed.setdefault(name, view.status) == view.status, "Completed is final"
        self.requests[name] = view

    def change(self, name: str, **changes: Any) -> None:
        view = self.requests[name]
        self.put(replace(view, **changes))

    def remove(self, name: str) -> None:
        del self.requests[name]
        self.completed.pop(name, None)
        self.seen_ended.pop(name, None)

    def apply(self, name: str, action: lc.LifecycleAction) -> None:
        match action:
            case lc.InitReadiness(pod=pod):
                assert self.pod == pod
                self.pod = replace(pod, readiness=READY)
            case lc.AcquireUnready(key=key):
                assert self.pod is not None
                assert self.requests[name].has_finalizer
                self.pod = replace(self.pod, readiness=acquired(self.pod.readiness, key))
            case lc.ReleaseUnready(key=key):
                if self.pod is not None:
                    self.pod = replace(self.pod, readiness=released(self.pod.readiness, key))
            case EmitEvent():
                pass
            case _:
                self.apply_to_request(name, action)
        self.check()

    def apply_to_request(self, name: str, action: lc.RequestAction) -> None:
        view = self.requests[name]
        match action:
            case lc.AddFinalizer():
                assert not view.deleting
                self.put(replace(view, finalizers=(*view.finalizers, FINALIZER)))
            case lc.RemoveFinalizer():
                self.leave(name, FINALIZER)
            case lc.RecordUnready():
                self.change(name, unready_acquired=True)
            case lc.RemoveActive():
                self.change(name, active=False)
            case lc.Complete(status=status):
                self.change(name, status=status)
            case lc.Delete():
                self.delete(name)

    def delete(self, name: str) -> None:
        self.change(name, deleting=True)
        self.leave(name)

    def leave(self, name: str, finalizer: str = "") -> None:
        """Take a finalizer; a deleted request without any is no more."""
        view = self.requests[name]
        self.change(name, finalizers=tuple(found for found in view.finalizers if found != finalizer))
        if view.deleting and not self.requests[name].finalizers:
            self.remove(name)

    def check(self) -> None:
        """The module's invariant."""
        if self.pod is None or self.forced:
            return
        for key in self.pod.readiness.keys:
            holder = next((view for view in self.requests.values() if view.key == key), None)
            assert holder is not None, f"{key} keeps the pod unready and is not there"
            assert holder.has_finalizer

    def run(self, crash_after: int | None = None, *, known: bool = True) -> bool:
        """The manager's turn: once over everything, or until it crashes; whether there was anything to do.

        It does not know of the pod where it could not be looked up.
        """
        busy = False
        left = 10**9 if crash_after is None else crash_after
        for name in list(self.requests):
            view, now = self.requests[name], at(self.seconds)
            since = self.seen_ended.setdefault(name, now) if view.completed else None
            pod = self.pod if known else None
            for action in next_steps(view, pod, now, known=known, since=since).actions:
                if not left:
                    self.seen_ended.clear()
                    return True
                left -= 1
                busy = True
                self.apply(name, action)
        for action in pod_steps(self.pod, self.requests.values()).actions if self.pod and known else ():
            busy = True
            self.apply("", action)
        return busy

    def settle(self, *, known: bool = True) -> None:
        for _ in range(10):
            if not self.run(known=known):
                return
        raise AssertionError("the manager never comes to rest")

    def node(self, name: str, phase: RequestPhase) -> None:
        """The node's daemon writes a phase, as far as it may."""
        view = self.requests.get(name)
        if view is None or not view.live:
            return
        moves = {RequestPhase.PENDING: PENDING, RequestPhase.RECREATING: RECREATING}
        order = list(RequestPhase)
        if phase is RequestPhase.COMPLETED:
            self.change(name, status=replace(COMPLETED, completion_time=rfc3339(at(self.seconds))))
        elif order.index(phase) > order.index(view.status.phase):
            self.change(name, status=moves[phase])

    def user(self, what: str, name: str) -> None:
        view = self.requests.get(name)
        if what == "replace pod":
            self.pod = None if self.pod else replace(POD, uid="pod-2", readiness=NO_CONDITION)
        if view is None:
            return
        if what == "delete":
            self.delete(name)
        elif what == "take finalizer":
            self.forced = True
            self.leave(name, FINALIZER)
        elif what == "hold" and not view.deleting and "other" not in view.finalizers:
            self.change(name, finalizers=(*view.finalizers, "other"))
        elif what == "take mark":
            self.change(name, unready_acquired=False)
        elif what == "clear condition" and self.pod is not None:
            self.pod = replace(self.pod, readiness=READY)


NAMES = st.sampled_from(["r", "s"])
USER_DOES = st.sampled_from(
    ["delete", "delete", "hold", "take finalizer", "take mark", "clear condition", "replace pod"]
)
Moment = Callable[[LifecycleWorld], object]


def wait(world: LifecycleWorld, seconds: float) -> None:
    world.seconds += seconds


MOMENTS: st.SearchStrategy[Moment] = st.one_of(
    st.builds(
        lambda crash, known: lambda world: world.run(crash, known=known),
        st.none() | st.integers(0, 4),
        st.sampled_from([True, True, False]),
    ),
    st.builds(lambda name, phase: lambda world: world.node(name, phase), NAMES, st.sampled_from(list(RequestPhase))),
    st.builds(lambda what, name: lambda world: world.user(what, name), USER_DOES, NAMES),
    st.builds(lambda seconds: lambda world: wait(world, seconds), st.sampled_from([1.0, 20.0, 70.0])),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    deadlines=st.tuples(st.none() | st.just(30), st.none() | st.just(100)),
    ttl=st.none() | st.just(25),
    moments=st.lists(MOMENTS, max_size=25),
    known=st.booleans(),
)
def test_whatever_happens_readiness_is_released_and_requests_end(
    deadlines: tuple[int | None, int | None], ttl: int | None, moments: list[Moment], *, known: bool
) -> None:
    """They end also where the pod cannot be looked up any more; what it needs for the rest waits until it can be."""
    world = LifecycleWorld()
    for name, deadline in zip("rs", deadlines, strict=True):
        world.put(request(name, strategy=GRACE, deadline_seconds=deadline, ttl_seconds=ttl))
    for moment in moments:
        moment(world)
        world.check()
    for seconds in (0, 3700, 26):
        wait(world, seconds)
        world.settle(known=known)
    for view in world.requests.values():
        assert view.completed or view.deleting, "a request ends"
        assert not view.active or (view.deleting and not known)
        assert view.deleting or ttl is None, "a completed request lives no longer than its TTL"
    world.settle()
    assert not any(view.active for view in world.requests.values())
    for name in list(world.requests):
        world.delete(name)
    world.settle()
    for name in list(world.requests):
        world.leave(name, "other")
    assert not world.requests
    assert world.pod is None or world.pod.readiness == READY


def acquired_world() -> LifecycleWorld:
    """Two requests of one pod, both with a grace period, the first served, the other behind it."""
    world = LifecycleWorld()
    for name in "rs":
        world.put(request(name, strategy=GRACE))
    world.run()
    return world


@pytest.mark.parametrize("steps_before", range(8))
@pytest.mark.parametrize("crash_after", [0, 1, 2])
def test_the_second_request_of_a_pod_runs_wherever_the_first_is_deleted(steps_before: int, crash_after: int) -> None:
    """The first request is deleted after any number of the manager's actions, which crashes soon after that, too."""
    world = acquired_world()
    world.node("r", RequestPhase.RECREATING)
    world.node("s", RequestPhase.PENDING)
    world.run(steps_before)
    world.user("delete", "r")
    world.run(crash_after)
    world.settle()
    assert "r" not in world.requests
    assert world.pod is not None
    assert world.pod.readiness == READY
    world.node("s", RequestPhase.RECREATING)
    world.settle()
    assert world.requests["s"].unready_acquired
    assert world.pod.readiness.acquired_by("ns/s")
    world.node("s", RequestPhase.COMPLETED)
    world.settle()
    assert world.pod.readiness == READY
    assert not world.requests["s"].has_finalizer


def test_of_two_unready_requests_the_last_one_makes_the_pod_ready() -> None:
    both = replace(POD, readiness=acquired(UNREADY.readiness, "ns/s"))
    world = LifecycleWorld(pod=both)
    for name in "rs":
        world.put(
            replace(
                request(name, status=RECREATING, strategy=GRACE, unready_acquired=True),
                finalizers=(FINALIZER,),
            )
        )
    world.node("r", RequestPhase.COMPLETED)
    world.settle()
    assert world.pod is not None
    assert world.pod.readiness == acquired(READY, "ns/s")
    world.node("s", RequestPhase.COMPLETED)
    world.settle()
    assert world.pod.readiness == READY
