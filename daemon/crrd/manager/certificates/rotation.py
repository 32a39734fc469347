"""Decides when the webhook's own certificates are renewed, as pure functions of the time.

Invariant: a client with a bundle that is up to `settle` old trusts every serving certificate in use, at any time.
So a new authority is at first only published, and signs after `settle`. An old one stays in the bundle until it
expires, and no serving certificate outlives the authority that signed it (see `pki`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates last."""

    authority: timedelta = timedelta(days=365)
    serving: timedelta = timedelta(days=90)
    settle: timedelta = timedelta(hours=1)
    """From writing a new authority to its first signature, so that every replica can read and publish it."""
    backdate: timedelta = timedelta(hours=1)  # Certificates start this much before now, because clocks differ


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate is valid."""

    begins: datetime
    ends: datetime

    def has_started(self, now: datetime) -> bool:
        """Whether it is valid already. A certificate that was made while the clock was ahead may not be for months."""
        return self.begins <= now

    @property
    def due(self) -> datetime:
        """When to renew it: after two thirds of its life."""
        return self.begins + (self.ends - self.begins) * 2 / 3


@dataclass(frozen=True, slots=True)
class Inventory:
    """The existing certificates."""

    authority: Validity | None = None  # The one that signs. None if there is none with a usable key
    older: tuple[Validity, ...] = ()  # Authorities that are trusted, but do not sign any more
    serving: Validity | None = None
    """None if there is none that a trusted authority signed, for the right names and with its key."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What to do now."""

    new_authority: bool = False
    new_serving: bool = False
    drop_expired: bool = False

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.new_authority or self.new_serving or self.drop_expired)


def find_due(found: Inventory, now: datetime, lifetimes: Lifetimes) -> Renewal:
    """Return what to do now, the same for all replicas with the same inventory. Future certificates count as absent."""
    authority = found.authority if found.authority and found.authority.has_started(now) else None
    serving = found.serving if found.serving and found.serving.has_started(now) else None
    new_authority = authority is None or now >= authority.due
    drop_expired = any(older.ends <= now for older in found.older)
    if serving is None or now >= serving.ends - lifetimes.settle:
        return Renewal(new_authority, new_serving=True, drop_expired=drop_expired)
    settled = authority is not None and now >= authority.begins + lifetimes.backdate + lifetimes.settle
    may_sign = not new_authority and (settled or not found.older)
    return Renewal(new_authority, new_serving=may_sign and now >= serving.due, drop_expired=drop_expired)
