"""Where a run with an image must not go on, or must not stop: each case has led to an outage, or to a run that hung."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import Pin, RecreateState, RequestedContainer, RequestPhase, StatePhase
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.adoption import next_adoption
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.pull import PullPod, PullState
from crrd.core.rollout.image.template import Content, Template, read_template
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Amount, Run, Target
from crrd.core.rollout.state import Member, NodeDaemon
from tests.core.rollout.test_image import NEW, OLD, of_image, pods, world
from tests.support.rollouts import (
    AFTER,
    NOW,
    asked,
    budget,
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
    workload,
)

SECRETS = {"serviceAccountName": "web", "imagePullSecrets": [{"name": "new"}]}


def on(node: str, pod: Member) -> Member:
    return replace(pod, pod=replace(pod.pod, node_name=node))


def pull(node: str = "node-a", state: PullState = PullState.PULLED, **changes: Any) -> PullPod:
    return replace(PullPod(f"pull-{node}", "u", "run", node, state), **changes)


def with_image(found: RunRequest, seconds: int = 5, image: str = NEW) -> RunRequest:
    """Return the request as one for an image, made so long ago."""
    created = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    wanted = (RequestedContainer("app", Pin("containerd://app-1"), image),)
    return replace(found, request=replace(found.request, created=created, containers=wanted))


def made_at(found: RunRequest) -> datetime:
    at = parse_time(found.request.created)
    assert at is not None
    return at


def present(of: Run, pod: Member, seconds: int = 5) -> RunRequest:
    state = RecreateState("app", message="present", reason=Reason.IMAGE_PRESENT)
    return with_image(asked(of, pod, RequestPhase.RECREATING, states=(state,)), seconds)


def patched(plan: Plan) -> list[str]:
    return [row.pod for row in image_actions(plan).patch]


def test_a_pull_with_other_credentials_does_not_stand_for_a_pod() -> None:
    """A new pod gets the pull secrets that its service account has now. A pod that exists has those from before."""
    of, (pod,) = of_image(), pods(OLD)
    before = replace(pod, pull_source={"serviceAccountName": "web"})
    for known in (
        world((before,), pulls=(pull(source=SECRETS),)),
        world((before,), present(of, before), pulls=(pull(source=SECRETS),)),
    ):
        plan = planned(known, of)
        assert (plan.end, chosen(plan), patched(plan)) == (End.FAILED, [], [])
        assert why(plan)["web-0"].startswith("pod pull-node-a has pulled app:2 with other imagePullSecrets than this")
    going = pull(state=PullState.PULLING, source=SECRETS), pull(source=SECRETS, deleting=True)
    assert [planned(world((before,), pulls=(each,)), of).end for each in going] == [None, None], (
        "only what it has pulled, and still holds, counts"
    )
    assert chosen(planned(world((replace(pod, pull_source=SECRETS),), pulls=(pull(source=SECRETS),)), of)) == ["web-0"]
    asks = pods(OLD, pulls_image=True)
    assert "with other imagePullPolicy" in why(planned(world(asks, pulls=(pull(),)), of))["web-0"]
    assert chosen(planned(world(asks, pulls=(pull(always=True),)), of)) == ["web-0"]
    assert chosen(planned(world((pod,), pulls=(pull(always=True),)), of)) == ["web-0"], "it asks for more than the pod"


def test_credentials_that_changed_after_a_pod_got_its_image_do_not_count() -> None:
    of, (pod,) = of_image(), pods(NEW)
    given = replace(pod, pull_source={"serviceAccountName": "web"})
    pulls = (pull(source=SECRETS),)
    for state, stage in (
        (world((given,), present(of, given), pulls=pulls), "recreating"),
        (world((recreated(given),), with_image(succeeded(of, given)), pulls=pulls), "done"),
        (world((given,), pulls=pulls), "skipped"),
    ):
        assert stages(planned(state, of)) == {"web-0": stage}


def test_a_run_that_pulls_nothing_does_not_look_at_pull_pods() -> None:
    """The same run may have begun with them, and a preview leaves them out."""
    of, (pod,) = of_image(pulls=False), pods(OLD)
    for left in (pull(state=PullState.FAILED, message="401"), pull(source=SECRETS)):
        assert chosen(planned(world((pod,), pulls=(left,)), of)) == ["web-0"]
    assert image_actions(planned(world((pod,)), of)).pull == ()


def test_while_a_pod_is_under_way_the_run_does_not_wait_for_a_pull() -> None:
    of, (first, second) = of_image(max_unavailable=Amount(2)), pods(OLD, OLD)
    known = world((first, on("node-b", second)), with_image(asked(of, first)), pulls=(pull(),))
    plan = planned(known, of)
    assert (plan.wait.why, plan.phase, image_actions(plan).pull) == ("", RunPhase.RESTARTING, ("node-b",))
    assert why(plan)["web-1"] == "kubelet pulls app:2 on node node-b"


@pytest.mark.parametrize("in_order", [False, True])
def test_the_image_is_pulled_ahead_on_the_nodes_of_the_pods_that_start_next(*, in_order: bool) -> None:
    """Otherwise each batch waits for the pulls on its nodes. Pods of a StatefulSet start with the highest ordinal."""
    of = of_image(max_unavailable=Amount(3))
    there = [on(f"node-{n}", pod) for n, pod in enumerate(pods(*[OLD] * 9))]
    order = [*reversed(there)] if in_order else there
    nodes, web = [each.pod.node_name for each in order], workload(9, in_order=in_order)
    first = planned(replace(world(tuple(there)), workload=web), of)
    assert [*image_actions(first).pull] == nodes[:6], "those that are chosen, and as many again"
    pulled, requests = tuple(map(pull, nodes[:6])), [present(of, each) for each in order[:3]]
    second = planned(replace(world(tuple(there), *requests, pulls=pulled), workload=web), of)
    assert ([*image_actions(second).pull], image_actions(second).drop) == (nodes[6:], ()), (
        "while the budgets allow no other pod"
    )
    one = of_image(max_unavailable=Amount(1))
    assert [*image_actions(planned(replace(world(tuple(there)), workload=web), one)).pull] == nodes[:2]


def test_a_run_awaits_pods_that_are_just_being_recreated() -> None:
    """A StatefulSet makes the next pod only when the one before it is gone. It has the image from before."""
    of, (lost, done) = of_image(pulls=False), pods(OLD, NEW)
    going, done = replace(lost, pod=replace(lost.pod, deleting=True)), recreated(done)
    known = replace(world((going, done), with_image(succeeded(of, done))), workload=workload(2))
    alone = replace(world((), with_image(asked(of, lost))), workload=workload(1))
    for state, end, count in ((known, End.DONE, "1 of 2"), (alone, End.LEFT_OUT, "0 of 1")):
        plan = planned(state, of)
        why = f"waiting for new pods of deployment.apps/web, it has {count}"
        assert (plan.end, plan.wait_before_end.why) == (end, why)
    scaled, complete = replace(alone, workload=workload(0)), replace(known, members=(lost, done))
    over = (scaled, replace(known, workload=workload(1)), replace(alone, workload=workload(1, deleting=True)))
    for state in (*over, replace(alone, workload=None), complete):
        assert not planned(state, of).wait_before_end.why
    app = container(image=OLD, container_id="", running=False)
    created = replace(lost, created=AFTER, pod=replace(lost.pod, containers={"app": app}))
    plan = planned(replace(known, members=(created, done)), of)
    why = "waiting until container app of pod web-0 has started"
    assert (plan.end, plan.wait_before_end.why) == (End.LEFT_OUT, why)
    assert not planned(known, run()).wait_before_end.why, "a new pod has the present configuration"
    assert not planned(replace(known, aborted=frozenset({"run"})), of).wait_before_end.why


def test_a_run_whose_template_was_adopted_awaits_no_pods() -> None:
    of, (done,) = of_image(pulls=False, adopt=True), pods(NEW)
    template = Template("Deployment", "web", "uid-of-web", Content(NEW, "/containers/0", "rest"))
    known = replace(world((done,), template=template, revisions=()), workload=workload(2))
    plan = planned(known, of)
    assert (plan.end, plan.wait_before_end.why) == (End.DONE, "")


def test_a_pod_whose_container_kubelet_has_not_replaced_is_not_done() -> None:
    """Its spec has the image, and the old container is ready. The template would get an image that nothing has run."""
    first, later = of_image(pulls=False), of_image(name="later", adopt=True, pulls=False)
    (pod,) = pods(NEW)
    request = with_image(failed(first, pod, Reason.DEADLINE, "late"))
    again = replace(world((pod,), request), retried=frozenset({request.request.uid}))
    for known, of in ((again, first), (world((pod,), request), later)):
        plan = planned(known, of)
        assert (plan.end, image_actions(plan).adoption, stages(plan)) == (None, None, {"web-0": "recreating"})
        assert why(plan)["web-0"] == "kubelet has not replaced container app yet since it got the image"
        assert kind_of(known, of).report().startswith("0 of 1 pods have app:2")
    done = world((recreated(pod),), request)
    assert (stages(planned(done, later)), kind_of(done, later).report()[:10]) == ({"web-0": "skipped"}, "1 of 1 pod")
    other = with_image(failed(first, pod), image=OLD)
    assert stages(planned(world((pod,), other), later)) == {"web-0": "skipped"}, "a request for another image"
    kept = world((pod,), request, with_image(succeeded(first, pod)))
    assert stages(planned(kept, later)) == {"web-0": "skipped"}, "kubelet never began to replace it"


def test_a_pod_that_another_run_gave_the_image_waits_for_its_node_no_longer_than_others() -> None:
    """That run has ended, and kubelet cannot replace the container before its node is back."""
    first, later = of_image(pulls=False), of_image(name="later", pulls=False)
    (pod,) = pods(NEW)
    known = world((pod,), with_image(failed(first, pod, Reason.DEADLINE, "late")))
    away = replace(known, down=frozenset({pod.pod.node_name}))
    assert [planned(away, of).end for of in (first, later)] == [End.PUT_OFF] * 2
    assert stages(planned(away, later)) == {"web-0": "put off"}
    assert why(planned(away, later)) == {"web-0": "node node-a is not ready"}
    back = planned(known, later)
    assert (stages(back), back.end, back.drained) == ({"web-0": "recreating"}, None, True), "a turn may end"
    assert (back.rows[0].skip, back.rows[0].containers) == (None, ("app",))


@pytest.mark.parametrize("changes", [{"kind": ContainerKind.INIT}, {"running": False, "restart_count": 5}])
def test_a_preview_goes_on_after_pods_that_cannot_have_the_image_yet(changes: dict[str, Any]) -> None:
    """An init container, and one that crashes, for which `--image` is the mend."""
    of = of_image(pulls=False, max_unavailable=Amount(1), whole_pod="kind" in changes)
    found = make_preview(world(pods(OLD, OLD, OLD, **changes)), of, NOW)
    assert [[row.pod for row in batch] for batch in found.batches] == [["web-0"], ["web-1"], ["web-2"]]


def test_a_deployment_that_is_deleted_before_it_has_adopted_its_pods_is_not_waited_for() -> None:
    """Its pods were left alone (`--cascade=orphan`). A run that keeps the template is done."""
    done = replace(world(pods(NEW)), workload=None)
    left = planned(done, of_image(adopt=True))
    assert (left.end, left.message) == (End.LEFT_OUT, "deployment.apps/web was deleted")
    assert planned(done, of_image()).end is End.DONE


def test_a_template_gets_no_image_that_no_pod_has_run() -> None:
    of = of_image(adopt=True)
    template = Template("Deployment", "web", "uid-of-web", Content(OLD, "/containers/0", "rest"))
    plan = planned(world((), template=template, revisions=()), of)
    assert (plan.end, image_actions(plan).adoption) == (End.FAILED, None)
    assert plan.message.startswith("no pod of deployment.apps/web has run app:2, so its template was not changed")
    begun = replace(template, content=Content(NEW, "/containers/0", "rest"), holder="run", paused=True)
    held = planned(world((), template=begun, revisions=()), of)
    assert image_actions(held).adoption is not None, "what has begun is finished"
    shown = planned(world((), succeeded(of, member("gone")), template=template, revisions=()), of)
    assert image_actions(shown).adoption is not None, "a pod had run it before the workload was scaled down"


def test_an_image_that_is_present_for_long_is_given_only_within_the_budgets() -> None:
    """The process has slept since its request. The pod is ready, so it counted as healthy for others meanwhile."""
    of, (pod, other) = of_image(pulls=False, max_unavailable=Amount(2)), pods(OLD, OLD)
    down = replace(other, ready=False)

    def plan(seconds: int, *members: Member, allowed: int = 1, **changes: Any) -> Plan:
        known = world(members, present(of, members[0], seconds))
        return planned(replace(known, budgets=(budget(allowed),), **changes), of)

    def stopped(found: Plan) -> list[str]:
        return [row.pod for row in image_actions(found).stop]

    rolling: dict[str, Any] = {"workload": workload(2, rolling="0 of 2 pods are updated")}
    for late, fresh in (
        (plan(60, pod, other, allowed=0), plan(5, pod, other, allowed=0)),
        (plan(60, pod, other, **rolling), plan(5, pod, other, **rolling)),
    ):
        assert (patched(late), stopped(late)) == ([], ["web-0"])
        assert (patched(fresh), stopped(fresh)) == (["web-0"], [])
    assert [stopped(plan(seconds, pod, other, allowed=0)) for seconds in (29, 30)] == [[], ["web-0"]]
    unready = replace(pod, ready=False)
    for within in (plan(60, pod, other), plan(60, unready, other, allowed=0), plan(60, unready, other, **rolling)):
        assert (patched(within), stopped(within)) == (["web-0"], [])
    for seconds in (2, 5):  # after its request, or in the same second
        became_ready = plan(5, replace(pod, ready_since=NOW - timedelta(seconds=seconds)), other, allowed=0)
        assert (patched(became_ready), stopped(became_ready)) == ([], ["web-0"]), "its request used no budget"
    third = replace(down, pod=replace(down.pod, name="web-2", uid="uid-web-2"))
    assert stopped(plan(60, pod, down, third)) == ["web-0"], "the limit of the run itself is used up"
    missing = [stopped(plan(60, pod, other, workload=workload(desired))) for desired in (3, 4)]
    assert missing == [[], ["web-0"]], "pods that are not created yet count"
    for gone in (down, replace(other, pod=replace(other.pod, deleting=True))):
        both = world((pod, gone), present(of, pod, 60), asked(of, gone))
        assert patched(planned(replace(both, budgets=(budget(1),)), of)) == ["web-0"], "it uses nothing more"


@pytest.mark.parametrize(("period", "most"), [(20, 1), (60, 2), (200, 4)])
def test_a_pod_that_comes_and_goes_while_its_budget_is_used_up_gets_few_requests(period: int, most: int) -> None:
    """It is unready when it gets its request, which costs nothing, and ready when its node has the image."""
    of, (up,) = of_image(pulls=False), pods(OLD)
    requests = list[RunRequest]()
    for seconds in range(0, 3600, 5):
        now, (phase, since) = NOW + timedelta(seconds=seconds), divmod(seconds, period)
        ready = bool(phase % 2)
        pod = replace(up, ready=ready, ready_since=now - timedelta(seconds=since))
        last = requests[-1] if requests else None
        if last is not None and not last.request.completed and now - made_at(last) >= timedelta(seconds=period - 5):
            requests[-1] = last = replace(last, request=replace(last.request, status=present(of, pod).request.status))
        known = replace(world((pod,), *requests), budgets=(budget(0),))
        plan = make_plan(known, of, now)
        assert patched(plan) == [] or not ready
        if image_actions(plan).stop:
            status = failed(of, pod, Reason.RUN_STOPPED).request.status
            requests[-1] = replace(requests[-1], request=replace(requests[-1].request, status=status))
        for row in plan.create:
            name, made = of.request_name(row.uid, row.failed), asked(of, pod)
            at = rfc3339(now)
            requests.append(replace(made, request=replace(made.request, name=name, uid=name, created=at)))
    assert len(requests) == most


def test_a_pod_that_comes_and_goes_is_asked_again_once_it_has_been_unready_for_long() -> None:
    of, (pod,) = of_image(pulls=False), pods(OLD)
    first = failed(of, pod, Reason.RUN_STOPPED)
    third, tenth, later = (
        replace(first, request=replace(first.request, name=of.request_name(pod.pod.uid, f"x.{before}")))
        for before in (2, 9, 99)
    )

    def asks(last: RunRequest, seconds: int, allowed: int = 0) -> bool:
        unready = replace(pod, ready=False, ready_since=NOW - timedelta(seconds=seconds))
        plan = planned(replace(world((unready,), last), budgets=(budget(allowed),)), of)
        assert plan.create or why(plan)["web-0"] == "PodDisruptionBudget guard allows no disruption now"
        return bool(plan.create)

    assert [asks(first, seconds) for seconds in (0, 29, 30)] == [False, False, True]
    assert [asks(third, seconds) for seconds in (30, 119, 120)] == [False, False, True]
    longest = 30 * 2**9
    for last in (tenth, later):
        assert [asks(last, seconds) for seconds in (longest - 1, longest)] == [False, True], "no longer than this"
    assert asks(first, 0, allowed=1), "within the budget it starts at once"


def test_a_pod_that_was_ready_a_moment_ago_waits_for_no_pod_below_itself() -> None:
    of, both = of_image(pulls=False), tuple(replace(each, ready=False, ready_since=NOW) for each in pods(OLD, OLD))
    known = world(both, failed(of, both[0], Reason.RUN_STOPPED))
    plan = planned(replace(known, workload=workload(2, in_order=True)), of)
    assert (chosen(plan), why(plan)["web-0"]) == (["web-1"], "2 pods are unready, the limit is 1: web-0, web-1")


def test_a_pod_that_gets_the_image_late_counts_pods_of_other_workloads_that_share_its_budget() -> None:
    """Both runs began while the budget allowed two. Both pods still serve, and it allows one by now."""
    of, (pod,), theirs = of_image(pulls=False), pods(OLD), member("api-0")
    other = run(name="other", target=Target("deployment.apps/api", "apps/v1", "Deployment", "api", "uid-of-api"))
    both = replace(world((pod,), present(of, pod, 60), asked(other, theirs)), budgets=(budget(1),))
    known = replace(both, labels={theirs.pod.uid: {"app": "web"}})
    assert patched(planned(known, of)) == []
    assert patched(planned(replace(known, budgets=(budget(2),)), of)) == ["web-0"]
    assert patched(planned(replace(known, labels={theirs.pod.uid: {"app": "api"}}), of)) == ["web-0"]


def test_a_pod_whose_request_is_being_created_keeps_its_place_until_the_request_is_known() -> None:
    """Somebody gives it another image at that moment. The request may exist already, so no other pod starts instead."""
    of, (first, second) = of_image(pulls=False, max_failures=2), pods("app:3", OLD)
    name = of.request_name(first.pod.uid)
    plan = planned(replace(world((first, second)), starting={first.pod.uid: name}), of)
    assert (plan.end, stages(plan), chosen(plan)) == (None, {"web-0": "requested", "web-1": "waiting"}, [])
    made = planned(world((first, second), asked(of, first)), of)
    assert (stages(made)["web-0"], [row.pod for row in image_actions(made).stop]) == ("failed", ["web-0"])


def test_a_ready_pod_that_kubelet_is_about_to_stop_uses_up_the_budgets() -> None:
    """Its request has failed at its deadline, for example because its preStop hook takes longer than that."""
    of, (first, second) = of_image(pulls=False, max_failures=2), pods(NEW, OLD)
    two = replace(of, options=replace(of.options, max_unavailable=Amount(2)))
    request = with_image(failed(of, first, Reason.DEADLINE, "late"), 700)
    known = replace(world((first, second), request), budgets=(budget(1),))
    plan = planned(known, of)
    assert (stages(plan)["web-0"], chosen(plan)) == ("failed", [])
    assert plan.wait.why == "1 pod is unready or in progress, the limit is 1: web-0"
    assert chosen(planned(known, two)) == [], "it uses up the PodDisruptionBudget, too"
    assert chosen(planned(replace(known, budgets=(budget(2),)), two)) == ["web-1"]
    replaced = replace(known, members=(recreated(first), second))
    assert chosen(planned(replaced, of)) == ["web-1"]


def test_other_runs_know_which_pods_kubelet_is_about_to_stop() -> None:
    """They begin with such a pod, because it goes down anyway."""
    of, (first, second) = of_image(pulls=False), pods(NEW, NEW)
    known = world((first, second), with_image(failed(of, first, Reason.DEADLINE, "late"), 700))
    assert chosen(planned(known, run(name="plain"))) == ["web-0"]
    back = ImageChange(OLD, (NEW,), pulls=False, template="rest", undoes="run")
    undo = run(name="undo", image=back)
    assert chosen(planned(known, undo)) == ["web-0"]
    begun = with_image(asked(undo, first), image=OLD)
    assert chosen(planned(replace(known, requests=(*known.requests, begun)), undo)) == []


@pytest.mark.parametrize("end", [End.FAILED, End.ABORTED, None])
def test_a_plan_says_that_a_pod_waits_for_its_image_however_it_ends(end: End | None) -> None:
    of, (first, second) = of_image(pulls=False, max_unavailable=Amount(2)), pods(OLD, OLD)
    lost = [with_image(failed(of, first))] if end is End.FAILED else []
    known = replace(world((first, second), present(of, second), *lost))
    known = replace(known, aborted=frozenset({"run"}) if end is End.ABORTED else frozenset())
    plan = planned(known, of)
    assert (plan.end, plan.drained) == (end, False)
    assert planned(replace(known, members=(first,), requests=(*lost,)), of).drained


def test_an_undo_gives_broken_pods_of_a_statefulset_their_image_first() -> None:
    """A pod that is down costs nothing. In order, a pod with budget would come before it, and wait for it forever."""
    members = (*pods(OLD), *pods(NEW, NEW))
    named = [replace(each, pod=replace(each.pod, name=f"web-{n}", uid=f"uid-{n}")) for n, each in enumerate(members)]
    named[1] = replace(named[1], ready=False)
    back = ImageChange(OLD, (NEW,), pulls=False, template="rest", undoes="run")
    known = replace(world(tuple(named)), workload=workload(3, in_order=True))
    assert chosen(planned(known, run(name="undo", image=back))) == ["web-1"]
    assert chosen(planned(known, run(name="other", image=replace(back, undoes="")))) == [], "else the order counts"


def test_a_pod_that_was_set_back_is_tried_again_if_the_user_says_so() -> None:
    of, (pod,) = of_image(pulls=False), pods(OLD)
    request = with_image(succeeded(of, pod))
    known = world((recreated(pod),), request)
    assert stages(planned(known, of)) == {"web-0": "failed"}
    plan = planned(replace(known, retried=frozenset({request.request.uid})), of)
    assert [(row.pod, row.failed) for row in plan.create] == [("web-0", request.request.name)]


def test_a_pull_on_a_node_that_is_down_is_begun_anew() -> None:
    """Its time has passed when the node is back, and the run would fail at once."""
    (near, far), created = pods(OLD, OLD), NOW - timedelta(seconds=900)
    daemons = {"node-a": NodeDaemon("node-a", ready=True), "node-b": NodeDaemon("node-b", ready=False)}
    late = pull("node-b", PullState.PULLING, created=created)
    known = replace(world((near, on("node-b", far)), pulls=(pull(), late)), daemons=daemons)
    plan = planned(known, of_image())
    assert (stages(plan)["web-1"], [each.node for each in image_actions(plan).drop]) == ("put off", ["node-b"])
    back = replace(world((on("node-b", far),)), daemons={"node-b": daemons["node-a"]})
    assert image_actions(planned(back, of_image())).pull == ("node-b",)


def test_pods_in_order_wait_for_the_pull_of_those_before_them() -> None:
    """The first pods of a canary are those with the highest ordinals."""
    low, high = pods(OLD, OLD)
    known = world((low, on("node-b", high)), pulls=(pull(),))
    ordered = replace(known, workload=workload(2, in_order=True))
    plan = planned(ordered, of_image(max_unavailable=Amount(2)))
    assert (chosen(plan), image_actions(plan).pull) == ([], ("node-b",))
    assert why(plan)["web-0"] == ("pods are restarted in order, and web-1 waits: kubelet pulls app:2 on node node-b")
    assert chosen(planned(known, of_image(max_unavailable=Amount(2)))) == ["web-0"]


def test_a_pod_gets_the_image_only_while_its_node_holds_it() -> None:
    """The pull pod was deleted after the run was killed, so kubelet may have removed the image."""
    of, (pod,) = of_image(), pods(OLD)
    plan = planned(world((pod,), present(of, pod)), of)
    assert (patched(plan), image_actions(plan).pull) == ([], ("node-a",))
    assert patched(planned(world((pod,), present(of, pod), pulls=(pull(),)), of)) == ["web-0"]
    other = pull(image="app:9")  # of an earlier run of this name, which was killed before its first request
    plan = planned(world((pod,), present(of, pod), pulls=(other,)), of)
    assert (patched(plan), image_actions(plan).drop) == ([], (other,))
    plan = planned(world((pod,), present(of, pod), pulls=(pull(state=PullState.FAILED, message="401"),)), of)
    assert (plan.end, [row.pod for row in image_actions(plan).stop]) == (End.FAILED, ["web-0"])


@pytest.mark.parametrize(("spec", "replaced"), [({}, [2, 3]), ({"ordinals": {"start": 1}}, [3])])
def test_a_partition_counts_from_the_first_ordinal(spec: dict[str, Any], replaced: list[int]) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    found = read_template({"kind": "StatefulSet", "spec": {"updateStrategy": strategy, **spec}}, "app")
    assert [each for each in range(4) if found.rolls_out(each)] == replaced


ADOPTING = {"crr.apps.kruise.io/adopting-run": "earlier"}


@pytest.mark.parametrize(
    ("kind", "spec", "held"),
    [
        ("Deployment", {"paused": True}, True),
        ("Deployment", {}, False),
        ("StatefulSet", {"updateStrategy": {"rollingUpdate": {"partition": 1_000_000_000}}}, True),
        ("StatefulSet", {"updateStrategy": {"rollingUpdate": {"partition": 3}}}, False),
        ("DaemonSet", {"updateStrategy": {"type": "OnDelete"}}, True),
        ("DaemonSet", {"updateStrategy": {"type": "RollingUpdate"}}, False),
    ],
)
def test_a_controller_that_its_user_has_released_is_not_held(kind: str, spec: dict[str, Any], held: bool) -> None:
    """The label of the run that held it is still there. Later runs would fail for it, or not wait for the rollout."""
    found = read_template({"kind": kind, "metadata": {"labels": ADOPTING}, "spec": spec}, "app")
    assert (found.holder, found.left_by) == (("earlier", "") if held else ("", "earlier"))
    known = world(pods(OLD), template=replace(found, content=Content(OLD, "/containers/0", "rest")))
    known = replace(known, workload=workload(1, rolling="0 of 1 pods are updated"))
    waits = planned(known, of_image(pulls=False)).wait.why
    assert bool(waits) is not held, "a run waits for the rollout of its user, but not for the one that it holds"


def test_a_rollout_that_its_user_has_paused_is_waited_for() -> None:
    paused = Template("Deployment", "web", "uid-of-web", Content(OLD, "/containers/0", "rest"), paused=True)
    known = replace(world(pods(OLD), template=paused), workload=workload(1, rolling="0 of 1 pods are updated"))
    why = "the rollout of deployment.apps/web is not finished: 0 of 1 pods are updated"
    assert planned(known, of_image(pulls=False)).wait.why == why


@pytest.mark.parametrize(
    "held", [{"kind": "StatefulSet", "partition": 3}, {"kind": "DaemonSet", "strategy": "OnDelete"}]
)
def test_a_set_that_its_user_holds_is_not_adopted(held: dict[str, Any]) -> None:
    """Its template has the image already. The pods would not get the label, and be replaced when it is released."""
    plain = Template("", "web", "uid-of-web", Content(NEW, "/containers/0", "rest"), replicas=1)
    known = world(pods(NEW), template=replace(plain, **held), revisions=())
    problem = next_adoption(ImageRun.of(known, of_image(adopt=True))).problem
    assert problem.startswith("deployment.apps/web is held, and not all of its pods have its revision")
    done = world(pods(NEW), template=replace(plain, updated=1, **held), revisions=())
    assert next_adoption(ImageRun.of(done, of_image(adopt=True))).done


def test_a_native_sidecar_is_skipped_where_kubelet_would_keep_it() -> None:
    """Kubelet 1.31 and older do not look at it. The pod would be drained for nothing, and get the image at a crash."""
    of, sidecars = of_image(pulls=False), pods(OLD, kind=ContainerKind.SIDECAR)
    for version, skipped in (("v1.31.9", True), ("v1.32.0", False), ("", False)):
        plan = planned(replace(world(sidecars), kubelets={"node-a": version}), of)
        assert (chosen(plan) == [], "native sidecar app" in why(plan)["web-0"]) == (skipped, skipped)
    assert chosen(planned(world(sidecars), of)) == ["web-0"], "its node is read before it starts"
    assert chosen(planned(replace(world(sidecars), kubelets={"node-a": "v1.31.9"}))) == ["web-0"], (
        "a restart is no change"
    )
    assert chosen(planned(replace(world(pods(OLD)), kubelets={"node-a": "v1.31.9"}), of)) == ["web-0"]


def test_a_pod_whose_container_kubelet_did_not_have_to_replace_is_done() -> None:
    """An undo came before kubelet had acted on the other image, so the container is the one of the request."""
    of, (pod,) = of_image(pulls=False), pods(NEW)
    kept = RecreateState("app", StatePhase.SUCCEEDED, "kept", reason=Reason.IMAGE_KEPT)
    request = with_image(asked(of, pod, RequestPhase.COMPLETED, states=(kept,)))
    assert stages(planned(world((pod,), request), of)) == {"web-0": "done"}
    assert stages(planned(world((pod,), with_image(succeeded(of, pod))), of)) == {"web-0": "getting ready"}
