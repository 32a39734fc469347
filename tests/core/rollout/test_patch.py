"""Restarts by patches: what is written, to which pods, and which pods are skipped."""

import json
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import ANNOTATION_ABORTED, StatePhase
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import unfinished
from crrd.core.rollout.patch.kind import PatchRestart, never_patched
from crrd.core.rollout.patch.operations import (
    foreign_image,
    give_back,
    give_images_back,
    next_container,
    proceed,
    record_of,
    restart,
    restart_for,
    runs_other_image,
    spelling_of,
)
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.run import LABEL_RUN, Amount
from crrd.core.rollout.skips import kubelet_matters
from crrd.core.rollout.state import World, read_member
from crrd.core.rollout.waits import Skip, WaitReason
from crrd.core.rollout.workload import Owner
from crrd.kubelet.restart_rules import RestartPolicy
from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.patches import patch_maker
from crrd_localnode.api.resources import POD as POD_KIND
from tests.support.rollouts import (
    AFTER,
    BEFORE,
    budget,
    chosen,
    container,
    member,
    planned,
    recreated,
    run,
    stages,
    succeeded,
    workload,
)

DIGEST = f"sha256:{'0' * 64}"
MOVED = f"docker.io/library/app@sha256:{'1' * 64}"
NOW = "2026-01-01T12:01:00Z"
EARLIER = "2026-01-01T10:00:00Z"
LATER = datetime(2026, 1, 1, 12, 1, 30, tzinfo=UTC)
BY_PATCH = run(patch=True)
RUNS = container(image="app:1", image_id=f"docker.io/library/app@{DIGEST}", status_path="/status/containerStatuses/0")


def pod(**meta: Any) -> dict[str, Any]:
    """A pod as the API server returns it."""
    status = {"name": "app", "containerID": "containerd://app-1", "restartCount": 3, "ready": True}
    status |= {"imageID": f"docker.io/library/app@{DIGEST}", "state": {"running": {"startedAt": BEFORE}}}
    plain = {"name": "web-0", "namespace": "default", "uid": "uid-web-0", "creationTimestamp": BEFORE}
    spec = {"nodeName": "node-a", "containers": [{"name": "log", "image": "log:1"}, {"name": "app", "image": "app:1"}]}
    other = {"name": "log", "containerID": "containerd://log-1", "restartCount": 0, "imageID": ""}
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": BEFORE}]
    found = {"phase": "Running", "conditions": conditions, "containerStatuses": [status, other]}
    return {"metadata": {**plain, **meta}, "spec": spec, "status": found}


def patched(whole: dict[str, Any], operations: Any) -> dict[str, Any]:
    """The pod after a JSON patch, as the local API server carries it out."""
    maker = patch_maker(POD_KIND, "application/json-patch+json", json.dumps(operations).encode())
    return dict(maker(deepcopy(whole)))


def restarted(whole: dict[str, Any], of: Any = BY_PATCH, now: str = NOW) -> dict[str, Any]:
    found = read_member(whole)
    return patched(whole, restart(found, of.request("web-0", "uid-web-0", ("app",)), now))


def test_a_patch_restarts_and_records() -> None:
    whole = pod(annotations={"owner": "team"}, labels={"app": "web"})
    after = restarted(whole)
    assert [each["image"] for each in after["spec"]["containers"]] == ["log:1", f"docker.io/library/app:1@{DIGEST}"]
    assert after["metadata"]["labels"] == {"app": "web", LABEL_RUN: "run"}
    assert after["metadata"]["annotations"]["owner"] == "team"
    found = read_member(after)
    assert found.patched is not None
    assert found.patched.run == BY_PATCH
    record = record_of(found)
    assert record is not None
    (each,) = record.containers
    assert (each.container_id, each.restart_count, each.before) == ("containerd://app-1", 3, "app:1")
    assert after["status"] == whole["status"]


@pytest.mark.parametrize("meta", [{}, {"annotations": {}}, {"labels": None}])
def test_a_pod_without_labels_and_annotations_gets_them(meta: dict[str, Any]) -> None:
    found = read_member(restarted(pod(**meta)))
    assert (found.labels, found.patched is not None) == ({LABEL_RUN: "run"}, True)


