"""The planted bugs of tests/mutants still fit the code."""

from pathlib import Path

import pytest

from tests.simulation import test_simulation
from tests.tools import mutants
from tests.tools.planted import patches, planted, with_hunk

CODE = "\nif a:\n    b()\n    c()\nif d:\n    b()\n    e()\n"
INSERTED, REPLACED = " if a:\n     b()\n+    x()\n     c()\n if d:\n", " if a:\n     b()\n-    c()\n+    x()\n if d:\n"


@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.stem)
def test_a_planted_bug_fits_the_code(patch: Path) -> None:
    assert patch.read_text(encoding="utf-8").partition("\n\n")[0], "it says what it breaks"
    for path, text in planted(patch).items():
        compile(text, path, "exec")


@pytest.mark.parametrize("new", ["", "if a or z:", "while a:"])
@pytest.mark.parametrize("end", ["if d:", "if e:"])
def test_lines_near_a_planted_bug_may_change(new: str, end: str) -> None:
    code = CODE.replace("if a:", new).replace("if d:", end)
    assert with_hunk(code, INSERTED) == code.replace("    c()", "    x()\n    c()")
    assert with_hunk(code, REPLACED) == code.replace("    c()", "    x()")


@pytest.mark.parametrize("hunk", [INSERTED, REPLACED])
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (CODE.replace("if a", "if g").replace("c()", "f()"), "does not fit the code"),
        (CODE + CODE, "fits 2 places"),
        (CODE.replace("if a", "if g") + CODE.replace("if a", "if h"), "fits 2 places"),
    ],
)
def test_a_planted_bug_has_one_place(hunk: str, code: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        with_hunk(code, hunk)


def test_mutants_meet_all_schedules() -> None:
    name = "tests/simulation/test_simulation.py::test_schedules"
    firsts = range(0, test_simulation.SCHEDULES, test_simulation.CHUNK)
    assert list(mutants.SCHEDULES) == [f"{name}[{first}]" for first in firsts]


def test_mutants_that_say_the_same_are_still_possible() -> None:
    """Their keys have the file and the statement, which may move or change. Then `make mutants` stops at once."""
    assert mutants.EQUIVALENT.keys() <= {mutant.key for _, mutant in mutants.all_mutants()}
