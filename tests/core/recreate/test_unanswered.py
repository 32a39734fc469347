"""What was looked up and is not known yet: only what needs the answer waits, and says why after a moment."""

from collections.abc import Mapping

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import (
    FailurePolicy,
    Pin,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.actions import Decision, StopContainer, WriteStatus
from tests.support.worlds import decided, instance, observed, pin, pod, request

NOW = 100.0
NEW = "app:2"
REMOVED = pin("removed")


def one(req: Request, unanswered: Mapping[Pin | str | None, str]) -> Decision:
    scene = observed(instance("old"), unanswered=unanswered, first_seen={"r1": NOW - 5})
    return decided([req], scene, NOW)


def written(decision: Decision) -> Status | None:
    return next((each.status for each in decision.actions if isinstance(each, WriteStatus)), None)


def for_image() -> Request:
    return request(containers=(RequestedContainer("app", pin("old"), NEW),))


def test_a_request_waits_for_its_image() -> None:
    assert one(for_image(), {NEW: ""}) == Decision(), "the answer comes any moment"
    status = written(one(for_image(), {NEW: "no image service"}))
    assert status is not None
    assert (status.phase, status.reason) == (RequestPhase.PENDING, Reason.RUNTIME_UNAVAILABLE)
    assert status.message == "waiting for the container runtime: no image service"


def test_a_request_waits_for_the_version_of_kubelet() -> None:
    assert one(request(), {None: ""}) == Decision()


@pytest.mark.parametrize("why", ["", "away"])
def test_a_container_waits_for_what_its_id_is(why: str) -> None:
    wanted = RequestedContainer("app", pin("old")), RequestedContainer("side", REMOVED)
    view = pod(PodContainer("app", container_id="containerd://old", running=True, ready=True), PodContainer("side"))
    scene = observed(instance("old"), pod=view, unanswered={REMOVED: why}, first_seen={"r1": NOW - 5})
    decision = decided([request(containers=wanted)], scene, NOW)
    assert [each.instance.id for each in decision.actions if isinstance(each, StopContainer)] == ["old"]
    status = written(decision)
    assert (None if status is None else status.state("side").reason) == (Reason.RUNTIME_UNAVAILABLE if why else None)
    assert status is None or status.state("side").phase is StatePhase.PENDING


@pytest.mark.parametrize(("policy", "stopped"), [(FailurePolicy.FAIL, []), (FailurePolicy.IGNORE, ["old"])])
def test_the_next_one_waits_for_it_where_its_failure_would_end_the_request(
    policy: FailurePolicy, stopped: list[str]
) -> None:
    wanted = RequestedContainer("side", REMOVED), RequestedContainer("app", pin("old"))
    view = pod(PodContainer("app", container_id="containerd://old", running=True, ready=True), PodContainer("side"))
    req = request(containers=wanted, strategy=Strategy(failure_policy=policy))
    decision = decided([req], observed(instance("old"), pod=view, unanswered={REMOVED: ""}), NOW)
    assert [each.instance.id for each in decision.actions if isinstance(each, StopContainer)] == stopped


def test_of_two_ids_the_one_that_has_a_reason_says_why() -> None:
    pinned = request(pinned={"app": REMOVED}, strategy=Strategy(force=True))
    status = written(one(pinned, {pin("old"): "", REMOVED: "away"}))
    assert status is not None
    assert status.state("app").message == "waiting for the container runtime: away"
