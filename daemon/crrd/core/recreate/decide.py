"""What to do next about all requests of one pod: the state machine of a ContainerRecreateRequest.

`decide` takes what is known (requests, observation, time) and returns what to do and when to look again. It keeps no
state: after a crash the same request, runtime and pod give the same decision. Step numbers are those of
docs/contract.md.

The invariant, checked by the property tests at every step: a StopContainer or RunHook names a live request of the
pod, an instance that this request means (its statusContext, or what it pinned), that runs, that nothing else is at
work on (but for an earlier request's stop with a longer timeout), and whose pod kubelet would start again; a
Completed status is never followed by another.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from crrd.core.api.phases import check_move
from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import (
    Begun,
    FailurePolicy,
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
)
from crrd.core.recreate.actions import (
    Action,
    Decision,
    EmitEvent,
    PinContainers,
    RunHook,
    StopContainer,
    WriteStatus,
)
from crrd.core.recreate.checks import (
    NOTHING,
    Gate,
    Told,
    at_work,
    begun_by_an_earlier_life,
    grace_of,
    held_back,
    hook_done,
    hook_end_told,
    hook_end_untold,
    lacks_ip,
    list_is_behind,
    meant,
    not_looked_up,
    not_started_again,
    retry_delay,
    spent_before,
    stop_seconds,
    told,
    told_seconds,
    unready_gate,
    will_not_return,
    wrong_container,
    wrong_identity,
)
from crrd.core.recreate.observation import Instance, Live, Observation, StopAttempt, Work, WorkKind
from crrd.kubelet.runtime_status import ContainerState

POD_PATIENCE = 60.0
"""Seconds after which a pod that was never seen on this node is asked for."""
QUIET = 1.0
"""Seconds that a wait for the pod or a container goes on before it is worth a status write."""
IP_PATIENCE = 10.0
"""Seconds that a hook waits for the pod's IP: a list of pods can be older than the container that runs in one."""
BEGUN_SECONDS = 2.0
"""Seconds that a hook or a stop goes on before its beginning is persisted: so much grace a restart may grant anew."""
STOP_ATTEMPTS = 8
STOP_PATIENCE = 120.0
"""Step 9: a stop that errs is given up after this many attempts and seconds."""
STOP_SETTLE = 10.0
"""Seconds that a container may still be listed as running after its stop was reported as done."""
A_MOMENT = 0.05
"""Seconds after which what was asked for too early is asked for again."""
LOOK_AGAIN = 1.0
"""Seconds between looks at what announces nothing: kubelet's health."""
LOOK_AT_UNREADY = 5.0
"""Seconds between looks at an instance that is to get ready."""


def decide(requests: Sequence[Request], seen: Observation, now: float) -> Decision:
    """Decide about all requests of one pod.

    Args:
        requests: every request of the pod that is known, in any order, ended ones too.
        seen: what is known of the pod, its containers and this process' own work on them.
        now: monotonic seconds, the same clock as in `seen`.
    """
    turn = _Turn(seen, now)
    for request in requests:
        if request.live and request.error:
            turn.give_up(request, told(Reason.INVALID_REQUEST, error=request.error))
    if sound := in_turn(requests, seen.works):
        turn.serve(sound[0])
        for request in sound[1:]:
            turn.keep_waiting(request)
    return Decision(tuple(turn.actions), turn.wake_at, turn.watch_runtime, turn.waits_for_slot, turn.ask_api)


def in_turn(requests: Iterable[Request], works: Mapping[tuple[str, str], Work]) -> list[Request]:
    """The live and sound ones as they are served (step 2): first one that was begun, also if its status is not written.

    `works`: see Observation.
    """
    begun = {uid for uid, _ in works}
    sound = (request for request in requests if request.live and not request.error)
    return sorted(sound, key=lambda request: (request.uid not in begun, turn_order(request)))


