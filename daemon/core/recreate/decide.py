"""What to do next about all requests of one pod: the state machine of a ContainerRecreateRequest.

`decide` takes what is known (requests, observation, time) and returns what to do and when to look again. It keeps no
state: after a crash the same request, runtime and pod give the same decision. Step numbers are those of the contract.

The invariant, checked by the property tests at every step: a StopContainer or RunHook names a live request of the
pod, an instance that this request means (its statusContext, or what it pinned), that runs, that nothing else is at
work on, and whose pod kubelet would start again; a Completed status is never followed by another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from daemon.core.api.pod import Pod, PodContainer
from daemon.core.api.types import (
    FailurePolicy,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
)
from daemon.core.recreate.actions import (
    NO_CAUSES,
    Action,
    Decision,
    EmitEvent,
    EventReason,
    FailureCause,
    PinContainers,
    RunHook,
    StopContainer,
    WriteStatus,
)
from daemon.core.recreate.checks import (
    Gate,
    grace_of,
    held_back,
    not_looked_up,
    stop_seconds,
    target_of,
    unready_gate,
    will_not_return,
    wrong_container,
    wrong_identity,
)
from daemon.core.recreate.observation import Instance, Observation
from daemon.kubelet.runtime_status import ContainerState

POD_PATIENCE = 60.0
"""Seconds after which a pod that was never seen on this node counts as gone."""
QUIET = 1.0
"""Seconds that a wait for the pod or a container goes on before it is worth a status write."""
STOP_ATTEMPTS = 5
STOP_SETTLE = 10.0
"""Seconds that a container may still be listed as running after its stop was reported as done."""
RETRY_FIRST = 0.5
RETRY_LIMIT = 50.0
"""Step 9: the wait after a failed stop doubles from the first to the limit."""

POD_GONE = "pod has gone"
POD_DELETING = "pod is being deleted"

REQUEST_MOVES = {
    RequestPhase.EMPTY: frozenset(RequestPhase) - {RequestPhase.EMPTY},
    RequestPhase.PENDING: frozenset({RequestPhase.PENDING, RequestPhase.RECREATING, RequestPhase.COMPLETED}),
    RequestPhase.RECREATING: frozenset({RequestPhase.RECREATING, RequestPhase.COMPLETED}),
    RequestPhase.COMPLETED: frozenset[RequestPhase](),
}
STATE_MOVES = {
    StatePhase.PENDING: frozenset(StatePhase),
    StatePhase.RECREATING: frozenset(StatePhase) - {StatePhase.PENDING},
    StatePhase.SUCCEEDED: frozenset({StatePhase.SUCCEEDED}),
    StatePhase.FAILED: frozenset({StatePhase.FAILED}),
}


class IllegalMoveError(Exception):
    """A phase was about to move against the tables: a bug of this module, never a state of the world."""


def check_move(old: Status, new: Status) -> None:
    """Raise IllegalMoveError unless the status may become the new one."""
    if new.phase not in REQUEST_MOVES[old.phase]:
        raise IllegalMoveError(f"request: {old.phase or 'new'} -> {new.phase}")
    for state in new.states:
        if state.phase not in STATE_MOVES[old.state(state.name).phase]:
            raise IllegalMoveError(f"container {state.name}: {old.state(state.name).phase} -> {state.phase}")


def decide(requests: Sequence[Request], seen: Observation, now: float) -> Decision:
    """Decide about all requests of one pod.

    Args:
        requests: every request of the pod that is known, in any order, ended ones too.
        seen: what is known of the pod, its containers and this process' own work on them.
        now: monotonic seconds, the same clock as in `seen`.
    """
    turn = _Turn(seen, now)
    sound: list[Request] = []
    for request in requests:
        if not request.live:
            continue
        if request.error:
            turn.give_up(request, request.error, FailureCause.INVALID_REQUEST)
        else:
            sound.append(request)
    sound.sort(key=turn_order)
    if sound:
        turn.serve(sound[0])
        for request in sound[1:]:
            if request.status.phase is RequestPhase.EMPTY:
                turn.write(request, Status(RequestPhase.PENDING, _all_states(request, ())))
    return Decision(tuple(turn.actions), turn.wake_at, turn.watch_runtime)


def turn_order(request: Request) -> tuple[bool, str, str]:
    """Step 2: one that is Recreating first, then the oldest, then by name."""
    return (request.status.phase is not RequestPhase.RECREATING, request.created, request.name)


def retry_delay(attempts: int) -> float:
    """Seconds to wait after this many failed attempts (at least 1), without jitter."""
    return float(min(RETRY_LIMIT, RETRY_FIRST * 2 ** (attempts - 1)))


@dataclass(slots=True)
class _Move:
    """What became of one container in this round."""

    state: RecreateState
    blocks: bool = False
    """Whether the next container has to wait: this one's stop has not ended."""


