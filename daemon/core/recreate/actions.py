"""What can be done about a pod's requests: the values that `decide` returns and the executor carries out.

An action names the request (and the version of it) that wants it, so that the executor never has to decide anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from daemon.core.api.types import Pin, Request, Status
from daemon.core.recreate.observation import Hook, Instance


class EventReason(StrEnum):
    """Reasons of the Kubernetes events that crrd writes on the pod and on the request."""

    RECREATING = "ContainerRecreating"
    RECREATED = "ContainerRecreated"
    FAILED = "ContainerRecreateFailed"
    HOOK_FAILED = "FailedPreStopHook"
    NO_READINESS_GATE = "NoReadinessGate"


class FailureCause(StrEnum):
    """Why a container is Failed, for counting; the sentence for people is the state's message."""

    INVALID_REQUEST = "invalid_request"
    """The request cannot be served: malformed, or it names what is no container of the pod."""
    NOT_THE_CONTAINER = "not_the_container"
    """A container ID of the request belongs to another pod, container or runtime (step 3)."""
    NOT_RESTARTABLE = "not_restartable"
    """Kubelet would not start the container again, so it was not stopped (step 6)."""
    LEFT_DOWN = "left_down"
    """It has ended, and kubelet leaves it down (step 6)."""
    STOP_FAILED = "stop_failed"
    POD_GONE = "pod_gone"
    """The pod has gone or is being deleted."""
    EARLIER_FAILURE = "earlier_failure"
    """Another container of the request failed under failurePolicy Fail."""


NO_CAUSES: Mapping[str, FailureCause] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the whole status of a request, if it is still the version that was decided on."""

    request: Request
    status: Status
    causes: Mapping[str, FailureCause] = field(default_factory=lambda: NO_CAUSES, compare=False)
    """Why each container that this status makes Failed has failed."""


@dataclass(frozen=True, slots=True)
class PinContainers:
    """Persist which instances the request is about, before anything is done to them."""

    request: Request
    pins: Mapping[str, Pin]


@dataclass(frozen=True, slots=True)
class RunHook:
    """Run a preStop hook inside or against one running instance.

    `seconds` is the longest that it may take: what the grace period still holds.
    """

    request: Request
    instance: Instance
    hook: Hook
    seconds: float


@dataclass(frozen=True, slots=True)
class StopContainer:
    """CRI StopContainer of one instance: TERM, then KILL after `seconds`."""

    request: Request
    instance: Instance
    seconds: float


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """A Kubernetes event on the request and on its pod."""

    request: Request
    reason: EventReason
    message: str
    container: str = ""
    warning: bool = False


Action = WriteStatus | PinContainers | RunHook | StopContainer | EmitEvent


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again if nothing happens before (monotonic seconds, None for never)."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    watch_runtime: bool = False
    """Whether a change in the runtime is awaited: without its event stream the pod's containers have to be polled."""
