"""The values that the rest of crrd talks about: requests, their status, and what was observed.

Everything here is immutable and knows nothing of JSON, protobuf or time zones. Reading and writing the Kubernetes
shape of a request is `manifest`'s work, deciding what to do with it `decide`'s.

Times are seconds of the node's monotonic clock unless a name says otherwise; `created` of a request stays the
RFC 3339 string of the API server, which sorts as time does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

GROUP = "apps.kruise.io"
VERSION = "v1alpha1"
KIND = "ContainerRecreateRequest"
PLURAL = "containerrecreaterequests"
API_VERSION = f"{GROUP}/{VERSION}"

LABEL_POD_UID = "crr.apps.kruise.io/pod-uid"
LABEL_NODE_NAME = "crr.apps.kruise.io/node-name"
LABEL_ACTIVE = "crr.apps.kruise.io/active"
ANNOTATION_UNREADY_ACQUIRED = "crr.apps.kruise.io/unready-acquired"
ANNOTATION_PINNED = "crr.apps.kruise.io/pinned-containers"
CONDITION_UNREADY_GRACE = "PreRecreateGrace"
"""The condition by which OpenKruise's newer managers say what the annotation unready-acquired says."""
READINESS_GATE = "KruisePodReady"
ANNOTATION_MIRROR = "kubernetes.io/config.mirror"
"""On the mirror that kubelet makes of a static pod in the API."""
ANNOTATION_CONFIG_HASH = "kubernetes.io/config.hash"
"""On a static pod and its mirror: the UID that the pod has on its node (pkg/kubelet/types/pod_update.go)."""

DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' default of a pod's terminationGracePeriodSeconds."""
MINIMUM_GRACE_SECONDS = 2
"""Kubelet's minimumGracePeriodInSeconds: the least that a container gets after its preStop hook."""


class RequestPhase(StrEnum):
    """`status.phase` of a request; EMPTY is a request that nobody has answered yet."""

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


class FailurePolicy(StrEnum):
    """What a failed container means for the rest of its request."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class RestartPolicy(StrEnum):
    """When kubelet starts an exited container again (of a pod, or of one container of it)."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class InstanceState(StrEnum):
    """CRI's ContainerState of one container instance."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class ContainerKind(StrEnum):
    """Where in the pod's spec a container stands; only the first two can be recreated."""

    REGULAR = "container"
    SIDECAR = "native sidecar"
    INIT = "init container"
    EPHEMERAL = "ephemeral container"


@dataclass(frozen=True, slots=True)
class Pin:
    """One container instance by name of its runtime, ID and restart count (a statusContext)."""

    container_id: str
    """With the runtime's name in front, as in the API: `containerd://<id>`."""
    restart_count: int = 0

    @property
    def runtime(self) -> str:
        """The runtime's name, "" where the ID has none."""
        runtime, separator, _ = self.container_id.partition("://")
        return runtime if separator else ""

    @property
    def bare_id(self) -> str:
        """The ID as the runtime itself knows it."""
        return self.container_id.partition("://")[2] or self.container_id


@dataclass(frozen=True, slots=True)
class RequestedContainer:
    """One entry of `spec.containers`."""

    name: str
    context: Pin | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """`spec.strategy`, defaults filled in; seconds are whole."""

    failure_policy: FailurePolicy = FailurePolicy.FAIL
    ordered: bool = False
    force: bool = False
    grace_seconds: int | None = None
    unready_grace_seconds: int | None = None
    min_started_seconds: int = 0


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One entry of `status.containerRecreateStates`."""

    name: str
    phase: StatePhase = StatePhase.PENDING
    message: str = ""
    is_killed: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """`status` of a request."""

    phase: RequestPhase = RequestPhase.EMPTY
    states: tuple[ContainerState, ...] = ()
    message: str = ""
    completion_time: str = ""
    """RFC 3339; "" while the request is not completed."""

    def state(self, name: str) -> ContainerState:
        """The state of one container, a fresh Pending one where none was written yet."""
        return next((state for state in self.states if state.name == name), ContainerState(name))


NO_PINS: Mapping[str, Pin] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    """One ContainerRecreateRequest, as far as crrd needs it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created: str
    """creationTimestamp, RFC 3339 in UTC: sorts as it is."""
    pod_name: str
    pod_uid: str
    """From the label; "" where no admission webhook set it."""
    node_name: str
    containers: tuple[RequestedContainer, ...]
    strategy: Strategy = Strategy()
    active: bool = True
    deleting: bool = False
    pinned: Mapping[str, Pin] = field(default_factory=lambda: NO_PINS)
    unready_acquired: bool = False
    status: Status = Status()
    error: str = ""
    """Why the object cannot be served at all: a sentence that names the field; "" for a sound one."""

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
        """Whether the request has ended; nothing changes it any more."""
        return self.status.phase is RequestPhase.COMPLETED or bool(self.status.completion_time)

    @property
    def live(self) -> bool:
        """Whether the node may still act on the request."""
        return self.active and not self.deleting and not self.completed


