"""The values of the Helm chart: all arrive, and what cannot work is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from crrd.core.doctor.facts import VIRTUAL_NODES
from tests.support.chart import CHART, Json, helm, templated
from tests.support.manifests import one, rendered

WORKLOADS = (("Deployment", "crrd-manager"), ("DaemonSet", "crrd-node"), ("Job", "crrd-uninstall"))
LINUX = {"kubernetes.io/os": "linux"}
NODE_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a.example/role", "operator": "Exists"}]}]
    }
}
SPREAD = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}


def pod_templates(objects: list[Json]) -> dict[tuple[str, str], Json]:
    """Return the template of every pod that any of these objects makes."""
    found = {}
    for each in objects:
        spec = each.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None or each["kind"] == "Pod":
            found[each["kind"], each["metadata"]["name"]] = template or each
    return found


def test_every_value_arrives() -> None:
    digest = f"sha256:{'0' * 64}"
    pods: Json = {
        "tolerations": [{"key": "a.example/b", "operator": "Exists"}],
        "nodeSelector": {**LINUX, "a.example/role": "true"},
        "affinity": {"nodeAffinity": NODE_AFFINITY},
        "topologySpreadConstraints": [{**SPREAD, "labelSelector": {"matchLabels": {"a": "b"}}}],
        "priorityClassName": "mine",
        "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "podAnnotations": {"a.example/note": "some text"},
    }
    values = {
        "image": {"repository": "registry.example:5000/crrd", "digest": digest, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "namespaces": {"manager": "one", "node": "2"},
        "manager": {
            **pods,
            "replicas": 3,
            "env": {"CRRD_LOG_LEVEL": "debug", "CRRD_DEFAULT_DEADLINE_SLACK_SECONDS": 1_000_000},
        },
        "node": {
            **pods,
            "runtimeSocket": "/var/run/my.sock",
            "maxUnavailable": 3,
            "env": {"CRRD_SERVE_FORECAST": True, "CRRD_KUBELET_HEALTHZ_PORT": 10248},
        },
        "crd": {"keep": False},
        "monitoring": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "dashboardLabels": {"grafana_dashboard": None, "mine": "1"},
        },
    }
    objects = templated(values)
    for kind, name in WORKLOADS:
        found = one(objects, kind, name)
        template = found["spec"]["template"]
        spec = template["spec"]
        assert found["metadata"]["namespace"] == ("2" if kind == "DaemonSet" else "one")
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        for key in ("tolerations", "nodeSelector", "priorityClassName"):
            assert spec[key] == pods[key]
        assert spec["affinity"]["nodeAffinity"] == NODE_AFFINITY
        assert template["metadata"]["labels"].items() >= pods["podLabels"].items()
        assert template["metadata"]["annotations"] == pods["podAnnotations"]
        (container,) = spec["containers"]
        assert container["image"] == f"registry.example:5000/crrd@{digest}"
        assert container["imagePullPolicy"] == "Always"
        assert container["resources"] == pods["resources"]
        if kind != "Job":
            assert spec["topologySpreadConstraints"] == pods["topologySpreadConstraints"]
        kubernetes_validate.validate(found, "1.36", strict=True)
    of_manager = {
        "CRRD_LOG_LEVEL": "debug",
        "CRRD_LOG_FORMAT": "json",
        "CRRD_DEFAULT_DEADLINE_SLACK_SECONDS": "1000000",
    }
    assert variables(objects, "Deployment").items() >= of_manager.items()
    of_node = {"CRRD_SERVE_FORECAST": "true", "CRRD_KUBELET_HEALTHZ_PORT": "10248", "CRRD_BIND_ADDRESS": ":9420"}
    assert variables(objects, "DaemonSet").items() >= of_node.items()
    assert one(objects, "Deployment", "crrd-manager")["spec"]["replicas"] == 3
    assert one(objects, "DaemonSet", "crrd-node")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 3}
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"} == {"one", "2"}
    assert not re.search(r'"namespace": "crrd-|system:serviceaccount:crrd', json.dumps(objects))
    assert "crrd-system" not in json.dumps(objects)
    crd = one(objects, "CustomResourceDefinition", "containerrecreaterequests.apps.kruise.io")
    assert "annotations" not in crd["metadata"]
    scraped = [each for each in objects if each["kind"] in ("PodMonitor", "PrometheusRule")]
    assert [each["metadata"]["labels"]["release"] for each in scraped] == ["prometheus"] * 3
    dashboard = one(objects, "ConfigMap", "crrd-dashboard")["metadata"]["labels"]
    assert dashboard["mine"] == "1"
    assert "grafana_dashboard" not in dashboard


def variables(objects: list[Json], kind: str) -> Json:
    """Return the variables of a workload's container, by name; each may be there once."""
    (container,) = one(objects, kind, dict(WORKLOADS)[kind])["spec"]["template"]["spec"]["containers"]
    found = {each["name"]: each.get("value") for each in container["env"]}
    assert len(found) == len(container["env"])
    return found


