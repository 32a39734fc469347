"""Facts recorded during a run: the daemon's actions, and the true state of requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.daemon import Life


@dataclass(slots=True)
class Act:
    """A stop or a hook that the daemon has requested."""

    at: float
    life: "Life"
    owners: frozenset[str]  # UIDs of the requests that may have caused it
    ended: float = 0.0
    outcome: str | None = None  # None while in progress, "" for success, else the error
    killed_before: frozenset[str] = frozenset()  # The owners that already reported isKilled


@dataclass(slots=True)
class Known:
    """The facts about one request."""

    uid: str
    name: str
    pod_name: str
    pod_uid: str  # The pod's UID when the request was created
    spec: Mapping[str, Any]
    labelled: bool  # Whether it has the pod's UID as label
    created: float
    pins: dict[str, list[str]] = field(default_factory=dict)  # Container -> all IDs that were ever pinned, in order
    pinned_in: dict[str, "Life | None"] = field(default_factory=dict)
    """Container -> the life of the daemon that pinned it first."""
    stopped: dict[str, set[str]] = field(default_factory=dict)
    by_manager: str = ""
    unpinned: bool = False  # Whether another client removed its pins
    foreign_pins: set[tuple[str, str]] = field(default_factory=set)
    """Container and instance as written by another client."""
    restored: bool = False  # Whether a backup was restored, so that the writes since are lost
    away: list[tuple[float, float]] = field(default_factory=list)
    """Times in which it was out of the daemon's selection; the last one may still last."""
    begun: set[str] = field(default_factory=set)  # Containers whose hook or stop has begun, in any life of the daemon
    unready_at: float | None = None  # When the pod was reported as unready for it
    ended: float | None = None
    deleted: bool = False

    @property
    def ignores_failures(self) -> bool:
        return bool(self.spec["strategy"].get("failurePolicy") == "Ignore")

    def was_away(self, since: float, until: float) -> bool:
        """Whether it was out of the selection at any time in between."""
        return any(left <= until and since <= back for left, back in self.away)

    def context(self, name: str) -> str | None:
        for container in self.spec["containers"]:
            if container["name"] == name and "statusContext" in container:
                return str(container["statusContext"]["containerID"]).partition("://")[2]
        return None

    @property
    def whole(self) -> bool:
        """Whether it is for the whole pod."""
        return bool(self.spec.get("wholePod"))

    @property
    def forced(self) -> bool:
        """Whether it does not matter which instances it names."""
        return bool(self.spec["strategy"].get("forceRecreate"))

    def means(self, name: str) -> list[str]:
        """Return the IDs of the instances that may be stopped for this request."""
        if self.whole or name not in [container["name"] for container in self.spec["containers"]]:
            return []
        context, pins = self.context(name), self.pins.get(name, [])
        if self.forced or context is None:
            return pins
        return [context]

    @property
    def names(self) -> list[str]:
        return [container["name"] for container in self.spec["containers"]]
