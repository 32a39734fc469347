"""The values of the planner: what a container runtime has of one pod, and what can be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crrd.kubelet.runtime_status import ContainerState, newest


class NetworkMode(StrEnum):
    """Whose network namespace a sandbox is in (CRI's NamespaceMode)."""

    POD = "POD"
    NODE = "NODE"


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """One sandbox of the pod."""

    id: str
    attempt: int
    ready: bool
    network: NetworkMode | None = None  # None where it is not to be compared: a node without a pod network
    ip: str | None = None  # The pod's first IP, "" where the sandbox has none; None where the runtime does not tell
    created_at: int = 0  # Nanoseconds since the epoch


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container instance of the pod. Times are nanoseconds since the epoch, 0 for "not yet"."""

    id: str
    name: str
    state: ContainerState
    exit_code: int = 0  # Means something once the state is EXITED
    hash: str = ""  # The annotation io.kubernetes.container.hash as it stands: hex
    restart_count: int = 0
    created_at: int = 0
    finished_at: int = 0
    sandbox_id: str = ""  # The sandbox it is in; "" where that does not matter
    reason: str = ""  # Why it ended, in the runtime's words: Completed, Error, OOMKilled
    resources: Mapping[str, Any] | None = None
    """The `resources` that kubelet has last given it, {} for none or where kubelet itself has no record of it, as after
    an upgrade from before 1.33; None where that is not known. The API has a running container's in its status."""


@dataclass(frozen=True, slots=True)
class PodRuntimeStatus:
    """All that the runtime has of one pod, in any order, and what its probes have found."""

    sandboxes: tuple[SandboxStatus, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    started: frozenset[str] = frozenset()  # IDs of the containers whose startup probe has succeeded
    startup_failed: frozenset[str] = frozenset()  # Those whose startup probe has failed for good (failureThreshold)
    liveness_failed: frozenset[str] = frozenset()  # The same for the liveness probe
    resources: Mapping[str, Any] | None = None  # The pod's own that kubelet has last applied; None: not known

    @property
    def sandbox(self) -> SandboxStatus | None:
        """The newest sandbox, ready or not."""
        return max(self.sandboxes, key=lambda each: (each.created_at, each.attempt), default=None)

    def newest(self, name: str) -> ContainerStatus | None:
        """The current instance of a container."""
        return newest(self.containers, name)


class Cause(StrEnum):
    """Why a container is killed or started."""

    POD_ENDS = "pod ends"  # It is killed with its pod or its sandbox
    DEFINITION_CHANGED = "definition changed"
    LIVENESS = "liveness probe failed"
    STARTUP = "startup probe failed"
    RESIZED = "resize requires restart"
    STATE_UNKNOWN = "state unknown"
    MISSING = "missing"  # There is no instance of it, or none in this sandbox
    NOT_STARTED = "created, not started"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Kill:
    """A container to stop."""

    container: ContainerStatus
    cause: Cause
    message: str  # One sentence, in kubelet's words where it has some
    stage: int = 0
    """Containers of one stage are stopped at the same time, those of the next one when they have ended or used up their
    grace period: sidecars come after all others, the last of them first."""


@dataclass(frozen=True, slots=True)
class Start:
    """A container to start."""

    name: str
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A container instance to remove from the runtime."""

    container: ContainerStatus
    kill: bool  # Whether it has to be stopped before, without a grace period


@dataclass(frozen=True, slots=True)
class Unknown:
    """A running container of which it cannot be told whether it goes on."""

    name: str
    why: str  # What is not known, in half a sentence


@dataclass(frozen=True, slots=True)
class PodActions:
    """What to do about a pod: first `kill` (and all sandboxes, if `kill_pod`), then `remove`, then `start`."""

    kill_pod: bool = False  # Stop every sandbox of the pod, after what `kill` names: all containers
    new_sandbox: bool = False  # Make one, and remove the init containers' instances, before anything is started
    attempt: int = 0  # The number of the sandbox in which containers are started: the present one's, or the new one's
    kill: tuple[Kill, ...] = ()
    start: tuple[Start, ...] = ()  # Ephemeral containers, init containers as in the spec, then the regular ones
    keep: tuple[ContainerStatus, ...] = ()  # Running instances that go on, as far as can be told: see `unknown`
    remove: tuple[Remove, ...] = ()  # In order, for RestartAllContainers: then look at the pod again at once
    unknown: tuple[Unknown, ...] = ()  # What cannot be told about those of `keep`: none of them is safe
    why: str = ""  # Why the pod as a whole is killed, gets a new sandbox, or begins anew; "" where it is not
