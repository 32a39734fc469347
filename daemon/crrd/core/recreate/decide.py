"""What to do next about all requests of one pod: the state machine of a ContainerRecreateRequest.

`decide` takes what is known (pod, requests, node, time) and returns what to do and when to look again. It keeps no
state: after a crash the same request, runtime and pod give the same decision. Step numbers are those of
docs/contract.md.

A round, file by file: here, which request is served, what it waits for as a whole, and each of its containers in
order; `view` is what is known of a container; `stop`, then `outcome`, is its recreate; `settle` writes what came of it.
`restart_pod` has the requests for a whole pod, and `reload` those for containers that reload their files.
Each of them returns what it decides as a value (a `Decision`, or a `Step` of a container), and `joined` puts them
together. What must hold for every decision is in `invariants`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from crrd.core.api.reasons import Reason
from crrd.core.api.types import WHOLE_POD, FailurePolicy, RecreateState, Request, RequestPhase, StatePhase, Status
from crrd.core.recreate import reload, restart_pod
from crrd.core.recreate.actions import (
    NOTHING,
    Decision,
    PinContainers,
    RunHook,
    StopContainer,
    WorkAction,
    WriteStatus,
    joined,
)
from crrd.core.recreate.image import await_image
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import Observation, ObservedRequest
from crrd.core.recreate.outcome import await_next
from crrd.core.recreate.request_view import RequestView, all_states
from crrd.core.recreate.settle import complete_as_failed, settle
from crrd.core.recreate.step import Step, fail, hold, recreating, with_message
from crrd.core.recreate.stop import finish_hooked, stop
from crrd.core.recreate.view import ContainerView
from crrd.core.recreate.whole_pod import PodView

WITHHELD_SECONDS = 5.0  # Seconds until the next decision, after one that has broken a rule
POD_PATIENCE = 60.0  # Seconds until a pod that this node has never had is looked up at the API server


def decide(observation: Observation) -> Decision:
    """Decide about all requests of one pod that are known.

    For those that have ended, nothing is decided but a stop that is still due.
    """
    over = (known for known in observation.requests if not known.servable and (known.live or known.works))
    ended = joined(_finish(RequestView(known, observation)) for known in over)
    if any(isinstance(action, StopContainer) for action in ended.actions):
        return replace(ended, wake_at=observation.now)  # the next round observes the stop and serves the others
    queue = in_serving_order(observation.requests)
    served = [_serve(RequestView(known, observation)) for known in queue[:1]]
    # Of the others, only these have something new to write.
    written = (known for known in queue[1:] if known.works or known.request.unpinned or not known.request.status.quiet)
    return joined([ended, *served, *(_wait_for_other_request(RequestView(known, observation)) for known in written)])


def without_work(decision: Decision, observation: Observation) -> Decision:
    """Return what is left of a decision that has broken a rule: its requests wait, and no hook or stop starts."""
    starting = {each.request.uid for each in decision.actions if isinstance(each, WorkAction)}
    held = (known for known in observation.requests if known.servable and known.request.uid in starting)
    waits = joined(_wait(RequestView(known, observation), Message.of(Reason.DECISION_WITHHELD)) for known in held)
    others = (action for action in decision.actions if action.request.uid not in starting)
    kept = tuple(each for each in others if not (isinstance(each, WriteStatus) and each.request.completed))
    return Decision((*kept, *waits.actions), observation.now + WITHHELD_SECONDS, poll_runtime=True)


def in_serving_order(requests: Iterable[ObservedRequest]) -> list[ObservedRequest]:
    """Return the requests to serve in the order of step 2. One that this process worked for comes first."""
    servable = (known for known in requests if known.servable)
    return sorted(servable, key=lambda known: (not known.works, serving_order(known.request)))


def serving_order(request: Request) -> tuple[bool, str, str]:
    """Return the sort key of step 2: Recreating first, then the oldest, then by name."""
    return (request.status.phase is not RequestPhase.RECREATING, request.created, request.name)


def _finish(view: RequestView) -> Decision:
    """Complete a request that is invalid, and send the stops after its hooks."""
    invalid = Message.of(Reason.INVALID_REQUEST, error=view.request.error)
    completed = complete_as_failed(view, invalid) if view.known.live else NOTHING
    return completed + finish_hooked(view)


def _serve(view: RequestView) -> Decision:
    """Serve the pod's current request: the wait of the whole request, its pins, then each container."""
    request, observed, pod = view.request, view.observed, view.observed.pod
    if pod is None or (request.pod_uid and pod.uid != request.pod_uid):
        return _await_pod(view)
    if pod.deleting:
        return complete_as_failed(view, Message.of(Reason.POD_DELETING))
    unanswered = [observed.unanswered[each.image] for each in request.containers if each.image in observed.unanswered]
    if error := observed.runtime_error or "".join(unanswered):
        return _wait(view, Message.of(Reason.RUNTIME_UNAVAILABLE, error=error))
    if observed.listed_at < view.known.first_seen:
        return Decision(wake_at=view.now)  # the list is older than this request: list again
    if unanswered or None in observed.unanswered:
        return _work_done(view)[1]  # the answer comes any moment, or why there is none
    whole = PodView(view.known, view.observation, pod)
    if request.whole_pod:
        return restart_pod.serve(whole)[1]
    if not request.containers:
        return complete_as_failed(view, reload.NO_CONTAINERS)
    views = [ContainerView.of(container, whole) for container in request.containers]
    pins = {view.name: view.to_pin for view in views if view.to_pin is not None}
    pinned = NOTHING
    if pins:
        pinned = Decision((PinContainers(request, {**request.pinned, **pins}, request.start_times),))
        if not view.known.pin_error:
            return pinned
    return pinned + _recreate(whole, views)


