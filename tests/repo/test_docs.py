"""What README and docs name is there: files of the project, other pages and their sections; README stays short."""

import re
from pathlib import Path

import pytest

from tests.support.markdown import anchors

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("daemon", "forecast", "localnode", "tests", "manifests", "docs", "proto")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def named_files(page: Path) -> set[str]:
    """Paths from the project's root, without those that have a placeholder (NAME) in them."""
    found = re.findall(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[\w./-]*\w/?", text_of(page))
    return {path for path in found if "NAME" not in path}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_files_that_are_named_are_there(page: Path) -> None:
    assert {path for path in named_files(page) if not (ROOT / path).exists()} == set()


def test_the_map_names_files() -> None:
    named = named_files(ROOT / "docs" / "architecture.md")
    assert {"daemon/crrd/core/recreate/decide.py", "manifests/base/crd.yaml", "tests/node/test_hooks.py"} <= named


def test_names_that_the_map_has_from_the_code_are_there() -> None:
    named = re.findall(r"`(\w*(?:_|[A-Z])\w*|\w+\.py)`", text_of(ROOT / "docs" / "architecture.md"))
    assert {"HookKind", "_FIELD_ORDER", "default_deadline", "stop.py"} <= set(named)
    code = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    words = {word for path in code for word in (path.name, *re.findall(r"\w+", text_of(path)))}
    assert set(named) - words == set()


def test_the_map_has_every_room() -> None:
    text = text_of(ROOT / "docs" / "architecture.md").partition("Imports point")[0]
    rooms = {f"{each.name}/" for each in (ROOT / "daemon" / "crrd").iterdir() if (each / "__init__.py").is_file()}
    rows = dict(re.findall(r"^- `([a-z/]+)/`:((?:.|\n  )*)", text, re.MULTILINE))
    assert {f"{room.split('/')[0]}/" for room in rows} == rooms
    modules = {room: (ROOT / "daemon" / "crrd" / room).glob("[!_]*.py") for room in rows}
    unnamed = {f"{room}/{each.stem}" for room in rows for each in modules[room] if f"`{each.stem}`" not in rows[room]}
    assert not unnamed, "each module has its words in the list of its package"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        file, _, section = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (section and section not in anchors(text_of(target))):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_commands_are_shown_as_code(page: Path) -> None:
    """The first line of an indented block loses its indent easily, and is then a part of the text before it."""
    outside = "".join(text_of(page).split("```")[::2])
    assert re.findall(r"^(?:kubectl|crrd|helm|crictl) .*\n {4}.*", outside, re.MULTILINE) == []
    assert re.findall(r"\n\n(?:kubectl|helm|crictl) .*", outside) == []


def test_sections_whose_commands_are_run_are_there() -> None:
    tests = "".join(text_of(each) for each in (ROOT / "tests" / "e2e").glob("test_*.py"))
    named = re.findall(r'run\(\s*"([\w-]+\.md)",\s*"([^"]+)"', tests)
    assert len(named) > 2
    for page, heading in named:
        assert f"\n## {heading}\n" in text_of(ROOT / "docs" / page), f"{page}: {heading}"


def test_readme_is_for_two_minutes() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_tests_that_are_named_are_there(page: Path) -> None:
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text_of(page)):
        assert re.search(rf"^ *(async )?def {name}\(", text_of(ROOT / file), re.MULTILINE), f"{file}::{name}"


def test_each_world_of_the_tests_has_one_name() -> None:
    named = re.findall(r"`([A-Z]\w+)` in `(tests/[\w/]+\.py)`", text_of(ROOT / "CONTRIBUTING.md"))
    assert ("SmallWorld", "tests/support/simulation.py") in named
    for name, file in named:
        assert re.search(rf"^class {name}\b", text_of(ROOT / file), re.MULTILINE), f"{name} in {file}"
    code = "".join(text_of(path) for path in (ROOT / "tests").rglob("*.py"))
    assert re.findall(r"^class (World|Cluster|Kubelet)\b", code, re.MULTILINE) == ["Cluster"]


def test_symptoms_are_what_a_run_says() -> None:
    table = text_of(ROOT / "docs" / "image.md").partition("| you see |")[2].partition("\n\n")[0]
    quoted = [each for row in table.splitlines() for each in re.findall(r"`([^`]*)`", row.split("|")[1])]
    code = "".join(text_of(path) for path in (ROOT / "daemon" / "crrd").rglob("*.py"))
    assert len(quoted) > 5
    assert [part for each in quoted for part in each.split("...") if part.strip() not in code] == []
