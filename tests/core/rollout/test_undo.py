"""An undo takes over from the run that it undoes: it is needed most while that run cannot end."""

from dataclasses import replace

import pytest

from crrd.core.api.reasons import Reason
from crrd.core.api.types import RequestPhase
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import Content, Template
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import is_unfinished, undone_by, unfinished
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rivals import taken_over
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import recorded_rows
from crrd.core.rollout.state import Member, World
from tests.support.rollouts import (
    AFTER,
    NOW,
    again,
    asked,
    chosen,
    container,
    failed,
    member,
    planned,
    recreated,
    run,
    succeeded,
    workload,
)

OLD, NEW = "app:1", "app:2"
FIRST = run(image=ImageChange(NEW, (OLD,), pulls=False, template="rest"))
UNDO = run(name="undo", started=AFTER, image=ImageChange(OLD, (NEW,), pulls=False, template="rest", undoes="run"))
BAD = recreated(member("web-0", container(image=NEW)), ready=False)
GOOD = member("web-1", container(image=OLD))
OPEN = asked(FIRST, BAD, RequestPhase.RECREATING)


def known(*requests: RunRequest, members: tuple[Member, ...] = (BAD, GOOD), holder: str = "") -> World:
    held = Template("Deployment", "web", "uid-of-web", Content(OLD, "/containers/0", "rest"), holder=holder)
    return World(members, requests, workload(2), extra=ImageState(template=held, container="app"))


def test_an_undo_begins_while_a_pod_with_the_bad_image_has_its_request() -> None:
    assert unfinished(kind_of(known(OPEN), UNDO), NOW) is None
    assert chosen(planned(known(OPEN), UNDO)) == ["web-0"]
    assert taken_over(known(OPEN), UNDO) == {BAD.pod.uid: [OPEN]}
    stopped = replace(OPEN, request=replace(OPEN.request, stopped=True))
    assert taken_over(known(stopped), UNDO) == {}, "the manager is about to end it"
    assert planned(known(OPEN), UNDO).end is None, "the older run is no rival"
    assert unfinished(kind_of(known(OPEN), replace(UNDO, started=FIRST.started, name="later")), NOW) is None


def test_an_undo_begins_after_a_run_that_has_stopped_between_two_pods() -> None:
    stopped = known(succeeded(FIRST, BAD), members=(replace(BAD, ready=True), GOOD))
    assert is_unfinished(stopped.requests_of(FIRST), NOW)
    assert is_unfinished(known(OPEN).requests_of(FIRST), NOW)
    assert unfinished(kind_of(stopped, run(name="next", started=AFTER)), NOW) == FIRST
    assert unfinished(kind_of(stopped, UNDO), NOW) is None


def test_other_runs_are_waited_for() -> None:
    other = asked(run(name="other"), BAD)
    assert unfinished(kind_of(known(OPEN, other), UNDO), NOW) == other.run
    assert planned(known(OPEN, other), UNDO).end is End.RIVAL
    assert unfinished(kind_of(known(OPEN), run(name="next", started=AFTER)), NOW) == FIRST


def test_a_run_that_holds_the_controller_must_release_it_first() -> None:
    assert unfinished(kind_of(known(OPEN, holder="run"), UNDO), NOW) == FIRST


def over(of: Run, end: End) -> RunRequest:
    """A request of a run with this recorded end."""
    return replace(succeeded(of, GOOD), progress=Progress(AFTER, "host/1", RunPhase.OVER, 1, 1, end=end))


def test_the_run_that_undoes_another_one_is_the_newest_of_several() -> None:
    later = replace(UNDO, name="later", started="2026-01-01T12:00:50Z")
    requests = (OPEN, over(later, End.DONE), over(UNDO, End.DONE), over(run(name="other"), End.DONE))
    assert [undone_by(each, requests) for each in (FIRST, UNDO)] == ["later", ""]
    failed_last = (over(later, End.FAILED), over(UNDO, End.DONE))
    assert undone_by(FIRST, failed_last) == "undo", "one that has failed has undone nothing"
    assert undone_by(FIRST, (asked(later, GOOD),)) == ""


@pytest.mark.parametrize(
    ("request_", "stage", "why"),
    [
        (asked(FIRST, BAD), Stage.REQUESTED, ""),
        (OPEN, Stage.RECREATING, ""),
        (succeeded(FIRST, BAD), Stage.DONE, ""),
        (failed(FIRST, BAD), Stage.FAILED, "app: it would not end"),
        (failed(FIRST, BAD, Reason.POD_GONE), Stage.GONE, "the pod was deleted"),
        (failed(FIRST, BAD, Reason.RUN_STOPPED), Stage.WAITING, ""),
        (failed(FIRST, BAD, Reason.POD_ENDED), Stage.GONE, "the pod was deleted"),
        (failed(FIRST, BAD, Reason.CONTAINER_NOT_FOUND), Stage.SKIPPED, "app: it would not end"),
        (failed(FIRST, BAD, Reason.ENDED_BEFORE_RELOAD), Stage.SKIPPED, "app: it would not end"),
    ],
)
def test_a_row_is_shown_as_its_newest_request_has_it(request_: RunRequest, stage: Stage, why: str) -> None:
    first = failed(FIRST, BAD)
    newest = again(request_, first)
    newest = replace(newest, request=replace(newest.request, created=AFTER))
    (row,) = recorded_rows((newest, first))
    assert (row.pod, row.stage, row.wait.why) == ("web-0", stage, why)
