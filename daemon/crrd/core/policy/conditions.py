"""The conditions of a policy, with the times of their last transitions."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.policy.observed import Look
from crrd.core.policy.problems import PolicyReason, Problem
from crrd.core.policy.types import Policy

_BEFORE_READING = (PolicyReason.INVALID, PolicyReason.SUSPENDED, PolicyReason.TARGET)
"""With these reasons it is unknown whether configuration can be read."""
READY = (
    PolicyReason.RUNNING,
    PolicyReason.WINDOW,
    PolicyReason.INTERVAL,
    PolicyReason.SETTLING,
    PolicyReason.RETRY,
    PolicyReason.CONTROLLER,
    PolicyReason.IDLE,
)
_CHARACTERS = 2000  # Length limit for the message of the condition Effective
_Row = tuple[str, bool, PolicyReason, str]
"""Type, status, reason and message of a condition."""


def make_conditions(
    look: Look, problems: Sequence[Problem], reason: PolicyReason, message: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the conditions of a policy that does or waits for something, with this reason and message."""
    return tuple(_make(look.policy, row, look.now) for row in _rows(look, problems, reason, message))


def look_failed(policy: Policy, error: str, now: datetime) -> tuple[Mapping[str, Any], ...]:
    """Return the conditions of a policy at which the manager could not look. All but Ready stay as they are."""
    why = PolicyReason.LOOK_FAILING
    message = ": ".join([why.say(error=error), *why.advise()])
    others = (each for each in policy.conditions if each.get("type") != "Ready")
    return _make(policy, ("Ready", False, why, message), now), *others


def _make(policy: Policy, row: _Row, now: datetime) -> Mapping[str, Any]:
    """Return a condition. It keeps the time of its last transition."""
    kind, holds, why, detail = row
    status = "True" if holds else "False"
    same = (each for each in policy.conditions if (each.get("type"), each.get("status")) == (kind, status))
    since = next(same, {}).get("lastTransitionTime") or rfc3339(now)
    times = {"observedGeneration": policy.generation, "lastTransitionTime": since}
    return {"type": kind, "status": status, "reason": why.value, "message": detail, **times}


def _rows(look: Look, problems: Sequence[Problem], reason: PolicyReason, message: str) -> Iterator[_Row]:
    policy, found = look.policy, look.found
    yield "Ready", reason in READY, reason, message
    if reason in _BEFORE_READING:
        return
    if policy.config is not None:
        why = PolicyReason.UNREADABLE if found.unreadable else PolicyReason.READABLE
        yield "ConfigReadable", not found.unreadable, why, found.unreadable or "the configuration can be read"
        known = (str(each.get("message")) for each in policy.conditions if each.get("type") == "FilesRefreshed")
        if old_files := next(known, "") if found.old_files is None else found.old_files:
            yield "FilesRefreshed", False, PolicyReason.OLD_FILES, old_files
    first = problems[0].reason if problems else PolicyReason.EFFECTIVE
    detail = "; ".join(each.message for each in problems)[:_CHARACTERS]
    yield "Effective", not problems, first, detail or first.say()
