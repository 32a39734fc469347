"""Memory of what this process did to container instances: how it changes, and when it is forgotten.

A Work belongs to one request and one container instance. It is kept while it is under way or its request is live. After
that it is kept while it counts:

- a hook whose stop has not come about: until it is too late for that stop, at least LEFT_SECONDS from its start,
  and for as long as a request waits that was there when the hook ended;
- a stop, if the request may come back to the selection: for LEFT_SECONDS.
"""

import asyncio
from dataclasses import replace
from typing import Any

from crrd.core.recreate.observation import NO_WORK, Work
from crrd.node.pods import PodRecord, Pods, WorkKey

LEFT_SECONDS = 60.0
"""For how long hooks and stops are remembered for a request that left the selection, and may come back to it."""


class Works:
    """Changes and forgets the works in the pods' records."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    def note(self, pod_key: str, key: WorkKey, **changes: Any) -> None:
        """Remember what has become of the work on an instance."""
        pod = self._pods.ensure(pod_key)
        pod.works[key] = replace(pod.works.get(key, NO_WORK), **changes)
        self.drop_unneeded(pod, key)

    def drop_unneeded(self, pod: PodRecord, key: WorkKey, *, completed: bool = False) -> None:
        """Forget the work on an instance, unless it goes on, its request is live or may come back, or a hook counts.

        `completed`: by this process, so it does not come back.
        """
        work, record = pod.works.get(key, NO_WORK), pod.records.get(key[0])
        if work.under_way is not None or (record is not None and record.live):
            return
        ended = work.hook_ended
        if ended is not None and not work.stopped and _waited_for(pod, ended):
            return
        kept_until = _kept_until(work, may_return=(record is None or record.left) and not completed)
        if until := pod.expiries.pop(key, None):
            until.cancel()
        loop = asyncio.get_running_loop()
        if loop.time() < kept_until:
            pod.expiries[key] = loop.call_at(kept_until, self.drop_unneeded, pod, key)
            return
        pod.works.pop(key, None)
        if record is not None:
            self._pods.drop_if_done(pod, record)  # it may have been kept for its stop
        self._pods.tidy(pod)


def _kept_until(work: Work, *, may_return: bool) -> float:
    """Monotonic time until which the work of a request that is not live counts."""
    until = 0.0
    if work.hook_until is not None and not work.stopped:
        until = max(work.stop_until, (work.hook_began or 0.0) + LEFT_SECONDS)
    if work.stop is not None and may_return:
        until = max(until, work.stop.ended + LEFT_SECONDS)
    return until


def _waited_for(pod: PodRecord, ended: float) -> bool:
    """Whether a live request of the pod was there when a hook ended: it must not run it again."""
    return any(each.first_seen <= ended for each in pod.live)