def turn_order(request: Request) -> tuple[bool, str, str]:
    """Step 2: one that is Recreating first, then the oldest, then by name."""
    return (request.status.phase is not RequestPhase.RECREATING, request.created, request.name)


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
    waits_for_slot: bool = False
    ask_api: bool = False
    hook_runs: bool = False
    """Whether a hook starts or is under way: worth a write of its own only when it takes a while."""
    begun: dict[str, tuple[Pin, Begun]] = field(default_factory=dict)
    """Container name -> what was begun and is to be persisted."""

    def wake(self, at: float | None) -> None:
        """Look again at this time at the latest."""
        if at is not None and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at

    def first_seen(self, request: Request) -> float:
        """Monotonic time at which this process first saw the request."""
        return self.seen.first_seen.get(request.uid, self.now)

    def serve(self, request: Request) -> None:
        """The pod's current request: all its containers, then the phase that follows from them."""
        pod = self.seen.pod
        if pod is None or (request.pod_uid and pod.uid != request.pod_uid):
            self.await_pod(request)
            return
        if pod.deleting:
            self.give_up(request, told(Reason.POD_DELETING))
            return
        if self.seen.runtime_error:
            self.await_runtime(request)
            return
        if self.seen.listed_at < self.seen.first_seen.get(request.uid, 0.0):
            self.wake(self.now)  # what was listed for another, or before it came back, may be over since
            return
        if self.pin_missing(request, pod) and request.uid not in self.seen.pin_errors:
            return
        gate = unready_gate(request, self.seen, pod, self.now)
        states: list[RecreateState] = []
        owed = {container.name for container in request.containers if self.owes_stop(request, container)}
        blocked = over = False
        for container in request.containers:
            if over and container.name not in owed:
                continue
            move = self.move(request, container, pod, gate, blocked=blocked)
            states.append(move.state)
            unfinished = not move.state.phase.final
            blocked = blocked or move.blocks or (request.strategy.ordered and unfinished)
            failed = move.state.phase is StatePhase.FAILED
            over = over or (failed and request.strategy.failure_policy is FailurePolicy.FAIL)
        owed |= {action.instance.name for action in self.actions if isinstance(action, RunHook)}
        self.settle(request, tuple(states), gate, owed)

    def owes_stop(self, request: Request, container: RequestedContainer) -> bool:
        """Step 9: whether a hook has begun, in whichever life, and its container runs: its stop follows in any case."""
        newest, target = self.seen.newest(container.name), meant(request, container, self.seen)
        if newest is None or target is None or newest.id != target.bare_id:
            return False
        work = self.seen.work(request.uid, newest.id)
        told_before = begun_by_an_earlier_life(request, container.name, newest.pin).hook
        ended = work.stop_sent is None and hook_end_told(request, container.name, newest.pin)
        begun = work.hook_began is not None or bool(told_before) or ended
        return newest.state in {ContainerState.RUNNING, ContainerState.UNKNOWN} and begun

    def settle(self, request: Request, states: tuple[RecreateState, ...], gate: Gate, owed: Collection[str]) -> None:
        """Steps 10 and 11: complete the request, or write how far it has come."""
        failed = [state for state in states if state.phase is StatePhase.FAILED]
        if failed and request.strategy.failure_policy is FailurePolicy.FAIL:
            every = [state for state in _all_states(request, states) if state.phase is StatePhase.FAILED]
            failed = [state for state in every if state.reason is not Reason.EARLIER_FAILURE] or failed
            name = failed[0].name
            states = _fail_rest(
                request,
                states,
                told(Reason.EARLIER_FAILURE, what="not awaited", name=name),
                told(Reason.EARLIER_FAILURE, what="not started", name=name),
                owed,
            )
        if all(state.phase.final for state in states):
            status = Status(RequestPhase.COMPLETED, states, _summary(states, gate), self.seen.utc)
            self.write(request, replace(status, reason=failed[0].reason if failed else Reason.NONE))
            return
        status = Status(RequestPhase.RECREATING, states, gate.told.message, reason=gate.told.reason)
        quiet_until = self.first_seen(request) + QUIET
        if self.hook_runs and self.now < quiet_until and _only_begun(request.status, status):
            self.wake(quiet_until)
        else:
            self.persist_begun(request)
            self.write(request, status)

    def persist_begun(self, request: Request) -> None:
        """Step 12: a daemon that starts anew has to know what was begun, and when; before it is told how that ended."""
        if self.begun or request.uid in self.seen.unpinned:
            pins = {name: pin for name, (pin, _) in self.begun.items()}
            begun = {name: times for name, (_, times) in self.begun.items()}
            self.actions.append(PinContainers(request, {**request.pinned, **pins}, {**request.begun, **begun}))

    def keep_waiting(self, request: Request) -> None:
        """Step 2: another one has the turn. What was begun for this one before it left the selection is said."""
        if ended := self.hooks_ended(request):
            self.write(request, Status(RequestPhase.RECREATING, _without_waits(_all_states(request, ended))))
        elif request.status.phase is RequestPhase.EMPTY:
            self.write(request, Status(RequestPhase.PENDING, _all_states(request, ())))
        else:
            self.write(request, Status(request.status.phase, _without_waits(request.status.states)))

    def await_runtime(self, request: Request) -> None:
        """Step 12: the runtime does not answer; what is known of hooks and stops is said all the same."""
        self.tell(request, told(Reason.RUNTIME_UNAVAILABLE, error=self.seen.runtime_error), self.hooks_ended(request))

    def hooks_ended(self, request: Request) -> list[RecreateState]:
        """States that say that a hook has ended; when it began, and a stop, is persisted."""
        self.begun = {}
        ended = []
        for (uid, _), work in self.seen.works.items():
            if uid == request.uid:
                self.note_begun(request, work)
                if work.hook is not None and hook_end_untold(request, work):
                    ended.append(self.hook_ended(request, request.status.state(work.name), work.pin))
        self.persist_begun(request)
        return ended

    def await_pod(self, request: Request) -> None:
        """Step 6: a pod not seen yet is waited for; one that the API server itself does not have ends the request.

        What the watch says (it has gone, another one has its name, it never came) is a reason to ask. A watch can be
        behind, and a verdict is final.
        """
        first_seen = self.first_seen(request)
        missing = self.seen.pod_gone or self.seen.pod is not None
        if not missing and self.seen.known_since is not None:
            since = max(first_seen, self.seen.known_since)
            missing = self.now >= since + POD_PATIENCE
            if not missing:
                self.wake(since + POD_PATIENCE)
        if missing:
            live = self.live(request)
            if live is None:
                self.ask_api = True
            elif verdict := self.lost(request, live.pod):
                self.give_up(request, verdict)
                return
        why = told(Reason.WAITING_FOR_POD, key=request.pod_key, node=self.seen.node_name)
        self.tell(request, why, self.hooks_ended(request))

    def live(self, request: Request) -> Live | None:
        """The API server's own answer, where it was asked for since the request is known."""
        live = self.seen.live
        return live if live is not None and live.asked_at >= self.first_seen(request) else None

    def lost(self, request: Request, found: Pod | None) -> Told:
        """Why the pod of the request is lost, by the API server's own answer for its name."""
        if found is None:
            return told(Reason.POD_GONE)
        if request.pod_uid not in ("", found.uid):
            return told(Reason.POD_REPLACED, wanted=request.pod_uid, key=request.pod_key, found=found.uid)
        if found.node_name != self.seen.node_name:
            where = found.node_name or "none yet"
            return told(Reason.POD_ELSEWHERE, key=request.pod_key, found=where, node=self.seen.node_name)
        return NOTHING

    def tell(self, request: Request, why: Told, moved: Iterable[RecreateState] = ()) -> None:
        """Nothing can be done for the request as a whole: said when it takes a while.

        `moved`: states that have changed all the same.
        """
        quiet_until = self.first_seen(request) + QUIET
        if self.now < quiet_until:
            self.wake(quiet_until)
            return
        states = _all_states(request, moved)
        begun = request.status.phase is RequestPhase.RECREATING or any(state.begun for state in states)
        phase = RequestPhase.RECREATING if begun else RequestPhase.PENDING
        self.write(request, Status(phase, states, why.message, reason=why.reason))

    def pin_missing(self, request: Request, pod: Pod) -> bool:
        """Steps 4 and 5: persist which instances are meant where nobody has said so; True when a write is needed.

        Never after something was begun for the request: what runs then may be the successor.
        """
        pins = {}
        for container in request.containers:
            newest = self.seen.newest(container.name)
            state = request.status.state(container.name)
            if (
                newest is not None
                and meant(request, container, self.seen) is None
                and not (state.phase.final or state.begun)
                and not wrong_container(request, container, pod)
                and not wrong_identity(request, container, self.seen)
                and not will_not_return(pod.containers[container.name], pod, newest, exited=False)
            ):
                pins[container.name] = newest.pin
        if pins:
            self.actions.append(PinContainers(request, {**request.pinned, **pins}, request.begun))
        return bool(pins)

    def move(self, request: Request, container: RequestedContainer, pod: Pod, gate: Gate, *, blocked: bool) -> _Move:
        """One container of the current request."""
        old = request.status.state(container.name)
        if old.phase.final:
            return _Move(old)
        if problem := wrong_container(request, container, pod):
            return self.fail(request, old, problem)
        if problem := wrong_identity(request, container, self.seen):
            return self.fail(request, old, problem)
        if not_looked_up(request, container, self.seen):
            self.wake(self.now)
            return _Move(old, blocks=True)
        status = pod.containers[container.name]
        if list_is_behind(status, self.seen):
            self.wake(self.now + A_MOMENT)
            return _Move(old, blocks=True)
        newest, target = self.seen.newest(container.name), meant(request, container, self.seen)
        if target is not None and self.stop_was_sent(request, container, target):
            old = replace(old, is_killed=True)
        if target is None:
            return self.without_target(request, old, status, pod, newest)
        exited = newest is None or newest.state is ContainerState.EXITED
        recreated = newest is not None and (newest.id != target.bare_id or newest.restart_count > target.restart_count)
        if newest is not None and not recreated and not exited:
            return self.stop(request, old, newest, (status, pod), gate, blocked=blocked)
        if newest is None or exited:
            return self.await_successor(request, old, status, pod, newest)
        return self.await_ready(request, old, status, pod, newest)

    def without_target(
        self, request: Request, old: RecreateState, status: PodContainer, pod: Pod, newest: Instance | None
    ) -> _Move:
        """Nobody can say which instance is meant: there is none yet, or who said so took it back after the stop."""
        if old.begun:
            return self.fail(request, old, told(Reason.PIN_LOST))
        if why := will_not_return(status, pod, newest, exited=False):
            return self.fail(request, old, why)
        error = self.seen.pin_errors.get(request.uid)
        if newest is not None and error:
            return self.hold(request, old, told(Reason.NOT_PINNED, error=error))
        return self.hold(request, old, told(Reason.NOT_CREATED))

    def stop_was_sent(self, request: Request, container: RequestedContainer, target: Pin) -> bool:
        """Whether this request's stop of the instance was sent, by what this process or the annotation knows."""
        if self.seen.work(request.uid, target.bare_id).stop_sent is not None:
            return True
        pinned = request.pinned.get(container.name)
        begun = request.begun.get(container.name)
        return pinned == target and begun is not None and bool(begun.stop)

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
        work = self.seen.work(request.uid, instance.id)
        if work.under_way is not None:
            self.note_begun(request, work)
            self.hook_runs = self.hook_runs or work.under_way is WorkKind.HOOK
            return _Move(replace(old, phase=StatePhase.RECREATING), blocks=True)
        attempt = work.stop
        if attempt is not None and not attempt.error:
            return self.settle_stop(request, old, attempt.ended)
        if why := will_not_return(*where, instance, exited=False):
            return self.fail(request, old, why)
        if attempt is not None:
            begun = work.stop_sent if work.stop_sent is not None else attempt.ended
            if attempt.count >= STOP_ATTEMPTS and attempt.ended >= begun + STOP_PATIENCE:
                return self.fail(request, old, _stop_failed(attempt, begun))
            retry_at = attempt.ended + retry_delay(attempt.count, instance.id)
            if self.now < retry_at:
                self.note_begun(request, work)
                self.wake(retry_at)
                why = told(Reason.STOP_RETRIED, count=attempt.count, error=attempt.error)
                return _Move(self.at_it(request, old, why), blocks=True)
        if instance.state is ContainerState.CREATED:
            return self.hold(request, old, told(Reason.NOT_STARTED))
        if not gate.open:
            self.wake(gate.wake_at)
            return _Move(self.rest(request, old))  # so it is for each container
        if blocked or (self.seen.draining and not hook_done(request, instance, self.seen, self.now)):
            return _Move(self.rest(request, old), blocks=True)
        if (silent := self.seen.kubelet_silent_since) is not None:
            return self.await_kubelet(request, old, instance, silent)
        if (other := at_work(request, instance, self.seen)) is not None:
            return self.beside(request, old, instance, *other)
        return self.act(request, old, instance, gate)

    def await_kubelet(self, request: Request, old: RecreateState, instance: Instance, silent: float) -> _Move:
        """Step 9: kubelet would not start the container again; that its hook has ended is said all the same."""
        self.wake(self.now + LOOK_AGAIN)
        if hook_done(request, instance, self.seen, self.now) and not old.is_killed:
            old = self.hook_ended(request, old, instance.pin)
        return self.hold(request, old, told(Reason.KUBELET_SILENT, seconds=told_seconds(self.now - silent)))

    def beside(
        self, request: Request, old: RecreateState, instance: Instance, kind: WorkKind, until: float | None
    ) -> _Move:
        """Step 9: a request that is gone left a hook or a stop under way: it is waited for as long as our own grace.

        CRI takes a second StopContainer with a shorter timeout. Its TERM, or its hook, has had its time by then.
        """
        grace = stop_seconds(request, instance, self.seen, self.now)
        if kind is WorkKind.STOP:
            if until is None or self.now + grace < until:
                return self.send(request, old, instance)
        else:
            limit = self.first_seen(request) + grace_of(request, instance)
            if self.now >= limit:
                return self.send(request, old, instance)
            self.wake(limit)
        return self.hold(request, old, told(Reason.OTHER_WORK, work=kind.value))

    def act(self, request: Request, old: RecreateState, instance: Instance, gate: Gate) -> _Move:
        """Step 9: nothing stands in the way: the hook, then the stop."""
        work = self.seen.work(request.uid, instance.id)
        grace, used = grace_of(request, instance), spent_before(request, instance, self.seen, self.now)
        done = hook_done(request, instance, self.seen, self.now)
        if not done and work.stop is None and not old.is_killed:
            hook = instance.hook if grace - used > 0 else None
            if hook is not None or self.seen.may_stop:
                self.emit(request, EventReason.RECREATING, f"Stopping container {old.name} to recreate it", old.name)
                if gate.told:
                    self.emit(request, EventReason.NO_READINESS_GATE, f"Request {request.name}: {gate.told.message}")
            if hook is not None:
                if lacks_ip(hook, self.seen):
                    live = self.live(request)
                    if live is None:
                        self.await_ip(request)
                        return self.hold(request, old, told(Reason.WAITING_FOR_IP))
                    if lost := self.lost(request, live.pod):
                        return self.fail(request, old, lost)
                self.actions.append(RunHook(request, instance, hook, grace - used, used))
                self.wake(self.now + BEGUN_SECONDS)
                self.hook_runs = True
                return _Move(self.at_it(request, old), blocks=True)
        if work.hook is not None and work.hook.error:
            why = told(Reason.HOOK_FAILED, error=work.hook.error)
            self.emit(request, EventReason.HOOK_FAILED, f"Container {old.name}: {why.message}", old.name, warning=True)
        if done and not old.is_killed:
            self.note_begun(request, work)
            return _Move(self.hook_ended(request, old, instance.pin), blocks=True)
        return self.send(request, old, instance)

    def await_ip(self, request: Request) -> None:
        """Step 9: what the watch has not told after a while, the API server is asked for, once."""
        patience = self.first_seen(request) + IP_PATIENCE
        if self.now < patience:
            self.wake(patience)
        else:
            self.ask_api = True

    def hook_ended(self, request: Request, old: RecreateState, pin: Pin) -> RecreateState:
        """The stop after a hook waits until the request says so: a restarted daemon must not run the hook again."""
        if self.seen.prunes_is_killed:
            self.begun[old.name] = (pin, Begun(request.begun.get(old.name, Begun()).hook, self.seen.utc))
        return replace(self.at_it(request, old), is_killed=True)

    def send(self, request: Request, old: RecreateState, instance: Instance) -> _Move:
        """The stop itself, once it may be sent."""
        if not self.seen.may_stop:
            self.waits_for_slot = True
            return _Move(self.rest(request, old), blocks=True)
        seconds = stop_seconds(request, instance, self.seen, self.now)
        used = spent_before(request, instance, self.seen, self.now)
        self.actions.append(StopContainer(request, instance, seconds, used))
        self.wake(self.now + BEGUN_SECONDS)
        return _Move(replace(self.at_it(request, old), is_killed=True), blocks=True)

    def note_begun(self, request: Request, work: Work) -> None:
        """Step 12: what goes on for a while is to be persisted, once."""
        known = begun_by_an_earlier_life(request, work.name, work.pin)
        times = known
        for at, is_stop in ((work.hook_began, False), (work.stop_sent, True)):
            if at is None or (known.stop if is_stop else known.hook or known.stop):
                continue
            if self.now < at + BEGUN_SECONDS:
                self.wake(at + BEGUN_SECONDS)
            else:
                text = rfc3339(datetime.fromtimestamp(self.seen.wall - (self.now - at), UTC))
                times = replace(times, stop=text) if is_stop else replace(times, hook=text)
        if times != known:
            self.begun[work.name] = (work.pin, times)

    def settle_stop(self, request: Request, old: RecreateState, ended: float) -> _Move:
        """The runtime said that the container has stopped; what lists it as running may have been asked before."""
        if self.seen.listed_at >= ended + STOP_SETTLE:
            return self.fail(request, old, told(Reason.STILL_RUNS))
        self.wake(self.now + (A_MOMENT if self.seen.listed_at <= ended else 0.5))
        self.watch_runtime = True
        return _Move(replace(old, phase=StatePhase.RECREATING))

    def await_successor(
        self, request: Request, old: RecreateState, status: PodContainer, pod: Pod, last: Instance | None
    ) -> _Move:
        """Steps 6 and 10: the instance is gone; kubelet has to make the next one."""
        exited = last is None or last.state is ContainerState.EXITED
        if exited and (why := will_not_return(status, pod, last, exited=True)):
            return self.fail(request, old, replace(why, reason=_ended_reason(why.reason)))
        self.watch_runtime = True
        words = held_back(status)
        why, coming = not_started_again(self.seen.endings.get(old.name), last, self.now)
        self.wake(coming)
        if words:
            why = told(Reason.HELD_BACK, words=words)
        return _Move(self.at_it(request, old, why))

    def await_ready(
        self, request: Request, old: RecreateState, status: PodContainer, pod: Pod, newest: Instance
    ) -> _Move:
        """Step 10: the next instance is there; the pod's status has to show it running and ready."""
        if newest.state is not ContainerState.RUNNING:
            if pod.ended:
                return self.fail(request, old, told(Reason.POD_ENDED, phase=pod.phase))
            self.watch_runtime = True
            words = held_back(status)
            return _Move(self.at_it(request, old, told(Reason.HELD_BACK, words=words) if words else NOTHING))
        waiting = _Move(self.at_it(request, old))
        if status.container_id != newest.pin.container_id or not (status.running and status.ready):
            self.wake(self.now + LOOK_AT_UNREADY)  # it may end again while kubelet, who would say so, is away
            return waiting
        runs_until = self.seen.running_since.get(newest.id, self.now) + request.strategy.min_started_seconds
        if self.now < runs_until:
            self.wake(runs_until)
            return waiting
        message = f"Container {old.name} was recreated as {newest.pin.container_id}"
        self.emit(request, EventReason.RECREATED, message, old.name)
        return _Move(replace(waiting.state, phase=StatePhase.SUCCEEDED))

    def at_it(self, request: Request, old: RecreateState, why: Told = NOTHING) -> RecreateState:
        """The container's turn goes on, and what it waited for before is over; `why`: what it waits for now."""
        return _said(replace(old, phase=StatePhase.RECREATING), why or self.of_the_hook(request, old))

    def rest(self, request: Request, old: RecreateState) -> RecreateState:
        """It is not the container's turn, or not yet; what it waited for before is over."""
        return self.at_it(request, old) if old.phase is StatePhase.RECREATING else _said(old, NOTHING)

    def of_the_hook(self, request: Request, old: RecreateState) -> Told:
        """The part of a message that outlives the wait that it was written in: what became of the hook."""
        if old.reason is Reason.HOOK_FAILED:
            return Told(old.reason, old.message)
        works = (work for (uid, _), work in self.seen.works.items() if uid == request.uid and work.name == old.name)
        error = next((work.hook.error for work in works if work.hook is not None and work.hook.error), "")
        return told(Reason.HOOK_FAILED, error=error) if error else NOTHING

    def hold(self, request: Request, old: RecreateState, why: Told) -> _Move:
        """Something has to happen before the container's turn; said only when it takes a while."""
        self.watch_runtime = True
        quiet_until = self.first_seen(request) + QUIET
        if self.now < quiet_until:
            self.wake(quiet_until)
            return _Move(old, blocks=True)
        return _Move(_said(old, why), blocks=True)

    def fail(self, request: Request, old: RecreateState, why: Told) -> _Move:
        """The container is not recreated by this request."""
        self.emit(request, EventReason.FAILED, f"Container {old.name}: {why.message}", old.name, warning=True)
        return _Move(_said(replace(old, phase=StatePhase.FAILED), why))

    def give_up(self, request: Request, why: Told) -> None:
        """Complete a request that cannot be served, for a reason that holds for all of it."""
        self.emit(request, EventReason.FAILED, f"Request {request.name}: {why.message}", warning=True)
        states = _fail_rest(request, (), why, why)
        self.write(request, Status(RequestPhase.COMPLETED, states, why.message, self.seen.utc, why.reason))

    def write(self, request: Request, status: Status) -> None:
        """Write a status, if it says anything new."""
        if self.seen.prunes_is_killed:
            status = replace(status, states=tuple(replace(state, is_killed=False) for state in status.states))
        if status != request.status:
            check_move(request.status, status)
            self.actions.append(WriteStatus(request, status))

    def emit(
        self, request: Request, reason: EventReason, message: str, container: str = "", *, warning: bool = False
    ) -> None:
        """Emit an event on the request and its pod."""
        pod = self.seen.pod
        own = pod if pod is not None and request.pod_uid in ("", pod.uid) else None
        self.actions.append(EmitEvent(request, reason, message, container, warning, own))


