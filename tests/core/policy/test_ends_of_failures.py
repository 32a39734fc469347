"""When a failure is over, and when not: no further pod gets its data, and nothing waits for ever."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Data, Observed, Peer, UseKey
from crrd.core.policy.order import refused_by
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import ConfigAction, ConfigChange, Judge, OnFailure, Schedule, Window
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.waits import Skip
from tests.core.policy import test_reload as reload_tests
from tests.core.policy.test_decide import KEY, OTHER, PLAIN, USE, History, app, at, data, message, reason
from tests.core.policy.test_failures import (
    OF_OTHER,
    PODS,
    RESTARTED,
    SIDECAR,
    USE_OTHER,
    after_another_run,
    end,
    failed,
    known,
)
from tests.core.policy.test_revisions import BAD, GOOD, kept, present, stored
from tests.core.policy.test_revisions import PODS as PODS_OF_RESTORE
from tests.core.policy.test_revisions import failed as failed_run

CFG = (Kind.CONFIG_MAP, "cfg")


def look_at_nothing(history: History, seconds: float) -> Any:
    """No pod runs: scaled to 0, or the only pod of a StatefulSet terminates."""
    decision = decide(history.policy, Observed((), {}), at(seconds))
    history.policy = replace(history.policy, status=decision.status, conditions=decision.conditions)
    return decision


def one_pod(*, halted: bool = False, judge: Judge | None = None) -> History:
    history = History(replace(PLAIN, judge=judge))
    history.look(1, data("a"))
    history.look(100, data("b", 99))
    assert history.look(110, data("b", 99)).run is not None
    end(history, 120, halted=halted)
    assert refused_by(history.policy) == {CFG}
    return history


def test_a_moment_without_any_pod_is_no_repair() -> None:
    """`kubectl delete pod web-0` of a StatefulSet with one pod, or scaled to 0 and back; the new pod crashes, too."""
    history = one_pod()
    gone = look_at_nothing(history, 200)
    history.look(230, data("b", 99), app(225, ready=False))
    assert refused_by(history.policy) == {CFG}, f"others begin: {message(gone)!r}, {history.policy.status.run}"


@pytest.mark.parametrize("halted", [True, False])
def test_nor_is_one_without_the_pods_of_one_workload(halted: bool) -> None:
    """A selector with two workloads. The pods that use the data are gone for a moment, the others are there."""
    history, _ = failed(replace(PLAIN, judge=Judge(60) if halted else None), halted=halted)
    history.look(200, data("a", None, ("side", OTHER[1])), SIDECAR)
    history.look(230, known(), app(225), app(225, "web-1"), SIDECAR)
    assert refused_by(history.policy) == {CFG}


def halves() -> tuple[History, list[Any], Any, Any]:
    """`aaa` has failed with cfg at 110. At 200, `x` changes, which app uses as a variable and side as files."""
    policy = replace(PLAIN, config=ConfigChange(10, action=ConfigAction.RELOAD_OR_RESTART))
    first: UseKey = ("aaa", Part(*CFG, ("data.*",)))
    env: UseKey = ("app", Part(Kind.CONFIG_MAP, "x", ("data.*",)))
    files: UseKey = ("side", Part(Kind.CONFIG_MAP, "x"))
    third: UseKey = ("third", Part(Kind.CONFIG_MAP, "y", ("data.*",)))

    def now(cfg: Any, x: Any, y: Any) -> dict[UseKey, Data]:
        return data(*cfg, first) | data(*x, env, files) | data(*y, third)

    def run(name: str, use: Reference, started: float = -3600) -> Any:
        return replace(app(started, f"{name}-0", name, use), undeclared="", ready=True)

    x_env, x_files = Reference(Kind.CONFIG_MAP, "x", Use.ENV_FROM), Reference(Kind.CONFIG_MAP, "x", Use.VOLUME)
    y = Reference(Kind.CONFIG_MAP, "y", Use.ENV_FROM)
    pods = [run("aaa", USE), run("app", x_env), run("side", x_files), run("third", y)]
    history, old = History(policy), ("a", None)
    history.look(1, now(old, old, old), *pods)
    history.look(100, now(("b", 99), old, old), *pods)
    assert history.look(110, now(("b", 99), old, old), *pods).run is not None
    end(history, 115)
    history.look(201, now(("b", 99), ("b", 200), old), *pods)
    return history, pods, now, run("third", y, 315)


@pytest.mark.parametrize("settle", [1, 5, 10, 60])
def test_an_edit_of_settle_during_the_run_does_not_void_its_failure(settle: int) -> None:
    history, bad, there = kept(), present(BAD, 2, 99), stored(GOOD)
    history.look(100, bad, *PODS_OF_RESTORE, stored=there)
    run = history.look(109, bad, *PODS_OF_RESTORE, stored=there).run
    assert run is not None
    history.policy = replace(history.policy, config=ConfigChange(settle), generation=2)
    assert history.look(112, bad, *PODS_OF_RESTORE, stored=there).run == run
    of_edit = replace(run, generation=2)  # the failure of a run counts for the policy at its end
    history.policy = history.policy.with_status(replace(history.policy.status, run=of_edit))
    end(history, 120, halted=True)
    assert refused_by(history.policy) == {CFG}
    assert reason(history.look(121, bad, *PODS_OF_RESTORE, stored=there)) == "Restoring"
    halts = History(replace(history.policy, on_failure=OnFailure.HALT))
    for seconds in (160, 170, 1000):
        found = halts.look(seconds, bad, *PODS_OF_RESTORE)
        assert (found.run, found.status.bad) == (None, ())


def test_the_newest_failure_stops_the_halves_of_its_change() -> None:
    """The first half fails, so the other one does not start. It starts after a run for a third object."""
    history, pods, now, restarted = halves()
    old = ("a", None)
    second = history.look(211, now(("b", 99), ("b", 200), old), *pods).run
    assert second is not None
    end(history, 220)
    assert history.look(221, now(("b", 99), ("b", 200), old), *pods).run is None, "the other half does not start"
    state = now(("b", 99), ("b", 200), ("b", 300))
    history.look(301, state, *pods)
    other = history.look(311, state, *pods).run
    assert other is not None
    assert other.containers == ("third",), other
    history.end(320)
    pods[3] = restarted
    found = history.look(321, state, *pods)
    assert found.run is None, f"{found.run.containers} with the data of {second.name}"


def test_those_that_restart_come_first_also_after_a_failure() -> None:
    history, pods, now, _ = halves()
    run = history.look(211, now(("b", 99), ("b", 200), ("a", None)), *pods).run
    assert run is not None
    assert (run.containers, run.reload) == (("app",), False)


def test_others_wait_for_the_first_step_also_after_an_edit_to_halt() -> None:
    history = kept()
    failed_run(history)
    pods = (app(115, ready=True), PODS_OF_RESTORE[1])
    history.look(123, present(GOOD, 3, 122), *pods, stored=stored(GOOD))
    again = history.look(4000, present(BAD, 4, 3999), *pods, stored=stored(GOOD))
    assert reason(again) == "BadRevision"
    assert refused_by(history.policy) == {CFG}
    closed = Window(Schedule("0 20 * * *", "UTC"), 300)
    history.policy = replace(history.policy, generation=2, on_failure=OnFailure.HALT, window=closed)
    found = history.look(4100, present(BAD, 4, 3999), *pods, stored=stored(GOOD))
    assert found.run is None
    assert refused_by(history.policy) == {CFG}, f"others begin, while this policy: {message(found)}"


def both(*, halted: bool) -> tuple[History, Any]:
    """A change was judged no (or has failed). Then the template has another image."""
    history = History(replace(PLAIN, template_image=True, judge=Judge(60) if halted else None))
    history.look(1, data("a"), template=TemplateImages(()))
    history.look(100, data("b", 99), template=TemplateImages(()))
    assert history.look(110, data("b", 99), template=TemplateImages(())).run is not None
    end(history, 120, halted=halted)
    new = TemplateChange("app", "i:2", before=("i:1",), lacking=(("web-0", "a"),), rest="rest")
    return history, history.look(200, data("b", 99), template=TemplateImages((new,))).run


def test_a_run_for_a_new_image_tries_data_that_has_failed_once_more_and_its_failure_is_one_of_both() -> None:
    history, run = both(halted=True)
    assert run is not None
    assert "ConfigMap cfg" in "".join(run.objects), "so other policies wait for its first step"
    end(history, 300)
    assert refused_by(history.policy) == {CFG}


def test_a_policy_is_not_stopped_once_a_run_for_an_image_has_brought_the_data_to_all_pods() -> None:
    """The change needs the new image. All pods have both, and this run was judged yes."""
    history, run = both(halted=True)
    assert run is not None
    history.end(300)
    new = app(250, ready=True)
    found = history.look(400, data("b", 99), new, template=TemplateImages(()))
    assert (reason(found), refused_by(history.policy)) == (PolicyReason.IDLE, frozenset())


@pytest.mark.parametrize("pods", [1, 2])
def test_others_do_not_wait_for_ever_once_the_owner_says_that_it_is_well(pods: int) -> None:
    """The judgement of the last step was no. All pods have the data and are ready, and the owner edits the policy."""
    names = [f"web-{number}" for number in range(pods)]
    history = History(replace(PLAIN, judge=Judge(60)))
    history.look(1, data("a"), *(app(pod=name) for name in names))
    history.look(100, data("b", 99), *(app(pod=name) for name in names))
    assert history.look(110, data("b", 99), *(app(pod=name) for name in names)).run is not None
    end(history, 200, halted=True)
    new = [app(115, name, ready=True) for name in names]
    assert reason(history.look(210, data("b", 99), *new)) == PolicyReason.FAILED
    history.policy = replace(history.policy, generation=2, judge=None)
    for seconds in (300, 400, 10**6):
        found = history.look(seconds, data("b", 99), *new)
    assert (found.run, reason(found)) == (None, PolicyReason.IDLE)
    assert refused_by(history.policy) == frozenset(), "there is no run to wait for, and Ready is True"


def test_an_edited_policy_tries_the_data_although_a_run_of_another_one_has_failed_too() -> None:
    """Two runs were in progress (the first step of the first one was done), and both have failed: the node was down.
    Then the owner edits both policies."""
    one, two = (History(replace(PLAIN, name=name, uid=name)) for name in ("one", "two"))
    for each in (one, two):
        each.look(1, data("a"))
        each.look(100, data("b", 99))
        assert each.look(110, data("b", 99)).run is not None
        end(each, 120)
    for each in (one, two):
        each.policy = replace(each.policy, generation=2)

    def seen(history: History) -> Peer:
        objects = frozenset({CFG})
        return Peer(history.policy.name, uses=objects, seen=objects, refused=refused_by(history.policy))

    for seconds in (200, 215, 10**6):
        runs = [each.look(seconds, data("b", 99), peers=(seen(other),)).run for each, other in ((one, two), (two, one))]
        if any(runs):
            return
    pytest.fail("they wait for each other for ever")


def test_reloads_after_resume_of_a_run_that_is_not_the_last_one_count() -> None:
    """The condition tells the user to resume it."""
    history, first = History(reload_tests.POLICY), None
    key: UseKey = ("app", Part(*CFG))
    side: UseKey = ("side", OTHER[1])
    pods = [reload_tests.app(), replace(app(-3600, "api-0", "side", USE_OTHER), ready=True)]
    history.look(1, data("a", None, key) | data("a", None, side), *pods)
    history.look(100, data("b", 99, key) | data("a", None, side), *pods)
    first = history.look(110, data("b", 99, key) | data("a", None, side), *pods).run
    assert first is not None
    assert first.reload
    end(history, 120)
    state = data("b", 99, key) | data("b", 200, side)
    history.look(201, state, *pods)
    assert history.look(210, state, *pods).run is not None
    history.end(220)
    pods[1] = replace(pods[1], started=at(215))
    stopped = history.look(221, state, *pods)
    assert f"resume {first.name} --retry-failed" in message(stopped)
    assert reason(stopped) == PolicyReason.FAILED
    # it is resumed, and succeeds. The manager lists the requests of status.run alone (look._reloaded)
    found = history.look(400, state, *pods, reloaded={first.name: frozenset({"web-0"})})
    assert reason(found) == PolicyReason.IDLE


@pytest.mark.parametrize("last", [True, False])
def test_a_container_that_cannot_be_restarted_does_not_keep_a_failure_alive(last: bool) -> None:
    """All others have the data and are ready. It works if the run is the last one."""
    barred = replace(app(pod="web-9"), barred=next(iter(Skip)), ready=True)
    history = History()
    pods = [*PODS, barred]
    history.look(1, known("a", None), *pods)
    history.look(100, known(), *pods)
    assert history.look(110, known(), *pods).run is not None
    end(history, 120)
    state = known() if last else known(**OF_OTHER)
    if not last:
        history.look(201, state, *pods)
        assert history.look(210, state, *pods).run is not None
        history.end(220)
    well = (app(300, ready=True), app(300, "web-1", ready=True), replace(RESTARTED[2], ready=True), barred)
    found = history.look(400, state, *well)
    assert reason(found) != PolicyReason.FAILED


@pytest.mark.parametrize("last", [True, False])
def test_a_pod_must_be_ready_for_min_ready_before_a_failure_is_over(last: bool) -> None:
    budget = replace(PLAIN.budget, min_ready=60)
    if last:
        history, _ = failed(replace(PLAIN, budget=budget))
    else:
        history, _ = after_another_run(replace(PLAIN, budget=budget))
    pods = (app(300, ready=True), app(300, "web-1", ready=True), replace(RESTARTED[2], ready=True))
    history.look(303, known() if last else known(**OF_OTHER), *pods)
    assert refused_by(history.policy) == {CFG}, "they crash again and again after 4 s"


@pytest.mark.parametrize(
    ("written", "seen"),
    [(110, 110), (105, 111)],  # in the second in which the run began; by an API server whose clock is 6 s behind
)
def test_a_correction_is_not_taken_for_the_data_that_has_failed(written: float, seen: float) -> None:
    history = History()
    history.look(1, data("a"))
    history.look(100, data("b", 100))
    run = history.look(110, data("b", 100)).run
    assert run is not None
    history.look(seen, data("c", written))
    end(history, 112)
    bad = app(111)
    runs = [history.look(seconds, data("c", written), bad, app(pod="web-1")).run for seconds in (115, 121, 10**6)]
    assert any(runs)
    assert refused_by(history.policy) == frozenset(), "c is other data"


REFUSING = Peer("first", uses=frozenset({CFG}), seen=frozenset({CFG}), refused=frozenset({CFG}))


def test_no_max_age_of_another_policy_brings_it_while_it_settles_there() -> None:
    history = History(replace(PLAIN, config=ConfigChange(600), max_age=3600))
    history.look(1, data("a"), app(-3000))
    found = history.look(650, data("b", 99), app(-3000), peers=(REFUSING,))
    assert found.run is None, f"{found.run.reason}, with the data that has failed"


def test_no_run_in_progress_of_another_policy_brings_it() -> None:
    """It continues because minInterval is not over."""
    history = History(replace(PLAIN, budget=replace(PLAIN.budget, min_interval=3600)))
    pods = (app(-3600, "web-0", "app", USE, USE_OTHER), app(-3600, "web-1", "app", USE, USE_OTHER))
    history.look(1, data("a") | data("a", None, OTHER), *pods)
    history.look(100, data("a") | data("b", 99, OTHER), *pods)
    assert history.look(110, data("a") | data("b", 99, OTHER), *pods).run is not None
    state = data("b", 119) | data("b", 99, OTHER)
    history.look(120, state, *pods, peers=(REFUSING,))
    found = history.look(140, state, *pods, peers=(REFUSING,))
    assert found.run is None, f"{found.run.objects}, and its containers read cfg, too"


def test_a_policy_that_comes_first_is_waited_for_while_it_lacks_a_key() -> None:
    """The edit removes the key LOG, without which the container of the first policy cannot start."""
    first = History()
    first.look(1, data("a"))
    found = first.look(100, {KEY: Data("", at(99), "uid")}, missing=("ConfigMap cfg has no key LOG",))
    assert reason(found) == PolicyReason.MISSING
    assert CFG in found.claims.wants, "a policy with after: [first] gives this data to its pods"
