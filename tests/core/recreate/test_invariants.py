"""Each rule for decisions, against wrong decisions; the other tests check all those that `decide` makes."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import Request, RequestPhase, StatePhase, Status, Strategy
from crrd.core.recreate.actions import Action, Decision, RunHook, StopContainer, WriteStatus
from crrd.core.recreate.decide import WITHHELD_SECONDS, without_work
from crrd.core.recreate.invariants import Rule, check
from crrd.core.recreate.observation import (
    ApiAnswer,
    Hook,
    HookKind,
    HookResult,
    Observation,
    ObservedRequest,
    Sandbox,
    Work,
    WorkKind,
)
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from tests.support.worlds import (
    POD_UID,
    RUNTIME,
    Scene,
    exited,
    hooked,
    instance,
    killed,
    observed,
    pin,
    pod,
    recreating,
    request,
)

NOW = 100.0
OLD = instance("old")
DONE = request(status=Status(RequestPhase.COMPLETED))
PLAIN, GONE = request(), request(uid="gone")
HOOKED = {("gone", "old"): hooked(HookResult(1.0))["r1", "old"]}
MADE = Sandbox("second", RUNTIME, "default", "web", POD_UID, ready=True, created_at=2, attempt=1, request_uid="gone")
NEVER = pod(PodContainer("app", restart_policy=RestartPolicy.NEVER))
RESTARTS_ALL = pod(
    PodContainer("app", restart_rules=({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn"}},))
)


def stop(req: Request = PLAIN, container: Any = OLD, seconds: float = 30.0) -> StopContainer:
    return StopContainer(req, container, seconds, 0.0)


def hook(req: Request = PLAIN) -> RunHook:
    return RunHook(req, OLD, Hook(HookKind.EXEC), 30.0, 0.0)


def at_work(kind: WorkKind, until: float | None, uid: str = "gone") -> dict[tuple[str, str], Work]:
    return {(uid, "old"): Work("app", pin("old"), kind, until)}


def requests(scene: Scene, *, gone: bool = True) -> list[ObservedRequest]:
    return [scene.known(request(), NOW)] + [replace(scene.known(GONE, NOW), left=True)] * gone


def observation(scene: Scene, known: list[ObservedRequest] | None = None) -> Observation:
    return Observation(scene.pod, tuple(known or requests(scene)), scene.node, NOW)


def broken(*actions: Action, known: list[ObservedRequest] | None = None, **changes: Any) -> set[Rule]:
    scene = observed(**{"instances": (OLD,), **changes})
    found = check(Decision(actions), observation(scene, known))
    return {violation.rule for violation in found}


@pytest.mark.parametrize("action", [stop(), hook()])
def test_what_may_begin(action: Action) -> None:
    assert not broken(action)
    assert not broken(action, instances=(instance("old", state=ContainerState.UNKNOWN),))


def test_only_for_a_request_that_is_live_or_after_its_hook() -> None:
    assert broken(stop(GONE)) == {Rule.LIVE}
    assert not broken(stop(GONE), works=HOOKED)
    assert broken(hook(GONE), works=HOOKED) == {Rule.LIVE}
    assert broken(stop(request(uid="unknown"))) == {Rule.LIVE}
    assert broken(stop(request(error="no")), known=[ObservedRequest(request(error="no"), 0.0)]) == {Rule.LIVE}


def test_only_on_the_instance_that_is_meant_while_it_runs() -> None:
    assert broken(stop(container=instance("new")), instances=(OLD, instance("new"))) == {Rule.TARGET}
    assert broken(stop(), instances=()) == {Rule.TARGET}
    assert broken(stop(), instances=(exited("old"),)) == {Rule.TARGET}


@pytest.mark.parametrize(
    ("works", "breaks"),
    [
        (at_work(WorkKind.STOP, NOW + 40), [False, True]),
        (at_work(WorkKind.STOP, None), [False, True]),
        (at_work(WorkKind.STOP, NOW + 30), [True, True]),
        (at_work(WorkKind.HOOK, NOW + 40), [False, True]),
        (at_work(WorkKind.STOP, NOW + 40, uid="r1"), [True, True]),
    ],
    ids=["a longer stop", "a stop not sent yet", "a stop as long", "a hook", "its own stop"],
)
def test_only_where_nothing_else_is_at_work(works: dict[tuple[str, str], Work], breaks: list[bool]) -> None:
    """A stop may be shortened, and a hook broken off after the grace period; a hook waits for all of it."""
    assert [bool(broken(action, works=works, first_seen={"r1": NOW - 30})) for action in (stop(), hook())] == breaks


def test_a_hook_of_another_request_has_the_grace_period_of_this_one() -> None:
    works, seen = at_work(WorkKind.HOOK, NOW + 40), {"r1": NOW - 29}
    assert broken(stop(), works=works, first_seen=seen) == {Rule.ALONE}
    short = request(strategy=Strategy(grace_seconds=5))
    assert not broken(stop(short), works=works, known=requests_of(short, works))


def test_a_request_without_a_grace_period_waits_for_no_hook() -> None:
    works, at_once = at_work(WorkKind.HOOK, NOW + 40), request(strategy=Strategy(grace_seconds=0))
    assert not broken(stop(at_once), works=works, known=requests_of(at_once, works, NOW))


def requests_of(
    req: Request, works: dict[tuple[str, str], Work], first_seen: float = NOW - 29
) -> list[ObservedRequest]:
    scene = observed(OLD, works=works, first_seen={"r1": first_seen})
    return [scene.known(req, NOW), *requests(scene)[1:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"works": {("gone", "first"): Work("*", MADE.pin, WorkKind.SANDBOX)}},
        {"sandboxes": (MADE,)},
    ],
    ids=["is being made", "is there"],
)
def test_not_beside_a_second_sandbox_of_another_request(changes: dict[str, Any]) -> None:
    assert broken(stop(), **changes) == {Rule.ALONE}


def test_only_once_a_decision() -> None:
    assert broken(stop(), stop()) == {Rule.ALONE}


@pytest.mark.parametrize(
    "changes",
    [
        {"kubelet_silent_since": NOW - 10},
        {"unready": {"NetworkReady": "no CNI"}},
        {"unready": {"RuntimeReady": "away"}, "pod": pod(host_network=True)},
        {"pod": pod(deleting=True)},
        {"pod": pod(phase="Failed")},
        {"pod": pod(restarting=True)},
        {"pod": pod(PodContainer("other"))},
        {"pod": NEVER},
        {"pod": RESTARTS_ALL},
        {"pod": None},
    ],
    ids=[
        "kubelet is silent",
        "no network",
        "no runtime",
        "deleting",
        "ended",
        "restarting",
        "not in the pod",
        "Never",
        "whole pod",
        "no pod",
    ],
)
def test_only_where_kubelet_starts_the_container_again(changes: dict[str, Any]) -> None:
    assert broken(stop(), **changes) == {Rule.RETURNS}


def test_a_pod_on_the_network_of_the_host_needs_no_other() -> None:
    assert not broken(stop(), unready={"NetworkReady": "no CNI"}, pod=pod(host_network=True))


def test_what_has_begun_is_finished_whatever_the_restart_policy() -> None:
    begun = request(status=recreating(killed()))
    assert not broken(stop(begun), pod=NEVER, known=[ObservedRequest(begun, 0.0)])
    assert not broken(stop(), pod=NEVER, works=hooked(HookResult(1.0)))


def test_a_restart_of_the_whole_pod_that_the_request_allows() -> None:
    allows = request(strategy=Strategy(allow_pod_restart=True))
    assert not broken(stop(allows), pod=RESTARTS_ALL, known=[ObservedRequest(allows, 0.0)])


def test_the_stop_after_a_hook_without_an_answer_of_the_api_server() -> None:
    assert not broken(stop(GONE), works=HOOKED, pod=None)
    assert broken(stop(GONE), works=HOOKED, pod=None, deleting_uid="uid-of-web") == {Rule.RETURNS}


def test_the_answer_of_the_api_server_counts_where_no_watch_has_the_pod() -> None:
    assert not broken(stop(), pod=None, answer=ApiAnswer(pod(), NOW))
    assert broken(stop(), pod=None, answer=ApiAnswer(pod(deleting=True), NOW)) == {Rule.RETURNS}


def test_a_completed_request_is_never_written() -> None:
    again = WriteStatus(DONE, recreating())
    assert broken(again, known=[ObservedRequest(DONE, 0.0)]) == {Rule.FINAL}


class TestWithheld:
    """What is done instead of a wrong decision."""

    def test_no_hook_and_no_stop_begins_and_the_request_waits(self) -> None:
        scene = observed(OLD, first_seen={"r1": 0.0})
        wrong = Decision((stop(), hook(GONE), WriteStatus(request(), recreating(killed()))))
        left = without_work(wrong, observation(scene))
        (write,) = left.actions
        assert isinstance(write, WriteStatus)
        assert write.status.phase is RequestPhase.PENDING
        assert write.status.reason is Reason.DECISION_WITHHELD
        assert [state.phase for state in write.status.states] == [StatePhase.PENDING]
        assert left.wake_at == NOW + WITHHELD_SECONDS
        assert left.poll_runtime

    def test_other_requests_go_on_and_a_completed_one_is_not_written(self) -> None:
        scene = observed(OLD, first_seen={"r1": 0.0})
        waits = WriteStatus(request(uid="r2"), Status(RequestPhase.PENDING))
        wrong = Decision((waits, WriteStatus(DONE, recreating())))
        assert without_work(wrong, observation(scene)).actions == (waits,)
