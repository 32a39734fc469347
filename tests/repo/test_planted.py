"""The planted bugs of tests/mutants still fit the code."""

import subprocess
from pathlib import Path

import pytest

from tests.tools.planted import ROOT, patches


@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.stem)
def test_a_planted_bug_fits_the_code(patch: Path) -> None:
    assert patch.read_text(encoding="utf-8").partition("\n\n")[0], "it says what it breaks"
    command = ["git", "apply", "--check", str(patch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"write it anew: {done.stderr}"
