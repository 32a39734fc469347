"""Reads by name of the pods that requests wait for, and no watch reports. Repeated while the requests last.

Before a pod counts as one that does not exist, it is always read from the API server, because that decision is final
and a watch may be behind.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crrd.core.api.pod import PodMeta, parse_meta
from crrd.core.api.types import Request
from crrd.kube.client import KubeClient
from crrd.kube.lanes import routine
from crrd.kube.resources import PODS
from crrd.lib.errors import GoneError
from crrd.lib.looptime import loop_time
from crrd.lib.workqueue import WorkQueue
from crrd.manager.cache import ManagerCache
from crrd.manager.gated import GatedPods
from crrd.manager.state_times import StateTimes

POD_SECONDS = 30.0  # How long the result of getting a pod is used while a request waits for something
PATIENCE_SECONDS = 30.0
"""Time until the first get of a pod whose readiness does not matter to its requests. Most have ended by then."""
READ_SECONDS = 300.0  # Limit for a routine read; every call has a deadline


class PodReads:
    """The pods that requests wait for. What is found is put into `cache`.

    `wake` is called with the key of a pod that a routine read was about. The caller runs `queue`.
    """

    def __init__(
        self,
        client: KubeClient,
        cache: ManagerCache,
        gated: GatedPods,
        ages: StateTimes,
        wake: Callable[[str], None],
    ) -> None:
        self._client, self._cache, self._gated, self._ages, self._wake = client, cache, gated, ages, wake
        self.queue = WorkQueue(self._read_routinely, "lifecycle-reads", round_seconds=READ_SECONDS)
        self._gone: dict[str, frozenset[str]] = {}
        """Pods that the last routine read did not find -> the UIDs of the requests for which they were read."""
        self._asked: dict[str, float] = {}
        """Pods that requests wait for and that were read by name -> the loop's time at which they were read."""

    def repeats(self, key: str) -> bool:
        """Whether a request waits for a pod that is read by name."""
        return key in self._asked

    def seconds_used(self, key: str) -> float:
        """Return for how much longer the last read of a pod is used. 0 if there is none, or the next one is due."""
        return max(0.0, self._asked[key] + POD_SECONDS - loop_time()) if key in self._asked else 0.0

    def seconds_spared(self, key: str, requests: Sequence[Request]) -> float:
        """Return for how many seconds a pod that is not known yet does not need to be read."""
        open_ = [request for request in requests if not request.completed and not request.deleting]
        idle = all(request.strategy.unready_grace_seconds is None for request in open_)
        known = key in self._asked or self._cache.pod(key) is not None
        if not open_ or not idle or known or any(request.has_finalizer for request in requests):
            return 0.0
        return max(0.0, PATIENCE_SECONDS - self._ages.watched_seconds(key, open_))

    async def pod(self, key: str, requests: Sequence[Request]) -> tuple[PodMeta | None, bool]:
        """Return the pod, and whether it is known. Get it by name if no watch reports it, or if it has another UID.

        Nothing that is due waits for a routine read: it is left to `queue`, and the next round has its result.
        """
        pod, gone_for = self._cache.pod(key), self._gone.pop(key, frozenset[str]())
        waiting = _waiting(requests)
        if not waiting:
            self._asked.pop(key, None)
            if pod is not None or not self._cache.repaired(key):
                return pod, True
        namespace = key.partition("/")[0]
        expected = pod is not None and all(request.pod_uid in ("", pod.uid) for request in waiting)
        up_to_date = self.seconds_used(key) > 0 if key in self._asked else self._gated.covers(namespace)
        if expected and up_to_date:
            return pod, True
        if pod is None and waiting and gone_for.issuperset(request.uid for request in waiting):
            return None, True
        first = pod is None and not any(each.has_finalizer or _needs_unready(each) for each in waiting)
        if waiting and (first or expected):
            if not self.queue.pending(key):
                self.queue.wake(key)
            return pod, expected and not self.queue.failing(key)
        found = await self.read(key, waiting)
        return None if found is None else parse_meta(found), True

    async def read(self, key: str, waiting: Sequence[Request]) -> Mapping[str, Any] | None:
        """Get a pod by name, for these requests. Return None if it does not exist."""
        namespace, _, name = key.partition("/")
        try:
            found = await self._client.get(PODS, namespace, name)
        except GoneError:
            self._asked.pop(key, None)
            self._cache.forget_repair(key)
            if (pod := self._cache.pod(key)) is not None:
                self._cache.pod_deleted(pod)
            return None
        if waiting:
            self._asked[key] = loop_time()
        self._cache.pod_read(parse_meta(found))
        return found

    async def _read_routinely(self, key: str) -> None:
        """Read a pod that requests wait for, and wake it."""
        routine.set(True)
        waiting = _waiting(self._cache.requests_of(key))
        if waiting and await self.read(key, waiting) is None:
            self._gone[key] = frozenset(request.uid for request in waiting)
        self._wake(key)


def _waiting(requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if request.has_finalizer or not request.completed]


def _needs_unready(request: Request) -> bool:
    return not request.completed and request.strategy.unready_grace_seconds is not None
