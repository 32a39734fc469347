"""The built-in kinds that the local API server knows: a table. A further kind is one more row."""

from daemon.localnode.api import crds, defaults, printers
from daemon.localnode.api.kinds import Kind
from daemon.localnode.api.selectors import FieldLabels


def _fields(*names: str) -> FieldLabels:
    return {name: tuple(name.split(".")) for name in names}


POD = Kind(
    kind="Pod",
    plural="pods",
    short_names=("po",),
    categories=("all",),
    status=True,
    generation=True,
    graceful=True,
    returns_deleted=True,
    columns=printers.POD,
    fields=_fields(
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    complete=defaults.complete_pod,
    on_create=defaults.create_pod,
    rules=defaults.pod_rules,
)  # fmt: skip
NAMESPACE = Kind(
    kind="Namespace",
    plural="namespaces",
    short_names=("ns",),
    namespaced=False,
    contains=True,
    status=True,
    returns_deleted=True,
    columns=printers.NAMESPACE,
    fields=_fields("status.phase"),
    complete=defaults.complete_namespace,
    on_create=defaults.create_namespace,
)
CRD = Kind(
    group="apiextensions.k8s.io",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    namespaced=False,
    status=True,
    generation=True,
    unconditional_update=False,
    columns=(printers.CREATED,),
    on_create=crds.established,
    rules=crds.crd_rules,
)

_REGISTRATION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"

BUILTIN: tuple[Kind, ...] = (
    POD,
    NAMESPACE,
    CRD,
    Kind(
        kind="Node",
        plural="nodes",
        short_names=("no",),
        namespaced=False,
        status=True,
        status_on_create=True,
        columns=printers.NODE,
        fields=_fields("spec.unschedulable"),
    ),
    Kind(
        kind="Event",
        plural="events",
        short_names=("ev",),
        columns=printers.EVENT,
        fields=_fields(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source.component",
            "type",
        ),
    ),
    Kind(
        kind="Secret",
        plural="secrets",
        columns=printers.SECRET,
        fields=_fields("type"),
        complete=defaults.complete_secret,
        rules=defaults.immutable_data,
    ),
    Kind(
        kind="ConfigMap",
        plural="configmaps",
        short_names=("cm",),
        columns=printers.CONFIG_MAP,
        rules=defaults.immutable_data,
    ),
    Kind(
        kind="Service",
        plural="services",
        short_names=("svc",),
        categories=("all",),
        status=True,
        returns_deleted=True,
        columns=printers.SERVICE,
    ),
    Kind(kind="ServiceAccount", plural="serviceaccounts", short_names=("sa",), columns=printers.PLAIN),
    Kind(
        group="coordination.k8s.io",
        kind="Lease",
        plural="leases",
        unconditional_update=False,
        columns=printers.LEASE,
    ),
    Kind(
        group="apps",
        kind="DaemonSet",
        plural="daemonsets",
        short_names=("ds",),
        categories=("all",),
        status=True,
        generation=True,
        columns=printers.PLAIN,
    ),
    Kind(
        group="apps",
        kind="Deployment",
        plural="deployments",
        short_names=("deploy",),
        categories=("all",),
        status=True,
        generation=True,
        columns=printers.PLAIN,
    ),
    Kind(
        group="policy",
        kind="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        short_names=("pdb",),
        status=True,
        generation=True,
        columns=printers.PLAIN,
    ),
    Kind(
        group="networking.k8s.io",
        kind="NetworkPolicy",
        plural="networkpolicies",
        short_names=("netpol",),
        generation=True,
        columns=printers.PLAIN,
    ),
    *(
        Kind(
            group=_REGISTRATION,
            kind=kind,
            plural=plural,
            categories=("api-extensions",),
            namespaced=False,
            generation=True,
            unconditional_update=False,
            columns=printers.PLAIN,
        )
        for kind, plural in (
            ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
            ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        )
    ),
    *(
        Kind(
            group=_RBAC,
            kind=kind,
            plural=plural,
            namespaced=namespaced,
            path_names=True,
            columns=(printers.CREATED,),
        )
        for kind, plural, namespaced in (
            ("Role", "roles", True),
            ("RoleBinding", "rolebindings", True),
            ("ClusterRole", "clusterroles", False),
            ("ClusterRoleBinding", "clusterrolebindings", False),
        )
    ),
)
