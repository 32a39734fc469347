"""Admission: what is let in, what is filled in, and the exact sentence of every refusal."""

import copy
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.admission.rules import (
    DenialReason,
    Denied,
    mutate_pod,
    read_new,
)
from crrd.core.admission.update import put_back
from crrd.core.api.pod import parse_pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import ANNOTATION_RELOAD, Pin, RequestedContainer
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.recreate.actions import RunReload
from crrd.core.recreate.observation import Sandbox
from crrd.lib.jsonpatch import json_patch
from tests.support.admission import (
    ACTIVE,
    CREATE_REFUSALS,
    HUP,
    NODE_NAME,
    PINNED,
    POD_NAME,
    POD_UID,
    REQUESTED_BY,
    UNREADY,
    USER,
    Change,
    JsonObject,
    Refusal,
    meta,
    new_pod,
    new_request,
    reloads,
    reviewed,
    spec,
    strategy,
    without_id,
)
from tests.support.worlds import decided, instance, observed

CREATED = "2099-01-01T00:00:00Z"


def denial(outcome: JsonObject | Denied) -> tuple[str, int]:
    assert isinstance(outcome, Denied)
    return outcome.message, outcome.code


def admitted(request: JsonObject, pod: JsonObject | None = None) -> JsonObject:
    outcome = reviewed(request, pod or new_pod(), USER)
    assert not isinstance(outcome, Denied), outcome
    return outcome


REASONS = {
    "preStop given": DenialReason.SET_BY_ADMISSION,
    "ports given": DenialReason.SET_BY_ADMISSION,
    "statusContext given": DenialReason.SET_BY_ADMISSION,
    "pod not found": DenialReason.POD_NOT_FOUND,
    "pod succeeded": DenialReason.POD_NOT_ACTIVE,
    "pod failed": DenialReason.POD_NOT_ACTIVE,
    "pod being deleted": DenialReason.POD_NOT_ACTIVE,
    "pod not scheduled": DenialReason.POD_NOT_SCHEDULED,
    "node name that fits no label": DenialReason.NODE_NAME_TOO_LONG,
    "unknown container": DenialReason.CONTAINER_NOT_FOUND,
    "init container": DenialReason.CONTAINER_KIND,
    "ephemeral container": DenialReason.CONTAINER_KIND,
    "container that stays down": DenialReason.CONTAINER_NEVER_RESTARTED,
    "pod that stays down": DenialReason.CONTAINER_NEVER_RESTARTED,
    "image that the container has": DenialReason.IMAGE,
    "image that the container has by another name": DenialReason.IMAGE,
    "image of a static pod": DenialReason.IMAGE,
    "image of a container that may stay down": DenialReason.IMAGE,
    "image and force": DenialReason.IMAGE,
    "image and a grace period": DenialReason.IMAGE,
    "whole pod, but not all of its containers": DenialReason.WHOLE_POD,
    "whole pod with an image of a container that runs": DenialReason.WHOLE_POD,
    "whole pod with an image of an unknown container": DenialReason.CONTAINER_NOT_FOUND,
    "whole pod with an init container without an image": DenialReason.WHOLE_POD,
    "image of an init container without the whole pod": DenialReason.CONTAINER_KIND,
    "whole pod with an image and force": DenialReason.IMAGE,
    "whole pod with an order": DenialReason.WHOLE_POD,
    "whole pod with a grace period": DenialReason.WHOLE_POD,
    "whole pod whose hook would fail": DenialReason.WHOLE_POD,
    "whole pod that would end": DenialReason.WHOLE_POD,
    "reload that names its containers as a restart does": DenialReason.RELOAD,
    "reload that no container declares": DenialReason.RELOAD,
    "reload of a container that does not declare it": DenialReason.RELOAD,
    "reload with a declaration that is invalid": DenialReason.RELOAD,
    "reload of a container that is not there": DenialReason.RELOAD,
    "reload of an init container": DenialReason.RELOAD,
    "reload of a container that has not started": DenialReason.RELOAD,
    "reload of a container whose ID has no runtime": DenialReason.RELOAD,
    "reload of a container twice": DenialReason.RELOAD,
    "reload with a grace period": DenialReason.RELOAD,
    "containers to reload in a request for a restart": DenialReason.RELOAD,
    "container without an ID": DenialReason.CONTAINER_NOT_STARTED,
    "pod without any status": DenialReason.CONTAINER_NOT_STARTED,
}
"""By name of the refusal; all others are about the spec by itself."""


