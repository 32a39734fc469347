"""Requests and their status, as immutable values without JSON or protobuf. Pods are in `pod`.

`v1alpha1` converts requests from and to JSON, and `decide` decides what to do with them.

Times are seconds of the node's monotonic clock unless a name says otherwise; `created` of a request stays the
RFC 3339 string of the API server, which sorts as time does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from crrd.core.api.reasons import Reason

GROUP = "apps.kruise.io"
VERSION = "v1alpha1"
VERSIONS = (VERSION, "v1beta1")
"""Versions of the API that crrd reads. If there is a choice, it uses the first. All have the same fields."""
KIND = "ContainerRecreateRequest"
PLURAL = "containerrecreaterequests"
POLICY_GROUP, POLICY_PLURAL = "crrd.dev", "containerrecreatepolicies"
API_VERSION = f"{GROUP}/{VERSION}"

LABEL_POD_UID = "crr.apps.kruise.io/pod-uid"
LABEL_NODE_NAME = "crr.apps.kruise.io/node-name"
LABEL_POD_NAME = "crr.apps.kruise.io/pod-name"  # For people and scripts: crrd reads spec.podName
LABEL_ACTIVE = "crr.apps.kruise.io/active"
ACTIVE, ACTIVE_IMAGE, ACTIVE_POD, ACTIVE_RELOAD = "true", "image", "pod", "reload"
"""Values of the label active. Requests with an image, for a whole pod, and for a reload have their own, so that a node
daemon which does not know these fields never selects such a request and stops containers for it."""
ACTIVE_REQUESTS = f"{LABEL_ACTIVE} in ({ACTIVE},{ACTIVE_IMAGE},{ACTIVE_POD},{ACTIVE_RELOAD})"  # Label selector
WHOLE_POD = "*"  # Stands for the pod's sandbox in the annotation pinned-containers. No container has this name
LABEL_READINESS_GATE = "crr.apps.kruise.io/readiness-gate"
"""On a namespace, with the value `enabled`: its new pods get the readiness gate. With `disabled`, they never get it."""
ANNOTATION_UNREADY_ACQUIRED = "crr.apps.kruise.io/unready-acquired"
ANNOTATION_PINNED = "crr.apps.kruise.io/pinned-containers"
ANNOTATION_REFRESH = "crr.apps.kruise.io/config-refresh"
"""On a pod. Kubelet refreshes the files of a pod when it changes. On a request for a reload: its value on the pod."""
ANNOTATION_RELOAD = "reload.crrd.dev/"
"""On a pod, followed by the name of a container: how the container reloads its files (`core.recreate.declared`)."""
ANNOTATION_REQUESTED_BY = "crr.apps.kruise.io/requested-by"
"""Name of the user who created the request, as the API server authenticated it."""
ANNOTATION_ABORTED = "crr.apps.kruise.io/run-aborted"
"""The time of the abort (RFC 3339). On any request of a run, it means that the run starts no more pods."""
ANNOTATION_STOPPED = "crr.apps.kruise.io/run-stopped"
"""On a request with an image whose pod does not get it, because its run stops, gives up the pod, is aborted or undone.
The manager ends this request, so that its pod is ready again. It is not deleted, because it may be the only one with
the state of its run."""
FINALIZER = "crr.apps.kruise.io/unready-acquired"
"""Keeps a deleted request until the manager has made its pod ready again."""
CONDITIONS_UNREADY = ("PodUnreadyAcquired", "PreRecreateGrace")
"""Names of the condition that OpenKruise's managers set in v1beta1 instead of the annotation unready-acquired."""
READINESS_GATE = "KruisePodReady"

NODE_DAEMONS = "app.kubernetes.io/name=crrd,app.kubernetes.io/component=node"
"""Label selector for the node daemon's pods; the manifests set these labels."""
LABEL_RELOADS = "crrd.dev/reloads"
"""On a pod of the node daemon, set to `true` by the manifests: it serves requests for a reload. A daemon of an older
version does not have the label, and would not answer such requests."""
MANAGERS = "app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"  # The same for the manager's pods

DEFAULT_GRACE_SECONDS = 30  # Kubernetes' default of a pod's terminationGracePeriodSeconds
MINIMUM_GRACE_SECONDS = 2
"""Kubelet's minimumGracePeriodInSeconds: the least that a container gets after its preStop hook."""
UNANSWERED_SECONDS = 60  # The manager fails a request that has no status this long after its creation


class RequestPhase(StrEnum):
    """`status.phase` of a request. EMPTY: no daemon has written a status yet."""

    EMPTY = ""
    PENDING = "Pending"
    RECREATING = "Recreating"
    COMPLETED = "Completed"


