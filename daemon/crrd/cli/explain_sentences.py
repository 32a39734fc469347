"""The sentences of `crrd explain`: one for each finding and each step of `core.explain`."""

import re
import string
from collections.abc import Mapping
from typing import Any

from crrd.core.api.reasons import CAUSES, Reason, remedy
from crrd.core.api.time import format_duration
from crrd.core.api.types import Pin, StatePhase
from crrd.core.explain.findings import Advice, Explanation, Finding, Found, Step
from crrd.kube.resources import NODE_DAEMONS

_MANAGER_PODS = "kubectl get pods -A -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"
_DAEMON_PODS = f"kubectl get pods -A -l {NODE_DAEMONS} -o wide --field-selector spec.nodeName={{node}}"
_DEFAULT = "[ (none was given: the default of crrd's manager, {default:default})]"
_RECREATED = "recreated: {old:id} -> {new:id}, restart count {old_count} -> {new_count}"
_RUNS = "the new container {id:id} runs[ for {since:duration}]"

SENTENCES: Mapping[Found, str] = {
    Found.COMPLETED: "Completed: {message}",
    Found.COMPLETED_WITH_FAILURES: "Completed, but not every container was recreated: {failures}",
    Found.BEING_RELEASED: "it is being deleted; the manager has to make the pod ready again first",
    Found.BEING_DELETED: "it is being deleted: nothing more is begun for it",
    Found.DELETED_ONCE_COMPLETED: "it is being deleted",
    Found.NO_POD: "pod deleted: there is no pod {pod_key}",
    Found.POD_REPLACED: "pod deleted: the pod that is now called {pod_key} is another one (UID {uid})",
    Found.POD_DELETING: "the pod is being deleted: nothing is stopped in it any more",
    Found.POD_ENDED: "the pod has ended (phase {phase}): kubelet starts nothing in it any more",
    Found.NO_LABEL: "no daemon serves it: the label {label} is missing",
    Found.ANOTHER_NODE: "no daemon serves it: it is for node {node}, and the pod is on {found}",
    Found.INVALID: "it cannot be served: {error}",
    Found.JUST_CREATED: "just created; the daemon on node {node} has not answered yet",
    Found.NO_ANSWER: (
        "no daemon has answered on node {node} for {since:duration}; the manager gives it up in {left:duration}"
    ),
    Found.NO_ANSWER_FOR_LONG: (
        "no daemon has answered on node {node} for {since:duration}; the manager is to give it up"
    ),
    Found.ANOTHER_REQUEST_FIRST: "waits behind request {first_namespace}/{first} of the same pod[ and {more} more]",
    Found.DAEMON_WAITS: "the node daemon is {message}",
    Found.NO_NODE: "there is no node {node} any more",
    Found.NODE_NOT_READY: "node {node} is not ready: {why}",
    Found.KUBELET_SILENT: "node {node} is not ready: kubelet there does not report",
    Found.NODE_SILENT: "node {node} is not ready: neither kubelet nor the daemon there reports",
    Found.NO_DAEMON: "no daemon is ready on node {node}: nobody goes on with it",
    Found.WAITING_FOR_UNREADY: CAUSES[Reason.WAITING_FOR_UNREADY].sentence,
    Found.UNREADY: "unready grace: the pod is unready, stopping after {grace} s",
    Found.UNREADY_GRACE: "unready grace: mark acquired {since:duration} ago, {left:duration} left at most",
    Found.UNREADY_GRACE_OVER: "unready grace over for {over:duration}, but nothing was stopped yet",
    Found.TURN_NOT_GIVEN: "its turn has not come yet, though nothing is before it",
    Found.ALL_ENDED: "every container has ended; the request is about to be Completed",
    Found.TURN_AWAITED: "its turn has not come yet",
    Found.RECREATED: f"{_RECREATED}[; {{message}}]",
    Found.RECREATED_MORE_THAN_ONCE: f"{_RECREATED}; restarted more than once[; {{message}}]",
    Found.RECREATED_UNSEEN: "recreated[; {message}]",
    Found.FAILED: "{message}",
    Found.NOT_FINISHED: "not finished: {message}",
    Found.NOT_IN_POD_STATUS: "nothing is known about it in the pod's status",
    Found.STATUS_MESSAGE: "{message}",
    Found.STOPPING: "{message}; grace {grace} s[, {over:duration} over]",
    Found.STOP_SENT: "{message}; grace {grace} s[, {over:duration} over]",
    Found.END_NOT_REPORTED: (
        "{message}, and the pod's status still shows the old one[ {since:duration} after the stop]: "
        "kubelet has not reported its end"
    ),
    Found.STOPPED: "the container has stopped[ with exit code {exit_code}]; waiting for kubelet to start the next one",
    Found.NOT_STARTED_AGAIN: "the container has stopped[ with exit code {exit_code}]; {message}",
    Found.BACK_OFF: (
        "waiting for kubelet: {reason}, back-off {back_off} restarting failed container"
        "[; next try in about {left:duration}]"
    ),
    Found.BACK_OFF_OVER: (
        "waiting for kubelet: {reason}, back-off {back_off} restarting failed container; next try any moment"
    ),
    Found.IMAGE_NOT_PULLED: "waiting for kubelet: the image cannot be pulled ({kubelet})",
    Found.NOT_CREATED: "waiting for kubelet: the container cannot be made ({kubelet})",
    Found.HELD_BACK: "waiting for kubelet: {kubelet}",
    Found.MIN_STARTED: f"{_RUNS}, is ready; minStartedSeconds {{least}}: counts in {{left:duration}}",
    Found.READY: f"{_RUNS}, is ready; the node daemon has yet to say so",
    Found.NOT_READY: f"{_RUNS}, but is not ready: its {{probe}} has not succeeded yet",
    Found.DEADLINE: f"deadline: {{left:duration}} left of {{seconds}} s{_DEFAULT}; what is not done by then fails",
    Found.DEADLINE_PASSED: f"deadline: passed {{over:duration}} ago{_DEFAULT}, the manager is to complete it",
    Found.FORCED: "forceRecreate: whatever runs when its turn comes is stopped, once",
    Found.NOT_ADMITTED: "no statusContext: no admission saw the request; the daemon takes the instances that it finds",
    Found.NO_READINESS_GATE: CAUSES[Reason.NO_READINESS_GATE].sentence,
    Found.NOT_CLEANED_UP: "the manager has yet to take {left:and} away",
    Found.NO_TTL: "no ttlSecondsAfterFinished: it stays until somebody deletes it",
    Found.TTL: "TTL: deleted in {left:duration}",
    Found.TTL_OVER: ("TTL: over for {over:duration}, unless a manager has come to lead since, which counts anew"),
    Found.UNREAD: "{object} could not be read: {error}",
}
"""A part in brackets is left out where a value of it is not known."""
_OTHERWISE = {
    Found.COMPLETED: "every container was recreated",
    Found.FAILED: "no reason was given",
    Found.NOT_FINISHED: "nobody said why",
    Found.STOPPING: "its preStop hook runs, or its stop is just being sent",
    Found.STOP_SENT: "stop sent, the container still runs",
}
"""What takes the place of a message where there is none."""
STEPS: Mapping[Step, str] = {
    Step.CHECK_MANAGER: f"is the manager running? {_MANAGER_PODS}",
    Step.CHECK_ANY_MANAGER: f"is the manager running? crrd's: {_MANAGER_PODS}; or OpenKruise's",
    Step.AWAIT_MANAGER: f"the manager completes it as failed; if it does not: {_MANAGER_PODS}",
    Step.CHECK_ADMISSION: f"admission sets that label: is the manager running? {_MANAGER_PODS}",
    Step.CHECK_WEBHOOKS: "is it asked? kubectl get mutatingwebhookconfigurations",
    Step.CREATE_AGAIN: "then create the request anew",
    Step.REMOVE_FINALIZERS: "whoever set the finalizer has to take it away: {finalizers:list}",
    Step.NODE_IS_GONE: SENTENCES[Found.NO_NODE],
    Step.NODE_IS_NOT_READY: "node {node} is not ready[ for {since:duration}]",
    Step.CHECK_DAEMON: (
        "its daemon's pod {daemon_namespace}/{daemon} is {phase}, {ready}: kubectl -n {daemon_namespace} logs {daemon}"
    ),
    Step.FIND_DAEMON: f"is the DaemonSet's pod running there? {_DAEMON_PODS}",
    Step.START_DAEMON: f"no pod of the DaemonSet is there: {_DAEMON_PODS}",
    Step.EXPLAIN_FIRST: "crrd explain {first_namespace}/{first} says what that one waits for",
    Step.DELETE_FIRST: "without it, this one goes on at once: kubectl -n {first_namespace} delete crr {first}",
    Step.DESCRIBE_NODE: "kubectl describe node {node}",
    Step.RUNTIME_DOES_NOT_STOP: "the runtime does not end the container: {log}",
    Step.DAEMON_DOES_NOT_SEE: "why does it not? {log}",
    Step.AWAIT_BACK_OFF: "kubelet starts it by itself when its back-off is over",
    Step.READ_PREVIOUS_LOG: (
        "if the container ends by itself, see why: kubectl logs -n {namespace} {pod} -c {container} --previous"
    ),
    Step.CHECK_IMAGE: (
        "check the image's name, the registry and the pod's imagePullSecrets: kubectl describe pod -n {namespace} {pod}"
    ),
    Step.AWAIT_RETRY: "kubelet tries again by itself, more and more rarely",
    Step.CHECK_CONFIG: (
        "see what is missing (a ConfigMap, a Secret, a volume): kubectl describe pod -n {namespace} {pod}"
    ),
    Step.DESCRIBE_POD: "see kubectl describe pod -n {namespace} {pod}",
    Step.CHECK_PROBE: "see what its {probe} says: kubectl describe pod -n {namespace} {pod}",
    Step.READ_LOG: "and what the container says: kubectl logs -n {namespace} {pod} -c {container}",
}
_DEFAULTS = {
    "crrd": "unless its flag says otherwise",
    "any": "if that is the one that runs: OpenKruise's has none",
}
_OPTIONAL = re.compile(r"\[(.*?)\]")