@pytest.mark.parametrize("refusal", CREATE_REFUSALS, ids=lambda refusal: refusal.name)
def test_the_reason_in_one_word(refusal: Refusal) -> None:
    outcome = reviewed(*refusal.objects(), USER)
    assert isinstance(outcome, Denied)
    assert outcome.reason is REASONS.get(refusal.name, DenialReason.INVALID_SPEC)


def test_a_request_with_an_image_is_active_for_those_alone_that_know_images() -> None:
    """An older node daemon selects `active=true`, and would restart the container with its old image."""
    containers = [{"name": "app", "image": "app:2"}]
    found = admitted(new_request(containers=containers, strategy={"terminationGracePeriodSeconds": 45}))
    assert found["metadata"]["labels"][ACTIVE] == "image"
    assert found["spec"]["containers"][0]["image"] == "app:2"
    assert parse_request(found).active
    assert admitted(found) == found, "asked again, admission changes nothing"
    found["metadata"]["labels"][ACTIVE] = "true"
    assert not parse_request(found).active, "an older manager has admitted it"


def restartable(pod: JsonObject) -> None:
    """Make it a pod that can be restarted in place."""
    pod["spec"]["containers"] = [{"name": "app"}, {"name": "log"}]


def test_a_request_for_a_whole_pod_gets_all_of_its_containers() -> None:
    """An older node daemon selects `active=true`, and would restart single containers."""
    pod = new_pod(restartable)
    written = new_request(wholePod=True)
    del written["spec"]["containers"]
    found = admitted(written, pod)
    assert [each["name"] for each in found["spec"]["containers"]] == ["app", "log", "proxy"]
    assert found["spec"]["containers"][0]["statusContext"] == {"containerID": "containerd://a1", "restartCount": 2}
    assert found["metadata"]["labels"][ACTIVE] == "pod"
    parsed = parse_request(found)
    assert (parsed.active, parsed.whole_pod) == (True, True)
    assert admitted(found, pod) == found, "asked again, admission changes nothing"
    assert put_back(found, {**written, "metadata": found["metadata"]})["spec"] == found["spec"]
    named = [{"name": name} for name in ("proxy", "log", "app")]
    own_order = admitted(new_request(wholePod=True, containers=named), pod)
    assert [each["name"] for each in own_order["spec"]["containers"]] == ["proxy", "log", "app"]


@pytest.mark.parametrize("image", ["setup:1", "setup:2"])
def test_an_init_container_gets_an_image_with_the_whole_pod(image: str) -> None:
    """A pod that has the image already may not have run its init container with it."""
    pod = new_pod(restartable, lambda pod: pod["spec"]["initContainers"][0].update(image=image))
    gets = {"name": "setup", "image": "setup:2"}
    written = new_request(wholePod=True, containers=[gets])
    found = admitted(written, pod)
    assert [each["name"] for each in found["spec"]["containers"]] == ["setup", "app", "log", "proxy"]
    first = {**gets, "statusContext": {"containerID": "containerd://s1", "restartCount": 0}}
    assert found["spec"]["containers"][0] == first
    parsed = parse_request(found)
    assert (found["metadata"]["labels"][ACTIVE], parsed.active, parsed.for_image) == ("pod", True, True)
    assert admitted(found, pod) == found, "asked again, admission changes nothing"
    assert put_back(found, {**written, "metadata": found["metadata"]})["spec"] == found["spec"]
    other = new_request(wholePod=True, containers=[{**gets, "image": "setup:3"}])
    changed = put_back(found, {**other, "metadata": found["metadata"]})["spec"]["containers"]
    assert [each["image"] for each in changed] == ["setup:3"], "the API server rejects it, because a spec is immutable"


