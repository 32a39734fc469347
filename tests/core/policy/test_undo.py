"""`onFailure: Undo`: pods get the image back that they had before a run with an image failed."""

from dataclasses import replace

import pytest

from crrd.core.policy.course import ended, make_run
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Look, Observed
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.problems import problems
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import Judge, OnFailure, Policy, RunRecord, Schedule
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.image.following import TemplateChange
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Target
from crrd.rollout.image.start import undone
from tests.core.policy.test_decide import PLAIN, History, app, at, data, message, reason
from tests.core.policy.test_template_image import IMAGE, has, new, run_of

UNDO = replace(IMAGE, on_failure=OnFailure.UNDO, judge=Judge(60))
PODS = app(pod="web-0"), app(pod="web-1")
NO = "the judgement of step 1 of 2 is no: web-0 has restarted once more"
HALF = new(lacking=(("web-1", "b"),))  # web-0 has the new image


def halted(policy: Policy = UNDO, seconds: float = 20) -> History:
    """A policy whose run for i:2 has given it to web-0, and has ended with a judgement of no."""
    history = History(policy)
    history.look(1, data("a"), *PODS, template=has())
    assert history.look(10, data("a"), *PODS, template=has(new())).run is not None
    history.end(seconds, End.HALTED, message=NO)
    return history


def undoing(policy: Policy = UNDO) -> tuple[History, RunRecord]:
    """The same, and the run back has begun."""
    history = halted(policy)
    found = history.look(21, data("a"), *PODS, template=has(HALF)).run
    assert found is not None
    return history, found


def judged(history: History) -> tuple[object, object]:
    assert history.last is not None
    return next((each["status"], each["message"]) for each in history.last.conditions if each["type"] == "Judged")


def test_the_run_back_is_what_kubectl_recreate_undo_would_do() -> None:
    target, failed = Target("deployment.apps/web"), make_run(UNDO, run_of(halted()), Target("deployment.apps/web"))
    _, found = undoing()
    assert make_run(UNDO, found, target).options.image == undone(failed)
    assert make_run(UNDO, found, target).options.judge == 0
    assert found.reason == f"policy web: run {failed.name} has failed, so app gets i:1 back"
    assert read_policy({"status": write_status(undoing()[0].policy.status)}).status.run == found


def test_the_failed_image_is_not_given_again_and_the_policy_says_how_it_has_ended() -> None:
    history, found = undoing()
    assert judged(history) == ("False", f"run {found.undoes}: {NO}")
    assert history.look(22, data("a"), *PODS, template=has(new())).run == found, "web-0 has its old image"
    history.end(30, message="1 of 1 pods recreated")
    stopped = history.look(31, data("a"), *PODS, template=has(new()))
    assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
    assert f"{NO}; run {found.name}, which gives i:1 back, has ended: 1 of 1 pods recreated; no run" in message(stopped)
    assert judged(history)[0] == "False"
    assert history.look(9000, data("a"), *PODS, template=has(new())).run is None
    again = history.look(9001, data("a"), *PODS, template=has(new("i:3"))).run
    assert again is not None
    assert (again.image, again.undoes, again.back) == ("i:3", "", False)


def test_a_template_that_is_set_back_ends_it() -> None:
    history, _ = undoing()
    history.end(30)
    idle = history.look(31, data("a"), *PODS, template=has())
    assert (idle.run, reason(idle), idle.status.tried, judged(history)[0]) == (None, PolicyReason.IDLE, (), "True")


def test_any_failure_is_undone_and_no_distance_of_runs_is_kept() -> None:
    history = halted(replace(UNDO, budget=replace(UNDO.budget, min_interval=3600), judge=None))
    assert run_of(history).halted
    history.policy = replace(
        history.policy, status=replace(history.policy.status, run=replace(run_of(history), halted=False))
    )
    found = history.look(21, data("a"), *PODS, template=has(HALF)).run
    assert found is not None
    assert found.image == "i:1"


@pytest.mark.parametrize("policy", [replace(UNDO, on_failure=OnFailure.HALT), replace(UNDO, template_image=False)])
def test_no_other_policy_gives_an_image_back(policy: Policy) -> None:
    history = halted()
    history.policy = replace(policy, config=PLAIN.config, status=history.policy.status)
    assert history.look(21, data("a"), *PODS, template=has(HALF)).run is None


@pytest.mark.parametrize("change", [new(), replace(HALF, behind=False)])
def test_nothing_is_given_that_a_pod_has_not_had(change: TemplateChange) -> None:
    """No pod has the image if it cannot be pulled. A run with the image of new pods finds it in pods."""
    found = halted().look(21, data("a"), *PODS, template=has(change))
    assert (found.run, reason(found)) == (None, PolicyReason.FAILED)


def test_pods_that_had_several_images_are_left_and_the_policy_says_so() -> None:
    history = History(UNDO)
    several = replace(new(), before=("i:0", "i:1"))
    history.look(1, data("a"), *PODS, template=has())
    history.look(10, data("a"), *PODS, template=has(several))
    history.end(20, End.FAILED, message=NO)
    found = history.look(21, data("a"), *PODS, template=has(replace(several, lacking=HALF.lacking)))
    assert (found.run, reason(found)) == (None, PolicyReason.FAILED)
    assert f"{NO}; not undone, because its pods had i:0, i:1 before, and not one image" in message(found)


