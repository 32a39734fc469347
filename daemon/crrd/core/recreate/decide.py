"""What to do next about all requests of one pod: the state machine of a ContainerRecreateRequest.

`decide` takes what is known (requests, observation, time) and returns what to do and when to look again. It keeps no
state: after a crash the same request, runtime and pod give the same decision. Step numbers are those of
docs/contract.md.

A round, file by file: here, which request is served, what it waits for as a whole, and each of its containers in
order; `view` is what is known of a container; `stop`, then `outcome`, is its recreate; `settle` writes what came of it.

The property tests check this invariant at every step. A StopContainer or RunHook is decided only if
1. its request is live (or, for a stop, one of `Observation.ended`),
2. the request means this instance, by its statusContext or its pin, and the instance runs,
3. nothing else is at work on the instance (except an earlier request's stop with a longer timeout),
4. kubelet would start the container again.
A Completed status is never followed by another one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import FailurePolicy, RecreateState, Request, RequestPhase, StatePhase, Status
from crrd.core.recreate.actions import Decision, PinContainers, RunHook
from crrd.core.recreate.draft import Draft, Gate, recreating, with_message
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import Observation, Work
from crrd.core.recreate.outcome import await_ready, await_successor
from crrd.core.recreate.settle import all_states, complete_as_failed, settle
from crrd.core.recreate.stop import finish_hooked, stop
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.runtime_status import ContainerState

POD_PATIENCE = 60.0  # Seconds until a pod that this node has never had is looked up at the API server


def decide(requests: Sequence[Request], observed: Observation, now: float) -> Decision:
    """Decide about all requests of one pod that are known, in any order; those that have ended are skipped.

    `now`: monotonic seconds, the same clock as in `observed`.
    """
    draft = Draft(observed, now)
    live = [request for request in requests if request.live]
    for request in live:
        if request.error:
            complete_as_failed(draft, request, Message.of(Reason.INVALID_REQUEST, error=request.error))
    if finish_hooked(draft):
        draft.wake(now)  # the live requests are served in the next round, which observes the stop
        return draft.decision()
    if valid := in_serving_order(live, observed.works):
        _serve(draft, valid[0])
        to_record = {uid for uid, _ in observed.works} | observed.unpinned
        for request in valid[1:]:
            if request.uid in to_record or not request.status.quiet:  # else there is nothing new to write
                _wait_for_other_request(draft, request)
    return draft.decision()


def in_serving_order(requests: Iterable[Request], works: Mapping[tuple[str, str], Work]) -> list[Request]:
    """Return the valid live requests in the order of step 2. One that this process worked for comes first."""
    with_work = {uid for uid, _ in works}
    valid = (request for request in requests if not request.error)
    return sorted(valid, key=lambda request: (request.uid not in with_work, serving_order(request)))


def serving_order(request: Request) -> tuple[bool, str, str]:
    """Return the sort key of step 2: Recreating first, then the oldest, then by name."""
    return (request.status.phase is not RequestPhase.RECREATING, request.created, request.name)


def _serve(draft: Draft, request: Request) -> None:
    """Serve the pod's current request: the wait of the whole request, its pins, then each container."""
    observed, pod = draft.observed, draft.observed.pod
    if pod is None or (request.pod_uid and pod.uid != request.pod_uid):
        _await_pod(draft, request)
    elif pod.deleting:
        complete_as_failed(draft, request, Message.of(Reason.POD_DELETING))
    elif observed.runtime_error:
        _wait(draft, request, Message.of(Reason.RUNTIME_UNAVAILABLE, error=observed.runtime_error))
    elif observed.listed_at < observed.first_seen.get(request.uid, 0.0):
        draft.wake(draft.now)  # the list is older than this request: list again
    else:
        views = [ContainerView.of(request, container, pod, observed, draft.now) for container in request.containers]
        pins = {view.name: view.to_pin for view in views if view.to_pin is not None}
        if pins:
            draft.actions.append(PinContainers(request, {**request.pinned, **pins}, request.start_times))
        if not pins or request.uid in observed.pin_errors:
            draft.gate = _unready_gate(draft, request, pod)
            _recreate(draft, request, views)


def _wait_for_other_request(draft: Draft, request: Request) -> None:
    """Step 2: wait for another request of the pod. Write the result of work that began earlier for this one."""
    done = _work_done(draft, request)
    phase = RequestPhase.RECREATING if done else request.status.phase or RequestPhase.PENDING
    rewrite = done or request.status.phase is RequestPhase.EMPTY
    states = all_states(request, done) if rewrite else request.status.states
    waits_over = (with_message(state, NO_MESSAGE) if state.phase is StatePhase.PENDING else state for state in states)
    draft.write(request, Status(phase, tuple(waits_over)))