@pytest.mark.parametrize("chosen", [{}, {"nodeSelector": {"a.example/role": "true"}}], ids=str)
def test_every_pod_runs_on_linux(chosen: Json) -> None:
    found = pod_templates(templated({"manager": chosen, "node": chosen, "monitoring": {"enabled": True}}))
    assert found.keys() == set(WORKLOADS)
    for template in found.values():
        assert template["spec"]["nodeSelector"] == LINUX | chosen.get("nodeSelector", {})


@pytest.mark.parametrize("folder", ["default", "overlays/host-network", "overlays/beside-openkruise"])
def test_every_pod_of_the_manifests_runs_on_linux(folder: str) -> None:
    found = pod_templates(rendered(folder))
    assert found
    assert all(template["spec"]["nodeSelector"] == LINUX for template in found.values())


def test_virtual_nodes_are_left_out() -> None:
    affinity = one(rendered("default"), "DaemonSet", "crrd-node")["spec"]["template"]["spec"]["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    left_out = {each["key"]: (each["operator"], each["values"]) for each in term["matchExpressions"]}
    assert left_out == {
        "type": ("NotIn", ["virtual-kubelet"]),
        "eks.amazonaws.com/compute-type": ("NotIn", ["fargate"]),
    }
    assert left_out == {key: ("NotIn", [value]) for key, value in VIRTUAL_NODES.items()}, "doctor misses none there"


def test_the_hook_does_not_keep_away_from_the_manager() -> None:
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
    objects = templated({"manager": {"affinity": {"nodeAffinity": NODE_AFFINITY, "podAntiAffinity": apart}}})
    spec = one(objects, "Job", "crrd-uninstall")["spec"]["template"]["spec"]
    assert spec["affinity"] == {"nodeAffinity": NODE_AFFINITY}


@pytest.mark.parametrize(("section", "kind"), [("manager", "Deployment"), ("node", "DaemonSet")])
def test_a_constraint_counts_the_pods_of_its_workload(section: str, kind: str) -> None:
    found = one(templated({section: {"topologySpreadConstraints": [SPREAD]}}), kind, dict(WORKLOADS)[kind])["spec"]
    (constraint,) = found["template"]["spec"]["topologySpreadConstraints"]
    assert constraint == {**SPREAD, "labelSelector": found["selector"]}


@pytest.mark.parametrize("key", ["affinity", "tolerations", "nodeSelector", "resources", "priorityClassName", "env"])
def test_a_default_can_be_taken_away(key: str) -> None:
    objects = templated({"manager": {key: None}, "node": {key: None}})
    for kind, name in WORKLOADS[:2]:
        spec = one(objects, kind, name)["spec"]["template"]["spec"]
        assert not (spec | spec["containers"][0]).get("resources" if key == "resources" else key) or key == "env"
    assert "CRRD_BIND_ADDRESS" in variables(objects, "DaemonSet")


def test_secrets_of_a_parent_chart_pull_the_image_too() -> None:
    values = {"global": {"imagePullSecrets": ["a", {"name": "b"}, "c"]}, "imagePullSecrets": [{"name": "c"}]}
    for template in pod_templates(templated(values)).values():
        assert template["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    templated({"global": None})


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_parent_chart_may_leave_it_out(tmp_path: Path, *, condition: bool, enabled: bool) -> None:
    dependency = {"name": "crrd", "version": ">=0", **({"condition": "crrd.enabled"} if condition else {})}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")
    shutil.copytree(CHART, tmp_path / "charts" / "crrd")
    values = {"crrd": {"enabled": enabled, "monitoring": {"enabled": True}}, "global": {"of": "others"}}
    found = templated(values, chart=tmp_path)
    assert bool(found) is enabled


def test_a_missing_value_leaves_nothing_out() -> None:
    """`helm upgrade --reuse-values` knows no values that are new in the chart."""
    everything = {(each["kind"], each["metadata"]["name"]) for each in templated()}
    new = dict.fromkeys(("affinity", "env", "podLabels", "podAnnotations", "topologySpreadConstraints"))
    values = {"enabled": None, "global": None, "imagePullSecrets": None, "manager": new, "node": new}
    assert {(each["kind"], each["metadata"]["name"]) for each in templated(values)} == everything


REFUSED: list[Json] = [
    {"image": {"digest": "0" * 64}},
    {"image": {"repository": "registry.example/crrd:0.1.0"}},
    {"image": {"tag": "0.1.0@sha256"}},
    {"global": {"imagePullSecrets": "pull"}},
    {"namespaces": {"node": "UPPER"}},
    {"node": {"runtimeSocket": "unix:///run/crio/crio.sock"}},
    {"node": {"maxUnavailable": 0}},
    {"node": {"maxUnavailable": "0%"}},
    {"manager": {"replicas": 0}},
    {"manager": {"replicas": 9}},
    {"monitoring": {"labels": {"app.kubernetes.io/name": "other"}}},
    {"monitoring": {"labels": {"release": "not a label"}}},
]
OF_PODS: list[Json] = [
    {"tolerations": [{"operator": "Exist"}]},
    {"tolerations": [{"operator": "Exists", "value": "x"}]},
    {"tolerations": [{"value": "x"}]},
    {"tolerations": [{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 3}]},
    {"nodeSelector": {"a key": "true"}},
    {"nodeSelector": {"role": True}},
    {"affinity": {"nodeAffinty": {}}},
    {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
    {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
    {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Never"}]},
    {"topologySpreadConstraints": {"maxSkew": 1}},
    {"priorityClassName": "Upper Case"},
    {"resources": {"limits": {"memory": "1 GB"}}},
    {"resources": {"limits": {"memory": -1}}},
    {"podLabels": {"app": "other"}},
    {"podLabels": {"a": "not a label"}},
    {"podAnnotations": {"a": 1}},
    {"env": {"CRRD_BIND_ADDRESS": ":80"}},
    {"env": {"POD_NAME": "other"}},
    {"env": {"CRRD_TLS_CERT_FILE": "/nothing/is/mounted"}},
    {"env": {"not a name": "x"}},
    {"env": [{"name": "a", "value": "b"}]},
]


@pytest.mark.parametrize(
    "values",
    [*REFUSED, *({section: each} for section in ("manager", "node") for each in OF_PODS)],
    ids=str,
)
def test_values_that_cannot_work_are_refused(values: Json) -> None:
    ((section, keys),) = values.items()
    with pytest.raises(helm.HelmError, match=f"'/{section}/{next(iter(keys))}"):
        templated(values)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"enabled": "yes"}, "'/enabled': got string, want boolean"),
        ({"image": {"tags": "typo"}}, "additional properties 'tags' not allowed"),
        ({"imagePullSecrets": ["pull"]}, "'/imagePullSecrets/0': got string, want object"),
        ({"namespaces": {"manager": "same", "node": "same"}}, "must differ"),
        ({"namespaces": {"node": "crrd-system"}}, "must differ"),
        ({"node": {"enabled": False}, "besideOpenKruise": {"enabled": True}}, "node.enabled must not be false"),
    ],
    ids=str,
)
def test_the_error_says_what_is_wrong(values: Json, why: str) -> None:
    with pytest.raises(helm.HelmError, match=why):
        templated(values)


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        *((name, name) for name in ("image", "namespaces", "manager", "node", "crd", "besideOpenKruise", "monitoring")),
        ("image.repository", "repository"),
        ("namespaces.manager", "manager"),
        ("namespaces.node", "node"),
        ("manager.replicas", "replicas"),
        ("node.runtimeSocket", "runtimeSocket"),
        ("node.maxUnavailable", "maxUnavailable"),
        ("besideOpenKruise.serviceAccount", "serviceAccount"),
        ("besideOpenKruise.namespace", "namespace"),
    ],
)
def test_a_value_that_is_needed_cannot_be_taken_away(path: str, missing: str) -> None:
    """A key of a values file without anything below it is null, too."""
    values: Any = None
    for key in reversed(path.split(".")):
        values = {key: values}
    with pytest.raises(helm.HelmError, match=f"missing property '{missing}'"):
        templated(values)


@pytest.mark.parametrize(
    "pods",
    [
        {"tolerations": [{"operator": "Exists"}, {"key": "k", "value": "v"}]},
        {"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}]},
        {"resources": {"requests": {"cpu": 0.5, "memory": "64Mi", "ephemeral-storage": "1e3"}}},
        {"priorityClassName": ""},
    ],
    ids=str,
)
def test_values_that_kubernetes_accepts_are_accepted(pods: dict[str, Any]) -> None:
    for found in templated({"manager": pods, "node": pods}):
        if (found["kind"], found["metadata"]["name"]) in WORKLOADS:
            kubernetes_validate.validate(found, "1.36", strict=True)
