"""What `crrd explain` finds: a table of what may hold for a request or a container, with sentences and remedies."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from crrd.core.api.reason_table import ReasonTable
from crrd.core.api.reasons import Reason
from crrd.core.api.time import format_duration
from crrd.core.api.types import MANAGERS, Request
from crrd.core.explain.facts import Facts
from crrd.core.recreate.hazards import Hazard

MANAGER_PODS = f"kubectl get pods -A -l {MANAGERS}"
_AWAIT_MANAGER = f"the manager completes the request as failed; if it does not, check the manager: {MANAGER_PODS}"
_CHECK_ADMISSION = f"admission sets this label; check that the manager is running: {MANAGER_PODS}"
_CREATE_AGAIN = "then create a new request; for the spec of this one: kubectl -n {namespace} get crr {request} -o yaml"
_DESCRIBE_NODE = "kubectl describe node {node}"
_DESCRIBE_POD = "kubectl describe pod -n {namespace} {pod}"
_LOG = "kubectl logs -n {namespace} {pod} -c {container}"
_CHECK_BACK_OFF = (
    "kubelet restarts the container when its back-off ends",
    f"if the container exits on its own, check its log: {_LOG} --previous",
)
_CHECK_RUNTIME = "check why the container runtime does not stop the container: {log}"
_STILL_SHOWN = (
    "the pod's status still shows the old instance{after_stop}, because kubelet has not reported that it has ended"
)
_RECREATED = "recreated: {old} -> {new}, restart count {old_count} -> {new_count}"
_RUNS = "the new container {id} is running{so_far}"


class Verdict(StrEnum):
    """The shortest answer."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # Ended, and not every container was recreated
    MOVING = "moving"  # Continues without a user
    STUCK = "stuck"  # A user has to do something, or it will not end well


