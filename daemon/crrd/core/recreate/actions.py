"""The actions for a pod's requests, which `decide` returns and the executor carries out.

An action has the version of its request that the decision was based on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import EventReason
from crrd.core.api.types import NO_START_TIMES, Pin, Request, StartTimes, Status
from crrd.core.recreate.observation import Hook, Instance


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the whole status of a request, if its version has not changed since the decision."""

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
    """Run the preStop hook of a running instance."""

    request: Request
    instance: Instance
    hook: Hook
    seconds: float  # Timeout: the rest of the grace period
    spent_before: float  # Seconds of the grace period that an earlier process has used up
    pod_ip: str = ""  # The pod's IP; "" if it is not known or not needed


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
    pod: Pod | None = None  # The request's pod, if it is known


Action = WriteStatus | PinContainers | RunHook | StopContainer | EmitEvent


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again if nothing happens before (monotonic seconds, None for never)."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    poll_runtime: bool = False  # Whether the runtime must be polled, because the decision waits for a change there
    waits_for_slot: bool = False  # Whether a stop waits for a slot (`ObservedPod.may_stop`)
    ask_api: bool = False  # Whether the next decision needs `ObservedPod.answer`
