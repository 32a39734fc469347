"""The trigger templateImage: when pods get the image of their template, beside other triggers, and after failures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.policy.course import make_run
from crrd.core.policy.observed import Look, Observed
from crrd.core.policy.problems import problems
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import Policy, RunRecord
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.image.resources import resources_of
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Target
from tests.core.policy.test_decide import PLAIN, SIDE, History, app, at, data, message, reason, text

IMAGE = replace(PLAIN, config=None, template_image=True)
BOTH = replace(PLAIN, template_image=True)
LACKING = (("web-0", "a"), ("web-1", "b"))


def new(image: str = "i:2", container: str = "app", **fields: Any) -> TemplateChange:
    plain: dict[str, Any] = {"before": ("i:1",), "lacking": LACKING, "rest": "rest"}
    return TemplateChange(container, image, **{**plain, **fields})


def has(*changes: TemplateChange, **fields: Any) -> TemplateImages:
    return TemplateImages(changes, **fields)


def running(policy: Policy = IMAGE, *changes: TemplateChange) -> History:
    """A policy whose run for the image has begun at 10."""
    history = History(policy)
    history.look(1, data("a"), template=has())
    assert history.look(10, data("a"), template=has(*(changes or (new(),)))).run is not None
    return history


def run_of(history: History) -> RunRecord:
    assert history.policy.status.run is not None
    return history.policy.status.run


def test_a_new_image_begins_a_run_that_any_leader_continues() -> None:
    history = History(IMAGE)
    assert reason(history.look(1, template=has())) == PolicyReason.IDLE
    first = history.look(10, template=has(new())).run
    assert first is not None
    assert (first.trigger, first.containers, first.image) == ("templateImage", ("app",), "i:2")
    assert (first.before, first.template, first.since) == (("i:1",), "rest", text(10))
    assert first.reason == "policy web: the template has i:2 for app"
    again = read_policy({"status": write_status(history.policy.status)}).status.run
    assert again == first
    assert history.look(20, template=has(new(lacking=LACKING[1:]))).run == first, "some pods have it by now"
    assert history.look(30, template=has()).run == first, "all pods have it, and the rest of the run goes on"
    history.end(40)
    assert reason(history.look(41, template=has())) == PolicyReason.IDLE


def test_the_run_as_kubectl_recreate_knows_it() -> None:
    run = make_run(IMAGE, run_of(running()), Target("deployment.apps/web"))
    change = run.options.image
    assert change is not None
    assert (change.image, change.before, change.template, change.had) == ("i:2", ("i:1",), "rest", "i:2")
    assert (change.follow, change.adopt, change.pulls, change.undoes) == (True, True, True, "")
    assert (run.options.containers, run.options.policy) == (("app",), IMAGE.uid)
    assert not run.options.preflight, "the right to read configuration is not needed"
    assert make_run(BOTH, run_of(running()), Target("x")).options.preflight


def test_a_restart_has_no_image() -> None:
    history = History()
    history.look(1, data("a"))
    history.look(20, data("b", 5))
    assert make_run(history.policy, run_of(history), Target("x")).options.image is None
    written = write_status(history.policy.status)["run"]
    assert [written[key] for key in ("image", "before", "template")] == [None] * 3, "an older CRD need not know them"


def test_one_container_after_the_other() -> None:
    history = running(IMAGE, new(), new("s:2", "side"))
    assert run_of(history).containers == ("app",)
    history.end(20)
    second = history.look(21, template=has(new("s:2", "side"))).run
    assert second is not None
    assert (second.containers, second.image) == (("side",), "s:2")


def test_only_containers_that_the_policy_names() -> None:
    history = History(replace(IMAGE, containers=("side",)))
    assert history.look(1, template=has(new())).run is None
    found = history.look(2, template=has(new(), new("s:2", "side"))).run
    assert found is not None
    assert found.containers == ("side",)


def test_windows_and_distances_hold_for_images() -> None:
    history = running(replace(IMAGE, budget=replace(IMAGE.budget, min_interval=600)))
    history.end(20)
    waits = history.look(30, template=has(new("i:3")))
    assert (waits.run, reason(waits)) == (None, PolicyReason.INTERVAL)
    assert history.look(610, template=has(new("i:3"))).run is not None


@pytest.mark.parametrize("change", [new("i:3"), new(rest="other")])
def test_a_newer_template_replaces_a_run(change: TemplateChange) -> None:
    history = running()
    first = run_of(history)
    found = history.look(12, template=has(change)).run
    assert found is not None
    assert found.name != first.name
    assert found.gives != first.gives


def test_an_image_that_the_replaced_run_still_gives_to_a_pod_is_not_foreign() -> None:
    """Its last write may arrive after the pods were listed."""
    found = running().look(12, template=has(new("i:3"))).run
    assert (found and found.before) == ("i:1", "i:2")
    ended = running()
    ended.end(20)
    found = ended.look(30, template=has(new("i:3", before=("i:2",)))).run
    assert (found and found.before) == ("i:2",), "that run's pods are known"
    history = running(IMAGE, new("s:2", "side", before=("s:1",)))
    history.end(20)
    found = history.look(30, template=has(new("i:3"))).run
    assert (found and found.before) == ("i:1",), "another container"


def test_a_newer_template_of_another_container_waits() -> None:
    history = running()
    assert history.look(12, template=has(new("s:2", "side"))).run == run_of(history)


class TestFailure:
    """A run that has failed is not repeated, until something changes."""

    def failed(self) -> History:
        history = running()
        history.end(20, End.FAILED, message="kubelet cannot pull i:2")
        return history

    def test_stops_the_policy_and_says_what_to_do(self) -> None:
        history = self.failed()
        stopped = history.look(900, template=has(new()))
        assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
        assert "no run starts until the template, the policy or the configuration changes" in message(stopped)
        assert "set spec.suspend to true, and back to false" in message(stopped)

    def test_a_newer_template_is_tried(self) -> None:
        found = self.failed().look(30, template=has(new("i:3", before=("i:1", "i:2")))).run
        assert found is not None
        assert found.image == "i:3"

    def test_an_edit_of_the_policy_tries_again(self) -> None:
        history = self.failed()
        history.policy = replace(history.policy, generation=2)
        assert history.look(30, template=has(new())).run is not None

    def test_the_template_that_is_set_back_is_no_failure_any_more(self) -> None:
        history = self.failed()
        ready = app(ready=True)
        back = history.look(30, None, ready, template=has())
        assert reason(back) == PolicyReason.IDLE
        assert run_of(history).message.endswith("; after that, the pods have the images of the template and are ready")

    def test_a_judgement_of_no_counts_although_all_pods_have_the_image_and_are_ready(self) -> None:
        history = running()
        history.end(20, End.HALTED, message="it is no")
        found = history.look(30, None, app(ready=True), template=has())
        assert (found.run, reason(found)) == (None, PolicyReason.FAILED)
        assert message(found).endswith("no run starts until the configuration, the template or the policy changes")

    @pytest.mark.parametrize("template", [has(wait="x"), has(new()), None])
    def test_it_stays_one_while_the_template_is_unknown(self, template: TemplateImages | None) -> None:
        history = self.failed()
        assert reason(history.look(30, None, app(ready=True), template=template)) == PolicyReason.FAILED
        assert reason(history.look(31, None, app(ready=False), template=has())) == PolicyReason.FAILED

    @pytest.mark.parametrize("what", [{"problem": "no fixed tag"}, {"refused": ("no fixed tag",)}])
    def test_what_is_wrong_with_a_newer_template_is_said_first(self, what: dict[str, Any]) -> None:
        found = self.failed().look(30, None, app(ready=True), template=has(**what))
        assert (reason(found), message(found)) == (PolicyReason.TEMPLATE, "no fixed tag")
        found = self.failed().look(30, None, app(ready=True), template=has(new(), **what))
        assert reason(found) == PolicyReason.FAILED, "the template is the same, and something else is wrong, too"


class TestLeftovers:
    """What a run has left, for example a pod that does not start, is tried again, but not at once."""

    LEFT = has(new(lacking=LACKING[1:]))

    def test_after_ten_minutes(self) -> None:
        history = running()
        history.end(20, message="1 of 1 pods recreated")
        waits = history.look(30, template=self.LEFT)
        assert (waits.run, waits.wake_at, reason(waits)) == (None, at(620), PolicyReason.RETRY)
        assert message(waits).endswith(
            f"1 of 1 pods recreated. Trying again at {text(620)}, because pods lack the image of the template"
        )
        again = history.look(620, template=self.LEFT).run
        assert again is not None
        assert again.image == "i:2"

    def test_a_newer_image_and_another_container_do_not_wait_for_that(self) -> None:
        for change in (new("i:3"), new("s:2", "side")):
            history = running()
            history.end(20)
            found = history.look(30, template=has(*self.LEFT.changes, change)).run
            assert found is not None
            assert found.image == change.image

    @pytest.mark.parametrize("seconds", [30, 700])
    def test_other_triggers_come_first(self, seconds: float) -> None:
        """Also if each run keeps the next one waiting, because of minInterval."""
        history = running(replace(IMAGE, max_age=3625))
        history.end(20)
        found = history.look(seconds, template=self.LEFT).run
        assert found is not None
        assert found.trigger == "maxAge"

    def test_a_change_of_configuration_comes_first(self) -> None:
        history = running(BOTH)
        history.end(20)
        found = history.look(700, data("b", 650), template=self.LEFT).run
        assert found is not None
        assert (found.trigger, found.containers) == ("configChange", ("app",))


class TestTwoContainers:
    """What one of them has tried counts, also after a run for the other one."""

    BOTH = has(new(), new("s:2", "side"))

    def test_a_failure_counts_after_a_run_of_another_trigger(self) -> None:
        history = History(BOTH)
        known, pods = {**data("a"), **data("a", None, SIDE)}, (app(), app(-3600, "web-0", "side"))
        history.look(1, known, *pods, template=has())
        history.look(10, known, *pods, template=self.BOTH)
        history.end(20, End.FAILED, message="kubelet cannot pull i:2")
        assert history.look(30, known, *pods, template=self.BOTH).run is None, "it stops the other image"
        known |= data("b", 40, SIDE)
        found = history.look(60, known, *pods, template=self.BOTH).run
        assert found is not None
        assert (found.trigger, found.containers) == ("configChange", ("side",))
        history.end(70)
        pods = app(), app(65, "web-0", "side")
        said = history.look(80, known, *pods, template=self.BOTH)
        assert (said.run, reason(said)) == (None, PolicyReason.FAILED)
        assert "kubelet cannot pull i:2" in message(said)
        again = read_policy({"status": write_status(history.policy.status)}).status.tried
        assert [(each.containers, each.failed) for each in again] == [(("app",), True)]
        assert reason(history.look(90, known, *pods, template=has())) == PolicyReason.IDLE, "it was set back"
        assert history.look(100, known, *pods, template=self.BOTH).run is not None, "and set again"

    def test_an_image_that_may_not_be_tried_hides_no_other_template(self) -> None:
        history = running(IMAGE, *self.BOTH.changes)
        history.end(20, End.FAILED)
        refused = {"refused": ("s:latest has no fixed tag",)}
        assert history.look(30, template=has(new(), **refused)).run is None
        history.look(40, template=has(**refused))
        assert history.policy.status.tried == ()

    def test_an_older_crd_keeps_the_last_run_alone(self) -> None:
        history = running()
        history.end(20)
        history.policy = replace(history.policy, status=replace(history.policy.status, tried=()))
        assert reason(history.look(30, template=has(new()))) == PolicyReason.RETRY

    def test_the_template_is_unknown_for_a_moment(self) -> None:
        """This is no other template."""
        history = running(IMAGE, *self.BOTH.changes)
        history.end(20, End.FAILED)
        for template in (has(wait="the controller of web has not observed it"), has(problem="web is not held"), None):
            history.look(30, template=template)
            assert history.look(31, template=self.BOTH).run is None

    def test_what_both_have_left_waits(self) -> None:
        history = running(IMAGE, *self.BOTH.changes)
        history.end(20)
        assert history.look(30, template=self.BOTH).run is not None
        history.end(40)
        waits = history.look(50, template=self.BOTH)
        assert (waits.run, waits.wake_at, reason(waits)) == (None, at(620), PolicyReason.RETRY)
        assert message(waits).endswith(f"Trying again at {text(620)}, because pods lack the image of the template")
        first = history.look(620, template=self.BOTH).run
        assert first is not None
        assert first.containers == ("app",)
        assert history.look(700, template=self.BOTH).run == first, "it is in progress"
        history.end(710)
        then = history.look(711, template=self.BOTH).run
        assert then is not None
        assert then.containers == ("side",), "it has waited for longer"


class TestNodes:
    DOWN: Mapping[str, str] = {"b": "node b is not ready"}

    def test_pods_of_nodes_that_are_down_start_no_run_alone(self) -> None:
        history = History(IMAGE)
        waits = history.look(1, template=has(new(lacking=LACKING[1:])), down=self.DOWN)
        assert (waits.run, reason(waits)) == (None, PolicyReason.NODES)
        assert "not restarted yet: web-1 (node b is not ready)" in message(waits)
        assert history.look(2, template=has(new()), down=self.DOWN).run is not None

    def test_what_new_pods_are_made_of_follows_without_a_pod(self) -> None:
        assert History(IMAGE).look(1, template=has(new(lacking=())), down=self.DOWN).run is not None


class TestProblems:
    def test_a_template_that_cannot_be_followed_is_said(self) -> None:
        found = History(IMAGE).look(1, template=has(problem="web is not held: pause it"))
        assert (found.run, reason(found)) == (None, PolicyReason.TEMPLATE)
        assert message(found) == "web is not held: pause it"

    def test_one_container_that_must_not_get_its_image_keeps_no_other_back(self) -> None:
        found = History(IMAGE).look(1, template=has(new(), refused=("s:latest has no fixed tag", "t:2 is refused")))
        assert found.run is not None
        assert [each["message"] for each in found.conditions if each["type"] == "Effective"] == [
            "s:latest has no fixed tag; t:2 is refused"
        ]
        assert [each["reason"] for each in found.conditions if each["type"] == "Effective"] == ["TemplateNotFollowed"]

    def test_a_controller_is_waited_for(self) -> None:
        found = History(IMAGE).look(1, template=has(wait="the controller of web has not observed the last change"))
        assert (found.run, reason(found)) == (None, PolicyReason.CONTROLLER)
        assert next(each["status"] for each in found.conditions if each["type"] == "Ready") == "True"

    def test_a_policy_without_the_trigger_does_not_care(self) -> None:
        assert problems(Look(PLAIN, Observed(), at(1))) == ()

    def test_a_run_whose_trigger_was_removed_ends(self) -> None:
        history = running(BOTH)
        history.policy = replace(history.policy, template_image=False, generation=2)
        assert history.look(11, data("a")).run is None
        assert run_of(history).message == "ended because the policy no longer has the trigger templateImage"


class TestWithChangedConfiguration:
    """One restart brings both, and files are refreshed before it."""

    def test_an_image_waits_until_configuration_has_settled(self) -> None:
        history = History(BOTH)
        history.look(1, data("a"), template=has())
        waits = history.look(100, data("b", 99), template=has(new()))
        assert (waits.run, reason(waits)) == (None, PolicyReason.SETTLING)
        found = history.look(110, data("b", 99), template=has(new())).run
        assert found is not None
        assert (found.image, found.objects) == ("i:2", (f"ConfigMap cfg (data.*) {text(109)}",))
        assert found.reason == "policy web: the template has i:2 for app, and ConfigMap cfg changed"
        history.end(130)
        done = history.look(131, data("b", 99), app(120, ready=True), template=has())
        assert (done.run, reason(done)) == (None, PolicyReason.IDLE), "the container is not restarted again"

    def test_a_pod_that_had_the_image_gets_the_change_later(self) -> None:
        """The run leaves it alone."""
        history = History(BOTH)
        history.look(1, data("a"), app(), app(pod="web-1"), template=has())
        history.look(120, data("b", 99), app(), app(pod="web-1"), template=has(new(lacking=LACKING[:1])))
        assert run_of(history).objects
        history.end(130)
        found = history.look(131, data("b", 99), app(125), app(pod="web-1"), template=has()).run
        assert found is not None
        assert (found.trigger, found.containers) == ("configChange", ("app",))
        history.end(140)
        done = history.look(141, data("b", 99), app(125), app(135, "web-1"), template=has())
        assert (done.run, [each.done for each in done.status.config]) == (None, ["b"])

    def test_a_change_that_is_taken_back_after_the_run_is_undone(self) -> None:
        history = History(BOTH)
        history.look(1, data("a"), template=has())
        history.look(120, data("b", 99), template=has(new()))
        history.end(130)
        history.look(131, data("b", 99), app(125), template=has())
        assert history.look(220, data("a", 200), app(125), template=has()).run is not None

    def test_other_containers_are_restarted_after_it(self) -> None:
        side = ("side", next(iter(data("a")))[1])
        known = {**data("b", 99), **data("b", 99, side)}
        pods = app(), app(-3600, "web-0", "side")
        history = History(BOTH)
        history.look(1, {**data("a"), **data("a", None, side)}, *pods, template=has())
        found = history.look(120, known, *pods, template=has(new())).run
        assert found is not None
        assert (found.trigger, found.containers) == ("templateImage", ("app",))
        history.end(130)
        found = history.look(131, known, app(125), pods[1], template=has()).run
        assert found is not None
        assert (found.trigger, found.containers) == ("configChange", ("side",))

    def test_an_image_that_failed_is_tried_again_with_changed_configuration(self) -> None:
        """It may have failed because of the old data."""
        history = running(BOTH)
        history.end(20, End.FAILED, message="app of web-0 ended again")
        found = history.look(120, data("b", 100), template=has(new())).run
        assert found is not None
        assert (found.image, found.objects) == ("i:2", (f"ConfigMap cfg (data.*) {text(110)}",))
        history.end(140, End.FAILED, message="app of web-0 ended again")
        stopped = history.look(150, data("b", 100), template=has(new()))
        assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED), "once"

    def test_a_change_during_a_run_for_the_image_replaces_it(self) -> None:
        history = running(BOTH)
        first = run_of(history)
        found = history.look(110, data("b", 99), template=has(new())).run
        assert found is not None
        assert (found.image, found.objects != (), found.name != first.name) == ("i:2", True, True)
        assert history.look(111, data("b", 99), template=has(new())).run == found, "once"

    def test_an_image_during_a_run_for_a_change_replaces_it(self) -> None:
        history = History(BOTH)
        history.look(1, data("a"), template=has())
        first = history.look(110, data("b", 99), template=has()).run
        found = history.look(112, data("b", 99), template=has(new())).run
        assert first is not None
        assert found is not None
        assert (first.image, found.image, found.objects) == ("", "i:2", first.objects)
        assert history.look(113, data("b", 99), template=has(new())).run == found

    def test_a_run_for_a_change_goes_on_while_an_image_has_to_wait(self) -> None:
        history = History(replace(BOTH, budget=replace(BOTH.budget, min_interval=600)))
        history.look(1, data("a"), template=has())
        first = history.look(110, data("b", 99), template=has()).run
        assert history.look(112, data("b", 99), template=has(new())).run == first
        then = history.look(710, data("b", 99), template=has(new())).run
        assert then is not None
        assert (then.image, then != first) == ("i:2", True)

    def test_a_time_of_the_schedule_is_not_lost(self) -> None:
        last = RunRecord("web-1", "schedule", ("app",), text(1), text(1), 1)
        history = History(replace(BOTH, status=replace(BOTH.status, run=last), schedule=None))
        history.policy = replace(history.policy, status=replace(history.policy.status, run=last), generation=1)
        assert history.look(5, data("a"), template=has(new())).run == last


def test_the_field_needs_a_workload() -> None:
    spec: dict[str, Any] = {"triggers": {"templateImage": {}}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    assert read_policy({"spec": {**spec, "targetRef": target}}).template_image
    wrong = read_policy({"spec": {**spec, "selector": {"matchLabels": {"a": "b"}}}})
    assert wrong.error == "spec.triggers.templateImage needs spec.targetRef"


@pytest.mark.parametrize(
    ("given", "by_default", "resources"),
    [
        ({}, "", {"cpu": "10m", "memory": "32Mi"}),
        ({}, "cpu=20m", {"cpu": "20m", "memory": "32Mi"}),
        ({"cpu": 1, "memory": "64Mi"}, "", {"cpu": "1", "memory": "64Mi"}),
        ({"cpu": 2.0}, "cpu=20m,memory=1Gi", {"cpu": "2", "memory": "1Gi"}),
        ({"ephemeral-storage": "16Mi"}, "", {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "16Mi"}),
    ],
)
def test_what_pull_pods_request_is_set_by_the_policy_or_else_by_the_manager(
    given: dict[str, Any], by_default: str, resources: dict[str, str]
) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"targetRef": target, "triggers": {"templateImage": {"pullResources": given}}}
    policy = read_policy({"spec": spec}, by_default)
    assert policy.error == ""
    options = make_run(policy, run_of(running()), Target("x")).options
    assert resources_of(options.pull_resources) == resources
    restart = replace(run_of(running()), image="")
    assert make_run(policy, restart, Target("x")).options.pull_resources == ""


@pytest.mark.parametrize("value", ["", "0", 0, "1.5", 1.5, "1 Gi", True, [], "1Ti"])
def test_a_policy_with_another_quantity_is_invalid(value: object) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"targetRef": target, "triggers": {"templateImage": {"pullResources": {"memory": value}}}}
    why = "spec.triggers.templateImage.pullResources.memory must be a quantity like 50m or 64Mi"
    assert read_policy({"spec": spec}).error == why
