"""Kubelet's back-off: how long a failed container or image pull has to wait before the next try.

Kept apart from the kubelet because it is all arithmetic: it knows neither pods nor clocks. Times are seconds of
whatever clock the caller uses, for kubelet's sake the wall clock, as the runtime's "finished at" is.

Source: k8s.io/client-go/util/flowcontrol/backoff.go and `doBackOff` in kubelet's kuberuntime manager.
"""

CONTAINER_INITIAL_SECONDS = 10.0
MAXIMUM_SECONDS = 300.0


class BackOff:
    """One growing delay per key, doubling from `initial` to `maximum`, forgotten after twice the maximum of quiet."""

    def __init__(self, initial: float = CONTAINER_INITIAL_SECONDS, maximum: float = MAXIMUM_SECONDS) -> None:
        self._initial = min(initial, maximum)
        self._maximum = maximum
        self._entries: dict[str, tuple[float, float]] = {}  # Each key's delay, and when that was last put up

    def delay(self, key: str) -> float:
        """The key's current delay in seconds; 0 for a key that has not failed."""
        return self._entries.get(key, (0.0, 0.0))[0]

    def remaining(self, key: str, failed_at: float, now: float) -> float:
        """Seconds that a thing that failed at `failed_at` still has to wait; 0 where it may go on."""
        return 0.0 if self._is_new(key, failed_at) else max(0.0, failed_at + self.delay(key) - now)

    def advance(self, key: str, failed_at: float, now: float) -> None:
        """Take note that the next try is made now: the one after it waits longer."""
        new = self._is_new(key, failed_at)
        self._entries[key] = (self._initial if new else min(self.delay(key) * 2, self._maximum), now)

    def forget(self, prefix: str) -> None:
        """Drop the keys that begin with the prefix: their pod is gone."""
        for key in [key for key in self._entries if key.startswith(prefix)]:
            del self._entries[key]

    def _is_new(self, key: str, failed_at: float) -> bool:
        return key not in self._entries or failed_at - self._entries[key][1] > 2 * self._maximum


def go_duration(seconds: float) -> str:
    """A whole number of seconds or milliseconds as Go prints it: "10s", "1m20s", "500ms"."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)}ms"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours:.0f}h{minutes:.0f}m{text}"
    return f"{minutes:.0f}m{text}" if minutes else text
