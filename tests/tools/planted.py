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
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "tests" / "mutants"
SCHEDULES = 1000
FAST = ("core", "properties", "node", "kube", "cri", "lib")
"""Folders of the fast tests."""
SECONDS = 600
"""For the simulation, and for the tests; what takes longer hangs, and counts as found."""
_SIMULATION = f"""
import sys
from tests.simulation.__main__ import CHUNK, chunk
for first in range(0, {SCHEDULES}, CHUNK):
    for seed, broken in chunk(first).failed[:1]:
        sys.exit(f"seed {{seed}}: {{broken}}")
"""


def patches(only: str = "") -> list[Path]:
    """The patches, those whose names begin with one of these words (separated by commas)."""
    return [each for each in sorted(PATCHES.glob("*.patch")) if each.name.startswith(tuple(only.split(",")))]


def apply(patch: Path, folder: Path, *, back: bool = False) -> None:
    """Put a bug into a copy of the tree, or take it out again; ends the program where the patch does not fit."""
    command = ["git", "apply", *(["--reverse"] if back else []), str(patch)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{patch.relative_to(ROOT)} does not fit the code any more, write it anew:\n{done.stderr}")


def find(folder: Path, *command: str) -> str:
    """What a command says of the bug in this copy, "" if it notices nothing."""
    path = os.pathsep.join(str(folder / each) for each in ("daemon", "localnode", ""))
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
            apply(patch, folder)
            simulation, test = find(folder, "-c", _SIMULATION), find(folder, *tests)
            apply(patch, folder, back=True)
            by_simulation += bool(simulation)
            by_tests += bool(test)
            unseen += not (simulation or test)
            print(patch.stem)
            print(f"    simulation: {simulation[:110] or '-'}\n    tests:      {test[:110] or '-'}", flush=True)
    print(f"{len(asked)} bugs: the simulation found {by_simulation}, the tests {by_tests}, nobody {unseen}")
    return unseen


if __name__ == "__main__":
    sys.exit(main())
