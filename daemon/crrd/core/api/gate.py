"""The readiness gate of a pod, and its condition: which requests keep the pod unready.

Nothing here raises for invalid input.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.core.api.types import READINESS_GATE
from crrd.lib.jsonfields import condition, items, mapping, text

USER_AGENT = "ContainerRecreateRequest"  # `userAgent` of the entries that are made for requests


@dataclass(frozen=True, slots=True)
class Readiness:
    """A pod's condition KruisePodReady."""

    status: str = ""  # True, False or Unknown; "" if the pod has no such condition
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
    """Return the condition of a pod, given as JSON."""
    gate = condition(pod, READINESS_GATE)
    return Readiness(text(gate.get("status")), text(gate.get("message")))


def has_gate(pod: Mapping[str, Any]) -> bool:
    """Whether a pod, given as JSON, has the readiness gate."""
    gates = items(mapping(pod.get("spec")).get("readinessGates"))
    return any(mapping(gate).get("conditionType") == READINESS_GATE for gate in gates)


def entries(message: str) -> list[dict[str, Any]]:
    """Return the entries in a condition's message. Anything else is left out, because nothing could remove it again."""
    try:
        shape = json.loads(message or "[]")
    except (ValueError, RecursionError):
        return []
    return [
        entry
        for entry in items(shape)
        if isinstance(entry, dict) and isinstance(entry.get("userAgent"), str) and isinstance(entry.get("key"), str)
    ]