@dataclass(slots=True)
class _Turn:
    """One round over the requests of one pod; collects what `decide` returns."""

    seen: Observation
    now: float
    actions: list[Action] = field(default_factory=list)
    wake_at: float | None = None
    watch_runtime: bool = False
    causes: dict[str, dict[str, FailureCause]] = field(default_factory=dict)
    """Request UID -> container name -> why it has failed in this round."""
    hook_runs: bool = False
    """Whether a hook starts or is under way: worth a write of its own only when it takes a while."""

    def wake(self, at: float | None) -> None:
        """Look again at this time at the latest."""
        if at is not None and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at

    def serve(self, request: Request) -> None:
        """The pod's current request: all its containers, then the phase that follows from them."""
        pod = self.seen.pod
        if pod is None:
            self.await_pod(request)
            return
        if request.pod_uid and pod.uid != request.pod_uid:
            reason = f"{POD_GONE}: the request is for UID {request.pod_uid}, {request.pod_key} now has UID {pod.uid}"
            self.give_up(request, reason, FailureCause.POD_GONE)
            return
        if pod.deleting:
            self.give_up(request, POD_DELETING, FailureCause.POD_GONE)
            return
        if self.pin_missing(request, pod):
            return
        gate = unready_gate(request, self.seen, pod, self.now)
        states: list[RecreateState] = []
        blocked = False
        for container in request.containers:
            move = self.move(request, container, pod, gate, blocked=blocked)
            states.append(move.state)
            unfinished = not move.state.phase.final
            blocked = blocked or move.blocks or (request.strategy.ordered and unfinished)
            if move.state.phase is StatePhase.FAILED and request.strategy.failure_policy is FailurePolicy.FAIL:
                break
        self.settle(request, tuple(states), gate)

    def settle(self, request: Request, states: tuple[RecreateState, ...], gate: Gate) -> None:
        """Steps 10 and 11: complete the request, or write how far it has come."""
        failed = [state for state in states if state.phase is StatePhase.FAILED]
        if failed and request.strategy.failure_policy is FailurePolicy.FAIL:
            cause = f'container "{failed[0].name}" failed'
            states = self.fail_rest(
                request, states, FailureCause.EARLIER_FAILURE, f"not awaited: {cause}", f"not started: {cause}"
            )
        if all(state.phase.final for state in states):
            self.write(request, Status(RequestPhase.COMPLETED, states, _summary(states, gate), self.seen.utc))
            return
        status = Status(RequestPhase.RECREATING, states, gate.message)
        quiet_until = self.seen.first_seen.get(request.uid, self.now) + QUIET
        if self.hook_runs and self.now < quiet_until and _only_begun(request.status, status):
            self.wake(quiet_until)
            return
        self.write(request, status)

    def await_pod(self, request: Request) -> None:
        """Step 6: a pod not seen yet is waited for; one that has gone ends the request."""
        if self.seen.pod_gone:
            self.give_up(request, POD_GONE, FailureCause.POD_GONE)
            return
        first_seen = self.seen.first_seen.get(request.uid, self.now)
        if self.seen.pods_since is not None:
            since = max(first_seen, self.seen.pods_since)
            if self.now >= since + POD_PATIENCE:
                self.give_up(request, POD_GONE, FailureCause.POD_GONE)
                return
            self.wake(since + POD_PATIENCE)
        if self.now < first_seen + QUIET:
            self.wake(first_seen + QUIET)
            return
        message = f"waiting to see pod {request.pod_key} on node {self.seen.node_name}"
        phase = request.status.phase if request.status.phase is RequestPhase.RECREATING else RequestPhase.PENDING
        self.write(request, Status(phase, _all_states(request, ()), message))

    def pin_missing(self, request: Request, pod: Pod) -> bool:
        """Steps 4 and 5: persist which instances are meant where nobody has said so; True when a write is needed."""
        pins = {}
        for container in request.containers:
            newest = self.seen.newest(container.name)
            if (
                newest is not None
                and target_of(request, container) is None
                and not request.status.state(container.name).phase.final
                and not wrong_container(request, container, pod)
                and not wrong_identity(request, container, self.seen)
                and not will_not_return(pod.containers[container.name], pod, newest, exited=False)
            ):
                pins[container.name] = newest.pin
        if pins:
            self.actions.append(PinContainers(request, {**request.pinned, **pins}))
        return bool(pins)

    def move(self, request: Request, container: RequestedContainer, pod: Pod, gate: Gate, *, blocked: bool) -> _Move:
        """One container of the current request."""
        old = request.status.state(container.name)
        if old.phase.final:
            return _Move(old)
        if problem := wrong_container(request, container, pod):
            return self.fail(request, old, FailureCause.INVALID_REQUEST, problem)
        if problem := wrong_identity(request, container, self.seen):
            return self.fail(request, old, FailureCause.NOT_THE_CONTAINER, problem)
        if not_looked_up(request, container, self.seen):
            self.wake(self.now)
            return _Move(old, blocks=True)
        status = pod.containers[container.name]
        newest, target = self.seen.newest(container.name), target_of(request, container)
        if target is not None and self.seen.sent.get(target.bare_id) == request.uid:
            old = replace(old, is_killed=True)
        if newest is None and target is None:
            return self.hold(request, old, "the container has not been created yet")
        if newest is None:
            return self.await_successor(old, status)
        exited = newest.state is ContainerState.EXITED
        recreated = target is not None and (newest.id != target.bare_id or newest.restart_count > target.restart_count)
        if not recreated and not exited:
            return self.stop(request, old, newest, (status, pod), gate, blocked=blocked)
        if exited and (reason := will_not_return(status, pod, newest, exited=True)):
            return self.fail(request, old, FailureCause.LEFT_DOWN, reason)
        if exited:
            return self.await_successor(old, status)
        return self.await_ready(request, old, status, newest)

    def stop(
        self,
        request: Request,
        old: RecreateState,
        instance: Instance,
        where: tuple[PodContainer, Pod],
        gate: Gate,
        *,
        blocked: bool,
    ) -> _Move:
        """Steps 6 to 9: the instance that has to go still runs."""
        owner = self.seen.busy.get(instance.id)
        if owner is not None:
            if owner == request.uid:
                self.hook_runs = self.hook_runs or instance.id not in self.seen.sent
                return _Move(replace(old, phase=StatePhase.RECREATING), blocks=True)
            return self.hold(request, old, "a stop of this container by another request is under way", blocks=True)
        attempt = self.seen.stops.get(instance.id)
        if attempt is not None and not attempt.error:
            return self.settle_stop(request, old, attempt.ended)
        if reason := will_not_return(*where, instance, exited=False):
            return self.fail(request, old, FailureCause.NOT_RESTARTABLE, reason)
        if attempt is not None:
            if attempt.count >= STOP_ATTEMPTS:
                reason = f"stopping failed {attempt.count} times, last with: {attempt.error}"
                return self.fail(request, old, FailureCause.STOP_FAILED, reason)
            retry_at = attempt.ended + retry_delay(attempt.count)
            if self.now < retry_at:
                self.wake(retry_at)
                return _Move(
                    replace(old, phase=StatePhase.RECREATING, message=f"stopping failed: {attempt.error}"), blocks=True
                )
        if instance.state is ContainerState.CREATED:
            return self.hold(request, old, "the container is created but not started yet", blocks=True)
        if not gate.open:
            self.wake(gate.wake_at)
            return _Move(old, blocks=True)
        hook = self.seen.hooks.get(instance.id)
        if blocked or (self.seen.draining and hook is None):
            return _Move(old, blocks=True)
        return self.act(request, old, instance, gate)

    def act(self, request: Request, old: RecreateState, instance: Instance, gate: Gate) -> _Move:
        """Step 9: nothing stands in the way: the hook, then the stop."""
        hook, attempt = self.seen.hooks.get(instance.id), self.seen.stops.get(instance.id)
        grace = grace_of(request, instance)
        if hook is None and attempt is None and not old.is_killed:
            self.emit(request, EventReason.RECREATING, f"Stopping container {old.name} to recreate it", old.name)
            if gate.message:
                self.emit(request, EventReason.NO_READINESS_GATE, f"Request {request.name}: {gate.message}")
            if instance.hook is not None and grace > 0:
                self.actions.append(RunHook(request, instance, instance.hook, float(grace)))
                self.hook_runs = True
                return _Move(replace(old, phase=StatePhase.RECREATING), blocks=True)
        message = "" if attempt is not None else old.message
        if hook is not None and hook.error:
            message = f"preStop hook failed: {hook.error}"
            self.emit(request, EventReason.HOOK_FAILED, f"Container {old.name}: {message}", old.name, warning=True)
        killed = RecreateState(old.name, StatePhase.RECREATING, message, is_killed=True)
        if hook is None or old.is_killed:
            # With a hook behind it, the stop waits until the request says so: a restarted daemon must not run it again.
            self.actions.append(StopContainer(request, instance, stop_seconds(request, instance, self.seen, self.now)))
        return _Move(killed, blocks=True)

    def settle_stop(self, request: Request, old: RecreateState, ended: float) -> _Move:
        """The runtime said that the container has stopped, but still lists it as running."""
        if self.now >= ended + STOP_SETTLE:
            reason = "the runtime reported the container as stopped, but it still runs"
            return self.fail(request, old, FailureCause.STOP_FAILED, reason)
        self.wake(self.now + 0.5)
        self.watch_runtime = True
        return _Move(replace(old, phase=StatePhase.RECREATING))

    def await_successor(self, old: RecreateState, status: PodContainer) -> _Move:
        """Step 10: the instance is gone; kubelet has to make the next one."""
        self.watch_runtime = True
        return _Move(replace(old, phase=StatePhase.RECREATING, message=held_back(status) or _kept(old)))

    def await_ready(self, request: Request, old: RecreateState, status: PodContainer, newest: Instance) -> _Move:
        """Step 10: the next instance is there; the pod's status has to show it running and ready."""
        waiting = _Move(replace(old, phase=StatePhase.RECREATING, message=_kept(old)))
        if newest.state is not ContainerState.RUNNING:
            return self.await_successor(old, status)
        if status.container_id != newest.pin.container_id or not (status.running and status.ready):
            return waiting
        least = request.strategy.min_started_seconds
        if least > 0:
            running = newest.running_seconds or 0.0
            if running < least:
                self.wake(self.now + max(0.05, least - running))
                return waiting
        message = f"Container {old.name} was recreated as {newest.pin.container_id}"
        self.emit(request, EventReason.RECREATED, message, old.name)
        return _Move(replace(old, phase=StatePhase.SUCCEEDED, message=_kept(old)))

    def hold(self, request: Request, old: RecreateState, message: str, *, blocks: bool = True) -> _Move:
        """Something has to happen before the container's turn; said only when it takes a while."""
        self.watch_runtime = True
        quiet_until = self.seen.first_seen.get(request.uid, self.now) + QUIET
        if self.now < quiet_until:
            self.wake(quiet_until)
            return _Move(old, blocks=blocks)
        return _Move(replace(old, message=message), blocks=blocks)

    def fail(self, request: Request, old: RecreateState, cause: FailureCause, reason: str) -> _Move:
        """The container is not recreated by this request."""
        self.causes.setdefault(request.uid, {})[old.name] = cause
        self.emit(request, EventReason.FAILED, f"Container {old.name}: {reason}", old.name, warning=True)
        return _Move(replace(old, phase=StatePhase.FAILED, message=reason))

    def fail_rest(
        self,
        request: Request,
        states: Iterable[RecreateState],
        cause: FailureCause,
        reason: str,
        pending_reason: str = "",
    ) -> tuple[RecreateState, ...]:
        """Every container of the request that is not final yet becomes Failed."""
        reasons = {StatePhase.PENDING: pending_reason or reason, StatePhase.RECREATING: reason}
        known = _all_states(request, states)
        failing = {state.name: cause for state in known if not state.phase.final}
        self.causes.setdefault(request.uid, {}).update(failing)
        return tuple(
            replace(state, phase=StatePhase.FAILED, message=reasons[state.phase]) if state.name in failing else state
            for state in known
        )

    def give_up(self, request: Request, reason: str, cause: FailureCause) -> None:
        """Complete a request that cannot be served, for a reason that holds for all of it."""
        self.emit(request, EventReason.FAILED, f"Request {request.name}: {reason}", warning=True)
        states = self.fail_rest(request, (), cause, reason)
        self.write(request, Status(RequestPhase.COMPLETED, states, reason, self.seen.utc))

    def write(self, request: Request, status: Status) -> None:
        """Write a status, if it says anything new."""
        if status != request.status:
            check_move(request.status, status)
            self.actions.append(WriteStatus(request, status, self.causes.get(request.uid, NO_CAUSES)))

    def emit(
        self, request: Request, reason: EventReason, message: str, container: str = "", *, warning: bool = False
    ) -> None:
        """Emit an event on the request and its pod."""
        self.actions.append(EmitEvent(request, reason, message, container, warning))


def _all_states(request: Request, states: Iterable[RecreateState]) -> tuple[RecreateState, ...]:
    """One state for every container of the request, in the order of the spec."""
    known = {state.name: state for state in (*request.status.states, *states)}
    names = dict.fromkeys(container.name for container in request.containers)
    return tuple(known.get(name, RecreateState(name)) for name in names)


def _only_begun(old: Status, new: Status) -> bool:
    """Whether all that a status would say is that work has begun."""
    return all(replace(state, phase=old.state(state.name).phase) == old.state(state.name) for state in new.states) and (
        not any(state.phase.final for state in new.states if not old.state(state.name).phase.final)
    )


def _kept(old: RecreateState) -> str:
    """The part of a message that outlives the wait that it was written in: what became of the hook."""
    return old.message if old.message.startswith("preStop hook failed") else ""


def _summary(states: Sequence[RecreateState], gate: Gate) -> str:
    """The request's message when it is completed."""
    failed = [state.name for state in states if state.phase is StatePhase.FAILED]
    count = f"{len(states) - len(failed)} of {len(states)} containers recreated"
    text = f"{count}; failed: {', '.join(failed)}" if failed else count
    return f"{text}; {gate.message}" if gate.message else text