class Topic(ReasonTable):
    """What holds for a request or for one of its containers.

    Sentences and remedies take `namespace`, `pod`, `pod_key`, `request`, `node`, `server` (who serves the request) and
    `log` (how to read the log of that). `since` is for how long it has been so, and `so_far` the same in parentheses,
    or "" if it is unknown.
    """

    # fmt: off
    # The request as a whole.
    COMPLETED = "Completed", "Completed: {message}"
    COMPLETED_WITH_FAILURES = "CompletedWithFailures", "Completed; these containers were not recreated: {failures}"
    BEING_RELEASED = "BeingReleased", "the request is being deleted; the manager must make the pod ready again first"
    BEING_DELETED = "BeingDeleted", "the request is being deleted, so no more containers are stopped for it"
    DELETED_ONCE_COMPLETED = "DeletedOnceCompleted", "the request is being deleted"
    NO_POD = "NoPod", "pod {pod_key} not found", _AWAIT_MANAGER
    POD_REPLACED = "PodReplaced", "the pod was replaced: {pod_key} now has UID {uid}", _AWAIT_MANAGER
    POD_DELETING = "PodDeleting", "the pod is being deleted, so no more containers are stopped in it", _AWAIT_MANAGER
    POD_ENDED = ("PodEnded", "the pod has ended (phase {phase}), so kubelet does not start containers in it",
        _AWAIT_MANAGER)
    NO_LABEL = ("NoLabel", "no node daemon handles the request, because the label {label} is missing", _CHECK_ADMISSION,
        "check the webhooks: kubectl get mutatingwebhookconfigurations", _CREATE_AGAIN)
    ANOTHER_NODE = ("AnotherNode",
        "no node daemon handles the request, because it is for node {node} and the pod is on {found}", _CREATE_AGAIN)
    INVALID = "Invalid", "the request is invalid: {error}", *Reason.INVALID_REQUEST.remedy
    JUST_CREATED = "JustCreated", "just created; waiting for {server}"
    NO_ANSWER = ("NoAnswer",
        "{server} has not answered for {since}; the manager fails the request in {left}")
    NO_ANSWER_FOR_LONG = ("NoAnswerForLong",
        "{server} has not answered for {since}; waiting for the manager to fail the request")
    ANOTHER_REQUEST_FIRST = ("AnotherRequestFirst",
        "waiting for request {first_namespace}/{first}{more} of the same pod",
        "to see what that request waits for: crrd explain {first_namespace}/{first}",
        "to let this request continue, delete that one: kubectl -n {first_namespace} delete crr {first}")
    DAEMON_WAITS = "DaemonWaits", "the node daemon is {message}"
    NO_NODE = "NoNode", "node {node} not found, so no node daemon handles the request"
    NODE_NOT_READY = "NodeNotReady", "node {node} is not ready: {why}", _DESCRIBE_NODE
    KUBELET_SILENT = ("KubeletSilent", "node {node} is not ready: kubelet has stopped reporting its status",
        _DESCRIBE_NODE)
    NODE_SILENT = ("NodeSilent", "node {node} is not ready: kubelet and the node daemon have stopped reporting",
        _DESCRIBE_NODE)
    NO_DAEMON = "NoDaemon", "no node daemon is ready on node {node}, so the request does not continue"
    WAITING_FOR_UNREADY = "WaitingForUnready", Reason.WAITING_FOR_UNREADY.sentence
    UNREADY = "Unready", "the pod is unready; waiting {grace}s before stopping containers"
    UNREADY_GRACE = "UnreadyGrace", "the pod has been unready for {since}; containers are stopped in at most {left}"
    UNREADY_GRACE_OVER = ("UnreadyGraceOver",
        "unreadyGracePeriodSeconds ended {over} ago, but no container has been stopped yet")
    TURN_NOT_GIVEN = ("TurnNotGiven",
        "{server} has not started on this container, although nothing is before it")
    ALL_ENDED = "AllEnded", "all containers have finished; the request will be Completed soon"
    # One of its containers. Remedies also take `container`.
    TURN_AWAITED = "TurnAwaited", "not started yet"
    RECREATED = "Recreated", f"{_RECREATED}{{more}}"
    RECREATED_MORE_THAN_ONCE = "RecreatedMoreThanOnce", f"{_RECREATED}; restarted more than once{{more}}"
    RECREATED_UNSEEN = "RecreatedUnseen", "recreated{more}"
    FAILED = "Failed", "{message}"
    NOT_FINISHED = "NotFinished", "not finished: {message}"
    NOT_IN_POD_STATUS = "NotInPodStatus", "the pod's status does not list this container"
    STATUS_MESSAGE = "StatusMessage", "{message}"
    RELOADING = "Reloading", "its reload is running{so_far}"
    STOPPING = "Stopping", "{message}; grace period {grace}s{over}", _CHECK_RUNTIME
    STOP_SENT = "StopSent", "{message}; grace period {grace}s{over}", _CHECK_RUNTIME
    END_NOT_REPORTED = "EndNotReported", f"{{message}}; {_STILL_SHOWN}", *Reason.KUBELET_SILENT.remedy
    STOPPED = "Stopped", "the container has stopped{with_code}; waiting for kubelet to restart it"
    NOT_STARTED_AGAIN = "NotStartedAgain", "the container has stopped{with_code}; {message}"
    BACK_OFF = ("BackOff", "waiting for kubelet: {reason}, back-off {back_off} restarting failed container{next_try}",
        *_CHECK_BACK_OFF)
    BACK_OFF_OVER = ("BackOffOver",
        "waiting for kubelet: {reason}, back-off {back_off} restarting failed container; next try at any moment",
        *_CHECK_BACK_OFF)
    IMAGE_NOT_PULLED = ("ImageNotPulled", "waiting for kubelet: the image cannot be pulled ({kubelet})",
        f"check the image name, the registry and the pod's imagePullSecrets: {_DESCRIBE_POD}",
        "kubelet retries with growing back-off")
    NEW_IMAGE_NOT_SET = ("NewImageNotSet", Reason.IMAGE_PRESENT.sentence, *Reason.IMAGE_PRESENT.remedy)
    NEW_IMAGE_NOT_TAKEN = ("NewImageNotTaken", f"{Reason.IMAGE_NOT_APPLIED.sentence}{{so_far}}",
        f"check that kubelet works: {_DESCRIBE_NODE}")
    NEW_IMAGE_NOT_PULLED = ("NewImageNotPulled",
        "kubelet has stopped the container, and cannot pull its new image {image} ({kubelet})",
        "to start the container with an image that the node has: {back}",
        f"check the image name, the registry and the pod's imagePullSecrets: {_DESCRIBE_POD}")
    NOT_CREATED = ("NotCreated", "waiting for kubelet: the container cannot be created ({kubelet})",
        f"check what is missing (a ConfigMap, a Secret, a volume): {_DESCRIBE_POD}")
    HELD_BACK = "HeldBack", "waiting for kubelet: {kubelet}", f"check the pod: {_DESCRIBE_POD}"
    MIN_STARTED = ("MinStarted",
        f"{_RUNS}, and is ready; it counts as recreated in {{left}} (minStartedSeconds {{least}})")
    READY = ("Ready", f"{_RUNS}, and is ready; waiting for {{server}} to record it",
        "check why {server} does not see it: {log}")
    NOT_READY = ("NotReady", f"{_RUNS}, but is not ready: its {{probe}} has not succeeded yet{{last_event}}",
        f"check the result of its {{probe}}: {_DESCRIBE_POD}", f"check the container's log: {_LOG}")
    # What else is worth knowing.
    MAY_STAY_DOWN = ("MayStayDown", Hazard.MAY_STAY_DOWN.sentence,
        "if the container stays down, delete the pod: kubectl delete pod -n {namespace} {pod}")
    EARLY_LIVENESS = "EarlyLiveness", Hazard.EARLY_LIVENESS.sentence
    PULLS_IMAGE = "PullsImage", Hazard.PULLS_IMAGE.sentence
    REPLACES_GROUP = "ReplacesGroup", Hazard.REPLACES_GROUP.sentence
    COUNTS_RESTARTS = "CountsRestarts", Hazard.COUNTS_RESTARTS.sentence
    DEADLINE = "Deadline", "deadline: {left} left of {seconds}s{default}; containers not recreated by then fail"
    DEADLINE_PASSED = ("DeadlinePassed",
        "deadline passed {over} ago{default}; waiting for the manager to complete the request")
    FORCED = "Forced", "forceRecreate is set, so the running instance is stopped once, even if it is newer"
    NOT_ADMITTED = ("NotAdmitted",
        "the request has no statusContext, because it did not pass admission; the daemon stops the running instances")
    NO_READINESS_GATE = "NoReadinessGate", Reason.NO_READINESS_GATE.sentence
    TEMPLATE_KEPT = ("TemplateKept",
        "run {run} leaves the template of {target} as it is, so a new pod does not get {image} from it")
    NOT_CLEANED_UP = "NotCleanedUp", "waiting for the manager to remove {left}"
    NO_TTL = "NoTtl", "ttlSecondsAfterFinished is not set, so the request stays until you delete it"
    TTL = "Ttl", "ttlSecondsAfterFinished: the request is deleted in {left}"
    TTL_OVER = ("TtlOver",
        "ttlSecondsAfterFinished ended {over} ago; the request is deleted soon (a new leader counts from its start)")
    UNREAD = "Unread", "cannot read {object}: {error}"
    # fmt: on

    @property
    def says_since(self) -> bool:
        """Whether the sentence contains for how long it has been so."""
        return any(map(self.takes, ("since", "so_far", "after_stop")))


