"""What is decided about one container in a round: its next state, and what else follows from it."""

from dataclasses import dataclass, replace

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import Pin, RecreateState, StatePhase
from crrd.core.recreate.actions import Decision, EmitEvent, earliest
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import Work
from crrd.core.recreate.view import ContainerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Decision):
    """The decision about one container."""

    state: RecreateState
    hook_runs: bool = False  # Whether its hook starts or runs
    stop_sent: float | None = None  # When its pending stop was sent
    hook_ended: Pin | None = None  # The instance whose hook has ended, which must be recorded before its stop
    lasting: bool = False  # Whether the start times of its work must be persisted if the work lasts


def with_message(state: RecreateState, message: Message) -> RecreateState:
    """Return the state with another message."""
    silent = not (state.message or state.reason or message.text or message)
    return state if silent else replace(state, message=message.text, reason=message.reason)


def failed(state: RecreateState, why: Message) -> RecreateState:
    """Return the state Failed."""
    return with_message(replace(state, phase=StatePhase.FAILED), why)


def recreating(state: RecreateState, work: Work, why: Message = NO_MESSAGE) -> RecreateState:
    """Return the state of a container that has its turn; the message is what it waits for now (`why`).

    If it waits for nothing, the message is the failure of its hook, if any.
    """
    if not why and state.reason is Reason.HOOK_FAILED:
        why = Message(state.reason, state.message)
    elif not why and work.hook_result is not None and work.hook_result.error:
        why = Message.of(Reason.HOOK_FAILED, error=work.hook_result.error)
    return with_message(replace(state, phase=StatePhase.RECREATING), why)


def resting(view: ContainerView) -> RecreateState:
    """Return the state of a container that does not have its turn, without the message of an earlier wait."""
    started = view.state.phase is StatePhase.RECREATING
    return recreating(view.state, view.work) if started else with_message(view.state, NO_MESSAGE)


def event(view: ContainerView, reason: EventReason, message: str, *, warning: bool = False) -> EmitEvent:
    """Return an event about the container."""
    return view.whole.event(reason, message, view.name, warning=warning)


def fail(view: ContainerView, why: Message, state: RecreateState | None = None) -> Step:
    """Let the container fail, in this state or the one that it has. An event says so."""
    reported = event(view, EventReason.FAILED, f"Container {view.name}: {why.text}", warning=True)
    return Step((reported,), state=failed(state or view.state, why))


def hold(view: ContainerView, why: Message, state: RecreateState | None = None, look_at: float | None = None) -> Step:
    """Let the container wait, in this state or the one that it has. A short wait leaves the message as it is."""
    until, waiting = view.whole.quiet_until(), state or view.state
    shown = waiting if until is not None else with_message(waiting, why)
    return Step(state=shown, wake_at=earliest(until, look_at), poll_runtime=True)
