"""The manifests render, fit Kubernetes' published schemas, and say what the code needs."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from crrd.cli.main import build_parser
from crrd.cli.manager import manager_config
from crrd.core.api import types as model
from crrd.kube.leader import LEASE_NAME
from crrd.kube.resources import PODS, POLICIES, REQUESTS
from crrd.manager.gated import GATED_NAMESPACES, NEVER_GATED
from crrd_forecast.hash.quantity import parse as parse_quantity
from tests.support import manifests
from tests.support.manifests import MANIFESTS, needs_kubectl, rendered

PARTS = ["base", "requests", "node", "manager"]
WHOLE = [
    "default",
    *(f"overlays/{name}" for name in ("containerd", "crio", "k3s", "host-network", "gate-all-namespaces")),
    *("overlays/beside-openkruise", "overlays/lean"),
]
RENDERED = [*PARTS, *WHOLE]
KUBERNETES = "1.36"
NO_SCHEMA = {"CustomResourceDefinition"}
"""Too recursive for the published schemas; a real API server takes it in the end-to-end tests."""

Json = dict[str, Any]
pytestmark = needs_kubectl


def one(folder: str, kind: str, name: str) -> Json:
    return manifests.one(rendered(folder), kind, name)


@pytest.mark.parametrize("folder", RENDERED)
def test_renders_and_fits_the_published_schemas(folder: str) -> None:
    for found in rendered(folder):
        if found["kind"] not in NO_SCHEMA:
            fits(json.dumps(found))


@cache
def fits(found: str) -> None:
    """Raises if an object does not fit. Most objects are the same in all folders, and a check reads large schemas."""
    kubernetes_validate.validate(json.loads(found), KUBERNETES, strict=True)


@pytest.mark.parametrize("folder", [*PARTS, "overlays/beside-openkruise"])
def test_in_another_namespace_nothing_of_ours_stays_behind(folder: str) -> None:
    for found in rendered(folder, "elsewhere"):
        assert found["metadata"].get("namespace", "elsewhere") == "elsewhere"
        own = [subject for subject in found.get("subjects", ()) if subject["name"].startswith("crrd-")]
        assert {subject["namespace"] for subject in own} <= {"elsewhere"}
        services = [webhook["clientConfig"]["service"] for webhook in found.get("webhooks", ())]
        assert {service["namespace"] for service in services} <= {"elsewhere"}


def test_every_overlay_is_rendered_here() -> None:
    folders = {f"overlays/{folder.name}" for folder in (manifests.MANIFESTS / "overlays").iterdir()}
    monitoring = {f"overlays/monitoring-{each}" for each in ("beside-openkruise", "lean")}
    assert folders - monitoring == {each for each in RENDERED if "overlays" in each}


@pytest.mark.parametrize(("kind", "name"), [("DaemonSet", "crrd-node"), ("Deployment", "crrd-manager")])
def test_a_quota_lets_critical_pods_into_their_namespace(kind: str, name: str) -> None:
    workload = one("default", kind, name)
    quotas = [each for each in rendered("default") if each["kind"] == "ResourceQuota"]
    (quota,) = [each for each in quotas if each["metadata"]["namespace"] == workload["metadata"]["namespace"]]
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    wanted = workload["spec"]["template"]["spec"]["priorityClassName"]
    assert scope == {"scopeName": "PriorityClass", "operator": "In", "values": [wanted]}
    pods = parse_quantity(quota["spec"]["hard"]["pods"])
    assert pods.canonical() == quota["spec"]["hard"]["pods"]  # as the API server writes it
    assert pods.value >= 1_000_000, "the namespace may have critical pods of others: coredns in kube-system"


@pytest.mark.parametrize("folder", ["node", "manager", *(each for each in RENDERED if each not in PARTS)])
def test_no_process_of_ours_is_process_1(folder: str) -> None:
    """The kernel drops a SIGTERM for process 1 that has no handler yet, and Python needs a while until it has one."""
    workloads = [each for each in rendered(folder) if each["kind"] in ("DaemonSet", "Deployment")]
    assert workloads
    for each in workloads:
        assert each["spec"]["template"]["spec"]["shareProcessNamespace"] is True


@pytest.mark.parametrize("folder", ["node", "default", "overlays/beside-openkruise"])
def test_all_calls_of_the_node_daemon_have_seats_of_their_own(folder: str) -> None:
    flow = one(folder, "FlowSchema", "crrd-node")["spec"]
    level = one(folder, "PriorityLevelConfiguration", flow["priorityLevelConfiguration"]["name"])["spec"]
    assert level["type"] == "Limited"
    assert level["limited"]["limitResponse"]["type"] == "Queue"
    assert flow["matchingPrecedence"] < 9000  # Kubernetes' own for service accounts
    (rule,) = flow["rules"]
    (subject,) = rule["subjects"]
    account = one(folder, "ServiceAccount", subject["serviceAccount"]["name"])
    assert subject["serviceAccount"]["namespace"] == account["metadata"]["namespace"]
    (role,) = (
        each for each in rendered(folder) if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "crrd-node"
    )
    assert _calls(rule["resourceRules"]) == _calls(role["rules"])
    scoped = [each for each in rule["resourceRules"] if each["resources"] != ["nodes"]]
    assert all(each["namespaces"] == ["*"] for each in scoped)
    assert all(each["clusterScope"] for each in rule["resourceRules"] if each not in scoped)


@pytest.mark.parametrize("folder", ["default", "overlays/host-network"])
def test_all_calls_of_the_manager_have_seats_of_their_own(folder: str) -> None:
    flow = one(folder, "FlowSchema", "crrd-manager")["spec"]
    level = one(folder, "PriorityLevelConfiguration", flow["priorityLevelConfiguration"]["name"])["spec"]
    assert level["limited"]["limitResponse"]["type"] == "Queue"
    assert flow["matchingPrecedence"] < 9000  # Kubernetes' own for service accounts
    (rule,) = flow["rules"]
    (subject,) = rule["subjects"]
    account = one(folder, "ServiceAccount", subject["serviceAccount"]["name"])
    assert subject["serviceAccount"]["namespace"] == account["metadata"]["namespace"]
    assert _calls(rule["resourceRules"]) == {("*", "*", "*")}


def test_each_right_of_the_daemons_is_in_the_table_of_what_a_thief_could_do() -> None:
    """Whoever adds a right says what it is worth to a thief."""
    text = (MANIFESTS.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.partition("## What is granted, and why")[2].partition("RBAC cannot express")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")]
    owners = {
        "node daemon": ("crrd-node", "crrd-serve-requests"),
        "manager": ("crrd-manager", "crrd-manage-requests"),
        "manager, where bound": (
            *("crrd-read-config", "crrd-read-secrets", "crrd-update-images", "crrd-patch-pods"),
            "crrd-restore-config",
        ),
    }
    for owner, names in owners.items():
        cells = [cell for to, cell, _, thief in rows if to.strip() == owner and thief.strip()]
        roles = [each for each in rendered("default") if each["kind"] in ("ClusterRole", "Role")]
        rules = [rule for role in roles if role["metadata"]["name"] in names for rule in role["rules"]]
        assert rules
        for _, resource, verb in _calls(rules):
            told = [cell for cell in cells if f"`{resource}`" in cell and verb in cell]
            assert told, f"{owner}: {verb} {resource}"


def _calls(rules: list[Json]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_a_replica_that_does_not_get_ready_holds_up_no_drain() -> None:
    budget = one("default", "PodDisruptionBudget", "crrd-manager")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert "minAvailable" not in budget, "a single replica would hold up every drain"
    assert budget["maxUnavailable"] < one("default", "Deployment", "crrd-manager")["spec"]["replicas"]


def test_on_the_nodes_network_the_managers_ports_are_its_own() -> None:
    folder = "overlays/host-network"
    manager, node = (
        one(folder, kind, name)["spec"]["template"]["spec"]
        for kind, name in (("Deployment", "crrd-manager"), ("DaemonSet", "crrd-node"))
    )
    assert manager["hostNetwork"] is node["hostNetwork"] is True
    ports, taken = (
        {port["name"]: port["containerPort"] for port in each["containers"][0]["ports"]} for each in (manager, node)
    )
    assert ports.keys() == {"http", "webhook"}
    assert not set(ports.values()) & set(taken.values())
    environment = {each["name"]: each.get("value") for each in manager["containers"][0]["env"]}
    assert environment["CRRD_BIND_ADDRESS"] == f":{ports['http']}"
    level = "pod-security.kubernetes.io/enforce"
    assert one(folder, "Namespace", "crrd-system")["metadata"]["labels"][level] == "privileged"


def test_kubernetes_own_roles_take_up_the_rights_to_requests() -> None:
    roles = [each for each in rendered("default") if each["kind"] == "ClusterRole"]

    def aggregated(to: str) -> set[tuple[str, str]]:
        label = f"rbac.authorization.k8s.io/aggregate-to-{to}"
        found = [rule for role in roles if role["metadata"]["labels"].get(label) == "true" for rule in role["rules"]]
        return {(verb, resource) for rule in found for verb in rule["verbs"] for resource in rule["resources"]}

    plain, status = model.PLURAL, f"{model.PLURAL}/status"
    policies = (POLICIES.plural, f"{POLICIES.plural}/status")
    seen = {(verb, resource) for verb in ("get", "list", "watch") for resource in (plain, status, *policies)}
    assert aggregated("view") == seen
    verbs = ("create", "update", "patch", "delete", "deletecollection")
    writes = {(verb, resource) for verb in verbs for resource in (plain, POLICIES.plural)}
    assert aggregated("edit") == aggregated("admin") == seen | writes


@pytest.mark.parametrize("folder", WHOLE)
def test_who_may_write_what_others_obey_is_said_in_each_installation(folder: str) -> None:
    """The policies ask for verbs. Without the role that a binding names, nobody has them, and no policy applies."""
    found = rendered(folder)
    there = {(each["kind"], each["metadata"]["name"]) for each in found}
    roles = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in found if "roleRef" in each}
    bound = {each["spec"]["policyName"] for each in found if each["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert roles <= there
    assert bound == {name for kind, name in there if kind == "ValidatingAdmissionPolicy"}
    assert ("ClusterRoleBinding", "crrd-manage-requests") in there
    assert "crrd-requests" in bound


def test_without_node_daemons_nothing_needs_more_than_restricted_pods_may() -> None:
    """The Pod Security level of the namespace is the API server's to enforce. No other namespace is there."""
    found = rendered("overlays/lean")
    assert "DaemonSet" not in {each["kind"] for each in found}
    levels = [each["metadata"]["labels"] for each in found if each["kind"] == "Namespace"]
    assert [each["pod-security.kubernetes.io/enforce"] for each in levels] == ["restricted"]
    (container,) = one("overlays/lean", "Deployment", "crrd-manager")["spec"]["template"]["spec"]["containers"]
    assert {"name": "CRRD_VIA", "value": "patch"} in container["env"]
    usual = {(each["kind"], each["metadata"]["name"]): each for each in rendered("default")}
    changed = [each for each in found if usual[each["kind"], each["metadata"]["name"]] != each]
    assert [each["kind"] for each in changed] == ["Deployment"]