def test_an_earlier_run_leaves_nothing() -> None:
    first = restarted(pod())
    first["metadata"]["annotations"] |= {ANNOTATION_ABORTED: NOW, "crr.apps.kruise.io/run-progress": "{}"}
    first["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "restartCount": 4}
    second = restarted(first, run(name="second", patch=True), "2026-01-01T12:30:00Z")
    found = read_member(second)
    assert found.patched is not None
    assert (found.patched.run.name, found.patched.request.aborted, found.patched.progress) == ("second", "", None)
    assert set(second["metadata"]["annotations"]) == {
        ANNOTATION_PATCHED,
        "crr.apps.kruise.io/run-options",
        "crr.apps.kruise.io/run-target",
    }
    assert second["spec"]["containers"][1]["image"] == f"docker.io/library/app@{DIGEST}"
    third = restarted({**second, "status": pod()["status"]}, run(name="third", patch=True), "2026-01-01T13:00:00Z")
    assert third["spec"]["containers"][1]["image"] == f"docker.io/library/app:1@{DIGEST}"


def test_names_of_an_image_that_somebody_has_replaced_are_forgotten() -> None:
    """Else another image would count as that of the template."""
    second = restarted(restarted(pod()), run(name="second", patch=True))
    assert read_member(second).pod.containers["app"].has_image("app:1")
    changed = deepcopy(second)
    changed["spec"]["containers"][1]["image"] = "app:2"
    third = restarted(changed, run(name="third", patch=True))
    assert third["spec"]["containers"][1]["image"] == f"docker.io/library/app:2@{DIGEST}"
    found = read_member(third).pod.containers["app"]
    assert found.image_names == ("app:2", f"docker.io/library/app:2@{DIGEST}")
    assert (found.has_image("app:2"), found.has_image("app:1")) == (True, False)
    back = deepcopy(second)
    back["spec"]["containers"][1]["image"] = "app:1"  # the tag was moved
    back["status"]["containerStatuses"][0]["imageID"] = MOVED
    moved = read_member(restarted(back, run(name="third", patch=True))).pod.containers["app"]
    assert moved.image_names == ("app:1", MOVED.replace("@", ":1@"))
    without = deepcopy(second)
    without["spec"]["containers"][1]["name"] = "new"
    without["status"]["containerStatuses"][0]["name"] = "new"
    other = restart(read_member(without), BY_PATCH.request("web-0", "uid-web-0", ("new",)), NOW)
    record = record_of(read_member(patched(without, other)))
    assert record is not None
    assert record.used == {}, "the container is gone"


CHANGES = {
    "restarted by kubelet": lambda whole: whole["status"]["containerStatuses"][0].update(
        containerID="containerd://two"
    ),
    "counted by kubelet": lambda whole: whole["status"]["containerStatuses"][0].update(restartCount=4),
    "given another image": lambda whole: whole["spec"]["containers"][1].update(image="app:2"),
    "replaced by another pod": lambda whole: whole["metadata"].update(uid="another"),
    "with other containers": lambda whole: whole["spec"]["containers"].pop(0),
    "with its status in another order": lambda whole: whole["status"]["containerStatuses"].reverse(),
    "annotated for the first time": lambda whole: whole["metadata"].update(annotations={"a": "b"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_patch_that_comes_late_changes_nothing(change: str) -> None:
    decided, now = pod(), pod()
    CHANGES[change](now)
    operations = restart(read_member(decided), BY_PATCH.request("web-0", "uid-web-0", ("app",)), NOW)
    with pytest.raises(ApiError):
        patched(now, operations)


def test_two_processes_cannot_both_restart_it() -> None:
    decided = pod(annotations={"a": "b"})
    operations = restart(read_member(decided), BY_PATCH.request("web-0", "uid-web-0", ("app",)), NOW)
    once = patched(decided, operations)
    with pytest.raises(ApiError):
        patched(once, operations)


def test_a_spelling_that_cannot_be_started_is_taken_back() -> None:
    after = restarted(pod())
    assert give_back(read_member(after), LATER) == ()
    waiting = {"reason": "ErrImageNeverPull", "message": "not on the node"}
    after["status"]["containerStatuses"][0] |= {"state": {"waiting": waiting}, "ready": False}
    after["metadata"]["annotations"][ANNOTATION_ABORTED] = NOW
    found = read_member(after)
    back = patched(after, give_back(found, LATER))
    assert back["spec"]["containers"][1]["image"] == "app:1"
    assert back["metadata"]["annotations"][ANNOTATION_ABORTED] == NOW
    again = read_member(back)
    assert give_back(again, LATER) == ()
    assert again.patched is not None
    assert "cannot start it" in again.patched.request.status.states[0].message
    assert spelling_of(again, again.pod.containers["app"]) == f"docker.io/library/app@{DIGEST}"
    with pytest.raises(ApiError):
        patched({**after, "spec": pod()["spec"]}, give_back(found, LATER))


def test_a_pod_that_records_nothing_gets_nothing_back() -> None:
    assert give_images_back(read_member(pod()), {}) == ()


def test_the_image_of_another_writer_stays_in_a_run_in_order() -> None:
    """kubelet still runs the hook of the old instance, whose digest does not belong to the new tag."""
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    ordered = run("app", "log", patch=True, ordered=True)
    after = patched(whole, restart(read_member(whole), ordered.request("web-0", "uid-web-0", ("app", "log")), NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "ready": True}
    assert proceed(read_member(after), LATER)
    after["spec"]["containers"][0]["image"] = "log:2"
    assert proceed(read_member(after), LATER) == ()


def test_a_webhook_that_changes_the_image_is_seen() -> None:
    whole = pod()
    operations = restart(read_member(whole), BY_PATCH.request("web-0", "uid-web-0", ("app",)), NOW)
    after = patched(whole, operations)
    assert foreign_image(read_member(whole), read_member(after), operations) == ""
    after["spec"]["containers"][1]["image"] = "mirror.example/app:1"
    assert foreign_image(read_member(whole), read_member(after), operations) == "app to mirror.example/app:1"


def test_containers_are_restarted_one_after_the_other() -> None:
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    ordered = run("app", "log", patch=True, ordered=True)
    operations = restart(read_member(whole), ordered.request("web-0", "uid-web-0", ("app", "log")), NOW)
    after = patched(whole, operations)
    assert [each["image"] for each in after["spec"]["containers"]] == ["log:1", f"docker.io/library/app:1@{DIGEST}"]
    assert (next_container(read_member(after), LATER), proceed(read_member(after), LATER)) == ("", ())
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "ready": False}
    assert next_container(read_member(after), LATER) == ""
    after["status"]["containerStatuses"][0]["ready"] = True
    found = read_member(after)
    assert next_container(found, LATER) == "log"
    then = patched(after, proceed(found, LATER))
    assert then["spec"]["containers"][0]["image"] == f"docker.io/library/log:1@{DIGEST}"
    with pytest.raises(ApiError):
        patched(then, proceed(found, LATER))
    assert next_container(read_member(then), LATER) == ""
    then["status"]["containerStatuses"][1]["containerID"] = "containerd://log-2"
    done = read_member(then)
    assert done.patched is not None
    assert done.patched.succeeded
    assert next_container(done, LATER) == ""


def test_a_container_that_is_unready_again_holds_the_next_one() -> None:
    whole = pod()
    whole["spec"]["containers"].append({"name": "side", "image": "side:1"})
    side = {"name": "side", "containerID": "containerd://side-1", "imageID": f"docker.io/library/side@{DIGEST}"}
    whole["status"]["containerStatuses"].append({**side, "restartCount": 0, "ready": True})
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    ordered = run("app", "log", "side", patch=True, ordered=True)
    asks = ordered.request("web-0", "uid-web-0", ("app", "log", "side"))
    after = patched(whole, restart(read_member(whole), asks, NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "ready": True}
    after = patched(after, proceed(read_member(after), LATER))
    after["status"]["containerStatuses"][1] |= {"containerID": "containerd://log-2", "ready": True}
    assert next_container(read_member(after), LATER) == "side"
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-3", "ready": False}
    assert next_container(read_member(after), LATER) == ""


def test_no_container_is_next_if_the_pod_lacks_one_that_was_begun() -> None:
    """Somebody has written the record by hand. Kubelet has yet to start the other container."""
    after = restarted(pod())
    annotations = after["metadata"]["annotations"]
    record = json.loads(annotations[ANNOTATION_PATCHED])
    record["containers"].insert(0, {**record["containers"][0], "name": "gone"})
    annotations[ANNOTATION_PATCHED] = json.dumps(record)
    found = read_member(after)
    assert found.patched is not None
    assert {each.name: each.phase for each in found.patched.request.status.states} == {
        "app": StatePhase.RECREATING,
        "gone": StatePhase.FAILED,
    }
    assert (next_container(found, LATER), proceed(found, LATER)) == ("", ())


@pytest.mark.parametrize(("seconds", "due"), [(540, True), (541, False)])
@pytest.mark.parametrize("ready", [True, False])
def test_none_is_restarted_that_may_not_start_before_the_deadline(seconds: int, *, ready: bool, due: bool) -> None:
    """It would get its image back while it is stopped, and kubelet would restart it twice. The pod has 30 s to stop.

    It fails at once, unless the one before it is the cause.
    """
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    ordered = run("app", "log", patch=True, ordered=True)
    after = patched(whole, restart(read_member(whole), ordered.request("web-0", "uid-web-0", ("app", "log")), NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "ready": ready}
    now = datetime(2026, 1, 1, 12, 1, tzinfo=UTC) + timedelta(seconds=seconds - 0.5)
    found = read_member(after)
    assert found.patched is not None
    asked = found.patched.at(now).request
    assert bool(proceed(found, now)) is (ready and due)
    assert asked.status.reason is (Reason.TOO_LATE if ready and not due else Reason.NONE)
    assert asked.completed is (ready and not due)
    assert asked.status.completion_time in ("", "2026-01-01T12:10:00Z")
    late = found.patched.at(now + timedelta(minutes=10)).request
    assert late.status.reason is (Reason.TOO_LATE if ready else Reason.DEADLINE)


def test_a_container_whose_image_has_no_other_name_any_more_is_not_restarted() -> None:
    whole = pod()
    ordered = run("app", "log", patch=True, ordered=True)
    after = patched(whole, restart(read_member(whole), ordered.request("web-0", "uid-web-0", ("app", "log")), NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "ready": True}
    assert (next_container(read_member(after), LATER), proceed(read_member(after), LATER)) == ("log", ())
    assert proceed(read_member(pod()), LATER) == ()


def test_nothing_is_given_back_to_pods_without_a_record() -> None:
    assert give_back(read_member(pod()), LATER) == ()
    kept = restarted(pod())["metadata"]["annotations"] | {"crr.apps.kruise.io/run-options": "broken"}
    assert give_back(read_member(pod(annotations=kept)), LATER) == ()


def test_the_kind_is_that_of_the_option() -> None:
    assert isinstance(kind_of(World(()), BY_PATCH), PatchRestart)
    assert not isinstance(kind_of(World(()), run()), PatchRestart)


KRUISE = Owner("apps.kruise.io/v1alpha1", "CloneSet", "web", "uid")


@pytest.mark.parametrize(
    ("changes", "of_member", "kubelet", "skip"),
    [
        ({}, {}, "", None),
        ({"restart_policy": RestartPolicy.ON_FAILURE}, {}, "", Skip.NOT_ALWAYS),
        ({"restart_policy": RestartPolicy.NEVER}, {}, "", Skip.NEVER),
        ({"own_restart_policy": RestartPolicy.ON_FAILURE}, {}, "v1.36.2", Skip.NOT_ALWAYS),
        ({"kind": ContainerKind.SIDECAR}, {}, "v1.31.0", Skip.KEPT),
        ({"kind": ContainerKind.SIDECAR}, {}, "v1.36.2", None),
        ({"image_id": ""}, {}, "", Skip.NO_SPELLING),
        ({"started_at": AFTER}, {}, "", Skip.RECENT),
        ({"running": False}, {}, "", Skip.NOT_RUNNING),
        ({"running": False, "waiting_reason": "CrashLoopBackOff", "started_at": ""}, {}, "", None),
        ({"running": False, "terminated": True, "started_at": ""}, {}, "", None),
        ({"running": False, "waiting_reason": "ContainerCreating", "started_at": ""}, {}, "", Skip.NOT_RUNNING),
        ({}, {"owner": KRUISE}, "", Skip.OF_KRUISE),
        ({"injected": True}, {}, "", Skip.INJECTED),
    ],
)
def test_what_a_patch_cannot_restart_is_skipped(
    changes: dict[str, Any], of_member: dict[str, Any], kubelet: str, skip: Skip | None
) -> None:
    found = member("web-0", replace(RUNS, **changes), **of_member)
    world = World((found,), kubelets={"node-a": kubelet} if kubelet else {}, workload=workload(1))
    row = planned(world, BY_PATCH).rows[0]
    assert row.skip is skip
    assert row.stage is (Stage.SKIPPED if skip else Stage.WAITING)


def test_a_stop_must_end_before_the_deadline() -> None:
    """Else the patch would be taken back while kubelet stops the container, which is then stopped once more."""
    found = member("web-0", RUNS)
    slow = replace(found, pod=replace(found.pod, grace_seconds=571))
    assert planned(World((slow,)), BY_PATCH).rows[0].skip is Skip.LONG_GRACE
    assert planned(World((slow,)), run(patch=True, pod_timeout=601)).create
    assert planned(World((replace(found, pod=replace(found.pod, grace_seconds=570)),)), BY_PATCH).create
    two = member("web-0", RUNS, replace(RUNS, name="log"))
    slow = replace(two, pod=replace(two.pod, grace_seconds=286))
    both = planned(World((slow,)), run("app", "log", patch=True))
    assert both.rows[0].skip is Skip.LONG_GRACE, "kubelet stops one after the other, and then starts both"
    assert planned(World((slow,)), BY_PATCH).create, "the other one is not restarted"
    ordered = run("app", "log", patch=True, ordered=True)
    fits = [(grace, replace(two, pod=replace(two.pod, grace_seconds=grace))) for grace in (270, 271)]
    in_order = {grace: planned(World((found,)), ordered).rows[0].skip for grace, found in fits}
    assert in_order == {270: None, 271: Skip.LONG_GRACE}, "kubelet starts one before the next one stops"


def test_a_static_pod_is_skipped() -> None:
    found = member("web-0", RUNS)
    mirror = replace(found, pod=replace(found.pod, static_uid="of-the-file"))
    assert planned(World((mirror,)), BY_PATCH).rows[0].skip is Skip.STATIC


@pytest.mark.parametrize(("image_id", "skip"), [("sha256:abc", Skip.NO_SPELLING), ("", None)])
def test_a_container_whose_image_kubelet_has_not_reported_may_still_get_a_spelling(
    image_id: str, skip: Skip | None
) -> None:
    there = member("web-0", replace(RUNS, image_id=image_id))
    assert never_patched(there, there.pod.containers["app"], None) is skip


def test_no_node_daemon_is_needed() -> None:
    far = member("web-0", RUNS, node="n" * 64)
    assert planned(World((far,), daemons={}), BY_PATCH).create


def test_a_pod_at_its_deadline_has_failed() -> None:
    after = restarted(pod(), now=BEFORE)
    found = read_member(after)
    assert found.patched is not None
    plan = planned(World((found,), (found.patched,)), BY_PATCH)
    assert plan.end is End.FAILED
    assert "activeDeadlineSeconds" in plan.rows[0].wait.why


def test_a_run_that_has_failed_at_a_deadline_stands_in_nobodys_way() -> None:
    """The image of its pod could not be given back, so the pod's record still says that it restarts."""
    found = read_member(restarted(pod(), now=BEFORE))
    assert found.patched is not None
    over = Progress(NOW, "laptop/42", RunPhase.OVER, 0, 1, end=End.FAILED)
    asked, following = replace(found.patched, progress=over), run(name="next", patch=True)
    known, early = World((found,), (asked,)), parse_time(BEFORE)
    assert early is not None
    assert unfinished(kind_of(known, following), early) == asked.run, "it is not over before"
    assert unfinished(kind_of(known, following), LATER) is None


def test_a_pod_at_its_deadline_still_counts_as_unready_until_kubelet_has_restarted_it() -> None:
    """Kubelet may be slow, and stops the container later."""
    late = read_member(restarted(pod(labels={"app": "web"}), now=BEFORE), with_config=False)
    assert late.patched is not None
    world = World((late, member("web-1", RUNS)), (late.patched,), workload(2), (budget(1),))
    plan = planned(world, run(patch=True, max_failures=9))
    assert (stages(plan), chosen(plan)) == ({"web-0": "failed", "web-1": "waiting"}, [])
    wide = planned(world, run(patch=True, max_failures=9, max_unavailable=Amount(2)))
    assert (chosen(wide), wide.wait.reason) == ([], WaitReason.BUDGET_USED_UP)


def test_what_kubelet_has_not_begun_until_the_deadline_is_taken_back() -> None:
    """Else it could stop the container later, when nobody is there to give an image back that it cannot start."""
    after = restarted(pod())
    late = LATER + timedelta(seconds=BY_PATCH.options.pod_timeout)
    back = patched(after, give_back(read_member(after), late))
    assert back["spec"]["containers"][1]["image"] == "app:1"
    found = read_member(back)
    assert found.patched is not None
    (state,) = found.patched.request.status.states
    assert (state.phase, state.reason) == (StatePhase.FAILED, Reason.DEADLINE)
    assert "activeDeadlineSeconds" in state.message
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "restartCount": 4}
    assert give_back(read_member(after), late) == ()


def test_no_further_container_is_restarted_after_the_deadline() -> None:
    of = run("app", "log", patch=True, ordered=True)
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    after = patched(whole, restart(read_member(whole), of.request("web-0", "uid-web-0", ("app", "log")), NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "restartCount": 4}
    found = read_member(after)
    assert next_container(found, LATER) == "log"
    late = LATER + timedelta(seconds=of.options.pod_timeout)
    assert (next_container(found, late), proceed(found, late), give_back(found, late)) == ("", (), ())


def test_a_process_that_has_not_seen_the_failure_does_not_try_again() -> None:
    """The container has its image back, and is still the one that was seen before the first patch."""
    seen = pod(annotations={"a": "b"})
    after = restarted(seen)
    waiting = {"waiting": {"reason": "ErrImageNeverPull"}}
    after["status"]["containerStatuses"][0] |= {"state": waiting, "ready": False}
    back = patched(after, give_back(read_member(after), LATER))
    operations = restart(read_member(seen), BY_PATCH.request("web-0", "uid-web-0", ("app",)), NOW)
    with pytest.raises(ApiError):
        patched(back, operations)


@pytest.mark.parametrize(("end", "changes"), [(End.FAILED, {}), (End.ABORTED, {"aborted": frozenset({"run"})})])
def test_it_waits_for_what_it_has_begun_before_it_ends(end: End, changes: dict[str, Any]) -> None:
    """Only its process gives images back that kubelet cannot start."""
    begun = read_member(restarted(pod()), with_config=False)
    whole = pod(name="web-1", uid="uid-web-1")
    late = restart(read_member(whole), BY_PATCH.request("web-1", "uid-web-1", ("app",)), BEFORE)
    failed = read_member(patched(whole, late), with_config=False)
    for some, waits in (((begun, failed), "web-0"), ((failed,), "")):
        requests = tuple(each.patched for each in some if each.patched is not None)
        plan = planned(World(some, requests, workload(2), **changes), BY_PATCH)
        assert (plan.end, bool(plan.wait_before_end.why)) == (end, bool(waits))
        assert waits in plan.wait_before_end.why


def test_it_waits_for_the_container_that_it_has_begun_but_not_for_those_after_it() -> None:
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    of = run("app", "log", patch=True, ordered=True)
    after = patched(whole, restart(read_member(whole), of.request("web-0", "uid-web-0", ("app", "log")), NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "ready": True}
    begun = patched(after, proceed(read_member(after), LATER))
    for now, waits in ((after, False), (begun, True)):
        found = read_member(now, with_config=False)
        assert found.patched is not None
        plan = planned(World((found,), (found.patched,), workload(1), aborted=frozenset({"run"})), of)
        assert (plan.end, bool(plan.wait_before_end.why)) == (End.ABORTED, waits)


def changed(at: object, other: object = None, **meta: Any) -> dict[str, Any]:
    """A pod whose image somebody has changed. `other` is when another field was changed, if not then."""
    owned = {f'k:{{"name":"{name}"}}': {"f:image": dict[str, Any]()} for name in ("app", "gone")}
    fields = {"f:spec": {"f:containers": owned}}
    entries = [{"time": at, "fieldsV1": fields}, {"time": BEFORE, "fieldsV1": fields}, {"fieldsV1": fields}]
    return pod(
        **{"generation": 2, "managedFields": [*entries, {"time": other or at, "fieldsV1": {"f:metadata": {}}}], **meta}
    )


def crashing(whole: dict[str, Any]) -> dict[str, Any]:
    whole["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "ready": False}
    return whole


def shows(whole: dict[str, Any], image: str, observed: int = 2) -> dict[str, Any]:
    """What kubelet says of the image that runs, and of which generation."""
    whole["status"]["containerStatuses"][0]["image"] = image
    whole["status"]["observedGeneration"] = observed
    return whole


def spelled(whole: dict[str, Any], image: str) -> dict[str, Any]:
    whole["spec"]["containers"][1]["image"] = image
    return whole


@pytest.mark.parametrize(
    ("whole", "skip"),
    [
        (changed(AFTER), Skip.CHANGED),
        (changed(BEFORE), None),
        (changed(BEFORE, creationTimestamp=EARLIER), None),  # in the second in which the container has started
        (changed(AFTER, creationTimestamp=EARLIER), Skip.CHANGED),  # two managers own it: the later change counts
        (changed(BEFORE, AFTER, creationTimestamp=EARLIER), None),
        (changed("broken"), None),
        (changed(AFTER, generation=1), None),
        (changed(AFTER, annotations={"a": "b"}), Skip.CHANGED),
        (crashing(changed(AFTER)), Skip.CHANGED),
        (crashing(changed(BEFORE)), None),  # only its creator owns the image
        (crashing(pod()), None),
        (shows(changed(AFTER), "docker.io/library/app:1"), None),
        (shows(crashing(changed(AFTER)), "app:1"), None),
        (shows(changed(AFTER), "docker.io/library/app:1", observed=1), Skip.CHANGED),  # kubelet may just replace it
        (shows(changed(AFTER), "docker.io/library/app:2"), Skip.CHANGED),
        (shows(changed(AFTER), DIGEST), Skip.CHANGED),
        (shows(changed(AFTER), ""), Skip.CHANGED),
        (shows(spelled(changed(AFTER), f"app@{DIGEST}"), "other:1"), None),
        (shows(spelled(changed(AFTER), MOVED), "app:1"), Skip.CHANGED),
    ],
)
def test_the_image_that_somebody_has_just_set_is_not_taken_back(whole: dict[str, Any], skip: Skip | None) -> None:
    plan = planned(World((read_member(whole),), workload=workload(1)), BY_PATCH)
    assert plan.rows[0].skip is skip


def test_the_spelling_of_an_earlier_run_is_no_other_image() -> None:
    """The API server's time of it is that of the run's last write to the pod."""
    whole = restarted(changed(AFTER), run(name="earlier", patch=True))
    late = LATER + timedelta(seconds=BY_PATCH.options.pod_timeout)
    back = patched(whole, give_back(read_member(whole), late))
    assert not runs_other_image(read_member(back), read_member(back).pod.containers["app"])
    whole["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "restartCount": 4}
    assert not runs_other_image(read_member(whole), read_member(whole).pod.containers["app"])
    for image in ("app:1", "app:2"):
        whole["spec"]["containers"][1]["image"] = image
        assert runs_other_image(read_member(whole), read_member(whole).pod.containers["app"])


def test_the_image_that_somebody_gives_back_before_a_restart_is_no_other_image() -> None:
    whole = restarted(changed(AFTER), run(name="earlier", patch=True))
    whole["spec"]["containers"][1]["image"] = "app:1"
    assert not runs_other_image(read_member(whole), read_member(whole).pod.containers["app"])


def test_the_last_spelling_is_another_image_while_something_else_still_runs() -> None:
    """Somebody has set another image, and then the spelling of the last run again."""
    whole = restarted(changed(AFTER), run(name="earlier", patch=True))
    status = {"containerID": "containerd://app-3", "restartCount": 5, "imageID": MOVED}
    whole["status"]["containerStatuses"][0] |= status
    assert runs_other_image(read_member(whole), read_member(whole).pod.containers["app"])


@pytest.mark.parametrize("reason", ["ErrImageNeverPull", ""])
@pytest.mark.parametrize("by_request", [True, False])
def test_what_an_earlier_patch_has_left_gets_its_image_back(reason: str, *, by_request: bool) -> None:
    """The record that says so is replaced."""
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    left = restarted(whole, run(name="earlier", patch=True))
    if reason:
        left["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": reason}}, "ready": False}
    found, of = read_member(left), run("log", patch=True)
    own = restart(found, of.request("web-0", "uid-web-0", ("log",)), NOW)
    after = patched(left, restart_for(found, "r", "uid-r", ("log",), NOW) if by_request else own)
    assert [each["image"] for each in after["spec"]["containers"]] == [f"docker.io/library/log:1@{DIGEST}", "app:1"]
    record = record_of(read_member(after))
    assert record is not None
    assert [each.name for each in record.containers] == ["log"]
    assert record.used == {"app": (f"docker.io/library/app:1@{DIGEST}", "app:1")}
    with pytest.raises(ApiError):
        patched({**left, "spec": whole["spec"]}, own)


@pytest.mark.parametrize(("uid", "recorded"), [("uid-r", ["app", "log"]), ("uid-of-another", ["log"])])
def test_a_request_keeps_what_it_has_restarted_before_in_its_record(uid: str, recorded: list[str]) -> None:
    whole = pod()
    whole["status"]["containerStatuses"][1] |= {"imageID": f"docker.io/library/log@{DIGEST}", "ready": True}
    after = patched(whole, restart_for(read_member(whole), "r", "uid-r", ("app",), NOW))
    after["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "restartCount": 4}
    record = record_of(read_member(patched(after, restart_for(read_member(after), "r", uid, ("log",), NOW))))
    assert record is not None
    assert [each.name for each in record.containers] == recorded


def test_a_request_forgets_names_of_an_image_that_somebody_has_replaced() -> None:
    second = restarted(restarted(pod()), run(name="second", patch=True))
    second["spec"]["containers"][1]["image"] = "app:2"
    after = patched(second, restart_for(read_member(second), "r", "uid-r", ("app",), NOW))
    found = read_member(after).pod.containers["app"]
    assert found.image_names == ("app:2", f"docker.io/library/app:2@{DIGEST}")


def test_a_webhook_that_changes_another_container_is_seen() -> None:
    whole = pod()
    whole["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "tools:1"}]
    operations = restart(read_member(whole), BY_PATCH.request("web-0", "uid-web-0", ("app",)), NOW)
    after = patched(whole, operations)
    assert foreign_image(read_member(whole), read_member(after), operations) == ""
    after["spec"]["containers"][0]["image"] = "mirror.example/log:1"
    assert foreign_image(read_member(whole), read_member(after), operations) == "log to mirror.example/log:1"
    after["spec"]["containers"].pop(0)
    assert foreign_image(read_member(whole), read_member(after), operations) == "", "one that is gone has no image"


def test_a_container_that_a_patch_cannot_restart_is_left_out() -> None:
    odd = replace(RUNS, name="log", image_id="sha256:abc")
    there = member("web-0", replace(RUNS, started_at=AFTER, container_id="containerd://app-2", restart_count=1), odd)
    of = run("app", "log", patch=True)
    plan = planned(World((there,), (succeeded(run("app", patch=True), there),), workload(1)), of)
    assert (plan.end, stages(plan)) == (End.LEFT_OUT, {"web-0": "done"})
    assert plan.message == f"web-0: {Skip.NO_SPELLING.say(container='log')}"


def test_a_pod_that_a_patch_cannot_restart_is_left_out() -> None:
    there = recreated(member("web-0", RUNS)), member("web-1", replace(RUNS, image_id="sha256:abc"))
    plan = planned(World(there, (succeeded(BY_PATCH, there[0]),), workload(2)), BY_PATCH)
    assert (plan.end, plan.message) == (End.LEFT_OUT, f"web-1: {Skip.NO_SPELLING.say(container='app')}")


def test_the_pod_of_a_run_that_is_replaced_waits() -> None:
    """What is kept on the pod cannot be ended, and kubelet may be stopping its container."""
    older, newer = (run(name=name, patch=True, policy="p") for name in ("older", "newer"))
    assert newer.replaces(older)
    busy = read_member(restarted(pod(), older))
    assert busy.patched is not None
    plan = planned(World((busy,), (busy.patched,), workload(1)), newer)
    assert (plan.create, plan.rows[0].wait.reason) == ((), WaitReason.OTHER_REQUEST)


def test_the_version_of_kubelet_matters_for_native_sidecars() -> None:
    side = member("web-0", replace(RUNS, kind=ContainerKind.SIDECAR)).pod
    assert [kubelet_matters(side, for_image=spelled) for spelled in (True, False)] == [True, False]
    both = replace(side, containers={**side.containers, "log": replace(RUNS, name="log")})
    assert kubelet_matters(both, for_image=True)
    own = member("web-0", replace(RUNS, own_restart_policy=RestartPolicy.NEVER)).pod
    assert kubelet_matters(own, for_image=False)


@pytest.mark.parametrize("patch", [True, False])
def test_a_pod_that_the_manager_restarts_for_a_request_waits_and_counts_as_unready(*, patch: bool) -> None:
    whole = pod()
    operations = restart_for(read_member(whole), "r", "uid-r", ("app",), NOW)
    busy, free = read_member(patched(whole, operations)), replace(member("web-1"), labels={"app": "web"})
    assert (busy.due, busy.patched) == (("app",), None)
    world = World((replace(busy, labels={"app": "web"}), free), workload=workload(2))
    plan = planned(world, run(patch=patch))
    waits = {row.pod: row.wait.reason for row in plan.rows}
    assert plan.create == ()
    assert waits["web-0"] is WaitReason.OTHER_REQUEST
    many = planned(world, run(patch=patch, max_unavailable=Amount(2)))
    assert "web-0" not in [row.pod for row in many.create]
