"""Why requests and containers are where they are: one table of reasons, each with its sentence and its remedy.

A reason is what programs go by: `reason` in the status, a label of metrics, what `crrd explain` looks up. The sentence
is the message for people, and is never parsed, except that `crrd explain` knows by it a reason that a CRD has pruned.
Events have reasons of their own, as Kubernetes' are: few, for filters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class EventReason(StrEnum):
    """Reasons of the Kubernetes events that crrd writes on the pod and on the request."""

    RECREATING = "ContainerRecreating"
    RECREATED = "ContainerRecreated"
    FAILED = "ContainerRecreateFailed"
    HOOK_FAILED = "FailedPreStopHook"
    NO_READINESS_GATE = "NoReadinessGate"


class Reason(StrEnum):
    """Why; CamelCase, as the reasons of Kubernetes' conditions."""

    NONE = ""
    # Ends.
    INVALID_REQUEST = "InvalidRequest"
    CONTAINER_NOT_FOUND = "ContainerNotFound"
    NOT_RECREATABLE = "NotRecreatable"
    CONTAINER_MISMATCH = "ContainerMismatch"
    NOT_RESTARTABLE = "NotRestartable"
    LEFT_DOWN = "LeftDown"
    RESTARTS_POD = "RestartsWholePod"
    STOP_FAILED = "StopFailed"
    STILL_RUNS = "StillRuns"
    PIN_LOST = "PinLost"
    POD_GONE = "PodGone"
    POD_REPLACED = "PodReplaced"
    POD_ELSEWHERE = "PodElsewhere"
    POD_DELETING = "PodDeleting"
    POD_ENDED = "PodEnded"
    EARLIER_FAILURE = "EarlierFailure"
    NO_ANSWER = "NoDaemonAnswered"
    DEADLINE = "DeadlineExceeded"
    # Waits.
    WAITING_FOR_POD = "WaitingForPod"
    WAITING_FOR_UNREADY = "WaitingForUnready"
    UNREADY_GRACE = "UnreadyGracePeriod"
    NO_READINESS_GATE = "NoReadinessGate"
    WAITING_FOR_IP = "WaitingForPodIP"
    NOT_CREATED = "ContainerNotCreated"
    NOT_STARTED = "ContainerNotStarted"
    OTHER_WORK = "OtherRequestAtWork"
    NOT_PINNED = "NotPinned"
    RUNTIME_UNAVAILABLE = "RuntimeUnavailable"
    KUBELET_SILENT = "KubeletNotAnswering"
    STOP_RETRIED = "StopRetried"
    NOT_ENDING = "ContainerNotEnding"
    HOOK_FAILED = "PreStopHookFailed"
    HELD_BACK = "HeldBackByKubelet"
    NOT_STARTED_AGAIN = "WaitingForKubelet"
    NOT_READY = "ContainerNotReady"
    POD_RESTARTING = "PodRestarting"
    NOT_BACK = "WaitingForWholePod"
    POD_RESTARTED = "WholePodRestarted"


@dataclass(frozen=True, slots=True)
class Cause:
    """What stands behind a reason."""

    sentence: str  # For a message; `{name}` takes what `say` is given
    remedy: tuple[str, ...] = ()
    """What to do, one sentence or command each; takes `namespace`, `pod`, `request`, `node` and `log` (how to read the
    daemon's log)."""
    final: bool = False  # Whether it ends a container, as Failed


_AGAIN = "create a new request; for the spec of this one: kubectl -n {namespace} get crr {request} -o yaml"
_PODS = "kubectl -n {namespace} get pods"
_VALUE = re.compile(r"\{\w+\}")
_RUNTIME = ("check the container runtime on node {node}", "read the node daemon's log: {log}")

