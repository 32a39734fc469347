"""What was observed: each request with this process' work for it, their pod in the runtime and the API, and the node.

None of these sources is read at the same instant as the others, so each carries the monotonic time at which it was
true, and `decide` reasons with "older than". What this process did belongs to an intent, one request and one container
instance; `node.pods` says for how long it is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf

from crrd.core.api.pod import Pod
from crrd.core.api.time import rfc3339
from crrd.core.api.types import MINIMUM_GRACE_SECONDS, Pin, Request
from crrd.kubelet.runtime_status import ContainerState, newest

STOP_ATTEMPTS = 8
STOP_PATIENCE = 120.0  # Step 9: a failing stop is abandoned after this many attempts and seconds
LATE_STOP_SECONDS = 5.0
"""Seconds after the grace period of a hook in which its stop may still be sent, though the request has ended."""
HASTE_SECONDS = 10.0  # For this long after a stop whose start is not persisted, looks at the runtime must be short
NETWORK_READY = "NetworkReady"  # A condition of CRI's Status


class HookKind(StrEnum):
    """The kinds of preStop handlers."""

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
    image: str = ""  # As in the pod's spec; "" if the runtime does not tell it (`user_specified_image`)
    hash: str = ""  # Kubelet's hash of the container for which it started the instance
    sandbox: str = ""  # Bare ID of the sandbox in which it was created

    @property
    def pin(self) -> Pin:
        """The instance as a statusContext names it."""
        return Pin(f"{self.runtime}://{self.id}", self.restart_count)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox of a pod as the runtime knows it. Kubelet creates the next one when it restarts the whole pod."""

    id: str  # Bare, without the runtime's name
    runtime: str
    pod_namespace: str
    pod_name: str
    pod_uid: str
    ready: bool
    created_at: int  # Nanoseconds since the epoch, the runtime's own clock
    attempt: int = 0  # Number of the sandbox in its pod, from 0
    request_uid: str = ""  # Of the request for which crrd made it; "" if kubelet made it
    reloads: Mapping[str, str] = field(default_factory=dict)  # The pod's ANNOTATION_RELOAD then, by container

    @property
    def pin(self) -> Pin:
        """The sandbox as the annotation pinned-containers names it."""
        return Pin(f"{self.runtime}://{self.id}", self.attempt)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a container did; output is cut to what the runtime's client keeps."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class HookResult:
    """How a preStop hook or a reload ended."""

    seconds: float
    error: str = ""
    output: str = ""  # Of a reload that succeeded, on one line


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """The last attempt to stop an instance that has returned."""

    count: int  # How many attempts were made so far
    ended: float  # Monotonic time at which it returned
    error: str = ""  # "" when the runtime reported success


NO_ATTEMPT = StopAttempt(0, -inf)
NO_PIN = Pin("")


class WorkKind(StrEnum):
    """The kinds of work on an instance."""

    HOOK = "preStop hook"
    STOP = "stop"
    RELOAD = "reload"
    SANDBOX = "second sandbox"  # Kubelet stops all containers of the pod because of it


