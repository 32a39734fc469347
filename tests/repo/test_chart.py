"""The Helm chart: rendered by Helm's own library, it is what kustomize renders of the manifests."""

import importlib.util
import json
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from crrd import __version__
from tests.support.manifests import MANIFESTS, needs_kubectl, one, rendered

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")
pytestmark = needs_kubectl
CHART = MANIFESTS / "chart"
HOOKS = {("ClusterRole", "crrd-uninstall"), ("ClusterRoleBinding", "crrd-uninstall"), ("Job", "crrd-uninstall")}
Json = dict[str, Any]


def templated(values: Json | None = None, namespace: str = "default") -> list[Json]:
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name="crrd", namespace=namespace)
    documents = [text for name, text in texts.items() if name.endswith(".yaml")]
    return [found for text in documents for found in yaml.safe_load_all(text) if found]


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
        (["overlays/beside-openkruise"], {"besideOpenKruise": {"enabled": True}}),
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
        if key[0] == "CustomResourceDefinition":
            assert each["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found == expected


def test_the_linter_finds_nothing() -> None:
    report = helm.lint(CHART, strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [each for each in report["messages"] if "icon is recommended" not in each["error"]] == []


def test_every_value_arrives() -> None:
    digest = f"sha256:{'0' * 64}"
    scheduling: Json = {
        "tolerations": [{"key": "a.example/b", "operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux", "a.example/role": "true"},
        "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
    }
    values = {
        "image": {"repository": "registry.example:5000/crrd", "digest": digest, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "namespaces": {"manager": "one", "node": "2"},
        "manager": {**scheduling, "replicas": 3},
        "node": {**scheduling, "runtimeSocket": "/var/run/my.sock"},
        "crd": {"keep": False},
        "monitoring": {"enabled": True},
    }
    objects = templated(values)
    for kind, name, namespace in (
        ("Deployment", "crrd-manager", "one"),
        ("DaemonSet", "crrd-node", "2"),
        ("Job", "crrd-uninstall", "one"),
    ):
        found = one(objects, kind, name)
        spec = found["spec"]["template"]["spec"]
        assert found["metadata"]["namespace"] == namespace
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        assert (spec["tolerations"], spec["nodeSelector"]) == (scheduling["tolerations"], scheduling["nodeSelector"])
        (container,) = spec["containers"]
        assert container["image"] == f"registry.example:5000/crrd@{digest}"
        assert container["imagePullPolicy"] == "Always"
        assert container["resources"] == scheduling["resources"]
    assert one(objects, "Deployment", "crrd-manager")["spec"]["replicas"] == 3
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"} == {"one", "2"}
    assert not re.search(r'"namespace": "crrd-|system:serviceaccount:crrd', json.dumps(objects))
    assert "crrd-system" not in json.dumps(objects)
    crd = one(objects, "CustomResourceDefinition", "containerrecreaterequests.apps.kruise.io")
    assert "annotations" not in crd["metadata"]


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


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"tags": "typo"}},
        {"image": {"digest": "0" * 64}},
        {"node": {"runtimeSocket": "unix:///run/crio/crio.sock"}},
        {"manager": {"replicas": 0}},
        {"namespaces": {"node": "UPPER"}},
        {"node": {"tolerations": [{"operator": "Exist"}]}},
    ],
    ids=str,
)
def test_the_schema_refuses_values_that_mean_nothing(values: Json) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError):
        chart.render(values, name="crrd")


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