@dataclass(frozen=True, slots=True)
class Finding:
    """What holds, and what can be done about it."""

    topic: Topic
    message: str
    since: float | None  # For how many seconds it has been so; None if unknown
    stuck: bool  # Whether it does not continue without a user
    advice: Sequence[str]  # What to do, one sentence or command each
    container: str = ""  # The container that it is about; "" for the request as a whole
    phase: str = ""  # The container's phase in the status


def make_finding(
    facts: Facts,
    topic: Topic,
    since: float | None = None,
    *,
    stuck: bool = False,
    advice: Sequence[str] | None = None,
    **values: object,
) -> Finding:
    """Return a finding with its message. `advice` is the remedy of its row, unless it is given."""
    duration = "" if since is None else format_duration(since)
    all_values = {**facts.names, "since": duration, "so_far": optional(" (for {})", duration), **values}
    steps = topic.advise(**all_values) if advice is None else advice
    return Finding(topic, topic.say(**all_values), since, stuck, tuple(steps))


def optional(part: str, value: object) -> str:
    """Return a part of a sentence with its value, or "" if the value is None or empty."""
    return "" if value in (None, "") else part.format(value)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of a request."""

    request: Request
    age: float  # Seconds since its creation
    node: str
    cause: Finding
    containers: tuple[Finding, ...]
    notes: tuple[Finding, ...] = ()  # What else is worth knowing: times left, what is missing, what could not be read

    @property
    def verdict(self) -> Verdict:
        """The shortest answer."""
        if self.cause.topic is Topic.COMPLETED:
            return Verdict.SUCCEEDED
        if self.cause.topic is Topic.COMPLETED_WITH_FAILURES:
            return Verdict.FAILED
        return Verdict.STUCK if self.cause.stuck else Verdict.MOVING
