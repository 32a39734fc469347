"""The runtime's side of every CRI call, and all its faults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from grpc.aio import AioRpcError

from cri_stubs import api_pb2
from crrd.kubelet.labels import LABEL_POD_UID
from tests.simulation.containers import KILLED

if TYPE_CHECKING:
    from tests.simulation.daemon import Life
    from tests.simulation.world import SimulatedWorld

from tests.simulation.channel import Call, failed

LATENCY = 0.002
TOLD = 3.0  # Seconds after which a daemon does not use an earlier answer any more


def _not_found(container_id: str) -> AioRpcError:
    return failed(
        grpc.StatusCode.NOT_FOUND, f'an error occurred when try to find container "{container_id}": not found'
    )


@dataclass(slots=True)
class Rule:
    """A fault of some calls for a while."""

    kind: str
    until: float
    about: Mapping[str, Any]
    left: int | None
    well: bool = False  # Whether it skipped the last matching call (`Setup.flaps`)
    hit: bool = False  # Whether it has had an effect


class Cri:
    """The runtime's side of every call."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.rules: list[Rule] = []
        self.down = False
        self.network_down = False  # Kubelet syncs only pods on the host's network then
        self.network_down_since = 0.0
        self._told: set[Life] = set()  # Those daemons whose last call of Status was answered so
        self.under_way: dict[Call, None] = {}

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

    # Calls.

    def accept(self, call: Call) -> None:
        judge, world = self._world.judge, self._world
        judge.runtime_called(call)
        if call.life.dead or world.trap(call.life, call.method, "before"):
            return
        if call.method in ("StopContainer", "ExecSync"):
            judge.acts(call)
        elif call.method == "RunPodSandbox":
            judge.restarts_pod(call)
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
                    text = f"so it is, at {world.loop.time():.3f}"
                    error = failed(getattr(grpc.StatusCode, rule.about["code"]), text)
                    self._answer(call, error, delay)
                    return
                case "cri_slow":
                    delay += rule.about["delay"]
        late = rule.about["delay"] if rule is not None and rule.kind == "cri_late" else 0.0
        world.loop.call_later(delay, self._carry_out, call, rule.kind if rule else "", late)

    def left(self, call: Call) -> None:
        """The caller has gone."""
        if not call.future.done() or call.future.cancelled() or call.future.exception() is not None:
            self._note(call, None)
        self.under_way.pop(call, None)

    def _fault(self, method: str) -> Rule | None:
        now = self._world.loop.time()
        self.rules = [rule for rule in self.rules if rule.until > now and rule.left != 0]
        for rule in self.rules:
            if rule.about["method"] in ("all", method):
                if rule.kind == "cri_error" and self._world.setup.flaps:
                    rule.well = not rule.well
                    if rule.well:
                        continue
                if rule.left is not None:
                    rule.left -= 1
                self._world.count_hit(rule)
                return rule
        return None

    def _answer(self, call: Call, outcome: Any, delay: float = LATENCY) -> None:
        def tell() -> None:
            if call not in self.under_way:
                return
            if call.method in ("StopContainer", "ExecSync") and not call.life.dead:
                said = outcome.details() if isinstance(outcome, AioRpcError) else "done"
                self._world.say("cri", f"{call.method} {call.message.container_id} -> {said}")
            self._note(call, outcome)
            call.done(outcome)

        self._world.loop.call_later(delay, tell)

    def _note(self, call: Call, outcome: Any) -> None:
        """Record what a daemon knows of the network. Without an answer it knows nothing."""
        if call.method != "Status":
            return
        if isinstance(outcome, api_pb2.StatusResponse) and not all(each.status for each in outcome.status.conditions):
            self._told.add(call.life)
        else:
            self._told.discard(call.life)

    def is_told(self, life: "Life") -> bool:
        """Whether a daemon knows that the network is not ready."""
        return life in self._told and self.network_down and self._world.loop.time() - self.network_down_since > TOLD

    def _carry_out(self, call: Call, fault: str, late: float) -> None:
        if call.life.dead or call not in self.under_way or self.down:
            return

        def reply(outcome: Any) -> None:
            if self._world.trap(call.life, call.method, "after") or call.life.dead:
                return
            if fault == "cri_lost":
                outcome = failed(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
            self._answer(call, outcome, LATENCY + late)

        match call.method:
            case "Version":
                reply(api_pb2.VersionResponse(runtime_name=call.runtime, runtime_version="1.0"))
            case "Status":
                conditions = {"RuntimeReady": True, "NetworkReady": not self.network_down}
                found = [api_pb2.RuntimeCondition(type=name, status=status) for name, status in conditions.items()]
                reply(api_pb2.StatusResponse(status=api_pb2.RuntimeStatus(conditions=found)))
            case "ListContainers":
                reply(self._list(call.runtime, call.message.filter))
            case "ImageStatus":
                known = self._world.images.has(call.message.image.image)
                reply(api_pb2.ImageStatusResponse(image=api_pb2.Image(id="sha256:x" if known else "")))
            case "StopContainer":
                self._stop(call, reply)
            case "ExecSync":
                self._exec(call, reply)
            case _ if call.method in self._world.sandboxes.calls:
                self._world.sandboxes.calls[call.method](call, reply)
            case _:
                reply(failed(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {call.method}"))

    def _list(self, runtime: str, wanted: api_pb2.ContainerFilter) -> api_pb2.ListContainersResponse:
        uid = wanted.label_selector.get(LABEL_POD_UID, "")
        found = [
            one.message
            for one in self._world.containers.present.values()
            if one.runtime == runtime
            and (not uid or one.pod_uid == uid or self._world.setup.ignores_filters)
            and one.id.startswith(wanted.id)
        ]
        return api_pb2.ListContainersResponse(containers=found)

    def _stop(self, call: Call, reply: Callable[[Any], None]) -> None:
        container = self._world.containers.get(call)
        if container is None:
            known = api_pb2.StopContainerResponse() if self._world.setup.unknown_has_stopped else None
            reply(known or _not_found(call.message.container_id))
            return
        call.give_up = self._world.containers.stop(
            container, call.message.timeout, lambda: reply(api_pb2.StopContainerResponse())
        )

    def _exec(self, call: Call, reply: Callable[[Any], None]) -> None:
        container = self._world.containers.get(call)
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
    why = "UNKNOWN: unix:/run/sim.sock: connect: No such file or directory"
    return failed(grpc.StatusCode.UNAVAILABLE, f"failed to connect to all addresses; last error: {why}")
