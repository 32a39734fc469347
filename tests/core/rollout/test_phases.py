"""The tables of a run's phases and ends."""

import pytest

from crrd.core.rollout.phases import RUN_MOVES, End, GoOn, RunPhase

RESUME = "kubectl recreate resume web-1 -n shop"


def test_every_phase_can_be_reached_and_leads_to_the_end() -> None:
    found = {RunPhase.PULLING, RunPhase.RESTARTING}
    for _ in RunPhase:
        found |= {new for old, new in RUN_MOVES if old in found}
    assert found == set(RunPhase)
    leads = {RunPhase.OVER}
    for _ in RunPhase:
        leads |= {old for old, new in RUN_MOVES if new in leads}
    assert leads == set(RunPhase)
    assert all(old is not RunPhase.OVER and old is not new for old, new in RUN_MOVES)


def test_an_end_is_found_by_the_name_that_is_recorded() -> None:
    assert [End.named(end.value) for end in End] == list(End)
    assert End.named("done") is None, "this is its word"
    assert [repr(str(end)) for end in End] == [repr(end.value) for end in End]


@pytest.mark.parametrize("end", End)
def test_a_row_is_complete_and_fits_together(end: End) -> None:
    assert end.word
    assert end.cause
    assert end.next_follows is (end is End.DONE or end.incomplete), "nothing has gone wrong"
    assert (end.go_on in (GoOn.NOT, GoOn.NEW_RUN, GoOn.NODE_BACK, GoOn.RETRY, GoOn.OVERRULE)) is end.over
    assert end.incomplete is (end.word == "incomplete")


@pytest.mark.parametrize(
    ("end", "code", "watched"),
    [
        (End.DONE, 0, 0),
        (End.LEFT_OUT, 4, 4),
        (End.PUT_OFF, 4, 4),
        (End.FAILED, 1, 1),
        (End.HALTED, 1, 1),
        (End.ABORTED, 1, 1),
        (End.PAUSED, 0, 0),
        (End.RIVAL, 2, 1),
        (End.TIMED_OUT, 3, 1),
        (End.INTERRUPTED, 130, 1),
        (End.STOPPED, 2, 1),
        (End.YIELDED, 0, 1),
    ],
)
def test_the_exit_codes_of_a_command_and_of_status_watch_stay(end: End, code: int, watched: int) -> None:
    """Scripts go by them."""
    assert (end.exit_code, end.watch_code) == (code, watched)


def test_what_a_user_can_do_names_the_command_once() -> None:
    assert End.DONE.go_on.say(RESUME) == ""
    assert End.PAUSED.go_on.say(RESUME) == f"to continue: {RESUME} --yes"
    assert End.FAILED.go_on.say(RESUME) == f"after fixing the cause, to continue: {RESUME} --retry-failed"
    assert End.FAILED.go_on.say(f"{RESUME} --retry-failed").count("--retry-failed") == 1
    assert End.HALTED.go_on.command(RESUME) == f"{RESUME} --yes", "without the flag it is halted again"
    assert End.ABORTED.go_on.say(RESUME) == "to restart the rest, start a new run"


@pytest.mark.parametrize("end", End)
def test_status_and_the_last_line_have_the_same_command(end: End) -> None:
    command = end.go_on.command(RESUME)
    assert command in end.go_on.say(RESUME)
    assert bool(command) is ("{resume}" in end.go_on.sentence)
    assert end.go_on.command(command) == command, "a flag that it has is not repeated"
