"""What came of a request: it is completed, or its status says how far it has come (steps 10 and 11)."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import FailurePolicy, RecreateState, Request, RequestPhase, StatePhase, Status
from crrd.core.recreate.actions import Decision
from crrd.core.recreate.messages import Message
from crrd.core.recreate.request_view import RequestView, all_states
from crrd.core.recreate.step import Step, failed


def settle(
    view: RequestView, gate: Message, steps: Sequence[Step], still_to_stop: Collection[str] = (), result: str = ""
) -> Decision:
    """Complete the request, or write its progress.

    `gate`: the message of the unready grace period. `still_to_stop`: names of containers that must still be stopped.
    `result`: what the message says in addition when all containers were recreated.
    """
    request, states = view.request, tuple(step.state for step in steps)
    failures = [state for state in states if state.phase is StatePhase.FAILED]
    causes = [state for state in failures if state.reason is not Reason.EARLIER_FAILURE] or failures
    cause = causes[0] if causes else None
    if cause is not None and request.strategy.failure_policy is FailurePolicy.FAIL:
        awaited = Message.of(Reason.EARLIER_FAILURE, what="stopped waiting", name=cause.name)
        pending = Message.of(Reason.EARLIER_FAILURE, what="skipped", name=cause.name)
        states = fail_rest(states, awaited, pending, still_to_stop)
    if all(state.phase.final for state in states):
        reason = cause.reason if cause is not None else Reason.NONE
        did = "reloaded" if request.reloads else "recreated"
        text = summary(states, gate, "" if failures else result, did)
        return view.write(Status(RequestPhase.COMPLETED, states, text, view.node.utc, reason))
    status = Status(RequestPhase.RECREATING, states, gate.text, reason=gate.reason)
    works = [view.known.work_on(step.state.name) for step in steps if step.lasting]
    persisted = view.persist(works, {step.state.name: step.hook_ended for step in steps if step.hook_ended is not None})
    sent = {step.state.name: step.stop_sent for step in steps if step.stop_sent is not None}
    if _only_started(request.status, status, sent):
        until = view.started_until(hook_runs=any(step.hook_runs for step in steps), stops=sent.values())
        if until is not None:
            return persisted + Decision(wake_at=until)
    return persisted + view.write(status)


def complete_as_failed(view: RequestView, why: Message) -> Decision:
    """Complete a request that cannot be served, for a reason that concerns all of its containers."""
    status = failed_status(view.request, why, view.node.utc)
    event = view.event(EventReason.FAILED, f"Request {view.request.name}: {why.text}", warning=True)
    return Decision((event,)) + view.write(status)


def failed_status(request: Request, why: Message, at: str) -> Status:
    """Return the last status of a request that fails as a whole. `at` is an RFC 3339 time."""
    states = fail_rest(all_states(request), why, why)
    return Status(RequestPhase.COMPLETED, states, why.text, at, why.reason)


def fail_rest(
    states: Iterable[RecreateState], recreating: Message, pending: Message, spared: Collection[str] = ()
) -> tuple[RecreateState, ...]:
    """Set every state that is not final to Failed, with the message for its phase, except for the names `spared`."""
    return tuple(
        state
        if state.phase.final or state.name in spared
        else failed(state, pending if state.phase is StatePhase.PENDING else recreating)
        for state in states
    )


def _only_started(old: Status, new: Status, stops: Collection[str]) -> bool:
    """Whether the status changes only because work has started. `stops`: names of containers being stopped."""
    if new.reason is not old.reason:
        return False
    for state in new.states:
        before = old.state(state.name)
        started = replace(before, phase=StatePhase.RECREATING)
        if state not in (before, started, replace(started, is_killed=before.is_killed or state.name in stops)):
            return False
    return True


def summary(states: Sequence[RecreateState], gate: Message, result: str = "", did: str = "recreated") -> str:
    """Return the message of the completed request."""
    failures = [state.name for state in states if state.phase is StatePhase.FAILED]
    count = f"{len(states) - len(failures)} of {len(states)} containers {did}"
    restarted = [f"{state.name}: {state.message}" for state in states if state.reason is Reason.POD_RESTARTED]
    parts = [count, f"failed: {', '.join(failures)}" if failures else "", *restarted, result, gate.text]
    return "; ".join(filter(None, parts))
