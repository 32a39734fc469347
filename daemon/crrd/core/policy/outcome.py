"""How the end of a run counts for its policy, and which pods it has left."""

from dataclasses import dataclass

from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import tally
from crrd.core.rollout.waits import Skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of a policy has come to."""

    end: End
    away: tuple[str, ...] = ()  # Pods whose nodes are down or have no node daemon. They are restarted once that is over
    left: tuple[str, ...] = ()  # Other pods that the run could not restart


def outcome_of(plan: Plan, *, gives_image: bool) -> Outcome:
    """Return what a run has come to that ends with this plan.

    Without node daemons on some nodes, a run that `gives_image` cannot end as others do: what new pods are made of
    cannot follow, because pods are left without the image.
    """
    assert plan.end is not None  # noqa: S101 - it is over
    end, rows = plan.end, plan.rows
    odd = [row for row in rows if row.is_odd and row.skip is not Skip.NO_CONTAINER]
    if end is End.DONE and odd:
        end = End.LEFT_OUT
    unserved = gives_image and any(row.skip is Skip.NO_DAEMON for row in odd)
    if end is End.FAILED and unserved and not tally(rows)[Stage.FAILED]:
        end = End.LEFT_OUT
    away = tuple(row.pod for row in rows if row.stage is Stage.PUT_OFF or row.skip is Skip.NO_DAEMON)
    left = tuple(row.pod for row in odd if row.skip is not Skip.NO_DAEMON)
    return Outcome(end, away, left)
