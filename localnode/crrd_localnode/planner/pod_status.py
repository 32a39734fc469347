"""What a container runtime has of one pod, as plain data: what kubelet's decisions are taken from.

Whoever asks the runtime fills these in. What follows from them is `pod_actions`' matter.
"""

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
    network: NetworkMode | None = None
    """None where it is not to be compared with the pod's: a node without a pod network."""
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
    """The `resources` (limits, requests) that kubelet has last given it, {} for none or where kubelet itself has no
    record of it, as after an upgrade from before 1.33; None where that is not known. The API tells them of a running
    container in its status."""


@dataclass(frozen=True, slots=True)
class PodRuntimeStatus:
    """All that the runtime has of one pod, in any order, and what its probes have found."""

    sandboxes: tuple[SandboxStatus, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    started: frozenset[str] = frozenset()  # IDs of the containers whose startup probe has succeeded
    startup_failed: frozenset[str] = frozenset()
    """IDs of the containers whose startup probe has failed for good (failureThreshold times)."""
    liveness_failed: frozenset[str] = frozenset()  # The same for the liveness probe
    resources: Mapping[str, Any] | None = None
    """The pod's own `resources` that kubelet has last applied; None where that is not known."""

    @property
    def sandbox(self) -> SandboxStatus | None:
        """The newest sandbox, ready or not."""
        return max(self.sandboxes, key=lambda each: (each.created_at, each.attempt), default=None)

    def newest(self, name: str) -> ContainerStatus | None:
        """The current instance of a container."""
        return newest(self.containers, name)