class _Formatter(string.Formatter):
    """Knows durations, container IDs and lists."""

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
        return str(value)


_FORMATTER = _Formatter()


def says_since(finding: Finding) -> bool:
    """Whether the finding's sentence says for how long it has been so."""
    return "since" in _fields(SENTENCES[finding.reason])


def sentence(found: Explanation, finding: Finding) -> str:
    """The sentence of a finding, without the name of the container that it is about."""
    values = {**_common(found), **finding.values, "since": finding.since}
    if finding.reason in _OTHERWISE:
        values["message"] = values["message"] or _OTHERWISE[finding.reason]
    if finding.reason is Found.COMPLETED_WITH_FAILURES:
        failed = (each for each in found.containers if each.phase != StatePhase.SUCCEEDED)
        values["failures"] = "; ".join(f"{each.name}: {sentence(found, each.finding)}" for each in failed)
    return _fill(SENTENCES[finding.reason], values)


def steps(found: Explanation, finding: Finding) -> list[str]:
    """What can be done about a finding, one sentence or command each."""
    return [step for advice in finding.advice for step in _steps(found, advice)]


def _steps(found: Explanation, advice: Advice) -> tuple[str, ...]:
    values = {**_common(found), **advice.values}
    if isinstance(advice.step, Step):
        return (_fill(STEPS[advice.step], values),)
    return remedy(advice.step, **values)


def _common(found: Explanation) -> dict[str, str]:
    """The values that every sentence may take."""
    daemon_namespace, _, daemon = found.daemon.partition("/")
    return {
        "namespace": found.namespace,
        "request": found.name,
        "pod": found.pod,
        "pod_key": f"{found.namespace}/{found.pod}",
        "node": found.node,
        "log": f"kubectl -n {daemon_namespace} logs {daemon}"
        if daemon
        else f"see the log of crrd on node {found.node}",
    }


def _fields(template: str) -> set[str]:
    """The names of the values that a sentence takes."""
    return {name for _, name, _, _ in _FORMATTER.parse(template) if name is not None}


def _fill(template: str, values: Mapping[str, Any]) -> str:
    """A sentence with its values, and without the parts whose values are not known."""

    def optional(part: re.Match[str]) -> str:
        return part[1] if all(values[name] not in (None, "") for name in _fields(part[1])) else ""

    return _FORMATTER.vformat(_OPTIONAL.sub(optional, template), (), values)