class StatePhase(StrEnum):
    """`phase` of one container in `status.containerRecreateStates`."""

    PENDING = "Pending"
    RECREATING = "Recreating"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether nothing more happens to the container for this request."""
        return self in (StatePhase.SUCCEEDED, StatePhase.FAILED)


class Action(StrEnum):
    """What is done to the containers of a request."""

    UNSET = ""  # As RESTART
    RESTART = "Restart"
    RELOAD = "Reload"


class FailurePolicy(StrEnum):
    """The effect of a failed container on the rest of its request."""

    FAIL = "Fail"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class Pin:
    """One container instance: the name of its runtime, its ID and its restart count (a statusContext)."""

    container_id: str  # With the runtime's name in front, as in the API: `containerd://<id>`
    restart_count: int = 0

    @property
    def runtime(self) -> str:
        """The runtime's name, or "" if the ID has none."""
        runtime, separator, _ = self.container_id.partition("://")
        return runtime if separator else ""

    @property
    def bare_id(self) -> str:
        """The ID in the runtime, without the runtime's name."""
        return self.container_id.partition("://")[2] or self.container_id

    @property
    def short(self) -> str:
        """The container ID for people: the runtime's name, and the first 12 characters of the ID."""
        return f"{self.runtime}://{self.bare_id[:12]}" if self.runtime else self.bare_id[:12]


@dataclass(frozen=True, slots=True)
class StartTimes:
    """When the hook of a pinned instance started and its stop was sent (RFC 3339, the node's clock); "" for not yet."""

    hook: str = ""
    stop: str = ""  # If the CRD prunes isKilled, already set when the hook has ended (`RequestView.persist`)
    reload: str = ""  # When its reload has succeeded, so that it is not run again

    def after(self, earlier: "StartTimes") -> "StartTimes":
        """Return these times, but earlier ones if they are known, because a start is never later than recorded."""
        return StartTimes(earlier.hook or self.hook, earlier.stop or self.stop, earlier.reload or self.reload)


@dataclass(frozen=True, slots=True)
class RequestedContainer:
    """One entry of `spec.containers`."""

    name: str
    context: Pin | None = None
    image: str = ""  # Of its next instance, which another program sets in the pod; "" to restart the container


@dataclass(frozen=True, slots=True)
class Strategy:
    """`spec.strategy`, defaults filled in; seconds are whole."""

    failure_policy: FailurePolicy = FailurePolicy.FAIL
    ordered: bool = False
    force: bool = False
    grace_seconds: int | None = None
    unready_grace_seconds: int | None = None
    min_started_seconds: int = 0
    allow_pod_restart: bool = False
    action: Action = Action.UNSET
    reload_containers: tuple[str, ...] = ()  # With RELOAD: the containers that the user has named, () for all that can

    def grace(self, of_pod: int | None) -> int:
        """Return the grace period of a stop in seconds: its own, else the pod's, else Kubernetes' default."""
        given = (self.grace_seconds, of_pod, DEFAULT_GRACE_SECONDS)
        return next(seconds for seconds in given if seconds is not None)


@dataclass(frozen=True, slots=True)
class RecreateState:
    """One entry of `status.containerRecreateStates`."""

    name: str
    phase: StatePhase = StatePhase.PENDING
    message: str = ""
    is_killed: bool = False  # Whether the preStop hook has ended or StopContainer was sent: the hook must not run again
    reason: Reason = field(default=Reason.NONE, compare=False)
    """The reason of `message`, for programs. It is not written if nothing else has changed."""

    @property
    def started(self) -> bool:
        """Whether a hook or stop of the container has begun. CRDs may prune `isKilled`."""
        return self.is_killed or self.phase is StatePhase.RECREATING


@dataclass(frozen=True, slots=True)
class Status:
    """`status` of a request."""

    phase: RequestPhase = RequestPhase.EMPTY
    states: tuple[RecreateState, ...] = ()
    message: str = ""
    completion_time: str = ""  # RFC 3339; "" while the request is not completed
    reason: Reason = field(default=Reason.NONE, compare=False)  # As that of a state

    @property
    def quiet(self) -> bool:
        """Whether the phase is Pending, and no message is set."""
        written = self.message or self.completion_time or any(state.message for state in self.states)
        return self.phase is RequestPhase.PENDING and not written

    def state(self, name: str) -> RecreateState:
        """Return the state of a container, or a new Pending one if the status has none."""
        return next((state for state in self.states if state.name == name), RecreateState(name))


NO_PINS: Mapping[str, Pin] = MappingProxyType({})
NO_START_TIMES: Mapping[str, StartTimes] = MappingProxyType({})
_COMPLETED = Status(RequestPhase.COMPLETED)


