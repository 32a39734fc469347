"""What can be done about a pod's containers, and the words for it: the values that `pod_actions` answers with.

Nothing is decided here but what one container's hash says.
"""

from dataclasses import dataclass
from enum import StrEnum

from crrd.kubelet.hash.container_hash import hash_of
from crrd.kubelet.runtime_status import ContainerState
from crrd_localnode.planner.pod_status import ContainerStatus
from crrd_localnode.planner.restarts import Spec


class Cause(StrEnum):
    """Why a container is killed or started."""

    POD_ENDS = "pod ends"  # It is killed with its pod or its sandbox
    DEFINITION_CHANGED = "definition changed"
    LIVENESS = "liveness probe failed"
    STARTUP = "startup probe failed"
    RESIZED = "resize requires restart"
    STATE_UNKNOWN = "state unknown"
    MISSING = "missing"  # There is no instance of it, or none in this sandbox
    NOT_STARTED = "created, not started"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Kill:
    """A container to stop."""

    container: ContainerStatus
    cause: Cause
    message: str  # One sentence, in kubelet's words where it has some
    stage: int = 0
    """Containers of one stage are stopped at the same time, and those of the next one when all of them have ended:
    sidecars come after all others, the last of them first. A stop that has its grace period used up is not waited
    for any longer."""


@dataclass(frozen=True, slots=True)
class Start:
    """A container to start."""

    name: str
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A container instance to remove from the runtime."""

    container: ContainerStatus
    kill: bool  # Whether it has to be stopped before, without a grace period


@dataclass(frozen=True, slots=True)
class Unknown:
    """A running container of which it cannot be told whether it goes on."""

    name: str
    why: str  # What is not known, in half a sentence


@dataclass(frozen=True, slots=True)
class PodActions:
    """What to do about a pod: first `kill` (and all sandboxes, if `kill_pod`), then `remove`, then `start`."""

    kill_pod: bool = False  # Stop every sandbox of the pod, after what `kill` names: all containers
    new_sandbox: bool = False
    """Make one, of the number `attempt`, and remove the init containers' instances, before anything is started."""
    attempt: int = 0  # The number of the sandbox in which containers are started: the present one's, or the new one's
    kill: tuple[Kill, ...] = ()
    start: tuple[Start, ...] = ()
    """In this order: ephemeral containers, init containers as in the spec, then the regular ones."""
    keep: tuple[ContainerStatus, ...] = ()  # Running instances that go on, as far as can be told: see `unknown`
    remove: tuple[Remove, ...] = ()
    """In this order, for the action RestartAllContainers: then the pod has to be looked at again at once."""
    unknown: tuple[Unknown, ...] = ()  # What cannot be told about those of `keep`: none of them is safe
    why: str = ""
    """For the pod as a whole: why it is killed, gets a new sandbox, or begins anew; "" where it is neither."""


def has_changed(spec: Spec, current: ContainerStatus, minor: int) -> bool | Unknown:
    """Whether kubelet 1.`minor` computes another hash than the stored one.

    A stored hash that is missing or broken it takes for 0 (`getContainerInfoFromAnnotations`).
    """
    expected = hash_of(spec, minor)
    if expected.value is None:
        return Unknown(current.name, f"its hash cannot be told: {expected.why}")
    try:
        stored = int(current.hash, 16)
    except ValueError:
        stored = 0
    return stored != expected.value


def resized(current: ContainerStatus) -> tuple[Kill, Start]:
    """The stop and the start of a container whose resources cannot be changed while it runs."""
    message = f"Container {current.name} resize requires restart"
    return Kill(current, Cause.RESIZED, message), Start(current.name, Cause.RESIZED, message)


def missing(spec: Spec) -> Start:
    """The start of a container that the runtime has no instance of."""
    return Start(spec["name"], Cause.MISSING, f"Container {spec['name']} is to run, and there is no instance of it")


def again(spec: Spec, current: ContainerStatus) -> Start:
    """The start of a container whose last instance does not run."""
    name = spec["name"]
    if current.state is ContainerState.EXITED:
        return Start(name, Cause.EXITED, f"Container {name} has exited with code {current.exit_code}")
    if current.state is ContainerState.CREATED:
        return Start(name, Cause.NOT_STARTED, f"Container {name} was created and not started")
    return Start(name, Cause.STATE_UNKNOWN, f"Container {name} is in a state that the runtime does not know")


def of_unknown_state(current: ContainerStatus, what: str) -> Kill:
    """The stop of a container that may run or not, so that there are never two of it."""
    message = f'{what} is in "{current.state}" state, try killing it before restart'
    return Kill(current, Cause.STATE_UNKNOWN, message)
