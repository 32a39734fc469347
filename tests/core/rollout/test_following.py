"""Which images pods in place can get from the template of a held workload, and how its records follow."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.adoption import trial_writes
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.following import not_held, planned_writes, released_meanwhile, template_images
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import Revision, Template, read_content
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member, World
from tests.support.adoptions import NEW, OLD, pod_template
from tests.support.rollouts import NOW, container, image_actions, member, planned, run, with_template, workload

LABEL = "controller-revision-hash"
FOLLOW = ImageChange(NEW, (OLD,), mode=TemplateMode.FOLLOW, template=read_content(pod_template(OLD), "proxy").rest)
OF: dict[str, dict[str, Any]] = {
    "Deployment": {"paused": True},
    "StatefulSet": {"partition": 9},
    "DaemonSet": {"strategy": "OnDelete"},
}


def of_run(**changes: Any) -> Run:
    return run("proxy", image=replace(FOLLOW, **changes))


def template(kind: str = "Deployment", image: str = NEW, app: str = "app:1", **changes: Any) -> Template:
    shape = pod_template(image)
    shape["spec"]["containers"][0]["image"] = app
    content = read_content(shape, "proxy")
    return replace(Template(kind, "web", "uid-of-web", content, **{**OF[kind], **changes}), replicas=2)


def record(name: str, image: str = OLD, app: str = "app:1", **changes: Any) -> Revision:
    shape = pod_template(image)
    shape["spec"]["containers"][0]["image"] = app
    made = Revision(name, f"uid-{name}", "7", "uid-of-web", read_content(shape, "proxy"), label=name)
    return replace(made, **changes)


def pod(image: str, label: str = "", number: int = 0, app: str = "app:1", **changes: Any) -> Member:
    both = container("app", image=app), container("proxy", image=image)
    return replace(member(f"web-{number}", *both, **changes), labels={LABEL: label} if label else {})


def world(
    found: Template, *records: Revision, pods: tuple[Member, ...] = (), requests: tuple[RunRequest, ...] = ()
) -> World:
    return World(pods, requests, workload(len(pods)), extra=ImageState((), found, records))


def images(found: Template, *records: Revision, pods: tuple[Member, ...] = (pod(OLD, "old"),)) -> tuple[object, str]:
    got = template_images("deployment.apps/web", ImageState((), found, records), pods)
    return tuple((each.container, each.image) for each in got.changes), got.wait or got.problem


ACTIVE = record("old", replicas=2)
NEWEST = record("new", NEW, number=2)


def test_the_images_that_the_pods_lack() -> None:
    assert images(template(), ACTIVE) == ((("proxy", NEW),), "")
    assert not template_images("", ImageState((), template(), (ACTIVE,)), (pod(OLD, "old"),)).lacks_right
    assert images(template("StatefulSet"), record("old"), NEWEST) == ((("proxy", NEW),), "")
    assert images(template("DaemonSet"), record("old"), NEWEST) == ((("proxy", NEW),), "")
    both = images(template(app="app:2"), ACTIVE)
    assert both == ((("app", "app:2"), ("proxy", NEW)), "")


def test_images_that_are_no_difference() -> None:
    assert images(template(image=OLD), ACTIVE) == ((), "")
    mirrored = (pod("mirror/proxy:1"), pod("mirror/proxy:1", number=1))
    assert images(template(image=OLD), ACTIVE, pods=mirrored) == ((), "")
    late = (pod(NEW), pod(OLD, number=1))
    assert images(template(), record("old", NEW, replicas=2), pods=late) == ((("proxy", NEW),), "")


def test_one_pod_of_an_older_revision_is_behind() -> None:
    mixed = (pod(NEW, "new"), pod(NEW, "old", 1))
    assert images(template("StatefulSet"), record("old"), NEWEST, pods=mixed) == ((("proxy", NEW),), "")


def test_a_set_whose_labels_wait_for_another_container_asks_for_that_one_alone() -> None:
    """The label follows when a pod has all images. Until then, nothing is to be done for a container that all have."""
    found, records = template("StatefulSet", app="app:2"), (record("old"), record("new", NEW, "app:2", number=2))
    assert images(found, *records, pods=BOTH) == ((("app", "app:2"),), "")
    one = pod(NEW, "old", app="app:2"), pod(NEW, "old", 1)
    assert images(found, *records, pods=one) == ((("app", "app:2"),), "")
    both = tuple(pod(NEW, "old", number, "app:2") for number in range(2))
    assert images(found, *records, pods=both) == ((("app", "app:2"), ("proxy", NEW)), ""), "for the labels"
    assert writes(after(found, *records, pods=both, of=of_run(template=found.content.rest))) != []
    followed = tuple(pod(NEW, "new", number, "app:2") for number in range(2))
    assert images(found, *records, pods=followed) == ((), "")
    assert images(template(app="app:2"), ACTIVE, pods=BOTH) == ((("app", "app:2"), ("proxy", NEW)), "")


def test_without_pods_the_newest_replicaset_counts() -> None:
    earlier, newest = record("earlier", number=1), record("newest", NEW, number=2)
    assert images(template(), earlier, newest, pods=()) == ((), "")
    assert images(template(image=OLD), earlier, newest, pods=()) == ((("proxy", OLD),), "")
    (write,) = planned_writes(ImageRun.of(world(template(), earlier, newest), of_run()))
    assert write.startswith(f"ReplicaSet newest gets {NEW} in its template")


def test_the_pods_that_lack_an_image_and_what_they_have() -> None:
    pods = (pod(NEW), pod(OLD, number=1), pod("proxy:0", number=2, node="node-b"))
    state = ImageState((), template(), (ACTIVE,))
    (found,) = template_images("deployment.apps/web", state, pods).changes
    assert found.before == tuple(sorted((OLD, "proxy:0")))
    assert found.lacking == (("web-1", pods[1].pod.node_name), ("web-2", "node-b"))
    assert found.behind


def test_an_image_that_has_failed_in_all_pods_of_a_set_stays_known() -> None:
    """The pods lack another image, too. Their label waits for that, but not the failure."""
    found, records = template("StatefulSet", app="app:2"), (record("old"), record("new", NEW, "app:2", number=2))
    state, pods = ImageState((), found, records), (pod(NEW, "old"), pod(NEW, "old", number=1))
    both = template_images("s", state, pods, {("proxy", NEW)}, {("proxy", NEW)}).changes
    assert {each.container: each.before for each in both} == {"proxy": (OLD,), "app": ("app:1",)}
    assert all(each.behind for each in both)
    assert [each.container for each in template_images("s", state, pods, {("proxy", NEW)}).changes] == ["app"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_pod_made_of_what_has_not_followed_yet_belongs_to_the_run(kind: str) -> None:
    """An earlier run gave all pods its image, and has failed. The template has the next one by now."""
    bad, found = "proxy:bad", template(kind)
    records = (ACTIVE,) if kind == "Deployment" else (record("old"), NEWEST)
    pods = (pod(bad, "old"), pod(bad, "old", number=1))
    (change,) = template_images("deployment.apps/web", ImageState((), found, records), pods).changes
    assert change.before == (OLD, bad)
    of = of_run(before=change.before, pulls=False)
    plan = planned(world(found, *records, pods=(*pods, pod(OLD, "old", number=2))), of)
    assert (plan.end, {row.stage for row in plan.rows}) == (None, {Stage.WAITING})


def test_an_image_that_a_run_has_given_is_taken_back_with_the_template() -> None:
    """All pods have it, and the record has not followed. The same image by somebody else is left alone."""
    state = ImageState((), template(image=OLD), (ACTIVE,))
    pods = (pod("proxy:bad"), pod("proxy:bad", number=1))
    assert template_images("web", state, pods).changes == ()
    assert template_images("web", state, pods, {("app", "proxy:bad")}).changes == ()
    given = {("app", "app:2"), ("proxy", "proxy:bad")}
    (found,) = template_images("web", state, pods, given).changes
    assert (found.container, found.image, found.before) == ("proxy", OLD, ("proxy:bad",))
    assert not found.behind
    assert template_images("web", state, (pod(OLD),), {("proxy", OLD)}).changes == (), "it has it already"


@pytest.mark.parametrize(
    ("found", "records", "message"),
    [
        (template(paused=False), (ACTIVE,), "is not held, so its controller rolls out a changed template with new"),
        (template("StatefulSet", partition=0), (NEWEST,), "set spec.updateStrategy.rollingUpdate.partition"),
        (template("DaemonSet", strategy="RollingUpdate"), (NEWEST,), "set spec.updateStrategy.type to OnDelete"),
        (template(observed=False), (ACTIVE,), "has not observed the last change of its template"),
        (template(), (ACTIVE, record("new", NEW, replicas=1)), "is not finished: it has 2 active ReplicaSets"),
        (template("DaemonSet"), (record("old"),), "has not made a revision of its template"),
        (template("DaemonSet"), (NEWEST,), "the revision of pod web-0 is not known"),
        (
            replace(template(), content=read_content({"spec": {"containers": []}}, "proxy")),
            (ACTIVE,),
            "differs in more than images from old, which its pods have: release it",
        ),
        (replace(template(), kind="Job"), (), "only the pods of a Deployment, StatefulSet, DaemonSet can follow"),
    ],
)  # fmt: skip
def test_why_pods_cannot_follow(found: Template, records: tuple[Revision, ...], message: str) -> None:
    changes, why = images(found, *records)
    assert (changes, message in why) == ((), True), why


def after(found: Template, *records: Revision, pods: tuple[Member, ...], of: Run | None = None) -> Plan:
    """The plan once all pods have the image."""
    return planned(world(found, *records, pods=pods), of or of_run())


def writes(plan: Plan) -> list[tuple[str, Any]]:
    adoption = image_actions(plan).adoption
    found = adoption.writes if adoption is not None else ()
    return [(each.name, each.operations[-1]["value"] if each.operations else None) for each in found]


BOTH = (pod(NEW, "old"), pod(NEW, "old", 1))


def test_the_replicaset_follows_after_the_last_pod() -> None:
    begun = after(template(), ACTIVE, pods=(pod(NEW), pod(OLD, number=1)))
    assert (image_actions(begun).adoption, image_actions(begun).pull) == (None, ("node-a",)), (
        "no pod waits for the paused rollout"
    )
    assert writes(after(template(), ACTIVE, pods=BOTH)) == [("old", NEW)]
    followed = replace(ACTIVE, content=template().content)
    waiting = after(template(), followed, pods=BOTH)
    assert (
        waiting.wait.why
        == "waiting until the controller of deployment.apps/web has seen the new template of its ReplicaSet"
    )
    assert after(template(updated=2), followed, pods=BOTH).end is End.DONE


def test_an_older_replicaset_with_the_template_is_deleted_first() -> None:
    assert writes(after(template(), ACTIVE, NEWEST, pods=BOTH)) == [("new", None)]
    (tried,) = trial_writes(ImageRun.of(world(template(), ACTIVE, NEWEST, pods=BOTH), of_run()))
    assert (tried.plural, tried.name) == ("replicasets", "old"), "a deletion is not tried"


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_the_labels_follow_the_highest_ordinal_first(kind: str) -> None:
    records = record("old"), NEWEST
    assert writes(after(template(kind), *records, pods=BOTH)) == [("web-1", "new"), ("web-0", "new")]
    labelled = (pod(NEW, "new"), pod(NEW, "new", 1))
    seen = "waiting until the controller of deployment.apps/web has seen the labels of its pods"
    assert after(template(kind), *records, pods=labelled).wait.why == seen
    assert after(template(kind, updated=2), *records, pods=labelled).end is End.DONE
    mirrored = tuple(pod(NEW, "old", number, "mirror/app:1") for number in range(2))
    found = writes(after(template(kind), *records, pods=mirrored))
    assert found == [("web-1", "new"), ("web-0", "new")], "a webhook has changed the image of another container"


def test_one_of_two_containers_leaves_the_labels_until_the_other_one_follows() -> None:
    found, records = template("DaemonSet", app="app:2"), (record("old"), record("new", NEW, "app:2", number=2))
    one = read_content(pod_template(OLD), "proxy")
    of = of_run(template=found.content.rest)
    assert one.rest != found.content.rest, "another image of another container"
    assert after(found, *records, pods=BOTH, of=of).end is End.DONE
    both = tuple(pod(NEW, "old", number, "app:2") for number in range(2))
    assert [name for name, _ in writes(after(found, *records, pods=both, of=of))] == ["web-1", "web-0"]


def test_one_of_two_containers_in_a_replicaset() -> None:
    found = template(app="app:2")
    of = of_run(template=found.content.rest)
    assert writes(after(found, ACTIVE, pods=BOTH, of=of)) == [("old", NEW)]
    before = record("before", NEW, "app:2")
    assert writes(after(found, ACTIVE, before, pods=BOTH, of=of)) == [("old", NEW)], "it is no second one yet"
    assert after(found, replace(ACTIVE, content=template().content), pods=BOTH, of=of).end is End.DONE


BACK = {"image": OLD, "before": (NEW,), "undoes": "run"}


def test_a_run_back_lets_the_records_follow_the_pods() -> None:
    of, old = of_run(**BACK), (pod(OLD, "new"), pod(OLD, "new", 1))
    assert writes(after(template(), replace(ACTIVE, content=template().content), pods=old, of=of)) == [("old", OLD)]
    assert after(template(), ACTIVE, pods=old, of=of).end is End.DONE
    kind = template("StatefulSet")
    assert writes(after(kind, record("old"), NEWEST, pods=old, of=of)) == [("web-1", "old"), ("web-0", "old")]
    still = "2 of 2 pods have proxy:1; the template still has proxy:2: set the image in its source, too, before the"
    assert kind_of(world(template(), ACTIVE, pods=old), of).report() == f"{still} workload is released"
    followed = kind_of(world(template(), ACTIVE, pods=BOTH), of_run())
    assert followed.report() == "2 of 2 pods have proxy:2; so has the template"
    lost = after(kind, NEWEST, pods=old, of=of)
    assert (lost.end, lost.message) == (
        End.FAILED,
        f"no revision of deployment.apps/web has {OLD} any more: set the image in its template",
    )


@pytest.mark.parametrize(
    ("changes", "replaced"),
    [
        ({"partition": 2}, ""),
        ({"partition": 1}, "web-1"),
        ({"partition": None}, "web-0"),
        ({"partition": 1, "strategy": "OnDelete"}, ""),
        ({"partition": 2, "first_ordinal": 5}, ""),
        ({"partition": 1, "first_ordinal": 5}, "web-6"),
    ],
)
def test_a_run_back_is_only_for_pods_that_their_controller_does_not_replace(
    changes: dict[str, Any], replaced: str
) -> None:
    """Those above the partition follow the template, which keeps the image."""
    found = replace(template("StatefulSet", updated=1), **changes)
    there = tuple(pod(NEW, "new", found.first_ordinal + number) for number in range(2))
    facts = ImageRun.of(world(found, NEWEST, record("old"), pods=there), of_run(**BACK))
    why = f"so its controller replaces pod {replaced}: set spec.updateStrategy.rollingUpdate.partition to its number"
    assert (why in not_held(facts)) is bool(replaced)
    assert bool(not_held(facts)) is bool(replaced)
    assert bool(released_meanwhile(facts)) is bool(replaced)
    assert not_held(ImageRun.of(facts.world, of_run())) == "", "a run that follows the template has what it wants"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (template(image="proxy:9"), "the image of deployment.apps/web was set to proxy:9 meanwhile"),
        (template(image=OLD), f"the image of deployment.apps/web was set to {OLD} meanwhile"),
        (template(app="app:9"), "the template of deployment.apps/web was changed meanwhile"),
        (
            template(paused=False),
            "deployment.apps/web was released meanwhile, so its controller rolls out the template with new pods",
        ),
    ],
)
def test_the_run_gives_way_to_others(found: Template, message: str) -> None:
    plan = after(found, ACTIVE, pods=(pod(NEW), pod(OLD, number=1)))
    assert (plan.end, plan.message) == (End.FAILED, message)


def test_a_release_after_the_end_is_no_failure() -> None:
    followed = replace(ACTIVE, content=template().content)
    assert after(template(paused=False, updated=2), followed, pods=BOTH).end is End.DONE


def test_a_pod_without_the_image_keeps_the_records_as_they_are() -> None:
    odd = replace(pod(OLD, "old", 1), pod=replace(pod(OLD, "old", 1).pod, node_name="elsewhere"))
    shown = replace(world(template(), ACTIVE, pods=(pod(NEW), odd)), daemons={})
    plan = planned(shown, of_run())
    assert (plan.end, plan.message) == (
        End.FAILED,
        f"deployment.apps/web does not follow its template yet, because pod web-1 has {OLD}",
    )


def test_a_preview_says_what_is_written_after_the_pods() -> None:
    old = (pod(OLD, "old"), pod(OLD, "old", 1))
    shown = make_preview(world(template(), ACTIVE, pods=old), of_run(), NOW)
    assert shown.writes == ("ReplicaSet old gets proxy:2 in its template; deployment.apps/web itself is not changed",)
    assert [[row.pod for row in batch] for batch in shown.batches] == [["web-0"], ["web-1"]]
    of_set = planned_writes(ImageRun.of(world(template("DaemonSet"), pods=old), of_run()))
    assert of_set == (
        f"the pods get the label {LABEL} of the revision with {NEW}; deployment.apps/web itself is not changed",
    )
    assert kind_of(world(template(), pods=old), run()).planned_writes() == ()
    assert kind_of(world(template(), ACTIVE, pods=old), of_run(mode=TemplateMode.ADOPT)).planned_writes() == ()
    assert kind_of(World(old, extra=ImageState()), of_run()).planned_writes() == (), "the template is not known"


def test_what_is_not_known_yet_is_waited_for() -> None:
    state = ImageState((), template(updated=1))
    unread = planned(World(BOTH, workload=workload(2), extra=state), of_run())
    assert unread.wait.why == "reading the revisions of deployment.apps/web"
    assert planned(World(BOTH, workload=workload(2), extra=ImageState()), of_run()).wait.why
    stranger = after(template("DaemonSet"), NEWEST, pods=BOTH)
    assert stranger.wait.why == "reading the revision of pod web-1"


def test_a_replicaset_that_does_not_fit_any_more_is_left_alone() -> None:
    two = after(template(), ACTIVE, record("new", NEW, replicas=1), pods=BOTH)
    assert (two.end, two.message) == (
        End.FAILED,
        "the rollout of deployment.apps/web is not finished: it has 2 active ReplicaSets",
    )
    other = read_content({"spec": {"containers": [{"name": "proxy", "image": OLD}]}}, "proxy")
    differs = after(template(), replace(ACTIVE, content=other), pods=BOTH)
    assert differs.message == "ReplicaSet old differs from deployment.apps/web in more than images"


def test_pods_that_end_get_no_label() -> None:
    leaving = replace(BOTH[0], pod=replace(BOTH[0].pod, deleting=True))
    found = after(template("DaemonSet"), record("old"), NEWEST, pods=(leaving, BOTH[1]))
    assert writes(found) == [("web-1", "new")]


def test_only_the_writes_of_a_replicaset_can_be_tried_first() -> None:
    of = of_run()
    assert [each.name for each in trial_writes(ImageRun.of(world(template(), ACTIVE, pods=BOTH), of))] == ["old"]
    for found in (
        world(template("DaemonSet"), record("old"), NEWEST, pods=BOTH),
        World(BOTH, extra=ImageState((), template())),
        World(BOTH),
    ):
        assert trial_writes(ImageRun.of(found, of)) == ()
    assert trial_writes(ImageRun.of(world(template(), ACTIVE, pods=BOTH), of_run(mode=TemplateMode.ADOPT))) == ()


def test_a_run_that_does_not_know_the_template_is_not_carried_out() -> None:
    """Its image was not taken from the template, whoever has written it into the status of a policy."""
    assert "was changed meanwhile" in released_meanwhile(with_template(of_run(template=""), template()))
