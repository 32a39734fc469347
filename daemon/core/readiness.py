"""The readiness condition of a pod: who keeps the pod unready, and what follows for the condition.

The condition's message is a JSON list of `{"userAgent","key"}`, sorted by both, one entry for each reason that the pod
has to be unready; with an empty list the pod is ready. Several programs share that list, so entries of others are
kept as they are. Reading and patching the pod is `manager.readiness`' work.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon.core.model import READINESS_GATE
from daemon.core.reading import items, mapping, text

USER_AGENT = "ContainerRecreateRequest"
"""`userAgent` of the entries that are made for requests."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The condition KruisePodReady as it stands on a pod."""

    status: str = ""
    """True, False or Unknown; "" where the pod has no such condition."""
    message: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys (`namespace/name`) of the requests that keep the pod unready."""
        return tuple(entry["key"] for entry in entries(self.message) if entry["userAgent"] == USER_AGENT)

    def acquired_by(self, key: str) -> bool:
        """Whether the pod is unready, and this request is among the reasons."""
        return self.status == "False" and key in self.keys


NO_CONDITION = Readiness()


def readiness_of(pod: Mapping[str, Any]) -> Readiness:
    """The condition of a pod in its Kubernetes shape."""
    for condition in map(mapping, items(mapping(pod.get("status")).get("conditions"))):
        if condition.get("type") == READINESS_GATE:
            return Readiness(text(condition.get("status")), text(condition.get("message")))
    return NO_CONDITION


def has_gate(pod: Mapping[str, Any]) -> bool:
    """Whether a pod in its Kubernetes shape carries the readiness gate."""
    gates = items(mapping(pod.get("spec")).get("readinessGates"))
    return any(mapping(gate).get("conditionType") == READINESS_GATE for gate in gates)


def entries(message: str) -> list[dict[str, Any]]:
    """The entries in a condition's message; what is no entry is left out, for nobody could ever take it back."""
    if not message:
        return []
    try:
        shape = json.loads(message)
    except (ValueError, RecursionError):
        return []
    return [
        entry
        for entry in items(shape)
        if isinstance(entry, dict) and isinstance(entry.get("userAgent"), str) and isinstance(entry.get("key"), str)
    ]


def acquired(before: Readiness, key: str) -> Readiness:
    """The condition with this request among the reasons to be unready."""
    kept = [entry for entry in entries(before.message) if (entry["userAgent"], entry["key"]) != (USER_AGENT, key)]
    return Readiness("False", _message([*kept, {"userAgent": USER_AGENT, "key": key}]))


def released(before: Readiness, key: str) -> Readiness:
    """The condition without this request; ready where that leaves no reason."""
    kept = [entry for entry in entries(before.message) if (entry["userAgent"], entry["key"]) != (USER_AGENT, key)]
    return Readiness("False", _message(kept)) if kept else Readiness("True")


def _message(kept: list[dict[str, Any]]) -> str:
    """The list as text, in the one order that all who share it write."""
    return json.dumps(
        sorted(kept, key=lambda entry: (entry["userAgent"], entry["key"])), separators=(",", ":"), ensure_ascii=False
    )
