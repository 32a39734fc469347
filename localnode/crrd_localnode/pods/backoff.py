"""Kubelet's back-off: how long a failed container or image pull has to wait before the next try.

Kept apart from the kubelet because it is all arithmetic: it knows neither pods nor clocks. Times are seconds of
whatever clock the caller uses, for kubelet's sake the wall clock, as the runtime's "finished at" is.

Source: k8s.io/client-go/util/flowcontrol/backoff.go and `doBackOff` in kubelet's kuberuntime manager.
"""

from dataclasses import dataclass

CONTAINER_INITIAL_SECONDS = 10.0
MAXIMUM_SECONDS = 300.0


@dataclass(slots=True)
class _Entry:
    seconds: float
    updated: float


class BackOff:
    """One growing delay per key, doubling from `initial` to `maximum`, forgotten after twice the maximum of quiet."""

    def __init__(self, initial: float = CONTAINER_INITIAL_SECONDS, maximum: float = MAXIMUM_SECONDS) -> None:
        self._initial = min(initial, maximum)
        self._maximum = maximum
        self._entries: dict[str, _Entry] = {}

    def delay(self, key: str) -> float:
        """The key's current delay in seconds; 0 for a key that has not failed."""
        entry = self._entries.get(key)
        return entry.seconds if entry else 0.0

    def remaining(self, key: str, failed_at: float, now: float) -> float:
        """Seconds that a thing that failed at `failed_at` still has to wait; 0 where it may go on."""
        entry = self._entries.get(key)
        if entry is None or self._expired(entry, failed_at):
            return 0.0
        return max(0.0, failed_at + entry.seconds - now)

    def advance(self, key: str, failed_at: float, now: float) -> None:
        """Take note that the next try is made now: the one after it waits longer."""
        entry = self._entries.get(key)
        if entry is None or self._expired(entry, failed_at):
            self._entries[key] = _Entry(self._initial, now)
        else:
            entry.seconds = min(entry.seconds * 2, self._maximum)
            entry.updated = now

    def forget(self, prefix: str) -> None:
        """Drop the keys that begin with the prefix: their pod is gone."""
        for key in [key for key in self._entries if key.startswith(prefix)]:
            del self._entries[key]

    def _expired(self, entry: _Entry, failed_at: float) -> bool:
        return failed_at - entry.updated > 2 * self._maximum


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
