"""What keeps a policy from acting although no watch reports when it is over, and how soon it is tried again.

docs/operations.md has the same table for users ("What is tried again, and when").
"""

from enum import Enum

from crrd.core.policy.observed import Observed
from crrd.core.policy.reasons import PolicyReason
from crrd.lib.backoff import REFUSED, Backoff

RESYNC_SECONDS = 300.0  # Interval of looks without a change, because new pods may use other objects


class Obstacle(Enum):
    """A row has the pauses between two looks in a row that find it."""

    RIGHT = Backoff(initial=2.0, factor=2.0, maximum=15.0, jitter=0.0)
    """A right is missing, or a field in the CRD of policies. Who has just created a policy may grant the right next."""
    TARGET = Backoff(initial=15.0, factor=2.0, maximum=REFUSED.maximum, jitter=REFUSED.jitter)
    """The API server does not have the kind of the target, or the manager may not watch for it."""
    REFUSAL = Backoff(initial=2.0, factor=2.0, maximum=REFUSED.maximum, jitter=REFUSED.jitter)
    """The API server refuses what a run would write: a quota, a LimitRange, a webhook or a policy denies it."""
    TEMPLATE = Backoff(initial=2.0, factor=2.0, maximum=RESYNC_SECONDS, jitter=0.2)
    """Pods cannot follow their template for another cause. A watch reports most of them: they are in the workload."""


def obstacle_of(found: Observed, *, is_watched: bool) -> Obstacle | None:
    """Return what a look has found, None if nothing. `is_watched`: a watch reports when the target is there."""
    template, stopped = found.template, found.stopped and found.stopped.reason
    if stopped in (PolicyReason.UNREADABLE, PolicyReason.UNPATCHABLE) or found.dropped or found.unrestorable:
        return Obstacle.RIGHT
    if template is not None and template.lacks_right:
        return Obstacle.RIGHT
    if found.refused:
        return Obstacle.REFUSAL
    if stopped is PolicyReason.TARGET:
        return None if is_watched else Obstacle.TARGET
    if template is None or not (template.refused or template.wait or template.problem):
        return None
    return Obstacle.REFUSAL if template.refused else Obstacle.TEMPLATE