def test_a_pod_whose_init_container_fails_may_get_its_image_back() -> None:
    """Its other containers have no instances then."""
    pod = new_pod(restartable, lambda pod: pod["status"].update(containerStatuses=[]))
    found = admitted(new_request(wholePod=True, containers=[{"name": "setup", "image": "setup:1"}]), pod)
    assert "statusContext" not in found["spec"]["containers"][1]


def reload_request(**strategy: Any) -> JsonObject:
    request = new_request(strategy={"action": "Reload", **strategy})
    del request["spec"]["containers"]
    return request


def test_a_request_for_a_reload_gets_the_containers_that_declare_one() -> None:
    pod = new_pod(reloads(app=HUP, proxy=HUP))
    found = admitted(reload_request(), pod)
    assert [each["name"] for each in found["spec"]["containers"]] == ["app", "proxy"]
    assert found["spec"]["containers"][0]["statusContext"] == {"containerID": "containerd://a1", "restartCount": 2}
    assert found["metadata"]["labels"][ACTIVE] == "reload"
    parsed = parse_request(found)
    assert (parsed.active, parsed.reloads) == (True, True)
    assert admitted(found, pod) == found, "asked again, admission changes nothing"
    again = {**reload_request(), "metadata": found["metadata"]}
    assert put_back(found, again)["spec"] == found["spec"]
    own_order = admitted(reload_request(reloadContainers=["proxy", "app"]), pod)
    assert [each["name"] for each in own_order["spec"]["containers"]] == ["proxy", "app"]


def test_a_container_that_kubelet_never_restarts_may_reload() -> None:
    assert admitted(reload_request(), new_pod(reloads(once=HUP)))["spec"]["containers"][0]["name"] == "once"


def test_no_older_version_takes_a_reload_for_a_restart() -> None:
    """A CRD or a manager without the fields sees no containers, and an older node daemon another label."""
    pruned = reload_request(reloadContainers=["app"])
    del pruned["spec"]["strategy"]
    assert denial(reviewed(pruned, new_pod(reloads(app=HUP)), USER)) == (
        "spec.containers must name at least one container",
        422,
    )
    found = admitted(reload_request(), new_pod(reloads(app=HUP)))
    found["metadata"]["labels"][ACTIVE] = "true"
    assert not parse_request(found).active, "an older manager has admitted it"


def test_no_request_brings_a_command() -> None:
    """A user who may write requests can only run what the pod declares. No part of a request is run."""
    pod = new_pod(reloads(app=HUP))
    own = '{"exec": ["sh", "-c", "steal"]}'
    request = reload_request(reload={"exec": ["sh", "-c", "steal"]}, exec=["steal"])
    request["spec"]["reload"] = {"exec": ["steal"]}
    request["metadata"]["annotations"] = {f"{ANNOTATION_RELOAD}app": own}
    found = admitted(request, pod)
    world = observed(
        instance("a1", sandbox="first", pod_namespace="shop", pod_name="web-0", pod_uid="pod-uid-1"),
        pod=parse_pod(pod),
        sandboxes=(Sandbox("first", "containerd", "shop", "web-0", "pod-uid-1", True, 1, reloads={"app": HUP}),),
    )
    asked = parse_request(found | {"metadata": {**found["metadata"], "uid": "r1", "creationTimestamp": CREATED}})
    pinned = replace(asked.containers[0], context=Pin("containerd://a1", 0))
    actions = decided([replace(asked, containers=(pinned,))], world, 100.0).actions
    assert [each.reload.hook.command for each in actions if isinstance(each, RunReload)] == [("kill", "-HUP", "1")]


