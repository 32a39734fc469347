"""The table of built-in kinds of the local API server. To add a kind, add a row."""

from typing import Any

from crrd_localnode.api import crds, defaults, printers, unenforced
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.selectors import FieldLabels


def _fields(*names: str) -> FieldLabels:
    return {name: tuple(name.split(".")) for name in names}


def _kind(group: str, kind: str, *short_names: str, **special: Any) -> Kind:
    """Return a kind with a few special properties."""
    plural = (f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s").lower()
    special = {"columns": (printers.AGE,), **special}
    return Kind(group=group, kind=kind, plural=plural, short_names=short_names, **special)


_APPS, _LEASES = "apps", "coordination.k8s.io"
_RBAC, _REGISTRATION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_WORKLOAD: dict[str, Any] = {"categories": ("all",), "status": True, "generation": True}
_ROLE: dict[str, Any] = {
    "path_names": True, "columns": (printers.CREATED,), "warnings": unenforced.always(unenforced.ROLES),
}  # fmt: skip
_ADMISSION: dict[str, Any] = {
    "categories": ("api-extensions",), "namespaced": False, "generation": True, "unconditional_update": False,
}  # fmt: skip
_UNENFORCED_POLICY: dict[str, Any] = {"warnings": unenforced.always(unenforced.POLICIES)}
_CONTROLLED: dict[str, Any] = {**_WORKLOAD, "warnings": unenforced.always(unenforced.WORKLOADS)}

POD = _kind(
    "", "Pod", "po", graceful=True, logs=True, returns_deleted=True, columns=printers.POD,
    fields=_fields(
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    complete=defaults.complete_pod, on_create=defaults.create_pod, rules=defaults.pod_rules, **_WORKLOAD,
)  # fmt: skip
NAMESPACE = _kind(
    "", "Namespace", "ns", namespaced=False, contains=True, status=True, returns_deleted=True,
    columns=printers.NAMESPACE, fields=_fields("status.phase"), complete=defaults.complete_namespace,
    on_create=defaults.create_namespace,
)  # fmt: skip
CRD = _kind(
    "apiextensions.k8s.io", "CustomResourceDefinition", "crd", "crds", status=True, columns=(printers.CREATED,),
    on_create=crds.established, guard="customresourcecleanup.apiextensions.k8s.io", rules=crds.crd_rules,
    warnings=unenforced.of_crd, **_ADMISSION,
)  # fmt: skip
BUILTIN: tuple[Kind, ...] = (
    POD,
    NAMESPACE,
    CRD,
    _kind(
        "", "Node", "no", namespaced=False, status=True, status_on_create=True, columns=printers.NODE,
        fields=_fields("spec.unschedulable"),
    ),
    _kind(
        "", "Event", "ev", columns=printers.EVENT,
        fields=_fields(
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source.component", "type",
        ),
    ),
    _kind(
        "", "Secret", columns=printers.SECRET, fields=_fields("type"), complete=defaults.complete_secret,
        rules=defaults.immutable_data, managed_fields=True,
    ),
    _kind("", "ConfigMap", "cm", columns=printers.CONFIG_MAP, rules=defaults.immutable_data, managed_fields=True),
    _kind("", "Service", "svc", categories=("all",), status=True, returns_deleted=True),
    _kind("", "ServiceAccount", "sa"),
    _kind("", "LimitRange", "limits"),
    _kind(_LEASES, "Lease", unconditional_update=False, columns=printers.LEASE, rules=defaults.lease_rules),
    _kind(_APPS, "ControllerRevision", rules=defaults.revision_rules),
    _kind(_APPS, "DaemonSet", "ds", **_CONTROLLED),
    _kind(_APPS, "Deployment", "deploy", **_CONTROLLED),
    _kind(_APPS, "ReplicaSet", "rs", **_CONTROLLED),
    _kind(_APPS, "StatefulSet", "sts", **_CONTROLLED),
    _kind("batch", "Job", **_CONTROLLED),
    _kind(
        "policy", "PodDisruptionBudget", "pdb", status=True, generation=True,
        warnings=unenforced.always(unenforced.BUDGETS),
    ),
    _kind(
        "networking.k8s.io", "NetworkPolicy", "netpol", generation=True,
        warnings=unenforced.always(unenforced.NETWORK_POLICIES),
    ),
    _kind(_REGISTRATION, "MutatingWebhookConfiguration", warnings=unenforced.of_webhooks, **_ADMISSION),
    _kind(_REGISTRATION, "ValidatingAdmissionPolicy", **_ADMISSION, **_UNENFORCED_POLICY),
    _kind(_REGISTRATION, "ValidatingAdmissionPolicyBinding", **_ADMISSION, **_UNENFORCED_POLICY),
    _kind(
        "authorization.k8s.io", "SelfSubjectAccessReview", namespaced=False, stored=False,
        on_create=unenforced.allow_everything,
    ),
    _kind(_RBAC, "Role", **_ROLE),
    _kind(_RBAC, "RoleBinding", **_ROLE),
    _kind(_RBAC, "ClusterRole", namespaced=False, **_ROLE),
    _kind(_RBAC, "ClusterRoleBinding", namespaced=False, **_ROLE),
)  # fmt: skip
