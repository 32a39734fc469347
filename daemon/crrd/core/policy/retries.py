"""What runs have left, and when it is tried again. So a run that cannot do a pod is not followed at once by another."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from crrd.core.api.time import parse_time
from crrd.core.policy.config import Due
from crrd.core.policy.observed import Look
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord

RETRY = timedelta(minutes=10)  # After a run, until what it has left is tried again
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Retry(NamedTuple):
    """When what a run has left is tried again."""

    at: datetime
    by: RunRecord
    run: RunRecord | None = None  # The run that then starts, unless a trigger wants another one


def keep_pods(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Keep a run that has left pods."""
    kept = tuple(each for each in policy.status.left if each.name != run.name)
    return replace(policy.status, left=(*kept, run) if run.left and not run.failed else kept)


def keep_last(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Keep the last run of a trigger, whatever it has left."""
    kept = tuple(each for each in policy.status.left if each.trigger != run.trigger)
    return replace(policy.status, left=kept if run.failed else (*kept, run))


def forget_old(look: Look) -> PolicyStatus:
    """Forget the runs whose rest is tried again now."""
    return replace(look.status, left=tuple(each for each in look.status.left if retry_at(each) > look.now))


def just_left(look: Look, trigger: str) -> list[RunRecord]:
    """Return the runs of a trigger whose rest is not tried again yet. An edit of the policy has it tried at once.

    The last run counts also if an older CRD has dropped the others.
    """
    known = {each.name: each for each in (look.status.run, *look.status.left) if each is not None and not each.failed}
    own = (each for each in known.values() if (each.trigger, each.generation) == (trigger, look.policy.generation))
    return [each for each in own if each.finished and retry_at(each) > look.now]


def retries(runs: Iterable[RunRecord]) -> tuple[Retry, ...]:
    """Return when these runs are tried again."""
    return tuple(Retry(retry_at(each), each) for each in runs)


def not_left(look: Look, changes: Iterable[Due], runs: Iterable[RunRecord]) -> list[Due]:
    """Return the changes without those that only pods lack which these runs have left."""
    held: dict[str, datetime] = {}  # Pod -> up to which change it was left
    for run in runs:
        held |= {pod: max(held.get(pod, _LONG_AGO), parse_time(run.since) or look.now) for pod in run.left}
    if not held:
        return [*changes]
    return [
        each
        for each in changes
        if any(each.concerns(one) and each.limit > held.get(one.pod, _LONG_AGO) for one in look.served)
    ]


def retry_at(run: RunRecord) -> datetime:
    """Return when what a run has left is tried again."""
    return (parse_time(run.finished) or _LONG_AGO) + RETRY
