"""The help of `crrd recreate` and its verbs."""

import argparse

import pytest

from crrd.cli.recreate import arranged
from crrd.cli.recreate_flags import add_flags
from crrd.core.rollout.phases import End


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ("-wn shop status web", ["status", "web", "-w", "-n", "shop"]),
        ("status -wnshop web", ["status", "web", "-w", "-nshop"]),
        ("deployment/web --reason -later -y", ["", "deployment/web", "--reason=-later", "-y"]),
        ("deployment/web -n", ["", "deployment/web", "-n"]),
        ("deployment/web --reason --dry-run", ["", "deployment/web", "--reason", "--dry-run"]),
        ("deployment/web -y=true", ["", "deployment/web", "-y=true"]),
        ("status -w=false", ["status", "-w=false"]),
        ("-lapp=web -c app", ["", "-lapp=web", "-c", "app"]),
    ],
)
def test_flags_as_kubectl_has_them(words: str, order: list[str]) -> None:
    assert arranged(words.split()) == order


ENDS = [end for end in End if end is not End.YIELDED]


def exit_codes(verb: str) -> dict[int, list[str]]:
    """The exit codes that the help of a verb lists, with their meanings."""
    add_flags(parser := argparse.ArgumentParser(), verb)
    lines = (parser.epilog or "").partition("exit codes:\n")[2].splitlines()
    return {int(code): meanings.split(", ") for code, meanings in (line.split(maxsplit=1) for line in lines)}


@pytest.mark.parametrize("verb", ["", "resume", "undo"])
def test_the_exit_code_of_each_end_is_listed(verb: str) -> None:
    found = exit_codes(verb)
    assert {end: end.word in found[end.exit_code] for end in ENDS} == dict.fromkeys(ENDS, True)
    assert found.keys() == {end.exit_code for end in ENDS}
    assert "bad input" in found[2]


def test_a_run_that_is_watched_has_the_exit_code_of_its_end_or_1() -> None:
    assert exit_codes("status") == {
        0: ["done", "paused"],
        1: ["failed", "halted", "aborted", "stopped", "timed out", "interrupted", "cannot reach the API server"],
        2: ["bad input"],
        4: ["incomplete"],
        130: ["Ctrl-C"],
    }
    assert {end.watch_code for end in End} == {0, 1, 4}


def test_an_abort_has_exit_codes_of_its_own() -> None:
    assert exit_codes("abort").keys() == {0, 1, 2}
