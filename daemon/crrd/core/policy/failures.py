"""With which data runs have failed: it reaches no further pod by a run, of this policy or of another one.

The last run stands in `status.run`. When another one begins, a failed one moves to `status.tried`, and stays there as
long as an object has the data that it brought, and not all containers do.
"""

from dataclasses import replace

from crrd.core.api.time import parse_time
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord, UsedObject


def stops(policy: Policy, run: RunRecord) -> bool:
    """Whether a failed run stops the policy until the policy, the configuration or the template changes."""
    return run.failed and run.generation == policy.generation


def failed_with(status: PolicyStatus, record: UsedObject) -> RunRecord | None:
    """Return the newest run that has failed with the data that a record has now, None for none."""
    last = () if status.run is None else (status.run,)
    return next((run for run in (*last, *reversed(status.tried)) if _brought(run, record)), None)


def _brought(run: RunRecord, record: UsedObject) -> bool:
    """Whether a run has failed with the data of a record. It says nothing about data that it has brought back."""
    until = next((each.until for each in run.changes if each.part == record.part), None)
    if until is None or not run.failed or run.back or record.hash == record.done:
        return False
    return (parse_time(record.since) or until) <= until


def refuses(policy: Policy, record: UsedObject) -> bool:
    """Whether the policy itself brings the data of a record to no further pod. An edit of the policy ends that."""
    failed = failed_with(policy.status, record)
    return failed is not None and stops(policy, failed)


def stopped_by(policy: Policy) -> RunRecord | None:
    """Return the run whose failure stops the policy: the last one, or one before it whose data is still there."""
    last = policy.status.run
    if last is not None and stops(policy, last):
        return last
    found = (failed_with(policy.status, each) for each in policy.status.config)
    return next((each for each in found if each is not None and stops(policy, each)), None)


def with_last(status: PolicyStatus) -> PolicyStatus:
    """Return the status before another run begins: the last one is kept if its data has failed."""
    last = status.run
    if last is None or not any(failed_with(status, each) is last for each in status.config):
        return status
    return replace(status, tried=(*(each for each in status.tried if each.name != last.name), last))


def pruned(status: PolicyStatus) -> PolicyStatus:
    """Return the status without failures whose data is gone, or which all containers have. Runs for images stay."""
    needed = {run.name for each in status.config if (run := failed_with(status, each)) is not None}
    return replace(status, tried=tuple(each for each in status.tried if each.image or each.name in needed))
