"""Builds the pages of this repository as a website: `make docs`. The pages stay as they are.

The generator is Sphinx with MyST, because it reads Markdown as GitHub does: nested lists, and the anchors of headings.
It runs in an environment of its own, because tests do not need it. A link that leads nowhere is an error.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from crrd import __version__

ROOT = Path(__file__).parents[2]
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Use": ("docs/quickstart", "docs/recreate", "docs/policy", "docs/image", "docs/lean", "docs/recipes"),
    "Coming from": ("docs/from-*",),
    "Operate": (
        *("manifests/chart/README", "docs/operations", "docs/monitoring", "docs/integrations"),
        *("docs/forecast", "docs/scale", "docs/benchmarks", "docs/support"),
    ),
    "Reference": ("docs/contract", "docs/stability", "CHANGELOG", "SECURITY"),
    "Project": (
        *("ROADMAP", "docs/architecture", "docs/decisions/index", "docs/reliability", "docs/release"),
        *("docs/local-testing", "docs/real-clusters", "CONTRIBUTING", "CODE_OF_CONDUCT"),
    ),
    "More": ("docs/*",),
}
"""Heading in the navigation -> patterns of pages, which stand in this order, each below the first one that fits."""
HOME = "README"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
_GENERATOR = ("sphinx>=8.2", "furo>=2025.7", "myst-parser>=4", "sphinxcontrib-mermaid>=1", "sphinx-copybutton>=0.5")
_CONF = """\
project = "crrd"
html_title = "crrd {version}"
root_doc = "README"
extensions = ["myst_parser", "sphinxcontrib.mermaid", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_copyright = False
templates_path = []
exclude_patterns = []
copybutton_prompt_text = "$ "
suppress_warnings = ["misc.highlighting_failure"]
"""
_CSS = """\
table.docutils { font-size: 0.85rem; }
table.docutils td { vertical-align: top; }
table.docutils td:first-child { min-width: 8rem; }
table.docutils code { white-space: normal; overflow-wrap: anywhere; }
"""
"""Long names in tables wrap, so that the last column of a table of fields can be seen."""


def pages(root: Path = ROOT) -> list[str]:
    """The pages of the site, as paths from the root without `.md`."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "manifests" / "chart" / "README.md"]
    return sorted(str(each.relative_to(root).with_suffix("")) for each in found)


def navigation(names: list[str]) -> dict[str, list[str]]:
    """Heading -> its pages. Pages of a folder with an index page stand below that page, and not here."""
    left = [each for each in names if each != HOME and not each.startswith("docs/decisions/")]
    left += ["docs/decisions/index"]
    made: dict[str, list[str]] = {}
    for heading, patterns in SECTIONS.items():
        for pattern in patterns:
            fits = [each for each in left if fnmatch(each, pattern)]
            made.setdefault(heading, []).extend(fits)
            left = [each for each in left if each not in fits]
    assert not left, left
    return {heading: found for heading, found in made.items() if found}


def toctree(names: list[str], caption: str = "") -> str:
    """A part of the navigation, which is not shown on the page."""
    return "\n".join(
        ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), *names, "```", ""]
    )


def linked(text: str, page: Path, root: Path = ROOT) -> str:
    """A page's text with links to folders changed: to the folder's index page, or to nothing if it has no pages."""

    def change(found: re.Match[str]) -> str:
        words, target, section = found.groups()
        if not (page.parent / target).is_dir():
            return found[0]
        index = (page.parent / target).resolve() == root / "docs" / "decisions"
        return f"[{words}]({target}/index.md{section})" if index else words

    return LINK.sub(change, text)


def attached(text: str, page: Path) -> Iterator[Path]:
    """Files that a page links to or shows, and that are no pages."""
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        file = (page.parent / target).resolve()
        if file.is_file() and file.suffix != ".md":
            yield file


def stage(target: Path, root: Path = ROOT) -> None:
    """Write the generator's input into a folder."""
    names = pages(root)
    for name in names:
        page = root / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        copy = target / f"{name}.md"
        copy.parent.mkdir(parents=True, exist_ok=True)
        parts = [toctree(found, heading) for heading, found in navigation(names).items()] if name == HOME else []
        copy.write_text("".join([linked(text, page, root), *parts]), encoding="utf-8")
        for file in attached(text, page):
            there = target / file.relative_to(root)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, there)
    decisions = [Path(each).name for each in names if each.startswith("docs/decisions/")]
    listing = "\n".join(f"- [](./{each}.md)" for each in decisions)
    index = f"# Decisions\n\nWhat was decided, why, and what follows from it.\n\n{listing}\n{toctree(decisions)}"
    (target / "docs" / "decisions" / "index.md").write_text(index, encoding="utf-8")
    (target / "_static").mkdir()
    (target / "_static" / "tables.css").write_text(_CSS, encoding="utf-8")
    (target / "conf.py").write_text(_CONF.format(version=__version__), encoding="utf-8")


def build(target: Path) -> None:
    """Build the site into a folder. Raises CalledProcessError for a link that leads nowhere."""
    uv = str(Path(sys.executable).with_name("uv"))
    first, *others = _GENERATOR
    extra = [word for each in others for word in ("--with", each)]
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as cache:
        stage(Path(source))
        command = [
            uv,
            "tool",
            "run",
            "--quiet",
            "--from",
            first,
            *extra,
            "sphinx-build",
            "--quiet",
            "--fail-on-warning",
        ]
        command += ["--keep-going", "--builder", "html", "--doctree-dir", cache, source, str(target)]
        subprocess.run(command, check=True)
    first_page = f'<!doctype html><title>crrd</title><meta http-equiv="refresh" content="0; url={HOME}.html">\n'
    (target / "index.html").write_text(first_page, encoding="utf-8")


def main() -> int:
    """Read the flags and build."""
    parser = argparse.ArgumentParser(description="Builds the pages of this repository as a website.")
    parser.add_argument("--target", type=Path, default=ROOT / "site")
    args = parser.parse_args()
    shutil.rmtree(args.target, ignore_errors=True)
    try:
        build(args.target)
    except subprocess.CalledProcessError as error:
        return error.returncode  # the generator has said why
    print(args.target / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
