"""The planner's values: the runtime's state of one pod, and the possible actions."""

from dataclasses import dataclass
from enum import StrEnum

from crrd.kubelet.runtime_status import ContainerState, newest


class NetworkMode(StrEnum):
    """The network namespace of a sandbox (CRI's NamespaceMode)."""

    POD = "POD"
    NODE = "NODE"


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """One sandbox of the pod."""

    id: str
    attempt: int
    ready: bool
    network: NetworkMode | None = None  # None to ignore it: a node without a pod network
    ip: str | None = None  # The pod's first IP, "" if it has none; None if the runtime does not report it
    created_at: int = 0  # Nanoseconds since the epoch


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container instance of the pod. Times are nanoseconds since the epoch, or 0 for "not yet"."""

    id: str
    name: str
    state: ContainerState
    exit_code: int = 0  # Valid if the state is EXITED
    hash: str = ""  # Annotation io.kubernetes.container.hash (hex)
    restart_count: int = 0
    created_at: int = 0
    finished_at: int = 0
    sandbox_id: str = ""  # Its sandbox; "" if that does not matter
    reason: str = ""  # The runtime's reason for its end: Completed, Error, OOMKilled


@dataclass(frozen=True, slots=True)
class PodRuntimeStatus:
    """The runtime's state of one pod (in any order), and the results of its probes."""

    sandboxes: tuple[SandboxStatus, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    started: frozenset[str] = frozenset()  # IDs of containers whose startup probe has succeeded
    startup_failed: frozenset[str] = frozenset()  # IDs of those whose startup probe has failed (failureThreshold)
    liveness_failed: frozenset[str] = frozenset()  # IDs of those whose liveness probe has failed

    @property
    def sandbox(self) -> SandboxStatus | None:
        """The newest sandbox, ready or not."""
        return max(self.sandboxes, key=lambda each: (each.created_at, each.attempt), default=None)

    def newest(self, name: str) -> ContainerStatus | None:
        """Return the current instance of a container."""
        return newest(self.containers, name)


@dataclass(frozen=True, slots=True)
class Kill:
    """A container to stop."""

    container: ContainerStatus
    message: str  # One sentence, kubelet's text if it has one
    stage: int = 0
    """Containers of one stage are stopped together. The next stage follows when they have ended or their grace period
    is over: sidecars are stopped after all others, in reverse order."""


@dataclass(frozen=True, slots=True)
class Remove:
    """A container instance to remove from the runtime."""

    container: ContainerStatus
    kill: bool  # Whether it must be stopped first, without a grace period


@dataclass(frozen=True, slots=True)
class PodActions:
    """The actions on a pod: first `kill` (then all sandboxes, if `kill_pod`), then `remove`, then `start`."""

    kill_pod: bool = False  # Stop all sandboxes of the pod, after the containers in `kill`, which are all
    new_sandbox: bool = False  # Create a sandbox, and remove the init containers' instances, before any start
    attempt: int = 0  # Number of the sandbox in which containers are started, the current or the new one
    kill: tuple[Kill, ...] = ()
    start: tuple[str, ...] = ()  # Ephemeral containers, init containers in the spec's order, then regular ones
    remove: tuple[Remove, ...] = ()  # In order, for RestartAllContainers; then plan again at once
    why: str = ""  # Why the pod is killed, gets a new sandbox or starts again; "" if not
