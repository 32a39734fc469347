"""The order of the runs of several policies for one changed object."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.config.references import Kind
from crrd.core.policy.decide import Decision, decide
from crrd.core.policy.observed import Look, Observed, Peer, Stopped
from crrd.core.policy.order import BLIND, circle, past_first_step, peer_of, refused_by, unknown, wait_for_others
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import BadRevision, ConfigChange, PolicyStatus, RunRecord, UsedObject
from crrd.core.rollout.parts import Part, PartState
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Options
from tests.core.policy.test_decide import PLAIN, START, History, app, data, message, reason, text

CFG, OTHER = (Kind.CONFIG_MAP, "cfg"), (Kind.CONFIG_MAP, "other")
RUN = RunRecord("r", "configChange", ("app",), text(10), text(10), 1, objects=(f"ConfigMap cfg (data.*) {text(10)}",))
UP_TO_DATE = Peer("proxy", uses=frozenset({CFG}), seen=frozenset({CFG}))
BEGUN = replace(UP_TO_DATE, runs=frozenset({CFG}))


def waits(peer: Peer, *after: str, run: RunRecord = RUN) -> str:
    return wait_for_others(Look(replace(PLAIN, after=after), Observed(peers=(peer,)), START), run)


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (UP_TO_DATE, False),
        (replace(UP_TO_DATE, seen=frozenset()), True),  # it has not looked at the change yet
        (replace(UP_TO_DATE, wants=frozenset({CFG})), True),
        (replace(UP_TO_DATE, wants=frozenset({OTHER}), runs=frozenset({OTHER})), False),
        (BEGUN, True),
        (replace(BEGUN, past_first_step=True), True),
        (replace(UP_TO_DATE, wants=frozenset({CFG}), active=False), False),
        (replace(UP_TO_DATE, uses=frozenset(), seen=frozenset()), False),
    ],
)
def test_a_policy_in_after_comes_first(peer: Peer, expected: bool) -> None:
    assert bool(waits(peer, "proxy")) is expected
    assert waits(peer, "proxy", run=replace(RUN, back=True)) == "", "the way back waits for none"


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (replace(UP_TO_DATE, wants=frozenset({CFG})), False),
        (replace(UP_TO_DATE, seen=frozenset()), False),
        (BEGUN, True),
        (replace(BEGUN, past_first_step=True), False),
        (replace(BEGUN, active=False), False),
        (replace(UP_TO_DATE, runs=frozenset({OTHER})), False),
    ],
)
def test_any_other_one_that_has_begun_does_its_first_step_first(peer: Peer, expected: bool) -> None:
    assert bool(waits(peer)) is expected
    assert waits(peer, run=replace(RUN, objects=())) == "", "a run of the schedule concerns no object"


def test_nobody_begins_with_data_that_a_run_of_another_one_has_failed_with() -> None:
    peer = replace(UP_TO_DATE, refused=frozenset({CFG}))
    assert waits(peer)
    assert waits(replace(peer, refused=frozenset({OTHER}))) == ""
    assert waits(replace(peer, active=False)) == ""
    assert waits(peer, run=replace(RUN, back=True)) == ""


HALTED = replace(RUN, finished=text(20), failed=True, halted=True, hashes=("h",))
RECORD = UsedObject("app", *CFG, "h", text(5), keys=("data.*",))


@pytest.mark.parametrize(
    ("run", "since", "refused"),
    [
        (HALTED, 5, True),
        (HALTED, 11, True),  # the same data, written again
        (replace(HALTED, hashes=("other",)), 5, False),
        (replace(HALTED, hashes=("",)), 5, False),  # it had changed again before the end
        (replace(HALTED, halted=False), 5, True),
        (replace(HALTED, generation=2), 5, True),  # an edit lets this policy try it once more, and no other one
        (replace(HALTED, back=True), 5, False),  # the last good data
        (replace(HALTED, failed=False), 5, False),
        (replace(HALTED, objects=(f"ConfigMap cfg (KEY) {text(4)}",)), 5, False),
        (replace(HALTED, objects=(f"ConfigMap cfg (KEY) {text(10)}",)), 5, True),  # another part of the same edit
    ],
)
def test_no_other_policy_should_bring_the_data_of_a_failed_run(run: RunRecord, since: int, refused: bool) -> None:
    record = replace(RECORD, since=text(since))
    for status in (PolicyStatus((record,), run), PolicyStatus((record,), failed=(run,) if run.failed else ())):
        policy = replace(PLAIN, status=status)
        assert refused_by(policy) == ({CFG} if refused else set())
        done = replace(status, config=(replace(record, done="h"),))
        assert refused_by(replace(policy, status=done)) == set(), "all containers have it"
        bad = BadRevision(*CFG, "h", text(5), "r", "1", ("data.*",))
        assert refused_by(replace(policy, status=replace(status, bad=(bad,)))) == {CFG}


@pytest.mark.parametrize(
    ("stopped", "expected"),
    [
        (PolicyReason.UNREADABLE, True),
        (PolicyReason.UNPATCHABLE, True),
        (PolicyReason.TARGET, False),  # it has no pod that could lack the change
    ],
)
def test_a_policy_in_after_that_may_not_look_at_its_objects_is_waited_for(
    stopped: PolicyReason, *, expected: bool
) -> None:
    policy = replace(PLAIN, name="proxy", status=PolicyStatus((replace(RECORD, done="h"),)))
    found = decide(policy, Observed(stopped=Stopped(stopped, "")), START)
    peer = peer_of(policy, found.claims, {}, past_first_step=False)
    assert bool(waits(peer, "proxy")) is expected
    assert waits(peer) == ""
    for claims in (found.claims, None):
        ignores = replace(policy, config=ConfigChange(10, ignore=("cfg",)))
        assert waits(peer_of(ignores, claims, {}, past_first_step=False), "proxy") == "", "it does not count any more"


def test_bad_data_of_a_policy_that_may_not_look_again_holds_nobody_for_ever() -> None:
    """It was restored before that."""
    bad = BadRevision(*CFG, "bad", text(5), "r", "1", ("data.*",), restored=True)
    policy = replace(PLAIN, status=PolicyStatus((replace(RECORD, done="h"),), bad=(bad,)))
    assert peer_of(policy, None, {}, past_first_step=False).refused == {CFG}, "who leads next has to look at it first"
    assert peer_of(policy, BLIND, {}, past_first_step=False).refused == set()


def test_data_that_does_not_count_any_more_is_not_refused() -> None:
    policy = replace(PLAIN, status=PolicyStatus((RECORD,), HALTED))
    assert refused_by(policy) == {CFG}
    assert refused_by(replace(policy, generation=2, config=ConfigChange(10, ignore=("cfg",)))) == set()
    assert refused_by(replace(policy, generation=2, config=None, max_age=600)) == set()


def test_it_says_for_what_it_waits() -> None:
    stopped = replace(UP_TO_DATE, wants=frozenset({CFG}), failed="proxy-1")
    assert waits(stopped, "proxy") == (
        "policy proxy, whose run proxy-1 has failed, which comes first (spec.after) for ConfigMap cfg"
    )
    refused = replace(UP_TO_DATE, refused=frozenset({CFG}))
    assert waits(refused) == (
        "policy proxy, of which a run has failed with this ConfigMap cfg: correct the data, repair its pods, or "
        "suspend that policy"
    )
    assert waits(BEGUN) == "policy proxy, whose run for ConfigMap cfg has not finished its first step"


@pytest.mark.parametrize(
    ("after", "others", "expected"),
    [
        ((), {}, ()),
        (("web",), {}, ("web", "web")),
        (("a",), {"a": ()}, ()),
        (("a",), {"a": ("b",), "b": ("web",)}, ("web", "a", "b", "web")),
        (("a",), {"a": ("b",), "b": ("a",)}, ()),  # a circle of others, for which it waits
        (("a", "b"), {"a": ("c",), "b": ("c",), "c": ()}, ()),
    ],
)
def test_circles_are_found(
    after: tuple[str, ...], others: dict[str, tuple[str, ...]], expected: tuple[str, ...]
) -> None:
    peers = tuple(Peer(name, theirs) for name, theirs in others.items())
    assert circle(Look(replace(PLAIN, after=after), Observed(peers=peers), START)) == expected


def test_unknown_names_are_found() -> None:
    look = Look(replace(PLAIN, after=("a", "b", "web")), Observed(peers=(Peer("a"),)), START)
    assert unknown(look) == ("b",)


def change(after: tuple[str, ...], **found: Any) -> tuple[History, Decision]:
    history = History(replace(PLAIN, after=after))
    history.look(1, data("a"))
    history.look(100, data("b", 99), **found)
    return history, history.look(110, data("b", 99), **found)


def test_a_run_waits_and_then_begins() -> None:
    history, found = change(("proxy",), peers=(BEGUN,))
    assert (reason(found), found.run, found.claims.waits) == (PolicyReason.AFTER, None, True)
    assert found.claims.wants == {CFG}
    assert message(found) == "waiting for policy proxy, which comes first (spec.after) for ConfigMap cfg"
    begun = history.look(120, data("b", 99), peers=(UP_TO_DATE,))
    assert begun.run is not None
    assert (begun.claims.runs, begun.claims.waits) == (frozenset({CFG}), False)
    assert history.look(121, data("b", 99), peers=(BEGUN,)).run == begun.run, "what has begun goes on"


def test_a_run_is_not_continued_with_newer_data_that_has_to_wait() -> None:
    history, found = change((), peers=(UP_TO_DATE,))
    assert found.run is not None
    history.look(120, data("c", 120), peers=(BEGUN,))
    assert reason(history.look(130, data("c", 120), peers=(BEGUN,))) == PolicyReason.AFTER


def test_a_circle_starts_nothing_and_is_said() -> None:
    history, found = change(("proxy",), peers=(replace(UP_TO_DATE, after=("web",)),))
    assert (reason(found), found.run) == (PolicyReason.CIRCLE, None)
    assert "web after proxy after web" in message(found)
    idle = history.look(111, data("b", 99), app(111), peers=(replace(UP_TO_DATE, after=("web",)),))
    assert reason(idle) == PolicyReason.CIRCLE, "also before a change"


def test_a_name_that_no_policy_has_is_said_and_does_not_count() -> None:
    _, found = change(("proxi",))
    assert found.run is not None
    effective = next(each for each in found.conditions if each["type"] == "Effective")
    assert (effective["status"], effective["reason"]) == ("False", "PolicyNotFound")
    assert "spec.after names proxi" in effective["message"]


def row(stage: Stage) -> Row:
    return Row("web-0", "u", stage)


@pytest.mark.parametrize(
    ("options", "plan", "expected"),
    [
        (Options(("app",)), Plan((row(Stage.SETTLING),)), False),
        (Options(("app",)), Plan((row(Stage.DONE), row(Stage.WAITING))), True),
        (Options(("app",)), Plan((row(Stage.DONE), row(Stage.FAILED))), False),
        (Options(("app",), steps=(1,)), Plan((row(Stage.DONE),)), False),
        (Options(("app",), judge=60), Plan((row(Stage.DONE),), part=Part(state=PartState.JUDGING)), False),
        (Options(("app",), judge=60), Plan((row(Stage.DONE),), part=Part(state=PartState.OVER)), True),
        (Options(("app",), steps=(1,)), Plan((row(Stage.DONE),), part=Part(state=PartState.ASKING)), True),
        (Options(("app",), steps=(1,)), Plan((row(Stage.DONE),), part=Part(state=PartState.PAUSING)), True),
        (Options(("app",), steps=(1,)), Plan((row(Stage.WAITING),), part=Part(number=1)), True),
        (Options(("app",), steps=(1,)), Plan((row(Stage.FAILED),), part=Part(number=1)), False),
    ],
)
def test_when_others_may_begin(options: Options, plan: Plan, *, expected: bool) -> None:
    assert past_first_step(options, plan) is expected
