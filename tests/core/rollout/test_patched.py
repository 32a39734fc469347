"""A request that is kept on its pod: what is recorded, and what the pod's status says of it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.pod import parse_pod
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import ANNOTATION_ABORTED, RecreateState, RequestPhase, StatePhase
from crrd.core.rollout.patch.operations import give_images_back, proceed
from crrd.core.rollout.patched import (
    CANNOT_START,
    PatchedContainer,
    PatchRecord,
    due_for_request,
    patched_requests,
    read_patched,
    read_record,
    status_of,
)
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import LABEL_RUN
from crrd.core.rollout.state import World, read_member
from crrd.core.rollout.waits import WaitReason
from tests.support.rollouts import run

DIGEST = f"sha256:{'0' * 64}"
CREATED = "2026-01-01T12:00:10Z"
ASKED = PatchedContainer("app", "containerd://one", 3, f"app@{DIGEST}", "app:1", f"app:1@{DIGEST}")
BY_PATCH = run(patch=True)


def record(*containers: PatchedContainer, **changes: Any) -> PatchRecord:
    plain = PatchRecord(BY_PATCH.request_name("uid-web-0"), CREATED, containers or (ASKED,))
    return replace(plain, **changes)


def text(**changes: Any) -> str:
    """The record's text, with other values."""
    return json.dumps({**json.loads(record().to_json()), **changes})


def of_container(**changes: Any) -> str:
    """The same, with other values of its container."""
    return text(containers=[{**json.loads(record().to_json())["containers"][0], **changes}])