def _wait_for_other_request(view: RequestView) -> Decision:
    """Step 2: wait for another request of the pod. Write the result of work that began earlier for this one."""
    request, (done, recorded) = view.request, _work_done(view)
    phase = RequestPhase.RECREATING if done else request.status.phase or RequestPhase.PENDING
    rewrite = done or request.status.phase is RequestPhase.EMPTY
    states = all_states(request, done) if rewrite else request.status.states
    waits_over = (with_message(state, NO_MESSAGE) if state.phase is StatePhase.PENDING else state for state in states)
    return recorded + view.write(Status(phase, tuple(waits_over)))


def _await_pod(view: RequestView) -> Decision:
    """Step 6: wait for a pod that was not seen yet. Complete the request if the API server has no such pod.

    If the watch reports that the pod has gone, was replaced or never came, ask the API server. A watch can be behind,
    and a verdict is final.
    """
    observed, until = view.observed, None
    missing = observed.gone or observed.pod is not None
    if not missing and observed.known_since is not None:
        until = max(view.known.first_seen, observed.known_since) + POD_PATIENCE
        missing = view.now >= until
    lost = view.pod_lost() if missing else NO_MESSAGE
    if lost:
        return complete_as_failed(view, lost)
    wait = _wait(view, Message.of(Reason.WAITING_FOR_POD, key=view.request.pod_key, node=view.node.name))
    return wait + Decision(wake_at=None if missing else until, ask_api=lost is None)


def _wait(view: RequestView, why: Message) -> Decision:
    """Let the request wait. A longer wait is written to its status.

    The results of its hooks and stops are written anyway (step 12).
    """
    request, (moved, recorded) = view.request, _work_done(view)
    quiet_until = view.quiet_until()
    if quiet_until is not None:
        return recorded + Decision(wake_at=quiet_until)
    states = all_states(request, moved)
    started = request.status.phase is RequestPhase.RECREATING or any(state.started for state in states)
    phase = RequestPhase.RECREATING if started else RequestPhase.PENDING
    return recorded + view.write(Status(phase, states, why.text, reason=why.reason))


def _work_done(view: RequestView) -> tuple[list[RecreateState], Decision]:
    """Return states that record the end of a hook or that a stop was sent, and what persists when both began."""
    request, works = view.request, view.known.works.values()
    hooked = [work for work in works if work.hook_result and not work.stopped and work.hook_unrecorded(request)]
    done = list[RecreateState]()
    for work in works:
        names = [each.name for each in request.containers] if work.name == WHOLE_POD else [work.name]
        for written in map(request.status.state, names):
            sent = work.stop_sent is not None and not (written.is_killed or written.phase.final)
            if sent or work in hooked:
                done.append(replace(recreating(written, work), is_killed=True))
    return done, view.persist(works, {work.name: work.pin for work in hooked})


def _recreate(whole: PodView, views: Sequence[ContainerView]) -> Decision:
    """Handle each container in the order of the spec (step 8), then write the request's phase."""
    strategy, gate = whole.request.strategy, whole.gate
    steps, still_to_stop = list[Step](), set[str]()
    blocked, over = not gate.open, False
    for view in views:
        if over and not view.must_be_stopped:
            steps.append(Step(state=view.written))
            continue
        step = _next_step(view, blocked=blocked)
        steps.append(step)
        if view.must_be_stopped or any(isinstance(action, RunHook) for action in step.actions):
            still_to_stop.add(view.name)
        decides = view.unanswered is None or strategy.failure_policy is FailurePolicy.FAIL
        waits = strategy.ordered or (decides and not view.nothing_to_stop)
        blocked = blocked or (not step.state.phase.final and waits)
        over = over or (step.state.phase is StatePhase.FAILED and strategy.failure_policy is FailurePolicy.FAIL)
    return joined([*steps, Decision(wake_at=gate.until), settle(whole, gate.message, steps, still_to_stop)])


def _next_step(view: ContainerView, *, blocked: bool) -> Step:
    """Return what to do about one container of the current request (step 4)."""
    if view.written.phase.final:
        return Step(state=view.written)
    if view.name not in view.whole.pod.containers:
        return _not_in_pod(view)
    if view.problem:
        return fail(view, view.problem, view.written)
    if (why := view.unanswered) is not None:
        return hold(view, Message.of(Reason.RUNTIME_UNAVAILABLE, error=why)) if why else Step(state=view.written)
    if view.look_again_at is not None:
        return Step(state=view.written, wake_at=view.look_again_at)
    if view.request.reloads:
        return reload.serve(view, blocked=blocked)[1]
    if view.image:
        return await_image(view, blocked=blocked)
    if view.target is None:
        return _without_target(view)
    if view.outgoing is not None:
        return stop(view, view.outgoing, blocked=blocked)
    return await_next(view)


def _not_in_pod(view: ContainerView) -> Step:
    """The pod has no such container, or one was added to it and the watch is behind. Ask the API server."""
    lost, answer = view.whole.pod_lost(), view.whole.observed.answer
    there = answer is not None and answer.pod is not None and view.name in answer.pod.containers
    if lost is None or (there and not lost):
        return Step(state=view.written, ask_api=True)
    return fail(view, lost or view.problem, view.written)


def _without_target(view: ContainerView) -> Step:
    """Return what to do about a container without a target.

    There is no instance yet, or its pin was removed after the work had begun.
    """
    if view.state.started:
        return fail(view, Message.of(Reason.PIN_LOST))
    if view.unfit:
        return fail(view, view.unfit)
    error = view.whole.known.pin_error
    return hold(
        view, Message.of(Reason.NOT_PINNED, error=error) if view.newest and error else Message.of(Reason.NOT_CREATED)
    )
