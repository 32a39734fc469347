"""What a request as a whole waits for: its turn, its pod, the runtime, and its pod's unready grace period."""

from collections.abc import Iterable
from dataclasses import dataclass

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import RecreateState, Request, RequestPhase, Status
from crrd.core.recreate.draft import Draft, without_waits
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import Live
from crrd.core.recreate.record import hook_end_untold
from crrd.core.recreate.settle import all_states, give_up
from crrd.core.recreate.view import recreating

POD_PATIENCE = 60.0
"""Seconds after which a pod that was never seen on this node is asked for."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether the unready grace period lets stops through."""

    open: bool
    message: Message = NO_MESSAGE
    wake_at: float | None = None


def unready_gate(draft: Draft, request: Request, pod: Pod) -> Gate:
    """Step 7: the mark, then the grace period on this node's monotonic clock from when the mark was seen.

    A request that has already stopped something has its grace period behind it.
    """
    grace = request.strategy.unready_grace_seconds
    if grace is None:
        return Gate(open=True)
    if not pod.readiness_gate:
        return Gate(open=True, message=Message.of(Reason.NO_READINESS_GATE))
    if any(state.is_killed for state in request.status.states) or any(begun.stop for begun in request.begun.values()):
        return Gate(open=True)
    if not request.unready_acquired:
        return Gate(open=False, message=Message.of(Reason.WAITING_FOR_UNREADY))
    until = draft.seen.unready_seen.get(request.uid, draft.now) + grace
    if draft.now < until:
        return Gate(open=False, message=Message.of(Reason.UNREADY_GRACE, grace=grace), wake_at=until)
    return Gate(open=True)


def await_turn(draft: Draft, request: Request) -> None:
    """Step 2: another one has the turn. What was begun for this one before it left the selection is written."""
    if ended := _hooks_ended(draft, request):
        draft.write(request, Status(RequestPhase.RECREATING, without_waits(all_states(request, ended))))
    elif request.status.phase is RequestPhase.EMPTY:
        draft.write(request, Status(RequestPhase.PENDING, all_states(request)))
    else:
        draft.write(request, Status(request.status.phase, without_waits(request.status.states)))


def await_runtime(draft: Draft, request: Request) -> None:
    """Step 12: the runtime does not answer; what is known of hooks and stops is written all the same."""
    why = Message.of(Reason.RUNTIME_UNAVAILABLE, error=draft.seen.runtime_error)
    _wait(draft, request, why, _hooks_ended(draft, request))


def await_pod(draft: Draft, request: Request) -> None:
    """Step 6: a pod not seen yet is waited for; one that the API server itself does not have ends the request.

    What the watch says (it has gone, another one has its name, it never came) is a reason to ask. A watch can be
    behind, and a verdict is final.
    """
    seen = draft.seen
    missing = seen.pod_gone or seen.pod is not None
    if not missing and seen.known_since is not None:
        until = max(draft.first_seen(request), seen.known_since) + POD_PATIENCE
        missing = draft.now >= until
        if not missing:
            draft.wake(until)
    if missing:
        live = live_answer(draft, request)
        if live is None:
            draft.ask_api = True
        elif verdict := lost_pod(draft, request, live.pod):
            give_up(draft, request, verdict)
            return
    why = Message.of(Reason.WAITING_FOR_POD, key=request.pod_key, node=seen.node_name)
    _wait(draft, request, why, _hooks_ended(draft, request))


def live_answer(draft: Draft, request: Request) -> Live | None:
    """The API server's own answer for the pod, where it was asked for since the request is known."""
    live = draft.seen.live
    return live if live is not None and live.asked_at >= draft.first_seen(request) else None


def lost_pod(draft: Draft, request: Request, found: Pod | None) -> Message:
    """Why the pod of the request is lost, by the API server's own answer for its name."""
    if found is None:
        return Message.of(Reason.POD_GONE)
    if request.pod_uid not in ("", found.uid):
        return Message.of(Reason.POD_REPLACED, wanted=request.pod_uid, key=request.pod_key, found=found.uid)
    node = draft.seen.node_name
    if found.node_name != node:
        return Message.of(Reason.POD_ELSEWHERE, key=request.pod_key, found=found.node_name or "none yet", node=node)
    return NO_MESSAGE


def _wait(draft: Draft, request: Request, why: Message, moved: Iterable[RecreateState]) -> None:
    """Nothing can be done for the request; its status says so when it takes a while.

    `moved`: states that have changed all the same.
    """
    if draft.too_early_to_tell(request):
        return
    states = all_states(request, moved)
    begun = request.status.phase is RequestPhase.RECREATING or any(state.begun for state in states)
    phase = RequestPhase.RECREATING if begun else RequestPhase.PENDING
    draft.write(request, Status(phase, states, why.text, reason=why.reason))


def _hooks_ended(draft: Draft, request: Request) -> list[RecreateState]:
    """States that say that a hook has ended; when it began, and a stop, is persisted."""
    draft.begun = {}
    ended = []
    for work in (work for (uid, _), work in draft.seen.works.items() if uid == request.uid):
        draft.note_begun(request, work)
        if work.hook is not None and hook_end_untold(request, work):
            state = recreating(request.status.state(work.name), work)
            ended.append(draft.note_hook_end(request, state, work.pin))
    draft.persist_begun(request)
    return ended
