"""What to do next about all requests of one pod: the state machine of a ContainerRecreateRequest.

`decide` takes what is known (requests, observation, time) and returns what to do and when to look again. It keeps no
state: after a crash the same request, runtime and pod give the same decision. Step numbers are those of
docs/contract.md.

A round, file by file: here, which request has the turn and each of its containers in turn; `waits` for a request that
cannot go on; `view` for what is known of a container; `stop`, then `outcome` for what a container's turn consists of;
`settle` for what is written.

The invariant, checked by the property tests at every step: a StopContainer or RunHook names a live request of the
pod, an instance that this request means (its statusContext, or what it pinned), that runs, that nothing else is at
work on (but for an earlier request's stop with a longer timeout), and whose pod kubelet would start again; a
Completed status is never followed by another.
"""

from collections.abc import Iterable, Mapping, Sequence

from crrd.core.api.reasons import Reason
from crrd.core.api.types import FailurePolicy, RecreateState, Request, RequestPhase, StatePhase
from crrd.core.recreate.actions import Decision, PinContainers, RunHook
from crrd.core.recreate.draft import Draft, Move
from crrd.core.recreate.messages import Message
from crrd.core.recreate.observation import Observation, Work
from crrd.core.recreate.outcome import A_MOMENT, await_ready, await_successor
from crrd.core.recreate.settle import give_up, settle
from crrd.core.recreate.stop import stop
from crrd.core.recreate.view import ContainerView
from crrd.core.recreate.waits import Gate, await_pod, await_runtime, await_turn, unready_gate
from crrd.kubelet.runtime_status import ContainerState


def decide(requests: Sequence[Request], seen: Observation, now: float) -> Decision:
    """Decide about all requests of one pod.

    Args:
        requests: every request of the pod that is known, in any order, ended ones too.
        seen: what is known of the pod, its containers and this process' own work on them.
        now: monotonic seconds, the same clock as in `seen`.
    """
    draft = Draft(seen, now)
    for request in requests:
        if request.live and request.error:
            give_up(draft, request, Message.of(Reason.INVALID_REQUEST, error=request.error))
    if sound := in_turn(requests, seen.works):
        _serve(draft, sound[0])
        for request in sound[1:]:
            await_turn(draft, request)
    return draft.decision()


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


def _serve(draft: Draft, request: Request) -> None:
    """The pod's current request: what it waits for as a whole, then the instances it means, then its containers."""
    seen, pod = draft.seen, draft.seen.pod
    if pod is None or (request.pod_uid and pod.uid != request.pod_uid):
        await_pod(draft, request)
    elif pod.deleting:
        give_up(draft, request, Message.of(Reason.POD_DELETING))
    elif seen.runtime_error:
        await_runtime(draft, request)
    elif seen.listed_at < seen.first_seen.get(request.uid, 0.0):
        draft.wake(draft.now)  # what was listed for another, or before it came back, may be over since
    else:
        views = [ContainerView(request, container, pod, seen, draft.now) for container in request.containers]
        pins = {view.name: view.to_pin for view in views if view.to_pin is not None}
        if pins:
            draft.actions.append(PinContainers(request, {**request.pinned, **pins}, request.begun))
        if not pins or request.uid in seen.pin_errors:
            _recreate(draft, request, views, unready_gate(draft, request, pod))


def _recreate(draft: Draft, request: Request, views: Sequence[ContainerView], gate: Gate) -> None:
    """Each container in the order of the spec (step 8), then the phase of the request that follows from them."""
    states: list[RecreateState] = []
    blocked = over = False
    for view in views:
        if over and not view.owes_stop:
            states.append(view.written)
            continue
        move = _move(draft, view, gate, blocked=blocked)
        states.append(move.state)
        blocked = blocked or move.blocks or (request.strategy.ordered and not move.state.phase.final)
        failed = move.state.phase is StatePhase.FAILED
        over = over or (failed and request.strategy.failure_policy is FailurePolicy.FAIL)
    owed = {view.name for view in views if view.owes_stop}
    owed |= {action.instance.name for action in draft.actions if isinstance(action, RunHook)}
    settle(draft, request, tuple(states), gate.message, owed)


def _move(draft: Draft, view: ContainerView, gate: Gate, *, blocked: bool) -> Move:
    """One container of the current request: to be stopped, stopped, or already recreated (step 4)."""
    if view.written.phase.final:
        return Move(view.written)
    if view.problem:
        return draft.fail(view.request, view.written, view.problem)
    if view.not_looked_up:
        draft.wake(draft.now)
        return Move(view.written, blocks=True)
    if view.list_is_behind:
        draft.wake(draft.now + A_MOMENT)
        return Move(view.written, blocks=True)
    if view.target is None:
        return _without_target(draft, view)
    if view.outgoing is not None:
        return stop(draft, view, view.outgoing, gate, blocked=blocked)
    if view.newest is None or view.newest.state is ContainerState.EXITED:
        return await_successor(draft, view)
    return await_ready(draft, view, view.newest)


def _without_target(draft: Draft, view: ContainerView) -> Move:
    """Nobody can say which instance is meant: there is none yet, or who said so took it back after the stop."""
    if view.state.begun:
        return draft.fail(view.request, view.state, Message.of(Reason.PIN_LOST))
    if view.never_returns:
        return draft.fail(view.request, view.state, view.never_returns)
    error = draft.seen.pin_errors.get(view.request.uid)
    why = Message.of(Reason.NOT_PINNED, error=error) if view.newest and error else Message.of(Reason.NOT_CREATED)
    return draft.hold(view.request, view.state, why)
