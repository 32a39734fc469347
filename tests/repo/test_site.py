"""`make docs`: what the website is made of. The build itself is in a workflow, as it needs a generator."""

import re
from pathlib import Path

from crrd import __version__
from tests.tools import site

ROOT = Path(__file__).parents[2]


def test_each_page_stands_once_in_the_navigation() -> None:
    names = site.pages()
    placed = [name for found in site.navigation(names).values() for name in found]
    assert len(placed) == len(set(placed))
    decisions = {name for name in names if name.startswith("docs/decisions/")}
    assert {*placed, *decisions, site.HOME} == {*names, "docs/decisions/index"}
    assert {"docs/contract", "docs/stability", "manifests/chart/README", "CHANGELOG"} <= {*placed}


def test_a_new_page_is_shown_before_it_has_a_place() -> None:
    found = site.navigation([*site.pages(), "docs/brand-new", "docs/from-somewhere"])
    assert "docs/brand-new" in found["More"]
    assert "docs/from-somewhere" in found["Coming from"]


def test_pages_and_what_they_link_to_are_in_the_site(tmp_path: Path) -> None:
    site.stage(tmp_path)
    assert f'html_title = "crrd {__version__}"' in (tmp_path / "conf.py").read_text(encoding="utf-8")
    pages = [*tmp_path.rglob("*.md")]
    assert len(pages) == len(site.pages()) + 1
    lost = []
    for page in pages:
        targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
        lost += [f"{page.stem}: {each}" for each in targets if not (page.parent / each).is_file()]
    assert lost == []
    assert (tmp_path / "docs" / "recreate.svg").is_file()


def test_a_page_stays_as_it_is_but_for_links_to_folders() -> None:
    page = ROOT / "README.md"
    text = "[a](docs/policy.md#fields) [b](docs/decisions) [c](tests) ![d](docs/recreate.svg) [e](https://e.example)"
    changed = text.replace("(docs/decisions)", "(docs/decisions/index.md)").replace("[c](tests)", "c")
    assert site.linked(text, page) == changed
