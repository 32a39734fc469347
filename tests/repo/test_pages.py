"""Pages whose commands run only on a cluster: what their commands name is there, so that they cannot drift."""

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.cli.main import build_parser, module_of
from crrd.core.policy.schema import FIELDS
from crrd.core.policy.types import KIND
from crrd.core.policy.v1alpha1 import read_policy
from tests.support.manifests import rendered
from tests.support.pages import DOCS, commands, objects, sections
from tests.tools.cluster.image import NAME

ROOT = Path(__file__).parents[2]
PAGES = {page: sections(page) for page in ("quickstart.md", "recipes.md", "from-cronjobs.md")}
QUICKSTART = {heading: commands(text) for heading, text in PAGES["quickstart.md"].items()}
COMMANDS = [(page, line) for page, found in PAGES.items() for text in found.values() for line in commands(text)]
APPLIED = [(page, each) for page, found in PAGES.items() for text in found.values() for each in objects(text)]
RUNNING = ("Deployment", "Pod")
VERBS = {
    *("annotate", "apply", "create", "delete", "exec", "get", "label", "logs", "patch", "recreate", "rollout", "scale"),
    *("wait", "describe"),
}


def words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def read(name: str) -> list[dict[str, Any]]:
    """The objects of an example."""
    return [*yaml.safe_load_all((ROOT / "manifests" / "examples" / name).read_text(encoding="utf-8"))]


def parsed(command: str, arguments: list[str]) -> argparse.Namespace:
    """Parse a command of crrd as `main` does. The test fails on what it does not know."""
    arranged = getattr(module_of(command), "arranged", list)(arguments)
    return build_parser(command).parse_args([command, *arranged])


def test_five_commands_for_a_cluster_with_crrd() -> None:
    lines = QUICKSTART["kind, minikube or k3d"]
    assert len(lines) == 5
    assert [words(line)[0] for line in lines] == ["kind", "docker", "kind", "kubectl", "kubectl"]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_each_command_is_known(page: str, line: str) -> None:
    program, *rest = words(line)
    assert program in ("python3", "kind", "docker", "kubectl", "crrd", "sh"), page
    if program == "kubectl":
        assert rest[0] in VERBS
        if rest[0] == "recreate":
            parsed("recreate", rest[1:])
    elif program == "crrd":
        parsed(rest[0], rest[1:])


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_files_are_there(page: str, line: str) -> None:
    for path in re.findall(r"(?:^|\s)(?:\./)?((?:manifests|forecast|tests|docs)[\w./-]*)", line):
        assert (ROOT / path).exists(), page
    for _, path in re.findall(r"(-k|--kustomize)[ =](\S+)", line):
        assert (ROOT / path / "kustomization.yaml").is_file()


def test_the_image_is_that_of_the_manifests() -> None:
    named = {
        word for lines in QUICKSTART.values() for line in lines for word in words(line) if word.startswith("crrd:")
    }
    images = {
        container["image"]
        for each in rendered("default")
        if each["kind"] in ("Deployment", "DaemonSet")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert named == images == {NAME.rpartition("/")[2]}
    page = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    assert {*re.findall(r"\bcrrd:[\d.]+\d", page)} == named


def test_the_readme_has_the_same_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "".join(f"    {line}\n" for line in QUICKSTART["kind, minikube or k3d"]) in readme


def test_the_edit_is_one_that_the_workload_uses() -> None:
    config, workload = read("web.yaml")
    (policy,) = read("web-policy.yaml")
    (edit,) = (line for line in QUICKSTART["An edit goes live"] if "patch" in line)
    flag = next(word for word in words(edit) if word.startswith("--patch="))
    assert yaml.safe_load(flag.removeprefix("--patch="))["data"].keys() == config["data"].keys()
    assert words(edit)[:4] == ["kubectl", "patch", "configmap", config["metadata"]["name"]]
    first, second = workload["spec"]["template"]["spec"]["containers"]
    assert first["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]
    assert "envFrom" not in second
    assert policy["spec"]["targetRef"] == {"apiVersion": "apps/v1", "kind": workload["kind"], "name": "web"}


def test_what_is_waited_for_is_in_the_status() -> None:
    paths = {path for _, line in COMMANDS for path in re.findall(r"crp/\S+ --for=jsonpath='\{\.([\w.]+)\}'", line)}
    assert paths
    assert paths <= FIELDS.keys()


def test_policies_are_valid() -> None:
    policies = [each for _, each in APPLIED if each["kind"] == KIND]
    policies += read("web-policy.yaml")
    recipes = (DOCS / "recipes.md").read_text(encoding="utf-8")
    indented = re.findall(rf"(?m)^    apiVersion: .*\n    kind: {KIND}\n(?:    .*\n)+", recipes)
    policies += [yaml.safe_load(each) for each in indented]
    assert len(policies) == 3
    assert [read_policy(each).error for each in policies] == [""] * len(policies)


def test_objects_are_those_that_the_commands_name() -> None:
    """A block waits for, edits and restarts what it has applied, and its containers are there."""
    for page, found in PAGES.items():
        for text in found.values():
            applied = objects(text)
            for file in re.findall(r"-f manifests/examples/(\S+)", text):
                applied += read(file)
            names = {each["metadata"]["name"] for each in applied}
            pods = [each["spec"].get("template", each)["spec"] for each in applied if each["kind"] in RUNNING]
            containers = {each["name"] for spec in pods for each in spec["containers"]}
            for line in commands(text) if applied else ():
                assert {*re.findall(r"(?:deployment|pod|crp|cronjob)/([a-z-]+)", line)} <= names, page
                assert {*re.findall(r" -c ([a-z-]+)$", line)} <= containers, page


def test_the_arguments_of_a_cronjob_are_known() -> None:
    """They are those of the image, whose rights a role of the same block has."""
    (job,) = [each for _, each in APPLIED if each["kind"] == "CronJob"]
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command, *rest = container["args"]
    assert parsed(command, rest).targets == ["deployment/web"]
    assert container["image"] == NAME.rpartition("/")[2]


def test_roles_are_there() -> None:
    roles = {each["metadata"]["name"] for each in rendered("default") if each["kind"] == "ClusterRole"}
    named = {role for _, line in COMMANDS for role in re.findall(r"--clusterrole=([\w-]+)", line)}
    assert named
    assert named <= roles


def test_drift_is_noticed() -> None:
    with pytest.raises(SystemExit):
        parsed("recreate", ["deployment/web", "--no-such-flag"])