@pytest.mark.parametrize("change", [without_id, lambda pod: pod.pop("status")])
def test_a_container_that_has_never_run_may_get_another_image(change: Change) -> None:
    """For example one whose image cannot be pulled. There is no instance that a statusContext could name."""
    pod = new_pod(change)
    found = admitted(new_request(containers=[{"name": "app", "image": "app:2"}]), pod)
    assert found["spec"]["containers"] == [{"name": "app", "image": "app:2"}]
    assert admitted(found, pod) == found
    started = admitted(found)["spec"]["containers"][0]
    assert started["statusContext"]["containerID"] == "containerd://a1", "asked again, it runs by now"


def test_fills_in_all_that_is_admissions() -> None:
    request = new_request()
    before = copy.deepcopy(request)
    assert admitted(request) == {
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ContainerRecreateRequest",
        "metadata": {
            "namespace": "shop",
            "name": "restart-app",
            "labels": {"team": "a", POD_NAME: "web-0", POD_UID: "pod-uid-1", NODE_NAME: "node-1", ACTIVE: "true"},
            "annotations": {REQUESTED_BY: USER},
        },
        "spec": {
            "podName": "web-0",
            "containers": [
                {"name": "app", "statusContext": {"containerID": "containerd://a1", "restartCount": 2}},
                {"name": "proxy", "statusContext": {"containerID": "containerd://p1", "restartCount": 1}},
            ],
            "strategy": {"failurePolicy": "Fail", "terminationGracePeriodSeconds": 45},
            "somethingNew": [1],
        },
    }
    assert request == before, "the user's object was changed"


def test_what_the_user_chose_stays() -> None:
    chosen = {
        "failurePolicy": "Ignore",
        "terminationGracePeriodSeconds": 0,
        "unreadyGracePeriodSeconds": 3,
        "minStartedSeconds": 4,
        "orderedRecreate": True,
    }
    assert admitted(new_request(strategy=chosen))["spec"]["strategy"] == chosen


@pytest.mark.parametrize("grace", [None, -1, "30", True])
def test_a_pod_without_a_sound_grace_period_gives_none(grace: object) -> None:
    pod = new_pod(spec(terminationGracePeriodSeconds=grace))
    assert admitted(new_request(), pod)["spec"]["strategy"] == {"failurePolicy": "Fail"}


def test_the_longest_durations() -> None:
    longest = {"unreadyGracePeriodSeconds": 86_400, "minStartedSeconds": 604_800, "failurePolicy": "Fail"}
    longest["terminationGracePeriodSeconds"] = 604_800
    admitted(new_request(strategy=longest, activeDeadlineSeconds=604_800, ttlSecondsAfterFinished=604_800))


def test_the_pods_own_grace_period_may_be_what_it_is() -> None:
    pod = new_pod(spec(terminationGracePeriodSeconds=10**9))
    finished = admitted(new_request(), pod)
    assert finished["spec"]["strategy"]["terminationGracePeriodSeconds"] == 10**9
    assert reviewed(finished, pod, USER) == finished


def test_labels_and_annotations_of_the_user_give_way() -> None:
    request = new_request()
    labels = {POD_NAME: "other", POD_UID: "other", NODE_NAME: "other", ACTIVE: "false", "team": "b"}
    request["metadata"]["labels"] = labels
    request["metadata"]["annotations"] = {REQUESTED_BY: "root", UNREADY: "x", PINNED: "{}", "note": "kept"}
    found = admitted(request)["metadata"]
    ours = {POD_NAME: "web-0", POD_UID: "pod-uid-1", NODE_NAME: "node-1", ACTIVE: "true"}
    assert found["labels"] == {**ours, "team": "b"}
    assert found["annotations"] == {REQUESTED_BY: USER, "note": "kept"}


def test_the_longest_node_name_that_fits_a_label() -> None:
    assert admitted(new_request(), new_pod(spec(nodeName="n" * 63)))["metadata"]["labels"][NODE_NAME] == "n" * 63


@pytest.mark.parametrize(("length", "label"), [(63, "p" * 63), (64, None)])
def test_a_pod_name_that_does_not_fit_a_label_is_left_out(length: int, label: str | None) -> None:
    """Also the user's, which names another pod."""
    name = "p" * length
    request = new_request(podName=name)
    request["metadata"]["labels"] = {POD_NAME: "other"}
    found = admitted(request, new_pod(meta(name=name)))
    assert found["metadata"]["labels"].get(POD_NAME) == label
    assert admitted(found, new_pod(meta(name=name))) == found


