"""The Helm chart: rendered by Helm's own library, it is what kustomize renders of the manifests."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from crrd import __version__
from tests.support.chart import CHART, Json, helm, templated
from tests.support.manifests import needs_kubectl, one, rendered

pytestmark = needs_kubectl
HOOKS = {("ClusterRole", "crrd-uninstall"), ("ClusterRoleBinding", "crrd-uninstall"), ("Job", "crrd-uninstall")}


def comparable(found: Any) -> Any:
    """An object whose lists of named things have no order: patches of kustomize append."""
    if isinstance(found, dict):
        return {key: comparable(value) for key, value in found.items()}
    if isinstance(found, list):
        return sorted(map(comparable, found), key=lambda each: json.dumps(each, sort_keys=True))
    return found


def by_name(objects: list[Json]) -> dict[tuple[str, str], Json]:
    found = {(each["kind"], each["metadata"]["name"]): comparable(each) for each in objects}
    assert len(found) == len(objects)
    return found


def test_what_is_committed_is_what_the_script_makes() -> None:
    spec = importlib.util.spec_from_file_location("chart", CHART / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.files().items():
        assert (CHART / name).read_text(encoding="utf-8") == text, "run: python manifests/chart/generate.py"


@pytest.mark.parametrize(
    ("folders", "values"),
    [
        (["default"], {}),
        (["default", "monitoring"], {"monitoring": {"enabled": True}}),
        (["overlays/crio"], {"node": {"runtimeSocket": "/run/crio/crio.sock"}}),
        (["overlays/k3s"], {"node": {"runtimeSocket": "/run/k3s/containerd/containerd.sock"}}),
        (["overlays/host-network"], {"manager": {"hostNetwork": True}}),
        (["overlays/gate-all-namespaces"], {"manager": {"readinessGate": "all"}}),
        (["overlays/beside-openkruise"], {"besideOpenKruise": {"enabled": True}}),
        (["overlays/lean"], {"node": {"enabled": False}}),
        (
            ["overlays/lean", "overlays/monitoring-lean"],
            {"node": {"enabled": False}, "monitoring": {"enabled": True}},
        ),
        (
            ["overlays/beside-openkruise", "overlays/monitoring-beside-openkruise"],
            {"besideOpenKruise": {"enabled": True}, "monitoring": {"enabled": True}},
        ),
    ],
    ids=str,
)
def test_renders_what_kustomize_renders(folders: list[str], values: Json) -> None:
    expected = by_name([each for folder in folders for each in rendered(folder)])
    found = by_name(templated(values))
    hooks = {key: found.pop(key) for key in HOOKS & found.keys()}
    assert hooks.keys() == (set() if "besideOpenKruise" in values else HOOKS)
    for key, each in found.items():
        if key[0] in ("CustomResourceDefinition", "Namespace"):
            assert each["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found == expected


def test_the_linter_finds_nothing() -> None:
    report = helm.lint(CHART, strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [each for each in report["messages"] if "icon is recommended" not in each["error"]] == []


@pytest.mark.parametrize(
    ("values", "namespace", "created"),
    [
        ({}, "default", {"crrd-system", "crrd-node"}),
        ({}, "crrd-system", {"crrd-node"}),
        ({"namespaces": {"create": False}}, "default", set()),
    ],
)
def test_the_namespace_of_the_release_is_not_the_charts(values: Json, namespace: str, created: set[str]) -> None:
    found = templated(values, namespace)
    assert {each["metadata"]["name"] for each in found if each["kind"] == "Namespace"} == created


def test_a_namespace_of_others_is_not_taken_over(tmp_path: Path) -> None:
    """Helm refuses only without --take-ownership. `lookup` needs a cluster, so another expression replaces it."""
    others = shutil.ignore_patterns("crd.yaml", "monitoring.yaml", "manager.yaml", "access.yaml", "README.md")
    chart = shutil.copytree(CHART, tmp_path / "crrd", ignore=others)
    helpers = chart / "templates" / "_helpers.tpl"
    text = helpers.read_text(encoding="utf-8")
    for labels, taken in (({}, False), ({"app.kubernetes.io/name": "crrd"}, True)):
        there = json.dumps({"metadata": {"name": "platform", **({"labels": labels} if labels else {})}})
        changed, count = re.subn(r'\(lookup "v1" "Namespace" "" \.\)', f"(fromJson `{there}`)", text)
        assert count
        helpers.write_text(changed, encoding="utf-8")
        if taken:
            assert templated(chart=chart)
            continue
        with pytest.raises(helm.HelmError, match=r"namespace \S+ exists and is not crrd's: choose another name"):
            templated(chart=chart)


def test_the_hook_fits_the_schemas_and_runs_with_little() -> None:
    objects = templated()
    for kind, name in HOOKS:
        found = one(objects, kind, name)
        kubernetes_validate.validate(found, "1.36", strict=True)
        assert found["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    spec = one(objects, "Job", "crrd-uninstall")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    module = container["command"][-1]
    assert importlib.util.find_spec(module) is not None
    manager = one(objects, "Deployment", "crrd-manager")["spec"]["template"]["spec"]
    assert spec["securityContext"] == manager["securityContext"]
    assert container["securityContext"] == manager["containers"][0]["securityContext"]
    assert spec["serviceAccountName"] == manager["serviceAccountName"]


def test_the_chart_has_the_version_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
