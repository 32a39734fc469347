"""A decision: the actions that the executor carries out, and when to look again.

An action has the version of its request that the decision was based on. What is decided about a container or a request
is a value, too, and `joined` makes one decision of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import EventReason
from crrd.core.api.types import NO_START_TIMES, WHOLE_POD, Pin, Request, StartTimes, Status
from crrd.core.recreate.declared import Reload
from crrd.core.recreate.observation import Hook, Instance, Sandbox


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
class _OnInstance:
    """Work on one container instance."""

    request: Request
    instance: Instance

    @property
    def target(self) -> Instance:
        """What it works on."""
        return self.instance

    @property
    def name(self) -> str:
        """The name of its work (`Work.name`)."""
        return self.instance.name


@dataclass(frozen=True, slots=True)
class RunHook(_OnInstance):
    """Run the preStop hook of a running instance."""

    hook: Hook
    seconds: float  # Timeout: the rest of the grace period
    spent_before: float  # Seconds of the grace period that an earlier process has used up
    pod_ip: str = ""  # The pod's IP; "" if it is not known or not needed


@dataclass(frozen=True, slots=True)
class StopContainer(_OnInstance):
    """CRI StopContainer of one instance: TERM, then KILL after `seconds`."""

    seconds: float
    spent_before: float  # See RunHook
    beside: Mapping[str, str] = field(default_factory=dict)  # See Work


@dataclass(frozen=True, slots=True)
class RunReload(_OnInstance):
    """Have a running instance reload its files. It is not stopped."""

    reload: Reload
    pod_ip: str = ""  # See RunHook
    spent_before: float = 0.0  # See RunHook


@dataclass(frozen=True, slots=True)
class RestartPod:
    """Make a second sandbox beside the pod's, so that kubelet restarts the whole pod."""

    request: Request
    target: Sandbox  # The one that is to go
    grace: float  # Of the pod, in seconds
    spent_before: float = 0.0  # See RunHook

    @property
    def name(self) -> str:
        """The name of its work (`Work.name`)."""
        return WHOLE_POD


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """A Kubernetes event on the request and on its pod."""

    request: Request
    reason: EventReason
    message: str
    container: str = ""
    warning: bool = False
    pod: Pod | None = None  # The request's pod, if it is known


WorkAction = RunHook | StopContainer | RunReload | RestartPod
Action = WriteStatus | PinContainers | WorkAction | EmitEvent


def earliest(*times: float | None) -> float | None:
    """Return the first of these times, None if there is none."""
    return min((at for at in times if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again if nothing happens before (monotonic seconds, None for never).

    The decisions about parts of a request, and about the requests of a pod, add up to one: `a + b`, `joined`.
    """

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    poll_runtime: bool = False  # Whether the runtime must be polled, because the decision waits for a change there
    waits_for_slot: bool = False  # Whether a stop waits for a slot (`ObservedPod.may_stop`)
    ask_api: bool = False  # Whether the next decision needs `ObservedPod.answer`

    def __add__(self, other: "Decision") -> "Decision":
        return joined((self, other))


NOTHING = Decision()


def joined(decisions: Iterable[Decision]) -> Decision:
    """Return one decision for all that was decided."""
    made = tuple(decisions)
    return Decision(
        actions=tuple(action for each in made for action in each.actions),
        wake_at=earliest(*(each.wake_at for each in made)),
        poll_runtime=any(each.poll_runtime for each in made),
        waits_for_slot=any(each.waits_for_slot for each in made),
        ask_api=any(each.ask_api for each in made),
    )
