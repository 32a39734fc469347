"""A pod on the simulated node, as kubelet knows it."""

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.schedule import NAMESPACE, PodShape


@dataclass(eq=False)
class Pod:
    """One pod on the node."""

    shape: PodShape
    uid: str
    runtime_uid: str
    ip: str
    namespace: str = NAMESPACE
    images: dict[str, str] = field(default_factory=dict)
    """Container -> its image in the spec, as kubelet has seen it. Only pods of the shop have images."""
    deleting: bool = False
    ended: str = ""  # Its last phase, once it has ended
    evicted: bool = False
    back_off: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Container -> its back-off in seconds, and when that was last increased."""
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)  # Container -> reason and message in its status
    held: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Container -> until when it cannot be created, and kubelet's reason."""
    unstartable: dict[str, float] = field(default_factory=dict)
    """Container -> until when a created instance cannot be started."""
    ip_at: float = 0.0  # When its status gets its IP
    restarting: bool | None = None  # Whether kubelet is about to restart all its containers; None if it never was
    restart_began: float = 0.0  # When it last began that
    due: dict[str, float] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    """IDs that kubelet stops for an in-place update, which have no back-off."""
    noticed: bool = False
    killing: object | None = None  # The restart of the whole pod that is under way
    failures_left: dict[str, int] = field(default_factory=dict)  # Init container -> how often it fails yet
    removed: bool = False
    attempts: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.shape.name}"


def phase_of(status: dict[str, Any]) -> str:
    """Return a short description of a pod's status."""
    parts = []
    for part in (*status["containerStatuses"], *status["initContainerStatuses"]):
        state = "ready" if part["ready"] else next(iter(part["state"]))
        parts.append(f"{part['name']}={part.get('containerID', '').partition('://')[2]} {state}")
    return f"{status['phase']}, {', '.join(parts)}"
