"""Slots for stops: so many StopContainers are sent to the runtime at once on a node, shared fairly between its pods."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPS_AT_ONCE = 128
"""StopContainers that are sent to the runtime at once. Measured with containerd 1.6 on two cores and 110 containers: 32
and 64 make the last ones wait, behind what kubelet starts again already, and kubelet has none ready sooner for it."""
SLOT_SECONDS = 2.0
"""For how long a stop holds its slot at most: one that waits for its container to end costs the runtime nothing."""


class StopSlots:
    """Who may send a stop now, and who waits for that; wakes a pod for which a slot is held, to use it."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._free = STOPS_AT_ONCE
        self._waiting: dict[str, None] = {}  # Pods that wait for a slot, in the order in which they came
        self._held: set[str] = set()
        """Pods that own a slot which they have not used yet; unused ones are released after the pod's round."""

    def may_stop(self, pod_key: str) -> bool:
        """Whether a stop of the pod may be sent now."""
        return self._free > 0 or pod_key in self._held

    def end_round(self, pod_key: str, *, wanted: bool) -> None:
        """After each round of a pod: release what it did not use; `wanted`: a stop waits for a slot."""
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
        """Use a slot that was taken, for SLOT_SECONDS at most."""
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
