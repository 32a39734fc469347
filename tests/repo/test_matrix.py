"""`python -m tests.tools.matrix`: what it counts, the rows that it writes, and that docs/support.md is made of them."""

from typing import Literal

import pytest

from tests.tools.matrix import HEADER, LONGER, PAGE, ROOT, TESTS, Recorder, row, versions, with_row

NODE = {
    "status": {
        "nodeInfo": {
            "kubeletVersion": "v1.33.13",
            "containerRuntimeVersion": "containerd://1.6.20~ds1",
            "architecture": "amd64",
        }
    }
}


def report(
    name: str,
    outcome: Literal["passed", "failed", "skipped"],
    when: Literal["setup", "call", "teardown"],
    why: str = "",
) -> pytest.TestReport:
    longrepr = ("test.py", 7, f"Skipped: {why}") if why else None
    return pytest.TestReport(f"tests/e2e/{name}", ("test.py", 7, name), {}, outcome, longrepr, when)


def test_results_are_counted_once_and_skips_by_reason() -> None:
    recorder = Recorder()
    assert {recorder} == {recorder}, "pytest keeps plugins in sets"
    for name in ("a.py::one", "a.py::two"):
        recorder.pytest_runtest_logreport(report(name, "passed", "setup"))
        recorder.pytest_runtest_logreport(report(name, "passed", "call"))
        recorder.pytest_runtest_logreport(report(name, "passed", "teardown"))
    assert recorder.result() == "2 passed"
    for name, when in (("b.py::one", "setup"), ("b.py::two", "call")):
        recorder.pytest_runtest_logreport(report(name, "skipped", when, "needs a|b"))  # type: ignore[arg-type]
    recorder.pytest_runtest_logreport(report("b.py::three", "skipped", "call", "old"))
    recorder.pytest_runtest_logreport(report("c.py::one", "failed", "call"))
    recorder.pytest_runtest_logreport(report("c.py::one", "failed", "teardown"))
    assert recorder.result() == "2 passed, 3 skipped (2: needs a\\|b; 1: old), 1 failed (c.py::one)"


def test_versions_are_those_that_api_server_and_node_report() -> None:
    assert versions({"gitVersion": "v1.33.13"}, NODE) == ("1.33.13", "containerd 1.6.20~ds1", "amd64")
    assert versions({"gitVersion": "v1.36.2"}, NODE)[0] == "1.36.2, kubelet 1.33.13"


def test_a_row_replaces_the_one_of_the_same_versions() -> None:
    old = row(("1.30.1", "containerd 1.6.20", "amd64"), "abc", "1 passed")
    page = with_row(f"# Page\n\n{HEADER}\nEnd, with a | in it.\n", old)
    assert page == f"# Page\n\n{HEADER}{old}\nEnd, with a | in it.\n"
    new = row(("1.30.1", "containerd 1.6.20", "amd64"), "def", "2 passed")
    others = [
        row(of, "def", "3 passed")
        for of in (("1.36.2", "containerd 2.1.9", "amd64"), ("1.30.1", "cri-o 1.36.3", "amd64"))
    ]
    for line in (new, *others):
        page = with_row(page, line)
    assert page == f"# Page\n\n{HEADER}{''.join([*others, new])}\nEnd, with a | in it.\n"
    with pytest.raises(ValueError, match="has no table"):
        with_row("# Page\n", new)


def test_the_page_has_the_rows_in_this_form() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition(HEADER)[2].partition("\n\n")[0].splitlines(keepends=True)
    assert table
    for line in table:
        assert with_row(page, line.rstrip("\n") + "\n") == page
        assert " passed" in line


def test_the_tests_are_there() -> None:
    assert all((ROOT / each).exists() for each in (*TESTS, *(f"tests/e2e/{name}" for name in LONGER)))
