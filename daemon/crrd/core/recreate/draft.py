"""The decision for one request while it is being made: the actions so far, and the time of the next round."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from crrd.core.api.phases import check_move
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import (
    UNANSWERED_SECONDS,
    Pin,
    RecreateState,
    Request,
    RequestPhase,
    StartTimes,
    StatePhase,
    Status,
)
from crrd.core.recreate.actions import Action, Decision, EmitEvent, PinContainers, WriteStatus
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import ObservedNode, ObservedPod, ObservedRequest, Work

QUIET = 1.0  # Seconds until a wait for the pod or a container is written to the status
ASK_AGAIN = 0.05  # Seconds until a look that came too early is repeated
PERSIST_SECONDS = 2.0
"""Seconds until a hook's or stop's start is persisted. A restart before that may add up to them to the grace period."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether stops may begin, as far as the unready grace period is concerned."""

    open: bool
    message: Message = NO_MESSAGE


def with_message(state: RecreateState, message: Message) -> RecreateState:
    """Return the state with another message."""
    silent = not (state.message or state.reason or message.text or message)
    return state if silent else replace(state, message=message.text, reason=message.reason)


def recreating(state: RecreateState, work: Work, why: Message = NO_MESSAGE) -> RecreateState:
    """Return the state of a container that has its turn; the message is what it waits for now (`why`).

    If it waits for nothing, the message is the failure of its hook, if any.
    """
    if not why and state.reason is Reason.HOOK_FAILED:
        why = Message(state.reason, state.message)
    elif not why and work.hook_result is not None and work.hook_result.error:
        why = Message.of(Reason.HOOK_FAILED, error=work.hook_result.error)
    return with_message(replace(state, phase=StatePhase.RECREATING), why)