@pytest.mark.parametrize("policy", ["Always", "OnFailure", None])
def test_containers_that_kubelet_restarts(policy: str | None) -> None:
    admitted(new_request(), new_pod(spec(restartPolicy=policy)))


def test_a_container_of_its_own_policy_in_a_pod_that_stays_down() -> None:
    pod = new_pod(spec(restartPolicy="Never"), lambda o: o["spec"]["containers"][0].update(restartPolicy="Always"))
    assert not isinstance(reviewed(new_request(), pod, USER, 35), Denied)
    for minor in (34, None):  # an older kubelet does not heed it, an unknown one may not
        denied = reviewed(new_request(), pod, USER, minor)
        assert isinstance(denied, Denied)
        assert denied.reason is DenialReason.CONTAINER_NEVER_RESTARTED


def test_so_many_containers_are_not_even_looked_at() -> None:
    class Unread(dict[str, Any]):
        def get(self, *_: object) -> Any:
            raise AssertionError

    request = new_request(containers=[Unread()] * 257)
    denied = read_new(request)
    assert isinstance(denied, Denied)
    assert denied.message == "spec.containers must have at most 256 entries, not 257"


def test_as_many_containers_as_a_spec_may_have() -> None:
    assert not isinstance(read_new(new_request(containers=[{"name": f"c{n}"} for n in range(256)])), Denied)


def test_a_container_whose_rules_restart_the_whole_pod() -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    pod = new_pod(lambda o: o["spec"]["containers"][0].update(restartPolicy="Always", restartPolicyRules=[rule]))
    for minor in (36, None):
        denied = reviewed(new_request(), pod, USER, minor)
        assert isinstance(denied, Denied)
        assert denied.reason is DenialReason.RESTARTS_POD
        why = Reason.RESTARTS_POD.say(code=143)
        assert denied.message == f"spec.strategy.allowPodRestart must be true for container 'app': {why}"
    assert not isinstance(reviewed(new_request(), pod, USER, 35), Denied)
    assert not isinstance(reviewed(new_request(strategy={"allowPodRestart": True}), pod, USER, 36), Denied)


def test_a_pod_whose_group_may_be_replaced() -> None:
    pod = new_pod(meta(labels={"leaderworkerset.sigs.k8s.io/name": "llm"}))
    for image in ({}, {"image": "app:2"}):
        request = new_request(containers=[{"name": "app", **image}])
        denied = reviewed(request, pod, USER)
        assert isinstance(denied, Denied)
        assert denied.reason is DenialReason.RESTARTS_POD
        why = "after its restart, its LeaderWorkerSet may replace all pods of the group"
        assert denied.message == f"spec.strategy.allowPodRestart must be true for container 'app': {why}"
        request["spec"]["strategy"] = {"allowPodRestart": True}
        assert not isinstance(reviewed(request, pod, USER), Denied)


@pytest.mark.parametrize("refusal", CREATE_REFUSALS, ids=lambda refusal: refusal.name)
def test_every_refusal_of_a_new_request(refusal: Refusal) -> None:
    request, pod = refusal.objects()
    assert denial(reviewed(request, pod, USER)) == (refusal.sentence, 422)


def entry(**fields: Any) -> Change:
    return lambda o: o["spec"]["containers"][0].update(fields)


def context(container_id: str | None, count: int | None) -> Change:
    return entry(statusContext={"containerID": container_id, "restartCount": count})


def labelled(key: str, value: object) -> Change:
    return lambda o: o["metadata"]["labels"].update({key: value})


def annotated(key: str, value: object) -> Change:
    return lambda o: o["metadata"]["annotations"].update({key: value})


def unlabelled(key: str) -> Change:
    return lambda o: o["metadata"]["labels"].pop(key)


