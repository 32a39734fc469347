"""What is remembered of a run while it goes on: what the daemon did, and the requests as they really are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.daemon import Life


@dataclass(slots=True)
class Act:
    """A stop or a hook that the daemon asked for."""

    at: float
    life: "Life"
    owners: frozenset[str]
    """UIDs of the requests that may have wanted it."""
    ended: float = 0.0
    outcome: str | None = None
    """None while it is under way, "" when it was answered as done."""
    killed_before: frozenset[str] = frozenset()
    """Of the owners, those that said isKilled already."""


@dataclass(slots=True)
class Known:
    """What the truth remembers of one request."""

    uid: str
    name: str
    pod_name: str
    pod_uid: str
    """That the pod had when it was created."""
    spec: Mapping[str, Any]
    labelled: bool
    """Whether it says the pod's UID."""
    created: float
    pins: dict[str, list[str]] = field(default_factory=dict)
    """Container -> the IDs that were ever pinned, in order."""
    pinned_in: dict[str, "Life | None"] = field(default_factory=dict)
    """Container -> the life of the daemon that pinned it first."""
    stopped: dict[str, set[str]] = field(default_factory=dict)
    by_manager: str = ""
    unpinned: bool = False
    """Whether somebody took its pins away."""
    foreign_pins: set[tuple[str, str]] = field(default_factory=set)
    """Container and instance, as somebody else has written them."""
    restored: bool = False
    """Whether it was put back to what it had been: nobody can know what was written since."""
    away: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was out of its daemon's selection; the last one may go on."""
    begun: set[str] = field(default_factory=set)
    """Containers whose hook or stop has begun, in whichever life of the daemon."""
    unready_at: float | None = None
    """When somebody wrote that the pod is unready for it."""
    ended: float | None = None
    deleted: bool = False

    @property
    def ignores_failures(self) -> bool:
        return bool(self.spec["strategy"].get("failurePolicy") == "Ignore")

    def was_away(self, since: float, until: float) -> bool:
        """Whether it was out of the selection at any time between."""
        return any(left <= until and since <= back for left, back in self.away)

    def context(self, name: str) -> str | None:
        for container in self.spec["containers"]:
            if container["name"] == name and "statusContext" in container:
                return str(container["statusContext"]["containerID"]).partition("://")[2]
        return None

    def means(self, name: str) -> list[str]:
        """IDs of the instances that may go for this request."""
        if name not in [container["name"] for container in self.spec["containers"]]:
            return []
        context, pins = self.context(name), self.pins.get(name, [])
        if self.spec["strategy"].get("forceRecreate") or context is None:
            return pins
        return [context]

    @property
    def names(self) -> list[str]:
        return [container["name"] for container in self.spec["containers"]]
