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
    HOOK_FAILED = "PreStopHookFailed"
    HELD_BACK = "HeldBackByKubelet"
    NOT_STARTED_AGAIN = "WaitingForKubelet"
    POD_RESTARTING = "PodRestarting"
    NOT_BACK = "WaitingForWholePod"
    POD_RESTARTED = "WholePodRestarted"


@dataclass(frozen=True, slots=True)
class Cause:
    """What stands behind a reason."""

    sentence: str
    """For a message; `{name}` takes what `say` is given."""
    remedy: tuple[str, ...] = ()
    """What to do, one sentence or command each; takes `namespace`, `pod`, `request`, `node` and `log` (how to read the
    daemon's log)."""
    final: bool = False
    """Whether it ends a container, as Failed."""


_AGAIN = "a request can be made anew: kubectl get crr -o yaml shows this one's spec"
_PODS = "kubectl -n {namespace} get pods"
_VALUE = re.compile(r"\{\w+\}")
_RUNTIME = ("look at the container runtime on node {node}", "{log}")

CAUSES: Mapping[Reason, Cause] = MappingProxyType(
    {
        Reason.INVALID_REQUEST: Cause(
            "{error}",
            ("create another request without that", "kubectl -n {namespace} delete crr {request}"),
            final=True,
        ),
        Reason.CONTAINER_NOT_FOUND: Cause(
            'pod {key} has no container "{name}"',
            ("name a container of the pod: kubectl -n {namespace} get pod {pod}",),
            final=True,
        ),
        Reason.NOT_RECREATABLE: Cause(
            "is an {kind}: only containers and native sidecars can be recreated",
            ("name a container of the pod: kubectl -n {namespace} get pod {pod}",),
            final=True,
        ),
        Reason.CONTAINER_MISMATCH: Cause(
            "container ID {container_id} {problem}",
            ("let admission set statusContext: leave it out of the request",),
            final=True,
        ),
        Reason.NOT_RESTARTABLE: Cause(
            "restartPolicy is Never: kubelet would not start the container again",
            ("kubelet does not start such a container again: replace the pod instead",),
            final=True,
        ),
        Reason.LEFT_DOWN: Cause(
            "the container exited with code 0 and restartPolicy is OnFailure: kubelet leaves it down",
            ("kubelet restarts it only after a failure: replace the pod instead",),
            final=True,
        ),
        Reason.RESTARTS_POD: Cause(
            "its restartPolicyRules would restart all containers of the pod if it ended with exit code {code}",
            ("allow it in the request: spec.strategy.allowPodRestart: true", "or leave the container as it is"),
            final=True,
        ),
        Reason.STOP_FAILED: Cause(
            "stopping failed {count} times in {seconds} s, last with: {error}", _RUNTIME, final=True
        ),
        Reason.STILL_RUNS: Cause(
            "the runtime reported the container as stopped, but it still runs", _RUNTIME, final=True
        ),
        Reason.PIN_LOST: Cause(
            "the annotation that said which instance was stopped has been removed: nobody can tell what became of it",
            ("leave the annotation crr.apps.kruise.io/pinned-containers alone", _AGAIN),
            final=True,
        ),
        Reason.POD_GONE: Cause("pod has gone", (f"name the pod that replaced it: {_PODS}",), final=True),
        Reason.POD_REPLACED: Cause(
            "pod has gone: the request is for UID {wanted}, {key} now has UID {found}",
            (f"name the pod that replaced it: {_PODS}",),
            final=True,
        ),
        Reason.POD_ELSEWHERE: Cause(
            "pod {key} is on node {found}, not on {node}",
            ("let admission set the labels: create another request",),
            final=True,
        ),
        Reason.POD_DELETING: Cause("pod is being deleted", (f"name the pod that replaces it: {_PODS}",), final=True),
        Reason.POD_ENDED: Cause(
            "the pod has ended (phase {phase}): kubelet starts nothing in it any more",
            (f"name a pod that runs: {_PODS}",),
            final=True,
        ),
        Reason.EARLIER_FAILURE: Cause('{what}: container "{name}" failed', (_AGAIN,), final=True),
        Reason.NO_ANSWER: Cause("no daemon answered{where}", (_AGAIN,), final=True),
        Reason.DEADLINE: Cause(
            "activeDeadlineSeconds ({deadline}) has passed",
            ("give the next one more time, in spec.activeDeadlineSeconds", _AGAIN),
            final=True,
        ),
        Reason.WAITING_FOR_POD: Cause(
            "waiting to see pod {key} on node {node}",
            (
                "is the pod on that node? kubectl get pod -n {namespace} {pod} -o wide",
                "may the daemon list pods? {log}",
            ),
        ),
        Reason.WAITING_FOR_UNREADY: Cause("waiting for the manager to make the pod unready"),
        Reason.UNREADY_GRACE: Cause("the pod is unready; stopping after {grace} s"),
        Reason.NO_READINESS_GATE: Cause(
            "the pod has no readiness gate KruisePodReady: unreadyGracePeriodSeconds is not waited for"
        ),
        Reason.WAITING_FOR_IP: Cause("waiting to see the pod's IP, for the preStop hook"),
        Reason.NOT_CREATED: Cause("the container has not been created yet"),
        Reason.NOT_STARTED: Cause("the container is created but not started yet"),
        Reason.OTHER_WORK: Cause("a {work} of this container by another request is under way"),
        Reason.NOT_PINNED: Cause(
            "which instances are meant cannot be written to the request's annotations: {error}",
            ("see what refuses it: a policy, a webhook, the node daemon's rights, or annotations that are too large",),
        ),
        Reason.RUNTIME_UNAVAILABLE: Cause("waiting for the container runtime: {error}", _RUNTIME),
        Reason.KUBELET_SILENT: Cause(
            "kubelet on this node does not answer since {seconds} s: nothing is stopped that it would not start again",
            ("see what is wrong with kubelet on node {node}: systemctl status kubelet",),
        ),
        Reason.STOP_RETRIED: Cause("stopping failed {count} times, is tried again: {error}", _RUNTIME),
        Reason.HOOK_FAILED: Cause("preStop hook failed: {error}"),
        Reason.HELD_BACK: Cause("{words}"),
        Reason.NOT_STARTED_AGAIN: Cause("kubelet has not started it for {seconds} s{before}"),
        Reason.POD_RESTARTING: Cause("waiting: kubelet is restarting all containers of the pod"),
        Reason.NOT_BACK: Cause("recreated; kubelet restarts all containers of the pod, waiting for: {names}"),
        Reason.POD_RESTARTED: Cause("kubelet restarted the whole pod with it: {names}"),
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
