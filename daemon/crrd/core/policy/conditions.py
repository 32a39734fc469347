"""The conditions of a policy, with the times of their last transitions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.policy.failures import stopped_by
from crrd.core.policy.observed import Look
from crrd.core.policy.problems import Problem
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.revisions import gaps
from crrd.core.policy.triggers import READ_ROLE, triggers_of
from crrd.core.policy.types import OnFailure, Policy

_BEFORE_READING = (PolicyReason.INVALID, PolicyReason.SUSPENDED, PolicyReason.TARGET, PolicyReason.UNPATCHABLE)
"""With these reasons it is unknown whether configuration can be read."""
_CHARACTERS = 2000  # Length limit for the messages of the conditions Effective and Restorable
Condition = Mapping[str, Any]


def make_conditions(look: Look, known: Sequence[Problem], reason: PolicyReason, message: str) -> tuple[Condition, ...]:
    """Return the conditions of a policy that does or waits for something, with this reason and message."""
    policy, found = look.policy, look.found
    unreadable = found.stopped.message if found.stopped is not None else ""
    rows = [("Ready", bool(reason.ready), reason, message)]
    if reason not in _BEFORE_READING:
        if policy.config is not None:
            why = PolicyReason.UNREADABLE if unreadable else PolicyReason.READABLE
            rows.append(("ConfigReadable", not unreadable, why, why.message(what=unreadable)))
        if any(each.role == READ_ROLE for each in triggers_of(policy)):  # its runs have files refreshed
            before = (str(each.get("message")) for each in policy.conditions if each.get("type") == "FilesRefreshed")
            if old_files := next(before, "") if found.old_files is None else found.old_files:
                why = PolicyReason.OLD_FILES
                rows.append(("FilesRefreshed", False, why, why.message(what=old_files)))
        if policy.judge is not None:
            run = stopped_by(policy) or policy.status.run
            run = policy.status.undone or run if run is policy.status.run else run
            halted = run is not None and run.halted
            why = PolicyReason.HALTED if halted else PolicyReason.PASSED
            values = {"run": run.name, "message": run.message} if run is not None else {}
            rows.append(("Judged", not halted, why, why.message(**values)))
        if policy.on_failure is OnFailure.RESTORE and policy.config is not None and not unreadable:
            lacking = found.unrestorable or "; ".join(gaps(look))[:_CHARACTERS]
            why = PolicyReason.NOT_RESTORABLE if lacking else PolicyReason.RESTORABLE
            rows.append(("Restorable", not lacking, why, why.message(what=lacking)))
        why, detail = PolicyReason.EFFECTIVE, "; ".join(each.message for each in known)[:_CHARACTERS]
        if known or not unreadable:
            rows.append(("Effective", not known, known[0].reason if known else why, detail or why.message()))
    return tuple(_make(policy, look.now, row) for row in rows)


def look_failed(policy: Policy, error: str, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a policy at which the manager could not look. All but Ready stay as they are."""
    why = PolicyReason.LOOK_FAILING
    others = (each for each in policy.conditions if each.get("type") != "Ready")
    return _make(policy, now, ("Ready", bool(why.ready), why, why.message(error=error))), *others


def _make(policy: Policy, now: datetime, row: tuple[str, bool, PolicyReason, str]) -> Condition:
    """Return a condition. It keeps the time of its last transition."""
    kind, holds, reason, message = row
    status = "True" if holds else "False"
    same = (each for each in policy.conditions if (each.get("type"), each.get("status")) == (kind, status))
    since = next(same, {}).get("lastTransitionTime") or rfc3339(now)
    times = {"observedGeneration": policy.generation, "lastTransitionTime": since}
    return {"type": kind, "status": status, "reason": reason.value, "message": message, **times}
