"""A schedule: the world that a run begins with, and what happens in it and when. All of it follows from a seed.

Every event carries all that it needs, so that leaving one out leaves the others as they were: shrinking relies on it.
Every fault ends; after the last one the world is healthy.
"""

from dataclasses import dataclass, field
from typing import Any

NODE = "node-1"
NAMESPACE = "default"
RUNTIME, OTHER_RUNTIME = "simulated", "other"
LONG_GRACE = 3600
"""Of requests that are given up: far more than anybody waits for in a run."""


@dataclass(frozen=True, slots=True)
class ContainerShape:
    """One container of a pod's spec, and how its program behaves."""

    name: str
    policy: str
    """The effective restartPolicy."""
    hook: str = ""
    """Kind of its preStop hook: exec, httpGet, sleep, or none."""
    hook_seconds: float = 0.0
    hook_code: int = 0
    term_seconds: float | None = 0.1
    """How long it takes to end after TERM; None for a program that does not listen."""
    term_code: int = 143
    start_seconds: float = 0.2
    ready_seconds: float = 0.0
    sidecar: bool = False
    own: str = ""
    """Its own restartPolicy, where its spec has one."""
    action: str = ""
    """Of a restartPolicyRule for every exit code but 0."""
    successors: str = ""
    """How later instances get ready: never, or in turns (flaps) for a minute; "" for as the first one does."""

    @property
    def rules(self) -> list[dict[str, Any]]:
        """restartPolicyRules as the spec has them."""
        other_codes = {"operator": "NotIn", "values": [0]}
        return [{"action": self.action, "exitCodes": other_codes}] if self.action else []


@dataclass(frozen=True, slots=True)
class PodShape:
    """One pod as its owner writes it."""

    name: str
    policy: str
    containers: tuple[ContainerShape, ...]
    grace: int | None = 30
    gate: bool = False
    static: bool = False
    runtime: str = RUNTIME


@dataclass(frozen=True, slots=True)
class Setup:
    """What does not change in a run."""

    pods: tuple[PodShape, ...]
    gone_in_stream: bool = False
    """Whether an expired version is said inside the watch (an ERROR event) or as an HTTP status."""
    shows_back_off_late: bool = True
    """As kubelet 1.36: CrashLoopBackOff stands in the status only when the back-off ends."""
    unknown_has_stopped: bool = False
    """Whether the runtime calls a stop of an unknown container a success."""
    relist: float = 1.0
    """Kubelet's PLEG period."""
    latency: float = 0.004
    """The API server's, seconds each way."""
    single_watches: int = 8
    """How many pods the daemon watches one by one."""
    flaps: bool = False
    """Whether a runtime that errs answers every other call well."""
    stops_at_once: int = 128
    """How many StopContainers the daemon sends at once."""
    kubelet: int = 36
    """Minor version of kubelet."""
    node_known: bool = True
    """Whether the daemon may read its Node."""
    list_lag: float = 0.0
    """Seconds for which ListContainers, and so kubelet, shows an ended container as running."""
    ignores_filters: bool = False
    """Whether ListContainers answers with all containers, whatever was asked for."""
    late_ip: float = 0.0
    """Seconds after which a pod's status has its IP."""
    in_pieces: bool = False
    """Whether a watch's lines come in pieces."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something happens. `at` is seconds after the run's begin."""

    at: float
    kind: str
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it is over; a request's own waits are not counted."""
        return self.at + float(self.about.get("seconds", 0.0))

    def __str__(self) -> str:
        told = " ".join(f"{key}={value}" for key, value in self.about.items() if value not in (None, "", False))
        return f"{self.at:8.3f} {self.kind} {told}".rstrip()


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run."""

    seed: int
    setup: Setup
    events: tuple[Event, ...]

    @property
    def end(self) -> float:
        """When the last fault is over."""
        return max((event.end for event in self.events), default=0.0)
