"""What the controllers need from the outside world, as Protocols.

`cri`, `kube` and `node` implement these; the tests bring working stand-ins. The errors are those of `lib.errors`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from crrd.core.api.pod import Pod
from crrd.core.api.types import Pin, Request, StartTimes, Status
from crrd.core.recreate.actions import EmitEvent, RunHook
from crrd.core.recreate.observation import ExecResult, Hook, HookResult, Instance


class Runtime(Protocol):
    """The container runtime (or runtimes) of the node."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the runtimes behind it, as in front of container IDs."""

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
        """Every instance of the pod's containers, exited ones too; none for what is no UID.

        `urgent`: a stop waits for the answer, so it does not wait for the pause between looks.
        """

    async def find(self, pin: Pin) -> Instance | None:
        """The instance with exactly this ID, whatever pod it belongs to; None where the runtime has none."""

    async def stop(self, instance: Instance, seconds: float) -> None:
        """CRI StopContainer with this timeout; returns when the container has stopped. An unknown ID counts as stopped.

        RuntimeCallError: an error, or no answer in time. RuntimeUnavailableError: not reached, or the connection broke.
        """

    async def execute(self, instance: Instance, command: tuple[str, ...], seconds: float) -> ExecResult:
        """CRI ExecSync with this timeout; raises as `stop`, also with code DEADLINE_EXCEEDED for what took too long."""


class Hooks(Protocol):
    """Runs preStop hooks."""

    async def run(self, action: RunHook) -> HookResult:
        """Run the hook to its end or for `action.seconds`; a failure is a result. RuntimeUnavailableError."""


class StatusWriter(Protocol):
    """Writes requests. Every method returns the request as it is after the write.

    ConflictError: it is another version than the one that was decided on. GoneError: it was deleted.
    ApiUnavailableError, ApiRefusedError: see there.
    """

    async def write_status(self, request: Request, status: Status) -> Request:
        """Merge-patch the status subresource, bound to the request's UID and resourceVersion."""

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        """Merge-patch the annotation pinned-containers, bound to the request's UID and resourceVersion."""


class Kubelet(Protocol):
    """This node's kubelet, which has to start containers again."""

    async def silent_since(self) -> float | None:
        """Monotonic time since which it does not answer; None while it does, or where nobody can tell."""

    async def minor(self) -> int | None:
        """Its minor version, 36 for 1.36; None where it cannot be learned."""


class EventSink(Protocol):
    """Takes Kubernetes events; never blocks and never raises."""

    def emit(self, event: EmitEvent) -> None:
        """Queue one event for the request and its pod."""


class Observer(Protocol):
    """Receives what the watches report. Calls are synchronous and quick."""

    def request_changed(self, request: Request) -> None:
        """A request was added or modified (or listed)."""

    def request_deleted(self, request: Request) -> None:
        """A request is no more, or no longer this node's, or no longer active."""

    def expect_requests(self) -> None:
        """The newest list of requests is asked for now: it replaces earlier events."""

    def requests_listed(self, requests: Iterable[Request], version: str) -> None:
        """A whole list, as of this resourceVersion: what is not in it is gone."""

    def pod_listed(self, pod_key: str, pod: Pod | None) -> None:
        """What this node has under a pod's `namespace/name`, None for nothing."""

    def pod_changed(self, pod: Pod) -> None:
        """A pod of this node was added or modified."""

    def pod_deleted(self, pod: Pod) -> None:
        """A pod of this node is no more."""

    def pods_listed(self, pods: Iterable[Pod], version: str) -> None:
        """A whole list of this node's pods, as of this resourceVersion: what is not in it is not on this node."""


class Recorder(Protocol):
    """Counts what happens to requests."""

    def begin(self, request: Request) -> "RequestRecorder":
        """A live request is looked at for the first time; returns what counts for it from then on."""


class RequestRecorder(Protocol):
    """Records what happens to one request. Calls are synchronous and quick."""

    def served(self) -> None:
        """The request is the one that its pod is served for now. Called in each round."""

    def work_started(self) -> None:
        """A preStop hook is about to run. `stop_sent` implies it for a stop."""

    def hook_ended(self, hook: Hook, result: HookResult) -> None:
        """A preStop hook has ended."""

    def stop_sent(self, container: str) -> None:
        """A StopContainer is about to be sent."""

    def stop_ended(self, seconds: float) -> None:
        """A container was stopped. Called once, however many requests stopped it; StopContainer took these seconds."""

    def successor_seen(self, container: str) -> None:
        """The runtime lists the next instance of a container that the request waits for. Called in each round."""

    def written(self, before: Request, after: Request) -> None:
        """The request was written; the status says how far it has come, and why containers have failed."""

    def forgotten(self, request: Request) -> None:
        """The request, as last known, is no longer this node's business: it has ended or is gone."""


@dataclass(frozen=True, slots=True)
class Edges:
    """What the node's parts reach the outside world through: one of each port."""

    runtime: Runtime
    hooks: Hooks
    writer: StatusWriter
    find_pod: Callable[[str, str], Awaitable[Pod | None]]
    """Asks the API server, past every cache, for the pod that has this namespace and name now; None where there is
    none. Raises ApiUnavailableError, ApiRefusedError."""
    kubelet: Kubelet
    events: EventSink
    recorder: Recorder
