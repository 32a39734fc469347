"""What `crrd explain` finds, as values. `cli.explain_sentences` has the sentences, so nothing has to read one back.

A finding is a reason with the values that its sentence takes; a piece of advice likewise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from crrd.core.api.reasons import Reason
from crrd.core.api.types import Request


class Verdict(StrEnum):
    """The shortest answer."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # Ended, and not every container was recreated
    MOVING = "moving"  # Goes on by itself
    STUCK = "stuck"  # Somebody has to do something, or it will not end well


Topic = StrEnum(
    "Topic",
    # the request as a whole
    "COMPLETED COMPLETED_WITH_FAILURES BEING_RELEASED BEING_DELETED DELETED_ONCE_COMPLETED "
    "NO_POD POD_REPLACED POD_DELETING POD_ENDED NO_LABEL ANOTHER_NODE INVALID "
    "JUST_CREATED NO_ANSWER NO_ANSWER_FOR_LONG ANOTHER_REQUEST_FIRST DAEMON_WAITS "
    "NO_NODE NODE_NOT_READY KUBELET_SILENT NODE_SILENT NO_DAEMON "
    "WAITING_FOR_UNREADY UNREADY UNREADY_GRACE UNREADY_GRACE_OVER TURN_NOT_GIVEN ALL_ENDED "
    # one of its containers
    "TURN_AWAITED RECREATED RECREATED_MORE_THAN_ONCE RECREATED_UNSEEN FAILED NOT_FINISHED "
    "NOT_IN_POD_STATUS STATUS_MESSAGE STOPPING STOP_SENT END_NOT_REPORTED STOPPED NOT_STARTED_AGAIN "
    "BACK_OFF BACK_OFF_OVER IMAGE_NOT_PULLED NOT_CREATED HELD_BACK MIN_STARTED READY NOT_READY "
    # what else is worth knowing
    "MAY_STAY_DOWN DEADLINE DEADLINE_PASSED FORCED NOT_ADMITTED NO_READINESS_GATE NOT_CLEANED_UP "
    "NO_TTL TTL TTL_OVER UNREAD",
)
"""What holds for a request or for one of its containers."""

Step = StrEnum(
    "Step",
    "CHECK_MANAGER CHECK_ANY_MANAGER AWAIT_MANAGER CHECK_ADMISSION CHECK_WEBHOOKS CREATE_AGAIN REMOVE_FINALIZERS "
    "NODE_IS_GONE NODE_IS_NOT_READY DESCRIBE_NODE CHECK_DAEMON FIND_DAEMON START_DAEMON EXPLAIN_FIRST DELETE_FIRST "
    "RUNTIME_DOES_NOT_STOP DAEMON_DOES_NOT_SEE AWAIT_BACK_OFF AWAIT_RETRY CHECK_IMAGE CHECK_CONFIG CHECK_PROBE "
    "DESCRIBE_POD DELETE_POD READ_LOG READ_PREVIOUS_LOG",
)
"""What can be done next."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do."""

    step: Step | Reason  # A reason stands for its remedies in the table of reasons
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What holds, and what can be done about it."""

    reason: Topic
    values: Mapping[str, Any] = field(default_factory=dict)
    """For the sentence; durations are in seconds, None stands for what is not known."""
    since: float | None = None  # For how many seconds it has been so, None where nobody can tell
    stuck: bool = False  # Whether it does not go on by itself
    advice: tuple[Advice, ...] = ()
    container: str = ""  # The container that it is about; "" for the request as a whole


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """Where one container stands."""

    name: str
    phase: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request stands."""

    request: Request
    age: float  # Seconds since its creation
    node: str
    daemon: str  # The pod (`namespace/name`) of the node's daemon; "" where it is not known
    cause: Finding
    containers: tuple[ContainerReport, ...]
    notes: tuple[Finding, ...] = ()  # What else is worth knowing: times left, what is missing, what could not be read

    @property
    def verdict(self) -> Verdict:
        """The shortest answer."""
        if self.cause.reason is Topic.COMPLETED:
            return Verdict.SUCCEEDED
        if self.cause.reason is Topic.COMPLETED_WITH_FAILURES:
            return Verdict.FAILED
        return Verdict.STUCK if self.cause.stuck else Verdict.MOVING
