"""The reasons of requests and containers, each with its sentence and its remedy.

A reason is what programs go by: `reason` in the status, a label of metrics, what `crrd explain` looks up. The sentence
is the message for people, and is never parsed, except that `crrd explain` and `crrd doctor` know by it a reason that a
CRD has pruned. Events have reasons of their own, as Kubernetes' are: few, for filters.
"""

import re
from enum import StrEnum

from crrd.core.api.reason_table import ReasonTable

_AGAIN = "create a new request; for the spec of this one: kubectl -n {namespace} get crr {request} -o yaml"
_PODS = "kubectl -n {namespace} get pods"
_RUNTIME = ("check the container runtime on node {node}", "read the node daemon's log: {log}")
_ENDS, _WAITS = True, False  # Whether a container ends with the reason as Failed, or waits
_VALUE = re.compile(r"\{\w+\}")


class EventReason(StrEnum):
    """Reasons of the Kubernetes events on pods and requests."""

    RECREATING = "ContainerRecreating"
    RECREATED = "ContainerRecreated"
    RELOADING = "ContainerReloading"
    RELOADED = "ContainerReloaded"
    FAILED = "ContainerRecreateFailed"
    HOOK_FAILED = "FailedPreStopHook"
    NO_READINESS_GATE = "NoReadinessGate"