@dataclass(frozen=True, slots=True)
class Request:
    """The fields of a ContainerRecreateRequest that crrd needs."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created: str  # creationTimestamp, RFC 3339 in UTC: sorts as it is
    pod_name: str
    pod_uid: str  # From the label; "" if no admission webhook has set it
    node_name: str
    containers: tuple[RequestedContainer, ...]
    strategy: Strategy = Strategy()
    whole_pod: bool = False
    """Whether the pod is restarted, with its init containers. `containers` are all others, and one with an image."""
    active: bool = True
    deleting: bool = False
    pinned: Mapping[str, Pin] = field(default_factory=lambda: NO_PINS)
    start_times: Mapping[str, StartTimes] = field(default_factory=lambda: NO_START_TIMES)
    """Start times of the instances in `pinned`, for a daemon that restarts."""
    unpinned: bool = False  # Whether another client removed or changed pins or start times: write them again
    unready_acquired: bool = False
    refresh: str = ""  # For a reload: ANNOTATION_REFRESH of the pod, for which kubelet refreshes its files
    aborted: str = ""  # When its run was aborted, RFC 3339; "" if not
    stopped: bool = False  # Whether its run works on the pod no more (ANNOTATION_STOPPED)
    deadline_seconds: int | None = None  # activeDeadlineSeconds
    ttl_seconds: int | None = None  # ttlSecondsAfterFinished
    finalizers: tuple[str, ...] = ()
    status: Status = Status()
    error: str = ""  # Why the request is invalid: a sentence that names the field; "" if it is valid
    spoilt: bool = False
    """Whether the only error is in an annotation that crrd writes. Any client may have edited it."""

    @property
    def key(self) -> str:
        """`namespace/name` of the request."""
        return f"{self.namespace}/{self.name}"

    @property
    def pod_key(self) -> str:
        """`namespace/name` of the pod: requests with the same key are served one after the other."""
        return f"{self.namespace}/{self.pod_name}"

    @property
    def completed(self) -> bool:
        """Whether the request has ended, so that its status does not change any more."""
        return self.status.phase is RequestPhase.COMPLETED or bool(self.status.completion_time)

    @property
    def live(self) -> bool:
        """Whether the node may still act on the request."""
        return self.active and not self.deleting and not self.completed

    @property
    def for_image(self) -> bool:
        """Whether another program sets the image of a container, so that no container is stopped for the request."""
        return any(container.image for container in self.containers)

    @property
    def reloads(self) -> bool:
        """Whether the containers reload their files, and no container is stopped for the request."""
        return self.strategy.action is Action.RELOAD

    @property
    def has_finalizer(self) -> bool:
        """Whether it has crrd's finalizer. Without it, the pod was not made unready for the request."""
        return FINALIZER in self.finalizers

    @property
    def settled(self) -> bool:
        """Whether it needs no more work: it is completed, and stays until a user deletes it."""
        return self.completed and not self.active and not self.has_finalizer and self.ttl_seconds is None

    def target(self, container: RequestedContainer) -> Pin | None:
        """Return the instance to stop, or None if it must be pinned first (steps 4 and 5 of docs/contract.md)."""
        pin = self.pinned.get(container.name)
        return pin if self.strategy.force else container.context or pin

    def start_times_of(self, name: str, pin: Pin | None) -> StartTimes:
        """Start times that the annotation records for this instance; StartTimes() if it records another instance."""
        pinned = self.pinned.get(name)
        same = pin is not None and pinned is not None and pinned.bare_id == pin.bare_id
        return self.start_times.get(name, StartTimes()) if same else StartTimes()

    def with_pins_of(self, previous: "Request") -> "Request":
        """Return the request with the previous pins and start times. Any client can edit the annotation."""
        pinned, start_times = {**self.pinned, **previous.pinned}, dict(previous.start_times)
        for name, times in self.start_times.items():
            pin = self.pinned.get(name)
            if pin is not None and pin.bare_id == pinned[name].bare_id:  # times count with the instance they are of
                start_times[name] = times.after(previous.start_times.get(name, StartTimes()))
        unpinned = (pinned, start_times) != (self.pinned, self.start_times)
        return replace(self, pinned=pinned, start_times=start_times, unpinned=unpinned)

    def slimmed(self) -> "Request":
        """Return a completed request without the fields that are not needed any more, to save memory."""
        if not self.completed:
            return self
        if self.settled:
            where = (self.namespace, self.name, self.uid, self.resource_version)
            return Request(*where, "", self.pod_name, "", "", (), active=False, status=_COMPLETED)
        status = replace(self.status, states=(), message="")
        return replace(self, containers=(), pinned=NO_PINS, start_times=NO_START_TIMES, error="", status=status)