def pod(kept: PatchRecord | str | None = None, *, image: str = ASKED.given, **status: Any) -> dict[str, Any]:
    """A pod as the API server returns it; `status` replaces fields of its container's status."""
    found = kept if isinstance(kept, str) else (kept or record()).to_json()
    plain: dict[str, Any] = {"name": "app", "containerID": ASKED.container_id, "restartCount": 3}
    plain |= {
        "imageID": ASKED.image_id,
        "image": ASKED.before,
        "state": {"running": {"startedAt": "2026-01-01T11:00:00Z"}},
    }
    meta: dict[str, Any] = {"name": "web-0", "namespace": "default", "uid": "uid-web-0", "resourceVersion": "7"}
    meta |= {"labels": {LABEL_RUN: BY_PATCH.name, "app": "web"}}
    meta["annotations"] = {**BY_PATCH.annotations(), ANNOTATION_PATCHED: found, "other": "kept"}
    spec = {"nodeName": "node-a", "containers": [{"name": "app", "image": image}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": [{**plain, **status}]}}


def read(**changes: Any) -> RunRequest:
    found = read_patched(pod(**changes))
    assert found is not None
    return found


STARTED = {"running": {"startedAt": "2026-01-01T12:00:12Z"}}


def test_it_is_a_request_of_its_run() -> None:
    found = read()
    assert (found.run, found.on_pod, found.creator, found.progress) == (BY_PATCH, True, "", None)
    asked = found.request
    assert (asked.name, asked.created, asked.error) == (BY_PATCH.request_name("uid-web-0"), CREATED, "")
    assert (asked.pod_name, asked.pod_uid, asked.node_name, asked.active) == ("web-0", "uid-web-0", "node-a", True)
    (each,) = asked.containers
    assert each.context is not None
    assert (each.name, each.context.container_id, each.context.restart_count) == ("app", "containerd://one", 3)
    assert found.started
    assert not asked.completed


def test_it_has_succeeded_with_the_next_instance_however_that_has_started() -> None:
    found = read(containerID="containerd://two", restartCount=4, state=STARTED)
    assert (found.succeeded, found.request.active) == (True, False)
    assert found.request.status.completion_time == "2026-01-01T12:00:12Z"
    crashes = read(containerID="containerd://two", state={"waiting": {"reason": "CrashLoopBackOff"}})
    assert (crashes.succeeded, crashes.request.status.completion_time) == (True, CREATED)


def failure_of(**changes: Any) -> tuple[str, str]:
    found = read(**changes)
    (state,) = found.request.status.states
    assert (state.phase, found.request.completed, found.succeeded) == (StatePhase.FAILED, True, False)
    return state.message, state.reason


def test_it_has_failed_if_another_writer_has_changed_the_image() -> None:
    message, _ = failure_of(image=ASKED.before)
    assert message == "somebody has given it the image app:1 back before kubelet restarted it"
    message, _ = failure_of(image="app:2")
    assert message == "somebody has given it the image app:2 meanwhile"


def test_a_later_change_of_the_image_does_not_matter() -> None:
    assert read(image="app:2", containerID="containerd://two", imageID=f"app@sha256:{'1' * 64}").succeeded


def test_it_has_failed_if_another_image_runs() -> None:
    message, _ = failure_of(containerID="containerd://two", imageID=f"app@sha256:{'1' * 64}")
    assert message.startswith(f"it runs another image than before: app@sha256:{'1' * 64} in place of {ASKED.image_id}")


@pytest.mark.parametrize("reason", CANNOT_START)
def test_it_has_failed_if_kubelet_cannot_start_the_spelling(reason: str) -> None:
    message, _ = failure_of(state={"waiting": {"reason": reason, "message": "no such image"}})
    assert (
        message
        == f"kubelet cannot start it with the image {ASKED.given} ({reason}: no such image), so it gets app:1 back"
    )


def test_a_long_message_of_kubelets_is_cut() -> None:
    """The annotations of a pod have a limit of size."""
    message, _ = failure_of(state={"waiting": {"reason": "ErrImagePull", "message": "x" * 400}})
    assert f"(ErrImagePull: {'x' * 286})" in message


def test_what_has_failed_stays_failed_when_the_pod_has_its_image_back() -> None:
    back = record().given_back({"app": RecreateState("app", message="kubelet cannot start it")})
    message, _ = failure_of(kept=back, image=ASKED.before, containerID="containerd://two")
    assert message == "kubelet cannot start it"
    assert record().given_back({}) == record()


def test_it_has_failed_if_the_container_is_gone() -> None:
    other = replace(ASKED, name="gone")
    message, reason = failure_of(kept=record(other))
    assert (message, reason) == ("the container was removed from the pod", Reason.CONTAINER_NOT_FOUND)


def test_of_two_containers_each_has_its_state() -> None:
    other = replace(ASKED, name="side", container_id="containerd://side")
    found = read(kept=record(ASKED, other), containerID="containerd://two")
    assert [each.phase for each in found.request.status.states] == [StatePhase.SUCCEEDED, StatePhase.FAILED]


def test_a_container_that_waits_for_the_one_before_it() -> None:
    other = PatchedContainer("side", "containerd://side", 0, "", "side:1")
    whole = pod(record(ASKED, other), containerID="containerd://two")
    whole["spec"]["containers"].append({"name": "side", "image": "side:1"})
    whole["status"]["containerStatuses"].append({"name": "side", "containerID": "containerd://side"})

    def phases(**changes: Any) -> list[StatePhase]:
        whole["status"]["containerStatuses"][1] |= changes
        found = read_patched(whole)
        assert found is not None
        return [each.phase for each in found.request.status.states]

    assert phases() == [StatePhase.SUCCEEDED, StatePhase.PENDING]
    assert phases(containerID="containerd://by-kubelet") == [StatePhase.SUCCEEDED, StatePhase.SUCCEEDED]
    failed = read(kept=record(ASKED, other), image="app:2")
    assert [each.reason for each in failed.request.status.states] == [Reason.NONE, Reason.CONTAINER_NOT_FOUND]
    whole["spec"]["containers"][0]["image"] = "app:2"
    whole["status"]["containerStatuses"][0]["containerID"] = ASKED.container_id
    whole["status"]["containerStatuses"][1]["containerID"] = "containerd://side"
    stopped = read_patched(whole)
    assert stopped is not None
    assert [each.reason for each in stopped.request.status.states] == [Reason.NONE, Reason.EARLIER_FAILURE]


def test_its_deadline_is_that_of_the_run() -> None:
    created = parse_time(CREATED)
    assert created is not None
    found, ends = read(), created + timedelta(seconds=BY_PATCH.options.pod_timeout)
    assert found.at(ends - timedelta(seconds=1)) is found
    late = found.at(ends)
    assert late.request.status.phase is RequestPhase.COMPLETED
    (state,) = late.request.status.states
    assert (state.phase, state.reason) == (StatePhase.FAILED, Reason.DEADLINE)
    assert parse_time(late.request.status.completion_time) == ends
    done = read(containerID="containerd://two")
    assert done.at(ends) is done
    assert replace(found, on_pod=False).at(ends).request.status.phase is RequestPhase.RECREATING


def test_it_ends_with_its_pod() -> None:
    gone = read().without_pod()
    assert (gone.request.completed, gone.request.status.reason) == (True, Reason.POD_GONE)
    done = read(containerID="containerd://two")
    assert done.without_pod() is done


ENDED = {"phase": "Failed", "reason": "Evicted"}
OVER = pytest.mark.parametrize(
    ("meta", "status", "reason"),
    [({"deletionTimestamp": CREATED}, {}, Reason.POD_DELETING), ({}, ENDED, Reason.POD_ENDED)],
)


@OVER
def test_kubelet_starts_nothing_any_more(meta: dict[str, Any], status: dict[str, Any], reason: Reason) -> None:
    """Kubelet evicts the pod, or its node shuts down, before the next start. Nobody patches it once more."""
    waits = PatchedContainer("side", "containerd://side", 0, "", "side:1")
    for kept in (record(ASKED, waits), replace(record(), uid="uid-of-request")):
        whole = pod(kept)
        whole["spec"]["containers"].append({"name": "side", "image": "side:1"})
        whole["metadata"] |= meta
        whole["status"] |= status
        member = read_member(whole)
        found = status_of(kept, member.pod)
        assert {(each.phase, each.reason) for each in found.states} == {(StatePhase.FAILED, reason)}
        assert (found.phase, found.completion_time) == (RequestPhase.COMPLETED, CREATED)
        failed = {each.name: each for each in found.states}
        assert (member.due, give_images_back(member, failed)) == ((), ())
        assert list(member.unreplaced(())) == []
        assert proceed(member, datetime(2026, 1, 1, 12, 1, tzinfo=UTC)) == ()


@OVER
def test_what_was_done_before_the_pod_ended(meta: dict[str, Any], status: dict[str, Any], reason: Reason) -> None:
    whole = pod(containerID="containerd://two")
    whole["metadata"] |= meta
    whole["status"] |= status
    found = read_patched(whole)
    assert found is not None
    assert found.succeeded, reason


def test_an_evicted_pod_fails_no_run() -> None:
    whole = pod()
    whole["status"] |= {**ENDED, "conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    evicted = read_member(whole)
    assert evicted.patched is not None
    plan = make_plan(World((evicted,), (evicted.patched,)), BY_PATCH, datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC))
    assert [(row.stage, row.wait.reason) for row in plan.rows] == [(Stage.GONE, WaitReason.EVICTED)]


def test_the_parts_that_are_over_stay_as_they_are() -> None:
    other = replace(ASKED, name="side", container_id="containerd://side")
    whole = pod(record(ASKED, other), containerID="containerd://two")
    whole["spec"]["containers"].append({"name": "side", "image": ASKED.given})
    whole["status"]["containerStatuses"].append({"name": "side", "containerID": "containerd://side"})
    found = read_patched(whole)
    assert found is not None
    for later in (found.without_pod(), found.at(parse_time("2026-01-02T00:00:00Z") or found.run)):  # type: ignore[arg-type]
        assert [each.phase for each in later.request.status.states] == [StatePhase.SUCCEEDED, StatePhase.FAILED]


def test_an_abort_is_recorded_on_the_pod() -> None:
    whole = pod()
    whole["metadata"]["annotations"][ANNOTATION_ABORTED] = CREATED
    found = read_patched(whole)
    assert found is not None
    assert found.ended_runs == {BY_PATCH.name}


@pytest.mark.parametrize(
    "kept",
    [
        "",
        "no JSON",
        "[]",
        text(version=2),
        text(version=0),
        text(containers=[]),
        text(request=""),
        text(containers=[{"name": "app"}]),
        of_container(given=1),
        of_container(restart_count="1"),
    ],
)
def test_what_cannot_be_read_is_no_record(kept: str) -> None:
    assert read_record(kept) is None
    assert read_patched(pod(kept)) is None


def test_a_record_without_its_run_is_no_request() -> None:
    whole = pod()
    del whole["metadata"]["annotations"]["crr.apps.kruise.io/run-options"]
    assert read_patched(whole) is None
    assert read_patched({}) is None


def test_a_pod_that_was_restored_from_a_copy_records_nothing() -> None:
    whole = pod()
    whole["metadata"]["uid"] = "another"
    assert read_patched(whole) is None


@pytest.mark.parametrize(
    ("kept", "options"),
    [
        (record(), {"pod_timeout": 10**12}),
        (record(created="9999-12-31T23:59:59Z"), {}),
        (record(created="0001-01-01T00:00:00+14:00"), {}),
    ],
)
def test_numbers_and_times_without_end_do_no_harm(kept: PatchRecord, options: dict[str, Any]) -> None:
    """Who may patch pods may write anything on them. Other runs read it, too."""
    whole = pod(kept)
    whole["metadata"]["annotations"] |= run(patch=True, **options).annotations()
    member, now = read_member(whole), datetime(2026, 1, 1, 13, tzinfo=UTC)
    known = World((member,), (member.patched,) if member.patched is not None else ())
    assert make_plan(known, BY_PATCH, now).rows
    assert make_plan(known, run(name="other"), now).rows


def test_only_the_last_request_of_a_pod_is_kept() -> None:
    found = read()
    assert patched_requests((None, found)) == {"uid-web-0": found}


def test_a_run_by_requests_is_not_kept_on_pods() -> None:
    whole = pod()
    whole["metadata"]["annotations"] |= run().annotations()
    assert read_patched(whole) is None


def test_a_record_of_this_version_is_read_by_every_later_one() -> None:
    kept = replace(record(replace(ASKED, failure="why", reason="DeadlineExceeded")), used={"app": ("app:1",)})
    stored = (
        '{"containers":[{"before":"app:1","container_id":"containerd://one","failure":"why","given":"app:1@sha256:'
        f'{"0" * 64}","image_id":"app@sha256:{"0" * 64}","name":"app","reason":"DeadlineExceeded","restart_count":3}}],'
        f'"created":"{CREATED}","request":"{BY_PATCH.request_name("uid-web-0")}","used":{{"app":["app:1"]}},"version":1}}'
    )
    assert kept.to_json() == stored
    assert read_record(stored) == kept


def test_the_next_container_of_a_record_leaves_the_others_as_they_are() -> None:
    waits = PatchedContainer("side", "containerd://side", 0, f"side@{DIGEST}", "")
    begun = replace(waits, before="side:1", given=f"side:1@{DIGEST}")
    assert record(ASKED, waits).proceeding("side", begun.before, begun.given) == record(ASKED, begun)


def test_the_spellings_that_were_used_are_kept() -> None:
    first = record()
    assert read_record(first.to_json()) == first
    second = replace(first, used=first.used_by_now())
    assert second.used == {"app": ("app:1", f"app:1@{DIGEST}")}
    assert read_record(second.to_json()) == second
    back = replace(second, containers=(replace(ASKED, before=ASKED.given, given="app:1"),))
    assert back.used_by_now() == {"app": (f"app:1@{DIGEST}", "app:1")}
    failed = replace(first, containers=(replace(ASKED, failure="it has the first one back"),))
    assert failed.used_by_now() == {"app": (f"app:1@{DIGEST}", "app:1")}


def test_a_restart_for_a_request_belongs_to_no_run() -> None:
    """Not even if the annotations of an earlier run were put back."""
    of_request = replace(record(), uid="uid-of-request")
    assert read_record(of_request.to_json()) == of_request
    assert read_patched(pod(of_request)) is None


def test_what_kubelet_is_about_to_start_for_a_request() -> None:
    def due(kept: PatchRecord | str, **changes: Any) -> tuple[str, ...]:
        whole = pod(kept, **changes)
        return due_for_request(whole, parse_pod(whole))

    of_request = replace(record(), uid="uid-of-request")
    assert due(of_request) == ("app",)
    assert due(of_request, containerID="containerd://two") == ()
    assert due(of_request, image="app:2") == ()
    assert due(of_request, state={"waiting": {"reason": "ErrImagePull"}}) == (), "it gets its image back"
    assert due(record()) == (), "of a run"
    for other in (replace(ASKED, name="gone"), replace(ASKED, given="", name="log"), replace(ASKED, failure="no such")):
        assert due(replace(of_request, containers=(other,))) == ()
    assert due("") == ()
