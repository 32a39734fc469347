"""How a run stands for those who do not carry it out."""

from dataclasses import replace
from datetime import timedelta

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.rollout.overview import RunStatus, is_unfinished, run_status, unstarted
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.progress import ANNOTATION_PROGRESS, Progress, read_progress
from crrd.core.rollout.requests import RunRequest, longest_lived, read_run_request
from crrd.core.rollout.rows import Row, count_done
from tests.support.rollouts import NOW, asked, member, run, succeeded

RUN = run()


def progress(end: End | None = None, seconds: float = 5, by: str = "laptop/42", *, blocked: bool = False) -> Progress:
    """What a process wrote so long ago."""
    at = rfc3339(NOW - timedelta(seconds=seconds))
    return Progress(at, by, RunPhase.ADOPTING, 1, 4, "web-1", blocked=blocked, end=end)


def written(request: RunRequest, found: Progress | None, **changes: object) -> RunRequest:
    """A request on which a process has written its progress."""
    changed = replace(request.request, **changes)  # type: ignore[arg-type]
    return replace(request, request=changed, progress=found)


def seen(*requests: RunRequest) -> RunStatus:
    return run_status(RUN, requests, NOW, lambda by: by == "laptop/13")


def one(found: Progress | None) -> RunRequest:
    return written(asked(RUN, member("web-0")), found)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (progress(), "running"),
        (progress(blocked=True), "waiting"),
        (progress(seconds=60), "running"),
        (progress(seconds=61), "stopped"),
        (progress(seconds=61, blocked=True), "stopped"),
        (progress(by="laptop/13"), "stopped"),
        (progress(seconds=-60), "running"),
        (progress(seconds=-61), "stopped"),  # The clock was set back after it was written
        (progress(End.YIELDED, -3600), "waiting"),
        (progress(End.YIELDED, -3601), "stopped"),
        *((progress(end, 3601), end.word) for end in End),
        (progress(End.YIELDED), "waiting"),
        (progress(End.YIELDED, 3600, blocked=True), "waiting"),
        (progress(End.YIELDED, by="laptop/13"), "stopped"),
        (None, "stopped"),
    ],
)
def test_a_run_whose_process_is_gone_does_not_go_on(found: Progress | None, word: str) -> None:
    status = seen(one(found))
    assert status.word == word
    is_turn = found is not None and found.end is End.YIELDED
    assert status.waits == ("web-1" if is_turn or word in ("running", "waiting", "halted") else "")
    assert status.between_turns is (is_turn and word == "waiting")


@pytest.mark.parametrize("end", [None, *End])
@pytest.mark.parametrize(("pulls", "left"), [(0, ""), (1, "1 pull pod;"), (2, "2 pull pods;")])
def test_pull_pods_that_a_run_has_left_are_named(end: End | None, pulls: int, left: str) -> None:
    before = seen(one(progress(end)))
    status = before.with_pulls(pulls, "ABORT")
    assert (before.pulls, status.pulls) == (0, pulls)
    if end is not None and end.over and left:
        assert status.waits == f"nothing, but it has left {left} to delete what is left: ABORT"
    else:
        assert status.waits == before.waits


def test_a_run_that_has_only_pull_pods() -> None:
    """It may be one that was killed before its first request, or one that waits for the first pull."""
    times = [NOW - timedelta(seconds=seconds) for seconds in (40, 90)]
    status = unstarted("shop", "begun", times, NOW, "ABORT")
    assert (status.word, status.phase, status.pulls, status.end) == ("unknown", RunPhase.PULLING, 2, None)
    assert (status.run.started, status.active_at, status.idle) == (rfc3339(times[1]), times[0], 40)
    assert status.waits == "the pull of an image; if no process carries it out, delete its pull pods: ABORT"
    assert (status.done, status.total, status.blocked, status.between_turns) == (0, 0, False, False)


def test_the_phase_is_the_one_that_was_recorded_or_over() -> None:
    assert seen(one(progress())).phase is RunPhase.ADOPTING
    assert seen(one(progress(seconds=61))).phase is RunPhase.ADOPTING, "resume goes on there"
    assert {seen(one(progress(end))).phase for end in End if end.over} == {RunPhase.OVER}
    assert {seen(one(progress(end))).phase for end in End if not end.over} == {RunPhase.ADOPTING}
    assert seen(one(None)).phase is RunPhase.RESTARTING
    aborted = written(one(None), None, aborted="2026-01-01T12:00:00Z")
    assert (seen(aborted).word, seen(aborted).phase) == ("aborted", RunPhase.OVER), "its process was killed at once"


