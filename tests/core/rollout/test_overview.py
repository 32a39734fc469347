"""How a run stands for those who do not carry it out."""

from dataclasses import replace
from datetime import timedelta

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.rollout.overview import RunStatus, run_status
from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import ANNOTATION_PROGRESS, Progress
from crrd.core.rollout.standing import Row, Stage, count_done
from crrd.core.rollout.waits import Wait
from tests.support.rollouts import NOW, asked, member, run, succeeded

RUN = run()


def progress(state: str = "running", seconds: float = 5, by: str = "laptop/42") -> Progress:
    """What a process wrote so long ago."""
    return Progress(rfc3339(NOW - timedelta(seconds=seconds)), by, state, 1, 4, "web-1")


def written(request: RunRequest, found: Progress | None, **changes: object) -> RunRequest:
    """A request on which a process has written its progress."""
    changed = replace(request.request, **changes)  # type: ignore[arg-type]
    return replace(request, request=changed, progress=found)


def seen(*requests: RunRequest, plan: Plan | None = None) -> RunStatus:
    return run_status(RUN, requests, NOW, lambda by: by == "laptop/13", plan)


def one(found: Progress | None) -> RunRequest:
    return written(asked(RUN, member("web-0")), found)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (progress(), "running"),
        (progress("waiting"), "waiting"),
        (progress(seconds=61), "stopped"),
        (progress("waiting", 61), "stopped"),
        (progress(by="laptop/13"), "stopped"),
        (progress("stopped"), "stopped"),
        (progress("done", 3600), "done"),
        (progress("failed", 3600), "failed"),
        (progress("paused", 3600), "paused"),
        (None, "stopped"),
    ],
)
def test_a_run_whose_process_is_gone_does_not_go_on(found: Progress | None, state: str) -> None:
    status = seen(one(found))
    assert status.state == state
    assert status.waits == ("web-1" if state in ("running", "waiting") else "")


def test_the_newest_word_counts_and_an_abort_more_than_any() -> None:
    old = written(asked(RUN, member("web-0")), progress(seconds=30))
    new = written(succeeded(RUN, member("web-1")), progress("done", 2), created="2026-01-01T12:00:30Z")
    found = seen(new, old)
    assert (found.state, found.host, found.done, found.total) == ("done", "laptop", 1, 4)
    assert (found.active_at, found.idle) == (NOW - timedelta(seconds=30), 30.0)
    tied = written(asked(RUN, member("web-2")), progress("running", 2))
    assert seen(tied, new).state == "done", "the newest request is the last to be written"
    aborted = replace(old, request=replace(old.request, aborted="2026-01-01T12:00:00Z"))
    assert seen(aborted, new).state == "aborted"
    nothing = seen(written(old, None, created=""))
    assert (nothing.host, nothing.active_at, nothing.idle) == ("", None, 0.0)


@pytest.mark.parametrize(
    ("plan", "state", "shown"),
    [
        (Plan((), end=End.DONE), "running", "done"),
        (Plan((), end=End.FAILED), "stopped", "failed"),
        (Plan((), end=End.FAILED), "running", "running"),  # it retries what has failed
        (Plan((), end=End.FAILED), "waiting", "waiting"),
        (Plan((Row("web-0", "uid", Stage.FAILED),), end=End.DONE), "stopped", "failed"),
        (Plan((), end=End.ABORTED), "running", "aborted"),
        (Plan((), end=End.PAUSED), "stopped", "paused"),
        (Plan((), end=End.RIVAL), "stopped", "stopped"),
        (Plan(()), "done", "stopped"),
        (Plan(()), "stopped", "stopped"),
        (Plan(()), "waiting", "running"),
        (Plan((), wait=Wait("budget")), "running", "waiting"),
    ],
)
def test_what_the_pods_say_counts(plan: Plan, state: str, shown: str) -> None:
    assert seen(one(progress(state)), plan=plan).state == shown


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at":"2026-01-01T12:00:00Z"}'])
def test_progress_that_cannot_be_read_is_none(text: str) -> None:
    body = RUN.request("web-0", "uid", ("app",))
    for annotation, found in (
        (progress().annotation(), progress()),
        ({ANNOTATION_PROGRESS: text}, None),
        (replace(progress(), at="yesterday").annotation(), None),
        (replace(progress(), by=1).annotation(), None),  # type: ignore[arg-type]
    ):
        body["metadata"]["annotations"] |= annotation
        mark = read_run_request(body)
        assert mark is not None
        assert mark.progress == found


def test_pods_that_were_left_out_do_not_count() -> None:
    stages = (Stage.DONE, Stage.DONE, Stage.FAILED, Stage.SKIPPED, Stage.GONE, Stage.RECREATING)
    assert count_done(tuple(Row(f"web-{number}", "uid", stage) for number, stage in enumerate(stages))) == (3, 4)


@pytest.mark.parametrize(
    ("recorded", "state"), [("waiting", "waiting"), ("incomplete", "incomplete"), ("stopped", "incomplete")]
)
def test_a_run_that_has_only_pods_on_dead_nodes_left(recorded: str, state: str) -> None:
    plan = Plan((Row("web-0", "uid-web-0", Stage.PUT_OFF),), end=End.INCOMPLETE)
    assert seen(one(progress(recorded)), plan=plan).state == state
