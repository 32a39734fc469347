"""Every sentence that a person meets is short, says who does what, and uses the terms of Kubernetes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from crrd.lib.plain import with_flags
from tests.tools.manifest_texts import ALERT, CHART, FIELD, HEADS, PANEL, POLICY, ROOT, RUNBOOK, SCRIPT, Sentence
from tests.tools.messages import (
    ADMISSION,
    CONDITION,
    DEMO,
    DOCTOR,
    ERROR,
    EVENT,
    EXPLAIN,
    FORECAST,
    HEALTH,
    HELP,
    LOG,
    METRIC,
    RECREATE,
    REMEDY,
    STATUS,
    STEP,
    sentences,
)

LONGEST = 200
"""Characters of one sentence: more than two lines of a terminal are read twice."""
LONGEST_IN_DOCS = 250
"""Likewise in a page, which has room for lists and links."""
COMMAND = re.compile(r"`[^`]*`|(?<=: )(?:kubectl|crrd) .*$", re.MULTILINE)
"""What is no prose: commands do not count."""
FORBIDDEN = {
    "an example": (r", say ", "write 'for example'"),
    "no subject": (r"\b(is|are|was|were|be|been|being) (told|said|heard|had)\b", "name who reports it"),
    "a question as subject": (r"(^|[.;:] )([Ww]ho|[Ww]hat)\b[^.;:]*, (is|are|was|were|goes|gets)\b", "name it"),
    "a riddle": (r"\b([Ww]hoever|[Nn]obody)\b", "name the user, client or program"),
    "a negated noun": (r"\b([Tt]his|[Tt]hat|[Ii]t|[Tt]hey) (is|are) no [a-z]", "write 'is not a'"),
    "a missing noun": (r"\bneeds? none\b|\b(is|are|was) none\b(?!:)", "repeat the noun"),
    "a second statement": (r"; and\b", "begin a sentence"),
    "a chain": (r";[^;()]*;[^;()]*;", "begin a sentence"),
    "a time without 'for'": (r"\bsince \d+ ?(s|m|h)\b", "write 'for 12s'"),
    "an old word": (r"\b(anew|begun|alike|in vain|heeds?|pokes?|poked|mends?|lest|ere)\b", "use a common word"),
    "filler": (r"\ball the same\b|\bby itself alone\b|\bif need be\b", "write 'anyway', or nothing"),
    "going on": (r"\b(go|goes|went|gone) on\b", "write 'continue'"),
    "a private verb": (r"\b(leads?|let in|looks? after|tells? of|takes? off|hears?)\b", "use Kubernetes' term"),
    "blame": (r"\b(you must have|you should have|wrongly|obviously|of course)\b", "say what to do"),
}  # fmt: skip
"""What rules 1 to 6 of plain English forbid: a name, a pattern, and what to do instead."""
GROUPS = {
    *(ALERT, CHART, FIELD, HEADS, PANEL, POLICY, RUNBOOK, SCRIPT),
    *(
        ADMISSION,
        CONDITION,
        DEMO,
        DOCTOR,
        ERROR,
        EVENT,
        EXPLAIN,
        FORECAST,
        HEALTH,
        HELP,
        LOG,
        METRIC,
        RECREATE,
        REMEDY,
        STATUS,
    ),
    *(STEP, DEMO),
}


def faults(text: str, longest: int = LONGEST) -> Iterator[str]:
    """The faults of a text's sentences, each with a remedy."""
    prose = COMMAND.sub("", text)
    for name, (pattern, remedy) in FORBIDDEN.items():
        if found := re.search(pattern, prose):
            yield f"{name} ({found[0].strip()}): {remedy}"
    for each in re.split(r"(?<=[.?!])\s|\n", prose):
        if len(each) > longest:
            yield f"{len(each)} characters: {each[:40]}..."


@pytest.fixture(scope="module")
def listing() -> list[Sentence]:
    return sentences()


def test_every_sentence_is_read_once(listing: list[Sentence]) -> None:
    wrong = [f"{each.group}, {each.source}: {fault}" for each in listing for fault in faults(each.text)]
    assert not wrong, "\n".join(wrong)


def test_the_listing_has_every_kind(listing: list[Sentence]) -> None:
    assert {each.group for each in listing} >= GROUPS


SUGGESTED = re.compile(r"\bkubectl (?!recreate|config|oidc)[a-z-]+(?= [^ ])|\bcrrd (?:explain|doctor)\b")
IN_OUTPUT = (REMEDY, STEP, EXPLAIN, DOCTOR, RECREATE, ERROR)


def test_every_suggested_command_can_name_the_cluster(listing: list[Sentence]) -> None:
    found = {each for one in listing if one.group in IN_OUTPUT for each in SUGGESTED.findall(one.text)}
    assert len(found) > 8
    left_out = {each for each in found if with_flags(f"{each} x", "--context prod") == f"{each} x"}
    assert left_out <= {"kubectl has", "kubectl prints", "kubectl shows"}


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "manifests" / "chart" / "README.md"]
NOT_PROSE = re.compile(r"```.*?```|^(    |\|).*?$|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
"""Blocks of code, tables and addresses of links."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_the_same_form(page: Path) -> None:
    prose = NOT_PROSE.sub("", page.read_text(encoding="utf-8"))
    blocks = re.split(r"\n\n|\n(?=- |\d+\. )", prose)
    wrong = [fault for each in blocks for fault in faults(" ".join(each.split()), longest=LONGEST_IN_DOCS)]
    assert not wrong, "\n".join(wrong)


CAUGHT = {
    "an example": "log in before, say with kubectl",
    "no subject": "the runtime is told in the status",
    "a question as subject": "what cannot be released, is listed",
    "a riddle": "whoever made it renews it",
    "a negated noun": "this is no request",
    "a missing noun": "kubectl's completion needs none",
    "a second statement": "the pod is gone; and its request ends",
    "a chain": "one; two; three; four",
    "a time without 'for'": "kubelet does not answer since 12 s",
    "an old word": "the watch is begun",
    "filler": "the container is stopped all the same",
    "going on": "the run goes on",
    "a private verb": "no manager leads",
    "blame": "of course this fails",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_fault_is_noticed(name: str) -> None:
    (found,) = faults(CAUGHT[name])
    assert found.startswith(f"{name} (")


def test_length_counts_by_sentence_and_without_commands() -> None:
    assert [*faults("a" * (LONGEST - 1) + ". " + "b" * LONGEST)] == []
    assert [*faults(f"check it: kubectl {'x' * LONGEST}")] == []
    assert [each.partition(":")[0] for each in faults("a" * (LONGEST + 1))] == [f"{LONGEST + 1} characters"]


@pytest.mark.parametrize(
    "text",
    [
        "the container is stopped; kubelet restarts it",
        "kubelet has not answered /healthz for 12s",
        "an earlier request that has ended is still working on this container (stop)",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert [*faults(text)] == []