@dataclass(slots=True)
class Draft:
    """Collects what is decided for one request. `joined` makes the decision for the pod."""

    known: ObservedRequest
    pod: ObservedPod
    node: ObservedNode
    now: float
    actions: list[Action] = field(default_factory=list)
    wake_at: float | None = None
    poll_runtime: bool = False
    waits_for_slot: bool = False
    ask_api: bool = False
    gate: Gate = field(default_factory=lambda: Gate(open=True))
    hook_runs: bool = False  # Whether a hook starts or runs
    stops: dict[str, float] = field(default_factory=dict)  # Container name -> when its pending stop was sent
    start_times: dict[str, tuple[Pin, StartTimes]] = field(default_factory=dict)  # To persist, by container name

    @property
    def request(self) -> Request:
        """The request."""
        return self.known.request

    def wake(self, at: float) -> None:
        """Ask for the next round at this time or earlier."""
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at

    def too_early_to_tell(self) -> bool:
        """Whether the request is too new to write a message about a wait that may end soon. If so, look again later."""
        quiet_until = self.known.first_seen + QUIET
        if self.now >= quiet_until or self._answer_is_due():
            return False
        self.wake(quiet_until)
        return True

    def too_early_for_work(self) -> bool:
        """Whether the pending hook or stops are too new for a write, because they may end soon. If so, look later."""
        times = [self.known.first_seen + QUIET] if self.hook_runs else []
        times += [sent + PERSIST_SECONDS for sent in self.stops.values()]
        until = min(times, default=self.now)
        if self.now >= until or self._answer_is_due():
            return False
        self.wake(until)
        return True

    def _answer_is_due(self) -> bool:
        """Whether a write must not wait: the manager ends a request that has no status after UNANSWERED_SECONDS."""
        created = parse_time(self.request.created) if self.request.status.phase is RequestPhase.EMPTY else None
        return created is not None and self.node.wall - created.timestamp() > UNANSWERED_SECONDS / 2

    def pod_lost(self) -> Message | None:
        """Return why the request's pod is lost, from a get at the API server.

        Return NO_MESSAGE if the pod exists, and None if there was no get since the request came.
        """
        request, answer, node = self.request, self.pod.answer, self.node.name
        if answer is None or answer.asked_at < self.known.first_seen:
            return None
        key, found = request.pod_key, answer.pod
        if found is None:
            return Message.of(Reason.POD_GONE)
        if request.pod_uid not in ("", found.uid):
            return Message.of(Reason.POD_REPLACED, wanted=request.pod_uid, key=key, found=found.uid)
        if found.node_name != node:
            where = f"node {found.node_name}" if found.node_name else "no node (not scheduled yet)"
            return Message.of(Reason.POD_ELSEWHERE, key=key, found=where, node=node)
        return NO_MESSAGE

    def hold(self, state: RecreateState, why: Message) -> RecreateState:
        """Return the state of a container that waits before its turn. A short wait leaves the message as it is."""
        self.poll_runtime = True
        return state if self.too_early_to_tell() else with_message(state, why)

    def fail(self, state: RecreateState, why: Message) -> RecreateState:
        """Return the state Failed, and emit an event."""
        self.emit(EventReason.FAILED, f"Container {state.name}: {why.text}", state.name, warning=True)
        return with_message(replace(state, phase=StatePhase.FAILED), why)

    def note_start_times(self, work: Work) -> None:
        """Step 12: collect the start time of a hook or stop that lasts longer, so that it is persisted once."""
        recorded = start_times = self.request.start_times_of(work.name, work.pin)
        if not recorded.hook and not recorded.stop:
            start_times = replace(start_times, hook=self._time_to_persist(work.hook_began))
        if not recorded.stop:
            start_times = replace(start_times, stop=self._time_to_persist(work.stop_sent))
        if start_times != recorded:
            self.start_times[work.name] = (work.pin, start_times)

    def _time_to_persist(self, at: float | None) -> str:
        """Return a monotonic time as wall-clock time; "" if there is none, or if it is too recent to persist."""
        if at is None:
            return ""
        if self.now < at + PERSIST_SECONDS:
            self.wake(at + PERSIST_SECONDS)
            return ""
        return rfc3339(datetime.fromtimestamp(self.node.wall - (self.now - at), UTC))

    def note_hook_end(self, state: RecreateState, pin: Pin) -> RecreateState:
        """Record that the hook has ended, before its stop is sent: a restarted daemon must not run the hook again."""
        if self.node.prunes_is_killed:
            recorded = self.request.start_times.get(state.name, StartTimes())
            self.start_times[state.name] = (pin, StartTimes(recorded.hook, self.node.utc))
        return replace(state, is_killed=True)

    def persist_start_times(self) -> None:
        """Step 12: write the start times for a restarted daemon, before a status says how the work ended."""
        if self.start_times or self.known.unpinned:
            pins = {**self.request.pinned, **{name: pin for name, (pin, _) in self.start_times.items()}}
            times = {**self.request.start_times, **{name: times for name, (_, times) in self.start_times.items()}}
            self.actions.append(PinContainers(self.request, pins, times))

    def write(self, status: Status) -> None:
        """Write a status if it differs from the request's."""
        if self.node.prunes_is_killed:
            status = replace(status, states=tuple(replace(state, is_killed=False) for state in status.states))
        if status != self.request.status:
            check_move(self.request.status, status)
            self.actions.append(WriteStatus(self.request, status))

    def emit(self, reason: EventReason, message: str, container: str = "", *, warning: bool = False) -> None:
        """Emit an event on the request and its pod."""
        pod = self.pod.pod
        own = pod if pod is not None and self.request.pod_uid in ("", pod.uid) else None
        self.actions.append(EmitEvent(self.request, reason, message, container, warning, own))


def joined(drafts: Iterable[Draft]) -> Decision:
    """Return the decision for the pod of these requests."""
    made = tuple(drafts)
    return Decision(
        actions=tuple(action for draft in made for action in draft.actions),
        wake_at=min((draft.wake_at for draft in made if draft.wake_at is not None), default=None),
        poll_runtime=any(draft.poll_runtime for draft in made),
        waits_for_slot=any(draft.waits_for_slot for draft in made),
        ask_api=any(draft.ask_api for draft in made),
    )