def unannotated(key: str) -> Change:
    return lambda o: o["metadata"]["annotations"].pop(key)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        labelled("mesh", "on"),
        annotated("crr.apps.kruise.io/sync-container-statuses", "[]"),
        meta(finalizers=["crr.apps.kruise.io/unready-acquired"]),
    ],
)
def test_what_admission_has_completed_is_let_in_again(change: Change) -> None:
    """The API server asks again when another webhook has changed the request since."""
    finished = admitted(new_request())
    change(finished)
    assert reviewed(finished, new_pod(), USER) == finished


def test_a_default_that_another_webhook_has_taken_off_is_filled_in_again() -> None:
    finished = admitted(new_request())
    again = copy.deepcopy(finished)
    del again["spec"]["strategy"]["failurePolicy"]
    assert admitted(again) == finished


def test_what_admission_sets_is_not_judged_as_the_users_spec() -> None:
    odd = new_request(containers=[{"name": "app", "statusContext": "odd", "ports": 3, "preStop": []}])
    request = read_new(odd)
    assert not isinstance(request, Denied)
    assert request.parsed.containers == (RequestedContainer("app"),)


def test_a_container_that_was_never_restarted_may_have_no_count() -> None:
    pod = new_pod(lambda o: o["status"]["containerStatuses"][0].pop("restartCount"))
    finished = admitted(new_request(), pod)
    assert finished["spec"]["containers"][0]["statusContext"] == {"containerID": "containerd://a1", "restartCount": 0}


LEFT_OUT = (
    "spec.containers[0].statusContext must be left out: admission takes it from the pod "
    "(if you left it out, another webhook has changed the request)"
)
SMUGGLED: list[tuple[Change, str]] = [
    (labelled(NODE_NAME, "node-2"), LEFT_OUT),
    (unlabelled(POD_UID), LEFT_OUT),
    (labelled(ACTIVE, True), LEFT_OUT),
    (annotated(REQUESTED_BY, "root"), LEFT_OUT),
    (annotated(UNREADY, ""), LEFT_OUT),
    (annotated(PINNED, "{}"), LEFT_OUT),
    (context("containerd://other", 2), LEFT_OUT),
    (context("containerd://a0", 1), LEFT_OUT),
    (context("containerd://a1", 3), LEFT_OUT),
    (context(None, 2), LEFT_OUT),
    (entry(ports=[]), LEFT_OUT),
    (
        lambda o: o["spec"]["containers"].append({"name": "once"}),
        "spec.containers[2].name must name a container that kubelet restarts: the restartPolicy of 'once' is Never",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), SMUGGLED)
def test_what_admission_sets_is_let_in_only_as_it_would_set_it(change: Change, sentence: str) -> None:
    finished = admitted(new_request())
    change(finished)
    assert denial(reviewed(finished, new_pod(), USER)) == (sentence, 422)


def from_file(**spec: Any) -> JsonObject:
    """What a user's file holds, which says no more than they wrote."""
    return new_request(**spec)


def merged(old: JsonObject, file: JsonObject) -> JsonObject:
    """What `kubectl apply` makes of it: maps are merged, lists replaced."""
    strategy = old["spec"]["strategy"] | file["spec"].get("strategy", {})
    return {**old, "spec": {**old["spec"], **file["spec"], "strategy": strategy}}


CHOSEN = {"strategy": {"minStartedSeconds": 4, "failurePolicy": "Ignore", "terminationGracePeriodSeconds": 3}}


EMPTY = {"strategy": {"failurePolicy": ""}}


@pytest.mark.parametrize("asked", [{}, {"strategy": {}}, {"strategy": {"minStartedSeconds": 4}}, EMPTY, CHOSEN])
@pytest.mark.parametrize("tool", ["apply", "replace"])
def test_a_file_that_is_written_again_changes_nothing(asked: JsonObject, tool: str) -> None:
    old = admitted(from_file(**asked))
    old["metadata"]["annotations"] |= {UNREADY: "2026-01-02T03:04:05Z", PINNED: "{}"}
    for entry_ in old["spec"]["containers"]:
        entry_ |= {"preStop": {"exec": {}}, "ports": []}  # OpenKruise's admission did
    before = copy.deepcopy(old)
    file = from_file(**asked)
    back = put_back(old, merged(old, file) if tool == "apply" else file)
    assert back == before == old


