"""With which data runs have failed: it reaches no further pod by a run, of this policy or of another one.

The last run stands in `status.run`. When another one begins, a failed one moves to `status.failed`. It stays there
until its data is gone, another run has brought it, or it is repaired (`course.is_repaired`). Once a part of its data
has changed, the policy itself tries the rest once more, and others wait for that.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from crrd.core.api.time import parse_time
from crrd.core.policy.observed import Running
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord, UsedObject


def stops(policy: Policy, run: RunRecord) -> bool:
    """Whether a failed run stops the policy until the policy, the configuration or the template changes."""
    return run.failed and run.generation == policy.generation


def failed_with(status: PolicyStatus, record: UsedObject) -> RunRecord | None:
    """Return the newest run that has failed with the data that a record has now, None for none."""
    return next((run for run in _failed(status) if _brought(run, record)), None)


def _failed(status: PolicyStatus) -> Iterator[RunRecord]:
    """Yield the runs that have failed, the newest first."""
    if status.run is not None and status.run.failed:
        yield status.run
    yield from reversed(status.failed)


def _brought(run: RunRecord, record: UsedObject) -> bool:
    """Whether a run has failed with the data of a record, or with another part of the same edit of the object.

    It says nothing about data that it has brought back.
    """
    if run.back or record.hash == record.done:
        return False
    known = [(change, found) for change, found in zip(run.changes, run.hashes, strict=False) if found]
    if (own := next((found for change, found in known if change.part == record.part), None)) is not None:
        return own == record.hash
    of_object = (change.until for change, _ in known if change.part.object_name == record.part.object_name)
    return any((parse_time(record.since) or until) <= until for until in of_object)


def lasting(policy: Policy, running: Collection[Running]) -> list[UsedObject]:
    """Return the records that are kept and looked up also if no container uses their parts any more.

    They are of objects whose data a failed run has brought: only the objects themselves show that this is corrected.
    After an edit of the policy they last only while there is no pod.
    """
    runs = [run for run in _failed(policy.status) if stops(policy, run) or not running]
    objects = {change.part.object_name for run in runs for change in run.changes}
    return [each for each in policy.counted if each.part.object_name in objects]


def is_corrected(status: PolicyStatus, run: RunRecord) -> bool:
    """Whether a part of the data that a run has brought has changed."""
    brought = dict(zip((each.part for each in run.changes), run.hashes, strict=False))
    return any(brought.get(each.part) not in (None, "", each.hash) for each in status.config)


def passed(policy: Policy, brought: Collection[UsedObject]) -> PolicyStatus:
    """Return the status without failures of data that a run has brought and that is well."""
    over = {run.name for each in brought if (run := failed_with(policy.status, each)) is not None}
    return replace(policy.status, failed=tuple(each for each in policy.status.failed if each.name not in over))


def refuses(policy: Policy, record: UsedObject) -> bool:
    """Whether the policy itself brings the data of a record to no further pod, until the policy or the data changes."""
    failed = failed_with(policy.status, record)
    return failed is not None and stops(policy, failed) and not is_corrected(policy.status, failed)


def stopped_by(policy: Policy) -> RunRecord | None:
    """Return the newest run whose failure stops the policy: the last one, or one before it with all of its data.

    A run that has been undone stops it as before.
    """
    status = policy.status
    found = [run for run in _failed(status) if run is status.run or not is_corrected(status, run)]
    return next((run for run in (*found, status.undone) if run is not None and stops(policy, run)), None)


def with_last(status: PolicyStatus) -> PolicyStatus:
    """Return the status before another run begins: the last one is kept if its data has failed."""
    last = status.run
    if last is None or not any(failed_with(status, each) is last for each in status.config):
        return status
    return replace(status, failed=(*(each for each in status.failed if each.name != last.name), last))


def pruned(status: PolicyStatus) -> PolicyStatus:
    """Return the status without failures whose data is gone, or which a newer run has repeated."""
    needed = {run.name for each in status.config if (run := failed_with(status, each)) is not None}
    return replace(status, failed=tuple(each for each in status.failed if each.name in needed))
