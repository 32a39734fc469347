"""The manager's steps for a request that it carries out by a patch of the pod: one row a situation."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import (
    FINALIZER,
    FailurePolicy,
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import LONGEST_SECONDS, SHORTEST_SECONDS, Action, PatchPod, Step, Turn, next_step
from crrd.core.patching.view import Seen, View
from crrd.core.recreate.actions import EmitEvent
from crrd.core.rollout.patch.operations import record_of, restart
from crrd.core.rollout.patched import read_patched
from tests.support.rollouts import BEFORE, run
from tests.support.spelled import Json, SpelledPods, image_of, started, stopped, waiting, with_image, with_status

GATED = {"readinessGates": [{"conditionType": "KruisePodReady"}]}
GRACE = Strategy(unready_grace_seconds=5)


@dataclass
class AskedPod:
    """A pod, a request for it, and a manager that knows both. The pod is patched as the API server does it."""

    request: Request
    pods: SpelledPods
    seen: Seen = field(default_factory=Seen)
    served: bool = False
    first: bool = True
    deadline: str = "60s"
    left: float = 3600.0
    minor: int | None = None
    seconds: float = 1000.0
    patches: int = 0

    @property
    def pod(self) -> Json:
        return self.pods.pods["uid-1"].obj

    def put(self, change: Callable[..., Json], *args: Any, **more: Any) -> None:
        """Change the pod by one of the functions of `spelled`."""
        self.pods.store(change(self.pod, *args, **more))

    def start(self, name: str = "app", *, ready: bool = True) -> None:
        self.put(started, name, self.pods.time, ready=ready)

    def passes(self, seconds: float) -> None:
        self.seconds += seconds
        self.pods.now += timedelta(seconds=seconds)

    def step(self) -> Step:
        """The next step, which is not carried out."""
        member = self.pods.pods["uid-1"].member
        self.seen = self.seen.after(self.request, member, self.seconds)
        facts = {"first": self.first, "served": self.served, "deadline": self.deadline, "kubelet_minor": self.minor}
        facts["left"] = self.left
        return next_step(View(self.request, member, self.seen, now=self.seconds, utc=self.pods.now, **facts))  # type: ignore[arg-type]

    def carry_out(self, action: Action) -> None:
        match action:
            case lc.Progress(status=status) | lc.Complete(status=status):
                self.request = replace(self.request, status=status)
            case lc.AddFinalizer():
                self.request = replace(self.request, finalizers=(FINALIZER,))
            case PatchPod(operations=operations):
                assert self.pods.patch("uid-1", operations) is not None
                self.patches += not action.back

    def rest(self) -> Step:
        """The steps are carried out until one has nothing to write. It is returned."""
        for _ in range(12):
            step = self.step()
            if step.action is None:
                return step
            self.carry_out(step.action)
        raise AssertionError("it never comes to rest")

    @property
    def phases(self) -> list[StatePhase]:
        return [each.phase for each in self.request.status.states]

    @property
    def reasons(self) -> list[Reason]:
        return [each.reason for each in self.request.status.states]


def asked(*names: str, **changes: Any) -> Request:
    containers = tuple(RequestedContainer(name, Pin(f"containerd://uid-1-{name}-0", 0)) for name in names or ("app",))
    plain = Request("default", "r", "uid-r", "1", BEFORE, "web-1", "uid-1", "node-a", containers)
    return replace(plain, **changes)


def world(*names: str, spec: Json | None = None, **changes: Any) -> AskedPod:
    pods = SpelledPods()
    pods.add(BEFORE)
    found = AskedPod(asked(*names, **changes), pods)
    if spec is not None:
        found.put(lambda pod: {**pod, "spec": {**pod["spec"], **spec}})
    return found


def turns(found: AskedPod, until: Turn) -> list[Turn]:
    """The turns until this one, which is not carried out."""
    seen = []
    while (step := found.step()).turn is not until:
        assert step.action is not None, step
        seen.append(step.turn)
        found.carry_out(step.action)
    return seen


def texts(step: Step) -> list[tuple[EventReason, str]]:
    return [(each.reason, each.message) for each in step.events]


class TestPlain:
    def test_from_the_first_write_to_the_end(self) -> None:
        found = world()
        assert turns(found, Turn.PATCHED) == [Turn.BEGUN, Turn.KEPT]
        step = found.step()
        assert texts(step) == [(EventReason.RECREATING, "Stopping container app to recreate it")]
        assert step.action is not None
        found.carry_out(step.action)
        waits = found.rest()
        assert (waits.turn, waits.held, waits.wait) == (Turn.RESTARTING, True, SHORTEST_SECONDS)
        assert found.phases == [StatePhase.RECREATING]
        assert "@sha256:" in image_of(found.pod, "app")
        assert image_of(found.pod, "log") == "log:1"
        found.put(stopped, "app", found.pods.time)
        assert found.rest().turn is Turn.RESTARTING
        found.start(ready=False)
        assert found.rest().turn is Turn.RESTARTING
        found.put(with_status, "app", found.pods.time, ready=True)
        done = found.step()
        assert texts(done) == [(EventReason.RECREATED, "Container app was recreated as containerd://uid-1-app-1")]
        assert found.rest() == Step(Turn.OVER)
        status = found.request.status
        assert (status.phase, status.message, status.reason) == (
            RequestPhase.COMPLETED,
            "1 of 1 containers recreated",
            Reason.NONE,
        )
        assert (found.phases, found.patches) == ([StatePhase.SUCCEEDED], 1)

    def test_two_containers_in_one_patch(self) -> None:
        found = world("app", "log")
        assert found.rest().turn is Turn.RESTARTING
        assert (found.patches, found.phases) == (1, [StatePhase.RECREATING] * 2)
        found.start("log")
        assert found.rest().turn is Turn.RESTARTING
        assert found.phases == [StatePhase.RECREATING, StatePhase.SUCCEEDED]
        found.start("app")
        assert found.rest().turn is Turn.OVER
        assert found.request.status.message == "2 of 2 containers recreated"

    def test_one_after_the_other(self) -> None:
        found = world("app", "log", strategy=Strategy(ordered=True))
        assert found.rest().turn is Turn.RESTARTING
        assert found.phases == [StatePhase.RECREATING, StatePhase.PENDING]
        found.start("app", ready=False)
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 1)
        found.put(with_status, "app", found.pods.time, ready=True)
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 2)
        assert found.phases == [StatePhase.SUCCEEDED, StatePhase.RECREATING]
        record = record_of(found.pods.pods["uid-1"].member)
        assert record is not None
        assert [each.name for each in record.containers] == ["app", "log"]
        found.start("log")
        assert found.rest().turn is Turn.OVER

    def test_the_next_request_has_another_spelling(self) -> None:
        found, images = world(), set[str]()
        for number in range(3):
            found.rest()
            found.start()
            assert found.rest().turn is Turn.OVER
            images.add(image_of(found.pod, "app"))
            pin = Pin(f"containerd://uid-1-app-{number + 1}", number + 1)
            found.request = asked(uid=f"uid-{number}", containers=(RequestedContainer("app", pin),))
        assert len(images) == 2
        assert found.patches == 3

    def test_a_container_must_run_for_a_while(self) -> None:
        found = world(strategy=Strategy(min_started_seconds=7))
        found.rest()
        found.start()
        assert found.rest().turn is Turn.RESTARTING
        found.passes(6)
        assert found.rest().turn is Turn.RESTARTING
        found.passes(1)
        assert found.rest().turn is Turn.OVER

    def test_it_counts_anew_for_another_instance(self) -> None:
        found = world(strategy=Strategy(min_started_seconds=7))
        found.rest()
        found.start()
        found.rest()
        found.passes(6)
        found.start()
        found.rest()
        found.passes(6)
        assert found.rest().turn is Turn.RESTARTING
        found.passes(1)
        assert found.rest().turn is Turn.OVER

    def test_the_pauses_grow(self) -> None:
        found = world()
        found.rest()
        for age, wait in ((0, SHORTEST_SECONDS), (8, 2.0), (400, LONGEST_SECONDS)):
            later = replace(found, seconds=found.seconds + age)
            assert later.rest().wait == wait


class TestInstances:
    """Only the instance that the request means is stopped (step 4)."""

    @pytest.mark.parametrize("pin", [Pin("containerd://older", 0), Pin("containerd://uid-1-app-0", -1)])
    def test_another_one_counts_as_recreated(self, pin: Pin) -> None:
        found = world(containers=(RequestedContainer("app", pin),))
        assert found.rest().turn is Turn.OVER
        assert (found.patches, found.phases) == (0, [StatePhase.SUCCEEDED])

    def test_kubelet_restarts_it_before_the_patch(self) -> None:
        found = world()
        turns(found, Turn.PATCHED)
        patch = found.step().action
        assert isinstance(patch, PatchPod)
        found.start(ready=False)
        assert found.pods.patch("uid-1", patch.operations) is None
        assert found.rest().turn is Turn.RESTARTING
        found.put(with_status, "app", found.pods.time, ready=True)
        assert found.rest().turn is Turn.OVER
        assert (found.patches, found.phases) == (0, [StatePhase.SUCCEEDED])

    def test_one_that_has_ended_by_itself_is_awaited(self) -> None:
        found = world()
        found.put(stopped, "app", found.pods.time)
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 0)
        found.passes(6)
        found.rest()
        assert found.reasons == [Reason.NOT_STARTED_AGAIN]
        found.start()
        assert found.rest().turn is Turn.OVER

    def test_one_that_kubelet_replaces_for_another_image_is_awaited(self) -> None:
        found = world()
        found.put(with_image, "app", "app:2", found.pods.time)
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 0)
        found.start()
        assert (found.rest().turn, found.phases) == (Turn.OVER, [StatePhase.SUCCEEDED])
        assert image_of(found.pod, "app") == "app:2"

    def test_one_in_back_off_is_awaited(self) -> None:
        """A patch at the end of the back-off would start it twice, and kubelet 1.36 reports it only then."""
        found = world()
        found.put(waiting, "app", found.pods.time, "CrashLoopBackOff")
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 0)
        assert found.request.status.states[0].message == "CrashLoopBackOff: as kubelet says"

    def test_a_container_that_was_begun_is_never_patched_without_its_record(self) -> None:
        """A node daemon has begun it, or somebody has removed the record."""
        begun = Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING),))
        found = world(status=begun)
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 0)
        found.start()
        assert found.rest().turn is Turn.OVER

    def test_a_container_that_is_not_in_the_pod(self) -> None:
        found = world("app", "gone")
        assert found.rest().turn is Turn.OVER
        assert found.reasons == [Reason.EARLIER_FAILURE, Reason.CONTAINER_NOT_FOUND]
        assert (found.patches, found.request.status.reason) == (0, Reason.CONTAINER_NOT_FOUND)

    def test_a_container_without_an_id_is_awaited(self) -> None:
        found = world()
        found.put(
            with_status, "app", found.pods.time, containerID="", state={"waiting": {"reason": "CrashLoopBackOff"}}
        )
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 0)


class TestTurns:
    def test_a_node_daemon_serves_the_node(self) -> None:
        found = world()
        found.served = True
        assert found.step() == Step(Turn.SERVED)
        found.served = False
        found.rest()
        found.served = True
        assert found.rest().turn is Turn.RESTARTING, "what was begun goes on"

    def test_another_request_comes_first(self) -> None:
        found = world("app", "log")
        found.first = False
        waits = found.rest()
        assert (waits.turn, waits.held, waits.wait) == (Turn.QUEUED, True, None)
        assert (found.request.status.phase, found.phases) == (RequestPhase.PENDING, [StatePhase.PENDING] * 2)
        found.first = True
        assert found.rest().turn is Turn.RESTARTING

    @pytest.mark.parametrize("over", [{"deleting": True}, {"active": False}])
    def test_a_request_that_has_ended_begins_nothing(self, over: dict[str, Any]) -> None:
        found = world(**over)
        assert found.rest() == Step(Turn.OVER)

    def test_a_deleted_request_stays_until_kubelet_has_started_its_container(self) -> None:
        found = world()
        found.rest()
        found.request = replace(found.request, deleting=True)
        waits = found.rest()
        assert (waits.turn, waits.held, waits.wait) == (Turn.AWAITED, True, SHORTEST_SECONDS)
        found.start()
        assert found.rest() == Step(Turn.OVER)

    def test_a_deleted_request_gives_its_image_back(self) -> None:
        found = world()
        found.rest()
        found.request = replace(found.request, deleting=True)
        found.put(waiting, "app", found.pods.time, "ErrImageNeverPull")
        assert found.rest() == Step(Turn.OVER)
        assert image_of(found.pod, "app") == "app:1"

    def test_a_pod_that_goes_needs_no_image_back(self) -> None:
        found = world()
        found.rest()
        found.put(lambda pod: {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": found.pods.time}})
        assert found.rest().turn is Turn.OVER
        assert found.request.status.reason is Reason.POD_DELETING

    def test_a_pod_that_has_ended(self) -> None:
        found = world()
        found.put(lambda pod: {**pod, "status": {**pod["status"], "phase": "Failed"}})
        step = found.step()
        assert texts(step) == [
            (
                EventReason.FAILED,
                "Request r: the pod has ended (phase Failed), so kubelet does not start containers in it",
            )
        ]
        assert found.rest().turn is Turn.OVER
        assert found.reasons == [Reason.POD_ENDED]

    def test_the_deadline_ends_it_elsewhere(self) -> None:
        found = world()
        found.rest()
        found.left = 0
        assert found.step().turn is Turn.BACK
        assert found.rest() == Step(Turn.OVERDUE)
        assert image_of(found.pod, "app") == "app:1"
        record = record_of(found.pods.pods["uid-1"].member)
        assert record is not None
        assert record.containers[0].failure == "activeDeadlineSeconds (60s) has passed"

    def test_nothing_is_patched_that_may_not_start_before_the_deadline(self) -> None:
        """It would get its image back while it is stopped, and kubelet would restart it twice."""
        found = world()
        found.left = 60  # the pod's grace period, and 30 s
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 1)
        found = world()
        found.left = 59
        assert (found.rest(), found.patches, found.reasons) == (Step(Turn.OVER), 0, [Reason.TOO_LATE])
        assert found.request.status.states[0].message == (
            "not stopped, because kubelet may need 60s to start it again, and activeDeadlineSeconds (60s) ends before "
            "that"
        )

    def test_two_containers_stop_one_after_the_other(self) -> None:
        found = world("app", "log")
        found.left = 90  # twice the pod's grace period, and 30 s
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 1)
        found = world("app", "log")
        found.left = 89
        assert (found.rest(), found.patches, found.reasons) == (Step(Turn.OVER), 0, [Reason.TOO_LATE] * 2)

    def test_the_next_one_in_order_fails_once_the_ones_before_are_done(self) -> None:
        found = world("app", "log", strategy=Strategy(ordered=True))
        found.left = 60
        found.rest()
        found.left = 59
        assert (found.rest().turn, found.phases) == (Turn.RESTARTING, [StatePhase.RECREATING, StatePhase.PENDING])
        found.start("app")
        assert (found.rest(), found.patches) == (Step(Turn.OVER), 1)
        assert found.phases == [StatePhase.SUCCEEDED, StatePhase.FAILED]
        assert found.reasons == [Reason.NONE, Reason.TOO_LATE]

    def test_those_after_it_fail_too_if_failures_are_ignored(self) -> None:
        """None of them may be stopped: they would get their image back while they are down, and start twice."""
        found = world("app", "log", strategy=Strategy(FailurePolicy.IGNORE, ordered=True))
        found.left = 300
        assert found.step().turn is Turn.BEGUN
        found.left = 59
        assert (found.rest(), found.patches) == (Step(Turn.OVER), 0)
        assert found.reasons == [Reason.TOO_LATE] * 2

    def test_a_short_deadline_that_was_admitted_does_not_make_a_request_invalid(self) -> None:
        """Admission of an earlier version, or of a node daemon, has allowed it."""
        found = world(deadline_seconds=61)
        found.left = 61
        assert found.rest().turn is Turn.RESTARTING
        found.left = 30
        assert found.rest().turn is Turn.RESTARTING
        found.start("app")
        assert (found.rest(), found.phases) == (Step(Turn.OVER), [StatePhase.SUCCEEDED])

    def test_a_pod_is_not_kept_unready_for_nothing(self) -> None:
        """Neither for the unready grace period, nor for an earlier restart."""
        found = world(spec=GATED, strategy=GRACE, unready_acquired=True)
        assert found.rest().turn is Turn.UNREADY
        found.left = 59
        assert (found.rest(), found.reasons) == (Step(Turn.OVER), [Reason.TOO_LATE])

    def test_the_deadline_of_a_container_that_is_not_ready(self) -> None:
        found = world()
        found.rest()
        found.start(ready=False)
        found.left = 0
        assert found.rest() == Step(Turn.OVERDUE)
        assert "@sha256:" in image_of(found.pod, "app")


class TestOtherRestarts:
    """What was begun by another patch of the same pod comes first."""

    def by_run(self, found: AskedPod, *, ordered: bool = False) -> None:
        of = run("app", "log", patch=True, ordered=ordered) if ordered else run(patch=True)
        names = ("app", "log") if ordered else ("app",)
        member = found.pods.pods["uid-1"].member
        assert (
            found.pods.patch("uid-1", restart(member, of.request("web-1", "uid-1", names), found.pods.time)) is not None
        )

    def test_a_run_that_restarts_another_container(self) -> None:
        found = world("log")
        self.by_run(found)
        waits = found.rest()
        assert (waits.turn, waits.held, found.patches) == (Turn.BLOCKED, True, 0)
        status = found.request.status
        assert (status.phase, status.reason) == (RequestPhase.PENDING, Reason.OTHER_WORK)
        assert "a restart by a patch for run-" in status.message
        found.start("app")
        assert found.rest().turn is Turn.RESTARTING
        assert found.request.status.message == ""
        meta = found.pod["metadata"]
        assert set(meta["annotations"]) == {ANNOTATION_PATCHED}
        assert read_patched(found.pod) is None, "nobody takes it for the run"

    def test_a_run_in_order_that_is_between_two_containers(self) -> None:
        found = world("log")
        self.by_run(found, ordered=True)
        found.start("app")
        assert found.rest().turn is Turn.BLOCKED
        found.passes(601)
        assert found.rest().turn is Turn.RESTARTING, "the run has given up"

    def test_a_run_that_restarts_the_same_container(self) -> None:
        found = world()
        self.by_run(found)
        assert found.rest().turn is Turn.BLOCKED
        found.start()
        assert found.rest().turn is Turn.OVER
        assert (found.patches, found.phases) == (0, [StatePhase.SUCCEEDED])

    def test_another_request_whose_container_is_due(self) -> None:
        found = world("log")
        other = replace(found, request=asked("app", name="s", uid="uid-s"))
        other.rest()
        assert found.rest().turn is Turn.BLOCKED
        assert "a restart by a patch for s" in found.request.status.message
        found.start("app")
        assert found.rest().turn is Turn.RESTARTING

    def test_a_request_that_is_served_already_keeps_its_phase(self) -> None:
        found = world("log", status=Status(RequestPhase.RECREATING, (RecreateState("log"),)))
        self.by_run(found)
        assert found.rest().turn is Turn.BLOCKED
        assert found.request.status.phase is RequestPhase.RECREATING


class TestReadiness:
    def gated(self, **changes: Any) -> AskedPod:
        return world(spec=GATED, strategy=replace(GRACE, **changes))

    def test_the_pod_is_unready_first_and_for_a_while(self) -> None:
        found = self.gated()
        assert found.rest().turn is Turn.UNREADY
        assert found.request.status.reason is Reason.WAITING_FOR_UNREADY
        found.passes(100)
        assert found.rest().turn is Turn.UNREADY
        found.request = replace(found.request, unready_acquired=True)
        waits = found.rest()
        assert (waits.turn, waits.wait) == (Turn.UNREADY, 5)
        assert found.request.status.message == "the pod is unready; waiting 5s before stopping containers"
        found.passes(4)
        assert (found.rest().wait, found.patches) == (1, 0)
        found.passes(1)
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 1)
        assert found.request.status.message == ""

    def test_the_mark_goes_and_comes_back(self) -> None:
        found = self.gated()
        found.request = replace(found.request, unready_acquired=True)
        found.rest()
        found.passes(4)
        found.request = replace(found.request, unready_acquired=False)
        assert found.rest().turn is Turn.UNREADY
        found.request = replace(found.request, unready_acquired=True)
        found.passes(1)
        found.rest()
        found.passes(4)
        assert (found.rest().turn, found.patches) == (Turn.UNREADY, 0)

    def test_a_pod_without_the_gate_does_not_wait(self) -> None:
        found = world(strategy=GRACE)
        turns(found, Turn.PATCHED)
        assert [each.reason for each in found.step().events] == [EventReason.RECREATING, EventReason.NO_READINESS_GATE]
        found.rest()
        found.start()
        found.rest()
        assert found.request.status.message.endswith(
            "has no readiness gate KruisePodReady, so unreadyGracePeriodSeconds is ignored"
        )

    def test_only_the_first_container_waits(self) -> None:
        found = world("app", "log", spec=GATED, strategy=replace(GRACE, ordered=True), unready_acquired=True)
        found.rest()
        found.passes(5)
        found.rest()
        found.start("app")
        assert (found.rest().turn, found.patches) == (Turn.RESTARTING, 2)


class TestFailures:
    def test_kubelet_cannot_start_it(self) -> None:
        found = world()
        found.rest()
        found.put(waiting, "app", found.pods.time, "ErrImageNeverPull")
        step = found.step()
        assert (step.turn, step.held) == (Turn.BACK, True)
        assert found.rest().turn is Turn.OVER
        assert image_of(found.pod, "app") == "app:1"
        (state,) = found.request.status.states
        assert (state.phase, state.reason) == (StatePhase.FAILED, Reason.PATCH_FAILED)
        assert state.message.startswith("the restart by a patch of the pod has failed: kubelet cannot start it with")
        assert state.message.endswith("(ErrImageNeverPull: as kubelet says), so it gets app:1 back")
        assert found.request.status.reason is Reason.PATCH_FAILED

    @pytest.mark.parametrize("image", ["app:1", "app:2"])
    def test_somebody_else_sets_the_image(self, image: str) -> None:
        found = world()
        found.rest()
        found.put(with_image, "app", image, found.pods.time)
        assert found.rest().turn is Turn.OVER
        assert (image_of(found.pod, "app"), found.reasons) == (image, [Reason.PATCH_FAILED])

    def test_the_first_failure_ends_the_others_but_not_before_kubelet_has_started_them(self) -> None:
        found = world("app", "log")
        found.rest()
        found.put(with_image, "app", "app:2", found.pods.time)
        assert found.rest().turn is Turn.RESTARTING
        assert found.phases == [StatePhase.FAILED, StatePhase.RECREATING]
        found.start("log", ready=False)
        assert found.rest().turn is Turn.OVER
        assert found.reasons == [Reason.PATCH_FAILED, Reason.EARLIER_FAILURE]

    @pytest.mark.parametrize("ordered", [True, False])
    def test_failures_may_be_ignored(self, *, ordered: bool) -> None:
        found = world("app", "log", strategy=Strategy(FailurePolicy.IGNORE, ordered=ordered))
        found.rest()
        found.put(waiting, "app", found.pods.time, "InvalidImageName")
        assert found.rest().turn is Turn.RESTARTING
        assert found.phases == [StatePhase.FAILED, StatePhase.RECREATING]
        found.start("log")
        assert found.rest().turn is Turn.OVER
        assert found.request.status.message == "1 of 2 containers recreated; failed: app"

    def test_the_api_server_refuses_the_patch(self) -> None:
        found = world()
        turns(found, Turn.PATCHED)
        found.seen = replace(found.seen, refused="denied by a policy")
        step = found.step()
        assert step.turn is Turn.REFUSED
        assert found.rest().turn is Turn.OVER
        assert found.request.status.message == (
            "the API server refuses the patch that restarts the container: denied by a policy"
        )
        found.request = asked(uid="another")
        assert found.step().turn is not Turn.REFUSED

    @pytest.mark.parametrize("error", ["spec.podName must be a pod's name", ""])
    def test_a_request_that_no_patch_can_carry_out(self, error: str) -> None:
        found = world(error=error, containers=(RequestedContainer("app"),))
        assert found.rest().turn is Turn.OVER
        assert found.reasons == [Reason.INVALID_REQUEST]
        assert found.request.status.message == (
            error or "spec.containers[0].statusContext is missing: admission sets it"
        )

    def test_a_container_that_no_patch_can_restart(self) -> None:
        found = world("app", "log", spec={"restartPolicy": "OnFailure"})
        assert found.rest().turn is Turn.OVER
        assert (found.patches, found.reasons) == (0, [Reason.NEEDS_DAEMON] * 2)
        assert found.request.status.states[0].message == (
            "it cannot be restarted without a node daemon: the restartPolicy of container app is not Always, so "
            "kubelet may not start it again with an image"
        )

    def test_the_whole_pod_restarts(self) -> None:
        found = world()
        found.rest()
        found.start()
        found.put(lambda pod: with_condition(pod, "AllContainersRestarting"))
        assert found.rest().turn is Turn.RESTARTING
        assert found.reasons == [Reason.POD_RESTARTING]

    def test_what_a_slow_container_waits_for(self) -> None:
        found = world()
        found.rest()
        found.passes(34)
        found.rest()
        assert found.reasons == [Reason.NONE], "its grace period"
        found.passes(2)
        found.rest()
        assert found.request.status.states[0].message == "kubelet has not restarted the container for 5s"
        found.start(ready=False)
        found.rest()
        found.passes(12)
        found.rest()
        assert found.request.status.states[0].message == (
            "the new container has been running for 10s, but is not ready: its readiness probe has not succeeded yet"
        )
        found.put(waiting, "app", found.pods.time, "CrashLoopBackOff")
        found.rest()
        assert found.reasons == [Reason.HELD_BACK]


def with_condition(pod: Json, kind: str) -> Json:
    conditions = [*pod["status"]["conditions"], {"type": kind, "status": "True"}]
    return {**pod, "status": {**pod["status"], "conditions": conditions}}


def test_events_are_about_the_pod() -> None:
    found = world()
    turns(found, Turn.PATCHED)
    (event,) = found.step().events
    assert isinstance(event, EmitEvent)
    assert (event.container, event.request, event.pod) == ("app", found.request, found.pods.pods["uid-1"].member.pod)


def test_the_record_names_the_request() -> None:
    found = world()
    found.rest()
    stored = json.loads(found.pod["metadata"]["annotations"][ANNOTATION_PATCHED])
    assert (stored["request"], stored["uid"]) == ("r", "uid-r")
