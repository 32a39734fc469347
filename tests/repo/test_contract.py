"""Every "step N" and every link to the contract, wherever it stands, names a section that docs/contract.md has."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.markdown import anchor, anchors
from tests.tools.phase_diagram import RECREATE, diagram, drawn_in

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "contract.md"
SEARCHED = ("daemon", "forecast", "localnode", "tests", "docs", "manifests")
TEXTS = {".py", ".md", ".yaml"}
STEP = re.compile(
    r"""\bsteps?\s+(?P<first>\d+)                            # one, as in a sentence or a docstring
        (?P<more>(?:(?:\s*(?:,|and|or|to|-)[\s#]+|,\s*|-)\d+\b)*)  # and those enumerated with it
    """,
    re.IGNORECASE | re.VERBOSE,
)


def steps(text: str) -> list[int]:
    """Numbers of the headings "Step N: ..."."""
    return [int(number) for number in re.findall(r"^### Step (\d+): ", text, re.MULTILINE)]


def files(root: Path) -> Iterator[Path]:
    """What is searched: sources, docs and manifests."""
    for folder in SEARCHED:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in TEXTS and path.is_file())


def named_steps(text: str) -> Iterator[int]:
    """Every step that a text names, each of "steps 4 and 5" and of "steps 6 to 9"."""
    for found in STEP.finditer(text):
        numbers = [int(found["first"])]
        for joint, number in re.findall(r"(\D+)(\d+)", found["more"]):
            numbers += range(numbers[-1] + 1, int(number)) if "to" in joint or "-" in joint else ()
            numbers.append(int(number))
        yield from numbers


def lost_references(root: Path) -> list[str]:
    """`file: reference` for each that leads nowhere."""
    contract = (root / "docs" / "contract.md").read_text(encoding="utf-8")
    known_steps, known_sections = set(steps(contract)), anchors(contract)
    lost = []
    for path in files(root):
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        lost += [f"{where}: step {number}" for number in named_steps(text) if number not in known_steps]
        links = re.findall(r"contract\.md#([\w-]+)", text)
        if path.name == "contract.md":
            links += re.findall(r"\]\(#([\w-]+)\)", text)
        lost += [f"{where}: #{link}" for link in links if link not in known_sections]
    return lost


def test_the_steps_are_numbered_one_after_the_other() -> None:
    assert steps(CONTRACT.read_text(encoding="utf-8")) == list(range(1, 18))


def test_the_other_sections_have_names_of_their_own() -> None:
    headings = re.findall(r"^### (.+)$", CONTRACT.read_text(encoding="utf-8"), re.MULTILINE)
    assert {heading.partition(":")[0].rstrip("0123456789 ") for heading in headings} == {
        "Object",
        "Admission",
        "Step",
        "Lifecycle",
        "Readiness",
    }
    assert len({anchor(heading) for heading in headings}) == len(headings)


def test_every_reference_leads_somewhere() -> None:
    assert lost_references(ROOT) == []


def test_references_are_found_where_the_rules_are_kept() -> None:
    rules = (ROOT / "daemon" / "crrd" / "core" / "recreate").glob("*.py")
    named = {step for path in rules for step in named_steps(path.read_text(encoding="utf-8"))}
    assert {2, 4, 5, 6, 7, 8, 9, 10, 11} <= named


def test_the_diagrams_are_those_of_the_tables() -> None:
    for path, diagrams in ((CONTRACT, 2), (RECREATE, 1)):
        page = path.read_text(encoding="utf-8")
        assert drawn_in(page) == page, "write them anew: python -m tests.tools.phase_diagram"
        assert page.count("stateDiagram-v2") == diagrams


def test_a_diagram_has_a_line_for_each_move() -> None:
    drawn = diagram({("", "Going"): "begins", ("Going", "Going"): "goes on", ("Going", "Done"): "ends"})
    assert drawn.splitlines()[2:-1] == [
        "    [*] --> Empty",
        "    Empty --> Going: begins",
        "    Going --> Going: goes on",
        "    Going --> Done: ends",
        "    Done --> [*]",
    ]


def test_a_reference_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    word = "step"  # these sentences must not be taken for references of this file
    for folder in SEARCHED:
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "contract.md").write_text(f"### {word.title()} 1: A\n### {word.title()} 2: B\n[B](#b)\n")
    (tmp_path / "daemon" / "a.py").write_text(f'"""{word.title()}s 1 and 3: so."""\n# {word}s 2 to\n# 5, {word} 1\n')
    (tmp_path / "tests" / "b.py").write_text(f"# {word}s 1, 2 and 9\n# {word} 20\n")
    (tmp_path / "manifests" / "c.yaml").write_text("# docs/contract.md" + "#step-1-a, docs/contract.md" + "#nowhere\n")
    assert lost_references(tmp_path) == [
        f"daemon/a.py: {word} 3",
        f"daemon/a.py: {word} 3",
        f"daemon/a.py: {word} 4",
        f"daemon/a.py: {word} 5",
        f"tests/b.py: {word} 9",
        f"tests/b.py: {word} 20",
        "docs/contract.md: #b",
        "manifests/c.yaml: #nowhere",
    ]
