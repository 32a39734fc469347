"""The readiness condition of a pod, and how actions change it.

The condition's message is a JSON list of `{"userAgent","key"}`, sorted by both, with an entry for each reason why the
pod must be unready. With an empty list the pod is ready. Several programs share that list, so entries of other programs
are kept unchanged. `manager.readiness` reads and patches the pod.
"""

import json
from typing import Any

from crrd.core.api.gate import USER_AGENT, Readiness, entries
from crrd.core.lifecycle.steps import AcquireUnready, InitReadiness, PodAction


def readiness_after(action: PodAction, before: Readiness) -> Readiness:
    """Return the condition after this action."""
    if isinstance(action, InitReadiness):
        return before if before.status else Readiness("True")
    if isinstance(action, AcquireUnready):
        return acquired(before, action.key)
    return released(before, action.key) if action.key in before.keys else before  # already released: no change


def acquired(before: Readiness, key: str) -> Readiness:
    """Return the condition with an entry for this request."""
    return Readiness("False", _message([*_others(before, key), {"userAgent": USER_AGENT, "key": key}]))


def released(before: Readiness, key: str) -> Readiness:
    """Return the condition without this request's entry; True if no entry is left."""
    kept = _others(before, key)
    return Readiness("False", _message(kept)) if kept else Readiness("True")


def _others(before: Readiness, key: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(before.message) if (entry["userAgent"], entry["key"]) != (USER_AGENT, key)]


def _message(kept: list[dict[str, Any]]) -> str:
    """Return the list as JSON, in the order that all programs use."""
    return json.dumps(
        sorted(kept, key=lambda entry: (entry["userAgent"], entry["key"])), separators=(",", ":"), ensure_ascii=False
    )