def test_a_run_with_an_open_request_is_unfinished_although_its_end_is_recorded() -> None:
    """Its process was interrupted, and a daemon still restarts a pod for it."""
    done = written(succeeded(RUN, member("web-0")), progress(End.FAILED))
    assert not is_unfinished((done,), NOW)
    assert is_unfinished((done, asked(RUN, member("web-1"))), NOW)


def test_after_a_step_is_over_no_progress_of_it_counts() -> None:
    """The clock was set back after a judgement of no, and before a user has overruled it."""
    no = written(succeeded(RUN, member("web-0")), progress(End.HALTED, -300))
    rest = written(asked(RUN, member("web-1")), replace(progress(), steps=1))
    assert seen(no, rest).word == seen(rest, no).word == "running"


def test_the_newest_word_counts_and_an_abort_more_than_any() -> None:
    old = written(asked(RUN, member("web-0")), progress(seconds=30))
    new = written(succeeded(RUN, member("web-1")), progress(End.DONE, 2), created="2026-01-01T12:00:30Z")
    found = seen(new, old)
    assert (found.word, found.host, found.done, found.total) == ("done", "laptop", 1, 4)
    assert (found.active_at, found.idle) == (NOW - timedelta(seconds=30), 30.0)
    tied = written(asked(RUN, member("web-2")), progress(None, 2, "desk/7"))
    assert seen(tied, new).word == "done", "an end is the last that is written"
    going = replace(new, progress=progress(None, 2))
    assert {seen(tied, going).host, seen(going, tied).host} == {"laptop"}, "that of the newest request"
    aborted = replace(old, request=replace(old.request, aborted="2026-01-01T12:00:00Z"))
    assert (seen(aborted, new).word, seen(aborted, new).phase) == ("aborted", RunPhase.OVER)
    nothing = seen(written(old, None, created=""))
    assert (nothing.host, nothing.active_at, nothing.idle) == ("", None, 0.0)
    assert (nothing.done, nothing.total, nothing.waits, nothing.blocked) == (0, 0, "", False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"done":1}', '{"at":"2026-01-01T12:00:00Z","phase":"Going"}'])
def test_progress_that_cannot_be_read_is_none(text: str) -> None:
    body = RUN.request("web-0", "uid", ("app",))
    for annotation, found in (
        (progress().annotation(), progress()),
        (progress(End.LEFT_OUT, blocked=True).annotation(), progress(End.LEFT_OUT, blocked=True)),
        ({ANNOTATION_PROGRESS: text}, None),
        (replace(progress(), at="yesterday").annotation(), None),
    ):
        body["metadata"]["annotations"] |= annotation
        mark = read_run_request(body)
        assert mark is not None
        assert mark.progress == found


def test_what_is_recorded_keeps_its_form() -> None:
    """Processes of other versions read it."""
    text = (
        '{"version":1,"at":"2026-01-01T12:00:55Z","by":"laptop/42","phase":"Adopting","done":1,"total":4,'
        '"waits":"web-1","blocked":true,"end":"PutOff"}'
    )
    assert progress(End.PUT_OFF, blocked=True).annotation() == {ANNOTATION_PROGRESS: text}
    assert read_progress(text) == progress(End.PUT_OFF, blocked=True)
    later = text.replace("{", '{"later":[1],', 1).replace('"PutOff"', '"SomethingNew"')
    assert read_progress(later) == progress(blocked=True), "an end of a later version is not known here"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("running", "running"),
        ("waiting", "waiting"),
        ("done", "done"),
        ("incomplete", "incomplete"),
        ("paused", "paused"),
    ],
)
def test_the_first_form_is_read(state: str, word: str) -> None:
    """It had a state in place of phase and end, and no version."""
    text = f'{{"at":"2026-01-01T12:00:55Z","by":"laptop/42","state":"{state}","done":1,"total":4,"waits":"web-1"}}'
    found = seen(one(read_progress(text)))
    assert (found.word, found.done, found.total) == (word, 1, 4)


def test_pods_that_were_left_out_do_not_count() -> None:
    stages = (Stage.DONE, Stage.DONE, Stage.FAILED, Stage.SKIPPED, Stage.GONE, Stage.RECREATING)
    assert count_done(tuple(Row(f"web-{number}", "uid", stage) for number, stage in enumerate(stages))) == (3, 4)


def test_an_end_counts_although_the_newest_request_was_created_in_the_same_second() -> None:
    """The end is written on the request that lives longest; the newest has only what it was created with."""
    first = written(succeeded(RUN, member("web-0"), completion_time=rfc3339(NOW)), progress(End.DONE))
    second = written(succeeded(RUN, member("web-1"), completion_time=rfc3339(NOW - timedelta(seconds=9))), progress())
    under_way = one(None)
    assert longest_lived((second, first)) == first
    assert longest_lived((first, under_way, second)) == under_way
    assert seen(first, second).end is End.DONE
    assert seen(second, first).end is End.DONE