CAUSES: Mapping[Reason, Cause] = MappingProxyType(
    {
        Reason.INVALID_REQUEST: Cause(
            "{error}",
            ("create a new request without this error", "kubectl -n {namespace} delete crr {request}"),
            final=True,
        ),
        Reason.CONTAINER_NOT_FOUND: Cause(
            'pod {key} has no container "{name}"',
            ("use the name of a container of the pod: kubectl -n {namespace} describe pod {pod}",),
            final=True,
        ),
        Reason.NOT_RECREATABLE: Cause(
            "this is an {kind}; only containers and native sidecars can be recreated",
            ("use the name of a container of the pod: kubectl -n {namespace} describe pod {pod}",),
            final=True,
        ),
        Reason.CONTAINER_MISMATCH: Cause(
            "container ID {container_id} {problem}",
            ("leave statusContext out of the request; admission sets it",),
            final=True,
        ),
        Reason.NOT_RESTARTABLE: Cause(
            "restartPolicy is Never, so kubelet would not start the container again",
            ("delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}",),
            final=True,
        ),
        Reason.LEFT_DOWN: Cause(
            "the container exited with code 0 and restartPolicy is OnFailure, so kubelet does not restart it",
            ("delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}",),
            final=True,
        ),
        Reason.RESTARTS_POD: Cause(
            "the container's restartPolicyRules restart all containers of the pod after exit code {code}",
            ("to allow this, set spec.strategy.allowPodRestart: true in a new request",),
            final=True,
        ),
        Reason.STOP_FAILED: Cause(
            "StopContainer failed {count} times in {seconds}s, last error: {error}", _RUNTIME, final=True
        ),
        Reason.STILL_RUNS: Cause(
            "the runtime reported the container as stopped, but it is still running", _RUNTIME, final=True
        ),
        Reason.PIN_LOST: Cause(
            "the annotation pinned-containers was removed, so crrd cannot tell which instance was stopped",
            ("do not remove the annotation crr.apps.kruise.io/pinned-containers", _AGAIN),
            final=True,
        ),
        Reason.POD_GONE: Cause(
            "the pod no longer exists", (f"use the name of the pod that replaced it: {_PODS}",), final=True
        ),
        Reason.POD_REPLACED: Cause(
            "the pod was replaced: the request is for UID {wanted}, but {key} now has UID {found}",
            (f"use the name of the pod that replaced it: {_PODS}",),
            final=True,
        ),
        Reason.POD_ELSEWHERE: Cause(
            "pod {key} is on {found}, not on node {node}",
            (
                (
                    "create a new request without the labels crr.apps.kruise.io/node-name and "
                    "crr.apps.kruise.io/pod-uid; admission sets them"
                ),
            ),
            final=True,
        ),
        Reason.POD_DELETING: Cause(
            "the pod is being deleted", (f"use the name of the pod that replaces it: {_PODS}",), final=True
        ),
        Reason.POD_ENDED: Cause(
            "the pod has ended (phase {phase}), so kubelet does not start containers in it",
            (f"use the name of a running pod: {_PODS}",),
            final=True,
        ),
        Reason.EARLIER_FAILURE: Cause(
            '{what}: container "{name}" failed and failurePolicy is Fail', (_AGAIN,), final=True
        ),
        Reason.NO_ANSWER: Cause(
            "no node daemon answered the request{where}",
            ("check manager and node daemons: crrd doctor", _AGAIN),
            final=True,
        ),
        Reason.DEADLINE: Cause(
            "activeDeadlineSeconds ({deadline}) has passed{waited}",
            (
                (
                    "fix what the container was waiting for; if it only needs more time, set a longer "
                    "spec.activeDeadlineSeconds"
                ),
                _AGAIN,
            ),
            final=True,
        ),
        Reason.WAITING_FOR_POD: Cause(
            "waiting for pod {key} to appear on node {node}",
            (
                "check that the pod is on that node: kubectl get pod -n {namespace} {pod} -o wide",
                "check that the daemon may list pods: {log}",
            ),
        ),
        Reason.WAITING_FOR_UNREADY: Cause("waiting for the manager to make the pod unready"),
        Reason.UNREADY_GRACE: Cause("the pod is unready; waiting {grace}s before stopping containers"),
        Reason.NO_READINESS_GATE: Cause(
            "the pod has no readiness gate KruisePodReady, so unreadyGracePeriodSeconds is ignored"
        ),
        Reason.WAITING_FOR_IP: Cause("waiting for the pod's IP, which the preStop hook needs"),
        Reason.NOT_CREATED: Cause("the container has not been created yet"),
        Reason.NOT_STARTED: Cause("the container has been created, but not started yet"),
        Reason.OTHER_WORK: Cause("an earlier request that has ended is still working on this container ({work})"),
        Reason.NOT_PINNED: Cause(
            "cannot record the target container IDs in the request's annotations: {error}",
            (
                (
                    "check what rejects the write: a policy, a webhook, the node daemon's RBAC role, or "
                    "annotations that are too large"
                ),
            ),
        ),
        Reason.RUNTIME_UNAVAILABLE: Cause("waiting for the container runtime: {error}", _RUNTIME),
        Reason.KUBELET_SILENT: Cause(
            "kubelet on this node has not answered /healthz for {seconds}s; not stopping the container, "
            "because kubelet could not start it again",
            (
                "check kubelet on node {node}",
                "if its healthz port is not 10248, set --kubelet-healthz-port of the node daemon",
            ),
        ),
        Reason.STOP_RETRIED: Cause("StopContainer failed {count} times, retrying: {error}", _RUNTIME),
        Reason.NOT_ENDING: Cause(
            "the container is still running {seconds}s after the end of its grace period; either its process cannot be "
            "killed, or the container runtime hangs",
            _RUNTIME,
        ),
        Reason.HOOK_FAILED: Cause("preStop hook failed: {error}"),
        Reason.HELD_BACK: Cause("{details}"),
        Reason.NOT_STARTED_AGAIN: Cause("kubelet has not restarted the container for {seconds}s{before}"),
        Reason.NOT_READY: Cause(
            "the new container has been running for {seconds}s, but is not ready: {why}",
            ("check the events of its probe: kubectl -n {namespace} describe pod {pod}",),
        ),
        Reason.POD_RESTARTING: Cause("waiting for kubelet to restart all containers of the pod"),
        Reason.NOT_BACK: Cause("recreated; kubelet is restarting all containers of the pod, waiting for: {names}"),
        Reason.POD_RESTARTED: Cause("kubelet also restarted other containers of the pod: {names}"),
    }
)


def say(reason: Reason, **values: object) -> str:
    """The sentence of a reason, with what it takes."""
    return CAUSES[reason].sentence.format(**values) if reason else ""


def reason_of(message: str, *, final: bool) -> Reason:
    """The reason whose sentence a message is, NONE for what is none of ours: for a status whose CRD prunes reasons.

    `final`: whether it says how something has ended, or what is waited for.
    """
    for reason, cause in CAUSES.items():
        fixed = list(map(re.escape, _VALUE.split(cause.sentence)))
        if cause.final is final and any(fixed) and re.fullmatch(".*?".join(fixed), message, re.DOTALL):
            return reason
    return Reason.NONE


def remedy(reason: Reason, **values: object) -> tuple[str, ...]:
    """What to do about a reason; one that a cluster's CRD has pruned, or that is another program's, is not known."""
    cause = CAUSES.get(reason)
    steps = cause.remedy if cause is not None and cause.remedy else (_AGAIN,)
    return tuple(step.format(**values) for step in steps)
