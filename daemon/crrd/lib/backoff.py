"""Back-off between tries: its parameters, the delays computed from them, and the state of retries of one thing."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf

from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds that grow by a factor up to a maximum, with random jitter added."""

    initial: float
    factor: float
    maximum: float  # Before jitter
    jitter: float  # The largest random share added to a delay, 0.1 for up to ten per cent

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row (at least 1)."""
        base = min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))
        return base * (1 + random.uniform(0, self.jitter))  # noqa: S311 - not for security

    def delays(self) -> Iterator[float]:
        """Yield the delays after the first, second, third ... failure in a row, without end."""
        return map(self.delay, count(1))


FAILED = Backoff(initial=0.5, factor=2.0, maximum=10.0, jitter=0.2)
"""After a call that the API server or the network has failed. They recover as a whole, and work goes on soon."""
REFUSED = Backoff(initial=0.5, factor=2.0, maximum=40.0, jitter=0.2)
"""After a call that the API server has refused. Roles, schemas and quotas get repaired, but not in seconds."""


def retry_delay(error: Exception, failures: int) -> float:
    """Return the seconds until a call is tried again after so many failures in a row, of which this error is the last.

    Every loop uses this after a failed call, if it has no reason for another back-off.
    """
    if isinstance(error, ApiUnavailableError):
        return max(FAILED.delay(failures), error.retry_after)
    refused = isinstance(error, ApiRefusedError) and not isinstance(error, ConflictError)
    return (REFUSED if refused else FAILED).delay(failures)


@dataclass(slots=True)
class Retry:
    """How often an operation has failed in a row, and when to try it next. Times are monotonic seconds."""

    backoff: Backoff
    forgiven: float = inf  # After so many seconds without a failure, the next one counts as the first
    failures: int = 0
    next_try: float = -inf
    failed_at: float = -inf

    def fail(self, now: float, error: Exception | None = None) -> float:
        """Record a failure. Return the seconds to wait, never less than the server asks for."""
        if now - self.failed_at > self.forgiven:
            self.failures = 0
        self.failures += 1
        asked = error.retry_after if isinstance(error, ApiUnavailableError) else 0.0
        delay = max(self.backoff.delay(self.failures), asked)
        self.failed_at, self.next_try = now, now + delay
        return delay

    def succeed(self) -> None:
        """Record a success: the next failure counts as the first."""
        self.failures = 0
        self.release()

    def release(self) -> None:
        """Allow the next try at once, in spite of earlier failures."""
        self.next_try = -inf

    @property
    def waiting(self) -> bool:
        """Whether a try has failed, with neither a success nor a release since."""
        return self.next_try > -inf