@pytest.mark.parametrize("tool", ["apply", "replace"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (spec(podName="web-1"), "podName"),
        (spec(containers=[{"name": "app"}]), "containers"),
        (spec(containers=[{"name": "app"}, {"name": "proxy"}, {"name": "log"}]), "containers"),
        (spec(containers=[{"name": "proxy"}, {"name": "app"}]), "containers"),
        (strategy(minStartedSeconds=1), "strategy"),
        (strategy(failurePolicy="Ignore"), "strategy"),
        (spec(ttlSecondsAfterFinished=1), "ttlSecondsAfterFinished"),
    ],
)
def test_a_file_that_was_changed_is_a_change_all_the_same(change: Change, field: str, tool: str) -> None:
    old, file = admitted(from_file()), from_file()
    change(file)
    back = put_back(old, merged(old, file) if tool == "apply" else file)
    assert [key for key in {**old["spec"], **back["spec"]} if old["spec"].get(key) != back["spec"].get(key)] == [field]


def test_labels_alone_are_put_back() -> None:
    old = admitted(from_file())
    new = copy.deepcopy(old)
    del new["metadata"]["labels"]
    labels = {POD_NAME: "web-0", POD_UID: "pod-uid-1", NODE_NAME: "node-1", ACTIVE: "true"}
    assert put_back(old, new)["metadata"]["labels"] == labels
    new["metadata"]["labels"] = {key: value for key, value in labels.items() if key != POD_NAME}
    assert put_back(old, new)["metadata"]["labels"] == labels


def test_the_label_active_stays_away_where_the_others_are_mentioned() -> None:
    old = admitted(from_file())
    for mentioned in (POD_UID, NODE_NAME):
        new = copy.deepcopy(old)
        new["metadata"]["labels"] = {mentioned: old["metadata"]["labels"][mentioned]}
        assert ACTIVE not in put_back(old, new)["metadata"]["labels"]


@pytest.mark.parametrize("odd", ["app", 1, None, ["app"]])
def test_odd_entries_get_nothing_back(odd: object) -> None:
    old, new = admitted(from_file()), from_file(containers=[odd, {"name": "proxy"}])
    back = put_back(old, new)["spec"]["containers"]
    assert back == [odd, old["spec"]["containers"][1]]
    assert put_back(new, old)["spec"]["containers"][0] == old["spec"]["containers"][0]


@pytest.mark.parametrize("new", [{}, {"spec": {}}, {"metadata": None, "spec": None}, {"metadata": "odd", "spec": [1]}])
def test_where_nothing_is_put_back_nothing_is_touched(new: JsonObject) -> None:
    assert put_back(new_request(), new) == new


def test_a_policy_that_the_user_gave_is_not_put_back() -> None:
    old = admitted(from_file(strategy={"failurePolicy": "Ignore"}))
    for file in (from_file(), from_file(**EMPTY)):
        assert put_back(old, file)["spec"] != old["spec"]


@pytest.mark.parametrize(
    "change", [unlabelled(ACTIVE), unannotated(PINNED), unannotated(UNREADY), labelled("team", "b")]
)
def test_what_is_taken_away_by_itself_stays_away(change: Change) -> None:
    """The manager takes the label active away, and nobody else's write is turned into another."""
    old = admitted(new_request())
    old["metadata"]["annotations"] |= {UNREADY: "2026-01-02T03:04:05Z", PINNED: "{}"}
    new = copy.deepcopy(old)
    change(new)
    assert put_back(old, new) == new


def test_an_ended_request_is_not_made_active_by_its_file() -> None:
    old = admitted(new_request())
    del old["metadata"]["labels"][ACTIVE]
    assert put_back(old, from_file()) == old


GATE = {"conditionType": "KruisePodReady"}