def _await_pod(draft: Draft, request: Request) -> None:
    """Step 6: wait for a pod that was not seen yet. Complete the request if the API server has no such pod.

    If the watch reports that the pod has gone, was replaced or never came, ask the API server. A watch can be behind,
    and a verdict is final.
    """
    observed = draft.observed
    missing = observed.pod_gone or observed.pod is not None
    if not missing and observed.known_since is not None:
        until = max(draft.first_seen(request), observed.known_since) + POD_PATIENCE
        missing = draft.now >= until
        if not missing:
            draft.wake(until)
    if missing:
        lost = draft.pod_lost(request)
        if lost:
            complete_as_failed(draft, request, lost)
            return
        draft.ask_api = lost is None
    why = Message.of(Reason.WAITING_FOR_POD, key=request.pod_key, node=observed.node_name)
    _wait(draft, request, why)


def _wait(draft: Draft, request: Request, why: Message) -> None:
    """Let the request wait. A longer wait is written to its status.

    The results of its hooks and stops are written anyway (step 12).
    """
    moved = _work_done(draft, request)
    if draft.too_early_to_tell(request):
        return
    states = all_states(request, moved)
    started = request.status.phase is RequestPhase.RECREATING or any(state.started for state in states)
    phase = RequestPhase.RECREATING if started else RequestPhase.PENDING
    draft.write(request, Status(phase, states, why.text, reason=why.reason))


def _work_done(draft: Draft, request: Request) -> list[RecreateState]:
    """Return states that record the end of a hook or that a stop was sent. Also persist when both began."""
    draft.start_times = {}
    done = []
    for work in (work for (uid, _), work in draft.observed.works.items() if uid == request.uid):
        draft.note_start_times(request, work)
        written = request.status.state(work.name)
        state = recreating(written, work)
        if work.hook_result is not None and work.hook_unrecorded(request):
            done.append(draft.note_hook_end(request, state, work.pin))
        elif work.stop_sent is not None and not (written.is_killed or written.phase.final):
            done.append(replace(state, is_killed=True))
    draft.persist_start_times(request)
    return done


def _unready_gate(draft: Draft, request: Request, pod: Pod) -> Gate:
    """Step 7: wait for the mark, then for the grace period, by this node's monotonic clock since the mark was seen.

    If a hook or stop of the request has begun, its unready grace period is over.
    """
    grace = request.strategy.unready_grace_seconds
    if grace is None:
        return Gate(open=True)
    if not pod.readiness_gate:
        return Gate(open=True, message=Message.of(Reason.NO_READINESS_GATE))
    begun = any(times.hook or times.stop for times in request.start_times.values())
    work_begun = begun or any(state.is_killed for state in request.status.states)
    if work_begun or any(uid == request.uid for uid, _ in draft.observed.works):
        return Gate(open=True)
    if not request.unready_acquired:
        return Gate(open=False, message=Message.of(Reason.WAITING_FOR_UNREADY))
    until = draft.observed.unready_seen.get(request.uid, draft.now) + grace
    if draft.now < until:
        draft.wake(until)
        return Gate(open=False, message=Message.of(Reason.UNREADY_GRACE, grace=grace))
    return Gate(open=True)


def _recreate(draft: Draft, request: Request, views: Sequence[ContainerView]) -> None:
    """Handle each container in the order of the spec (step 8), then write the request's phase."""
    states: list[RecreateState] = []
    blocked = over = False
    for view in views:
        if over and not view.must_be_stopped:
            states.append(view.written)
            continue
        state = _next_state(draft, view, blocked=blocked)
        states.append(state)
        blocked = blocked or (not state.phase.final and (request.strategy.ordered or not view.nothing_to_stop))
        failed = state.phase is StatePhase.FAILED
        over = over or (failed and request.strategy.failure_policy is FailurePolicy.FAIL)
    still_to_stop = {view.name for view in views if view.must_be_stopped}
    still_to_stop |= {action.instance.name for action in draft.actions if isinstance(action, RunHook)}
    settle(draft, request, tuple(states), still_to_stop)


def _next_state(draft: Draft, view: ContainerView, *, blocked: bool) -> RecreateState:
    """Return the next state of one container of the current request (step 4)."""
    if view.written.phase.final:
        return view.written
    if view.problem:
        return draft.fail(view.request, view.written, view.problem)
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
        return draft.fail(view.request, view.state, Message.of(Reason.PIN_LOST))
    if view.unfit:
        return draft.fail(view.request, view.state, view.unfit)
    error = draft.observed.pin_errors.get(view.request.uid)
    why = Message.of(Reason.NOT_PINNED, error=error) if view.newest and error else Message.of(Reason.NOT_CREATED)
    return draft.hold(view.request, view.state, why)
