"""The readiness condition of a pod: who keeps the pod unready, and what follows for the condition.

The condition's message is a JSON list of `{"userAgent","key"}`, sorted by both, one entry for each reason that the pod
has to be unready; with an empty list the pod is ready. Several programs share that list, so entries of others are
kept as they are. Reading and patching the pod is `manager.readiness`' work.
"""

import json
from typing import Any

from crrd.core.api.pod import USER_AGENT, Readiness, entries
from crrd.core.lifecycle.steps import AcquireUnready, InitReadiness, PodAction


def readiness_after(action: PodAction, before: Readiness) -> Readiness:
    """The condition as this action leaves it."""
    if isinstance(action, InitReadiness):
        return before if before.status else Readiness("True")
    if isinstance(action, AcquireUnready):
        return acquired(before, action.key)
    return released(before, action.key) if action.key in before.keys else before  # already ready: left as it is


def acquired(before: Readiness, key: str) -> Readiness:
    """The condition with this request among the reasons to be unready."""
    return Readiness("False", _message([*_others(before, key), {"userAgent": USER_AGENT, "key": key}]))


def released(before: Readiness, key: str) -> Readiness:
    """The condition without this request; ready where that leaves no reason."""
    kept = _others(before, key)
    return Readiness("False", _message(kept)) if kept else Readiness("True")


def _others(before: Readiness, key: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(before.message) if (entry["userAgent"], entry["key"]) != (USER_AGENT, key)]


def _message(kept: list[dict[str, Any]]) -> str:
    """The list as text, in the one order that all who share it write."""
    return json.dumps(
        sorted(kept, key=lambda entry: (entry["userAgent"], entry["key"])), separators=(",", ":"), ensure_ascii=False
    )
