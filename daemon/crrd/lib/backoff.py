"""How long to wait between tries: data, the one helper that turns it into delays, and how tries of one thing stand."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds that grow by a factor up to a maximum, each made longer by a random share of itself."""

    initial: float
    factor: float
    maximum: float  # Before jitter
    jitter: float  # The largest random share that is added, 0.1 for up to ten per cent

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row (at least 1)."""
        base = min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))
        return base * (1 + random.uniform(0, self.jitter))  # noqa: S311 - jitter is no secret

    def delays(self) -> Iterator[float]:
        """The delays after the first, second, third ... failure in a row; never ends."""
        return map(self.delay, count(1))


@dataclass(slots=True)
class Retry:
    """How often one thing has failed in a row, and when it may be tried next; times are monotonic seconds."""

    backoff: Backoff
    forgiven: float = inf  # Seconds without a failure after which the next one counts as the first
    failures: int = 0
    next_try: float = -inf
    failed_at: float = -inf

    def fail(self, now: float, at_least: float = 0.0) -> float:
        """Note a failure; returns the seconds to wait, which are `at_least` so many."""
        if now - self.failed_at > self.forgiven:
            self.failures = 0
        self.failures += 1
        delay = max(self.backoff.delay(self.failures), at_least)
        self.failed_at, self.next_try = now, now + delay
        return delay

    def succeed(self) -> None:
        """Note a success: the next failure is the first one again."""
        self.failures = 0
        self.release()

    def release(self) -> None:
        """Let the next try come at once, whatever has failed before."""
        self.next_try = -inf

    @property
    def waiting(self) -> bool:
        """Whether a try has failed, and was not released since."""
        return self.next_try > -inf
