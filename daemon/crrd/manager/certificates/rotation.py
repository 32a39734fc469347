"""When the webhook's own certificates are renewed: the rules, as pure functions of the time.

Invariant: a client with the bundle of `settle` ago trusts every serving certificate in use, at any time.
So a new authority is only published at first, and signs when it has settled; an old one stays in the bundle until it
expires, and no serving certificate outlives the authority that signed it (see `pki`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long things last."""

    authority: timedelta = timedelta(days=365)
    serving: timedelta = timedelta(days=90)
    settle: timedelta = timedelta(hours=1)
    """From a new authority being written to its first signature: for every replica to read it and publish it."""
    backdate: timedelta = timedelta(hours=1)  # How much earlier than now certificates begin: clocks differ


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid."""

    begins: datetime
    ends: datetime

    def has_started(self, now: datetime) -> bool:
        """Whether it is valid already: what a clock that was ahead has made may not be for months."""
        return self.begins <= now

    @property
    def due(self) -> datetime:
        """When it is to be renewed: at two thirds of its life."""
        return self.begins + (self.ends - self.begins) * 2 / 3


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is."""

    authority: Validity | None = None  # The one that signs; None where there is none whose key can be used
    older: tuple[Validity, ...] = ()  # Authorities that are trusted, but sign no more
    serving: Validity | None = None
    """None where there is none that a trusted authority signed, for the right names and with its key."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What is to be done now."""

    new_authority: bool = False
    new_serving: bool = False
    drop_expired: bool = False

    @property
    def nothing(self) -> bool:
        """Whether all is well as it is."""
        return not (self.new_authority or self.new_serving or self.drop_expired)


def find_due(found: Inventory, now: datetime, lifetimes: Lifetimes) -> Renewal:
    """What is to be done now; the same for every replica that finds the same. What is not valid yet is as if absent."""
    authority = found.authority if found.authority and found.authority.has_started(now) else None
    serving = found.serving if found.serving and found.serving.has_started(now) else None
    new_authority = authority is None or now >= authority.due
    drop_expired = any(older.ends <= now for older in found.older)
    if serving is None or now >= serving.ends - lifetimes.settle:
        return Renewal(new_authority, new_serving=True, drop_expired=drop_expired)
    settled = authority is not None and now >= authority.begins + lifetimes.backdate + lifetimes.settle
    may_sign = not new_authority and (settled or not found.older)
    return Renewal(new_authority, new_serving=may_sign and now >= serving.due, drop_expired=drop_expired)