class Reason(ReasonTable):
    """A reason of a request or container.

    Its remedy takes `namespace`, `pod`, `request`, `node` and `log` (how to read the daemon's log).
    """

    final: bool  # Whether it ends a container as Failed

    def __init__(self, name: str, final: bool = False, sentence: str = "", *remedy: str) -> None:
        super().__init__(name, sentence, *remedy)
        self.final = final

    def advise(self, **values: object) -> tuple[str, ...]:
        """Return what to do. For a reason without a remedy, return the general advice."""
        return super().advise(**values) or (_AGAIN.format(**values),)

    # fmt: off
    NONE = "", _WAITS, ""
    # Ends.
    INVALID_REQUEST = ("InvalidRequest", _ENDS, "{error}", "create a new request without this error",
        "kubectl -n {namespace} delete crr {request}")
    CONTAINER_NOT_FOUND = ("ContainerNotFound", _ENDS, 'pod {key} has no container "{name}"',
        "use the name of a container of the pod: kubectl -n {namespace} describe pod {pod}")
    NOT_RECREATABLE = ("NotRecreatable", _ENDS,
        "this is an {kind}; only containers and native sidecars can be recreated",
        "use the name of a container of the pod: kubectl -n {namespace} describe pod {pod}")
    CONTAINER_MISMATCH = ("ContainerMismatch", _ENDS, "container ID {container_id} {problem}",
        "leave statusContext out of the request; admission sets it")
    NOT_RESTARTABLE = ("NotRestartable", _ENDS,
        "restartPolicy is Never, so kubelet would not start the container again",
        "delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}")
    LEFT_DOWN = ("LeftDown", _ENDS,
        "the container exited with code 0 and restartPolicy is OnFailure, so kubelet does not restart it",
        "delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}")
    RESTARTS_POD = ("RestartsWholePod", _ENDS,
        "the container's restartPolicyRules restart all containers of the pod after exit code {code}",
        "to allow this, set spec.strategy.allowPodRestart: true in a new request")
    REST_LEFT_DOWN = ("WholePodLeftDown", _ENDS,
        "recreated, but kubelet also restarted the other containers of the pod, and some failed and stay down: {names}",
        "see why: kubectl -n {namespace} logs {pod} --all-containers",
        "delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}")
    POD_WOULD_END = ("PodWouldEnd", _ENDS,
        ("the pod cannot be restarted in place, because the restartPolicy of {whose} is {policy}, and kubelet "
        "may end the pod"),
        "delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}")
    HOOK_NEEDS_IP = ("HookNeedsPodIP", _ENDS,
        ("the pod cannot be restarted in place, because the httpGet preStop hook of container {name} has no host, and "
        "kubelet does not know the pod's IP while it restarts the pod"),
        "use an exec hook, or give the hook a host",
        "or restart single containers of the pod, or delete it: kubectl -n {namespace} delete pod {pod}")
    HOST_NETWORK = ("HostNetwork", _ENDS,
        ("the pod cannot be restarted in place, because it is on the host's network: if kubelet is killed meanwhile, "
        "the init containers may not run"),
        "restart its containers with a request that names them")
    RESTARTS_TWICE = ("PodWouldRestartTwice", _ENDS,
        ("the pod cannot be restarted in place, because the restartPolicyRules of container {name} may restart it a "
        "second time, once its containers have stopped"),
        "restart a single container with spec.strategy.allowPodRestart: true")
    RUNTIME_UNFIT = ("RuntimeUnfit", _ENDS,
        "pods are not restarted in place with the container runtime {runtime}, because it was not tried there",
        "delete the pod instead, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}")
    SANDBOX_FAILED = ("SandboxFailed", _ENDS,
        "RunPodSandbox failed {count} times in {seconds}s, last error: {error}", *_RUNTIME)
    STOP_FAILED = ("StopFailed", _ENDS, "StopContainer failed {count} times in {seconds}s, last error: {error}",
        *_RUNTIME)
    STILL_RUNS = "StillRuns", _ENDS, "the runtime reported the container as stopped, but it is still running", *_RUNTIME
    PIN_LOST = ("PinLost", _ENDS,
        "the annotation pinned-containers was removed, so crrd cannot tell which instance was stopped",
        "do not remove the annotation crr.apps.kruise.io/pinned-containers", _AGAIN)
    IMAGE_MISSING = ("ImageMissing", _ENDS,
        "the image {image} is not on node {node}, and the container was not stopped",
        "pull the image to the node first; kubectl recreate --image does this")
    IMAGE_NOT_RUN = ("ImageNotRun", _ENDS,
        "kubelet has restarted the pod, but has run this init container with another image than {image}",
        "see which image the pod has: kubectl -n {namespace} describe pod {pod}", _AGAIN)
    RELOAD_UNDECLARED = ("ReloadNotDeclared", _ENDS, "the pod does not declare how the container reloads: {why}",
        "declare the reload in the pod's template, and have the pods replaced once: docs/recreate.md",
        "or restart the container: a request without strategy.action")
    RELOAD_CHANGED = ("ReloadChanged", _ENDS,
        ("the pod's annotation {annotation} is not the one with which kubelet made its sandbox, so the container does "
        "not reload"),
        "set the annotation in the pod's template, and have the pods replaced once",
        "or restart the container: a request without strategy.action")
    RELOAD_FAILED = ("ReloadFailed", _ENDS, "the reload failed, and the container was not stopped: {error}",
        "see what the program says: kubectl -n {namespace} logs {pod} --all-containers",
        "fix the configuration, then create a new request")
    ENDED_BEFORE_RELOAD = ("EndedBeforeReload", _ENDS,
        "the container ended before its reload; a new instance reads its files at its start",
        "if the new instance may have read old files, create a new request")
    ENDED_AFTER_RELOAD = ("EndedAfterReload", _ENDS, "the container ended after its reload began",
        "see why: kubectl -n {namespace} logs {pod} --all-containers --previous")
    RUN_STOPPED = ("RunStopped", _ENDS, "the run has stopped, has given up this pod, or is undone",
        "to give it the image, continue the run (kubectl recreate resume); if it was aborted, start a new one")
    NEEDS_DAEMON = ("NeedsNodeDaemon", _ENDS, "it cannot be restarted without a node daemon: {why}",
        "install the node daemon on node {node}, then create a new request",
        "or delete the pod, if a controller creates a new one: kubectl -n {namespace} delete pod {pod}")
    PATCH_REFUSED = ("PatchRefused", _ENDS, "the API server refuses the patch that restarts the container: {error}",
        "fix what refuses it", _AGAIN)
    PATCH_FAILED = ("PatchFailed", _ENDS, "the restart by a patch of the pod has failed: {error}",
        "see why: kubectl -n {namespace} describe pod {pod}", _AGAIN)
    POD_GONE = "PodGone", _ENDS, "the pod no longer exists", f"use the name of the pod that replaced it: {_PODS}"
    POD_REPLACED = ("PodReplaced", _ENDS,
        "the pod was replaced: the request is for UID {wanted}, but {key} now has UID {found}",
        f"use the name of the pod that replaced it: {_PODS}")
    POD_ELSEWHERE = ("PodElsewhere", _ENDS, "pod {key} is on {found}, not on node {node}",
        ("create a new request without the labels crr.apps.kruise.io/node-name and "
        "crr.apps.kruise.io/pod-uid; admission sets them"))
    POD_DELETING = ("PodDeleting", _ENDS, "the pod is being deleted",
        f"use the name of the pod that replaces it: {_PODS}")
    POD_ENDED = ("PodEnded", _ENDS, "the pod has ended (phase {phase}), so kubelet does not start containers in it",
        f"use the name of a running pod: {_PODS}")
    EARLIER_FAILURE = "EarlierFailure", _ENDS, '{what}: container "{name}" failed and failurePolicy is Fail', _AGAIN
    NO_ANSWER = ("NoDaemonAnswered", _ENDS, "no node daemon answered the request{where}",
        "check manager and node daemons: crrd doctor", _AGAIN)
    DEADLINE = ("DeadlineExceeded", _ENDS, "activeDeadlineSeconds ({deadline}) has passed{waited}",
        "fix what the container was waiting for; if it only needs more time, set a longer spec.activeDeadlineSeconds",
        _AGAIN)
    TOO_LATE = ("DeadlineTooClose", _ENDS,
        ("not stopped, because kubelet may need {seconds}s to start it again, and activeDeadlineSeconds ({deadline}) "
        "ends before that"),
        "set a longer spec.activeDeadlineSeconds", _AGAIN)
    # Waits.
    WAITING_FOR_POD = ("WaitingForPod", _WAITS, "waiting for pod {key} to appear on node {node}",
        "check that the pod is on that node: kubectl get pod -n {namespace} {pod} -o wide",
        "check that the daemon may list pods: {log}")
    WAITING_FOR_UNREADY = "WaitingForUnready", _WAITS, "waiting for the manager to make the pod unready"
    UNREADY_GRACE = "UnreadyGracePeriod", _WAITS, "the pod is unready; waiting {grace}s before stopping containers"
    NO_READINESS_GATE = ("NoReadinessGate", _WAITS,
        "the pod has no readiness gate KruisePodReady, so unreadyGracePeriodSeconds is ignored")
    WAITING_FOR_IP = "WaitingForPodIP", _WAITS, "waiting for the pod's IP, which the preStop hook needs"
    NOT_CREATED = "ContainerNotCreated", _WAITS, "the container has not been created yet"
    NOT_STARTED = "ContainerNotStarted", _WAITS, "the container has been created, but not started yet"
    OTHER_WORK = ("OtherRequestAtWork", _WAITS,
        "an earlier request that has ended is still working on this container ({work})")
    NOT_PINNED = ("NotPinned", _WAITS, "cannot record the target container IDs in the request's annotations: {error}",
        ("check what rejects the write: a policy, a webhook, the node daemon's RBAC role, or "
        "annotations that are too large"))
    RUNTIME_UNAVAILABLE = "RuntimeUnavailable", _WAITS, "waiting for the container runtime: {error}", *_RUNTIME
    KUBELET_SILENT = ("KubeletNotAnswering", _WAITS,
        ("kubelet on this node has not answered /healthz for {seconds}s; not stopping the container, "
        "because kubelet could not start it again"),
        "check kubelet on node {node}",
        "if its healthz port is not 10248, set --kubelet-healthz-port of the node daemon")
    RUNTIME_NOT_READY = ("RuntimeNotReady", _WAITS,
        ("the container runtime reports that {condition} is false: {why}; not stopping the container, because kubelet "
        "could not start it again"),
        "repair the network plugin (CNI) or the container runtime on node {node}", "kubectl describe node {node}")
    STOP_RETRIED = "StopRetried", _WAITS, "StopContainer failed {times}, retrying: {error}", *_RUNTIME
    NOT_ENDING = ("ContainerNotEnding", _WAITS,
        ("the container is still running {seconds}s after the end of its grace period; either its process cannot be "
        "killed, or the container runtime hangs"),
        *_RUNTIME)
    IMAGE_PRESENT = ("ImagePresent", _WAITS, "the image {image} is on the node; waiting until the pod has it",
        "continue the run that has created this request: kubectl recreate status -n {namespace}",
        ("or set the image yourself: kubectl -n {namespace} set image pod/{pod} CONTAINER=IMAGE"))
    IMAGE_NOT_APPLIED = ("WaitingForNewImage", _WAITS,
        "the pod has the image {image}; kubelet has not replaced the container yet",
        "check kubelet on node {node}")
    IMAGE_KEPT = ("ImageKept", _WAITS,
        "the container already runs {image}, and kubelet did not replace it")
    RELOADED = "Reloaded", _WAITS, "reloaded{details}"
    REFRESHING = ("WaitingForFiles", _WAITS,
        "waiting until kubelet has refreshed the files by itself, which takes at most {seconds}s",
        ("to have them refreshed at once, give the pod and the request the same new value of the annotation "
        "crr.apps.kruise.io/config-refresh, as kubectl recreate --reload does"))
    HOOK_FAILED = "PreStopHookFailed", _WAITS, "preStop hook failed: {error}"
    HELD_BACK = "HeldBackByKubelet", _WAITS, "{details}"
    NOT_STARTED_AGAIN = "WaitingForKubelet", _WAITS, "kubelet has not restarted the container for {seconds}s{before}"
    NOT_READY = ("ContainerNotReady", _WAITS,
        "the new container has been running for {seconds}s, but is not ready: {why}",
        "check the events of its probe: kubectl -n {namespace} describe pod {pod}")
    SANDBOX_RETRIED = "SandboxRetried", _WAITS, "RunPodSandbox failed {times}, retrying: {error}", *_RUNTIME
    POD_NOT_RESTARTED = ("WaitingForPodRestart", _WAITS,
        "kubelet has not restarted the pod {seconds}s after the end of its grace period",
        "check kubelet on node {node}")
    POD_RESTARTING = "PodRestarting", _WAITS, "waiting for kubelet to restart all containers of the pod"
    NOT_BACK = ("WaitingForWholePod", _WAITS,
        "recreated; kubelet is restarting all containers of the pod, waiting for: {names}")
    DECISION_WITHHELD = ("DecisionWithheld", _WAITS,
        "not stopping the container, because a safety check of crrd failed; this is a bug of crrd",
        "please report it with the lines of the daemon's log that have decision withheld: {log}")
    POD_RESTARTED = "WholePodRestarted", _WAITS, "kubelet also restarted other containers of the pod: {names}"
    # fmt: on


def reason_of(message: str, *, final: bool) -> Reason:
    """Return the reason whose sentence a message has, or NONE. For a status whose CRD prunes reasons.

    `final`: whether the reason ends a container or request, or is a wait.
    """
    for reason in Reason:
        fixed = list(map(re.escape, _VALUE.split(reason.sentence)))
        if reason.final is final and any(fixed) and re.fullmatch(".*?".join(fixed), message, re.DOTALL):
            return reason
    return Reason.NONE
