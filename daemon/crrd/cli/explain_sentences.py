"""The messages of `crrd explain`: one for each finding and each step of `core.explain`."""

import re
import string
from collections.abc import Mapping
from typing import Any

from crrd.core.api.reasons import Reason
from crrd.core.api.time import format_duration
from crrd.core.api.types import Pin, StatePhase
from crrd.core.explain.findings import Explanation, Finding, Step, Topic
from crrd.core.recreate.messages import STARTUP_FORGOTTEN
from crrd.kube.resources import MANAGERS, NODE_DAEMONS

_MANAGER_PODS = f"kubectl get pods -A -l {MANAGERS}"
_DAEMON_PODS = f"kubectl get pods -A -l {NODE_DAEMONS} -o wide --field-selector spec.nodeName={{node}}"
_DEFAULT = "[ (crrd's default, {default:default})]"
_RECREATED = "recreated: {old:id} -> {new:id}, restart count {old_count} -> {new_count}"
_GRACE = "grace period {grace}s[, exceeded by {over:duration}]"
_RUNS = "the new container {id:id} is running[ (for {since:duration})]"

SENTENCES: Mapping[Topic, str] = {
    Topic.COMPLETED: "Completed: {message:or all containers were recreated}",
    Topic.COMPLETED_WITH_FAILURES: "Completed; these containers were not recreated: {failures}",
    Topic.BEING_RELEASED: "the request is being deleted; the manager must make the pod ready again first",
    Topic.BEING_DELETED: "the request is being deleted, so no more containers are stopped for it",
    Topic.DELETED_ONCE_COMPLETED: "the request is being deleted",
    Topic.NO_POD: "pod {pod_key} not found",
    Topic.POD_REPLACED: "the pod was replaced: {pod_key} now has UID {uid}",
    Topic.POD_DELETING: "the pod is being deleted, so no more containers are stopped in it",
    Topic.POD_ENDED: "the pod has ended (phase {phase}), so kubelet does not start containers in it",
    Topic.NO_LABEL: "no node daemon handles the request, because the label {label} is missing",
    Topic.ANOTHER_NODE: "no node daemon handles the request, because it is for node {node} and the pod is on {found}",
    Topic.INVALID: "the request is invalid: {error}",
    Topic.JUST_CREATED: "just created; waiting for the daemon on node {node}",
    Topic.NO_ANSWER:
        "the daemon on node {node} has not answered for {since:duration}; the manager fails the request "
        "in {left:duration}",
    Topic.NO_ANSWER_FOR_LONG:
        "the daemon on node {node} has not answered for {since:duration}; waiting for the manager to fail the request",
    Topic.ANOTHER_REQUEST_FIRST:
        "waiting for request {first_namespace}/{first}[ and {more} more requests] of the same pod",
    Topic.DAEMON_WAITS: "the node daemon is {message}",
    Topic.NO_NODE: "node {node} not found, so no node daemon handles the request",
    Topic.NODE_NOT_READY: "node {node} is not ready: {why}",
    Topic.KUBELET_SILENT: "node {node} is not ready: kubelet has stopped reporting its status",
    Topic.NODE_SILENT: "node {node} is not ready: kubelet and the node daemon have stopped reporting",
    Topic.NO_DAEMON: "no node daemon is ready on node {node}, so the request does not continue",
    Topic.WAITING_FOR_UNREADY: Reason.WAITING_FOR_UNREADY.sentence,
    Topic.UNREADY: "the pod is unready; waiting {grace}s before stopping containers",
    Topic.UNREADY_GRACE:
        "the pod has been unready for {since:duration}; containers are stopped in at most {left:duration}",
    Topic.UNREADY_GRACE_OVER:
        "unreadyGracePeriodSeconds ended {over:duration} ago, but no container has been stopped yet",
    Topic.TURN_NOT_GIVEN: "the node daemon has not started on this container, although nothing is before it",
    Topic.ALL_ENDED: "all containers have finished; the request will be Completed soon",
    Topic.TURN_AWAITED: "not started yet",
    Topic.RECREATED: f"{_RECREATED}[; {{message}}]",
    Topic.RECREATED_MORE_THAN_ONCE: f"{_RECREATED}; restarted more than once[; {{message}}]",
    Topic.RECREATED_UNSEEN: "recreated[; {message}]",
    Topic.FAILED: "{message:or no reason was recorded}",
    Topic.NOT_FINISHED: "not finished: {message:or no reason was recorded}",
    Topic.NOT_IN_POD_STATUS: "the pod's status does not list this container",
    Topic.STATUS_MESSAGE: "{message}",
    Topic.STOPPING: f"{{message:or the preStop hook is running, or the stop is being sent}}; {_GRACE}",
    Topic.STOP_SENT: f"{{message:or stop sent; the container is still running}}; {_GRACE}",
    Topic.END_NOT_REPORTED:
        "{message}; the pod's status still shows the old instance[ {since:duration} after the stop], because kubelet "
        "has not reported that it has ended",
    Topic.STOPPED: "the container has stopped[ with exit code {exit_code}]; waiting for kubelet to restart it",
    Topic.NOT_STARTED_AGAIN: "the container has stopped[ with exit code {exit_code}]; {message}",
    Topic.BACK_OFF:
        "waiting for kubelet: {reason}, back-off {back_off} restarting failed container"
        "[; next try in about {left:duration}]",
    Topic.BACK_OFF_OVER:
        "waiting for kubelet: {reason}, back-off {back_off} restarting failed container; next try at any moment",
    Topic.IMAGE_NOT_PULLED: "waiting for kubelet: the image cannot be pulled ({kubelet})",
    Topic.NOT_CREATED: "waiting for kubelet: the container cannot be created ({kubelet})",
    Topic.HELD_BACK: "waiting for kubelet: {kubelet}",
    Topic.MIN_STARTED:
        f"{_RUNS}, and is ready; it counts as recreated in {{left:duration}} (minStartedSeconds {{least}})",
    Topic.READY: f"{_RUNS}, and is ready; waiting for the node daemon to record it",
    Topic.NOT_READY:
        f"{_RUNS}, but is not ready: its {{probe}} has not succeeded yet"
        "[; kubelet's last event, {failed:duration} ago: {failure}]",
    Topic.MAY_STAY_DOWN: STARTUP_FORGOTTEN,
    Topic.DEADLINE:
        f"deadline: {{left:duration}} left of {{seconds}}s{_DEFAULT}; containers not recreated by then fail",
    Topic.DEADLINE_PASSED:
        f"deadline passed {{over:duration}} ago{_DEFAULT}; waiting for the manager to complete the request",
    Topic.FORCED: "forceRecreate is set, so the running instance is stopped once, even if it is newer",
    Topic.NOT_ADMITTED:
        "the request has no statusContext, because it did not pass admission; the daemon stops the instances "
        "that are running",
    Topic.NO_READINESS_GATE: Reason.NO_READINESS_GATE.sentence,
    Topic.NOT_CLEANED_UP: "waiting for the manager to remove {left:and}",
    Topic.NO_TTL: "ttlSecondsAfterFinished is not set, so the request stays until you delete it",
    Topic.TTL: "ttlSecondsAfterFinished: the request is deleted in {left:duration}",
    Topic.TTL_OVER:
        "ttlSecondsAfterFinished ended {over:duration} ago, so the request should be deleted soon; a new leader of the "
        "manager counts from its own start",
    Topic.UNREAD: "cannot read {object}: {error}",
}  # fmt: skip
"""A part in brackets is left out if a value in it is unknown. `{message:or ...}` has a replacement for ""."""
STEPS: Mapping[Step, str] = {
    Step.CHECK_MANAGER: f"check that the manager is running: {_MANAGER_PODS}",
    Step.CHECK_ANY_MANAGER:
        f"check that crrd's manager is running ({_MANAGER_PODS}), or OpenKruise's (kubectl get pods -n kruise-system)",
    Step.AWAIT_MANAGER:
        f"the manager completes the request as failed; if it does not, check the manager: {_MANAGER_PODS}",
    Step.CHECK_ADMISSION: f"admission sets this label; check that the manager is running: {_MANAGER_PODS}",
    Step.CHECK_WEBHOOKS: "check the webhooks: kubectl get mutatingwebhookconfigurations",
    Step.CREATE_AGAIN:
        "then create a new request; for the spec of this one: kubectl -n {namespace} get crr {request} -o yaml",
    Step.REMOVE_FINALIZERS: "other controllers must remove their finalizers: {finalizers:list}",
    Step.NODE_IS_GONE: SENTENCES[Topic.NO_NODE],
    Step.NODE_IS_NOT_READY: "node {node} is not ready[ (for {since:duration})]",
    Step.CHECK_DAEMON:
        "the daemon's pod {daemon_namespace}/{daemon} is {phase}, {ready}: kubectl -n {daemon_namespace} logs {daemon}",
    Step.FIND_DAEMON: f"check that the DaemonSet's pod is running on node {{node}}: {_DAEMON_PODS}",
    Step.START_DAEMON:
        f"the DaemonSet has no pod on node {{node}}; to see why: kubectl describe daemonset -A -l {NODE_DAEMONS}",
    Step.EXPLAIN_FIRST: "to see what that request waits for: crrd explain {first_namespace}/{first}",
    Step.DELETE_FIRST: "to let this request continue, delete that one: kubectl -n {first_namespace} delete crr {first}",
    Step.DESCRIBE_NODE: "kubectl describe node {node}",
    Step.RUNTIME_DOES_NOT_STOP: "check why the container runtime does not stop the container: {log}",
    Step.DAEMON_DOES_NOT_SEE: "check why the node daemon does not see it: {log}",
    Step.AWAIT_BACK_OFF: "kubelet restarts the container when its back-off ends",
    Step.READ_PREVIOUS_LOG:
        "if the container exits on its own, check its log: kubectl logs -n {namespace} {pod} -c {container} --previous",
    Step.CHECK_IMAGE:
        "check the image name, the registry and the pod's imagePullSecrets: kubectl describe pod -n {namespace} {pod}",
    Step.AWAIT_RETRY: "kubelet retries with growing back-off",
    Step.CHECK_CONFIG:
        "check what is missing (a ConfigMap, a Secret, a volume): kubectl describe pod -n {namespace} {pod}",
    Step.DESCRIBE_POD: "check the pod: kubectl describe pod -n {namespace} {pod}",
    Step.DELETE_POD: "if the container stays down, delete the pod: kubectl delete pod -n {namespace} {pod}",
    Step.CHECK_PROBE: "check the result of its {probe}: kubectl describe pod -n {namespace} {pod}",
    Step.READ_LOG: "check the container's log: kubectl logs -n {namespace} {pod} -c {container}",
}  # fmt: skip
_DEFAULTS = {
    "crrd": "see --default-deadline-slack-seconds of its manager",
    "any": "OpenKruise's manager applies none",
}
_OPTIONAL = re.compile(r"\[(.*?)\]")


