"""The workflows in .github: their form, their safety, and that what they call is there. None of this runs them."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent


def steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def scripts() -> list[str]:
    return [step["run"] for file in WORKFLOWS for step in steps(file) if "run" in step]


def test_they_fit_githubs_schema() -> None:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_an_auditor_finds_nothing_unsafe() -> None:
    """Permissions, injected expressions, credentials that stay, actions that are not pinned, and more."""
    command = [str(BIN / "zizmor"), "--offline", "--strict-collection", "--quiet", *map(str, WORKFLOWS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_and_jobs_end(file: Path) -> None:
    for step in steps(file):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}"))
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    assert all(job["timeout-minutes"] <= 360 for job in jobs)


def test_scripts_parse_and_call_what_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for script in scripts():
        subprocess.run(["bash", "-n", "-c", re.sub(r"\$\{\{.*?\}\}", "x", script)], check=True)
        for target in re.findall(r"\bmake ([a-z]+)", script):
            assert re.search(rf"(?m)^{target}:", makefile), target
        for path in re.findall(r"(?:tests|manifests)/[\w./]+", script):
            assert (ROOT / path).exists(), path


def test_the_release_workflow_names_files_that_a_release_has() -> None:
    makes = (ROOT / "tests" / "tools" / "release.py").read_text(encoding="utf-8")
    (release,) = [file for file in WORKFLOWS if file.stem == "release"]
    text = release.read_text(encoding="utf-8")
    for name in set(re.findall(r"dist/([\w.$-]+)", text)) - {"SHA256SUMS.sigstore.json"}:
        made = {
            "SHA256SUMS": 'SUMS, PROVENANCE = "SHA256SUMS"',
            "provenance.json": '"provenance.json"',
            "crrd.cdx.json": '("image", "crrd")',
            "crrd-$version.tgz": 'f"crrd-{release.version}.tgz"',
            "crrd-$version-image.oci.tar": 'f"crrd-{release.version}-image.oci.tar"',
        }
        assert made[name] in makes, name
