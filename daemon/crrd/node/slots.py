"""Slots for stops: they limit how many StopContainers a node sends at once, and share them fairly between pods."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPS_AT_ONCE = 128
"""StopContainers that are sent to the runtime at once. Measured with containerd 1.6 on two cores and 110 containers:
with 32 and 64 slots, the last stops wait while kubelet already restarts containers, and no container is ready
sooner."""
SLOT_SECONDS = 2.0
"""Longest time that a stop holds its slot, so that one that hangs delays others by this at most. Waiting for the
container to end costs the runtime nothing."""


class StopSlots:
    """Decides which pods may send a stop now. Wakes a waiting pod when it gets a slot."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._free = STOPS_AT_ONCE
        self._waiting: dict[str, None] = {}  # Waiting pods, in order of arrival
        self._held: set[str] = set()
        """Pods that own a slot they have not used yet. Unused slots are released after the pod's round."""

    def may_stop(self, pod_key: str) -> bool:
        """Whether a stop of the pod may be sent now."""
        return self._free > 0 or pod_key in self._held

    def end_round(self, pod_key: str, *, wanted: bool) -> None:
        """After a pod's round, release its unused slot. `wanted` means that a stop of the pod waits for a slot."""
        if pod_key in self._held:
            self._held.discard(pod_key)
            self.release()
        if wanted:
            self._waiting.setdefault(pod_key)
        else:
            self._waiting.pop(pod_key, None)

    def take(self, pod_key: str) -> None:
        """Take a slot for a stop that is sent now."""
        if pod_key in self._held:
            self._held.discard(pod_key)
        else:
            self._free -= 1

    def release(self) -> None:
        """Pass a slot on to the pod that has waited longest."""
        if not self._waiting:
            self._free += 1
            return
        pod_key = next(iter(self._waiting))
        del self._waiting[pod_key]
        self._held.add(pod_key)
        self._wake(pod_key)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use a slot that was taken, for at most SLOT_SECONDS."""
        in_use = True

        def release() -> None:
            nonlocal in_use
            if in_use:
                in_use = False
                self.release()

        timer = asyncio.get_running_loop().call_later(SLOT_SECONDS, release)
        try:
            yield
        finally:
            timer.cancel()
            release()
