"""`python -m tests.tools.matrix`: the tests that need one node of a cluster, and their row in docs/support.md.

The cluster is the one of CRRD_TEST_KUBECONFIG and the other variables (docs/real-clusters.md). Versions are those that
the API server and the node report.
"""

import argparse
import asyncio
import datetime as dt
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES
from tests.support.cluster import VARIABLES, foreign

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "support.md"
HEADER = "| Kubernetes | runtime | architecture | date | commit | result |\n|---|---|---|---|---|---|\n"
_ON_CLUSTER = ("policies", "runs_of_others", "uninstall")
TESTS = ("tests/e2e", *(f"tests/repo/test_{each}_on_cluster.py" for each in _ON_CLUSTER))
LONGER = (
    *("test_three_nodes.py", "test_thousand.py", "test_upgrades.py", "test_image_trouble.py"),
    *("test_second_sandbox.py", "test_second_sandbox_kills.py", "test_quickstart.py", "test_recipes.py"),
)
"""Those of tests/e2e that need several nodes or kubelets, install crrd, or take long. They have own commands."""


@dataclass(eq=False)  # pytest keeps plugins in sets
class Recorder:
    """A pytest plugin that counts results."""

    passed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of tests by reason."""
    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's result. A test that fails in several phases counts once."""
        name = report.nodeid.rpartition("/")[2]
        if report.failed and name not in self.failed:
            self.failed.append(name)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped[reason.removeprefix("Skipped: ")] += 1
        elif report.passed and report.when == "call":
            self.passed += 1

    def result(self) -> str:
        """Return the words of a row."""
        parts = [f"{self.passed} passed"]
        if self.skipped:
            reasons = "; ".join(f"{count}: {reason}" for reason, count in self.skipped.most_common())
            parts.append(f"{self.skipped.total()} skipped ({reasons})")
        if self.failed:
            parts.append(f"{len(self.failed)} failed ({'; '.join(self.failed)})")
        return ", ".join(parts).replace("|", "\\|").replace("\n", " ")


def versions(server: Mapping[str, Any], node: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the first columns of a row: Kubernetes, runtime and architecture, from /version and the node."""
    info = node["status"]["nodeInfo"]
    api, kubelet = (each.removeprefix("v") for each in (server["gitVersion"], info["kubeletVersion"]))
    runtime = " ".join(info["containerRuntimeVersion"].split("://"))
    return api if api == kubelet else f"{api}, kubelet {kubelet}", runtime, info["architecture"]


def row(of: Sequence[str], commit: str, result: str) -> str:
    """Return the line of the table for a run of today."""
    return f"| {' | '.join((*of, dt.datetime.now(dt.UTC).date().isoformat(), f'`{commit}`', result))} |\n"


def with_row(page: str, line: str) -> str:
    """Return the page with the line in its table, instead of the one of the same versions. The newest come first."""
    before, found, after = page.partition(HEADER)
    if not found:
        raise ValueError(f"the page has no table that begins with {HEADER!r}")
    table, end = re.match(r"((?:\|.*\n)*)((?:.|\n)*)", after).groups()  # type: ignore[union-attr]
    rows = {_versions_in(each): each for each in (*table.splitlines(keepends=True), line)}
    return before + HEADER + "".join(sorted(rows.values(), key=_order, reverse=True)) + end


def _versions_in(line: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in line.split("|")[1:4])


def _order(line: str) -> tuple[list[int], str, list[int]]:
    kubernetes, runtime, _ = _versions_in(line)
    return _numbers(kubernetes), runtime.split()[0], _numbers(runtime)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", text)]


async def _asked(variables: Mapping[str, str]) -> tuple[str, str, str]:
    """Ask the cluster for its versions."""
    kubeconfig, _, name, _ = (variables[each] for each in VARIABLES)
    async with KubeClient(KubeconfigAccess(kubeconfig)) as client:
        return versions(await client.document("/version"), await client.get(NODES, "", name))


def _commit() -> str:
    words = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*")
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run the tests, and print or write the row. Return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the row into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--commit", metavar="HASH", help="commit of this folder (default: git is asked)")
    args, words = parser.parse_known_args(arguments)
    variables = foreign()
    if variables is None:
        parser.error(f"set {', '.join(VARIABLES)}")
    commit = args.commit or _commit()
    of, recorder = asyncio.run(_asked(variables)), Recorder()
    ignored = [f"--ignore=tests/e2e/{name}" for name in LONGER]
    code = pytest.main(["-m", "cluster", "--timeout=600", *ignored, *TESTS, *words], plugins=[recorder])
    line = row(of, commit, recorder.result())
    print(line, end="")
    if args.write and code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), line), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
