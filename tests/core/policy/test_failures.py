"""Data with which a run has failed reaches no further pod, also after runs for something else."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.decide import decide
from crrd.core.policy.failures import lasting
from crrd.core.policy.observed import Data, Observed, Running, Stopped, UseKey
from crrd.core.policy.order import refused_by
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import ConfigChange, Judge, Policy, RunRecord, Schedule, Window
from crrd.core.rollout.phases import End
from tests.core.policy.test_decide import (
    KEY,
    OTHER,
    PLAIN,
    SIDE,
    USE,
    History,
    app,
    at,
    data,
    message,
    of_keys,
    part,
    reason,
    text,
)

CFG = (Kind.CONFIG_MAP, "cfg")
OTHER_OF_SIDE: UseKey = ("side", OTHER[1])
USE_OTHER = Reference(Kind.CONFIG_MAP, "other", Use.ENV_FROM)
SIDECAR = app(-3600, "web-0", "side", USE_OTHER)
PODS = (app(), app(pod="web-1"), SIDECAR)


def known(cfg: str = "b", changed: float | None = 99, other: str = "a", its: float | None = None) -> dict[UseKey, Data]:
    return data(cfg, changed) | data(other, its, OTHER_OF_SIDE)


def end(history: History, seconds: float, *, halted: bool = False) -> RunRecord:
    """The run has failed."""
    run = history.policy.status.run
    assert run is not None
    history.end(seconds, End.HALTED if halted else End.FAILED, message="web-0: it broke")
    return run


def failed(policy: Policy = PLAIN, *, halted: bool = False) -> tuple[History, RunRecord]:
    """`cfg` was changed at 99, and its run has failed."""
    history = History(policy)
    history.look(1, known("a", None), *PODS)
    history.look(100, known(), *PODS)
    assert history.look(110, known(), *PODS).run is not None
    return history, end(history, 120, halted=halted)


OF_OTHER: Mapping[str, Any] = {"other": "b", "its": 200}
RESTARTED = (*PODS[:2], app(215, "web-0", "side", USE_OTHER))


def after_another_run(policy: Policy = PLAIN, *, halted: bool = False) -> tuple[History, RunRecord]:
    """After that, `other` was changed at 200, and the run for it has ended at 220."""
    history, first = failed(policy, halted=halted)
    history.look(201, known(**OF_OTHER), *PODS)
    run = history.look(210, known(**OF_OTHER), *PODS).run
    assert run is not None
    assert (run.containers, run.since) == (("side",), text(210))
    history.end(220)
    return history, first


@pytest.mark.parametrize("halted", [False, True])
@pytest.mark.parametrize("seconds", [221, 1000, 10**6])
def test_it_is_not_tried_again_after_a_run_for_another_object(seconds: float, halted: bool) -> None:
    judge = Judge(60) if halted else None
    history, first = after_another_run(replace(PLAIN, judge=judge), halted=halted)
    found = history.look(seconds, known(**OF_OTHER), *RESTARTED)
    assert (found.run, reason(found)) == (None, PolicyReason.FAILED)
    assert message(found).startswith(f"run {first.name} failed: web-0: it broke; no run starts until ")
    assert CFG in found.claims.wants
    assert refused_by(history.policy) == {CFG}, "nor by another policy"
    judged = [each["status"] for each in found.conditions if each["type"] == "Judged"]
    assert judged == (["False"] if halted else [])


@pytest.mark.parametrize("trigger", [{"schedule": Schedule("5 12 * * *", "UTC")}, {"max_age": 3600}])
def test_nor_by_another_trigger(trigger: Mapping[str, Any]) -> None:
    """It would restart all containers, with the data that is there."""
    history, _ = after_another_run(replace(PLAIN, **trigger))
    found = history.look(400, known(**OF_OTHER), *RESTARTED)
    assert (found.run, reason(found)) == (None, PolicyReason.FAILED)


def test_it_is_remembered_over_many_runs_and_failures() -> None:
    history, first = after_another_run()
    for start in (300, 400):
        now = known(other=str(start), its=start)
        history.look(start + 1, now, *RESTARTED)
        run = history.look(start + 11, now, *RESTARTED).run
        assert run is not None
        assert run.containers == ("side",)
        second = end(history, start + 15)
        found = history.look(start + 20, now, *RESTARTED)
        assert (found.run, refused_by(history.policy)) == (None, frozenset({CFG, USE_OTHER.object}))
        assert second.name in message(found), "the newest failure is in the message"
    assert [each.name for each in history.policy.status.failed] == [first.name], "what failed before is of other data"


def test_other_data_is_one_more_try() -> None:
    history, _ = after_another_run()
    history.look(300, known("c", 299, **OF_OTHER), *RESTARTED)
    found = history.look(310, known("c", 299, **OF_OTHER), *RESTARTED)
    assert found.run is not None
    assert found.run.containers == ("app",)
    assert (refused_by(history.policy), found.status.failed) == (frozenset(), ())


def test_a_newer_change_of_the_same_containers_is_one_more_try_of_all_that_they_use() -> None:
    pods = (app(-3600, "web-0", "app", USE, USE_OTHER),)
    history, both = History(), data("b", 99)
    history.look(1, data("a") | data("a", None, OTHER), *pods)
    history.look(100, both | data("a", None, OTHER), *pods)
    history.look(110, both | data("a", None, OTHER), *pods)
    end(history, 120)
    history.look(201, both | data("b", 200, OTHER), *pods)
    run = history.look(210, both | data("b", 200, OTHER), *pods).run
    assert run is not None
    assert [each.part.name for each in run.changes] == ["cfg", "other"]
    assert refused_by(history.policy) == {CFG}, "other policies wait for how it ends"
    history.end(220)
    found = history.look(221, both | data("b", 200, OTHER), app(215, "web-0", "app", USE, USE_OTHER, ready=True))
    assert (reason(found), found.status.failed, refused_by(history.policy)) == (PolicyReason.IDLE, (), frozenset())


@pytest.mark.parametrize("window", [None, Window(Schedule("0 13 * * *", "UTC"), 300)])
def test_after_an_edit_of_the_policy_it_is_tried_once_more_and_others_still_wait(window: Window | None) -> None:
    history, first = after_another_run(halted=True)
    history.policy = replace(history.policy, generation=2, window=window)
    found = history.look(300, known(**OF_OTHER), *RESTARTED)
    if window is not None:
        assert (found.run, reason(found), refused_by(history.policy)) == (None, PolicyReason.WINDOW, frozenset({CFG}))
        found = history.look(3600, known(**OF_OTHER), *RESTARTED)
    assert found.run is not None
    assert (found.run.containers, found.run.name != first.name) == (("app",), True)
    assert refused_by(history.policy) == {CFG}, "until its first step is done"
    history.end(3610)
    assert refused_by(history.policy) == frozenset()


@pytest.mark.parametrize(
    ("halted", "ready", "expected"),
    [(False, True, PolicyReason.IDLE), (False, False, PolicyReason.FAILED), (True, True, PolicyReason.FAILED)],
)
def test_what_a_user_does_about_it_counts(halted: bool, ready: bool, expected: PolicyReason) -> None:
    """If a judgement was no, that pods are ready does not say that they are well."""
    history, _ = after_another_run(halted=halted)
    pods = (app(300, ready=ready), app(300, "web-1", ready=True), RESTARTED[2])
    assert reason(history.look(330, known(**OF_OTHER), *pods)) == expected


def test_data_that_is_taken_back_does_not_count() -> None:
    history, _ = after_another_run(halted=True)
    pods = (app(115, ready=True), *RESTARTED[1:])
    history.look(300, known("a", 299, **OF_OTHER), *pods)
    run = history.look(310, known("a", 299, **OF_OTHER), *pods).run
    assert run is not None, "the pod that has it is restarted"
    assert (run.containers, refused_by(history.policy)) == (("app",), frozenset())


def test_a_container_whose_part_of_the_object_is_another_one_is_not_concerned() -> None:
    """One uses all keys, and one a single key that is as it was."""
    single: UseKey = ("side", part("KEY"))
    use = Reference(Kind.CONFIG_MAP, "cfg", Use.ENV, frozenset({"KEY"}), frozenset({"KEY"}))
    pods = (app(), app(-3600, "web-0", "side", use))
    history = History()
    history.look(1, data("a") | data("a", None, single), *pods)
    history.look(100, data("b", 99) | data("a", None, single), *pods)
    history.look(110, data("b", 99) | data("a", None, single), *pods)
    first = end(history, 120)
    newer = data("b", 99) | data("b", 200, single)
    history.look(201, newer, *pods)
    run = history.look(210, newer, *pods).run
    assert run is not None
    assert run.containers == ("side",)
    assert [each.name for each in history.policy.status.failed] == [first.name]


def test_two_containers_that_use_the_same_data_wait_together() -> None:
    history, pods = History(replace(PLAIN, containers=("app",))), (app(), app(name="side"))
    history.look(1, data("a", None, KEY, SIDE), *pods)
    history.look(100, data("b", 99, KEY, SIDE), *pods)
    history.look(110, data("b", 99, KEY, SIDE), *pods)
    end(history, 120)
    history.policy = replace(history.policy, containers=())
    assert history.look(130, data("b", 99, KEY, SIDE), *pods).run is None


@pytest.mark.parametrize("containers", [("app", "side"), ("side", "app")])
def test_a_correction_of_a_part_of_what_has_failed_is_one_more_try_of_the_rest(containers: tuple[str, ...]) -> None:
    """One run has failed with the data of two containers. The good change of the other one arrives, too."""
    corrected, other = containers
    parts: dict[str, UseKey] = {"app": KEY, "side": OTHER_OF_SIDE}
    history = History()
    history.look(1, known("a", None), *PODS)
    both = data("b", 99) | data("b", 99, OTHER_OF_SIDE)
    history.look(100, both, *PODS)
    run = history.look(110, both, *PODS).run
    assert run is not None
    assert run.containers == ("app", "side")
    end(history, 120)
    assert history.look(121, both, *PODS).run is None
    now = both | data("c", 200, parts[corrected])
    history.look(201, now, *PODS)
    run = history.look(210, now, *PODS).run
    assert run is not None
    assert run.containers == (corrected,)
    assert refused_by(history.policy) == {parts[other][1].object_name}, "others wait until it is tried"
    history.end(220)
    pods = [app(215, each.pod, each.name, *each.uses) if each.name == corrected else each for each in PODS]
    last = history.look(221, now, *pods).run
    assert last is not None
    assert last.containers == (other,)
    history.end(230)
    assert refused_by(history.policy) == frozenset()


def test_what_was_judged_no_is_over_once_a_part_is_corrected_and_all_containers_have_started_again() -> None:
    history = History()
    history.look(1, known("a", None), *PODS)
    both = data("b", 99) | data("b", 99, OTHER_OF_SIDE)
    history.look(100, both, *PODS)
    assert history.look(110, both, *PODS).run is not None
    end(history, 120, halted=True)
    restarted = [app(300, each.pod, each.name, *each.uses, ready=True) for each in PODS]
    assert reason(history.look(310, both, *restarted)) == PolicyReason.FAILED
    found = history.look(320, both | data("c", 200), *restarted)
    assert (found.run, reason(found), refused_by(history.policy)) == (None, PolicyReason.IDLE, frozenset())


def test_another_part_of_an_object_is_tried_once_the_part_that_has_failed_is_corrected() -> None:
    log, key = Part(*CFG, ("LOG",)), Part(*CFG, ("KEY",))
    pods = (app(-3600, "web-0", "app", of_keys("LOG")), app(-3600, "web-0", "side", of_keys("KEY")))

    def now(of_log: str, at_: float, of_key: str = "b", its: float = 99) -> dict[UseKey, Data]:
        return data(of_log, at_, ("app", log)) | data(of_key, its, ("side", key))

    history = History(replace(PLAIN, containers=("app",)))
    history.look(1, now("a", 0, "a", 0), *pods)
    history.look(100, now("b", 99), *pods)
    assert history.look(110, now("b", 99), *pods).run is not None
    end(history, 120)
    history.policy = replace(history.policy, containers=())
    assert history.look(121, now("b", 99), *pods).run is None, "it is of the same edit"
    history.look(201, now("c", 200), *pods)
    assert history.look(210, now("c", 200), *pods).run is not None
    history.end(220)
    found = history.look(221, now("c", 200), replace(pods[0], started=at(215)), pods[1]).run
    assert found is not None
    assert found.containers == ("side",)


def test_a_run_for_the_last_good_data_that_fails_says_nothing_about_this_data() -> None:
    history, _ = failed()
    run = history.policy.status.run
    assert run is not None
    back = replace(history.policy.status, run=replace(run, back=True))
    assert refused_by(history.policy) == {CFG}
    assert refused_by(replace(history.policy, status=back)) == frozenset()


APP2 = app(300, "web-2", "app2", USE_OTHER, ready=True)  # A rollout has renamed the container, or removed it
OLD = app(-3600, "web-3", "app2", USE_OTHER, ready=True)


@pytest.mark.parametrize(
    ("pods", "halted", "over"),
    [
        ((APP2, replace(APP2, pod="web-3")), False, True),
        ((APP2, replace(APP2, pod="web-3", ready=False)), False, False),
        ((APP2, OLD), False, False),  # a pod from before, so those of the container may be away for a moment
        ((APP2, PODS[0]), False, False),  # the rollout is not over
        ((replace(APP2, started=at(115)),), False, True),  # it began while the run waited for its first pod
        (
            (app(115, "web-2", "app", USE_OTHER, ready=True), OLD),
            False,
            True,
        ),  # beside another workload
        ((app(300, "web-2", "app", USE_OTHER),), False, False),  # it is not ready yet
        ((app(-3600, "web-1", "app", USE_OTHER, ready=True),), False, False),  # a partition: web-0 is away for a moment
        ((APP2, replace(APP2, pod="web-3")), True, False),  # it was judged by more than by readiness
    ],
)
def test_a_failure_is_over_once_new_pods_do_without_its_containers(
    pods: tuple[Running, ...], halted: bool, over: bool
) -> None:
    history, _ = failed(halted=halted)
    found = history.look(400, data("a", None, ("app2", OTHER[1])), *pods)
    expected = PolicyReason.IDLE if over else PolicyReason.FAILED
    assert (reason(found), refused_by(history.policy)) == (expected, frozenset() if over else {CFG})
    if over:
        assert found.status.run is not None
        assert found.status.run.message == (
            "web-0: it broke; after that, all of them were replaced by others that do not need the run and are ready"
        )
        left = history.look(500, {}, *pods).status.config
        assert CFG not in {each.part.object_name for each in left}, "nothing is left of it"


SCALED: tuple[Running, ...] = ()
NO_TARGET = Stopped(PolicyReason.TARGET, "it is gone")


@pytest.mark.parametrize(
    ("running", "stopped", "edited"),
    [
        (SCALED, None, False),
        (SCALED, None, True),
        (SCALED, NO_TARGET, False),
        ((APP2, OLD), None, False),
        ((app(300, "web-2", "app", USE_OTHER),), None, False),  # the container does not use it any more
    ],
)
@pytest.mark.parametrize("halted", [False, True])
def test_corrected_data_is_seen_also_if_no_container_uses_it_any_more(
    running: tuple[Running, ...], stopped: Stopped | None, edited: bool, halted: bool
) -> None:
    history, _ = failed(halted=halted)
    policy = replace(history.policy, generation=2) if edited else history.policy
    for seconds, now in ((400, "b"), (500, "b"), (600, "c"), (700, "c")):
        if refused_by(policy):
            assert KEY in {each.key for each in lasting(policy, running)}, "the manager reads these"
        found = decide(policy, Observed(running, data(now, 99 if now == "b" else 599), stopped=stopped), at(seconds))
        policy = replace(policy, status=found.status, conditions=found.conditions)
        assert refused_by(policy) == ({CFG} if now == "b" else frozenset())


@pytest.mark.parametrize(
    ("change", "running"),
    [
        ({"generation": 2}, (APP2,)),  # it would try it again, and has no container for that
        ({"config": ConfigChange(10, ignore=("cfg",))}, SCALED),
        ({"config": None}, SCALED),
    ],
)
def test_after_an_edit_records_without_a_container_do_not_last(
    change: Mapping[str, Any], running: tuple[Running, ...]
) -> None:
    history, _ = failed()
    assert lasting(history.policy, running)
    assert lasting(replace(history.policy, **change), running) == []


def test_what_was_judged_no_is_over_once_it_is_corrected_although_the_container_uses_it_no_more() -> None:
    history, _ = failed(halted=True)
    pods = [app(300, each.pod, each.name, USE_OTHER, ready=True) for each in PODS]
    others = data("a", None, OTHER, OTHER_OF_SIDE)
    assert reason(history.look(400, data("b", 99) | others, *pods)) == PolicyReason.FAILED
    found = history.look(500, data("c", 499) | others, *pods)
    assert (reason(found), refused_by(history.policy)) == (PolicyReason.IDLE, frozenset())


def test_what_was_judged_no_does_not_promise_anything_of_a_new_template() -> None:
    """New pods have the same data, and that they are ready says no more than before."""
    history, run = failed(halted=True)
    found = history.look(400, known(), *(app(300, f"new-{number}", ready=True) for number in range(2)))
    expected = f"run {run.name} failed: web-0: it broke; no run starts until the configuration or the policy changes"
    assert (reason(found), message(found)) == (PolicyReason.FAILED, expected)
