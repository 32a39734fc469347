"""Each trigger is served everywhere: it is read, starts a run, ends it, and is never silent about what it cannot do."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from crrd.core.policy.decide import Decision
from crrd.core.policy.observed import Data, UseKey
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.schema import FIELDS
from crrd.core.policy.triggers import CONFIG_CHANGE, MAX_AGE, TEMPLATE_IMAGE, TRIGGERS, Trigger, role_for, triggers_of
from crrd.core.policy.types import Policy
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.phases import End
from tests.core.policy.test_decide import History, app, data, message, reason

LACKING = TemplateImages((TemplateChange("app", "i:2", before=("i:1",), lacking=(("web-0", "a"),)),))


@dataclass(frozen=True)
class Seen:
    """What is seen of a target with one container."""

    known: Mapping[UseKey, Data] = field(default_factory=dict)  # Configuration
    started: float = 0
    template: TemplateImages | None = None

    def by(self, history: History, seconds: float, **fields: Any) -> Decision:
        container = replace(app(self.started), node="a", ready=True, uses=fields.pop("uses", app().uses))
        return history.look(seconds, self.known, container, template=self.template, **fields)


@dataclass(frozen=True)
class Case:
    """A policy with this trigger wants no run in second 1, one in second 200, and none after that run."""

    value: Any  # Of its field
    before: Seen = Seen()
    then: Seen = Seen()
    after: Seen = Seen(started=205)


FOLLOWED = TemplateImages()
CASES = {
    "templateImage": Case({}, Seen(template=FOLLOWED), Seen(template=LACKING), Seen(started=205, template=FOLLOWED)),
    "configChange": Case({"settle": "10s"}, Seen(data("a")), Seen(data("b", 100)), Seen(data("b", 100), started=205)),
    "schedule": Case({"cron": "2 12 * * *"}),
    "maxAge": Case("10m", Seen(started=-500), Seen(started=-500)),
}


def of(*names: str) -> Policy:
    """A policy with these triggers."""
    meta = {"namespace": "shop", "name": "web", "generation": 1, "creationTimestamp": "2026-01-01T12:00:00Z"}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    triggers = {name: CASES[name].value for name in names}
    return read_policy({"metadata": meta, "spec": {"targetRef": target, "triggers": triggers}})


def with_run(trigger: Trigger) -> History:
    """A policy with this trigger, whose run has begun."""
    case, history = CASES[trigger.name], History(of(trigger.name))
    assert case.before.by(history, 1).run is None
    assert case.then.by(history, 200).run is not None
    return history


every = pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=TRIGGERS)


def test_the_table_is_complete() -> None:
    """Each field of `spec.triggers` has a row, and each row has a case here."""
    assert {each.name for each in FIELDS.values() if each.parent == "spec.triggers"} == TRIGGERS.keys() == CASES.keys()
    attributes = [each.attribute for each in TRIGGERS.values()]
    assert len({*attributes}) == len(attributes)


@every
def test_it_is_read(trigger: Trigger) -> None:
    assert of(trigger.name).error == ""
    assert triggers_of(of(trigger.name)) == [trigger], "one is enough"
    assert triggers_of(of(*TRIGGERS)) == [*TRIGGERS.values()]
    assert trigger.name in of().error, "one of them is needed"


@every
def test_a_run_begins_and_ends(trigger: Trigger) -> None:
    case, history = CASES[trigger.name], with_run(trigger)
    run = history.policy.status.run
    assert run is not None
    assert (run.trigger, run.containers) == (trigger.name, ("app",))
    again = case.then.by(history, 201)
    assert (again.run, reason(again)) == (run, PolicyReason.RUNNING)
    assert read_policy({"status": write_status(again.status)}).status == again.status, "another leader goes on with it"
    history.end(210)
    idle = case.after.by(history, 211)
    assert (idle.run, reason(idle)) == (None, PolicyReason.IDLE)


@every
def test_a_run_ends_if_its_trigger_is_removed(trigger: Trigger) -> None:
    history = with_run(trigger)
    other = next(name for name in TRIGGERS if name != trigger.name)
    history.policy = replace(of(other), generation=2, status=history.policy.status)
    assert Seen().by(history, 201).run is None
    assert history.policy.status.run is not None
    assert history.policy.status.run.message == f"ended because the policy no longer has the trigger {trigger.name}"


@every
def test_a_failed_run_says_what_to_do(trigger: Trigger) -> None:
    case, history = CASES[trigger.name], with_run(trigger)
    history.end(210, End.FAILED, message="web-0 does not start")
    stopped = case.then.by(history, 211)
    assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
    assert stopped.status.run is not None
    resume = f"`kubectl recreate resume {stopped.status.run.name} --retry-failed -n shop`"
    until = trigger.resumed_by.format(resume=resume)
    assert message(stopped).endswith(f"failed: web-0 does not start; no run starts until {until}")


@every
def test_what_a_run_leaves_is_tried_again_or_not_wanted_any_more(trigger: Trigger) -> None:
    case, history = CASES[trigger.name], with_run(trigger)
    if trigger is CONFIG_CHANGE:
        history.end(210, End.LEFT_OUT, left=("web-0",))
    else:
        history.end(210)
    found = case.then.by(history, 211)
    assert found.run is None
    assert reason(found) == (PolicyReason.RETRY if trigger.retried else PolicyReason.IDLE)
    assert message(found).endswith(trigger.retried or "no container has to be restarted")


@pytest.mark.parametrize(
    "trigger", [each for each in TRIGGERS.values() if not each.goes_first], ids=lambda each: each.name
)
def test_a_run_that_gives_way_goes_on_afterwards(trigger: Trigger) -> None:
    case, history = CASES[trigger.name], History(of(trigger.name, "configChange"))
    replace(case.before, known=data("a")).by(history, 1)
    assert replace(case.then, known=data("a")).by(history, 200).run is not None
    newer = replace(case.then, known=data("b", 205)).by(history, 220).run
    assert newer is not None
    assert newer.trigger == "configChange"
    history.end(230)
    again = replace(case.then, known=data("b", 205)).by(history, 231).run
    assert again is not None
    assert again.trigger == trigger.name


def test_a_scheduled_run_that_gives_way_does_not_go_on_after_an_edit() -> None:
    """Only times after the edit count."""
    history = History(of("schedule", "configChange"))
    Seen(data("a")).by(history, 1)
    assert Seen(data("a")).by(history, 200).run is not None
    schedule = read_policy({"spec": {"triggers": {"schedule": {"cron": "3 12 * * *"}}}}).schedule
    history.policy = replace(history.policy, schedule=schedule, generation=2)
    Seen(data("a")).by(history, 202)
    newer = Seen(data("b", 205)).by(history, 220).run
    assert newer is not None
    assert newer.trigger == "configChange"
    history.end(230)
    assert Seen(data("b", 205), started=225).by(history, 231).run is None


@every
def test_its_role_is_asked_for(trigger: Trigger) -> None:
    """All looks and runs need crrd-read-config, except for images alone."""
    assert role_for(of(trigger.name)) == trigger.role
    assert role_for(of(*TRIGGERS)) == "crrd-read-config"


@every
def test_it_is_not_silent_about_a_node_that_is_down(trigger: Trigger) -> None:
    case, history = CASES[trigger.name], History(of(trigger.name))
    case.before.by(history, 1)
    found = case.then.by(history, 200, down={"a": "node a is not ready"})
    assert found.run is not None or reason(found) == PolicyReason.NODES


@every
def test_beside_a_change_that_cannot_come(trigger: Trigger) -> None:
    """A policy whose containers use no configuration is ready, as long as another trigger works."""
    case, history = CASES[trigger.name], History(of("configChange", trigger.name))
    bare: dict[str, Any] = {"uses": (), "names": frozenset({"app"})}
    alone = trigger is CONFIG_CHANGE
    found = replace(case.before, known={}).by(history, 1, **bare)
    assert reason(found) == (PolicyReason.NO_CONFIG if alone else PolicyReason.IDLE)
    assert [each["status"] for each in found.conditions if each["type"] == "Effective"] == ["False"]
    found = replace(case.then, known={}).by(history, 200, **bare)
    assert (found.run is None) == alone


def test_those_that_bring_something_new_come_first() -> None:
    first = [each.goes_first for each in TRIGGERS.values()]
    assert first == sorted(first, reverse=True)


def test_what_another_trigger_has_left_does_not_change_what_a_failed_run_waits_for() -> None:
    history, old = History(of("templateImage", "maxAge")), Seen(started=-500, template=FOLLOWED)
    assert old.by(history, 100).run is not None
    history.end(110)
    assert replace(old, template=LACKING).by(history, 130).run is not None
    history.end(140, End.FAILED, message="web-0 does not start")
    stopped = replace(old, template=LACKING).by(history, 141)
    assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
    assert message(stopped).endswith(TEMPLATE_IMAGE.resumed_by)


def test_what_is_left_longest_is_shown() -> None:
    """Of two triggers whose runs have left something, the one that is tried first."""
    history, old = History(of("templateImage", "maxAge")), Seen(started=-500, template=LACKING)
    assert old.by(history, 1).run is not None
    history.end(20)
    assert old.by(history, 100).run is not None
    history.end(110)
    found = old.by(history, 120)
    assert message(found).endswith(TEMPLATE_IMAGE.retried)
    assert MAX_AGE.retried not in message(found)


@pytest.mark.parametrize("reason", PolicyReason, ids=str)
def test_a_reason_has_a_sentence(reason: PolicyReason) -> None:
    assert reason.sentence
