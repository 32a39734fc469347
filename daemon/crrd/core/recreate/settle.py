"""What came of a request: it is completed, or its status says how far it has come (steps 10 and 11)."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import FailurePolicy, RecreateState, Request, RequestPhase, StatePhase, Status
from crrd.core.recreate.draft import Draft, with_message
from crrd.core.recreate.messages import Message


def settle(draft: Draft, states: tuple[RecreateState, ...], still_to_stop: Collection[str]) -> None:
    """Complete the request, or write its progress. `still_to_stop`: names of containers that must still be stopped."""
    request, gate = draft.request, draft.gate.message
    failed = [state for state in states if state.phase is StatePhase.FAILED]
    causes = [state for state in failed if state.reason is not Reason.EARLIER_FAILURE] or failed
    cause = causes[0] if causes else None
    if cause is not None and request.strategy.failure_policy is FailurePolicy.FAIL:
        awaited = Message.of(Reason.EARLIER_FAILURE, what="stopped waiting", name=cause.name)
        pending = Message.of(Reason.EARLIER_FAILURE, what="skipped", name=cause.name)
        states = _fail_rest(states, awaited, pending, still_to_stop)
    if all(state.phase.final for state in states):
        reason = cause.reason if cause is not None else Reason.NONE
        status = Status(RequestPhase.COMPLETED, states, _summary(states, gate), draft.node.utc, reason)
        draft.write(status)
        return
    status = Status(RequestPhase.RECREATING, states, gate.text, reason=gate.reason)
    draft.persist_start_times()
    if not _only_started(request.status, status, draft.stops) or not draft.too_early_for_work():
        draft.write(status)


def complete_as_failed(draft: Draft, why: Message) -> None:
    """Complete a request that cannot be served, for a reason that concerns all of its containers."""
    draft.emit(EventReason.FAILED, f"Request {draft.request.name}: {why.text}", warning=True)
    draft.write(failed_status(draft.request, why, draft.node.utc))


def failed_status(request: Request, why: Message, at: str) -> Status:
    """Return the last status of a request that fails as a whole. `at` is an RFC 3339 time."""
    return Status(RequestPhase.COMPLETED, _fail_rest(all_states(request), why, why), why.text, at, why.reason)


def all_states(request: Request, moved: Iterable[RecreateState] = ()) -> tuple[RecreateState, ...]:
    """Return a state for each container, in the order of the spec. `moved` replaces states of the status."""
    by_name = {state.name: state for state in (*request.status.states, *moved)}
    names = dict.fromkeys(container.name for container in request.containers)
    return tuple(by_name.get(name, RecreateState(name)) for name in names)


def _fail_rest(
    states: Iterable[RecreateState], recreating: Message, pending: Message, spared: Collection[str] = ()
) -> tuple[RecreateState, ...]:
    """Set every state that is not final to Failed, with the message for its phase, except for the names `spared`."""
    rest = list(states)
    for at, state in enumerate(rest):
        if not state.phase.final and state.name not in spared:
            message = pending if state.phase is StatePhase.PENDING else recreating
            rest[at] = with_message(replace(state, phase=StatePhase.FAILED), message)
    return tuple(rest)


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


def _summary(states: Sequence[RecreateState], gate: Message) -> str:
    """Return the message of the completed request."""
    failed = [state.name for state in states if state.phase is StatePhase.FAILED]
    count = f"{len(states) - len(failed)} of {len(states)} containers recreated"
    restarted = [f"{state.name}: {state.message}" for state in states if state.reason is Reason.POD_RESTARTED]
    parts = [count, f"failed: {', '.join(failed)}" if failed else "", *restarted, gate.text]
    return "; ".join(filter(None, parts))
