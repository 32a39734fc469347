"""`action: ReloadOrRestart`: who reloads and who restarts, and what the records know after that.

Nothing shows on a pod that its container has reloaded. So the tables here are about the status alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.config.parts import Part, PartChange
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.config import Due, brings, due
from crrd.core.policy.course import make_run
from crrd.core.policy.decide import Decision
from crrd.core.policy.observed import Data, Look, Observed, Running, UseKey
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.records import make_image_record, make_record, name_of
from crrd.core.policy.types import ConfigAction, ConfigChange, Judge, PolicyStatus, Schedule, UsedObject, Window
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.image.following import TemplateChange
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Target
from tests.core.policy.test_decide import FILE, PLAIN, USE, History, at, data, message, reason, text

POLICY = replace(PLAIN, config=ConfigChange(10, action=ConfigAction.RELOAD_OR_RESTART))
KEY: UseKey = ("app", Part(Kind.CONFIG_MAP, "cfg"))
ENV: UseKey = ("app", Part(Kind.CONFIG_MAP, "other", ("data.*",)))
SIDE: UseKey = ("side", Part(Kind.CONFIG_MAP, "cfg", ("data.*",)))
OF_ENV = replace(USE, name="other")
SUB_PATH = Reference(Kind.CONFIG_MAP, "cfg", Use.SUB_PATH)
UNDECLARED = "its pod does not declare a reload"
DOWN = {"b": "node b is not ready"}


def app(pod: str = "web-0", started: float = -3600, *uses: Reference, name: str = "app", **changes: Any) -> Running:
    made = Running(pod, name, at(started), uses or (FILE,), ready=True, undeclared="")
    return replace(made, **changes)


PODS = (app(), app("web-1"))


def known(value: str, changed: float | None = None) -> dict[UseKey, Data]:
    return data(value, changed, KEY)


def begun(history: History, *running: Running, at_: float = 110, **found: Any) -> Decision:
    """A change of 99 has settled, and the run for it has begun."""
    running = running or PODS
    history.look(1, known("a"), *running)
    history.look(at_ - 10, known("b", 99), *running, **found)
    return history.look(at_, known("b", 99), *running, **found)


def known_as_done(history: History, *pods: str) -> Mapping[str, frozenset[str]]:
    """What its requests show about the run."""
    run = history.policy.status.run
    assert run is not None
    return {run.name: frozenset(pods)}


def record(history: History) -> UsedObject:
    return history.policy.status.config[0]


def left(history: History, *pods: str) -> None:
    """The run has ended without these pods."""
    run = history.policy.status.run
    assert run is not None
    history.end(120, End.PUT_OFF, away=tuple(pods))


class TestWhatIsDone:
    @pytest.mark.parametrize(
        ("uses", "undeclared", "why"),
        [
            ((FILE,), "", ""),
            ((FILE, OF_ENV), "", ""),
            ((FILE, replace(SUB_PATH, name="other")), "", ""),
            ((FILE,), UNDECLARED, UNDECLARED),
            ((SUB_PATH,), "", "app uses ConfigMap cfg (subPath)"),
            ((FILE, SUB_PATH), "", "app uses ConfigMap cfg (subPath)"),
            ((FILE, replace(USE, name="cfg")), "", "app uses ConfigMap cfg (envFrom)"),
        ],
    )
    def test_depends_on_what_changed(self, uses: tuple[Reference, ...], undeclared: str, why: str) -> None:
        history, pods = History(POLICY), [app("web-0", -3600, *uses, undeclared=undeclared)]
        old = {key: Data("a", None) for each in pods for key in each.keys}
        history.look(1, old, *pods)
        new = {key: Data("b", at(99)) if key[1].name == "cfg" else each for key, each in old.items()}
        run = history.look(110, new, *pods).run
        assert run is not None
        assert run.reload is (not why)
        said = f"; restarting app, because {why}" if why else "; app reloads"
        assert run.reason == f"policy web: ConfigMap cfg changed{said}"
        made = make_run(POLICY, run, Target("t")).options
        assert (made.reload, made.containers, made.objects) == (run.reload, ("app",), run.objects)

    def test_is_a_restart_without_the_field(self) -> None:
        run = begun(History()).run
        assert run is not None
        assert (run.reload, run.reason) == (False, "policy web: ConfigMap cfg changed")

    def test_is_a_restart_of_all_pods_if_one_cannot_reload(self) -> None:
        """Also if that one is on a node that is down."""
        pods = (app(), app("web-1", node="b", undeclared=UNDECLARED))
        for down in ({}, DOWN):
            run = begun(History(POLICY), *pods, down=down).run
            assert run is not None
            assert not run.reload

    def test_is_a_restart_if_the_node_daemon_is_too_old(self) -> None:
        run = begun(History(POLICY), app(), app("web-1", node="b"), old_daemons=frozenset({"b"})).run
        assert run is not None
        assert run.reason.endswith(
            "; restarting app, because the node daemon on node b is too old to have containers reload"
        )

    def test_does_not_depend_on_pods_that_have_the_data(self) -> None:
        run = begun(History(POLICY), app(), app("web-1", 115, undeclared=UNDECLARED)).run
        assert run is not None
        assert run.reload

    def test_of_two_containers_is_one_run_after_the_other(self) -> None:
        """The one that cannot reload restarts, and the other one does not."""
        history, pods = History(POLICY), (app(), app("web-0", -3600, USE, name="side"))
        old, new = data("a", None, KEY, SIDE), data("b", 99, KEY, SIDE)
        history.look(1, old, *pods)
        first = history.look(110, new, *pods).run
        assert first is not None
        assert (first.containers, first.reload) == (("side",), False)
        history.end(120)
        pods = pods[0], app("web-0", 115, USE, name="side")
        second = history.look(121, new, *pods).run
        assert second is not None
        assert (second.containers, second.reload) == (("app",), True)
        history.end(130)
        assert reason(history.look(131, new, *pods)) == PolicyReason.IDLE

    def test_of_two_containers_that_cannot_reload_is_one_run(self) -> None:
        history, pods = History(POLICY), (app(undeclared="xyz"), app("web-0", -3600, USE, name="side"))
        history.look(1, data("a", None, KEY, SIDE), *pods)
        run = history.look(110, data("b", 99, KEY, SIDE), *pods).run
        assert run is not None
        assert run.containers == ("app", "side")
        assert run.reason.endswith("; restarting app, side, because side uses ConfigMap cfg (envFrom) and xyz")

    def test_for_an_image_is_a_restart_that_brings_the_data_too(self) -> None:
        history = History(POLICY)
        history.look(1, known("a"), *PODS)
        history.look(100, known("b", 99), *PODS)
        look = Look(history.policy, Observed(PODS, known("b", 99)), at(110))
        changes, _ = due(look, look.served)
        assert [each.reload for each in changes] == [True]
        run = make_image_record(look, TemplateChange("app", "i:2", ("i:1",)), changes[0])
        assert (run.reload, run.image, run.objects) == (False, "i:2", tuple(map(str, changes[0].changes)))
        assert "reload" not in run.reason

    def test_that_can_never_be_a_reload_is_shown(self) -> None:
        def why(*running: Running, **found: Any) -> str:
            conditions = History(POLICY).look(1, known("a"), *running, names=frozenset({"app"}), **found).conditions
            return next(str(each["message"]) for each in conditions if each["type"] == "Effective")

        assert "restart all containers: its pod does not declare a reload: declare" in why(app(undeclared=UNDECLARED))
        assert "its node daemon is too old" in why(app(node="b"), old_daemons=frozenset({"b"}))
        fine = "each part of the policy can have an effect"
        assert why(app(), app("web-1", undeclared=UNDECLARED)) == fine
        assert why(app("web-0", -3600, FILE, OF_ENV)) == fine


class TestTheRecords:
    def test_say_who_has_the_data(self) -> None:
        """Before, during and after a run, and for pods that come later."""
        history = History(POLICY)
        begun(history)
        assert record(history).done == "", "from now on, any pod may have reloaded"
        history.end(120)
        assert (record(history).done, record(history).left) == ("b", "")
        new = app("web-2", 300)
        for seconds in (121, 400, 100_000):
            over = history.look(seconds, known("b", 99), *PODS, new)
            assert (over.run, reason(over)) == (None, PolicyReason.IDLE)
        again = replace(history.policy, config=PLAIN.config, generation=2)
        assert History(again).look(100_001, known("b", 99), *PODS, new).run is None, "also if the field is removed"

    def test_are_in_the_status_before_the_first_pod_reloads(self) -> None:
        history = History(POLICY)
        decision = begun(history)
        stored = write_status(decision.status)
        assert stored["run"]["reload"] is True
        assert "done" not in stored["config"][0]

    def test_of_a_change_that_is_taken_back_are_unsure(self) -> None:
        """Any container may have reloaded meanwhile. With a restart, its start would show it."""
        history = History(POLICY)
        first = begun(history).run
        goes_on = history.look(112, known("a", 112), *PODS)
        assert goes_on.run == first, "until the next one may start"
        second = history.look(122, known("a", 112), *PODS).run
        assert second is not None
        assert first is not None
        assert (second.reload, second.name != first.name) == (True, True)
        assert second.objects == (f"ConfigMap cfg {text(122)}".replace("cfg ", "cfg () "),)
        history.end(130)
        assert reason(history.look(131, known("a", 112), *PODS)) == PolicyReason.IDLE

    def test_of_a_change_that_is_taken_back_before_a_run_restart_and_reload_nothing(self) -> None:
        history = History(POLICY)
        history.look(1, known("a"), *PODS)
        history.look(100, known("b", 99), *PODS)
        history.look(108, known("a", 108), *PODS)
        assert reason(history.look(118, known("a", 108), *PODS)) == PolicyReason.IDLE

    def test_of_a_second_change_begin_again(self) -> None:
        history = History(POLICY)
        first = begun(history).run
        assert history.look(112, known("c", 111), *PODS).run == first
        second = history.look(121, known("c", 111), *PODS).run
        assert second is not None
        assert (second.since, second.reload) == (text(121), True)
        history.end(130)
        assert reason(history.look(131, known("c", 111), *PODS)) == PolicyReason.IDLE

    def test_know_the_pods_that_a_run_has_left(self) -> None:
        """No other pod reloads again while a node is down, whoever leads, and however long that is."""
        history, pods = History(POLICY), (app(), app("web-1", node="b"))
        first = begun(history, *pods, down=DOWN).run
        assert first is not None
        left(history, "web-1")
        assert record(history).lacking == ("web-1",)
        for seconds in (121, 4000, 100_000):
            waits = history.look(seconds, known("b", 99), *pods, down=DOWN)
            assert (waits.run, reason(waits)) == (None, PolicyReason.NODES)
        back = history.look(100_010, known("b", 99), *pods).run
        assert back is not None
        assert (back.name, back.reload) == (first.name, True), "its requests are known"
        assert history.last is not None
        assert history.last.run_only == {"web-1"}, "they may have been deleted by now"
        history.end(100_020)
        assert (record(history).lacking, record(history).done) == ((), "b")

    def test_of_pods_that_were_left_are_right_once_these_have_started_again_or_gone(self) -> None:
        for then in ((app(), app("web-1", 500, node="b")), (app(),)):
            history = History(POLICY)
            begun(history, app(), app("web-1", node="b"), down=DOWN)
            left(history, "web-1")
            assert reason(history.look(600, known("b", 99), *then)) == PolicyReason.IDLE
            assert (record(history).lacking, record(history).done) == ((), "b")

    def test_of_pods_that_were_left_end_with_the_next_change(self) -> None:
        history, pods = History(POLICY), (app(), app("web-1", node="b"))
        begun(history, *pods, down=DOWN)
        left(history, "web-1")
        history.look(200, known("c", 199), *pods, down=DOWN)
        assert record(history).lacking == ()
        decision = history.look(210, known("c", 199), *pods, down=DOWN)
        assert decision.run is not None
        assert (decision.run.reload, decision.run_only) == (True, frozenset())

    def test_know_the_pods_that_are_done_when_the_window_closes(self) -> None:
        """The next window may open after the requests of the run are deleted."""
        window = Window(Schedule("0 12 * * *", "UTC"), 300)
        history, pods = History(replace(POLICY, window=window)), (app(), app("web-1"), app("web-2", 200))
        first = begun(history, *pods).run
        assert first is not None
        assert (reason(history.look(310, known("b", 99), *pods)), record(history).lacking) == (PolicyReason.WINDOW, ())
        history.look(320, known("b", 99), *pods, reloaded=known_as_done(history, "web-0"))
        assert record(history).lacking == ("web-1",)
        history.look(330, known("b", 99), *pods)
        assert record(history).lacking == ("web-1",), "also once its requests are deleted"
        again = history.look(86_400 + 10, known("b", 99), *pods)
        assert (again.run, again.run_only) == (first, frozenset({"web-1"}))

    @pytest.mark.parametrize("judge", [None, Judge(60)])
    def test_know_that_all_pods_are_done_when_the_window_closes(self, judge: Judge | None) -> None:
        window = Window(Schedule("0 12 * * *", "UTC"), 300)
        history = History(replace(POLICY, window=window, judge=judge))
        assert begun(history).run is not None
        history.look(310, known("b", 99), *PODS, reloaded=known_as_done(history, "web-0", "web-1"))
        found = history.look(86_400 + 10, known("b", 99), *PODS)
        if judge is not None:
            assert found.run is not None, "all reload again, and are judged"
            return
        assert (found.run, reason(found), record(history).done) == (None, PolicyReason.IDLE, "b")
        last = history.policy.status.run
        assert last is not None
        assert (last.failed, last.message) == (False, "ended because all containers have reloaded")

    def test_of_a_pod_that_lost_its_declaration_lead_to_a_restart(self) -> None:
        history = History(POLICY)
        begun(history)
        left(history, "web-1")
        run = history.look(130, known("b", 99), app(), app("web-1", undeclared=UNDECLARED)).run
        assert run is not None
        assert (run.reload, run.reason) == (
            False,
            f"policy web: ConfigMap cfg changed; restarting app, because {UNDECLARED}",
        )

    def test_of_a_container_that_crashes_are_by_its_start(self) -> None:
        history = History(POLICY)
        begun(history)
        decision = history.look(115, known("b", 99), app("web-0", 112), app("web-1", 113))
        assert decision.run is not None, "its end says whether the data is good"
        history.end(120)
        assert reason(history.look(121, known("b", 99), app("web-0", 118), app("web-1", 113))) == PolicyReason.IDLE


class TestOtherEnds:
    def test_a_failed_reload_stops_the_policy_until_the_data_changes(self) -> None:
        history = History(POLICY)
        begun(history)
        history.end(120, End.FAILED, message="web-0: reload failed")
        failed = history.look(121, known("b", 99), *PODS)
        assert (failed.run, reason(failed)) == (None, PolicyReason.FAILED)
        assert record(history).lacking == ()
        history.look(200, known("c", 199), *PODS)
        better = history.look(210, known("c", 199), *PODS).run
        assert better is not None
        assert better.reload

    def test_data_that_is_taken_back_after_a_failure_reaches_all_pods(self) -> None:
        history = History(POLICY)
        begun(history)
        history.end(120, End.FAILED)
        history.look(200, known("a", 199), *PODS)
        back = history.look(210, known("a", 199), *PODS).run
        assert back is not None
        assert back.reload

    @pytest.mark.parametrize(
        ("pods", "reloaded", "repaired"),
        [
            (PODS, {"web-0", "web-1"}, True),
            (PODS, {"web-0"}, False),
            ((app(), app("web-1", 130)), {"web-0"}, True),
            ((app("web-0", 130), app("web-1", 130)), set(), True),
        ],
    )
    def test_what_a_user_does_about_a_failure_counts(
        self, pods: tuple[Running, ...], reloaded: set[str], *, repaired: bool
    ) -> None:
        history = History(POLICY)
        begun(history)
        history.end(120, End.FAILED)
        found = history.look(140, known("b", 99), *pods, reloaded=known_as_done(history, *reloaded))
        assert (reason(found) == PolicyReason.IDLE, record(history).done == "b") == (repaired, repaired)

    def test_a_failure_of_pods_that_were_left_is_repaired_in_these_pods(self) -> None:
        """The others have reloaded in the run before."""
        history, pods = History(POLICY), (app(), app("web-1", node="b"))
        begun(history, *pods, down={"b": "node b is not ready"})
        left(history, "web-1")
        assert history.look(130, known("b", 99), *pods).run_only == {"web-1"}
        history.end(140, End.FAILED)
        assert reason(history.look(141, known("b", 99), *pods)) == PolicyReason.FAILED
        found = history.look(160, known("b", 99), app(), app("web-1", 150, node="b"))
        assert (reason(found), record(history).done) == (PolicyReason.IDLE, "b")

    def test_a_policy_that_is_edited_back_restarts(self) -> None:
        """The run ends, and another one restarts all pods. Nothing shows which of them have reloaded."""
        history = History(POLICY)
        first = begun(history).run
        assert first is not None
        history.policy = replace(history.policy, config=PLAIN.config, generation=2)
        second = history.look(115, known("b", 99), *PODS)
        assert second.run is not None
        assert (second.run.reload, second.run.name != first.name) == (False, True)

    def test_a_run_that_restarts_goes_on_if_the_policy_is_edited(self) -> None:
        history = History()
        first = begun(history).run
        history.policy = replace(history.policy, config=POLICY.config, generation=2)
        assert history.look(115, known("b", 99), *PODS).run == first

    def test_an_older_manager_restarts_and_its_runs_are_no_reloads(self) -> None:
        """It keeps fields of `status.run` that it does not know, and drops those of `status.config`."""
        history = History(POLICY)
        begun(history)
        run = history.policy.status.run
        assert run is not None
        older = replace(run, name=name_of(POLICY, replace(run, reload=False)))
        config = tuple(replace(each, lacking=()) for each in history.policy.status.config)
        history.policy = replace(history.policy, status=replace(history.policy.status, run=older, config=config))
        found = history.look(115, known("b", 99), *PODS)
        assert found.run is not None
        assert (found.run.reload, found.run.name) == (True, run.name)


def policy(**change: Any) -> Mapping[str, Any]:
    meta = {"namespace": "shop", "name": "web", "uid": "u1", "generation": 1}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return {"metadata": meta, "spec": {"targetRef": target, "triggers": {"configChange": change}}}


def test_the_field() -> None:
    assert not read_policy(policy()).reloads
    assert not read_policy(policy(action="Restart")).reloads
    assert read_policy(policy(action="ReloadOrRestart")).reloads
    wrong = "spec.triggers.configChange.action must be Restart or ReloadOrRestart, not 'Reload'"
    assert read_policy(policy(action="Reload")).error == wrong
    refused = read_policy(policy(action="ReloadOrRestart"), patch=True).error
    assert refused == (
        "spec.triggers.configChange.action must be Restart, because the manager runs without node daemons (--via patch)"
    )
    assert read_policy(policy(action="Restart"), patch=True).error == ""


def test_the_status_is_read_as_it_was_written() -> None:
    history = History(POLICY)
    begun(history)
    left(history, "web-1")
    stored: PolicyStatus = read_policy({**policy(), "status": write_status(history.policy.status)}).status
    assert (stored.config, stored.run) == (history.policy.status.config, history.policy.status.run)
    assert message(history.look(130, known("b", 99), *PODS)).endswith("; app reloads")


def test_the_hashes_of_a_run_are_those_of_its_objects() -> None:
    """Two containers lack one change in different pods. So it is two changes, and one of the objects."""
    limit, names = at(109), ("app", "side")
    parts = [Part(Kind.CONFIG_MAP, name) for name in ("a", "b")]
    records = [UsedObject(name, *each.object_name, f"of {each.name}", text(99)) for name in names for each in parts]
    look = Look(POLICY.with_status(PolicyStatus(tuple(records))), Observed(PODS), at(200))
    lacking = [PartChange(parts[0], limit, only=frozenset(pods)) for pods in (("web-1",), ("web-1", "web-2"))]
    changes = (*lacking, PartChange(parts[1], limit))
    run = make_record(look, "configChange", names, limit, Due(names, limit, changes, reload=True))
    assert [each.part for each in run.changes] == parts
    assert run.hashes == ("of a", "of b")
    assert all(brings(run, each) for each in records)
