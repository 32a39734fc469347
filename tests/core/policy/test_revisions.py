"""Which data of ConfigMaps is kept, restored or held back: the tables, and what a policy says about it."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from crrd.core.config.objects import as_json, whole_data, whole_hash
from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import ended, make_run
from crrd.core.policy.decide import Decision
from crrd.core.policy.observed import Data, Stored, UseKey
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.revisions import (
    MOST_BAD,
    MOST_BYTES,
    MOVES,
    NOTHING,
    Facts,
    Keep,
    Restore,
    State,
    revision_name,
    state_of,
)
from crrd.core.policy.stored import LABEL_KEPT, read_stored, restore_body, revision_body
from crrd.core.policy.types import BadRevision, ConfigChange, Judge, OnFailure, Policy
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Amount, Target
from tests.core.policy.test_decide import KEY, OTHER, PLAIN, History, app, at, data, message, reason, text

POLICY = replace(PLAIN, on_failure=OnFailure.RESTORE)
PODS = (app(pod="web-0", ready=True), app(pod="web-1", ready=True))
GOOD, BAD = "good", "bad"


def present(value: str, version: int, changed: float | None = None, **more: Any) -> dict[UseKey, Data]:
    found = Data(value, None if changed is None else at(changed), "uid", whole=f"all of {value}", version=str(version))
    return {KEY: replace(found, **more)}


def stored(*values: str, name: str = "cfg", policy: Policy = POLICY) -> tuple[Stored, ...]:
    wholes = (f"all of {value}" for value in values)
    return tuple(Stored(revision_name(policy, name, whole), name, whole) for whole in wholes)


def kept(policy: Policy = POLICY) -> History:
    """A policy whose good data is kept."""
    history = History(policy)
    history.look(1, present(GOOD, 1), *PODS, stored=())
    history.look(2, present(GOOD, 1), *PODS, stored=stored(GOOD))
    return history


def failed(history: History | None = None, **found: Any) -> Decision:
    """The run for bad data has failed. Return the look after that."""
    history = history or kept()
    known = {"stored": stored(GOOD), **found}
    history.look(100, present(BAD, 2, 99), *PODS, **known)
    assert history.look(109, present(BAD, 2, 99), *PODS, **known).run is not None
    history.end(120, End.FAILED, message="it broke")
    return history.look(121, present(BAD, 2, 99), *PODS, **known)


def condition(decision: Decision, kind: str = "Restorable") -> Mapping[str, Any]:
    return next((each for each in decision.conditions if each["type"] == kind), {})


def test_an_edit_of_other_keys_during_the_run_is_not_lost_and_that_is_said() -> None:
    """It may be of somebody else, and all of the object would be written back."""
    history = kept()
    noted = {KEY: replace(present(BAD, 3, 99)[KEY], whole="all of bad, and a note")}
    history.look(100, present(BAD, 2, 99), *PODS, stored=stored(GOOD))
    run = history.look(109, present(BAD, 2, 99), *PODS, stored=stored(GOOD)).run
    assert run is not None
    assert condition(history.look(115, noted, *PODS, stored=stored(GOOD)))["status"] == "True"
    history.end(120, End.FAILED, message="it broke")
    found = history.look(121, noted, *PODS, stored=stored(GOOD))
    assert (reason(found), found.data) == (PolicyReason.FAILED, NOTHING)
    assert condition(found)["message"] == (
        f"ConfigMap cfg: other keys have changed since run {run.name} began, and would be lost: correct the data"
    )


@pytest.mark.parametrize("again", [False, True])
def test_bad_data_that_no_container_uses_any_more_holds_nothing_and_is_left_alone(again: bool) -> None:
    """A rollout has brought pods that use another ConfigMap. The manager still reads the one with the bad data."""
    history, other = kept(), Reference(Kind.CONFIG_MAP, "other", Use.ENV_FROM)
    failed(history)
    if again:  # written again, or the manager may not update it
        written = history.look(123, present(BAD, 3, 122), *PODS, stored=stored(GOOD))
        assert reason(written) == PolicyReason.BAD_REVISION
    pods = [replace(app(200, each.pod, "app", other), ready=True) for each in PODS]

    def of_both(value: str, changed: float | None = None) -> dict[UseKey, Data]:
        uses_now = replace(present(value, 9, changed)[KEY], uid="uid2")
        return present(BAD, 3, 122) | {("app", OTHER[1]): uses_now}

    found = history.look(210, of_both("x"), *pods, stored=stored(GOOD))
    assert (reason(found), found.data.restore) == (PolicyReason.IDLE, ())
    assert "cfg" not in condition(found)["message"]
    history.look(300, of_both("y", 299), *pods, stored=stored(GOOD))
    run = history.look(310, of_both("y", 299), *pods, stored=stored(GOOD)).run
    assert run is not None
    assert "ConfigMap other" in run.reason


def test_a_deletion_after_a_restore_is_an_ordinary_change_with_steps_and_a_judgement() -> None:
    """Also for a policy whose kept data was written back before."""
    pods = (*PODS, app(pod="web-2", ready=True))
    policy = replace(POLICY, judge=Judge(60), budget=replace(POLICY.budget, steps=(Amount(1),)))
    history = kept(policy)
    failed(history)
    history.look(123, present(GOOD, 3, 122), *PODS, stored=stored(GOOD))
    assert history.look(133, present(GOOD, 3, 122), *pods, stored=stored(GOOD)).run is None
    gone = {KEY: Data("of no data", None)}
    history.look(1000, gone, *pods, stored=stored(GOOD))
    run = history.look(1010, gone, *pods, stored=stored(GOOD)).run
    assert run is not None
    assert (run.back, run.steps, run.reason) == (False, "1", "policy web: ConfigMap cfg changed")
    assert make_run(history.policy, run, Target("web")).options.judge == 60


def test_a_deletion_that_fails_is_not_taken_back_and_that_is_said() -> None:
    history, gone = kept(), {KEY: Data("of no data", None)}
    history.look(100, gone, *PODS, stored=stored(GOOD))
    assert history.look(110, gone, *PODS, stored=stored(GOOD)).run is not None
    history.end(120, End.FAILED, message="it broke")
    found = history.look(121, gone, *PODS, stored=stored(GOOD))
    assert (reason(found), found.data) == (PolicyReason.FAILED, NOTHING)
    assert (condition(found)["status"], condition(found)["message"]) == (
        "False",
        "ConfigMap cfg: it does not exist, and neither its creation nor its deletion is taken back",
    )


def test_data_that_no_container_uses_any_more_is_not_kept_as_good() -> None:
    """Its run has failed, and could not be undone. After that, its container was removed."""
    history, other = kept(), Reference(Kind.CONFIG_MAP, "other", Use.ENV_FROM)
    failed(history, stored=())
    pod = replace(app(200, "web-2", "side", other), ready=True)
    found = history.look(210, present(BAD, 2, 99), pod, stored=())
    assert (reason(found), found.data.keep) == (PolicyReason.IDLE, ())


class TestStates:
    def test_each_combination_of_facts_has_a_state(self) -> None:
        found = {state_of(Facts(*values)) for values in product((False, True), repeat=9)}
        assert found == {*State}

    def test_what_was_not_read_at_once_or_lacks_a_key_is_unknown(self) -> None:
        assert state_of(Facts(False, *[True] * 8)) is State.UNKNOWN

    def test_nothing_is_written_or_restarted_for_data_that_is_not_known_as_bad(self) -> None:
        for values in product((False, True), repeat=9):
            facts = Facts(*values)
            if state_of(facts) is State.RESTORING:
                assert facts.is_open
                assert facts.restorable
            if state_of(facts) is State.GOOD:
                assert facts.ready
                assert not any((facts.pending, facts.bad, facts.brought))

    def test_every_move_has_a_cause(self) -> None:
        assert all(MOVES.values())
        assert {one for move in MOVES for one in move} == {*State}


class TestKeep:
    def test_data_that_all_containers_run_with_is_kept_and_then_noted(self) -> None:
        history = History(POLICY)
        first = history.look(1, present(GOOD, 1), *PODS, stored=())
        whole = f"all of {GOOD}"
        assert first.data.keep == (Keep("cfg", whole, revision_name(POLICY, "cfg", whole)),)
        assert condition(first)["message"] == "ConfigMap cfg: no data of it is kept yet (Good)"
        second = history.look(2, present(GOOD, 1), *PODS, stored=stored(GOOD))
        assert (second.data, condition(second)["status"]) == (NOTHING, "True")
        assert second.status.revisions[0].kept == whole

    @pytest.mark.parametrize("pod", [app(), app(started=5, ready=True)])
    def test_but_not_while_one_is_not_ready_or_has_other_data(self, pod: Any) -> None:
        history = History(POLICY)
        changed = 4 if pod.ready else None
        found = history.look(6, present(GOOD, 1, changed), *PODS[1:], pod, stored=())
        assert found.data.keep == ()

    @pytest.mark.parametrize(
        ("name", "more", "why"),
        [
            ("cfg", {"immutable": True}, "it is immutable, so new data has another name"),
            ("web-7h2k9d4m5t", {}, "its name has a hash of its data, so new data has another name"),
            (
                "cfg",
                {"size": MOST_BYTES + 1},
                f"its data has {MOST_BYTES + 1} bytes, and at most {MOST_BYTES} are kept",
            ),
        ],
    )
    def test_what_is_never_kept_is_said(self, name: str, more: Mapping[str, Any], why: str) -> None:
        use = Reference(Kind.CONFIG_MAP, name, Use.ENV_FROM)
        key = ("app", Part(Kind.CONFIG_MAP, name, ("data.*",)))
        found = History(POLICY).look(
            1, {key: present(GOOD, 1, **more)[KEY]}, app(-3600, "web-0", "app", use, ready=True), stored=()
        )
        assert found.data.keep == ()
        assert condition(found)["message"].startswith(f"ConfigMap {name}: {why}")

    def test_secrets_are_named(self) -> None:
        policy = replace(POLICY, config=ConfigChange(10, secrets=True))
        use, key = Reference(Kind.SECRET, "tls", Use.ENV_FROM), ("app", Part(Kind.SECRET, "tls", ("data.*",)))
        pod = app(-3600, "web-0", "app", use, ready=True)
        found = History(policy).look(1, {key: Data("x", None, "uid", version="1")}, pod, stored=())
        assert condition(found)["message"] == "Secret tls: Secrets are not kept"
        assert found.status.revisions == ()

    def test_older_data_is_deleted_once_the_status_has_newer(self) -> None:
        history = kept()
        new = present("new", 2, 99)
        pods = (app(110, ready=True), app(111, "web-1", ready=True))
        history.look(100, new, *PODS, stored=stored(GOOD))
        first = history.look(112, new, *pods, stored=stored(GOOD))
        assert [each.hash for each in first.data.keep] == ["all of new"], "also if nobody needed a run for that"
        second = history.look(113, new, *pods, stored=stored(GOOD, "new"))
        assert second.data == NOTHING, "the status does not have it yet"
        third = history.look(114, new, *pods, stored=stored(GOOD, "new"))
        assert third.data.forget == (stored(GOOD)[0].name,)

    def test_data_of_an_object_that_no_container_uses_any_more_is_deleted(self) -> None:
        history, use = kept(), Reference(Kind.CONFIG_MAP, "other", Use.ENV_FROM)
        pods = tuple(app(200, pod, "app", use, ready=True) for pod in ("web-0", "web-1"))
        other = {OTHER: present(GOOD, 5)[KEY]}
        first = history.look(210, other, *pods, stored=stored(GOOD))
        assert [each.name for each in first.status.revisions] == ["other"]
        assert first.data.forget == (), "the status does not say so yet"
        second = history.look(211, other, *pods, stored=stored(GOOD))
        assert second.data.forget == (stored(GOOD)[0].name,)

    def test_but_not_while_the_object_is_deleted_and_used(self) -> None:
        """Somebody may create it anew, as `kubectl replace --force` does, and the new data may be bad."""
        history = kept()
        for seconds in (60, 61, 62):
            missing = ("ConfigMap cfg not found",)
            found = history.look(seconds, {KEY: Data("", None)}, *PODS, stored=stored(GOOD), missing=missing)
            assert found.data.forget == ()
        found = failed(history)
        assert reason(found) == "Restoring"
        (restore,) = history.look(122, present(BAD, 2, 99), *PODS, stored=stored(GOOD)).data.restore
        assert (restore.kept, restore.revision) == ("all of good", stored(GOOD)[0].name)

    def test_what_the_status_does_not_know_is_not_deleted(self) -> None:
        """Somebody may have restored the policy without its status."""
        found = History(POLICY).look(1, present(BAD, 1), app(), stored=stored(GOOD))
        assert found.data == NOTHING

    def test_without_restore_nothing_is_kept_any_more(self) -> None:
        history = kept()
        history.policy = replace(history.policy, on_failure=OnFailure.HALT)
        found = history.look(3, present(GOOD, 1), *PODS, stored=stored(GOOD))
        assert found.data.forget == (stored(GOOD)[0].name,)
        assert found.status.revisions
        assert condition(found) == {}
        assert history.look(4, present(GOOD, 1), *PODS, stored=()).status.revisions == ()

    def test_fields_that_are_dropped_stop_all_of_it(self) -> None:
        found = kept().look(3, present(GOOD, 1), *PODS, stored=stored(BAD), dropped=("status.bad",))
        assert found.data == NOTHING

    def test_kept_data_that_is_gone_is_said_while_it_is_needed(self) -> None:
        history = kept()
        found = history.look(100, present(BAD, 2, 99), *PODS, stored=())
        name = revision_name(POLICY, "cfg", "all of good")
        assert condition(found)["message"] == f"ConfigMap cfg: ControllerRevision {name} is gone"


class TestRestore:
    def test_first_the_status_and_then_the_data(self) -> None:
        history = kept()
        first = failed(history)
        assert first.status.bad == (BadRevision(
            Kind.CONFIG_MAP, "cfg", BAD, text(99), first.status.run.name if first.status.run else "", "2", ("data.*",)
        ),)  # fmt: skip
        assert (first.data.restore, first.run) == ((), None), "it is not written yet"
        assert reason(first) == "Restoring"
        second = history.look(122, present(BAD, 2, 99), *PODS, stored=stored(GOOD))
        (restore,) = second.data.restore
        assert restore == Restore("cfg", "all of bad", "2", "all of good", stored(GOOD)[0].name)

    def test_then_only_containers_with_the_bad_data_get_the_last_good_data_back(self) -> None:
        history = kept(replace(POLICY, budget=replace(POLICY.budget, min_interval=3600)))
        failed(history)
        pods = (app(115, ready=False), PODS[1])
        found = history.look(123, present(GOOD, 3, 122), *pods, stored=stored(GOOD))
        assert (found.status.bad[0].restored, found.run, found.wake_at) == (True, None, at(132))
        back = history.look(132, present(GOOD, 3, 122), *pods, stored=stored(GOOD))
        assert back.run is not None, "it does not wait for minInterval"
        assert back.run.back
        assert back.run.objects == (f"ConfigMap cfg (data.*) {text(132)} {text(97)}",)
        assert back.run.reason == "policy web: ConfigMap cfg has its last good data again"
        history.end(140)
        over = history.look(141, present(GOOD, 3, 122), app(135, ready=True), PODS[1], stored=stored(GOOD))
        assert (reason(over), condition(over)["status"]) == ("Idle", "True")

    def test_what_this_process_has_written_counts_before_the_watch_shows_it(self) -> None:
        history = kept()
        failed(history)
        found = history.look(122, present(BAD, 9, 99), *PODS, stored=stored(GOOD), written=frozenset({("cfg", "2")}))
        assert (found.status.bad[0].restored, reason(found)) == (True, "BadRevision")

    def test_bad_data_restarts_nothing_not_even_for_the_schedule(self) -> None:
        history = kept(replace(POLICY, max_age=600))
        failed(history)
        history.look(123, present(GOOD, 3, 122), *PODS, stored=stored(GOOD))
        again = history.look(4000, present(BAD, 4, 3999), *PODS, stored=stored(GOOD))
        assert (reason(again), again.run, again.data) == ("BadRevision", None, NOTHING)
        assert message(again).startswith("ConfigMap cfg (data.*) has the data with which run ")
        assert message(again).endswith("to give it to the pods in spite of that, set spec.onFailure to Halt")
        assert history.look(4001, present("new", 5, 4001), *PODS, stored=stored(GOOD)).run is not None

    def test_not_over_data_of_another_writer(self) -> None:
        """A key changes that no container uses, while the run is in progress."""
        history = kept()
        history.look(100, present(BAD, 2, 99), *PODS, stored=stored(GOOD))
        history.look(109, present(BAD, 2, 99), *PODS, stored=stored(GOOD))
        other = present(BAD, 3, 99, whole="of another team")
        history.look(115, other, *PODS, stored=stored(GOOD))
        history.end(120, End.FAILED)
        found = history.look(121, other, *PODS, stored=stored(GOOD))
        assert (reason(found), found.status.bad) == ("RunFailed", ())

    @pytest.mark.parametrize(
        "found", [{"stored": ()}, {"stored": None, "unrestorable": "the manager may not patch configmaps"}]
    )
    def test_not_without_kept_data_or_rights(self, found: Any) -> None:
        decision = failed(**found)
        assert (reason(decision), decision.status.bad, decision.data.restore) == ("RunFailed", (), ())
        assert condition(decision)["status"] == "False"
        assert found.get("unrestorable", "") in condition(decision)["message"]

    def test_not_after_other_runs_have_failed(self) -> None:
        history = kept(replace(POLICY, max_age=600))
        assert history.look(4000, present(GOOD, 1), *PODS, stored=stored(GOOD)).run is not None
        history.end(4010, End.FAILED)
        assert history.look(4011, present(GOOD, 1), *PODS, stored=stored(GOOD)).status.bad == ()

    def test_not_by_a_policy_that_only_halts(self) -> None:
        halts = failed(kept(replace(POLICY, on_failure=OnFailure.HALT)))
        assert (reason(halts), halts.status.bad) == ("RunFailed", ())

    def test_what_is_refused_is_said(self) -> None:
        history = kept()
        failed(history)
        refused = {"cfg": "its data cannot be restored: no"}
        found = history.look(122, present(BAD, 2, 99), *PODS, stored=stored(GOOD), refused=refused)
        assert message(found).endswith("back; its data cannot be restored: no")
        assert condition(found)["message"] == "ConfigMap cfg: its data cannot be restored: no"

    def test_a_version_that_was_not_restored_in_time_stays_bad(self) -> None:
        history = kept()
        failed(history)
        found = history.look(122, present(BAD, 3, 99), *PODS, stored=stored(GOOD))
        assert (reason(found), found.data.restore, found.status.bad[0].restored) == ("BadRevision", (), False)

    def test_containers_that_have_all_started_with_bad_data_do_not_make_it_good(self) -> None:
        history = kept()
        failed(history)
        pods = (app(110, ready=True), app(111, "web-1", ready=True))
        found = history.look(300, present(BAD, 3, 99), *pods, stored=stored(GOOD))
        assert (reason(found), found.data.keep, found.status.config[0].done) == ("BadRevision", (), GOOD)
        assert found.status.run is not None
        done = ended(history.policy, found.status.run, Outcome(End.DONE), message="", now=at(301))
        assert done.config[0].done == GOOD

    def test_only_so_many_are_remembered(self) -> None:
        history = kept()
        old = BadRevision(Kind.CONFIG_MAP, "cfg", "x", text(0), "run", "1")
        many = tuple(replace(old, hash=str(number)) for number in range(MOST_BAD))
        history.policy = replace(history.policy, status=replace(history.policy.status, bad=many))
        found = failed(history)
        assert [each.hash for each in found.status.bad] == [*(str(each) for each in range(1, MOST_BAD)), BAD]

    def test_while_a_read_overlaps_with_a_change_nothing_is_known(self) -> None:
        history, side = kept(), ("side", KEY[1])
        pods = (*PODS, app(name="side", ready=True))
        found = {**present(GOOD, 1), side: present("new", 2)[KEY]}
        later = history.look(3, found, *pods, stored=stored(GOOD))
        assert later.status.revisions[0].hash == "all of good"
        assert later.data == NOTHING


class TestStored:
    OBJ: Mapping[str, Any] = {"data": {"A": "1"}, "binaryData": {"B": "AA=="}, "metadata": {"name": "cfg"}}

    def test_a_revision_has_all_data_and_says_of_what(self) -> None:
        data = whole_data(self.OBJ)
        keep = Keep("cfg", whole_hash(data), "crrd-cfg-1")
        body = revision_body(POLICY, keep, data)
        assert whole_data(body["data"]) == data
        assert read_stored(body) == Stored("crrd-cfg-1", "cfg", whole_hash(data))
        assert body["metadata"]["labels"] == {LABEL_KEPT: POLICY.uid}
        assert body["metadata"]["ownerReferences"][0]["controller"] is True
        assert len(as_json(data)) == len('{"binaryData": {"B": "AA=="}, "data": {"A": "1"}}')

    def test_data_that_is_empty_counts_as_none(self) -> None:
        assert whole_hash(whole_data({"data": {}})) == whole_hash(whole_data({}))

    def test_the_patch_removes_what_was_not_there(self) -> None:
        now = {"data": {"A": "2", "NEW": "x"}, "binaryData": {"C": "AA=="}}
        body = restore_body(now, whole_data(self.OBJ), "7")
        assert body == {
            "metadata": {"resourceVersion": "7"},
            "data": {"A": "1", "NEW": None},
            "binaryData": {"B": "AA==", "C": None},
        }
        assert restore_body({}, {"data": {"A": "1"}}, "7") == {"metadata": {"resourceVersion": "7"}, "data": {"A": "1"}}


def test_a_judgement_of_no_makes_data_bad_although_all_pods_are_ready() -> None:
    """And the way back has neither steps nor a judgement."""
    judge = Judge(30, 0, 3, ())
    history = kept(
        replace(POLICY, judge=judge, budget=replace(POLICY.budget, steps=(Amount(1), Amount(100, percent=True))))
    )
    history.look(100, present(BAD, 2, 99), *PODS, stored=stored(GOOD))
    first = history.look(109, present(BAD, 2, 99), *PODS, stored=stored(GOOD)).run
    assert first is not None
    assert first.steps
    history.end(120, End.HALTED, message="no")
    pods = (app(110, ready=True), app(111, "web-1", ready=True))
    assert reason(history.look(121, present(BAD, 2, 99), *pods, stored=stored(GOOD))) == "Restoring"
    history.look(123, present(GOOD, 3, 122), *pods, stored=stored(GOOD))
    back = history.look(132, present(GOOD, 3, 122), *pods, stored=stored(GOOD)).run
    assert back is not None
    assert (back.back, back.steps) == (True, "")
    options = make_run(history.policy, back, Target("web")).options
    assert (options.steps, options.judge) == ((), 0)


def test_a_run_that_was_judged_does_not_count_as_repaired_because_its_pods_are_ready() -> None:
    history = History()
    history.look(1, data("a"), *PODS)
    history.look(100, data("b", 99), *PODS)
    run = history.look(109, data("b", 99), *PODS).run
    assert run is not None
    history.end(120, End.HALTED, message="no")
    pods = (app(110, ready=True), app(111, "web-1", ready=True))
    assert reason(history.look(300, data("b", 99), *pods)) == "RunFailed"
    history.look(400, data("a", 399), *PODS)
    assert reason(history.look(410, data("a", 399), *PODS)) == "Idle", "taken back"


def test_without_the_trigger_there_is_nothing_to_restore() -> None:
    found = History(replace(POLICY, config=None, max_age=600)).look(1, {}, *PODS, names=frozenset({"app"}))
    assert condition(found, "Effective")["reason"] == "NothingToRestore"
    assert condition(found) == {}


def test_an_image_that_comes_with_restored_data_is_one_run() -> None:
    """It goes back in its data, and not in its image: it undoes no run."""
    policy = replace(POLICY, template_image=True)
    history, kept_for = History(policy), stored(GOOD, policy=policy)
    history.look(1, present(GOOD, 1), *PODS, stored=(), template=TemplateImages())
    history.look(2, present(GOOD, 1), *PODS, stored=kept_for, template=TemplateImages())
    failed(history, template=TemplateImages(), stored=kept_for)
    new = TemplateChange("app", "i:2", ("i:1",), (("web-0", "a"), ("web-1", "b")), "rest")
    known = {"stored": kept_for, "template": TemplateImages((new,))}
    pods = (app(115, ready=True), PODS[1])
    history.look(122, present(BAD, 2, 99), *pods, stored=kept_for, template=TemplateImages())
    history.look(123, present(GOOD, 3, 122), *pods, **known)
    first = history.look(132, present(GOOD, 3, 122), *pods, **known).run
    assert first is not None
    assert (first.image, first.back) == ("i:2", True)
    assert history.look(133, present(GOOD, 3, 122), *pods, **known).run == first
    half = {**known, "template": TemplateImages((replace(new, lacking=(("web-1", "b"),)),))}
    assert history.look(140, present(GOOD, 3, 122), app(135, ready=True), PODS[1], **half).run == first
    both, done = (app(135, ready=True), app(136, "web-1", ready=True)), {**known, "template": TemplateImages()}
    assert history.look(145, present(GOOD, 3, 122), *both, **done).run == first
