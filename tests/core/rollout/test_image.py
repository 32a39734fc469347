"""Runs with an image: pull pods, steps, and messages. For interleavings, see tests/properties."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import RecreateState, RequestedContainer, RequestPhase
from crrd.core.rollout.change import ImageChange, TemplateMode, read_image_change
from crrd.core.rollout.image.adoption import changed_by_others, next_adoption, trial_writes
from crrd.core.rollout.image.controllers import Adoption
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.names import image_ids, is_mutable
from crrd.core.rollout.image.pull import (
    LABEL_PULL_POLICY,
    PullMemory,
    PullPod,
    PullState,
    pull_pod,
    read_pull_pod,
)
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.steps import ImageActions, never_adopted, patch_of
from crrd.core.rollout.image.template import (
    NO_TEMPLATE,
    Content,
    Revision,
    Template,
    read_content,
    read_revision,
    read_template,
)
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import run_status
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import ANNOTATION_RUN, Amount, Run
from crrd.core.rollout.state import Member, NodeDaemon, World
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.waiting import IMAGE_NOT_PULLED, NOT_CREATED
from tests.support.rollouts import (
    AFTER,
    BEFORE,
    NOW,
    Phases,
    asked,
    chosen,
    container,
    failed,
    image_actions,
    member,
    planned,
    recreated,
    run,
    stages,
    succeeded,
    why,
    with_template,
    workload,
)

OLD, NEW, OTHER = "app:1", "app:2", "app:3"
HELD = (
    ", and its controller is held (crr.apps.kruise.io/adopting-run: to roll it out with new pods: "
    "kubectl rollout resume deployment.apps/web -n default)"
)


def of_image(*, adopt: bool = False, pulls: bool = True, undoes: str = "", **options: Any) -> Run:
    change = ImageChange(
        NEW,
        (OLD,),
        mode=TemplateMode.ADOPT if adopt else TemplateMode.KEEP,
        pulls=pulls,
        template="rest",
        undoes=undoes,
    )
    return run(image=change, **options)


def pods(*images: str, **changes: Any) -> tuple[Member, ...]:
    return tuple(member(f"web-{n}", container(image=image, **changes)) for n, image in enumerate(images))


def pull(state: PullState, message: str = "", node: str = "node-a", **changes: Any) -> PullPod:
    return replace(PullPod(f"pull-{node}", "u", "run", node, state, message), **changes)


def world(members: tuple[Member, ...], *requests: RunRequest, pulls: tuple[PullPod, ...] = (), **state: Any) -> World:
    return World(members, requests, workload(len(members)), extra=ImageState(pulls, container="app", **state))


def present(of: Run, pod: Member, seconds: int = 5) -> RunRequest:
    """Return a request of this age, whose node has the image."""
    state = RecreateState("app", message="present", reason=Reason.IMAGE_PRESENT)
    found = asked(of, pod, RequestPhase.RECREATING, states=(state,))
    created = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(found, request=replace(found.request, created=created))


def stopped(found: RunRequest) -> RunRequest:
    return replace(found, request=replace(found.request, stopped=True))


def template(image: str = OLD, **changes: Any) -> Template:
    return replace(Template("Deployment", "web", "uid-of-web", Content(image, "/containers/0", "rest")), **changes)


def test_the_image_is_pulled_before_a_pod_gets_its_request() -> None:
    two = pods(OLD, OLD)
    first = planned(world(two), of_image())
    assert (image_actions(first).pull, chosen(first)) == (("node-a",), [])
    assert first.wait.why == "kubelet pulls app:2 on node node-a"
    waiting = planned(world(two, pulls=(pull(PullState.RETRYING, "ErrImagePull: no route"),)), of_image())
    assert (image_actions(waiting), waiting.wait.with_command) == (
        ImageActions(),
        "kubelet pulls app:2 on node node-a: ErrImagePull: no route (kubectl describe pod pull-node-a -n default)",
    )
    pulled = planned(world(two, pulls=(pull(PullState.PULLED),)), of_image())
    assert (chosen(pulled), image_actions(pulled)) == (["web-0"], ImageActions())
    assert chosen(planned(world(two, pulls=(pull(PullState.PULLED, deleting=True),)), of_image())) == []
    assert chosen(planned(world(two), of_image(pulls=False))) == ["web-0"]


def test_a_pull_that_fails_fails_the_pods_of_its_node() -> None:
    memory, again = PullMemory(), pull(PullState.RETRYING, "ErrImagePull: not found")
    for now in (0.0, 100.0):
        assert memory.seen(pull(PullState.PULLING), now) == pull(PullState.PULLING)
    assert memory.seen(again, 100.0) == again, "from the first failure, however long the pull took until then"
    assert memory.seen(again, 129.0) == again
    late = memory.seen(again, 130.0)
    assert planned(world(pods(OLD), pulls=(again,)), of_image()).end is None
    hangs = pull(PullState.PULLING, created=NOW - timedelta(seconds=600))
    sentence = "kubelet cannot pull app:2 on node node-a, and no container was stopped there: not pulled within 600s"
    assert why(planned(world(pods(OLD), pulls=(hangs,)), of_image())) == {"web-0": sentence}, "no deadline of kubelet's"
    assert planned(world(pods(OLD), pulls=(replace(hangs, state=PullState.PULLED),)), of_image()).end is None
    for found in (late, pull(PullState.FAILED, "InvalidImageName")):
        plan = planned(world(pods(OLD), pulls=(found,)), of_image())
        assert (plan.end, image_actions(plan).drop) == (End.FAILED, ())
        sentence = f"kubelet cannot pull app:2 on node node-a, and no container was stopped there: {found.message}"
        assert plan.rows[0].wait.with_command == sentence, "no command for the pod, which runs as before"


def test_what_was_pulled_stays_pulled() -> None:
    """The pod may end later at its deadline, because its container cannot be created."""
    memory, pulled = PullMemory(), pull(PullState.PULLED)
    assert memory.seen(pulled, 0.0) == pulled
    assert memory.seen(pull(PullState.FAILED, "DeadlineExceeded"), 600.0) == pulled
    assert memory.seen(pull(PullState.FAILED, uid="other"), 600.0).state is PullState.FAILED


def test_pull_pods_are_deleted_where_no_pod_needs_them() -> None:
    of, both = of_image(), (pull(PullState.PULLED), pull(PullState.PULLED, node="node-b"))
    never = member("web-1", container(image=OLD, restart_policy=RestartPolicy.NEVER), node="node-b")
    for there in (pods(OLD), (*pods(OLD), never)):
        plan = planned(world(there, pulls=both), of)
        assert [each.node for each in image_actions(plan).drop] == ["node-b"]


def test_a_pull_pod_stays_until_its_image_is_used() -> None:
    """While the preStop hook of the old container runs, kubelet would remove an image that nothing uses."""
    of, (pod,) = of_image(), pods(NEW)
    plan = planned(world((pod,), present(of, pod), pulls=(pull(PullState.PULLED),)), of)
    assert (image_actions(plan).patch, image_actions(plan).drop) == ((), ())


def test_a_pod_gets_the_image_when_its_node_says_so() -> None:
    of, (pod,) = of_image(pulls=False), pods(OLD)
    early = planned(world((pod,), asked(of, pod, RequestPhase.RECREATING)), of)
    assert (image_actions(early).patch, why(early)) == ((), {"web-0": ""})
    plan = planned(world((pod,), present(of, pod)), of)
    assert ([row.pod for row in image_actions(plan).patch], why(plan)) == (
        ["web-0"],
        {"web-0": "container app gets the image app:2 now"},
    )
    assert patch_of(ImageRun.of(World(()), of), image_actions(plan).patch[0]) == (
        {"op": "test", "path": "/metadata/uid", "value": "uid-web-0"},
        {"op": "test", "path": "/spec/containers/0/name", "value": "app"},
        {"op": "test", "path": "/spec/containers/0/image", "value": OLD},
        {"op": "replace", "path": "/spec/containers/0/image", "value": NEW},
    )
    (has,) = pods(NEW)
    assert patch_of(ImageRun.of(World(()), of), replace(image_actions(plan).patch[0], member=None)) == ()
    plan = planned(world((has,), present(of, has)), of)
    assert (image_actions(plan).patch, why(plan)) == ((), {"web-0": ""}), "what its request says is over"


def test_while_somebody_rolls_out_the_workload_begun_pods_get_the_image() -> None:
    of, (pod,) = of_image(pulls=False), pods(OLD)
    rolling = replace(world((pod,), present(of, pod)), workload=workload(1, rolling="0 of 1 pods are updated"))
    assert [row.pod for row in image_actions(planned(rolling, of)).patch] == ["web-0"]


def test_the_path_of_a_container() -> None:
    init = container("setup", kind=ContainerKind.INIT)
    mesh = container("mesh", kind=ContainerKind.SIDECAR)
    pod = member("web-0", container("app"), container("log"), init, mesh)
    assert [pod.pod.path_of(name) for name in ("log", "mesh")] == ["/spec/containers/1", "/spec/initContainers/1"]


def test_pods_that_have_the_image_are_done() -> None:
    of = of_image(pulls=False)
    plan = planned(world(pods(NEW, NEW)), of)
    assert (plan.end, why(plan)["web-0"]) == (End.DONE, "container app has the image")
    fresh = replace(pods(OLD)[0], created="2026-01-01T12:00:30Z")
    assert chosen(planned(world((fresh,)), of)) == ["web-0"], "it came during the run, from the old template"


def test_a_pod_whose_request_was_deleted_before_its_restart_is_still_in_progress() -> None:
    of, two = of_image(pulls=False), pods(NEW, OLD)
    sent = planned(world(two, sent={"uid-web-0": "containerd://app-1"}), of)
    assert (stages(sent)["web-0"], chosen(sent)) == ("recreating", [])
    assert why(sent)["web-0"] == "kubelet has not replaced container app yet since it got the image"
    replaced = planned(world(two, sent={"uid-web-0": "containerd://app-0"}), of)
    assert (stages(replaced)["web-0"], chosen(replaced)) == ("skipped", ["web-1"])
    starting = (replace(two[0], ready=False, ready_since=NOW - timedelta(seconds=9)), two[1])
    settling = planned(world(starting, sent={"uid-web-0": "containerd://app-0"}), of)
    assert (stages(settling)["web-0"], why(settling)["web-0"]) == ("recreating", "the pod is not ready")
    assert stages(planned(world(starting), of))["web-0"] == "skipped", "it may have been unready before"
    broken = (replace(starting[0], ready_since=NOW - timedelta(seconds=of.options.pod_timeout)), two[1])
    assert stages(planned(world(broken, sent={"uid-web-0": "containerd://app-0"}), of))["web-0"] == "failed"


def test_who_gets_no_image() -> None:
    of = of_image(pulls=False)
    assert why(planned(world(pods(OLD, restart_policy=RestartPolicy.ON_FAILURE)), of)) == {
        "web-0": "the restartPolicy of container app is not Always, so kubelet may not start it again with an image"
    }
    crashes = pods(OLD, running=False, ready=False, waiting_reason="CrashLoopBackOff")
    assert chosen(planned(world(crashes), of)) == ["web-0"], "another image may help"


@pytest.mark.parametrize("reason", sorted(IMAGE_NOT_PULLED | NOT_CREATED))
def test_a_container_that_never_ran_gets_the_image(reason: str) -> None:
    """Another image may be what it needs, as after a crash. It does not matter since when the pod is there."""
    stuck = pods(OLD, container_id="", running=False, ready=False, waiting_reason=reason)[0]
    for created in (BEFORE, AFTER):
        plan = planned(world((replace(stuck, created=created, ready=False),)), of_image(pulls=False))
        assert (chosen(plan), plan.wait.why) == (["web-0"], "")


@pytest.mark.parametrize("reason", ["", "ContainerCreating", "PodInitializing"])
def test_a_pod_that_was_just_created_starts_first(reason: str) -> None:
    """Kubelet has not said that it cannot. If it has had the time since before the run, the registry may not answer."""
    found = pods(OLD, container_id="", running=False, ready=False, waiting_reason=reason)[0]
    of, skipped = of_image(pulls=False), {"web-0": "container app is not running"}
    assert why(planned(world((replace(found, created=AFTER),)), of)) == skipped
    assert chosen(planned(world((replace(found, created=BEFORE),)), of)) == ["web-0"]
    nowhere = replace(found, created=BEFORE, pod=replace(found.pod, node_name=""))
    assert why(planned(world((nowhere,)), of)) == skipped, "admission asks for a node"
    assert next_adoption(ImageRun.of(world((nowhere,), template=template(), revisions=()), of_image(adopt=True))).wait


def test_a_container_that_never_ran_is_replaced_once_it_has_an_id() -> None:
    """Somebody has deleted its request. What kubelet has not started yet has no ID."""
    of, (stuck,) = of_image(pulls=False), pods(NEW, container_id="", running=False, ready=False)
    asked_before = asked(run(name="other", image=ImageChange(NEW)), stuck)
    bare = replace(asked_before.request, containers=(RequestedContainer("app", None, NEW),))
    known = world((stuck,), replace(asked_before, request=bare))
    assert stages(planned(known, of)) == {"web-0": "recreating"}
    assert stages(planned(replace(known, members=pods(NEW)), of)) == {"web-0": "skipped"}


def test_a_pod_that_never_gets_the_image_rules_out_an_adoption() -> None:
    of, (first, second) = of_image(adopt=True, pulls=False), pods(OLD, OLD)

    def why_not(other: Member, **changes: Any) -> str:
        return never_adopted(ImageRun.of(World(()), of), planned(replace(world((first, other)), **changes), of).rows)

    far = replace(second, pod=replace(second.pod, node_name="node-b"))
    reason = "deployment.apps/web cannot adopt its pods, because pod web-1 cannot get the image"
    known = {"node-a": NodeDaemon("node-a", ready=True)}
    assert why_not(far, daemons=known) == f"{reason} (the node has no node daemon)"
    without = member("web-1", container("side"))
    assert why_not(without) == f"{reason} (container app not found in the pod)"
    never = member("web-1", container(image=OLD, restart_policy=RestartPolicy.NEVER))
    assert why_not(never).startswith(reason)
    for other in (
        second,
        pods(OLD, NEW)[1],
        member("web-1", container(image=OLD, container_id="", running=False)),
        member("web-1", container(image=OLD, restart_policy=RestartPolicy.NEVER), phase="Failed"),
        replace(far, pod=replace(far.pod, deleting=True)),
    ):
        assert why_not(other, daemons=known) == ""


def test_an_image_of_somebody_else_is_not_replaced() -> None:
    of, (pod,) = of_image(adopt=True, pulls=False), pods(OTHER)
    plan = planned(world((pod,), present(of, pod)), of)
    foreign = "container app was given the image app:3 meanwhile (kubectl describe pod web-0 -n default)"
    assert (plan.end, plan.rows[0].wait.with_command) == (End.FAILED, foreign)
    assert [row.pod for row in image_actions(plan).stop] == ["web-0"]
    again = planned(world((pod,), stopped(present(of, pod))), of)
    assert (again.end, image_actions(again).stop) == (End.FAILED, ()), "the manager is about to end the request"
    ended = planned(world((pod,), failed(of, pod, Reason.RUN_STOPPED, "the run gave up")), of)
    assert why(ended) == {"web-0": "container app was given the image app:3 meanwhile"}
    done = succeeded(of, pod)
    after = recreated(pod)
    assert planned(world((after,), done), of).rows[0].wait.with_command == foreign, "not its image from before"
    came = planned(world((pod,)), of_image(pulls=False))
    assert stages(came) == {"web-0": "failed"}, "also if the template is kept: it may have been rolled out since"


def test_a_run_knows_which_pods_it_must_not_leave() -> None:
    of = of_image()
    first, second, third = pods(OLD, OLD, NEW)
    made = [present(of, each) for each in (first, second, third)]
    known = world((first, second, third), *made, pulls=(pull(PullState.PULLED),))

    def left(state: World) -> list[str]:
        return [row.pod for row in planned(state, of).rows if row.needs_step]

    assert left(known) == ["web-0", "web-1"], "the third pod has the image, so its request goes on"
    assert left(world((first, second), stopped(made[0]), made[1])) == ["web-1"]
    assert kind_of(known, of).leaves_objects, "a run that stops ends their requests"


def test_a_run_that_stopped_before_its_only_pod_had_the_image_continues_with_another_request() -> None:
    of, (pod,) = of_image(pulls=False), pods(OLD)
    request = stopped(present(of, pod))
    waiting = planned(world((pod,), request), of)
    assert (image_actions(waiting).patch, chosen(waiting), waiting.end) == ((), [], None), (
        "until the manager has ended it"
    )
    ended = failed(of, pod, Reason.RUN_STOPPED, "the run stopped")
    plan = planned(world((pod,), ended), of)
    assert [(row.pod, row.failed) for row in plan.create] == [("web-0", request.request.name)]
    assert planned(world((recreated(pods(NEW)[0]),), ended), of).end is End.DONE, "somebody has given it the image"


def test_a_refused_patch_fails_the_pod() -> None:
    of, (pod,) = of_image(pulls=False), pods(OLD)
    refused = replace(world((pod,), present(of, pod)), refused={"uid-web-0": "denied by a policy"})
    assert (stages(planned(refused, of)), why(planned(refused, of))) == (
        {"web-0": "failed"},
        {"web-0": "denied by a policy"},
    )


@pytest.mark.parametrize(("ready", "stage"), [(True, "skipped"), (False, "failed")])
def test_a_failed_pod_that_has_the_image_by_now_is_retried_without_another_request(ready: bool, stage: str) -> None:
    of, (pod,) = of_image(pulls=False), pods(NEW)
    request = failed(of, pod)
    known = replace(world((replace(pod, ready=ready),), request), retried=frozenset({request.request.uid}))
    assert stages(planned(known, of)) == {"web-0": stage}


def test_a_preview_shows_the_batches_without_pulls() -> None:
    preview = make_preview(world(pods(OLD, OLD)), of_image(adopt=True, max_unavailable=Amount(1)), NOW)
    assert [[row.pod for row in batch] for batch in preview.batches] == [["web-0"], ["web-1"]]


def adopted(found: Template, *images: str, **state: Any) -> Plan:
    known = world(pods(*images), template=found, **state)
    return planned(known, of_image(adopt=True, pulls=False))


def adoption_of(plan: Plan) -> Adoption:
    found = image_actions(plan).adoption
    assert found is not None
    return found


def test_the_adoption_follows_the_last_pod() -> None:
    plan = adopted(template(), NEW, NEW)
    assert (plan.end, plan.wait.why) == (None, "reading the revisions of deployment.apps/web")
    plan = adopted(template(), NEW, revisions=())
    assert [each.plural for each in adoption_of(plan).writes] == ["deployments"]
    assert adopted(template(NEW), NEW, revisions=()).end is End.DONE
    assert adopted(NO_TEMPLATE, NEW).wait.why == "waiting for deployment.apps/web"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (template(OTHER), "the image of deployment.apps/web was set to app:3 meanwhile"),
        (
            template(content=Content(OLD, "/containers/0", "other")),
            "the template of deployment.apps/web was changed meanwhile",
        ),
        (template(paused=True), "deployment.apps/web is paused: resume it first, and wait for its rollout"),
        (
            template(holder="run", paused=True),
            "the image of deployment.apps/web was set to app:1 meanwhile" + HELD,
        ),
    ],
)
def test_the_adoption_gives_way_to_others(found: Template, message: str) -> None:
    plan = adopted(found, NEW, revisions=())
    assert (plan.end, plan.message) == (End.FAILED, message)


def test_a_template_that_is_set_back_after_its_adoption_is_reported() -> None:
    plan = adopted(template(), NEW, revisions=(), released=True)
    assert plan.message == "the image of deployment.apps/web was set back to app:1 meanwhile"


def test_a_deployment_that_somebody_has_resumed_is_released() -> None:
    plan = adopted(template(NEW, left_by="earlier"), NEW, revisions=())
    (write,) = adoption_of(plan).writes
    label = {"op": "remove", "path": "/metadata/labels/crr.apps.kruise.io~1adopting-run"}
    assert write.operations[1:] == (label,)


def test_a_deployment_that_somebody_has_resumed_with_its_old_image_is_held_again() -> None:
    before = revision("a", replicas=1)
    assert adoption(template(left_by="run"), before) == adoption(template(), before)


def test_how_to_release_other_kinds() -> None:
    held = template(kind="StatefulSet", held="0")
    back = "to roll it out with new pods, set its spec.updateStrategy"
    assert with_template(of_image(), held).release_command == f"{back}.rollingUpdate.partition back to 0"
    agents = replace(held, kind="DaemonSet", held="RollingUpdate")
    assert with_template(of_image(), agents).release_command == f"{back}.type back to RollingUpdate"
    label = "kubectl label deployment.apps/web -n default crr.apps.kruise.io/adopting-run-"
    assert with_template(of_image(), replace(held, held="")).release_command == f"to let it go: {label}"


def test_what_is_told_at_the_end() -> None:
    of = of_image(pulls=False)
    assert kind_of(world(pods(NEW)), run()).report() == ""
    changed = tuple(replace(each, image_changes={"app": NOW}) for each in pods(NEW))
    assert kind_of(world(changed), of).report() == "1 of 1 pods have app:2", (
        "kubelet replaces what is no init container"
    )
    known = world((*pods(NEW), *pods(OLD)), template=template())
    assert (
        kind_of(known, of).report() == "1 of 2 pods have app:2; the template still has app:1, so a new pod gets app:1"
    )
    assert (
        kind_of(world(pods(NEW), template=template(NEW)), of).report() == "1 of 1 pods have app:2; so has the template"
    )
    held = template(NEW, holder="run", paused=True)
    assert "held by run run: give the same command again, or" in kind_of(world(pods(NEW), template=held), of).report()
    found = world(pods(NEW), present(of, pods(NEW)[0]), template=held)
    assert "held by run run: resume or abort that run, or" in kind_of(found, of).report()
    moved = (*pods(NEW, image_id="sha256:1"), member("web-1", container(image=NEW, image_id="sha256:2")))
    assert kind_of(world(moved), of).report() == (
        "2 of 2 pods have app:2; app:2 is not the same image on all nodes, because the tag was moved: use a digest"
    )
    assert image_ids({"a": "1", "b": "2"}, "app@sha256:00") == ""


@pytest.mark.parametrize(
    ("image", "mutable"),
    [
        ("app", True),
        ("app:latest", True),
        ("reg:5000/app", True),
        ("reg:5000/app:1", False),
        ("app@sha256:00", False),
        ("app:latest@sha256:00", False),
    ],
)
def test_tags_that_may_move(image: str, mutable: bool) -> None:
    assert is_mutable(image) is mutable


def test_the_pull_pod_is_like_the_targets_pods_and_runs_nothing() -> None:
    like = {"spec": {"serviceAccountName": "web", "imagePullSecrets": [{"name": "s"}], "containers": [{"name": "app"}]}}
    body = pull_pod(of_image(), "node-a", NEW, like)
    spec = body["spec"]
    assert (spec["serviceAccountName"], spec["imagePullSecrets"], spec["nodeName"]) == (
        "web",
        [{"name": "s"}],
        "node-a",
    )
    assert "runtimeClassName" not in spec
    (only,) = spec["containers"]
    always = {"spec": {"containers": [{"name": "app", "imagePullPolicy": "Always"}]}}
    pulls_anew = pull_pod(of_image(), "node-a", NEW, always)["spec"]["containers"][0]["imagePullPolicy"]
    assert pulls_anew == "Always", "the registry is asked at the restart, too: better fail before it"
    assert (only["image"], only["imagePullPolicy"], only["command"]) == (
        NEW,
        "IfNotPresent",
        ["/crrd-pulls-only-the-image"],
    )
    assert (spec["tolerations"], spec["activeDeadlineSeconds"]) == ([{"operator": "Exists"}], 600)
    assert spec["terminationGracePeriodSeconds"] == 0, "it has nothing to end, and is gone as soon as it is deleted"
    assert not spec["automountServiceAccountToken"], "it gets no token of the account, only what it pulls with"
    assert not spec["enableServiceLinks"]
    context = only["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    source = {"serviceAccountName": "web", "imagePullSecrets": [{"name": "s"}]}
    name = body["metadata"]["name"]
    assert read_pull_pod(body) == PullPod(name, "", "run", "node-a", PullState.PULLING, source=source, image=NEW)
    assert read_pull_pod(pull_pod(of_image(), "node-a", NEW, always)).always
    body["spec"]["containers"].insert(0, {"name": "mesh"})
    assert read_pull_pod(body).run == "run", "a webhook has added a container"


@pytest.mark.parametrize(
    ("of_pod", "of_container", "user"),
    [
        ({}, {}, {"runAsUser": 65534}),
        ({"runAsUser": 0}, {}, {"runAsUser": 65534}),
        ({"runAsUser": 1000}, {}, {"runAsUser": 1000}),
        ({"runAsUser": 1000}, {"runAsUser": 1000650000}, {"runAsUser": 1000650000}),
        ({"runAsUser": 1000, "runAsNonRoot": True}, {"runAsUser": 0, "runAsNonRoot": False}, {"runAsUser": 65534}),
        ({"runAsNonRoot": True}, {}, {}),
        ({}, {"runAsNonRoot": True}, {}),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, {"runAsUser": 65534}),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_the_pull_pod_has_the_user_of_the_targets_pods(
    kind: str, of_pod: dict[str, Any], of_container: dict[str, Any], user: dict[str, int]
) -> None:
    """OpenShift accepts no other one. With the user of its image, and that root, kubelet would create no container."""
    like = {
        "spec": {"securityContext": of_pod, kind: [{"name": "x"}, {"name": "app", "securityContext": of_container}]}
    }
    context = pull_pod(of_image(), "node-a", NEW, like)["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}


def test_only_pull_pods_of_policies_are_the_managers_to_remove() -> None:
    own, policys = of_image(), of_image(policy="web")
    labels = [pull_pod(each, "node-a", NEW, {})["metadata"]["labels"] for each in (own, policys)]
    assert [each.get(LABEL_PULL_POLICY) for each in labels] == [None, "web"]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"containers": [{"name": "pull", "image": NEW}]}},
        {"spec": {"containers": [{"name": "pull", "command": ["sh"]}]}},
        {"spec": {}},
        {"owner": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}]},
    ],
)
def test_a_pod_with_the_labels_alone_is_no_pull_pod(changes: dict[str, Any]) -> None:
    """So a run does not delete it."""
    body = pull_pod(of_image(), "node-a", NEW, {})
    meta = {**body["metadata"], "ownerReferences": changes.get("owner", [])}
    assert read_pull_pod({**body, "metadata": meta, "spec": changes.get("spec", body["spec"])}).run == ""


def of_state(state: dict[str, Any]) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"name": "pull", "state": state}]}


@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        ({}, PullState.PULLING, ""),
        (of_state({"waiting": {"reason": "ContainerCreating"}}), PullState.PULLING, ""),
        (
            of_state({"waiting": {"reason": "ErrImagePull", "message": "not\n found"}}),
            PullState.RETRYING,
            "ErrImagePull: not found",
        ),
        (of_state({"waiting": {"reason": "InvalidImageName"}}), PullState.FAILED, "InvalidImageName"),
        (of_state({"waiting": {"reason": "CreateContainerError"}}), PullState.PULLED, ""),
        ({**of_state({"terminated": {"reason": "StartError"}}), "phase": "Failed"}, PullState.PULLED, ""),
        (
            {
                **of_state({"terminated": {"reason": "ContainerStatusUnknown"}}),
                "phase": "Failed",
                "reason": "DeadlineExceeded",
                "message": "Pod was active for too long",
            },
            PullState.FAILED,
            "DeadlineExceeded: Pod was active for too long",
        ),
        ({"phase": "Failed"}, PullState.FAILED, "Failed"),
    ],
)
def test_what_has_come_of_a_pull(status: dict[str, Any], state: PullState, message: str) -> None:
    found = read_pull_pod({"metadata": {"name": "p", "deletionTimestamp": "x"}, "status": status})
    assert (found.state, found.message, found.deleting) == (state, message, True)


def test_a_request_says_all_of_the_change() -> None:
    of = of_image(adopt=True, pulls=False)
    body = of.request("web-0", "uid-web-0", ("app",))
    assert body["spec"]["containers"] == [{"name": "app", "image": NEW}]
    found = read_run_request({**body, "metadata": {**body["metadata"], "uid": "u"}})
    assert found is not None
    assert (found.run, found.request.for_image, found.run.options.what) == (of, True, "app (app:2)")


def test_an_undo_may_give_pods_and_template_different_images() -> None:
    of = of_image(adopt=True, pulls=False)
    stored = of.request("web-0", "uid-web-0", ("app",))["metadata"]["annotations"][ANNOTATION_RUN]
    assert "of_pods" not in stored
    assert "of_template" not in stored, "processes of older versions can continue a run that does not need it"
    image = of_image(adopt=True, pulls=False, undoes="first").options.image
    assert image is not None
    change = replace(image, of_template=OLD)
    undo = run(image=change)
    body = undo.request("web-0", "uid-web-0", ("app",))
    found = read_run_request({**body, "metadata": {**body["metadata"], "uid": "u"}})
    assert found is not None
    assert found.run == undo
    done = replace(world(pods(NEW), template=template(OLD, observed=True)), workload=workload(2))
    assert kind_of(done, undo).report() == "1 of 1 pods have app:2; the template has app:1, as before"
    why = planned(done, undo).wait_before_end.why
    assert why.startswith("waiting for new pods"), "they have the image of the template"
    assert not change.is_foreign(OLD)
    assert change.is_foreign_template(OTHER)


@pytest.mark.parametrize(
    ("before", "of_pods", "back", "adopted"),
    [
        ((), "", "", ""),
        ((OLD,), "", OLD, OLD),
        ((OLD, OTHER), "", "", ""),  # the pods had both
        ((OLD, OTHER), OLD, OLD, OLD),  # the template had the other one
        ((OLD, OTHER, "app:9"), OLD, OLD, ""),  # so had new pods, but a third one
    ],
)
def test_an_undo_needs_one_image_to_go_back_to(before: tuple[str, ...], of_pods: str, back: str, adopted: str) -> None:
    change = ImageChange(NEW, before, of_pods=of_pods)
    assert (change.image_back, replace(change, mode=TemplateMode.ADOPT).image_back) == (back, adopted)
    assert run().options.change.image_back == ""


def test_the_first_form_of_what_becomes_of_the_template_is_read() -> None:
    for first, mode in (
        ({}, TemplateMode.KEEP),
        ({"adopt": True}, TemplateMode.ADOPT),
        ({"adopt": True, "follow": True}, TemplateMode.FOLLOW),
    ):
        assert read_image_change({"image": NEW, **first}) == ImageChange(NEW, mode=mode)


@pytest.mark.parametrize(
    "broken",
    [
        {"image": 1},
        {"image": ""},
        {"image": NEW, "of_template": 1},
        {"image": NEW, "adopt": "yes"},
        {"image": NEW, "more": 1},
        "app:2",
    ],
)
def test_a_change_that_cannot_be_read_is_of_no_run(broken: object) -> None:
    body = of_image().request("web-0", "uid-web-0", ("app",))
    shape = json.loads(body["metadata"]["annotations"][ANNOTATION_RUN])
    shape["options"]["image"] = broken
    body["metadata"]["annotations"][ANNOTATION_RUN] = json.dumps(shape)
    assert read_run_request(body) is None


def test_a_change_needs_one_container() -> None:
    assert read_run_request(run("app", "side", image=ImageChange(NEW)).request("web-0", "u", ("app",))) is None


def test_a_template_apart_from_one_image() -> None:
    spec = {"containers": [{"name": "app", "image": OLD}], "initContainers": [{"name": "mesh", "image": "m:1"}]}
    plain = {"metadata": {"labels": {"app": "web"}, "creationTimestamp": None}, "spec": spec}
    hashed = {**plain, "metadata": {"labels": {"app": "web", "pod-template-hash": "x"}}, "$patch": "replace"}
    other = {**plain, "spec": {**spec, "containers": [{"name": "app", "image": NEW}]}}
    assert read_content(plain, "app") == replace(read_content(other, "app"), image=OLD, images=(("app", OLD),))
    assert read_content(plain, "app") == read_content(hashed, "app")
    assert read_content(plain, "mesh").path == "/initContainers/0"
    newer = {**plain, "spec": {**spec, "initContainers": [{"name": "mesh", "image": "m:2"}]}}
    assert read_content(plain, "app").shape != read_content(newer, "app").shape, "kubelet runs it only with a new pod"
    assert read_content(plain, "mesh").shape == read_content(newer, "mesh").shape
    none = read_content(plain, "none")
    assert (none.image, none.path) == ("", "")
    assert read_content(plain, "mesh").rest != read_content(plain, "app").rest
    logs = ({**spec, "containers": [*spec["containers"], {"name": "log", "image": image}]} for image in ("l:1", "l:2"))
    first, second = (read_content({**plain, "spec": each}, "app") for each in logs)
    assert (first.rest != second.rest, first.shape) == (True, second.shape)


@pytest.mark.parametrize(
    ("owner", "label"), [({"kind": "StatefulSet"}, "web-1"), ({"kind": "DaemonSet"}, "1"), (None, "1")]
)
def test_the_number_of_a_revision_and_the_label_of_its_pods(owner: dict[str, Any] | None, label: str) -> None:
    owners = [{**owner, "uid": "uid-of-web", "name": "web", "controller": True}] if owner is not None else []
    meta = {"name": "web-1", "labels": {"controller-revision-hash": "1"}, "ownerReferences": owners}
    found = read_revision({"metadata": meta, "revision": 2}, "app")
    assert (found.owner, found.number, found.label) == ("uid-of-web" if owners else "", 2, label)
    for place, number in (("12", 12), ("x", 0), ("9" * 5000, 0)):
        counted = {"annotations": {"deployment.kubernetes.io/revision": place}, **meta}
        assert read_revision({"metadata": counted}, "app").number == number, "a ReplicaSet"


def test_the_partition_of_a_statefulset_and_whether_it_has_a_place_for_one() -> None:
    for rolling, partition in (({}, None), ({"rollingUpdate": {}}, 0), ({"rollingUpdate": {"partition": 3}}, 3)):
        shape = {"kind": "StatefulSet", "spec": {"updateStrategy": {"type": "RollingUpdate", **rolling}}}
        assert read_template(shape, "app").partition == partition


def test_stages_of_a_pod_without_the_container() -> None:
    of, pod = of_image(pulls=False), member("web-0", container("other"))
    plan = planned(world((pod,)), of)
    assert {row.stage for row in plan.rows} == {Stage.SKIPPED}
    plan = planned(world((pod,), present(of, pod)), of)
    assert (stages(plan), image_actions(plan).patch) == ({"web-0": "recreating"}, ()), "it was removed just now"
    plan = planned(world((pod,), failed(of, pod, Reason.CONTAINER_NOT_FOUND)), of)
    assert (stages(plan), plan.end, image_actions(plan)) == ({"web-0": "skipped"}, End.DONE, ImageActions())


def revision(name: str, image: str = OLD, rest: str = "rest", **changes: Any) -> Revision:
    content = Content(image, "/containers/0", rest)
    return replace(Revision(name, f"uid-{name}", "7", "uid-of-web", content, label=name), **changes)


def adoption(found: Template, *revisions: Revision, labels: dict[str, str] | None = None) -> Adoption:
    (pod,) = (replace(each, labels=labels or {}) for each in pods(NEW))
    return next_adoption(ImageRun.of(world((pod,), template=found, revisions=revisions), of_image(adopt=True)))


def test_the_writes_that_can_be_tried_before_a_run_begins() -> None:
    change = of_image(adopt=True)
    assert trial_writes(ImageRun.of(world(pods(OLD)), change)) == ()
    assert trial_writes(ImageRun.of(world(pods(OLD), template=template(NEW), revisions=()), change)) == ()
    held = replace(template(), kind="StatefulSet", strategy="RollingUpdate")
    (pod,) = (replace(each, labels={"controller-revision-hash": "a"}) for each in pods(OLD))
    tried = trial_writes(ImageRun.of(world((pod,), template=held, revisions=(revision("a"),)), change))
    assert [(each.plural, each.name) for each in tried] == [("statefulsets", "web")]
    both = trial_writes(
        ImageRun.of(world(pods(OLD), template=template(), revisions=(revision("a", replicas=1),)), change)
    )
    assert [(each.plural, each.name) for each in both] == [("deployments", "web"), ("replicasets", "a")]
    tested = {each["path"] for write in (*tried, *both) for each in write.operations if each["op"] == "test"}
    assert "/metadata/generation" not in tested, "the workload may be scaled meanwhile"
    assert "/metadata/uid" in tested


HOLDS = template(NEW, holder="run", paused=True, replicas=1, updated=1)


@pytest.mark.parametrize(
    ("found", "revisions", "wait", "writes"),
    [
        (replace(HOLDS, observed=False), (), "waiting until the controller has seen the new template of", []),
        (HOLDS, (), "waiting for the ReplicaSet of deployment.apps/web", []),
        (HOLDS, (("a", OLD, 1),), "", ["replicasets/a"]),
        (
            replace(HOLDS, updated=0),
            (("a", NEW, 1),),
            "waiting until the controller of deployment.apps/web has seen",
            [],
        ),
        (HOLDS, (("a", NEW, 1), ("b", NEW, 0)), "", ["replicasets/b"]),
        (HOLDS, (("a", NEW, 1),), "", ["deployments/web"]),
        (replace(HOLDS, replicas=0, updated=0), (), "", ["deployments/web"]),
        (replace(HOLDS, holder="", left_by="run", paused=False), (("a", NEW, 1),), "", ["deployments/web"]),
        (template(replicas=1), (("a", OLD, 1),), "", ["deployments/web"]),
    ],
)
def test_the_steps_of_a_deployment(
    found: Template, revisions: tuple[tuple[str, str, int], ...], wait: str, writes: list[str]
) -> None:
    known = [revision(name, image, replicas=replicas) for name, image, replicas in revisions]
    step = adoption(found, *known)
    assert step.wait.startswith(wait) if wait else not step.wait
    assert [f"{each.plural}/{each.name}" for each in step.writes] == writes
    assert not step.problem


def test_an_adoption_is_done_when_the_controller_has_seen_the_release() -> None:
    released = template(NEW, observed=False, replicas=1, updated=1)
    wait = "waiting until the controller has seen the release of deployment.apps/web"
    assert adoption(released) == Adoption(wait=wait, phase=RunPhase.RELEASING)
    seen = replace(released, observed=True)
    assert adoption(seen) == Adoption(done=True, phase=RunPhase.RELEASING)
    known, of = world(pods(NEW), template=seen, revisions=()), of_image(adopt=True)
    rolling = replace(known, workload=workload(1, rolling="0 of 1 pods are updated"))
    assert next_adoption(ImageRun.of(rolling, of)).wait == "0 of 1 pods are updated"
    assert next_adoption(ImageRun.of(replace(known, workload=None), of)).done


@pytest.mark.parametrize(
    ("found", "revisions", "problem"),
    [
        (HOLDS, (("a", OLD, 1), ("b", OLD, 1)), "it has 2 active ReplicaSets"),
        (template(paused=True, replicas=1), (("a", OLD, 1),), "is paused: resume it first, and wait for its rollout"),
    ],
)
def test_a_deployment_that_is_not_adopted(
    found: Template, revisions: tuple[tuple[str, str, int], ...], problem: str
) -> None:
    known = [revision(name, image, replicas=replicas) for name, image, replicas in revisions]
    assert adoption(found, *known).problem.endswith(problem)


def test_pods_with_another_image_keep_the_template_as_it_is() -> None:
    known = world(pods(NEW, OLD), template=template(), revisions=())
    problem = next_adoption(ImageRun.of(known, of_image(adopt=True))).problem
    assert problem == "the template of deployment.apps/web was not changed, because pod web-1 has app:1"
    without = world((*pods(NEW), member("web-1", container("side"))), template=template(), revisions=())
    assert next_adoption(ImageRun.of(without, of_image(adopt=True))).problem.endswith("pod web-1 has no such container")


@pytest.mark.parametrize("found", [template(), template(NEW), template(NEW, kind="StatefulSet", holder="run")])
def test_a_pod_that_is_just_starting_is_waited_for(found: Template) -> None:
    """Without its container it gets no request."""
    app = container(image=OLD, container_id="", running=False, ready=False)
    fresh = member("web-1", app, ready=False, created=AFTER)
    plan = planned(world((*pods(NEW), fresh), template=found, revisions=()), of_image(adopt=True, pulls=False))
    assert (plan.end, plan.wait.why) == (None, "waiting until container app of pod web-1 has started")


def test_a_held_deployment_is_released_before_a_starting_pod_gets_the_image() -> None:
    """It can be pending for long, and a Deployment must not stay paused meanwhile."""
    app = container(image=OLD, container_id="", running=False, ready=False)
    fresh = member("web-1", app, ready=False, created=AFTER)
    found, revisions = template(NEW, holder="run", paused=True), (revision("a", NEW, replicas=2),)
    plan = planned(world((*pods(NEW), fresh), template=found, revisions=revisions), of_image(adopt=True, pulls=False))
    assert [each.plural for each in adoption_of(plan).writes] == ["deployments"]


FRESH = member(  # Its container is about to start
    "web-9", container(image=OLD, container_id="", running=False, ready=False), ready=False, created=AFTER
)


def in_phase(phase: RunPhase) -> tuple[Run, tuple[Member, ...], tuple[RunRequest, ...]]:
    """Return a run whose template has the image, with its pods and requests in this phase, before its last pod."""
    options: dict[RunPhase, dict[str, Any]] = {
        RunPhase.JUDGING: {"judge": 60},
        RunPhase.PAUSED: {"steps": (1,), "step_pause": 600, "max_unavailable": Amount(6)},
    }
    of = of_image(adopt=True, pulls=phase is RunPhase.PULLING, **options.get(phase, {}))
    if phase not in options:
        return of, pods(OLD), ()
    done = recreated(pods(NEW)[0])
    asked_for = succeeded(of, done, completion_time=rfc3339(NOW - timedelta(seconds=30)))
    return of, (done, *pods(OLD, OLD)[1:]) if phase is RunPhase.PAUSED else (done,), (asked_for,)


@pytest.mark.parametrize("phase", [RunPhase.RESTARTING, RunPhase.PULLING, RunPhase.JUDGING, RunPhase.PAUSED])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (template(NEW), template(NEW)),  # a pod with the image from before is about to start
        (template(NEW, holder="run", paused=True), template(NEW, left_by="run")),  # a user resumes the Deployment
    ],
)
def test_a_run_whose_template_has_the_image_goes_on_to_the_release(
    phase: RunPhase, before: Template, after: Template
) -> None:
    of, there, requests = in_phase(phase)
    first = planned(world(there, *requests, template=before, revisions=()), of)
    left = there[:1] if requests else pods(NEW)
    known = world((*left, *((FRESH,) if before == after else ())), *requests, template=after, revisions=())
    last = make_plan(known, of, NOW + timedelta(seconds=30))
    assert (first.end, first.phase, last.end, last.phase) == (None, phase, None, RunPhase.RELEASING)
    phases = Phases()
    phases.saw(first)
    phases.saw(last)


def test_a_pod_that_cannot_get_the_image_leaves_its_controller_held_and_says_so() -> None:
    known = world(pods(NEW, OLD), template=template(NEW, holder="run", paused=True), revisions=())
    problem = next_adoption(ImageRun.of(known, of_image(adopt=True))).problem
    assert problem == (
        "pod web-1 has app:1, and its controller is held; to roll it out with new pods: "
        "kubectl rollout resume deployment.apps/web -n default"
    )
    assert (
        kind_of(known, of_image(adopt=True))
        .report()
        .endswith(
            "so has the template, but its controller is still held by run run: give the same command again, "
            "or to roll it out with new pods: kubectl rollout resume deployment.apps/web -n default"
        )
    )


def test_an_image_that_does_not_work_is_not_adopted() -> None:
    """A run that begins after a failed one finds its pods with the image already."""
    crashes = member("web-0", container(image=NEW, running=False, ready=False), ready=False)
    plan = planned(world((crashes,), template=template(), revisions=()), of_image(adopt=True, pulls=False))
    assert (plan.end, plan.wait.why) == (None, "container app of pod web-0 has app:2, but is not ready")
    other = member("web-0", container(image=NEW), container("side", ready=False), ready=False)
    known = world((other,), template=template(), revisions=())
    assert next_adoption(ImageRun.of(known, of_image(adopt=True))).writes


def aborted(found: Template, *revisions: Revision) -> Plan:
    known = world(pods(NEW, OLD), template=found, revisions=revisions)
    return planned(replace(known, aborted=frozenset({"run"})), of_image(adopt=True))


def test_an_abort_in_the_middle_of_an_adoption_finishes_it() -> None:
    """The Deployment would stay paused. It replaces no pod, also none that has not got the image."""
    held = template(NEW, holder="run", paused=True, replicas=2, updated=2)
    plan = aborted(held, revision("a", NEW, replicas=2))
    assert ([each.plural for each in adoption_of(plan).writes], plan.end) == (["deployments"], None)
    assert aborted(replace(held, holder="other")).end is End.ABORTED
    of, (pod,) = of_image(adopt=True), pods(NEW)
    ended = succeeded(of, pod)
    recorded = replace(ended, request=replace(ended.request, aborted="2026-01-01T12:00:00Z"))
    assert run_status(of, [recorded], NOW, lambda _: True).word == "aborted"
    labelled = aborted(of_kind("StatefulSet", held="0"), revision("a", NEW))
    assert labelled.end is End.ABORTED
    assert labelled.message == (
        "the run was aborted; pod web-1 has app:1, and its controller is held; "
        "to roll it out with new pods, set its spec.updateStrategy.rollingUpdate.partition back to 0"
    )


def test_an_abort_writes_no_image_into_a_template() -> None:
    """Another user may have written the run anew, and knows the label that it has left."""
    of = of_image(adopt=True)
    change = replace(of.options.image or ImageChange(NEW), template="")
    of = replace(of, options=replace(of.options, image=change))
    found = template(OLD, kind="DaemonSet", holder="run", strategy="OnDelete", held="RollingUpdate")
    (pod,) = (replace(each, labels={"controller-revision-hash": "a"}) for each in pods(NEW))
    known = world((pod,), template=found, revisions=(revision("a"),))
    assert [each.name for each in next_adoption(ImageRun.of(known, of)).writes] == ["web"]
    plan = planned(replace(known, aborted=frozenset({"run"})), of)
    assert (image_actions(plan).adoption, plan.end) == (None, End.ABORTED)
    assert plan.message == (
        "the run was aborted; the template of deployment.apps/web has app:1, not app:2; "
        "to roll it out with new pods, set its spec.updateStrategy.type back to RollingUpdate"
    )


@pytest.mark.parametrize("image", [OLD, NEW, OTHER])
def test_an_abort_takes_away_the_label_of_a_hold_that_a_user_has_ended(image: str) -> None:
    """A later pause by the user would count as the hold of the run."""
    for left_by, writes in (("run", ["deployments"]), ("other", [])):
        plan = aborted(template(image, left_by=left_by), revision("a", image, replicas=2))
        found = image_actions(plan).adoption
        made = found.writes if found is not None else ()
        assert [each.plural for each in made] == writes
        assert (plan.end is End.ABORTED) is not bool(writes)
        assert {each["op"] for write in made for each in write.operations} <= {"test", "remove"}


def test_a_template_is_changed_only_as_it_was_decided_on() -> None:
    (write,) = adoption(template(generation=7)).writes
    assert {"op": "test", "path": "/metadata/generation", "value": 7} in write.operations


def test_a_set_with_pods_of_several_revisions_is_not_held() -> None:
    """For example those above and below a partition. The label of the new one would be wrong for some of them."""
    first, second = (
        member(f"web-{n}", container(image=NEW), labels={"controller-revision-hash": label})
        for n, label in enumerate(("old", "new"))
    )
    found, old = of_kind("StatefulSet", OLD, partition=1), revision("old", rest="other", number=1)
    known = world((first, second), template=found, revisions=(revision("new", number=2), old))
    problem = next_adoption(ImageRun.of(known, of_image(adopt=True))).problem
    assert problem.endswith("because pods web-0 and web-1 have revisions that differ in more than the image")
    third = replace(second, pod=replace(second.pod, name="web-2"), labels={"controller-revision-hash": "third"})
    three = replace(known, members=(third, second, first))
    others = replace(three, extra=ImageState((), found, (revision("new"), old, revision("third", rest="third"))))
    problem = next_adoption(ImageRun.of(others, of_image(adopt=True))).problem
    assert "because pods web-0 and web-1 have revisions" in problem, "two of them are enough"
    outdated = world((first, second), template=found, revisions=(old,))
    assert next_adoption(ImageRun.of(outdated, of_image(adopt=True))).wait == "reading the revision of pod web-1"


def test_a_rollout_in_between_ends_the_adoption() -> None:
    two = (revision("a", replicas=1), revision("b", replicas=2))
    problem = adoption(template(), *two).problem
    assert problem == "the rollout of deployment.apps/web is not finished: it has 2 active ReplicaSets"
    held = template(NEW, holder="run", paused=True)
    odd = adoption(held, revision("a", replicas=1, rest="other")).problem
    assert odd.startswith(
        "the template of ReplicaSet a differs from that of deployment.apps/web in more than the image"
    )


def of_kind(kind: str, image: str = NEW, **changes: Any) -> Template:
    return template(image, kind=kind, holder="run" if image == NEW else "", **changes)


def test_a_pod_of_another_revision_is_not_labelled() -> None:
    found = of_kind("DaemonSet", strategy="OnDelete", held="RollingUpdate")
    known = (revision("new", NEW, number=2), revision("old", rest="other", number=1))
    problem = adoption(found, *known, labels={"controller-revision-hash": "old"}).problem
    assert problem.startswith("the revision of pod web-0 differs from the new one in more than the image")
    for unseen in (revision("old", number=1), revision("new", NEW, label="")):
        assert adoption(found, unseen).wait.startswith("waiting until the controller")
    early = adoption(replace(found, observed=False), revision("new", NEW), labels={"controller-revision-hash": "new"})
    assert early.wait.startswith("waiting until the controller"), "the revision may be one from before"


def test_the_newest_revision_of_a_statefulset_is_the_one_in_its_status() -> None:
    """The controller takes a revision from before again, and gives it another number, which may not be known yet."""
    found = of_kind("StatefulSet", held="0", partition=1_000_000_000, update_revision="first")
    known = revision("second", number=2), revision("first", NEW, number=1)
    (write,) = adoption(found, *known, labels={"controller-revision-hash": "second"}).writes
    assert write.operations[-1]["value"] == "first"


def test_a_pod_of_an_older_revision_with_the_same_rest_is_of_the_newest() -> None:
    found = of_kind("DaemonSet", strategy="OnDelete", held="RollingUpdate")
    known = (revision("new", NEW, number=2), revision("old", number=1))
    made = adoption(found, *known, labels={"controller-revision-hash": "old"})
    assert made.problem == ""
    assert {"op": "replace", "path": "/metadata/labels/controller-revision-hash", "value": "new"} in [
        each for write in made.writes for each in write.operations
    ]


def test_a_workload_that_has_labels_keeps_them() -> None:
    held = of_kind("DaemonSet", OLD, strategy="OnDelete", has_labels=True)
    (write,) = adoption(held, revision("old"), labels={"controller-revision-hash": "old"}).writes
    added = [each["path"] for each in write.operations if each["op"] == "add"]
    assert added == ["/metadata/labels/crr.apps.kruise.io~1adopting-run"]


def test_a_request_that_is_just_being_created_may_exist() -> None:
    facts = ImageRun.of(world(pods(OLD)), of_image())
    assert facts.needs_step(Row("web-0", "uid-web-0", Stage.REQUESTED))
    assert not facts.needs_step(Row("web-0", "uid-web-0", Stage.WAITING))


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_a_set_with_on_delete_needs_no_hold(kind: str) -> None:
    label = {"controller-revision-hash": "old"}
    (write,) = adoption(of_kind(kind, OLD, strategy="OnDelete"), revision("old"), labels=label).writes
    assert [each["path"] for each in write.operations if each["op"] == "add"] == [
        "/metadata/labels",
        "/metadata/labels/crr.apps.kruise.io~1adopting-run",
    ]
    found = of_kind(kind, strategy="OnDelete", update_revision="new")
    (release,) = adoption(found, revision("new", NEW), labels={"controller-revision-hash": "new"}).writes
    assert [each["op"] for each in release.operations] == ["test", "remove"]


@pytest.mark.parametrize(
    ("kind", "partition", "hold", "held", "back"),
    [
        ("StatefulSet", None, ("/rollingUpdate", {"partition": 1_000_000_000}), "0", ("/rollingUpdate/partition", 0)),
        ("StatefulSet", 3, ("/rollingUpdate/partition", 1_000_000_000), "3", ("/rollingUpdate/partition", 3)),
        ("DaemonSet", None, ("/type", "OnDelete"), "RollingUpdate", ("/type", "RollingUpdate")),
    ],
)
def test_what_holds_a_set_is_taken_back(
    kind: str, partition: int | None, hold: tuple[str, Any], held: str, back: tuple[str, Any]
) -> None:
    def operation(path: str, value: Any) -> dict[str, Any]:
        return {"op": "add", "path": f"/spec/updateStrategy{path}", "value": value}

    rolling, label = {"strategy": "RollingUpdate", "partition": partition}, "controller-revision-hash"
    (write,) = adoption(of_kind(kind, OLD, **rolling), revision("old"), labels={label: "old"}).writes
    assert operation(*hold) in write.operations
    assert held in [each.get("value") for each in write.operations]
    found = of_kind(kind, held=held, strategy="OnDelete" if kind == "DaemonSet" else "RollingUpdate")
    (release,) = adoption(replace(found, update_revision="new"), revision("new", NEW), labels={label: "new"}).writes
    assert operation(*back) in release.operations


@pytest.mark.parametrize("found", [template(OTHER), template(content=Content(OLD, "/containers/0", "other"))])
def test_a_canary_gives_way_to_a_later_rollout(found: Template) -> None:
    """Its image may be older than the one of the new template."""
    plan = planned(world(pods(NEW, OLD), template=found), of_image(pulls=False))
    assert (plan.end, "meanwhile" in plan.message) == (End.FAILED, True)


def test_a_template_with_an_image_that_only_pods_had_is_of_somebody_else() -> None:
    """The pods of the run had two images. The template is not set to the new one again."""
    change = ImageChange(NEW, ("app:0", OLD), mode=TemplateMode.ADOPT, template="rest", had=OLD)
    for image, foreign in ((OLD, False), (NEW, False), ("app:0", True)):
        message = changed_by_others(with_template(run(image=change), template(image)))
        assert message == "the image of deployment.apps/web was set to app:0 meanwhile" * foreign
    assert not changed_by_others(with_template(run(image=replace(change, had="")), template("app:0"))), (
        "a run of an older version"
    )
    assert not changed_by_others(with_template(run(image=replace(change, template="")), template("app:0"))), (
        "of no template"
    )
