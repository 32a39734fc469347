"""A run's pods, one row for each, with its stage and what it waits for. `standing` makes them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from crrd.core.api.reasons import Reason
from crrd.core.api.types import StatePhase
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import attempt_of
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait

_READY_SOON, _MOST_DOUBLINGS = timedelta(seconds=30), 9  # See `Row.is_ready_soon`


@dataclass(frozen=True, slots=True)
class Row:
    """One pod of a run."""

    pod: str  # Its name
    uid: str
    stage: Stage
    wait: Wait = NO_WAIT  # What the pod waits for, why it was skipped, or why it failed
    node: str = ""
    member: Member | None = None  # None if the pod no longer exists
    request: RunRequest | None = None  # The pod's newest one; if WAITING: the failed one that is retried
    containers: tuple[str, ...] = ()  # The containers to recreate
    skip: Skip | None = None
    settled_at: datetime | None = None  # If SETTLING: when the pod is done if nothing changes, None if unknown
    needs_step: bool = False  # Whether its request keeps it unready until the run's next step, which restarts it

    @property
    def failed(self) -> str:
        """If WAITING: the name of the request that has failed and is retried, or ""."""
        return self.request.request.name if self.request is not None and self.stage is Stage.WAITING else ""

    @property
    def has_started(self) -> bool:
        """Whether the run has started to work on the pod, now or before."""
        return self.request is not None or self.stage not in (Stage.WAITING, Stage.PUT_OFF, Stage.SKIPPED)

    @property
    def is_odd(self) -> bool:
        """Whether it was skipped for a reason that a user must act on."""
        return self.skip is not None and not self.skip.normal

    @property
    def has_open_request(self) -> bool:
        """Whether the pod has a request that nobody is about to end."""
        return self.request is not None and self.request.is_open

    def waiting_for(self, wait: Wait) -> "Row":
        """Return the row with another wait. `replace` takes four times as long, which counts for thousands of pods."""
        about = self.node, self.member, self.request, self.containers, self.skip, self.settled_at, self.needs_step
        return Row(self.pod, self.uid, self.stage, wait, *about)

    def has_reason(self, *reasons: Reason) -> bool:
        """Whether the pod's request has failed for one of these reasons."""
        return self.request is not None and not _reasons(self.request).isdisjoint(reasons)

    def is_ready_soon(self, now: datetime) -> bool:
        """Whether an unready pod may be ready in a moment: it was, when its last request ended without the image.

        So it needs the budgets of a ready pod, until it has been unready for long. This time doubles with each request,
        so that a pod which comes and goes gets few of them.
        """
        if self.member is None or not self.failed or not self.has_reason(Reason.RUN_STOPPED):
            return False
        since, doublings = self.member.ready_since, min(attempt_of(self.failed) - 1, _MOST_DOUBLINGS)
        return since is None or now < since + _READY_SOON * 2**doublings


def _reasons(asked: RunRequest) -> set[Reason]:
    status = asked.request.status
    return {status.reason, *(each.reason for each in status.states)}


def failure(asked: RunRequest) -> str:
    """Return why a request failed, from its status."""
    status = asked.request.status
    failed = [each for each in status.states if each.phase is StatePhase.FAILED]
    cause = next((each for each in failed if each.reason is not Reason.EARLIER_FAILURE), None)
    return f"{cause.name}: {cause.message}" if cause is not None else status.message or "no reason was recorded"


def tally(rows: Iterable[Row]) -> Mapping[Stage, int]:
    """Return the number of pods in each stage."""
    return dict.fromkeys(Stage, 0) | Counter(row.stage for row in rows)


def count_left(rows: Iterable[Row]) -> int:
    """Return how many pods have not started yet: those that wait, and those that are put off."""
    counts = tally(rows)
    return counts[Stage.WAITING] + counts[Stage.PUT_OFF]


def count_done(rows: tuple[Row, ...]) -> tuple[int, int]:
    """Return how many pods are done or failed, and the total. Skipped and deleted pods do not count."""
    counts = tally(rows)
    left_out = counts[Stage.SKIPPED] + counts[Stage.GONE]
    return counts[Stage.DONE] + counts[Stage.FAILED], len(rows) - left_out


def failed_requests(rows: Iterable[Row]) -> frozenset[str]:
    """Return the requests (UID) that have failed, also those that no node daemon has answered while others go on."""
    failed = (row.request for row in rows if row.stage is Stage.FAILED or row.has_reason(Reason.NO_ANSWER))
    return frozenset(each.request.uid for each in failed if each is not None)


def put_off_pods(rows: Iterable[Row]) -> str:
    """Return the pods that are put off, each with the reason, or ""."""
    return "; ".join(f"{row.pod}: {row.wait.with_command}" for row in rows if row.stage is Stage.PUT_OFF)