@dataclass(frozen=True, slots=True)
class Work:
    """What this process has done for one request to one container instance or sandbox; times are monotonic."""

    name: str = ""  # The container's, or WHOLE_POD
    pin: Pin = NO_PIN
    under_way: WorkKind | None = None
    until: float | None = None  # End of the timeout of the hook or stop under way; None until it is sent
    hook_began: float | None = None
    hook_until: float | None = None  # When the grace period in which the hook began is over
    hook_result: HookResult | None = None
    reload_result: HookResult | None = None
    reload_ended: float | None = None
    stop_sent: float | None = None  # When a stop was sent for the first time
    spent_before: float = 0.0  # Seconds of the grace period that were used up before
    beside: Mapping[str, str] | None = None
    """Container name -> bare ID ("" for none) of what this stop may restart, too, as of the decision to stop. None if
    this process has sent no stop."""
    last_stop: StopAttempt | None = None
    pod_uid: str = ""  # The pod's in the runtime
    pod_grace: float = 0.0  # Grace period of the pod whose second sandbox it is, in seconds

    @property
    def hook_ended(self) -> float | None:
        """Monotonic time at which the hook ended, or None."""
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
class ObservedRequest:
    """A request, what this process knows of it, and what it has done for it. Times are monotonic."""

    request: Request
    first_seen: float  # When this process first saw it
    unready_seen: float | None = None  # The same for its mark unready-acquired; None without the mark
    left: bool = False  # Whether it was deleted, or is not active any more
    pin_error: str = ""  # Why the last write of its pins failed
    works: Mapping[str, Work] = field(default_factory=dict)  # By bare container ID, in the order in which they began

    @property
    def live(self) -> bool:
        """Whether this node may still act on the request."""
        return not self.left and self.request.live

    @property
    def servable(self) -> bool:
        """Whether it is live and valid, so that its containers can be recreated."""
        return self.live and not self.request.error

    def work_on(self, name: str) -> Work:
        """Return the work on the container of this name, or NO_WORK."""
        return next((work for work in self.works.values() if work.name == name), NO_WORK)

    def stop_sent(self, name: str) -> bool:
        """Whether the container was stopped for this request, or is being stopped."""
        sent = any(work.name == name and work.stop_sent is not None for work in self.works.values())
        return sent or self.request.status.state(name).is_killed

    def is_target(self, instance: Instance) -> bool:
        """Whether the request names this instance as one that has to go."""
        targets = (self.request.target(container) for container in self.request.containers)
        return any(target is not None and target.bare_id == instance.id for target in targets)


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod in the runtime and in the API. Times are monotonic."""

    instances: tuple[Instance, ...] = ()  # Every instance of its containers, exited ones too
    listed_at: float = 0.0  # When their list was requested
    runtime_error: str = ""  # Why the runtime did not answer, so that no instance is known
    foreign: Mapping[str, Instance | None] = field(default_factory=dict)
    """IDs that a request names and that are not the pod's, with the instance, or None if the runtime has none."""
    running_since: Mapping[str, float] = field(default_factory=dict)  # Bare container ID -> when first seen running
    endings: Mapping[str, Ending] = field(default_factory=dict)  # Container name -> since when it has none that runs
    hashes: Mapping[str, str] = field(default_factory=dict)  # Bare container ID -> kubelet's hash, of removed ones, too
    pod: Pod | None = None  # In the API
    pod_at: float = 0.0  # When this version of it came
    refreshed_at: float = 0.0  # When it came with its present annotation for the refresh of files (`Pod.refresh`)
    gone: bool = False
    """Whether the watch reports that the pod has left this node. Before a decision, the API server is asked."""
    known_since: float | None = None  # Since when it is known whether the node has the pod
    answer: ApiAnswer | None = None  # Requested if `decide` needs it before it completes a request
    api_silent: bool = False  # Whether the last lookup failed
    deleting_uid: str = ""  # UID of the pod that was last seen in deletion, even if no watch reports it any more
    sandboxes: tuple[Sandbox, ...] = ()  # All of its sandboxes, if a request for the whole pod is current or was
    images: Mapping[str, bool] = field(default_factory=dict)
    """Images that requests wait for, and whether the node has each, as far as the runtime was asked."""
    unanswered: Mapping[Pin | str | None, str] = field(default_factory=dict)
    """What was looked up and is not answered yet: an ID (`foreign`), an image (`images`), or None for the version of
kubelet. With the reason, or "" if the answer may come any moment."""
    may_stop: bool = True  # Whether this pod has a stop slot; the number of stops at once on a node is limited
    unready: Mapping[str, str] = field(default_factory=dict)  # Conditions of its runtime that are false, and why

    def instance(self, bare_id: str) -> Instance | None:
        """The pod's instance with this ID."""
        return next((instance for instance in self.instances if instance.id == bare_id), None)

    def newest(self, name: str) -> Instance | None:
        """The current instance of the container of this name."""
        return newest(self.instances, name)


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """The node, and this process on it."""

    name: str
    runtimes: frozenset[str]  # Names of its runtimes, e.g. {"containerd"}
    wall: float = 0.0  # Its wall clock, in seconds since the epoch
    kubelet_minor: int | None = None  # Kubelet's minor version; None if unknown or not needed
    kubelet_silent_since: float | None = None  # Monotonic; None while kubelet answers, or if it is not checked
    prunes_is_killed: bool = False  # Whether the CRD drops isKilled, so that the annotation must record it
    draining: bool = False  # Whether the daemon shuts down, and begins no new hooks or stops

    @property
    def utc(self) -> str:
        """Its wall clock, RFC 3339 in UTC."""
        return rfc3339(datetime.fromtimestamp(self.wall, UTC))


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that `decide` knows about one pod."""

    pod: ObservedPod
    requests: tuple[ObservedRequest, ...]  # In any order
    node: ObservedNode
    now: float  # Monotonic seconds, the same clock as in the other values
