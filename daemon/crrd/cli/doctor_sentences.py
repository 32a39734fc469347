"""The messages of `crrd doctor`: for each topic of `core.doctor`, what was found and what to do."""

from collections.abc import Mapping

from crrd.core.doctor.findings import Finding, Topic
from crrd.kube.resources import MANAGERS, NODE_DAEMONS
from crrd.lib.plain import plain

_APPLY = "install crrd again, the way you installed it (helm upgrade, or kubectl apply)"
_DAEMON_LOGS = f"kubectl logs -n {{daemons}} -l {NODE_DAEMONS} --tail=20"
_MANAGER_LOGS = f"check the log: kubectl logs -n {{managers}} -l {MANAGERS} --tail=20"

SENTENCES: Mapping[Topic, tuple[str, str]] = {
    Topic.UNREAD: ("{why}", ""),
    Topic.SERVER: ("{version}", ""),
    Topic.SERVER_TOO_OLD: (
        "{version} is older than Kubernetes 1.30, so the ValidatingAdmissionPolicies that restrict crrd do not work",
        "upgrade the control plane"),
    Topic.CRD: ("the CRD serves {names}, and has all fields that crrd uses", ""),
    Topic.CRD_MISSING: ("ContainerRecreateRequest is not installed", "install crrd: kubectl apply -f install.yaml"),
    Topic.CRD_NOT_SERVED: ("the API server serves none of the versions that crrd supports ({names})", _APPLY),
    Topic.FIELDS_DROPPED: (
        "the API server drops fields that the CRD does not have: {names}",
        "without OpenKruise, apply the CRD of this version of crrd; with it, keep its CRD and do not use these fields"),
    Topic.WEBHOOKS: ("the webhook for requests is configured and has a caBundle", ""),
    Topic.OTHER_WEBHOOKS: ("{names} admits requests", ""),
    Topic.NO_WEBHOOKS: ("no webhook admits requests, so node daemons do not serve them", _APPLY),
    Topic.NO_CA_BUNDLE: ("no caBundle in {names}, so the API server does not trust the manager", _MANAGER_LOGS),
    Topic.WEBHOOK_IGNORED: (
        "failurePolicy is Ignore in {names}, so requests can pass without admission",
        "set failurePolicy: Fail"),
    Topic.ADMISSION: ("admission works (a dry-run request for a pod that does not exist was denied)", ""),
    Topic.NOT_ADMITTED: (
        "a dry-run request for a pod that does not exist was accepted, so admission does not check requests",
        f"check namespaceSelector and rules of the webhooks, and {_APPLY}"),
    Topic.ADMISSION_FAILED: (
        "a dry-run request failed: {error}",
        f"{_MANAGER_LOGS}; check the caBundle (x509 errors), or the network to the manager (timeouts)"),
    Topic.POLICIES: ("{count} ValidatingAdmissionPolicies are bound with the action Deny", ""),
    Topic.POLICIES_MISSING: ("ValidatingAdmissionPolicies not found: {names}", _APPLY),
    Topic.POLICIES_UNBOUND: ("ValidatingAdmissionPolicies not bound with the action Deny: {names}", _APPLY),
    Topic.MANAGER: ("{count} ready, and one is the leader", ""),
    Topic.OTHER_MANAGER: ("crrd's manager is not installed; another manager admits requests", ""),
    Topic.NO_MANAGER: ("the manager has no pod", "kubectl describe deployment -A -l " + MANAGERS),
    Topic.MANAGER_DOWN: ("no pod is ready: {names}", _MANAGER_LOGS),
    Topic.MANAGER_DEGRADED: ("not ready: {names}", _MANAGER_LOGS),
    Topic.NO_LEADER: ("no pod has renewed the Lease crrd-manager in time, so there is no leader", _MANAGER_LOGS),
    Topic.DAEMONS: ("{count} ready, version {version}", ""),
    Topic.NO_DAEMONS: ("the node daemon has no pod", "kubectl describe daemonset -A -l " + NODE_DAEMONS),
    Topic.DAEMONS_DOWN: (
        "{count} not ready: {names}",
        "a daemon is ready once it reaches the API server and the container runtime: " + _DAEMON_LOGS),
    Topic.NODES_WITHOUT: (
        "no daemon on {names}, so requests for pods there fail",
        "check nodeSelector and tolerations of the DaemonSet"),
    Topic.NODES_NOT_READY: ("nodes that are not ready: {names}", "kubectl describe node NAME"),
    Topic.VERSIONS_DIFFER: ("different versions run: {names}", "wait for the rollout to finish, or apply one version"),
    Topic.RUNTIME: (
        "all ready daemons ({count}) reach their container runtime; no request waits for a runtime or for kubelet", ""),
    Topic.RUNTIME_UNAVAILABLE: (
        "requests wait for the container runtime on {names}",
        "check the runtime there, and the daemon's CRRD_CRI_ENDPOINTS"),
    Topic.KUBELET_SILENT: (
        "requests wait because kubelet does not answer /healthz on {names}",
        "check kubelet there; if its healthz port is not 10248, set --kubelet-healthz-port of the daemon"),
    Topic.NO_READY_DAEMON: ("no node daemon is ready", ""),
    Topic.CLOCKS: ("the clocks of this machine and of the nodes agree with the API server's clock", ""),
    Topic.CLOCK_HERE: (
        "this machine's clock is {seconds:.0f}s {way}, compared with the API server's clock",
        "synchronize the clock (NTP)"),
    Topic.CLOCKS_OF_NODES: (
        "nodes whose clocks differ from the API server's clock: {names}",
        "synchronize their clocks (NTP)"),
    Topic.RIGHTS: ("you may create, watch and delete requests in the namespace", ""),
    Topic.RIGHTS_MISSING: (
        "you do not have the right to: {names}",
        "ask for the ClusterRole crrd-recreate (an administrator binds it)"),
    Topic.ACCOUNTS: ("the ServiceAccounts have the rights they need ({names})", ""),
    Topic.ACCOUNT_LACKS: ("ServiceAccount {account} does not have the right to: {names}", _APPLY),
    Topic.NO_OPENKRUISE: ("not found, so crrd serves all requests", ""),
    Topic.OPENKRUISE_MANAGES: ("its manager admits requests, and crrd's node daemon serves them", ""),
    Topic.TWO_DAEMONS: (
        "kruise-daemon runs beside crrd's daemon ({count} pods), so both serve every request",
        "uninstall kruise-daemon: delete its DaemonSet, or set daemon.enabled=false in its Helm values"),
    Topic.TWO_ADMISSIONS: (
        "both crrd's manager and {names} admit requests, but only one may",
        "install crrd without its manager (manifests/overlays/beside-openkruise), or uninstall OpenKruise"),
}  # fmt: skip


def sentence(finding: Finding) -> str:
    """Return what was found."""
    return plain(SENTENCES[finding.topic][0].format_map(finding.values))


def advice(finding: Finding) -> str:
    """Return what to do about it, or ""."""
    return SENTENCES[finding.topic][1].format_map(finding.values)
