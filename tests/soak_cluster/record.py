"""What was seen on a real cluster, as values. `judge` reads nothing else.

All times are seconds since the epoch by the clock of the machine on which the soak runs. A time of the API is the time
at which a watch reported it, so it can be late, but is never early. Where it says so, it is a time in the object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SUCCEEDED, FAILED = "Succeeded", "Failed"


class Word(StrEnum):
    """What a container writes to its file. Only `START` has a value: the configuration that it started with."""

    START = "start"
    HOOK = "hook"  # Its preStop hook begins
    HOOKED = "hooked"  # The hook ends
    TERM = "term"  # It has received SIGTERM
    END = "end"  # It exits after that
    CRASH = "crash"  # It exits by itself


class Part(StrEnum):
    """What a fault can hit."""

    NODE = "node daemon"
    MANAGER = "manager"
    KUBELET = "kubelet"
    RUNTIME = "runtime"
    API = "API server"
    ETCD = "etcd"
    CONTROLLERS = "controllers"  # kube-controller-manager and kube-scheduler
    RUN = "run"  # A process of `kubectl recreate`


class Kind(StrEnum):
    """What a fault does."""

    KILL = "kill -9"
    FREEZE = "SIGSTOP"
    LOGS = "full disk for logs"
    CLOCK = "clock step"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a container has written."""

    at: float
    word: Word
    value: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One container ID in the runtime, and what this container has written."""

    id: str
    pod: str  # UID
    container: str
    started: float
    ended: float | None = None
    sandbox: str = ""
    image: str = ""
    lines: tuple[Line, ...] = ()

    def times(self, word: Word) -> list[float]:
        """Return when it wrote this word."""
        return [line.at for line in self.lines if line.word is word]

    @property
    def stopped(self) -> float | None:
        """When something outside began to stop it: its first hook or signal, or its end. None if nothing did."""
        if self.times(Word.CRASH):
            return None
        return min([*self.times(Word.HOOK), *self.times(Word.TERM)], default=self.ended)


@dataclass(frozen=True, slots=True)
class Request:
    """A request, from its creation to its end."""

    uid: str
    name: str
    pod: str  # UID
    created: float
    containers: tuple[str, ...]
    stamp: float = 0.0  # Its creationTimestamp, which is earlier than `created` if a watch was late
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Container -> the instances that it means: of its statusContext or, with forceRecreate, of its pins."""
    killed: Mapping[str, float] = field(default_factory=dict)  # Container -> when the request said isKilled
    failed_hooks: frozenset[str] = frozenset()  # Containers of which it said that the hook had failed
    phases: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # Container -> final phase, and when
    completed: float | None = None
    deleting: float | None = None  # When its deletion began
    gone: float | None = None
    deadline: float | None = None  # Seconds
    ttl: float | None = None  # Seconds
    run: str = ""
    image: str = ""
    by_user: bool = False  # Whether the soak has deleted it

    @property
    def over(self) -> float | None:
        """When it was completed, or its deletion began."""
        return min((at for at in (self.completed, self.deleting) if at is not None), default=None)

    def open_at(self, at: float) -> bool:
        """Whether it existed then and had not ended."""
        return self.created <= at and (self.over is None or self.over > at)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, from its creation to its end."""

    uid: str
    name: str
    workload: str
    ready: tuple[tuple[float, bool], ...] = ()  # Each change of its condition Ready, by the time in the condition
    images: tuple[tuple[float, str, str], ...] = ()  # Each change of its spec: when, container, image
    holders: tuple[str, ...] = ()  # Names of the requests for which it is unready in the end
    deleting: float | None = None

    def unready_since(self, at: float) -> float | None:
        """Return since when it was not ready then, or None if it was."""
        since: float | None = None
        for when, ready in self.ready:
            if when > at:
                break
            since = None if ready else when if since is None else since
        return since


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, from its beginning until what it hit was started or continued."""

    at: float
    until: float
    kind: Kind
    part: Part

    def __str__(self) -> str:
        return f"{self.kind} of {self.part} for {self.until - self.at:.1f} s"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy in the end, and the edits of the ConfigMap that its containers use."""

    name: str
    workload: str
    container: str
    edits: tuple[tuple[float, str], ...] = ()
    conditions: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # Type -> status and reason


@dataclass(frozen=True, slots=True)
class Exit:
    """A daemon of crrd that has ended by itself."""

    at: float
    part: Part
    code: int
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One round: some minutes with load and faults, and then a quiet time in which everything can recover."""

    began: float
    quiet: float  # Since when there were no more faults, and no new requests
    ended: float
    settled: bool = True  # Whether the quiet time was long enough; False after Ctrl-C
    requests: tuple[Request, ...] = ()
    instances: tuple[Instance, ...] = ()
    pods: tuple[Pod, ...] = ()
    faults: tuple[Fault, ...] = ()
    policies: tuple[Policy, ...] = ()
    exits: tuple[Exit, ...] = ()
    most_unready: Mapping[str, int] = field(default_factory=dict)  # Workload -> maxUnavailable of its runs and policies
    hooks: frozenset[str] = frozenset()  # Names of containers that have a preStop hook
    audited: frozenset[str] | None = None  # Names of all requests that were created, by the audit log

    def hit(self, since: float, until: float, *parts: Part) -> list[Fault]:
        """Return the faults of these parts (none: all) that overlap this time."""
        overlapping = (fault for fault in self.faults if fault.at <= until and fault.until >= since)
        return [fault for fault in overlapping if not parts or fault.part in parts]

    def owners(self, instance: Instance) -> list[Request]:
        """Return the requests that mean this instance, the oldest first."""
        named = (each for each in self.requests if instance.id in each.targets.get(instance.container, ()))
        return sorted(named, key=lambda each: each.created)

    def history(self, pod: str, container: str) -> Iterator[Instance]:
        """Yield all instances of a container, the oldest first."""
        found = (each for each in self.instances if (each.pod, each.container) == (pod, container))
        yield from sorted(found, key=lambda each: each.started)
