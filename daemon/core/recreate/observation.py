"""What was observed of one pod at one instant: its containers in the runtime, and this process' own work on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from daemon.core.api.pod import Pod
from daemon.core.api.types import Pin
from daemon.kubelet.runtime_status import ContainerState, newest


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
    state: ContainerState
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
    pod: Pod | None = None
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
        """The current instance of a container."""
        return newest(self.instances, name)

    def instance(self, bare_id: str) -> Instance | None:
        """The pod's instance with this ID."""
        return next((instance for instance in self.instances if instance.id == bare_id), None)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a container did; output is cut to what the runtime client keeps."""

    exit_code: int
    stdout: bytes
    stderr: bytes
