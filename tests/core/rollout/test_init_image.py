"""Runs that give an init container another image, and restart the whole pods. The rest is as in `test_image`."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import Pin, RecreateState, RequestedContainer, RequestPhase, StatePhase, Status
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.init import NewInitImage
from crrd.core.rollout.image.pull import PullPod, PullState
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.steps import patch_of
from crrd.core.rollout.image.template import Content, Template
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import ANNOTATION_RUN, Run
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import Skip, WaitReason
from crrd.kubelet.restart_rules import RestartPolicy
from tests.support.rollouts import NOW, START, chosen, container, image_actions, member, planned, run, workload

OLD, NEW, OTHER = "render:1", "render:2", "render:3"
INIT = container("render", kind=ContainerKind.INIT, running=False, terminated=True, exit_code=0, image=OLD)
SIDE = container("side", kind=ContainerKind.SIDECAR, image="side:1")
APP = container("app", image="app:1")
PULLED = (PullPod("pull-node-a", "u", "run", "node-a", PullState.PULLED),)
CHANGED = START + timedelta(seconds=20)
EARLIER, LATER = "2026-01-01T12:00:20Z", "2026-01-01T12:00:21Z"  # Than CHANGED, in whole seconds


def of_init(*, mode: TemplateMode = TemplateMode.KEEP, undoes: str = "", image: str = NEW, **options: Any) -> Run:
    before = (NEW if image == OLD else OLD,)
    change = ImageChange(image, before, mode=mode, template="rest", undoes=undoes)
    return run("render", image=change, whole_pod=True, **options)


def pod(image: str = OLD, *others: PodContainer, name: str = "web-0", **changes: Any) -> Member:
    own = {key: changes.pop(key) for key in tuple(changes) if key in ("started_at", "container_id", "waiting_reason")}
    return member(name, replace(INIT, image=image, **own), *(others or (SIDE, APP)), **changes)


def world(*pods: Member, requests: tuple[RunRequest, ...] = (), **changes: Any) -> World:
    known = {key: changes.pop(key) for key in ("sent", "template") if key in changes}
    extra = ImageState(PULLED, container="render", **known)
    return World(pods, requests, workload(len(pods)), extra=extra, **changes)


def asked(
    of: Run, target: Member, phase: StatePhase, reason: Reason = Reason.NONE, old: str = "render-1"
) -> RunRequest:
    """Return the run's request for a pod, in this phase of its init container."""
    names = ("side", "app")
    context = RequestedContainer(
        "render", Pin(f"containerd://{old}"), of.options.image.image if of.options.image else ""
    )
    wanted = (context, *(RequestedContainer(name, Pin(f"containerd://{name}-1")) for name in names))
    states = (RecreateState("render", phase, reason=reason), *(RecreateState(name, phase) for name in names))
    whole = RequestPhase.COMPLETED if phase.final else RequestPhase.RECREATING
    body = of.request(target.pod.name, target.pod.uid, ("render",))
    body["metadata"] |= {"uid": f"uid-of-{body['metadata']['name']}", "creationTimestamp": "2026-01-01T12:00:50Z"}
    body["metadata"]["resourceVersion"] = "1"
    body["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] = target.pod.uid
    found = read_run_request(body)
    assert found is not None
    status = Status(whole, states, completion_time="2026-01-01T12:00:55Z" if phase.final else "")
    return replace(found, request=replace(found.request, containers=wanted, status=status, active=not phase.final))


def test_the_request_names_the_init_container_and_its_image() -> None:
    plan = planned(world(pod(), pod(name="web-1")), of_init())
    assert (chosen(plan), plan.rows[0].containers) == (["web-0"], ("render",))
    body = of_init().request("web-0", "uid-web-0", ("render",))
    assert body["spec"]["wholePod"] is True
    assert body["spec"]["containers"] == [{"name": "render", "image": NEW}]
    assert parse_request({**body, "metadata": {**body["metadata"], "uid": "u"}}).error == ""
    assert isinstance(kind_of(World(()), of_init()), NewInitImage)


def test_the_image_is_pulled_first_and_the_pod_gets_it_after_its_request() -> None:
    without = replace(world(pod()), extra=ImageState(container="render"))
    first = planned(without, of_init())
    assert (chosen(first), image_actions(first).pull, first.phase) == ([], ("node-a",), RunPhase.PULLING)
    present = asked(of_init(), pod(), StatePhase.PENDING, Reason.IMAGE_PRESENT)
    (row,) = image_actions(planned(world(pod(), requests=(present,)), of_init())).patch
    assert row.containers == ("render", "side", "app"), "all of them restart"
    facts = ImageRun.of(world(pod()), of_init())
    assert [each["path"] for each in patch_of(facts, row) if each["op"] == "replace"] == [
        "/spec/initContainers/0/image"
    ]


@pytest.mark.parametrize("changed", ["image", "wholePod", "name"])
def test_nobody_makes_another_run_of_it(changed: str) -> None:
    body = of_init().request("web-0", "uid-web-0", ("render",))
    assert read_run_request(body) is not None
    if changed == "wholePod":
        body["spec"]["wholePod"] = False
    elif changed == "image":
        body["spec"]["containers"][0]["image"] = OTHER
    else:
        options = json.loads(body["metadata"]["annotations"][ANNOTATION_RUN])
        options["options"]["containers"] = ["render", "other"]
        body["metadata"]["annotations"][ANNOTATION_RUN] = json.dumps(options)
    assert read_run_request(body) is None


SKIPS: dict[str, tuple[Member, Skip | None]] = {
    "it has the old image": (pod(), None),
    "it is in a crash loop, which the image may end": (pod(waiting_reason="CrashLoopBackOff"), None),
    "its other containers have never started": (pod(OLD, replace(APP, container_id="", running=False)), None),
    "it has had the image from its creation": (pod(NEW), Skip.HAS_IMAGE),
    "it has run with the image": (
        pod(NEW, started_at=LATER, image_changes={"render": CHANGED}),
        Skip.HAS_IMAGE,
    ),
    "it has the image, and has not run with it": (pod(NEW, image_changes={"render": CHANGED}), None),
    "it may have run within the same second": (
        pod(NEW, started_at=EARLIER, image_changes={"render": CHANGED}),
        None,
    ),
    "the pod would end": (pod(OLD, replace(APP, restart_policy=RestartPolicy.ON_FAILURE)), Skip.POD_WOULD_END),
    "a hook would be left out": (pod(OLD, replace(SIDE, hook_needs_ip=True), APP), Skip.HOOK_NEEDS_IP),
    "another runtime": (pod(OLD, replace(APP, container_id="other://1")), Skip.OTHER_RUNTIME),
    "a failed init container would end the pod": (
        member("web-0", replace(INIT, restart_policy=RestartPolicy.NEVER), APP),
        Skip.POD_WOULD_END,
    ),
    "another failed init container would end the pod": (
        pod(OLD, container("first", kind=ContainerKind.INIT, own_restart_policy=RestartPolicy.NEVER), APP),
        Skip.POD_WOULD_END,
    ),
    "kubelet tries a failed init container again": (
        member("web-0", replace(INIT, image=OLD, own_restart_policy=RestartPolicy.ON_FAILURE), APP),
        None,
    ),
    "a sidecar of that name": (member("web-0", container("render", kind=ContainerKind.SIDECAR), APP), Skip.NO_INIT),
    "no such container": (member("web-0", APP), Skip.NO_CONTAINER),
    "it has just been created": (
        replace(pod(OLD, container_id="", waiting_reason="PodInitializing"), created="2026-01-01T12:00:30Z"),
        Skip.NOT_RUNNING,
    ),
}


@pytest.mark.parametrize("case", SKIPS)
def test_which_pods_restart(case: str) -> None:
    found, skip = SKIPS[case]
    (row,) = planned(world(found), of_init()).rows
    assert (row.stage, row.skip) == (Stage.WAITING if skip is None else Stage.SKIPPED, skip)


def test_pods_on_the_hosts_network_are_skipped() -> None:
    on_host = replace(pod(), pod=replace(pod().pod, host_network=True))
    (row,) = planned(world(on_host), of_init()).rows
    assert row.skip is Skip.HOST_NETWORK


BACK = replace(
    pod(
        NEW,
        container("side", kind=ContainerKind.SIDECAR, container_id="containerd://side-2"),
        container("app", container_id="containerd://app-2"),
        started_at=LATER,
        container_id="containerd://render-2",
        image_changes={"render": CHANGED},
    ),
    ready_since=NOW - timedelta(seconds=5),
)
DONE, BUSY, FAILED = StatePhase.SUCCEEDED, StatePhase.RECREATING, StatePhase.FAILED


@pytest.mark.parametrize(
    ("found", "phase", "stage"),
    [
        (BACK, DONE, Stage.DONE),
        (pod(NEW), BUSY, Stage.RECREATING),
        (pod(NEW), DONE, Stage.SETTLING),  # the pod's status in the API is older
        (replace(BACK, ready=False), DONE, Stage.SETTLING),
        (BACK, FAILED, Stage.FAILED),
        (
            replace(BACK, pod=replace(pod().pod, containers={**BACK.pod.containers, "render": INIT})),
            DONE,
            Stage.SETTLING,
        ),
    ],
)
def test_a_pod_is_done_once_it_has_restarted_with_the_image(found: Member, phase: StatePhase, stage: Stage) -> None:
    (row,) = planned(world(found, requests=(asked(of_init(), found, phase),)), of_init()).rows
    assert row.stage is stage


def test_a_pod_that_gets_its_old_image_back_has_failed() -> None:
    back = replace(BACK.pod.containers["render"], image=OLD)
    found = replace(BACK, pod=replace(BACK.pod, containers={**BACK.pod.containers, "render": back}))
    plan = planned(world(found, requests=(asked(of_init(), found, DONE),)), of_init())
    assert (plan.end, plan.rows[0].wait.reason) == (End.FAILED, WaitReason.SET_BACK)


def test_an_init_container_that_has_run_does_not_count_as_crashed() -> None:
    """It has ended, as it does each time, and kubelet counts its restarts."""
    render = replace(BACK.pod.containers["render"], restart_count=7)
    found = replace(BACK, pod=replace(BACK.pod, containers={**BACK.pod.containers, "render": render}))
    assert planned(world(found, requests=(asked(of_init(), found, DONE),)), of_init()).end is End.DONE


# A pod that has the image, and was not restarted: its request has ended between the two.


def test_a_pod_whose_restart_failed_gets_another_request_and_keeps_its_pull_pod() -> None:
    given = pod(NEW, image_changes={"render": CHANGED})
    lost = asked(of_init(), given, FAILED, Reason.SANDBOX_FAILED)
    (row,) = planned(world(given, requests=(lost,)), of_init()).rows
    assert row.stage is Stage.FAILED, "the run says so"
    retried = planned(world(given, requests=(lost,), retried=frozenset({lost.request.uid})), of_init())
    assert (chosen(retried), image_actions(retried).drop) == (["web-0"], ())


@pytest.mark.parametrize("known", ["by its request", "by this process", "by times"])
def test_it_is_known_that_a_pod_was_not_restarted(known: str) -> None:
    """An API server before 1.33 does not say when an image was changed."""
    given = pod(NEW, image_changes={"render": CHANGED} if known == "by times" else {})
    other = replace(of_init(), name="other")
    lost = asked(other, given, FAILED, Reason.NO_ANSWER)
    found = world(given, requests=(lost,) if known == "by its request" else ())
    if known == "by this process":
        found = world(given, sent={given.pod.uid: "containerd://render-1"})
    plan = planned(found, of_init())
    assert plan.rows[0].stage is Stage.WAITING
    assert kind_of(found, of_init()).report().startswith("0 of 1 pods have render:2")


def test_a_request_that_has_succeeded_says_that_it_was() -> None:
    """The time may be that of a later write by the same program."""
    late = replace(BACK, image_changes={"render": NOW})
    other = replace(of_init(), name="other")
    assert planned(world(late), of_init()).rows[0].stage is Stage.WAITING
    (row,) = planned(world(late, requests=(asked(other, late, DONE),)), of_init()).rows
    assert row.skip is Skip.HAS_IMAGE


def test_an_undo_begins_with_pods_whose_init_container_fails() -> None:
    """Nothing restarts them. Kubelet tries the init container again with the image from before."""
    crashing = replace(pod(NEW, APP, waiting_reason="CrashLoopBackOff", started_at=LATER), ready=False)
    back = of_init(undoes="run", image=OLD)
    healthy = replace(BACK, pod=replace(BACK.pod, name="web-1", uid="uid-web-1"))
    plan = planned(world(healthy, crashing, budgets=()), back)
    assert chosen(plan) == ["web-0"]


def test_no_time_is_needed_to_see_that_it_works() -> None:
    """The pod is not ready before its init containers are done. Other containers are those from before."""
    assert kind_of(world(pod()), of_init()).completed().options.min_ready is None
    assert kind_of(world(pod()), run("app", image=ImageChange(NEW))).completed().options.min_ready == 10


def test_the_template_is_adopted_after_the_last_pod() -> None:
    template = Template("Deployment", "web", "uid-of-web", Content(OLD, "/initContainers/0", "rest"), replicas=1)
    adopts = of_init(mode=TemplateMode.ADOPT)
    plan = planned(world(BACK, requests=(asked(adopts, BACK, DONE),), template=template), adopts)
    assert plan.phase is RunPhase.ADOPTING
    given = pod(NEW, image_changes={"render": CHANGED})
    plan = planned(world(given, template=template), adopts)
    assert (plan.phase, chosen(plan)) == (RunPhase.RESTARTING, ["web-0"]), "not before it has restarted"


def test_what_the_run_does_is_told() -> None:
    assert of_init().describe(2) == "whole pods, render with render:2 of deployment.apps/web, 2 pods, at most 1 unready"
    assert of_init().purpose == (
        "gives container render of deployment.apps/web the image render:2, and restarts the whole pods"
    )
