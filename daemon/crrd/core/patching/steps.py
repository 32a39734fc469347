"""The next step for a request that the manager carries out by a patch of its pod.

`next_step` is an ordered table of rules, the first match wins. It keeps no state: after a crash between two writes, the
request, the pod's record and its status give the remaining steps. docs/contract.md has what differs from the node
daemon.

The invariant, checked by the property tests at every step: a container is patched at most once for a request, only
while the instance that the request means is the last one, and never to the name of another image. A request does not
lose its finalizer while kubelet has yet to start a container that was patched for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from crrd.core.api.phases import check_move
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import RecreateState, RequestPhase, StatePhase, Status
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.view import View
from crrd.core.recreate.actions import EmitEvent
from crrd.core.recreate.messages import Message, pod_over
from crrd.core.recreate.settle import failed_status, summary
from crrd.core.rollout.patch.operations import give_images_back, restart_for
from crrd.lib.jsonpatch import Operation

SHORTEST_SECONDS, LONGEST_SECONDS = 0.5, 10.0
"""Between two reads of a pod. In between, a quarter of the time since its containers have changed."""


class Turn(StrEnum):
    """What the manager does for a request now."""

    OVER = "nothing, because the request has ended"
    SERVED = "nothing, because a node daemon serves the pod's node"
    BACK = "gives a container its image back, because kubelet cannot start it"
    AWAITED = "waits for kubelet, although the request has ended"
    OVERDUE = "nothing, because the deadline has passed, and the lifecycle ends the request"
    QUEUED = "waits for another request of the pod"
    INVALID = "ends the request, because no patch can carry it out"
    POD_ENDS = "ends the request, because the pod ends"
    DONE = "ends the request, because all containers have ended"
    REFUSED = "ends the request, because the API server refuses the patch"
    BLOCKED = "waits for an earlier restart by a patch"
    BEGUN = "reports that the request is served"
    RESTARTING = "waits until kubelet has started the containers, and they are ready"
    KEPT = "adds the finalizer, so that a deleted request stays until kubelet has started its containers"
    UNREADY = "waits until the pod is unready, and for the grace period after that"
    PATCHED = "patches the pod"


@dataclass(frozen=True, slots=True)
class PatchPod:
    """Patch the pod, if a dry run shows that nobody changes the patch. `back`: it gives images back."""

    operations: tuple[Operation, ...]
    back: bool = False


Action = lc.Complete | lc.Progress | lc.AddFinalizer | PatchPod


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: one write, and the events after it. Without a write, when to read the pod again."""

    turn: Turn
    action: Action | None = None
    events: tuple[EmitEvent, ...] = ()
    wait: float | None = None  # Seconds
    held: bool = False  # Whether the finalizer must stay


def next_step(view: View) -> Step:
    """Return the next step."""
    return next(act(view, turn) for applies, turn, act in _RULES if applies(view))


def _nothing(_: View, turn: Turn) -> Step:
    return Step(turn)


def _wait(view: View, turn: Turn) -> Step:
    """Wait for a change of the pod, or for the end of the grace period."""
    age = (view.now - view.seen.changed) / 4
    wait = max(SHORTEST_SECONDS, min(LONGEST_SECONDS, age))
    return Step(turn, wait=min(wait, view.grace_left) if view.grace_left > 0 else wait, held=True)


def _back(view: View, turn: Turn) -> Step:
    operations = give_images_back(view.member, view.hopeless)
    return Step(turn, PatchPod(operations, back=True), held=True)


def _queue(view: View, turn: Turn) -> Step:
    if view.request.status.phase is not RequestPhase.EMPTY:
        return Step(turn, held=True)
    return _write(view, turn, RequestPhase.PENDING, tuple(RecreateState(each.name) for each in view.request.containers))


def _invalid(view: View, turn: Turn) -> Step:
    return _end(view, turn, Message.of(Reason.INVALID_REQUEST, error=view.invalid))


def _pod_ends(view: View, turn: Turn) -> Step:
    return _end(view, turn, pod_over(view.member.pod))


def _refused(view: View, turn: Turn) -> Step:
    return _end(view, turn, Message.of(Reason.PATCH_REFUSED, error=view.seen.refused))


def _end(view: View, turn: Turn, why: Message) -> Step:
    """Complete a request whose containers fail for one reason."""
    status = failed_status(view.request, why, rfc3339(view.utc))
    check_move(view.request.status, status)
    text = f"Request {view.request.name}: {why.text}"
    return Step(turn, lc.Complete(status), (_event(view, EventReason.FAILED, text, warning=True),))


