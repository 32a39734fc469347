"""What can be done about a pod's requests: the values that `decide` returns and the executor carries out.

An action names the request that wants it, in the version that was decided on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import EventReason
from crrd.core.api.types import NO_START_TIMES, Pin, Request, StartTimes, Status
from crrd.core.recreate.observation import Hook, Instance


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the whole status of a request, if it is still the version that was decided on."""

    request: Request
    status: Status


@dataclass(frozen=True, slots=True)
class PinContainers:
    """Persist the target instances of the request, and the start times of their hooks and stops."""

    request: Request
    pins: Mapping[str, Pin]
    start_times: Mapping[str, StartTimes] = field(default_factory=lambda: NO_START_TIMES)


@dataclass(frozen=True, slots=True)
class RunHook:
    """Run a preStop hook inside or against one running instance."""

    request: Request
    instance: Instance
    hook: Hook
    seconds: float  # The longest that it may take: what the grace period still holds
    spent_before: float  # Seconds of the grace period that an earlier life of the daemon has used up
    pod_ip: str = ""  # Of the request's pod, "" where it is not known or the hook does not need it


@dataclass(frozen=True, slots=True)
class StopContainer:
    """CRI StopContainer of one instance: TERM, then KILL after `seconds`."""

    request: Request
    instance: Instance
    seconds: float
    spent_before: float  # See RunHook
    beside: Mapping[str, str] = field(default_factory=dict)  # See Work


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """A Kubernetes event on the request and on its pod."""

    request: Request
    reason: EventReason
    message: str
    container: str = ""
    warning: bool = False
    pod: Pod | None = None  # The request's pod, where it is known


Action = WriteStatus | PinContainers | RunHook | StopContainer | EmitEvent


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again if nothing happens before (monotonic seconds, None for never)."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    poll_runtime: bool = False  # Whether a change in the runtime is awaited: the pod's containers have to be polled
    waits_for_slot: bool = False  # Whether a stop has to wait until one may be sent (`Observation.may_stop`)
    ask_api: bool = False  # Whether `Observation.api_answer` is needed for a final verdict, and a new decision with it
