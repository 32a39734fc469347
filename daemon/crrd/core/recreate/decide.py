"""What to do next about all requests of one pod: the state machine of a ContainerRecreateRequest.

`decide` takes what is known (pod, requests, node, time) and returns what to do and when to look again. It keeps no
state: after a crash the same request, runtime and pod give the same decision. Step numbers are those of
docs/contract.md.

A round, file by file: here, which request is served, what it waits for as a whole, and each of its containers in
order; `view` is what is known of a container; `stop`, then `outcome`, is its recreate; `settle` writes what came of it.
What must hold for every decision is in `invariants`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from crrd.core.api.reasons import Reason
from crrd.core.api.types import FailurePolicy, RecreateState, Request, RequestPhase, StatePhase, Status
from crrd.core.recreate.actions import Decision, PinContainers, RunHook, StopContainer, WriteStatus
from crrd.core.recreate.draft import Draft, Gate, joined, recreating, with_message
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import ObservedNode, ObservedPod, ObservedRequest
from crrd.core.recreate.outcome import await_ready, await_successor
from crrd.core.recreate.settle import all_states, complete_as_failed, settle
from crrd.core.recreate.stop import finish_hooked, stop
from crrd.core.recreate.view import ContainerView
from crrd.core.recreate.whole_pod import PodView
from crrd.kubelet.runtime_status import ContainerState

WITHHELD_SECONDS = 5.0  # Seconds until the next decision, after one that has broken a rule
POD_PATIENCE = 60.0  # Seconds until a pod that this node has never had is looked up at the API server


def decide(pod: ObservedPod, requests: Sequence[ObservedRequest], node: ObservedNode, now: float) -> Decision:
    """Decide about all requests of one pod that are known, in any order.

    For those that have ended, nothing is decided but a stop that is still due. `now`: monotonic seconds, the same clock
    as in what was observed.
    """
    drafts = [Draft(known, pod, node, now) for known in requests if not known.servable and (known.live or known.works)]
    for draft in drafts:
        if draft.known.live:
            complete_as_failed(draft, Message.of(Reason.INVALID_REQUEST, error=draft.request.error))
        finish_hooked(draft, _others_than(draft.known, requests))
    if any(isinstance(action, StopContainer) for draft in drafts for action in draft.actions):
        return replace(joined(drafts), wake_at=now)  # the next round observes the stop and serves the others
    queue = in_serving_order(requests)
    if queue:
        served = Draft(queue[0], pod, node, now)
        _serve(served, _others_than(queue[0], requests))
        # Of the others, only these have something new to write.
        written = (known for known in queue[1:] if known.works or known.unpinned or not known.request.status.quiet)
        waiting = [Draft(known, pod, node, now) for known in written]
        for draft in waiting:
            _wait_for_other_request(draft)
        drafts += [served, *waiting]
    return joined(drafts)


def without_work(
    decision: Decision, pod: ObservedPod, requests: Iterable[ObservedRequest], node: ObservedNode, now: float
) -> Decision:
    """Return what is left of a decision that has broken a rule: its requests wait, and no hook or stop starts."""
    starting = {each.request.uid for each in decision.actions if isinstance(each, RunHook | StopContainer)}
    drafts = [Draft(known, pod, node, now) for known in requests if known.servable and known.request.uid in starting]
    for draft in drafts:
        _wait(draft, Message.of(Reason.DECISION_WITHHELD))
    others = (action for action in decision.actions if action.request.uid not in starting)
    kept = tuple(each for each in others if not (isinstance(each, WriteStatus) and each.request.completed))
    return Decision((*kept, *joined(drafts).actions), now + WITHHELD_SECONDS, poll_runtime=True)


def _others_than(known: ObservedRequest, requests: Iterable[ObservedRequest]) -> tuple[ObservedRequest, ...]:
    return tuple(other for other in requests if other.request.uid != known.request.uid)


def in_serving_order(requests: Iterable[ObservedRequest]) -> list[ObservedRequest]:
    """Return the requests to serve in the order of step 2. One that this process worked for comes first."""
    servable = (known for known in requests if known.servable)
    return sorted(servable, key=lambda known: (not known.works, serving_order(known.request)))


def serving_order(request: Request) -> tuple[bool, str, str]:
    """Return the sort key of step 2: Recreating first, then the oldest, then by name."""
    return (request.status.phase is not RequestPhase.RECREATING, request.created, request.name)


def _serve(draft: Draft, others: tuple[ObservedRequest, ...]) -> None:
    """Serve the pod's current request: the wait of the whole request, its pins, then each container."""
    request, observed, pod = draft.request, draft.pod, draft.pod.pod
    if pod is None or (request.pod_uid and pod.uid != request.pod_uid):
        _await_pod(draft)
    elif pod.deleting:
        complete_as_failed(draft, Message.of(Reason.POD_DELETING))
    elif observed.runtime_error:
        _wait(draft, Message.of(Reason.RUNTIME_UNAVAILABLE, error=observed.runtime_error))
    elif observed.listed_at < draft.known.first_seen:
        draft.wake(draft.now)  # the list is older than this request: list again
    else:
        whole = PodView(draft.known, others, pod, observed, draft.node, draft.now)
        views = [ContainerView.of(container, whole) for container in request.containers]
        pins = {view.name: view.to_pin for view in views if view.to_pin is not None}
        if pins:
            draft.actions.append(PinContainers(request, {**request.pinned, **pins}, request.start_times))
        if not pins or draft.known.pin_error:
            draft.gate = _unready_gate(draft, pod_has_gate=pod.readiness_gate)
            _recreate(draft, views)


