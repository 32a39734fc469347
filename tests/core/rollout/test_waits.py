"""What a pod waits for that has its request: in the words of its status and of kubelet's events."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.reasons import Reason
from crrd.core.api.types import RecreateState, RequestPhase, StatePhase
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member, ProbeFailure, World
from crrd.core.rollout.waits import Wait, read_probe_failure
from tests.support.rollouts import NOW, asked, container, failed, member, planned, recreated, run, succeeded

RUN = run()
SAID = ProbeFailure("readiness probe failed: HTTP 503", NOW - timedelta(seconds=5))
LOGS = "kubectl logs web-2 -c app -n default"
STALE = (RecreateState("app", StatePhase.RECREATING, "CrashLoopBackOff: back-off 10s", reason=Reason.HELD_BACK),)


def row_of(pod: Member, request: RunRequest, **probes: ProbeFailure) -> Row:
    """Where the only pod of a run stands."""
    world = World((pod,), (request,), probes={(pod.pod.uid, name): said for name, said in probes.items()})
    (row,) = planned(world, RUN).rows
    return row


def with_container(pod: Member, **changes: Any) -> Member:
    """The pod with other values of its container `app`."""
    there = dict(pod.pod.containers)
    return replace(pod, pod=replace(pod.pod, containers={**there, "app": replace(there["app"], **changes)}))


def unready(seconds: float = 45, **changes: Any) -> Member:
    """A pod whose next instance has been running for so long, and is not ready."""
    pod = recreated(member("web-2"), ready=False, seconds=seconds)
    return with_container(pod, **{"ready": False, "started": True, **changes})


def recreating(**status: Any) -> RunRequest:
    return asked(RUN, member("web-2"), RequestPhase.RECREATING, **{"states": STALE, **status})


def test_a_pod_that_does_not_get_ready_names_its_probe_and_its_logs() -> None:
    row = row_of(unready(), recreating(), app=SAID)
    assert row.wait.why == "container app (app-2) is running, but not ready for 45s: readiness probe failed: HTTP 503"
    assert row.wait.topic == "container app (app-2) is running, but not ready: readiness probe failed: HTTP 503"
    assert (row.stage, row.wait.command) == (Stage.RECREATING, LOGS)
    assert row.wait.with_command == f"{row.wait.why} ({LOGS})"
    assert Wait("why").with_command == "why"


def test_an_event_of_the_second_in_which_the_container_started_is_about_it() -> None:
    at_once = replace(SAID, at=NOW - timedelta(seconds=45))
    assert row_of(unready(), recreating(), app=at_once).wait.why.endswith(SAID.message)


def test_a_container_is_named_by_as_much_of_its_id_as_crictl_shows() -> None:
    row = row_of(unready(container_id=f"containerd://{'0123456789abcdef' * 4}"), recreating(), app=SAID)
    assert row.wait.why.startswith("container app (0123456789ab) is running")


@pytest.mark.parametrize(("seconds", "said"), [(4.9, False), (5, True)])
def test_a_pod_that_is_unready_for_a_moment_is_nothing_to_speak_of(seconds: float, *, said: bool) -> None:
    why = row_of(unready(seconds), recreating(), app=SAID).wait.why
    assert said == ("is running, but not ready" in why)


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (unready(), "its readiness probe has not succeeded yet"),
        (unready(started=False), "its startup probe has not succeeded yet"),
    ],
)
def test_without_an_event_of_this_instance_the_probe_is_named(pod: Member, said: str) -> None:
    earlier = ProbeFailure("readiness probe failed: of the instance before", NOW - timedelta(minutes=5))
    for probes in ({}, {"app": earlier}):
        assert (
            row_of(pod, recreating(), **probes).wait.why
            == f"container app (app-2) is running, but not ready for 45s: {said}"
        )


def test_a_time_that_cannot_be_read_is_not_held_against_an_event() -> None:
    row = row_of(unready(started_at=""), recreating(), app=SAID)
    assert row.wait.why == "container app (app-2) is running, but not ready for 45s: readiness probe failed: HTTP 503"
    ready_meanwhile = replace(unready(started_at=""), ready=True)
    assert row_of(ready_meanwhile, recreating()).wait.why == "", "nobody says for how long"


def test_a_start_of_a_few_seconds_is_no_news() -> None:
    row = row_of(unready(seconds=4), recreating())
    assert (row.wait.why, row.wait.command) == ("", ""), "and what the request said of the instance before is over"


def test_what_holds_kubelet_back_now() -> None:
    crashed = with_container(unready(running=False), waiting_reason="CrashLoopBackOff", waiting_message="back-off 20s")
    row = row_of(crashed, recreating())
    assert (row.wait.why, row.wait.command) == ("app: CrashLoopBackOff: back-off 20s", f"{LOGS} --previous")
    row = row_of(unready(running=False, waiting_reason="ErrImagePull"), recreating())
    assert (row.wait.why, row.wait.command) == ("app: ErrImagePull", "kubectl describe pod web-2 -n default")


@pytest.mark.parametrize(
    ("pod", "state", "said"),
    [
        (member("web-2"), STALE, "CrashLoopBackOff: back-off 10s"),
        (recreated(member("web-2")), STALE, ""),
        (
            recreated(member("web-2")),
            (RecreateState("app", StatePhase.RECREATING, "waiting for: side", reason=Reason.NOT_BACK),),
            "waiting for: side",
        ),
    ],
)
def test_a_request_is_believed_while_the_pod_shows_nothing_newer(
    pod: Member, state: tuple[RecreateState, ...], said: str
) -> None:
    assert row_of(pod, recreating(states=state)).wait.why == said
    assert row_of(pod, recreating(states=state, message="of the request")).wait.why == (said or "of the request")


def test_a_recreated_pod_that_another_container_keeps_unready() -> None:
    side = container("side", ready=False, started=True)
    pod = replace(recreated(member("web-2", container(), side), ready=False), ready_since=NOW - timedelta(seconds=20))
    pod = replace(pod, pod=replace(pod.pod, containers={**pod.pod.containers, "side": side}))
    row = row_of(pod, succeeded(RUN, pod))
    assert (
        row.wait.why
        == "container side (side-1) is running, but not ready for 20s: its readiness probe has not succeeded yet"
    )
    assert row.stage is Stage.SETTLING
    row = row_of(recreated(member("web-2"), ready=False), succeeded(RUN, member("web-2")))
    assert (row.wait.why, row.wait.command) == ("the pod is not ready", "kubectl describe pod web-2 -n default")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_recreated_pod_that_has_ended_is_not_waited_for(phase: str) -> None:
    """It was evicted, or its Job is done: it never becomes ready again."""
    pod = recreated(member("web-2", phase=phase), ready=False)
    assert row_of(pod, succeeded(RUN, pod)).stage is Stage.DONE


def test_a_deadline_says_what_was_waited_for() -> None:
    over = failed(RUN, member("web-2"), Reason.DEADLINE, "activeDeadlineSeconds (20s) has passed")
    row = row_of(unready(), over, app=SAID)
    waited = "container app (app-2) is running, but not ready for 45s: readiness probe failed: HTTP 503"
    assert (row.stage, row.wait.command) == (Stage.FAILED, LOGS)
    assert row.wait.why == f"{waited}; app: activeDeadlineSeconds (20s) has passed"
    world = World((unready(),), (failed(RUN, member("web-2")),))
    found = planned(world, RUN)
    assert (found.end, found.rows[0].wait.why) == (End.FAILED, "app: it would not end"), "only a deadline needs it"


def event(**changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"},
        "involvedObject": {"uid": "uid-1", "fieldPath": "spec.containers{app}"},
        "message": "Readiness probe failed: HTTP probe failed\n  with statuscode: 503",
        "lastTimestamp": "2026-01-01T12:00:55Z",
        **changes,
    }


def test_an_event_of_kubelet() -> None:
    found = read_probe_failure(event())
    said = "readiness probe failed: HTTP probe failed with statuscode: 503"
    assert found == (("uid-1", "app"), ProbeFailure(said, NOW - timedelta(seconds=5)))
    created = read_probe_failure(event(lastTimestamp=None))
    assert created is not None
    assert created[1].at == NOW - timedelta(seconds=3660)
    page = read_probe_failure(event(message="<html>" * 999))
    assert page is not None
    assert len(page[1].message) == 200


@pytest.mark.parametrize("odd", [{"involvedObject": None}, {"message": " "}, {"lastTimestamp": None, "metadata": None}])
def test_an_event_that_says_nothing(odd: dict[str, Any]) -> None:
    assert read_probe_failure(event(**odd)) is None
