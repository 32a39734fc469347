"""How long to wait between tries: data, and the one helper that turns it into delays."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow by a factor up to a maximum, each made longer by a random share of itself.

    Attributes:
        initial: seconds before the second try.
        factor: by which each further delay grows.
        maximum: seconds, before jitter.
        jitter: the largest random share that is added, 0.1 for up to ten per cent.
    """

    initial: float
    factor: float
    maximum: float
    jitter: float

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row (at least 1)."""
        exponent = min(failures - 1, 64)
        base = min(self.maximum, self.initial * self.factor**exponent)
        return base * (1 + random.uniform(0, self.jitter))  # noqa: S311 - jitter is no secret

    def delays(self) -> Iterator[float]:
        """The delays after the first, second, third ... failure in a row; never ends."""
        failures = 0
        while True:
            failures += 1
            yield self.delay(failures)
