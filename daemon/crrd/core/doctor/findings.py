"""What `crrd doctor` finds: the checks, and a table of their possible results with sentences and remedies."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crrd.core.api.reason_table import ReasonTable
from crrd.core.api.types import MANAGERS, NODE_DAEMONS
from crrd.lib.plain import and_more

_SHOWN = 3  # Most names in a list; the others are counted
_APPLY = "install crrd again, the way you installed it (helm upgrade, or kubectl apply)"
_DAEMON_LOGS = f"kubectl logs -n {{daemons}} -l {NODE_DAEMONS} --tail=20"
_DAEMON_EVENTS = (
    f"if its container has not started, see its events: kubectl describe pod -n {{daemons}} -l {NODE_DAEMONS} "
    "(FailedMount: the runtime's socket is in another folder, so install the variant for it)"
)
_MANAGER_LOGS = f"check the log: kubectl logs -n {{managers}} -l {MANAGERS} --tail=20"
_MANAGER_EVENTS = (
    f"{_MANAGER_LOGS}; if a container has not started, see its events: kubectl describe pod -n {{managers}} "
    f"-l {MANAGERS}"
)
_ADMISSION = (
    f"{_MANAGER_LOGS}; check the caBundle (x509 errors), or the network to the manager (timeouts: TCP 9443 from the "
    "control plane)"
)
_GET = "kubectl get mutatingwebhookconfigurations"
_CHECK_WEBHOOK = f"check rules, operations, selectors and matchConditions of the webhook: {_GET} crrd -o yaml"
_DROPPED = (
    "the API server drops fields that the CRD does not have: {names}",
    "without OpenKruise, apply the CRD of this version of crrd; with it, keep its CRD and do not use these fields",
)
_BY_BOTH = (
    "kubectl recreate uses requests if one of the pods has a node with a daemon, and skips pods on nodes without one. "
    "Else it uses patches. With --via patch, it uses patches for all of them"
)
_OTHER_NAMES = (
    "pods in which an image has another name than in their template since a restart by a patch: {count}, for example "
    "{namespace}/{name}; it is the same image, so no action is needed"
)


class State(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # Requests are served, but not correctly, or not on all nodes
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


class Check(StrEnum):
    """The checks, in the order of the output."""

    SERVER = "API server"
    CRD = "CRD"
    WEBHOOKS = "webhooks"
    ADMISSION = "admission"
    POLICIES = "policies"
    MANAGER = "manager"
    DAEMONS = "node daemons"
    RUNTIME = "runtime, kubelet"
    RESTARTS = "restarts"
    IMAGES = "image names"
    CLOCKS = "clocks"
    RIGHTS = "your rights"
    ACCOUNTS = "crrd's rights"
    OPENKRUISE = "OpenKruise"


class Topic(ReasonTable):
    """The possible results, by check. Each remedy takes `managers` and `daemons`, the namespaces of crrd's pods."""

    state: State

    def __init__(self, name: str, state: State = State.NOT_CHECKED, sentence: str = "", *remedy: str) -> None:
        super().__init__(name, sentence, *remedy)
        self.state = state

    # fmt: off
    UNREAD = "Unread", State.NOT_CHECKED, "{why}"
    NOT_INSTALLED = "NotInstalled", State.NOT_CHECKED, "crrd is not installed"
    # API server
    SERVER = "Server", State.OK, "{version}"
    SERVER_TOO_OLD = ("ServerTooOld", State.WARNING,
        "{version} is older than Kubernetes 1.30, so the ValidatingAdmissionPolicies that restrict crrd do not work",
        "upgrade the control plane")
    # CRD
    CRD = "Crd", State.OK, "the CRD serves {names}, and has all fields that crrd uses"
    CRD_MISSING = ("CrdMissing", State.PROBLEM, "ContainerRecreateRequest is not installed",
        "install crrd: kubectl apply -f install.yaml")
    CRD_NOT_SERVED = ("CrdNotServed", State.PROBLEM,
        "the API server serves none of the versions that crrd supports ({names})", _APPLY)
    FIELDS_DROPPED = "FieldsDropped", State.WARNING, *_DROPPED
    NEEDED_FIELDS_DROPPED = "NeededFieldsDropped", State.PROBLEM, *_DROPPED
    POLICY_CRD_MISSING = "PolicyCrdMissing", State.PROBLEM, "ContainerRecreatePolicy is not installed", _APPLY
    POLICY_FIELDS_DROPPED = ("PolicyFieldsDropped", State.PROBLEM,
        "the API server drops fields that the CRD of ContainerRecreatePolicies does not have: {names}", _APPLY)
    # webhooks
    WEBHOOKS = "Webhooks", State.OK, "the webhook for requests is configured and has a caBundle"
    OTHER_WEBHOOKS = "OtherWebhooks", State.OK, "{names} admits requests"
    NO_WEBHOOKS = "NoWebhooks", State.PROBLEM, "no webhook admits requests, so node daemons do not serve them", _APPLY
    NO_CA_BUNDLE = ("NoCaBundle", State.PROBLEM, "no caBundle in {names}, so the API server does not trust the manager",
        _MANAGER_LOGS)
    WEBHOOK_IGNORED = ("WebhookIgnored", State.WARNING,
        "failurePolicy is Ignore in {names}, so requests can pass without admission", "set failurePolicy: Fail")
    # admission
    ADMISSION = "Admission", State.OK, "admission works (a dry-run request for pod {pod} was admitted)"
    ONLY_DENIES = ("OnlyDenies", State.OK,
        "the webhook denies a request for a pod that does not exist; for a full check, use -n with a pod's namespace")
    NOT_ADMITTED = ("NotAdmitted", State.PROBLEM,
        "a dry-run request{by} for a pod that does not exist was accepted, so admission does not check requests",
        _CHECK_WEBHOOK)
    NOT_COMPLETED = ("NotCompleted", State.PROBLEM,
        "admission did not complete a dry-run request{by} for pod {pod}, so node daemons do not serve requests",
        _CHECK_WEBHOOK)
    REQUEST_DENIED = ("RequestDenied", State.PROBLEM, "a valid dry-run request{by} for pod {pod} was denied: {error}",
        f"check what denies it: {_GET},validatingwebhookconfigurations,validatingadmissionpolicies")
    WEBHOOK_NOT_ASKED = ("WebhookNotAsked", State.PROBLEM,
        "a dry-run request{by} was denied, but not by crrd's webhook: {error}", _CHECK_WEBHOOK)
    ADMISSION_FAILED = ("AdmissionFailed", State.PROBLEM, "a dry-run request{by} failed: {error}",
        _ADMISSION)
    # policies
    POLICIES = "Policies", State.OK, "{count} ValidatingAdmissionPolicies are bound with the action Deny"
    POLICIES_MISSING = "PoliciesMissing", State.PROBLEM, "ValidatingAdmissionPolicies not found: {names}", _APPLY
    POLICIES_UNBOUND = ("PoliciesUnbound", State.PROBLEM,
        "ValidatingAdmissionPolicies not bound with the action Deny: {names}", _APPLY)
    # manager
    MANAGER = "Manager", State.OK, "{count} ready, and one is the leader"
    OTHER_MANAGER = "OtherManager", State.OK, "crrd's manager is not installed; another manager admits requests"
    NO_MANAGER = "NoManager", State.PROBLEM, "the manager has no pod", "kubectl describe deployment -A -l " + MANAGERS
    MANAGER_DOWN = "ManagerDown", State.PROBLEM, "no pod is ready: {names}", _MANAGER_EVENTS
    MANAGER_DEGRADED = "ManagerDegraded", State.WARNING, "not ready: {names}", _MANAGER_EVENTS
    NO_LEADER = ("NoLeader", State.PROBLEM, "no pod has renewed the Lease crrd-manager in time, so there is no leader",
        _MANAGER_LOGS)
    # node daemons
    DAEMONS = "Daemons", State.OK, "{count} ready, version {version}"
    NONE_NEEDED = ("NoDaemonsNeeded", State.OK,
        "none, and none is needed, because the manager restarts containers by patches (--via patch)")
    NO_DAEMONS = ("NoDaemons", State.PROBLEM, "the node daemon has no pod",
        "kubectl describe daemonset -A -l " + NODE_DAEMONS)
    DAEMONS_DOWN = ("DaemonsDown", State.PROBLEM, "{count} not ready: {names}",
        f"a daemon is ready once it reaches the API server and the container runtime: {_DAEMON_LOGS}; {_DAEMON_EVENTS}")
    NODES_WITHOUT = ("NodesWithout", State.WARNING, "no daemon on {names}, so requests for pods there fail",
        "check nodeSelector, affinity and tolerations of the DaemonSet")
    NODES_NOT_READY = "NodesNotReady", State.WARNING, "nodes that are not ready: {names}", "kubectl describe node NAME"
    VERSIONS_DIFFER = ("VersionsDiffer", State.WARNING, "different versions run: {names}",
        "wait for the rollout to finish, or apply one version")
    # runtime, kubelet
    RUNTIME = ("Runtime", State.OK,
        "all ready daemons ({count}) reach their container runtime; no request waits for a runtime or for kubelet")
    RUNTIME_UNAVAILABLE = ("RuntimeUnavailable", State.PROBLEM, "requests wait for the container runtime on {names}",
        "check the runtime there, and the daemon's CRRD_CRI_ENDPOINTS")
    RUNTIME_NOT_READY = ("RuntimeNotReady", State.PROBLEM,
        "requests wait for the network plugin (CNI) or the container runtime on {names}", "kubectl describe node NAME")
    KUBELET_SILENT = ("KubeletSilent", State.PROBLEM,
        "requests wait because kubelet does not answer /healthz on {names}",
        "check kubelet there; if its healthz port is not 10248, set --kubelet-healthz-port of the daemon")
    CRIO_PANICS = ("CrioPanics", State.WARNING,
        "this CRI-O can crash when kubelet or crrd stops a container that is just ending (cri-o#9799): {names}",
        "upgrade CRI-O to 1.34.9, 1.35.3, 1.36 or newer; ignore this if your vendor's build has the fix of cri-o#9799")
    NO_READY_DAEMON = "NoReadyDaemon", State.NOT_CHECKED, "no node daemon is ready"
    # restarts
    BY_REQUESTS = ("ByRequests", State.OK,
        "each node ({count}) offers requests and patches; kubectl recreate uses requests, or patches with --via patch")
    BY_BOTH = ("ByRequestsAndPatches", State.OK,
        "{served} of {all} nodes offer requests and patches, the others patches only: {names}", _BY_BOTH)
    BY_PATCHES = "ByPatches", State.OK, "each node offers patches only, because {why}; kubectl recreate uses them"
    NO_WAY = ("NoWay", State.WARNING,
        "you may neither create requests nor patch pods in the namespace, so you cannot restart containers ({names})",
        "ask for the ClusterRole crrd-recreate for requests, or edit for patches (an administrator binds it)")
    BY_MANAGER = ("ByManager", State.OK,
        "each node offers patches only, because there are no node daemons; policies and kubectl recreate use them")
    BY_OTHERS = ("ByOthers", State.OK,
        "each node offers patches (--via patch), and requests only if another program serves them; crrd has no daemon")
    # image names
    NO_OTHER_NAMES = ("NoOtherNames", State.OK,
        "no pod has another name of an image than its template because of a restart by a patch")
    OTHER_NAMES = ("OtherNames", State.OK, _OTHER_NAMES,
        "to see the names: crrd explain pod/{name} -n {namespace}")
    # clocks
    CLOCKS = "Clocks", State.OK, "the clocks of this machine and of the nodes agree with the API server's clock"
    CLOCK_HERE = ("ClockHere", State.WARNING,
        "this machine's clock is {seconds:.0f}s {way}, compared with the API server's clock",
        "synchronize the clock (NTP)")
    CLOCKS_OF_NODES = ("ClocksOfNodes", State.WARNING, "nodes whose clocks differ from the API server's clock: {names}",
        "synchronize their clocks (NTP)")
    # your rights
    RIGHTS = "Rights", State.OK, "you may create, watch and delete requests in the namespace"
    RIGHTS_MISSING = ("RightsMissing", State.WARNING, "you do not have the right to: {names}",
        "ask for the ClusterRole crrd-recreate (an administrator binds it)")
    # crrd's rights
    ACCOUNTS = "Accounts", State.OK, "the ServiceAccounts have the rights they need ({names})"
    ACCOUNT_LACKS = ("AccountLacks", State.PROBLEM, "ServiceAccount {account} does not have the right to: {names}",
        _APPLY)
    # OpenKruise
    NO_OPENKRUISE = "NoOpenkruise", State.OK, "not found, so crrd serves all requests"
    OPENKRUISE_MANAGES = ("OpenkruiseManages", State.OK,
        "its manager admits requests, and crrd's node daemon serves them")
    TWO_DAEMONS = ("TwoDaemons", State.PROBLEM,
        "kruise-daemon runs beside crrd's daemon ({count} pods), so both serve every request",
        "keep kruise-daemon off these nodes with a nodeSelector, not with its feature gate (docs/from-openkruise.md)")
    TWO_ADMISSIONS = ("TwoAdmissions", State.PROBLEM,
        "both crrd's manager and {names} admit requests, but only one may",
        "install crrd without its manager (manifests/overlays/beside-openkruise), or uninstall OpenKruise")
    # fmt: on


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: Check
    topic: Topic
    message: str  # What was found
    advice: str = ""  # What to do about it; "" if nothing

    @property
    def state(self) -> State:
        """Its severity."""
        return self.topic.state


Result = tuple[Topic, Mapping[str, Any]]
"""What a check yields: a topic, and the values of its sentence and remedy."""


def listed(names: Iterable[str]) -> dict[str, Any]:
    """Return the values for a message that lists names."""
    ordered = sorted(names)
    return {"names": and_more(ordered[:_SHOWN], len(ordered) - _SHOWN), "count": len(ordered)}
