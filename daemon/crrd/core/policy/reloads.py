"""What a policy records about containers that reload, because nothing on a pod shows that it has reloaded.

The states of a record say which containers have the data in `hash`:

- `done` is `hash`, and `left` is empty: all of them.
- `done` is `hash`, and `left` is a time: the data was changed and taken back. All but those that started in between.
- `done` is another hash: those that started after `since` and `settle`. All others have the data in `done`.
- `done` is empty: the same, but any other may have any data. So it is from the start of a run in which they reload
  (`unsure`), before the first of them does. Data that is taken back is then one more change, for all of them.
- `lacking` is not empty: all but those in these pods, because a run has left them (`lacked`), or waits for the policy's
  window (`narrowed`). It ends with the next change, or when all have the data.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from crrd.core.api.time import parse_time
from crrd.core.policy.config import brings, limit_of
from crrd.core.policy.observed import Look
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord, UsedObject


def unsure(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Return the status before containers reload: from now on, any of them may have the new data, or the old."""
    return _with(policy, run, lambda each: replace(each, done=""))


def lacked(policy: Policy, run: RunRecord, pods: Collection[str]) -> PolicyStatus:
    """Return the status after containers have reloaded, but for those in pods that the run has left."""
    return _with(policy, run, lambda each: replace(each, lacking=tuple(sorted(pods))))


def narrowed(look: Look) -> PolicyStatus:
    """Return the status with the pods that the run in progress has not done yet, if it is known which it has done.

    Its requests, which show it, are deleted after a while.
    """
    run = look.status.run
    if run is None or not run.reload or run.finished or not (reloaded := look.found.reloaded.get(run.name)):
        return look.status
    return _with(look.policy, run, lambda each: _without(look, each, reloaded))


def _with(policy: Policy, run: RunRecord, change: Callable[[UsedObject], UsedObject]) -> PolicyStatus:
    """Return the status with changed records of the data that a run brings."""
    records = (change(each) if brings(run, each) else each for each in policy.status.config)
    return replace(policy.status, config=tuple(records))


def _without(look: Look, record: UsedObject, reloaded: Collection[str]) -> UsedObject:
    limit = limit_of(look.policy, parse_time(record.since) or look.now)
    old = {each.pod for each in look.found.running if each.keys.get(record.key, look.now) <= limit}
    left = (old & {*record.lacking} if record.lacking else old).difference(reloaded)
    if left or look.policy.judge is not None:  # they reload once more, and are judged
        return replace(record, lacking=tuple(sorted(left)))
    return replace(record, done=record.hash, left="", lacking=())


def has_reloaded(policy: Policy, run: RunRecord) -> bool:
    """Whether all containers have the data of a run in which they reload: it was not taken back."""
    until = {each.part: each.until for each in run.changes}
    records = [each for each in policy.status.config if each.container in run.containers and each.part in until]
    return run.reload and all((parse_time(each.since) or until[each.part]) <= until[each.part] for each in records)


def only(policy: Policy, run: RunRecord) -> frozenset[str]:
    """Return the pods that a run is about, because all others have the data. It is empty for all pods."""
    brought = [each.lacking for each in policy.status.config if brings(run, each)]
    return frozenset(pod for pods in brought for pod in pods) if all(brought) else frozenset()
