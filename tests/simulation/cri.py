"""A gRPC channel in memory, in place of grpc.aio's: what the product's CRI client sees of the runtime.

Real messages in, real messages out, and gRPC's own errors with their codes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from grpc.aio import EOF, AioRpcError, Metadata, UsageError

from cri_stubs import api_pb2
from daemon.kubelet.labels import LABEL_POD_UID
from tests.simulation.containers import KILLED

if TYPE_CHECKING:
    from tests.simulation.daemon import Life
    from tests.simulation.world import World

ROOT = "/runtime.v1.RuntimeService/"
LATENCY = 0.002
LIFE: ContextVar["Life"] = ContextVar("LIFE")
_NOTHING = Metadata()


def failed(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, _NOTHING, _NOTHING, details)


def _not_found(container_id: str) -> AioRpcError:
    return failed(grpc.StatusCode.NOT_FOUND, f'an error occurred when try to find container "{container_id}": not found')


@dataclass(slots=True)
class Rule:
    """A fault of some calls for a while."""

    kind: str
    until: float
    about: Mapping[str, Any]
    left: int | None


class Call:
    """One call under way."""

    def __init__(self, life: "Life", method: str, message: Any) -> None:
        self.life = life
        self.method = method
        self.message = message
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.give_up: Callable[[], None] = lambda: None
        """What the runtime does when nobody waits any more."""

    def done(self, outcome: Any) -> None:
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome.SerializeToString())


class Channel:
    """Stands for `grpc.aio.insecure_channel`."""

    def __init__(self, target: str, options: Any = None) -> None:
        self._life = LIFE.get()
        self._closed = False
        self._calls: dict[Call, None] = {}

    def unary_unary(self, path: str, serialize: Any, deserialize: Callable[[bytes], Any]) -> Callable[..., Any]:
        async def run(call: Call) -> Any:
            try:
                return deserialize(await call.future)
            finally:
                self.finish(call)

        return lambda message, timeout=None: run(self._begin(path, message, timeout))

    def unary_stream(self, path: str, serialize: Any, deserialize: Callable[[bytes], Any]) -> Callable[..., Any]:
        def start(message: Any, timeout: float | None = None) -> "EventStream | OneAnswer":
            if path.endswith("GetContainerEvents"):
                self._check_open()
                return EventStream(self._life)
            return OneAnswer(self, self._begin(path, message, timeout), deserialize)

        return start

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("Channel is closed.")

    def _begin(self, path: str, message: Any, seconds: float | None) -> "Call":
        self._check_open()
        loop = asyncio.get_running_loop()
        call = Call(self._life, path.removeprefix(ROOT), message)
        self._calls[call] = None
        if seconds is not None:
            late = failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            call.timer = loop.call_later(seconds, call.done, late)
        self._life.world.cri.accept(call)
        return call

    def finish(self, call: "Call") -> None:
        """Nobody waits for the answer any more."""
        if call not in self._calls:
            return
        del self._calls[call]
        if call.timer is not None:
            call.timer.cancel()
        call.give_up()
        self._life.world.cri.left(call)
        outcome = None
        if call.future.done() and not call.future.cancelled():
            error = call.future.exception()
            outcome = error.code().name if isinstance(error, AioRpcError) else ""
        self._life.world.judge.acted(call, outcome)

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for call in list(self._calls):
            call.future.cancel()


class OneAnswer:
    """A unary call read as a stream: its head comes with its one message."""

    def __init__(self, channel: Channel, call: Call, deserialize: Callable[[bytes], Any]) -> None:
        self._channel = channel
        self._call = call
        self._deserialize = deserialize
        self._read = False

    async def initial_metadata(self) -> Metadata:
        await asyncio.wait({self._call.future})
        return _NOTHING

    async def read(self) -> Any:
        if self._read:
            return EOF
        self._read = True
        return self._deserialize(await self._call.future)

    def cancel(self) -> bool:
        self._channel.finish(self._call)
        return True


class EventStream:
    """One GetContainerEvents."""

    def __init__(self, life: "Life") -> None:
        self._life = life
        self._messages: deque[Any] = deque()
        self._wanted: asyncio.Future[None] | None = None
        life.world.cri.open(self)

    def feed(self, message: Any) -> None:
        self._messages.append(message)
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def read(self) -> Any:
        if not self._messages:
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        message = self._messages.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self) -> bool:
        self._life.world.cri.streams.pop(self, None)
        return True


class Cri:
    """The runtime's side of every call."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.rules: list[Rule] = []
        self.down = False
        self.under_way: dict[Call, None] = {}
        self.streams: dict[EventStream, None] = {}
        self.mute = False
        self.twice = False

    # Faults.

    def rule(self, kind: str, about: Mapping[str, Any]) -> None:
        until = self._world.loop.time() + about["seconds"]
        self.rules.append(Rule(kind, until, about, about.get("times")))

    def go_down(self) -> None:
        self.down = True
        error = failed(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        for call in list(self.under_way):
            call.give_up()
            call.done(error)
        self.break_streams()

    def break_streams(self) -> None:
        for stream in list(self.streams):
            stream.feed(failed(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
        self.streams.clear()

    def event(self, pod_uid: str) -> None:
        if not self.streams or self.mute:
            return
        sandbox = api_pb2.PodSandboxStatus(metadata=api_pb2.PodSandboxMetadata(uid=pod_uid))
        message = api_pb2.ContainerEventResponse(pod_sandbox_status=sandbox)
        for stream in list(self.streams):
            for _ in range(2 if self.twice else 1):
                stream.feed(message)

    def open(self, stream: EventStream) -> None:
        self._world.judge.runtime_called("GetContainerEvents")
        if self.down:
            stream.feed(_nobody())
        else:
            self.streams[stream] = None

    # Calls.

    def accept(self, call: Call) -> None:
        judge, world = self._world.judge, self._world
        judge.runtime_called(call.method)
        if call.life.dead or world.trap(call.method, "before"):
            return
        if call.method in ("StopContainer", "ExecSync"):
            judge.acts(call)
        self.under_way[call] = None
        if self.down:
            self._answer(call, _nobody(), 0.0)
            return
        rule = self._fault(call.method)
        delay = LATENCY
        if rule is not None:
            world.say("cri", f"{call.method}: {rule.kind}")
            match rule.kind:
                case "cri_hang":
                    return
                case "cri_error":
                    error = failed(getattr(grpc.StatusCode, rule.about["code"]), "so it is")
                    self._answer(call, error, delay)
                    return
                case "cri_slow":
                    delay += rule.about["delay"]
        world.loop.call_later(delay, self._carry_out, call, rule.kind if rule else "")

    def left(self, call: Call) -> None:
        """Nobody waits for a call any more."""
        self.under_way.pop(call, None)

    def _fault(self, method: str) -> Rule | None:
        now = self._world.loop.time()
        self.rules = [rule for rule in self.rules if rule.until > now and rule.left != 0]
        for rule in self.rules:
            if rule.about["method"] in ("all", method):
                if rule.left is not None:
                    rule.left -= 1
                return rule
        return None

    def _answer(self, call: Call, outcome: Any, delay: float = LATENCY) -> None:
        def tell() -> None:
            if call not in self.under_way:
                return
            if call.method in ("StopContainer", "ExecSync") and not call.life.dead:
                said = outcome.details() if isinstance(outcome, AioRpcError) else "done"
                self._world.say("cri", f"{call.method} {call.message.container_id} -> {said}")
            call.done(outcome)

        self._world.loop.call_later(delay, tell)

    def _carry_out(self, call: Call, fault: str) -> None:
        if call.life.dead or call not in self.under_way or self.down:
            return

        def reply(outcome: Any) -> None:
            if self._world.trap(call.method, "after") or call.life.dead:
                return
            if fault == "cri_lost":
                outcome = failed(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
            self._answer(call, outcome)

        match call.method:
            case "Version":
                reply(api_pb2.VersionResponse(runtime_name="containerd", runtime_version="v2.1.0"))
            case "ListContainers":
                reply(self._list(call.message.filter))
            case "ContainerStatus":
                found = self._world.containers.present.get(call.message.container_id)
                missing = _not_found(call.message.container_id)
                reply(
                    api_pb2.ContainerStatusResponse(status=self._world.containers.status(found)) if found else missing
                )
            case "StopContainer":
                self._stop(call, reply)
            case "ExecSync":
                self._exec(call, reply)
            case _:
                reply(failed(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {call.method}"))

    def _list(self, wanted: api_pb2.ContainerFilter) -> api_pb2.ListContainersResponse:
        uid = wanted.label_selector.get(LABEL_POD_UID, "")
        found = [
            one.message
            for one in self._world.containers.present.values()
            if (not uid or one.pod_uid == uid) and one.id.startswith(wanted.id)
        ]
        return api_pb2.ListContainersResponse(containers=found)

    def _stop(self, call: Call, reply: Callable[[Any], None]) -> None:
        container = self._world.containers.present.get(call.message.container_id)
        if container is None:
            known = api_pb2.StopContainerResponse() if self._world.setup.unknown_has_stopped else None
            reply(known or _not_found(call.message.container_id))
            return
        call.give_up = self._world.containers.stop(
            container, call.message.timeout, lambda: reply(api_pb2.StopContainerResponse())
        )

    def _exec(self, call: Call, reply: Callable[[Any], None]) -> None:
        container = self._world.containers.present.get(call.message.container_id)
        if container is None:
            reply(_not_found(call.message.container_id))
            return
        if container.state != "running":
            reply(failed(grpc.StatusCode.UNKNOWN, f"container is in CONTAINER_{container.state.upper()} state"))
            return
        self._world.judge.hook_runs(container, call.life)
        timeout = call.message.timeout or float("inf")
        seconds = min(container.shape.hook_seconds, timeout)
        late = failed(grpc.StatusCode.DEADLINE_EXCEEDED, f"timeout {timeout}s exceeded: context deadline exceeded")
        result = api_pb2.ExecSyncResponse(exit_code=container.shape.hook_code, stdout=b"drained")
        killed = api_pb2.ExecSyncResponse(exit_code=KILLED)
        ended = [False]

        def end(outcome: Any) -> None:
            if not ended[0]:
                ended[0] = True
                reply(outcome)

        container.on_end.append(lambda: end(killed))
        self._world.loop.call_later(seconds, end, late if timeout <= container.shape.hook_seconds else result)


def _nobody() -> AioRpcError:
    said = "failed to connect to all addresses; last error: UNKNOWN: unix:/run/sim.sock: connect: No such file or directory"
    return failed(grpc.StatusCode.UNAVAILABLE, said)

