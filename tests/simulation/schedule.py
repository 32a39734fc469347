"""A schedule: the initial world of a run, and its events with their times. It depends only on the seed.

Every event contains all that it needs, so that leaving one out does not change the others. Shrinking relies on this.
Every fault ends, and after the last one the world is healthy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NODE = "node-1"
NAMESPACE = "default"
SHOP = "shop"  # Namespace of a run with an image
RUNTIME, OTHER_RUNTIME = "containerd", "other"
LONG_GRACE = 3600  # For requests that are given up: much longer than any run waits


@dataclass(frozen=True, slots=True)
class ContainerShape:
    """One container of a pod's spec, and how its program behaves."""

    name: str
    policy: str  # The effective restartPolicy
    hook: str = ""  # Kind of its preStop hook: exec, httpGet, sleep, or none
    hook_seconds: float = 0.0
    hook_code: int = 0
    term_seconds: float | None = 0.1  # Time to end after TERM; None for a program that ignores it
    term_code: int = 143
    start_seconds: float = 0.2
    ready_seconds: float = 0.0
    sidecar: bool = False
    own: str = ""  # Its own restartPolicy, if its spec has one
    action: str = ""  # Action of a restartPolicyRule for every exit code except 0
    successors: str = ""
    """How later instances become ready: never, alternating for a minute (flaps), or like the first one ("")."""
    runs: float = 0.0  # Of an init container: after how many seconds it ends by itself
    failures: int = 0  # Of an init container: how often it fails first, each time that it runs again

    @property
    def init(self) -> bool:
        """Whether it is an init container that ends."""
        return self.runs > 0

    @property
    def rules(self) -> list[dict[str, Any]]:
        """Return the restartPolicyRules of the spec."""
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
    inits: tuple[ContainerShape, ...] = ()  # Init containers that are no sidecars
    host: bool = False  # Whether it is on the host's network


@dataclass(frozen=True, slots=True)
class Shop:
    """A workload whose container `proxy` gets another image, and the run that gives it (`shop`)."""

    kind: str  # Deployment, StatefulSet or DaemonSet
    replicas: int
    containers: tuple[ContainerShape, ...]  # `app` and `proxy`
    adopt: bool = True  # Whether the template gets the image, too
    max_unavailable: int = 1
    budget: bool = False  # Whether a PodDisruptionBudget allows one unavailable pod
    grace: int | None = None  # The run's unready grace period
    gate: bool = False
    labelled: bool = True  # Whether the manager watches all pods of the namespace
    min_ready: int = 0
    partition: int = 0  # Pods of the first part; 0 for one part
    undo: bool = False  # Whether another run puts the old image back in the end
    rewrites: bool = False  # Whether a webhook replaces the tags of pods by digests
    tells_image: bool = True  # Whether the runtime tells with which image a container was started
    pull_seconds: float = 1.0
    missing: bool = False  # Whether the registry does not have the image
    lags: tuple[float, ...] = (0.1,)  # Seconds by which the controllers' caches are behind, in turn


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """A policy that restarts one container of the shop's pods when its ConfigMap changes (`changes`)."""

    name: str
    container: str
    steps: tuple[int | str, ...] = ()
    pause: int | None = None  # Seconds after each step
    confirms: bool = False  # Whether the owner allows each step
    judge: int = 0  # Seconds of the judgement, 0 for none
    max_restarts: int = 0
    failure_limit: int = 3
    metric: str = ""  # Its form: each value of a vector must hold (`vector`), or a difference (`baseline`)
    restores: bool = False
    after: tuple[str, ...] = ()
    settle: int = 3


@dataclass(frozen=True, slots=True)
class Changes:
    """A ConfigMap of the shop's containers, and the policies that bring its changes."""

    policies: tuple[PolicyShape, ...]
    uses: Mapping[str, str]  # Container -> how it has the data: env, file or subPath
    keyed: bool = True  # Whether containers use one key of it alone
    falls: float = 4.0  # Seconds after which a program with one kind of bad data ends
    lag: float = 0.1  # Seconds by which kubelet's ConfigMaps are late
    refresh: float = 0.5  # Seconds of kubelet's refresh of files
    period: float = 75.0  # Seconds between two of them without a cause
    scrape: float = 1.0  # Seconds by which metrics are late


@dataclass(frozen=True, slots=True)
class Setup:
    """The constants of a run."""

    pods: tuple[PodShape, ...]
    gone_in_stream: bool = False
    """Whether an expired version is reported inside the watch (an ERROR event) or as an HTTP status."""
    shows_back_off_late: bool = True  # As kubelet 1.36: CrashLoopBackOff is in the status only when the back-off ends
    unknown_has_stopped: bool = False  # Whether the runtime reports success for the stop of an unknown container
    relist: float = 1.0  # Kubelet's PLEG period
    latency: float = 0.004  # The API server's latency in seconds, each way
    single_watches: int = 8  # Largest number of pods that the daemon watches one by one
    flaps: bool = False  # Whether every other call of a failing runtime succeeds
    stops_at_once: int = 128  # Largest number of StopContainers that the daemon sends at once
    kubelet: int = 36  # Kubelet's minor version
    node_known: bool = True  # Whether the daemon may read its Node
    list_lag: float = 0.0  # Seconds for which ListContainers, and so kubelet, shows an ended container as running
    ignores_filters: bool = False  # Whether ListContainers returns all containers, whatever the filter
    late_ip: float = 0.0  # Seconds after which a pod's status has its IP
    policies: bool = False  # Whether the manager also carries out policies
    in_pieces: bool = False  # Whether a watch's lines arrive in pieces
    shop: Shop | None = None
    changes: Changes | None = None

    @property
    def size(self) -> int:
        """How many pods the daemon may be concerned with."""
        return len(self.pods) + (2 * self.shop.replicas + 6 if self.shop is not None else 0)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens. `at` is in seconds after the start of the run."""

    at: float
    kind: str
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it is over, without a request's own waits."""
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


def is_own(obj: Mapping[str, Any]) -> bool:
    """Whether an object is not of another team, see `teams`."""
    return bool(obj["metadata"].get("namespace", NAMESPACE) == NAMESPACE)
