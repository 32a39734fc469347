"""The interfaces through which the node's controllers reach runtime, kubelet, API server and metrics.

`cri`, `kube` and `node` implement them, and so do stand-ins in the tests. The errors are those of `lib.errors`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from crrd.core.api.pod import Pod
from crrd.core.api.types import Pin, Request, StartTimes, Status
from crrd.core.recreate.actions import EmitEvent, RunHook, RunReload
from crrd.core.recreate.declared import Reload
from crrd.core.recreate.invariants import Rule
from crrd.core.recreate.observation import ExecResult, Hook, HookResult, Instance, Sandbox


class Runtime(Protocol):
    """The container runtime (or runtimes) of the node."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the runtimes, as in container IDs of the API."""

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
        """Return every instance of the pod's containers, also exited ones. Empty if the UID is invalid.

        `urgent`: a stop waits for the answer, so it does not wait for the pause between looks.
        """

    async def false_conditions(self, pod_uid: str) -> Mapping[str, str]:
        """Return which conditions of the pod's runtime are false (CRI Status), and why. Empty if it does not answer.

        Raises nothing.
        """

    async def find(self, pin: Pin) -> Instance | None:
        """Return the instance with exactly this ID, of any pod, or None if the runtime does not have it."""

    async def has_image(self, pod_uid: str, image: str) -> bool:
        """Whether the pod's runtime has this image, so that kubelet could start a container without a pull."""

    async def stop(self, instance: Instance, seconds: float) -> None:
        """CRI StopContainer with this timeout; returns when the container has stopped. An unknown ID counts as stopped.

        RuntimeCallError: an error, or no answer in time. RuntimeUnavailableError: not reached, or the connection broke.
        """

    async def execute(self, instance: Instance, command: tuple[str, ...], seconds: float) -> ExecResult:
        """CRI ExecSync with this timeout. Raises as `stop` does, with the code DEADLINE_EXCEEDED after the timeout."""

    async def sandboxes(self, pod_uid: str) -> tuple[Sandbox, ...]:
        """Return all sandboxes of the pod, also those that are not ready. Empty if the UID is invalid."""

    async def made_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return the sandboxes that crrd has made, of all pods."""

    async def run_sandbox(self, first: Sandbox, request_uid: str) -> None:
        """Make an empty sandbox beside this one of a pod, for this request. Kubelet restarts the pod then.

        It gets the next number (`attempt`), so the runtime makes at most one. Raises as `stop` does.
        """

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Stop and remove a sandbox. One that the runtime does not know counts as removed. Raises as `stop` does."""


class Hooks(Protocol):
    """Runs preStop hooks and reloads."""

    async def run(self, action: RunHook) -> HookResult:
        """Run the hook for at most `action.seconds`. A failed hook is a result. Raises RuntimeUnavailableError."""

    async def reload(self, action: RunReload) -> HookResult:
        """Have a container reload its files, as its pod declares it. As `run`."""


class StatusWriter(Protocol):
    """Writes requests. Every method returns the request after the write.

    ConflictError: its version has changed since the decision. GoneError: it was deleted.
    ApiUnavailableError, ApiRefusedError: see there.
    """

    async def write_status(self, request: Request, status: Status) -> Request:
        """Merge-patch the status subresource, bound to the request's UID and resourceVersion."""

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        """Merge-patch the annotation pinned-containers, bound to the request's UID and resourceVersion."""


class Kubelet(Protocol):
    """This node's kubelet, which restarts containers."""

    async def silent_since(self) -> float | None:
        """The monotonic time since which kubelet does not answer, or None if it answers or is not checked."""

    async def minor(self) -> int | None:
        """Return its minor version (36 for 1.36), or None if it cannot be read."""


class EventSink(Protocol):
    """Takes Kubernetes events; never blocks and never raises."""

    def emit(self, event: EmitEvent) -> None:
        """Queue one event for the request and its pod."""


class Recorder:
    """Counts what happens to requests. This one counts nothing."""

    def begin(self, request: Request) -> "RequestRecorder":
        """Return the recorder of a live request. Called in its first round."""
        return RequestRecorder()

    def withheld(self, rule: Rule) -> None:
        """A decision broke this rule, so its hooks and stops were withheld."""


class RequestRecorder:
    """Records what happens to one request. Calls are synchronous and quick. This one records nothing."""

    def served(self) -> None:
        """The request is the current one of its pod. Called in each round."""

    def work_started(self) -> None:
        """A preStop hook is about to run. `stop_sent` implies it for a stop."""

    def hook_ended(self, hook: Hook, result: HookResult) -> None:
        """A preStop hook has ended."""

    def reload_ended(self, reload: Reload, result: HookResult) -> None:
        """A container has reloaded its files, or could not."""

    def stop_sent(self, container: str) -> None:
        """A StopContainer is about to be sent."""

    def stop_ended(self, seconds: float) -> None:
        """A container was stopped. Called once, however many requests stopped it; StopContainer took these seconds."""

    def pod_restarted(self) -> None:
        """The pod got its second sandbox, so kubelet restarts all containers of the request."""

    def successor_seen(self, container: str) -> None:
        """The runtime lists the next instance of a container that the request waits for. Called in each round."""

    def written(self, before: Request, after: Request) -> None:
        """The request was written, with this status."""

    def forgotten(self, request: Request) -> None:
        """The request has ended or was deleted. Called with its last known version."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The ports of the node daemon, one of each."""

    runtime: Runtime
    hooks: Hooks
    writer: StatusWriter
    find_pod: Callable[[str, str], Awaitable[Pod | None]]
    """Reads the pod with this namespace and name from the API server, not from a cache. Returns None if there is none.
    Raises ApiUnavailableError, ApiRefusedError."""
    kubelet: Kubelet
    events: EventSink
    recorder: Recorder
