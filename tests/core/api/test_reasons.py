"""The table of reasons: that it is whole, and that whoever gives a reason gives what its sentence takes."""

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from crrd.core.api.reasons import Reason, reason_of
from crrd.core.lifecycle import steps as lc

DAEMON = Path(__file__).parents[3] / "daemon"
REASONS = [reason for reason in Reason if reason is not Reason.NONE]
REMEDY_TAKES = {"namespace", "pod", "request", "node", "deadline", "log"}
FINAL = {
    "InvalidRequest",
    "ReloadNotDeclared",
    "ReloadChanged",
    "ReloadFailed",
    "EndedBeforeReload",
    "EndedAfterReload",
    "ContainerNotFound",
    "NotRecreatable",
    "ContainerMismatch",
    "NotRestartable",
    "LeftDown",
    "RestartsWholePod",
    "WholePodLeftDown",
    "PodWouldEnd",
    "PodWouldRestartTwice",
    "HookNeedsPodIP",
    "HostNetwork",
    "RuntimeUnfit",
    "SandboxFailed",
    "StopFailed",
    "StillRuns",
    "PinLost",
    "ImageMissing",
    "ImageNotRun",
    "NeedsNodeDaemon",
    "PatchRefused",
    "PatchFailed",
    "RunStopped",
    "PodGone",
    "PodReplaced",
    "PodElsewhere",
    "PodDeleting",
    "PodEnded",
    "EarlierFailure",
    "NoDaemonAnswered",
    "DeadlineExceeded",
    "DeadlineTooClose",
}
"""Those with which a container fails, by the names that users see in the status and in labels of metrics."""


def fields(text: str) -> set[str]:
    """What a text takes."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def givers() -> Iterator[tuple[str, Reason, set[str]]]:
    """Every place that makes a sentence of one certain reason, and what it gives for it."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DAEMON.rglob("*.py"))}
    for path in (path for path, text in texts.items() if "Message.of" in text):  # this runs in each collection
        for node in ast.walk(ast.parse(texts[path])):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called, first = ast.unparse(node.func), node.args[0]
            certain = isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name)
            if called == "Message.of" and certain and isinstance(first, ast.Attribute):
                given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                yield f"{path.relative_to(DAEMON)}:{node.lineno}", Reason[first.attr], given


GIVERS = list(givers())


def test_every_reason_has_a_sentence_and_none_has_not() -> None:
    assert all(reason.sentence for reason in REASONS)
    assert Reason.NONE.say() == ""


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_one_word(reason: Reason) -> None:
    assert reason.value.isalpha()
    assert reason.value[0].isupper()


@pytest.mark.parametrize("reason", REASONS)
def test_a_sentence_says_all_that_it_is_given(reason: Reason) -> None:
    names = fields(reason.sentence)
    assert all(name.isidentifier() for name in names)
    said = reason.say(**{name: f"<{name}>" for name in names})
    assert said
    assert all(f"<{name}>" in said for name in names)
    assert not set("{}") & set(said)


@pytest.mark.parametrize(("where", "reason", "given"), GIVERS, ids=[f"{where} {each}" for where, each, _ in GIVERS])
def test_whoever_gives_a_reason_gives_what_its_sentence_takes(where: str, reason: Reason, given: set[str]) -> None:
    assert given == fields(reason.sentence), where


def test_most_reasons_are_given_in_one_certain_place() -> None:
    """Else the test before would look at nothing. The lifecycle chooses the rest, and gives all that any may take."""
    assert set(REASONS) - {reason for _, reason, _ in GIVERS} <= {Reason.NO_ANSWER, Reason.DEADLINE, Reason.RUN_STOPPED}


@pytest.mark.parametrize("reason", REASONS)
def test_a_remedy_can_be_told(reason: Reason) -> None:
    assert fields(" ".join(reason.remedy)) <= REMEDY_TAKES
    steps = reason.advise(**{name: f"<{name}>" for name in REMEDY_TAKES})
    assert steps
    assert len(steps) == max(1, len(reason.remedy))
    assert not [step for step in steps if set("{}") & set(step)]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(
    "value", ["<x>", "", "stopping failed, is tried again: the pod no longer exists\nthe node daemon did not answer"]
)
def test_a_sentence_tells_its_reason_where_it_has_words_of_its_own(reason: Reason, value: str) -> None:
    names = fields(reason.sentence)
    found = reason_of(reason.say(**dict.fromkeys(names, value)), final=reason.final)
    assert found is (Reason.NONE if reason in (Reason.INVALID_REQUEST, Reason.HELD_BACK) else reason)
    assert reason_of(reason.say(**dict.fromkeys(names, value)), final=not reason.final) is Reason.NONE


@pytest.mark.parametrize(
    "message", ["", "CrashLoopBackOff: back-off", "see: the pod no longer exists", "pod has gone away"]
)
def test_other_words_tell_no_reason(message: str) -> None:
    assert {reason_of(message, final=final) for final in (True, False)} == {Reason.NONE}


def test_what_is_not_known_has_a_remedy_too() -> None:
    (step,) = Reason.NONE.advise(namespace="shop", request="restart-1")
    assert "kubectl -n shop get crr restart-1" in step


def test_the_final_ones_are_those_that_fail_a_container() -> None:
    assert {reason for reason in REASONS if reason.final} == FINAL
    assert set(lc.ENDS) <= FINAL


@pytest.mark.parametrize("reason", sorted(FINAL))
def test_what_has_failed_can_be_helped(reason: str) -> None:
    assert Reason(reason).remedy
