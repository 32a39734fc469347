"""What was observed of one pod: its containers in the runtime, the pod in the API, this process' own work on them.

None of these sources is read at the same instant as the others, so each carries the monotonic time at which it was
true, and `decide` reasons with "older than". What this process did belongs to an intent, one request and one container
instance; `node.pods` says for how long it is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from crrd.core.api.pod import Pod
from crrd.core.api.types import MINIMUM_GRACE_SECONDS, Pin, Request
from crrd.kubelet.runtime_status import ContainerState

STOP_ATTEMPTS = 8
STOP_PATIENCE = 120.0  # Step 9: a failing stop is abandoned after this many attempts and seconds
LATE_STOP_SECONDS = 5.0
"""Seconds after the grace period of a hook in which its stop may still be sent, though the request has ended."""
HASTE_SECONDS = 10.0  # For this long after a stop whose start is not persisted, looks at the runtime must be short


class HookKind(StrEnum):
    """What a preStop handler does."""

    EXEC = "exec"
    HTTP_GET = "httpGet"
    SLEEP = "sleep"
    TCP_SOCKET = "tcpSocket"  # The API server refuses it as preStop, and kubelet has no such handler
    INVALID = "invalid"  # The container's annotation cannot be parsed; `error` says why


@dataclass(frozen=True, slots=True)
class Hook:
    """A preStop handler as kubelet wrote it on the container."""

    kind: HookKind
    command: tuple[str, ...] = ()
    seconds: float = 0.0
    host: str = ""  # httpGet: "" means the pod's IP
    port: int | str = 0  # httpGet: a number, or the name of one of the container's ports
    path: str = "/"
    scheme: str = "http"
    headers: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One container instance as the runtime knows it; identity comes from kubelet's labels on it."""

    id: str  # Bare, without the runtime's name
    runtime: str  # The runtime's name, as in front of container IDs in the API
    name: str
    pod_namespace: str
    pod_name: str
    pod_uid: str
    state: ContainerState
    created_at: int  # Nanoseconds since the epoch, the runtime's own clock
    restart_count: int = 0
    grace_seconds: int | None = None  # The pod's terminationGracePeriodSeconds as kubelet wrote it on the container
    hook: Hook | None = None
    ports: tuple[tuple[str, int], ...] = ()  # Named ports of the container: (name, number)

    @property
    def pin(self) -> Pin:
        """The instance as a statusContext names it."""
        return Pin(f"{self.runtime}://{self.id}", self.restart_count)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a container did; output is cut to what the runtime's client keeps."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class HookResult:
    """How a preStop hook ended."""

    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """The last attempt to stop an instance that has returned."""

    count: int  # How many attempts were made so far
    ended: float  # Monotonic time at which it returned
    error: str = ""  # "" when the runtime reported success


NO_PIN = Pin("")