def _done(view: View, turn: Turn) -> Step:
    states = view.states
    failures = [each for each in states if each.phase is StatePhase.FAILED]
    cause = next((each for each in failures if each.reason is not Reason.EARLIER_FAILURE), None)
    reason = cause.reason if cause is not None else Reason.NONE
    status = Status(RequestPhase.COMPLETED, states, summary(states, view.gate), rfc3339(view.utc), reason)
    check_move(view.request.status, status)
    return Step(turn, lc.Complete(status), _outcomes(view))


def _blocked(view: View, turn: Turn) -> Step:
    why = Message.of(Reason.OTHER_WORK, work=view.blocked)
    phase = max(view.request.status.phase, RequestPhase.PENDING, key=list(RequestPhase).index)
    return _write(view, turn, phase, view.states, why)


def _report(view: View, turn: Turn) -> Step:
    return _write(view, turn, RequestPhase.RECREATING, view.states)


def _write(
    view: View, turn: Turn, phase: RequestPhase, states: tuple[RecreateState, ...], why: Message | None = None
) -> Step:
    """Write the status if it has changed, else wait."""
    message = view.gate if why is None else why
    status = Status(phase, states, message.text, reason=message.reason)
    if status == view.request.status:
        return _wait(view, turn)
    check_move(view.request.status, status)
    return Step(turn, lc.Progress(status), _outcomes(view), held=True)


def _keep(_: View, turn: Turn) -> Step:
    return Step(turn, lc.AddFinalizer(), held=True)


def _patch(view: View, turn: Turn) -> Step:
    request, names = view.request, view.next_names
    operations = restart_for(view.member, request.name, request.uid, names, rfc3339(view.utc))
    events = [_event(view, EventReason.RECREATING, f"Stopping container {name} to recreate it", name) for name in names]
    if view.gate.reason is Reason.NO_READINESS_GATE and view.record is None:
        events.append(_event(view, EventReason.NO_READINESS_GATE, f"Request {request.name}: {view.gate.text}"))
    return Step(turn, PatchPod(operations), tuple(events), held=True)


def _outcomes(view: View) -> tuple[EmitEvent, ...]:
    """Return the events about containers whose outcome is written now."""
    events = []
    for each in view.states:
        if not each.phase.final or view.request.status.state(each.name).phase.final:
            continue
        if each.phase is StatePhase.FAILED:
            text = f"Container {each.name}: {each.message}"
            events.append(_event(view, EventReason.FAILED, text, each.name, warning=True))
        else:
            now = view.member.pod.containers[each.name].container_id
            events.append(
                _event(view, EventReason.RECREATED, f"Container {each.name} was recreated as {now}", each.name)
            )
    return tuple(events)


def _event(view: View, reason: EventReason, text: str, container: str = "", *, warning: bool = False) -> EmitEvent:
    return EmitEvent(view.request, reason, text, container, warning, view.member.pod)


_GATES = (Reason.WAITING_FOR_UNREADY, Reason.UNREADY_GRACE)
_Rule = tuple[Callable[[View], object], Turn, Callable[[View, Turn], Step]]
_RULES: tuple[_Rule, ...] = (
    (lambda view: view.hopeless, Turn.BACK, _back),
    (lambda view: view.over and view.due, Turn.AWAITED, _wait),
    (lambda view: view.over, Turn.OVER, _nothing),
    (lambda view: view.served and view.record is None, Turn.SERVED, _nothing),
    (lambda view: view.overdue, Turn.OVERDUE, _nothing),
    (lambda view: not view.first, Turn.QUEUED, _queue),
    (lambda view: pod_over(view.member.pod), Turn.POD_ENDS, _pod_ends),
    (lambda view: view.invalid, Turn.INVALID, _invalid),
    (lambda view: all(each.phase.final for each in view.states), Turn.DONE, _done),
    (lambda view: view.seen.refused, Turn.REFUSED, _refused),
    (lambda view: view.next_names and view.blocked, Turn.BLOCKED, _blocked),
    (lambda view: view.request.status.phase is not RequestPhase.RECREATING, Turn.BEGUN, _report),
    (lambda view: not view.next_names, Turn.RESTARTING, _report),
    (lambda view: not view.request.has_finalizer, Turn.KEPT, _keep),
    (lambda view: view.gate.reason in _GATES, Turn.UNREADY, _report),
    (lambda view: True, Turn.PATCHED, _patch),
)