@pytest.mark.parametrize(
    ("pod", "patch"),
    [
        ({"spec": {}}, [{"op": "add", "path": "/spec/readinessGates", "value": [GATE]}]),
        ({"spec": {"readinessGates": None}}, [{"op": "replace", "path": "/spec/readinessGates", "value": [GATE]}]),
        (
            {"spec": {"readinessGates": [{"conditionType": "other"}]}},
            [{"op": "replace", "path": "/spec/readinessGates", "value": [{"conditionType": "other"}, GATE]}],
        ),
        ({"spec": {"readinessGates": [GATE]}}, []),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "h"}}, "spec": {}}, []),
        ({"spec": {"readinessGates": "odd"}}, []),
        ({"spec": "odd"}, []),
        ({}, []),
    ],
)
def test_pods_get_the_readiness_gate_once(pod: JsonObject, patch: list[JsonObject]) -> None:
    assert mutate_pod(pod) == patch


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
json_objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)


@st.composite
def disturbed(draw: st.DrawFn, sound: JsonObject) -> JsonObject:
    """A sound object in which a few fields, found by a random walk, are anything or gone."""
    for _ in range(draw(st.integers(0, 3))):
        place: Any = sound
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.booleans()):
                place[key] = draw(json_values)
            else:
                del place[key]
            break
    return sound


requests = json_objects | st.builds(new_request).flatmap(disturbed)
pods = st.none() | json_objects | st.builds(new_pod).flatmap(disturbed)


@given(requests, pods, st.text())
def test_any_request_and_pod_are_judged(request: JsonObject, pod: JsonObject | None, user: str) -> None:
    outcome = reviewed(request, pod, user)
    if isinstance(outcome, Denied):
        assert outcome.message
        assert outcome.code == 422
    else:
        assert reviewed(outcome, pod, user) == outcome, "asked again, it refused its own work"
        assert put_back(outcome, outcome) == outcome
        identity = {"namespace": "n", "name": "r", "uid": "u"}
        found = parse_request({**outcome, "metadata": {**outcome["metadata"], **identity}, "status": {}})
        assert not found.error, "the node cannot read what admission let in"
        assert found.active
        assert all(container.context for container in found.containers)


@given(requests, requests)
def test_any_update_is_completed(old: JsonObject, new: JsonObject) -> None:
    back = put_back(old, new)
    assert put_back(old, back) == back
    assert put_back(old, old) == old


@given(json_objects | st.builds(new_pod).flatmap(disturbed))
def test_any_pod_is_mutated(pod: JsonObject) -> None:
    patched = jsonpatch.apply_patch(pod, mutate_pod(pod))
    assert mutate_pod(patched) == []


@given(json_objects, json_objects)
def test_a_patch_turns_one_object_into_the_other(before: JsonObject, after: JsonObject) -> None:
    assert jsonpatch.apply_patch(before, json_patch(before, after)) == after


def test_a_patch_names_only_what_differs() -> None:
    before, after = {"a": 1, "b": {"c": 2, "d": [3]}}, {"a": 1, "b": {"c": 4, "d": [3]}}
    assert json_patch(before, after) == [{"op": "replace", "path": "/b/c", "value": 4}]


@pytest.mark.parametrize("other", [None, 1, "ab", [], ["b"]])
def test_what_is_an_object_on_one_side_alone_is_replaced_whole(other: object) -> None:
    for before, after in ((other, {"b": 1}), ({"b": 1}, other)):
        assert json_patch({"a": before}, {"a": after}) == [{"op": "replace", "path": "/a", "value": after}]


def test_paths_of_a_patch_are_escaped() -> None:
    assert json_patch({"a": {}}, {"a": {"b/c~d": 1}}) == [{"op": "add", "path": "/a/b~1c~0d", "value": 1}]


def test_entries_that_the_pod_lists_oddly_are_passed_over() -> None:
    pod = new_pod(lambda o: o["spec"]["containers"].insert(0, "odd"))
    assert admitted(new_request(), pod)["spec"]["containers"][1]["name"] == "proxy"