@pytest.mark.parametrize(("before", "why"), [("i:latest", "which has no fixed tag"), ("", "")])
def test_an_image_that_another_pull_may_bring_is_not_given_back(before: str, why: str) -> None:
    """`kubectl recreate undo` refuses it, too."""
    history, change = History(UNDO), new(before=tuple(filter(None, [before])))
    history.look(1, data("a"), *PODS, template=has())
    history.look(10, data("a"), *PODS, template=has(change))
    history.end(20, End.FAILED, message=NO)
    found = history.look(21, data("a"), *PODS, template=has(replace(change, lacking=HALF.lacking)))
    assert (found.run, "not undone" in message(found)) == (None, bool(why))
    assert why in message(found)


def test_an_edit_of_the_policy_ends_no_run_back() -> None:
    history, found = undoing()
    history.policy = replace(history.policy, generation=2)
    assert history.look(22, data("a"), *PODS, template=has(HALF)).run == found
    history.end(30)
    again = history.look(31, data("a"), *PODS, template=has(new())).run
    assert again is not None
    assert again.image == "i:2", "it is tried once more, as after any edit"


def test_a_new_template_ends_a_run_back() -> None:
    history, found = undoing()
    newer = history.look(22, data("a"), *PODS, template=has(replace(new("i:3"), before=("i:1", "i:2")))).run
    assert newer is not None
    assert (newer.image, newer.before, newer.name != found.name) == ("i:3", ("i:1", "i:2"), True)


def test_a_run_back_that_fails_is_not_repeated() -> None:
    history, found = undoing()
    history.end(30, End.FAILED, message="app of web-0 ended again")
    for seconds in (31, 9000):
        stopped = history.look(seconds, data("a"), *PODS, template=has(HALF))
        assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
        assert f"run {found.name} failed: app of web-0 ended again" in message(stopped)
        assert f"by hand: kubectl recreate undo {found.undoes} -n shop" in message(stopped)
        assert "suspend" not in message(stopped), "after that, the failed image would be given again"
        assert judged(history) == ("False", f"run {found.undoes}: {NO}")
    assert history.look(9001, data("a"), *PODS, template=has(new("i:3"))).run is not None


@pytest.mark.parametrize("behind", [False, True])
def test_after_one_that_has_failed_pods_follow_a_template_that_is_set_back(*, behind: bool) -> None:
    """A controller may have made a pod of the revision with i:2 meanwhile. Nothing undoes a run back."""
    history, _ = undoing()
    history.end(30, End.FAILED, message="node is slow")
    back = new("i:1", before=("i:2",), lacking=(("web-0", "a"),), behind=behind)
    found = history.look(40, data("a"), *PODS, template=has(back)).run
    assert found is not None
    assert (found.image, found.undoes) == ("i:1", "")


def test_pods_that_a_run_back_has_left_get_their_image_later() -> None:
    """For example because a node is down."""
    history, found = undoing()
    history.end(30, End.PUT_OFF, away=("web-0",), message="node a is down")
    stopped = history.look(31, data("a"), *PODS, template=has(HALF))
    assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
    assert "but the one that gives i:1 back is repeated at 2026-01-01T12:10:30Z" in message(stopped)
    again = history.look(700, data("a"), *PODS, template=has(HALF)).run
    assert again is not None
    assert (again.image, again.undoes, again.name != found.name) == ("i:1", found.undoes, True)
    history.end(710)
    assert [each.name for each in history.policy.status.tried] == [found.undoes, again.name]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_run_back_that_could_do_no_pod_begins_once_a_node_is_back(*, is_repeated: bool) -> None:
    history, down = halted(), {"a": "node a is not ready"}
    pods = tuple(replace(each, node=node) for each, node in zip(PODS, "ab", strict=True))
    if is_repeated:
        assert history.look(21, data("a"), *pods, template=has(HALF)).run is not None
        history.end(30, End.PUT_OFF, away=("web-0",))
    for seconds in (31, 700, 9000):
        waits = history.look(seconds, data("a"), *pods, template=has(HALF), down=down)
        assert (waits.run, reason(waits)) == (None, PolicyReason.FAILED)
        assert "but one that gives i:1 back begins once a node of its pods is not down any more" in message(waits)
    back = history.look(9001, data("a"), *pods, template=has(HALF)).run
    assert back is not None
    assert back.image == "i:1"


def test_one_that_can_do_a_pod_does_not_wait_for_the_others() -> None:
    history, most = halted(), new(lacking=())
    pods = tuple(replace(each, node=node) for each, node in zip(PODS, "ab", strict=True))
    assert history.look(21, data("a"), *pods, template=has(most), down={"a": "node a is not ready"}).run is not None