def _said(state: RecreateState, why: Told) -> RecreateState:
    return replace(state, message=why.message, reason=why.reason)


def _without_waits(states: Iterable[RecreateState]) -> tuple[RecreateState, ...]:
    """What a container that was not begun waited for says nothing any more."""
    return tuple(_said(state, NOTHING) if state.phase is StatePhase.PENDING else state for state in states)


def _ended_reason(reason: Reason) -> Reason:
    """A container that has ended was not left running: under Never, too, it is left down."""
    return Reason.LEFT_DOWN if reason is Reason.NOT_RESTARTABLE else reason


def _stop_failed(attempt: StopAttempt, began: float) -> Told:
    seconds = round(attempt.ended - began)
    return told(Reason.STOP_FAILED, count=attempt.count, seconds=seconds, error=attempt.error)


def _all_states(request: Request, states: Iterable[RecreateState]) -> tuple[RecreateState, ...]:
    """One state for every container of the request, in the order of the spec."""
    known = {state.name: state for state in (*request.status.states, *states)}
    names = dict.fromkeys(container.name for container in request.containers)
    return tuple(known.get(name, RecreateState(name)) for name in names)


def _fail_rest(
    request: Request,
    states: Iterable[RecreateState],
    recreating: Told,
    pending: Told,
    spared: Collection[str] = (),
) -> tuple[RecreateState, ...]:
    """Every container of the request that is not final yet becomes Failed, with what is told of either phase.

    `spared`: names of those that go on.
    """
    whys = {StatePhase.PENDING: pending, StatePhase.RECREATING: recreating}
    return tuple(
        state
        if state.phase.final or state.name in spared
        else _said(replace(state, phase=StatePhase.FAILED), whys[state.phase])
        for state in _all_states(request, states)
    )


def _only_begun(old: Status, new: Status) -> bool:
    """Whether all that a status would say is that work has begun."""
    return all(replace(state, phase=old.state(state.name).phase) == old.state(state.name) for state in new.states) and (
        not any(state.phase.final for state in new.states if not old.state(state.name).phase.final)
    )


def _summary(states: Sequence[RecreateState], gate: Gate) -> str:
    """The request's message when it is completed."""
    failed = [state.name for state in states if state.phase is StatePhase.FAILED]
    count = f"{len(states) - len(failed)} of {len(states)} containers recreated"
    text = f"{count}; failed: {', '.join(failed)}" if failed else count
    return f"{text}; {gate.told.message}" if gate.told else text
