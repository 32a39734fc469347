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
DEPENDABOT = ROOT / ".github" / "dependabot.yml"
ISSUES = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMS = {
    "github-workflows": WORKFLOWS,
    "dependabot": [DEPENDABOT],
    "github-issue-forms": [ISSUES / "bug.yml", ISSUES / "idea.yml"],
    "github-issue-config": [ISSUES / "config.yml"],
}
"""Files that GitHub reads, by the name of their schema."""
BIN = Path(sys.executable).parent


def steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def scripts() -> list[str]:
    return [step["run"] for file in WORKFLOWS for step in steps(file) if "run" in step]


def test_they_fit_githubs_schema() -> None:
    checks = []
    for schema, files in FORMS.items():
        command = [str(BIN / "check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *map(str, files)]
        checks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for output, check in [(check.communicate()[0], check) for check in checks]:
        assert check.returncode == 0, output


def test_an_auditor_finds_nothing_unsafe() -> None:
    """Permissions, injected expressions, credentials that stay, actions that are not pinned, and more."""
    command = [str(BIN / "zizmor"), "--offline", "--strict-collection", "--quiet", *map(str, [*WORKFLOWS, DEPENDABOT])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_and_jobs_end(file: Path) -> None:
    for step in steps(file):
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}"))
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    assert all(job["timeout-minutes"] <= 360 for job in jobs)


def test_scripts_parse_and_call_what_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for script in scripts():
        subprocess.run(["bash", "-n", "-c", re.sub(r"\$\{\{.*?\}\}", "x", script)], check=True)
        for target in re.findall(r"\bmake ([a-z]+)", script):
            assert re.search(rf"(?m)^{target}:", makefile), target
        for path in re.findall(r"(?:tests|manifests)/[\w./-]+", script):
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
            "crrd.openvex.json": '"crrd.openvex.json"',
            "crrd-$version.tgz": 'f"crrd-{release.version}.tgz"',
            "crrd-$version-image.oci.tar": 'f"crrd-{release.version}-image.oci.tar"',
        }
        assert made[name] in makes, name


def test_the_page_names_each_workflow_and_the_versions_of_kind() -> None:
    page = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")
    table = page.partition("| workflow |")[2].partition("\n\n")[0]
    assert {file.stem for file in WORKFLOWS} == set(re.findall(r"(?m)^\| `(\w+)` \|", table))
    kind = (ROOT / ".github" / "workflows" / "kind.yml").read_text(encoding="utf-8")
    versions = re.findall(r"node: v(1\.\d+)\.\d+@sha256:[0-9a-f]{64}\n", kind)
    assert versions == [f"1.{minor}" for minor in range(30, 30 + len(versions))]
    assert f"Kubernetes {versions[0]} to {versions[-1]} " in table


def test_what_artifact_hub_reads_is_there() -> None:
    text = (ROOT / "manifests" / "artifacthub-repo.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == {"repositoryID": ""}
    (changed,) = re.findall(r'sed "(s/[^"]*/repositoryID: \$ID/)"', "".join(scripts()))
    command = ["sed", changed.replace("$ID", "abc-1")]
    made = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    assert yaml.safe_load(made) == {"repositoryID": "abc-1"}