def test_beside_openkruise_there_is_the_node_daemon_alone() -> None:
    kinds = {found["kind"] for found in rendered("overlays/beside-openkruise")}
    assert "DaemonSet" in kinds
    assert not kinds & {"Deployment", "CustomResourceDefinition", "MutatingWebhookConfiguration"}


@pytest.mark.parametrize(
    ("folder", "socket"),
    [
        ("default", "/run/containerd/containerd.sock"),
        ("overlays/crio", "/run/crio/crio.sock"),
        ("overlays/k3s", "/run/k3s/containerd/containerd.sock"),
    ],
)
def test_the_folder_of_the_socket_is_mounted_where_the_socket_is_looked_for(folder: str, socket: str) -> None:
    spec = one(folder, "DaemonSet", "crrd-node")["spec"]["template"]["spec"]
    (crrd,) = spec["containers"]
    environment = {each["name"]: each.get("value") for each in crrd["env"]}
    assert environment["CRRD_CRI_ENDPOINTS"] == f"unix://{socket}"
    (volume,) = [each for each in spec["volumes"] if each["name"] == "cri"]
    (mount,) = [each for each in crrd["volumeMounts"] if each["name"] == "cri"]
    assert volume["hostPath"]["path"] == mount["mountPath"] == str(Path(socket).parent)


