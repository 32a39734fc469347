"""Which kubelet started a container, told from the hash that it left on it; and so which one runs on a node now.

The node daemon may not read Nodes. The newest container was started by the running kubelet, and each era of kubelet
hashes in its own way.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from crrd.forecast.report import ForecastInput, is_compared, parse_stored
from crrd.kubelet.hash.container_hash import ERAS, hash_of
from crrd.kubelet.version import NEWEST_MINOR

_LAST = (*(era.since - 1 for era in ERAS[1:]), NEWEST_MINOR)  # The last minor version of each era
HASHERS = tuple(
    minor
    for era, last in reversed(list(zip(ERAS, _LAST, strict=True)))
    for minor in (range(last, era.since - 1, -1) if era.absent_counts else (last,))
)
"""One minor version for each way to hash, the newest first."""


@dataclass(frozen=True, slots=True)
class StoredHash:
    """The hash stored on a container, and the versions that compute it."""

    created_at: int  # Nanoseconds since the epoch, the runtime's clock: for ordering only
    minor: int | None  # A version that hashes today's spec to what is stored, the newest such; None where none does
    counts: bool  # Whether kubelet compares it, and there is something to compare


def stored_hash(container: ForecastInput) -> StoredHash:
    """Try every way to hash, until one gives the stored hash."""
    stored = parse_stored(container.stored_hash)
    minor = None
    if container.spec is not None and stored is not None:
        spec = container.spec
        minor = next((each for each in HASHERS if hash_of(spec, each).value == stored), None)
    counts = stored is not None and container.spec is not None and is_compared(container.kind, minor or NEWEST_MINOR)
    return StoredHash(container.created_at, minor, counts)


def running_minor(hashes: Iterable[StoredHash]) -> int | None:
    """The version that stands for the running kubelet's era: that of the newest container whose hash tells one."""
    newest = max((each for each in hashes if each.minor is not None), key=lambda each: each.created_at, default=None)
    return newest.minor if newest is not None else None


def differing(hashes: Iterable[StoredHash]) -> int | None:
    """How many containers the running kubelet would hash otherwise; None where no container tells which one runs."""
    found = list(hashes)
    running = running_minor(found)
    return None if running is None else sum(each.counts and each.minor != running for each in found)