def test_changed_configuration_ends_no_run_back() -> None:
    """Its restart would bring the bad image once more, and the run back would not begin again."""
    history, found = undoing(replace(UNDO, config=PLAIN.config))
    history.look(22, data("b", 22), *PODS, template=has(HALF))
    assert history.look(40, data("b", 22), *PODS, template=has(HALF)).run == found


def test_what_changes_during_a_run_back_that_fails_gives_the_bad_image_no_further_pod() -> None:
    """web-0 still has it."""
    history, found = undoing(replace(UNDO, config=PLAIN.config))
    history.look(22, data("b", 22), *PODS, template=has(HALF))
    history.policy = replace(history.policy, generation=2)
    history.look(40, data("b", 22), *PODS, template=has(HALF))
    over = replace(found, generation=2)  # as RunTask records it
    status = ended(history.policy, over, Outcome(End.FAILED), message="node is slow", now=at(45))
    history.policy = replace(history.policy, status=status)
    again = history.look(46, data("b", 22), *PODS, template=has(HALF)).run
    assert again is None or not again.image
    history.policy = replace(history.policy, generation=3)
    tried = history.look(50, data("b", 22), *PODS, template=has(HALF)).run
    assert tried is not None
    assert tried.image == "i:2", "as after any edit"


def test_what_only_records_lack_comes_after_images_that_pods_lack() -> None:
    """The records of a set follow once its pods have all images."""
    history, side = History(replace(UNDO, on_failure=OnFailure.HALT)), new("s:2", "side", before=("s:1",))
    pods = (*PODS, app(pod="web-0", name="side"), app(pod="web-1", name="side"))
    history.look(1, data("a"), *pods, template=has())
    history.look(10, data("a"), *pods, template=has(new()))
    history.end(20, End.FAILED, message=NO)
    complete = new(lacking=())
    assert history.look(21, data("a"), *pods, template=has(side, complete)).run is None, "that has failed"
    history.policy = replace(history.policy, generation=2)
    found = history.look(30, data("a"), *pods, template=has(complete, side)).run
    assert found is not None
    assert found.containers == ("side",)


def test_it_comes_before_another_image() -> None:
    """Of a container that is above in the template."""
    history, side = History(UNDO), new("s:2", "side", before=("s:1",))
    pods = (*PODS, app(pod="web-0", name="side"), app(pod="web-1", name="side"))
    history.look(1, data("a"), *pods, template=has())
    history.look(10, data("a"), *pods, template=has(side))
    history.end(20, End.HALTED, message=NO)
    found = history.look(21, data("a"), *pods, template=has(new(), replace(side, lacking=HALF.lacking))).run
    assert found is not None
    assert (found.containers, found.image, found.before) == (("side",), "s:1", ("s:2",))


@pytest.mark.parametrize("is_over", [False, True])
def test_a_moment_without_pods_makes_no_failure_forgotten(*, is_over: bool) -> None:
    history, found = undoing()
    if is_over:
        history.end(30)
    gone = decide(history.policy, Observed((), {}, template=has()), at(40))
    history.policy = replace(history.policy, status=gone.status)
    after = history.look(50, data("a"), *PODS, template=has(HALF)).run
    assert after is None if is_over else after == found


def test_nor_does_it_repair_a_run_that_has_failed_without_a_judgement() -> None:
    history = halted()
    last = replace(run_of(history), halted=False)
    history.policy = replace(history.policy, status=replace(history.policy.status, run=last, tried=(last,)))
    gone = decide(history.policy, Observed((), {}, template=has()), at(21))
    history.policy = replace(history.policy, status=gone.status)
    assert run_of(history).failed


def test_a_change_that_cannot_be_seen_for_a_moment_is_still_refused() -> None:
    """After an edit of the policy, what the run would write is tried once more, and may be refused."""
    history, found = undoing()
    history.policy = replace(history.policy, generation=2)
    history.look(22, data("a"), *PODS, template=has(refused=("quota",)))
    assert history.look(23, data("a"), *PODS, template=has(HALF)).run == found


def test_as_after_a_halt_no_schedule_starts_a_run() -> None:
    history, _ = undoing(replace(UNDO, schedule=Schedule("* * * * *", "UTC")))
    history.end(30)
    stopped = history.look(90, data("a"), *PODS, template=has(new()))
    assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)


def test_a_record_that_has_lost_what_it_undoes_is_not_carried_out() -> None:
    """As by a CRD of an older version. Its run would write the old image into what has it already."""
    history, found = undoing()
    status = replace(history.policy.status, run=replace(found, undoes=""))
    history.policy = replace(history.policy, status=status)
    again = history.look(22, data("a"), *PODS, template=has(HALF)).run
    assert again is not None
    assert (again.undoes, again.image) == (found.undoes, "i:1")


def test_an_older_crd_is_enough_for_all_other_runs() -> None:
    assert write_status(halted().policy.status)["run"]["undoes"] is None


def test_undo_without_the_trigger_is_told() -> None:
    policy = replace(PLAIN, on_failure=OnFailure.UNDO)
    assert PolicyReason.NO_UNDO in [each.reason for each in problems(Look(policy, Observed(), at(1)))]
    assert problems(Look(UNDO, Observed(PODS), at(1))) == ()