@dataclass(frozen=True, slots=True)
class Hook:
    """A preStop handler as kubelet wrote it on the container, or why it cannot be read."""

    kind: str
    """`exec`, `httpGet`, `sleep` or `tcpSocket`; "invalid" with the reason in `error`."""
    command: tuple[str, ...] = ()
    seconds: float = 0.0
    host: str = ""
    """httpGet: "" means the pod's IP."""
    port: int | str = 0
    """httpGet: a number, or the name of one of the container's ports."""
    path: str = "/"
    scheme: str = "http"
    headers: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One container instance as the runtime knows it; identity comes from kubelet's labels on it."""

    id: str
    """Bare, without the runtime's name."""
    runtime: str
    """The runtime's name, as in front of container IDs in the API."""
    name: str
    pod_namespace: str
    pod_name: str
    pod_uid: str
    state: InstanceState
    created_at: int
    """Nanoseconds since the epoch, the runtime's own clock: for ordering only."""
    restart_count: int = 0
    grace_seconds: int | None = None
    """The pod's terminationGracePeriodSeconds as kubelet wrote it on the container."""
    hook: Hook | None = None
    ports: tuple[tuple[str, int], ...] = ()
    """Named ports of the container: (name, number)."""
    exit_code: int | None = None
    """Of an exited instance, where it was asked for."""
    running_seconds: float | None = None
    """For how long a running instance has been running, where it was asked for."""

    @property
    def pin(self) -> Pin:
        """The instance as a statusContext names it."""
        return Pin(f"{self.runtime}://{self.id}", self.restart_count)


@dataclass(frozen=True, slots=True)
class PodContainer:
    """One container of the pod's spec, and its status in the API."""

    name: str
    kind: ContainerKind = ContainerKind.REGULAR
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    """The effective one: the container's own where it has one, else the pod's."""
    container_id: str = ""
    running: bool = False
    ready: bool = False
    started: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """The few fields of a pod that the node needs."""

    namespace: str
    name: str
    uid: str
    containers: Mapping[str, PodContainer]
    deleting: bool = False
    phase: str = "Running"
    readiness_gate: bool = False
    """Whether the pod carries the readiness gate KruisePodReady."""
    pod_ip: str = ""
    static_uid: str = ""
    """UID of a static pod on its node: the API has a mirror of it, which has a UID of its own."""

    @property
    def runtime_uid(self) -> str:
        """The UID by which the runtime knows the pod: kubelet's label `io.kubernetes.pod.uid`."""
        return self.static_uid or self.uid

    @property
    def ended(self) -> bool:
        """Whether the pod has run to its end: kubelet starts nothing in it any more."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class HookResult:
    """How a preStop hook of this process' life ended."""

    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """The last attempt of this process' life to stop one instance."""

    count: int
    """How many attempts were made so far."""
    first_sent: float
    """Monotonic time at which the first one was sent."""
    ended: float
    """Monotonic time at which the last one returned."""
    error: str = ""
    """"" when the runtime reported success."""


@dataclass(frozen=True, slots=True)
class Observation:
    """All that is known of one pod at one instant; what `decide` decides on."""

    node_name: str
    runtime_names: frozenset[str]
    """Names of the runtimes that were asked, e.g. {"containerd"}."""
    instances: tuple[Instance, ...] = ()
    """Every instance of the pod's containers, exited ones too."""
    foreign: Mapping[str, Instance | None] = field(default_factory=dict)
    """Container IDs named by a request that are not the pod's: what the runtime says of each, None for
    one that it does not know. An ID that is not in here was not looked up."""
    pod: PodView | None = None
    pod_gone: bool = False
    """The pod was seen on this node and is there no more, or a whole list of the node's pods did not have it."""
    busy: Mapping[str, str] = field(default_factory=dict)
    """Bare container IDs with a hook or a stop under way -> UID of the request that asked for it."""
    hooks: Mapping[str, HookResult] = field(default_factory=dict)
    """Bare container IDs whose hook has ended in this process' life."""
    stops: Mapping[str, StopAttempt] = field(default_factory=dict)
    """Bare container IDs -> attempts of this process' life to stop them."""
    first_seen: Mapping[str, float] = field(default_factory=dict)
    """Request UID -> monotonic time at which this process first saw it."""
    unready_seen: Mapping[str, float] = field(default_factory=dict)
    """Request UID -> monotonic time at which this process first saw the mark unready-acquired."""
    utc: str = ""
    """The node's wall clock, RFC 3339 in UTC: for completionTime only."""
    sent: Mapping[str, str] = field(default_factory=dict)
    """Bare container IDs whose stop was sent in this process' life -> UID of the request that asked for it."""
    pods_since: float | None = None
    """Monotonic time since which the node's pods are known; None while they are not."""
    draining: bool = False
    """The daemon is going down: no new hooks, no new stops."""

    def newest(self, name: str) -> Instance | None:
        """The current instance of a container: the newest by creation (facts: kubelet-on-cri)."""
        own = [instance for instance in self.instances if instance.name == name]
        return max(own, key=lambda instance: (instance.created_at, instance.restart_count), default=None)

    def instance(self, bare_id: str) -> Instance | None:
        """The pod's instance with this ID."""
        return next((instance for instance in self.instances if instance.id == bare_id), None)
