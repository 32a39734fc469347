"""`make mutants PLANTED=1`: who finds the bugs of tests/mutants, the simulation or the fast tests.

Each file there is a mistake that somebody could make while they change the code: a patch of a few lines, with what it
breaks and what a user would see. Each is applied to a copy of the tree; then some schedules of the simulation run, and
the fast tests, both until the first failure. `make mutants PLANTED=1 ONLY=07` asks about some alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "tests" / "mutants"
SCHEDULES, OF_A_KIND, OF_CHANGES = 1000, 300, 100
FAST = ("core", "properties", "node", "kube", "cri", "lib")
"""Folders of the fast tests."""
SECONDS = 600
"""For the simulation, and for the tests; what takes longer hangs, and counts as found."""
_SIMULATION = f"""
import sys
from tests.simulation.__main__ import CHUNK, chunk
NUMBERS = {{"schedules": {SCHEDULES}, "images": {OF_A_KIND}, "pods": {OF_A_KIND}, "changes": {OF_CHANGES}}}
for first in range(0, {SCHEDULES}, CHUNK):
    for kind in (each for each, number in NUMBERS.items() if first < number):
        for seed, broken in chunk(kind, first).failed[:1]:
            sys.exit(f"{{kind}}, seed {{seed}}: {{broken}}")
"""


def patches(only: str = "") -> list[Path]:
    """The patches, those whose names begin with one of these words (separated by commas)."""
    return [each for each in sorted(PATCHES.glob("*.patch")) if each.name.startswith(tuple(only.split(",")))]


def planted(patch: Path) -> dict[str, str]:
    """The files with this bug in them: path -> text. Ends the program where the patch does not fit the code."""
    texts: dict[str, str] = {}
    _, *parts = re.split(r"^--- .*\n\+\+\+ b/(.*)\n", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for path, hunks in zip(parts[::2], parts[1::2], strict=True):
        texts[path] = (ROOT / path).read_text(encoding="utf-8")
        for hunk in re.split(r"^@@.*\n", hunks, flags=re.MULTILINE)[1:]:
            try:
                texts[path] = with_hunk(texts[path], hunk)
            except ValueError as error:
                sys.exit(f"{patch.relative_to(ROOT)}, {path}: {error}:\n{hunk}")
    return texts


def with_hunk(text: str, hunk: str) -> str:
    """The text with a hunk's change. Lines around the change may have changed since, as long as one place fits best.

    Raises:
        ValueError: the hunk fits nowhere, or at more places than one.
    """
    lines = [(line[0], line[1:]) for line in hunk.splitlines(keepends=True) if line[0] in " +-"]
    for part in _with_less_context(lines):
        before, after = ("\n" + "".join(line for mark, line in part if mark in marks) for marks in (" -", " +"))
        places = text.count(before)
        if places > 1:
            raise ValueError(f"it fits {places} places, write it anew with more lines around the change")
        if places:
            return text.replace(before, after)
    raise ValueError("it does not fit the code any more, write it anew")


def _with_less_context(lines: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """A hunk, and what is left of it without some of the lines around its change; the longest first.

    Each keeps a line that is removed, or two others: less than that could mean another place.
    """
    changed = [index for index, (mark, _) in enumerate(lines) if mark != " "]
    cuts = product(range(changed[0] + 1), range(len(lines) - changed[-1]))
    shorter = (lines[above : len(lines) - below] for above, below in sorted(cuts, key=sum))
    return [part for part in shorter if "-" in (marks := [mark for mark, _ in part]) or marks.count(" ") > 1]


def find(folder: Path, *command: str) -> str:
    """What a command says of the bug in this copy, "" if it notices nothing."""
    path = os.pathsep.join(str(folder / each) for each in ("daemon", "forecast", "localnode", ""))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False,
            timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "hangs"
    if not done.returncode:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) \S*?([\w.]+::\S+)", done.stdout, re.MULTILINE)
    lines = done.stderr.strip().splitlines()
    return failed[1] if failed else lines[-1] if lines else f"exit code {done.returncode}"


def main() -> int:
    """Print a line for each bug, and how many were found; the exit code counts those that nobody found."""
    asked = patches(os.environ.get("ONLY", ""))
    by_simulation = by_tests = unseen = 0
    tests = ["-m", "pytest", "-x", "-q", "-n", "auto", "-p", "no:cacheprovider", *(f"tests/{each}" for each in FAST)]
    with tempfile.TemporaryDirectory(prefix="crrd-planted-") as place:
        folder = Path(place) / "tree"
        ignored = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=ignored)
        for patch in asked:
            for path, text in planted(patch).items():
                (folder / path).write_text(text, encoding="utf-8")
            simulation, test = find(folder, "-c", _SIMULATION), find(folder, *tests)
            for path in planted(patch):
                shutil.copyfile(ROOT / path, folder / path)
            by_simulation += bool(simulation)
            by_tests += bool(test)
            unseen += not (simulation or test)
            print(patch.stem)
            print(f"    simulation: {simulation[:110] or '-'}\n    tests:      {test[:110] or '-'}", flush=True)
    print(f"{len(asked)} bugs: the simulation found {by_simulation}, the tests {by_tests}, nobody {unseen}")
    return unseen


if __name__ == "__main__":
    sys.exit(main())