def test_nothing_runs_with_more_than_it_needs() -> None:
    for kind, name in (("DaemonSet", "crrd-node"), ("Deployment", "crrd-manager")):
        spec = one("default", kind, name)["spec"]["template"]["spec"]
        (crrd,) = spec["containers"]
        context = {**spec.get("securityContext", {}), **crrd["securityContext"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert crrd["resources"]["limits"]["memory"]
        assert {"livenessProbe", "readinessProbe"} <= crrd.keys()
    assert one("default", "Namespace", "crrd-system")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == (
        "restricted"
    )


def test_a_page_of_the_largest_objects_fits_a_daemons_memory() -> None:
    """As bytes, as text, decoded and parsed: in larger pages one user's annotations could end every start."""
    fresh, largest = 48 * 2**20, 1536 * 2**10
    for kind, name in (("DaemonSet", "crrd-node"), ("Deployment", "crrd-manager")):
        (crrd,) = one("default", kind, name)["spec"]["template"]["spec"]["containers"]
        limit = int(crrd["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20
        for resource in (REQUESTS, PODS):
            assert fresh + 4 * resource.page * largest <= limit


def test_the_node_daemon_may_do_few_things() -> None:
    rules = one("default", "ClusterRole", "crrd-node")["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == {
        ("containerrecreaterequests", "list"),
        ("containerrecreaterequests", "watch"),
        ("containerrecreaterequests", "patch"),
        ("containerrecreaterequests/status", "patch"),
        ("pods", "list"),
        ("pods", "watch"),
        ("nodes", "get"),
        ("events", "create"),
    }


def test_the_managers_defaults_are_the_names_in_the_manifests() -> None:
    config = manager_config(build_parser("manager").parse_args(["manager"]))
    service = one("default", "Service", config.service)
    assert service["metadata"]["namespace"] == config.namespace
    for webhook in one("default", "MutatingWebhookConfiguration", config.webhook_configurations[0])["webhooks"]:
        reference = webhook["clientConfig"]["service"]
        assert (reference["namespace"], reference["name"]) == (config.namespace, config.service)
    rules = one("default", "Role", "crrd-manager")["rules"]
    named = {name for rule in rules for name in rule.get("resourceNames", [])}
    assert named == {config.secret, LEASE_NAME}
    policy = one("default", "ValidatingAdmissionPolicy", "crrd-manager-secrets")["spec"]["validations"][0]
    assert f'"{config.secret}"' in policy["expression"]
    port = config.webhook_address.rpartition(":")[2]
    (crrd,) = one("default", "Deployment", "crrd-manager")["spec"]["template"]["spec"]["containers"]
    assert {"name": "webhook", "containerPort": int(port)} in crrd["ports"]


def test_a_changed_spec_breaks_one_rule_alone() -> None:
    """Each rule that fails is another sentence."""
    crd = one("base", "CustomResourceDefinition", f"{model.PLURAL}.{model.GROUP}")["spec"]
    for version in crd["versions"]:
        first, *others = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
        assert first["rule"] == "self == oldSelf"
        assert all(each["rule"].startswith("self != oldSelf ||") for each in others)


def test_the_crd_is_the_kind_that_the_code_speaks() -> None:
    crd = one("base", "CustomResourceDefinition", f"{model.PLURAL}.{model.GROUP}")["spec"]
    assert (crd["group"], crd["names"]["kind"], crd["names"]["shortNames"]) == (model.GROUP, model.KIND, ["crr"])
    assert tuple(version["name"] for version in crd["versions"] if version["served"]) == model.VERSIONS
    assert [version["name"] for version in crd["versions"] if version["storage"]] == [model.VERSION]
    first, *others = ({**version, "name": "", "storage": True} for version in crd["versions"])
    assert all(other == first for other in others)
    assert [column["name"] for column in first["additionalPrinterColumns"]] == ["PHASE", "POD", "NODE", "ACTION", "AGE"]


@pytest.mark.parametrize(("folder", "value"), [("default", "labelled"), ("overlays/gate-all-namespaces", "all")])
def test_pods_get_the_gate_where_the_manager_handles_it(folder: str, value: str) -> None:
    """A pod with the gate that no manager looks after would never be ready."""
    _, pods = one(folder, "MutatingWebhookConfiguration", "crrd")["webhooks"]
    expressions = pods["namespaceSelector"].get("matchExpressions", ())
    parts = [f"{key}={value}" for key, value in pods["namespaceSelector"].get("matchLabels", {}).items()]
    for each in expressions:
        assert each["operator"] == "NotIn"
        few = len(each["values"]) == 1
        parts.append(
            f"{each['key']}!={each['values'][0]}" if few else f"{each['key']} notin ({','.join(each['values'])})"
        )
    assert ",".join(parts) == GATED_NAMESPACES[value]
    (container,) = one(folder, "Deployment", "crrd-manager")["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}.get("CRRD_READINESS_GATE", "labelled")
    assert told == value
    assert {each["metadata"]["name"] for each in rendered(folder) if each["kind"] == "Namespace"} <= {*NEVER_GATED}