class WorkKind(StrEnum):
    """The kinds of work on an instance."""

    HOOK = "preStop hook"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Work:
    """What this process has done for one request to one container instance; times are monotonic."""

    name: str = ""  # The container's
    pin: Pin = NO_PIN
    under_way: WorkKind | None = None
    until: float | None = None  # End of the timeout of the hook or stop under way; None until it is sent
    hook_began: float | None = None
    hook_until: float | None = None  # When the grace period in which the hook began is over
    hook_result: HookResult | None = None
    stop_sent: float | None = None  # When a stop was sent for the first time
    spent_before: float = 0.0  # Seconds of the grace period that were used up before
    beside: Mapping[str, str] = field(default_factory=dict)
    """Container name -> bare ID of the other instances that ran when the stop was decided on; only where this stop may
    restart them, too."""
    last_stop: StopAttempt | None = None
    pod_uid: str = ""  # The pod's in the runtime

    @property
    def hook_ended(self) -> float | None:
        """Monotonic time at which the hook ended, None where none has."""
        result, began = self.hook_result, self.hook_began
        return None if result is None or began is None else began + result.seconds

    def stop_still_due(self, now: float) -> bool:
        """Whether a hook has begun and its stop, which has not succeeded or been abandoned, is not too late."""
        return now < self.stop_until and not self.stopped and not self.stop_abandoned

    @property
    def stop_until(self) -> float:
        """Monotonic time until which the stop after a hook is due, even if the hook used the whole grace period."""
        return -inf if self.hook_until is None else self.hook_until + LATE_STOP_SECONDS

    @property
    def stop_abandoned(self) -> bool:
        """Whether its stop has failed so often, and for so long, that it is not retried (step 9)."""
        last = self.last_stop
        if last is None or not last.error or self.stop_sent is None:
            return False
        return last.count >= STOP_ATTEMPTS and last.ended >= self.stop_sent + STOP_PATIENCE

    def stop_seconds(self, grace: float, now: float) -> float:
        """Step 9: StopContainer's timeout: what hook and earlier attempts left of this grace period, at least 2 s."""
        hook = self.hook_result.seconds if self.hook_result is not None else 0.0
        stopping = now - self.stop_sent if self.stop_sent is not None else 0.0
        return max(float(MINIMUM_GRACE_SECONDS), grace - hook - stopping)

    @property
    def stopped(self) -> bool:
        """Whether the runtime has reported that the instance is stopped."""
        return self.last_stop is not None and not self.last_stop.error

    def hook_unrecorded(self, request: Request) -> bool:
        """Whether a hook has begun and the request does not yet record its end, for a restarted daemon (step 12).

        isKilled records it, or the annotation if the CRD prunes isKilled.
        """
        state = request.status.state(self.name)
        recorded = state.phase.final or state.is_killed or request.start_times_of(self.name, self.pin).stop
        return not recorded and (self.under_way is WorkKind.HOOK or self.hook_began is not None)

    def stop_unrecorded(self, request: Request, now: float) -> bool:
        """Whether a stop was sent a short while ago, has not succeeded, and its request does not record it yet."""
        if self.stop_sent is None or self.stopped or now >= self.stop_sent + HASTE_SECONDS:
            return False
        return not request.start_times_of(self.name, self.pin).stop


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Ending:
    """When an instance was first seen as ended, or a container as having no instance."""

    at: float  # Monotonic
    wall: float  # Seconds since the epoch, the node's clock
    instance: str = ""  # Bare ID of the ended instance, "" if there was none


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The response to a get of the pod by name, which no cache answered."""

    pod: Pod | None
    asked_at: float  # Monotonic time; the response does not count for requests that came later


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that `decide` knows about one pod. Times are monotonic."""

    node_name: str
    runtime_names: frozenset[str]  # Names of the runtimes that were asked, e.g. {"containerd"}.
    runtime_error: str = ""  # Why the runtime did not answer, so that no instance is known
    instances: tuple[Instance, ...] = ()  # Every instance of the pod's containers, exited ones too
    listed_at: float = 0.0  # Monotonic time at which their list was requested
    foreign: Mapping[str, Instance | None] = field(default_factory=dict)
    """IDs that a request names and that are not the pod's, with the instance, or None if the runtime has none."""
    pod: Pod | None = None
    pod_at: float = 0.0  # Monotonic time at which this version of the pod came
    pod_gone: bool = False
    """Whether the watch reports that the pod has left this node. Before a decision, the API server is asked."""
    api_answer: ApiAnswer | None = None  # Requested if `decide` needs it before it completes a request
    api_silent: bool = False  # Whether the last lookup failed
    deleting_uid: str = ""  # UID of the pod that was last seen in deletion, even if no watch reports it any more
    works: Mapping[tuple[str, str], Work] = field(default_factory=dict)  # By request UID and bare container ID
    running_since: Mapping[str, float] = field(default_factory=dict)  # Bare container ID -> when first seen running
    endings: Mapping[str, Ending] = field(default_factory=dict)  # Container name -> since when it has none that runs
    ended: tuple[Request, ...] = ()
    """Requests that have ended, are gone or are invalid, while the stop after their hook is still due."""
    first_seen: Mapping[str, float] = field(default_factory=dict)  # Request UID -> when this process first saw it
    unready_seen: Mapping[str, float] = field(default_factory=dict)  # The same for its mark unready-acquired
    utc: str = ""  # The node's wall clock, RFC 3339 in UTC
    wall: float = 0.0  # The same in seconds since the epoch
    known_since: float | None = None  # Time since which it is known whether the node has the pod, or None
    kubelet_minor: int | None = None  # Kubelet's minor version; None if unknown or not needed
    kubelet_silent_since: float | None = None  # None while kubelet answers, or if it is not checked
    unpinned: frozenset[str] = frozenset()  # UIDs of requests whose pins another client removed or changed
    prunes_is_killed: bool = False  # Whether the CRD drops isKilled, so that the annotation must record it
    pin_errors: Mapping[str, str] = field(default_factory=dict)  # Request UID -> why the last write of its pins failed
    may_stop: bool = True  # Whether this pod has a stop slot; the number of stops at once on a node is limited
    draining: bool = False  # Whether the daemon shuts down, and begins no new hooks or stops

    def instance(self, bare_id: str) -> Instance | None:
        """The pod's instance with this ID."""
        return next((instance for instance in self.instances if instance.id == bare_id), None)
