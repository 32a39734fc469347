"""A node in memory behind the controller's ports: a runtime, a kubelet and an API server, in virtual time.

These are not mocks: a stopped container ends, the kubelet starts the next one and reports it, and a written status is
reported by the watch. Faults are switched on by name.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import Pin, Request, StartTimes, Status
from crrd.core.recreate.actions import EmitEvent, RunHook, RunReload
from crrd.core.recreate.observation import NETWORK_READY, ExecResult, Hook, HookResult, Instance, Sandbox, Work
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import ApiUnavailableError, ConflictError, GoneError, RuntimeCallError, RuntimeUnavailableError
from crrd.node.controller import NodeController
from crrd.ports import Edges, Recorder, RequestRecorder
from tests.support.sandboxes import Sandboxes
from tests.support.worlds import NODE, POD_UID, RUNTIME, instance


class OneRecorder(Recorder, RequestRecorder):
    """The recorder of every request, too."""

    def begin(self, _request: Request) -> "OneRecorder":
        return self


class MemoryNode:
    """One pod, default/web, with the given containers. Implements Runtime, Hooks, StatusWriter and EventSink."""

    def __init__(
        self,
        *names: str,
        hook: Hook | None = None,
        policy: RestartPolicy = RestartPolicy.ALWAYS,
        exit_code: int = 137,
        recorder: Recorder | None = None,
        own_pod: str = "",
    ) -> None:
        self.edges = Edges(
            runtime=self,
            hooks=self,
            writer=self,
            find_pod=self._find_named,
            kubelet=self,
            events=self,
            recorder=recorder or Recorder(),
        )
        self.controller = NodeController(NODE, self.edges, own_pod)
        self.known: dict[str, Instance] = {}
        self.sandbox = Sandboxes(lambda: self.known, self._create_next, self.report)
        self.hook = hook
        self.policy = policy
        self.exit_code = exit_code
        self.requests: dict[str, Request] = {}
        self.stop_seconds = 1.0
        self.hook_seconds = 2.0
        self.hook_error = ""
        self.stops: list[tuple[str, float]] = []
        self.hooks_run: list[str] = []
        self.declared: dict[str, str] = {}  # How containers reload, in the pod's annotations
        self.recorded: dict[str, str] | None = None  # The same on the sandbox; None: as in the pod
        self.refreshed = False  # Whether kubelet refreshes files of its containers
        self.refresh = ""  # The pod's annotation for that
        self.unready: set[str] = set()  # Containers whose readiness probe fails
        self.needs_restart: tuple[str, ...] = ()
        self.reload_seconds = 1.0
        self.reload_error = ""
        self.reloads: list[tuple[str, str]] = []  # Instances that began to reload, and by which kind of handler
        self.writes = 0
        self.lists = 0
        self.looks = 0  # Number of calls for the pod's containers
        self.list_seconds = 0.002  # Duration of such a call
        self.emitted: list[EmitEvent] = []
        self.stop_errors: list[Exception] = []
        self.write_errors: list[Exception] = []
        self.write_seconds = 0.005
        self.answer_seconds = 0.0  # Delay of a write's response after its watch event. With 0 there is no event
        self.lost_answers = 0  # This many of the next writes are carried out, but their responses are lost
        self.runtime_down = False
        self.network_problem = ""  # Why the runtime's network is not ready
        self.kubelet_silent: float | None = None
        self.kubelet_minor: int | None = 36
        self.images: set[str] = set()  # Those that the runtime has
        self.faults: dict[str, Exception | float] = {}
        """Calls that go wrong: `find`, `has_image` or `minor`, with the error, or the seconds after which one fails."""
        self.deleting = False  # Whether the API server's own answer reports the pod as being deleted
        self.pod_lost = False  # Whether the API server does not have a pod of that name any more
        self.earlier_pod = False  # Whether the watch begins with the earlier pod of that name
        self.api_away = False  # Whether reading the pod from the API server fails
        self.asked = 0
        self.prune_is_killed = False
        self.prune_reasons = False  # As a CRD without the field `reason`
        self.foreign_answers = 0  # This many of the next writes are not carried out, and get a wrong response
        self.lose_messages = False  # Whether writes lose their messages
        self.lose_annotations = False  # Whether writes lose their annotations
        self.kubelet_seconds = 0.5
        self.gate = False
        self.static_uid = ""
        self.grace: int | None = None  # The pod's grace period, in seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self._process: set[asyncio.Task[Any]] = set()  # Those of the daemon
        for name in names or ("app",):
            self._create(name, "old" if len(names) < 2 else f"old-{name}")

    # The node.

    async def __aenter__(self) -> Self:
        others = set(self._tasks)
        self._spawn(self.controller.watch_pods(self._watch_pods))
        self._spawn(self.controller.poll_runtime())
        self._process = self._tasks - others
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.controller.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def kill(self) -> None:
        """kill -9 of the daemon. The next one begins at once; runtime and kubelet go on."""
        await self.controller.close()
        for task in self._process:
            task.cancel()
        self.controller = NodeController(NODE, self.edges)
        await self.__aenter__()
        for each in self.requests.values():
            self.controller.pods.requests.put(each)

    def post(self, request: Request) -> None:
        """Create a request."""
        self.requests[request.uid] = request
        self.controller.pods.requests.put(request)

    def delete(self, uid: str) -> None:
        """Delete a request."""
        self.controller.pods.requests.delete(self.requests.pop(uid))

    def status(self, uid: str = "r1") -> Status:
        """Return a request's status in the API."""
        return self.requests[uid].status

    @property
    def works(self) -> dict[tuple[str, str], Work]:
        """What the node remembers of its hooks and stops, by request UID and container ID."""
        records = self.controller.pods.peek("default/web").requests.items()
        return {(uid, container_id): work for uid, each in records for container_id, work in each.works.items()}

    @property
    def expiries(self) -> set[tuple[str, str]]:
        """Those of them that a timer is to drop."""
        records = self.controller.pods.peek("default/web").requests.items()
        return {(uid, container_id) for uid, each in records for container_id in each.expiries}

    async def until(self, condition: Callable[[], bool], seconds: float = 600.0) -> None:
        """Wait until a condition is met, in virtual time."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)

    async def completed(self, uid: str = "r1") -> Status:
        """Wait until a request has ended, and return its status."""
        await self.until(lambda: self.requests[uid].completed)
        return self.status(uid)

    def view(self) -> Pod:
        """Return the pod in the API."""
        containers = {}
        for name in {known.name for known in self.known.values()}:
            newest = max((i for i in self.known.values() if i.name == name), key=lambda i: i.created_at)
            running = newest.state is ContainerState.RUNNING
            containers[name] = PodContainer(
                name,
                restart_policy=self.policy,
                container_id=newest.pin.container_id,
                running=running,
                terminated=newest.state is ContainerState.EXITED,
                exit_code=self.exit_code if newest.state is ContainerState.EXITED else None,
                ready=running and name not in self.unready,
                reload=self.declared.get(name, ""),
                refreshed=self.refreshed,
                needs_restart=self.needs_restart,
            )
        return Pod(
            "default",
            "web",
            "uid-of-web",
            containers=containers,
            readiness_gate=self.gate,
            pod_ip="127.0.0.1",
            node_name=NODE,
            grace_seconds=self.grace,
            static_uid=self.static_uid,
            deleting=self.deleting,
            refresh=self.refresh,
        )

    def report(self) -> None:
        """The watch reports the pod."""
        self.controller.pods.pod_changed(self.view())

    def _create_next(self, name: str) -> None:
        self._create(name, f"{name}-{len(self.known)}")

    def _create(self, name: str, container_id: str) -> None:
        count = sum(1 for known in self.known.values() if known.name == name)
        made = instance(container_id, name, created_at=len(self.known) + 1, restart_count=count)
        made = replace(made, sandbox=self.sandbox.newest.id)
        self.known[container_id] = replace(made, hook=self.hook, pod_uid=self.static_uid or made.pod_uid)

    async def _kubelet(self, name: str) -> None:
        await asyncio.sleep(self.kubelet_seconds)
        self.report()
        if self.policy is RestartPolicy.ALWAYS or self.exit_code != 0:
            self._create_next(name)
        self.report()

    async def _watch_pods(self) -> None:
        self.lists += 1
        await asyncio.sleep(0.01)
        view = replace(self.view(), uid="uid-of-earlier") if self.earlier_pod else self.view()
        self.controller.pods.pods_listed([view], "12")
        await asyncio.Event().wait()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

    # Runtime.

    @property
    def names(self) -> frozenset[str]:
        return frozenset({RUNTIME})

    def _reach(self) -> None:
        if self.runtime_down:
            raise RuntimeUnavailableError("the runtime is away")

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
        self.looks += 1
        self._reach()
        await asyncio.sleep(self.list_seconds)
        return tuple(known for known in self.known.values() if known.pod_uid == pod_uid)

    async def _disturb(self, call: str) -> None:
        fault = self.faults.get(call)
        if isinstance(fault, float):
            await asyncio.sleep(fault)
            raise RuntimeCallError(f"{call} took too long", code="DEADLINE_EXCEEDED")
        if fault is not None:
            raise fault

    async def false_conditions(self, pod_uid: str) -> dict[str, str]:
        return {NETWORK_READY: self.network_problem} if self.network_problem else {}

    async def find(self, pin: Pin) -> Instance | None:
        self._reach()
        await self._disturb("find")
        return self.known.get(pin.bare_id)

    async def has_image(self, pod_uid: str, image: str) -> bool:
        self._reach()
        await self._disturb("has_image")
        return image in self.images

    async def stop(self, instance: Instance, seconds: float) -> None:
        self._reach()
        self.stops.append((instance.id, seconds))
        await asyncio.sleep(self.stop_seconds)
        if self.stop_errors:
            raise self.stop_errors.pop(0)
        self.known[instance.id] = replace(self.known[instance.id], state=ContainerState.EXITED)
        self._spawn(self._kubelet(instance.name))

    async def execute(self, instance: Instance, command: tuple[str, ...], seconds: float) -> ExecResult:
        raise AssertionError("hooks are run by `run` here")

    async def sandboxes(self, pod_uid: str) -> tuple[Sandbox, ...]:
        self._reach()
        await asyncio.sleep(self.list_seconds)
        own = pod_uid == (self.static_uid or POD_UID)
        reloads = self.declared if self.recorded is None else self.recorded
        known = self.sandbox.known.values()
        return tuple(replace(each, pod_uid=pod_uid, reloads=reloads) for each in known if own)

    async def made_sandboxes(self) -> tuple[Sandbox, ...]:
        self._reach()
        await asyncio.sleep(self.list_seconds)
        return tuple(each for each in self.sandbox.known.values() if each.request_uid)

    async def run_sandbox(self, first: Sandbox, request_uid: str) -> None:
        self._reach()
        self._spawn(self.sandbox.sync(self.sandbox.seconds + self.kubelet_seconds))
        made = asyncio.ensure_future(self.sandbox.run(first, request_uid))
        self._tasks.add(made)
        await asyncio.shield(made)  # the runtime goes on when the daemon is killed

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        self._reach()
        await self.sandbox.remove(sandbox)

    # Reading the pod from the API server, KubeletHealth.

    async def _find_named(self, namespace: str, name: str) -> Pod | None:
        return await self.find_pod() if (namespace, name) == ("default", "web") else None

    async def find_pod(self) -> Pod | None:
        self.asked += 1
        await asyncio.sleep(0.003)
        if self.api_away:
            raise ApiUnavailableError("away")
        return None if self.pod_lost else self.view()

    async def silent_since(self) -> float | None:
        return self.kubelet_silent

    async def minor(self) -> int | None:
        if isinstance(seconds := self.faults.get("minor"), float):
            await asyncio.sleep(seconds)
        return self.kubelet_minor

    # Hooks, StatusWriter, EventSink.

    async def run(self, action: RunHook) -> HookResult:
        assert action.pod_ip == "127.0.0.1"
        self.hooks_run.append(action.instance.id)
        await asyncio.sleep(self.hook_seconds)
        return HookResult(self.hook_seconds, self.hook_error)

    async def reload(self, action: RunReload) -> HookResult:
        self.reloads.append((action.instance.id, action.reload.kind))
        await asyncio.sleep(self.reload_seconds)
        return HookResult(self.reload_seconds, self.reload_error, "" if self.reload_error else "reread 2 files")

    async def write_status(self, request: Request, status: Status) -> Request:
        return await self._write(request, status=status)

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        return await self._write(request, pinned=dict(pins), start_times=dict(start_times))

    async def _write(self, request: Request, **changes: Any) -> Request:
        await asyncio.sleep(self.write_seconds)
        self.writes += 1
        if self.write_errors:
            raise self.write_errors.pop(0)
        if self.foreign_answers:
            self.foreign_answers -= 1
            return replace(request, uid="", status=Status())
        current = self.requests.get(request.uid)
        if current is None:
            raise GoneError("not found")
        if current.resource_version != request.resource_version:
            raise ConflictError("the object has been modified")
        if self.prune_is_killed and "status" in changes:
            states = tuple(replace(state, is_killed=False) for state in changes["status"].states)
            changes["status"] = replace(changes["status"], states=states)
        if self.prune_reasons and "status" in changes:
            states = tuple(replace(state, reason=Reason.NONE) for state in changes["status"].states)
            changes["status"] = replace(changes["status"], reason=Reason.NONE, states=states)
        if self.lose_annotations:
            changes.pop("pinned", None)
            changes.pop("start_times", None)
        if self.lose_messages and "status" in changes:
            states = tuple(replace(state, message="") for state in changes["status"].states)
            changes["status"] = replace(changes["status"], message="", states=states)
        written = replace(current, resource_version=str(int(current.resource_version) + 1), **changes)
        self.requests[request.uid] = written
        if self.answer_seconds or self.lost_answers:
            self.controller.pods.requests.put(written)
            await asyncio.sleep(self.answer_seconds)
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiUnavailableError("no answer in time")
        return written

    def emit(self, event: EmitEvent) -> None:
        self.emitted.append(event)