class _Formatter(string.Formatter):
    """Formats durations, container IDs and lists, and replaces empty values."""

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec:
            case "duration":
                return format_duration(value)
            case "id":
                return Pin(value).short
            case "list":
                return ", ".join(value)
            case "and":
                return " and ".join(f"the {each}" for each in value)
            case "default":
                return _DEFAULTS[value]
        otherwise = format_spec.removeprefix("or ")
        return otherwise if otherwise and not value else str(value)


_FORMATTER = _Formatter()


def says_since(finding: Finding) -> bool:
    """Whether the finding's sentence contains a duration."""
    return "since" in _fields(SENTENCES[finding.reason])


def sentence(found: Explanation, finding: Finding) -> str:
    """Return the sentence of a finding, without the name of its container."""
    values = {**_common(found), **finding.values, "since": finding.since}
    if finding.reason is Topic.COMPLETED_WITH_FAILURES:
        failed = (each for each in found.containers if each.phase != StatePhase.SUCCEEDED)
        values["failures"] = "; ".join(f"{each.name}: {sentence(found, each.finding)}" for each in failed)
    return _fill(SENTENCES[finding.reason], values)


def steps(found: Explanation, finding: Finding) -> list[str]:
    """Return what can be done about a finding, one sentence or command each."""
    lines: list[str] = []
    for advice in finding.advice:
        values = {**_common(found), **advice.values}
        if isinstance(advice.step, Step):
            lines.append(_fill(STEPS[advice.step], values))
        else:
            lines += advice.step.advise(**values)
    return lines


def _common(found: Explanation) -> dict[str, str]:
    """Return the values that every sentence may use."""
    namespace, _, daemon = found.daemon.partition("/")
    log = f"kubectl -n {namespace} logs {daemon}" if daemon else f"see the log of the node daemon on node {found.node}"
    request = found.request
    pod = {"namespace": request.namespace, "pod": request.pod_name, "pod_key": request.pod_key}
    return {"request": request.name, "node": found.node, "log": log, **pod}


def _fields(template: str) -> set[str]:
    """Return the names of the values in a sentence."""
    return {name for _, name, _, _ in _FORMATTER.parse(template) if name is not None}


def _fill(template: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with its values, without the optional parts whose values are unknown."""

    def optional(part: re.Match[str]) -> str:
        return part[1] if all(values[name] not in (None, "") for name in _fields(part[1])) else ""

    return _FORMATTER.vformat(_OPTIONAL.sub(optional, template), (), values)