def _wait_for_other_request(draft: Draft) -> None:
    """Step 2: wait for another request of the pod. Write the result of work that began earlier for this one."""
    request, done = draft.request, _work_done(draft)
    phase = RequestPhase.RECREATING if done else request.status.phase or RequestPhase.PENDING
    rewrite = done or request.status.phase is RequestPhase.EMPTY
    states = all_states(request, done) if rewrite else request.status.states
    waits_over = (with_message(state, NO_MESSAGE) if state.phase is StatePhase.PENDING else state for state in states)
    draft.write(Status(phase, tuple(waits_over)))


def _await_pod(draft: Draft) -> None:
    """Step 6: wait for a pod that was not seen yet. Complete the request if the API server has no such pod.

    If the watch reports that the pod has gone, was replaced or never came, ask the API server. A watch can be behind,
    and a verdict is final.
    """
    observed = draft.pod
    missing = observed.gone or observed.pod is not None
    if not missing and observed.known_since is not None:
        until = max(draft.known.first_seen, observed.known_since) + POD_PATIENCE
        missing = draft.now >= until
        if not missing:
            draft.wake(until)
    if missing:
        lost = draft.pod_lost()
        if lost:
            complete_as_failed(draft, lost)
            return
        draft.ask_api = lost is None
    why = Message.of(Reason.WAITING_FOR_POD, key=draft.request.pod_key, node=draft.node.name)
    _wait(draft, why)


def _wait(draft: Draft, why: Message) -> None:
    """Let the request wait. A longer wait is written to its status.

    The results of its hooks and stops are written anyway (step 12).
    """
    request, moved = draft.request, _work_done(draft)
    if draft.too_early_to_tell():
        return
    states = all_states(request, moved)
    started = request.status.phase is RequestPhase.RECREATING or any(state.started for state in states)
    phase = RequestPhase.RECREATING if started else RequestPhase.PENDING
    draft.write(Status(phase, states, why.text, reason=why.reason))


def _work_done(draft: Draft) -> list[RecreateState]:
    """Return states that record the end of a hook or that a stop was sent. Also persist when both began."""
    request, done = draft.request, []
    for work in draft.known.works.values():
        draft.note_start_times(work)
        written = request.status.state(work.name)
        state = recreating(written, work)
        if work.hook_result is not None and work.hook_unrecorded(request):
            done.append(draft.note_hook_end(state, work.pin))
        elif work.stop_sent is not None and not (written.is_killed or written.phase.final):
            done.append(replace(state, is_killed=True))
    draft.persist_start_times()
    return done


def _unready_gate(draft: Draft, *, pod_has_gate: bool) -> Gate:
    """Step 7: wait for the mark, then for the grace period, by this node's monotonic clock since the mark was seen.

    If a hook or stop of the request has begun, its unready grace period is over.
    """
    known, request = draft.known, draft.request
    grace = request.strategy.unready_grace_seconds
    if grace is None:
        return Gate(open=True)
    if not pod_has_gate:
        return Gate(open=True, message=Message.of(Reason.NO_READINESS_GATE))
    begun = any(times.hook or times.stop for times in request.start_times.values())
    work_begun = begun or any(state.is_killed for state in request.status.states)
    if work_begun or known.works:
        return Gate(open=True)
    if not request.unready_acquired:
        return Gate(open=False, message=Message.of(Reason.WAITING_FOR_UNREADY))
    until = (draft.now if known.unready_seen is None else known.unready_seen) + grace
    if draft.now < until:
        draft.wake(until)
        return Gate(open=False, message=Message.of(Reason.UNREADY_GRACE, grace=grace))
    return Gate(open=True)


def _recreate(draft: Draft, views: Sequence[ContainerView]) -> None:
    """Handle each container in the order of the spec (step 8), then write the request's phase."""
    strategy, states = draft.request.strategy, list[RecreateState]()
    blocked = over = False
    for view in views:
        if over and not view.must_be_stopped:
            states.append(view.written)
            continue
        state = _next_state(draft, view, blocked=blocked)
        states.append(state)
        blocked = blocked or (not state.phase.final and (strategy.ordered or not view.nothing_to_stop))
        failed = state.phase is StatePhase.FAILED
        over = over or (failed and strategy.failure_policy is FailurePolicy.FAIL)
    still_to_stop = {view.name for view in views if view.must_be_stopped}
    still_to_stop |= {action.instance.name for action in draft.actions if isinstance(action, RunHook)}
    settle(draft, tuple(states), still_to_stop)


def _next_state(draft: Draft, view: ContainerView, *, blocked: bool) -> RecreateState:
    """Return the next state of one container of the current request (step 4)."""
    if view.written.phase.final:
        return view.written
    if view.problem:
        return draft.fail(view.written, view.problem)
    if view.look_again_in is not None:
        draft.wake(draft.now + view.look_again_in)
        return view.written
    if view.target is None:
        return _without_target(draft, view)
    if view.outgoing is not None:
        return stop(draft, view, view.outgoing, blocked=blocked)
    if view.newest is None or view.newest.state is ContainerState.EXITED:
        return await_successor(draft, view)
    return await_ready(draft, view, view.newest)


def _without_target(draft: Draft, view: ContainerView) -> RecreateState:
    """Return the state of a container without a target.

    There is no instance yet, or its pin was removed after the work had begun.
    """
    if view.state.started:
        return draft.fail(view.state, Message.of(Reason.PIN_LOST))
    if view.unfit:
        return draft.fail(view.state, view.unfit)
    error = draft.known.pin_error
    why = Message.of(Reason.NOT_PINNED, error=error) if view.newest and error else Message.of(Reason.NOT_CREATED)
    return draft.hold(view.state, why)
