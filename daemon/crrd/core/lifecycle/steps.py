"""What the manager has to do next about one request, whatever its node's daemon does: that it ends, and leaves nothing.

`next_steps` and `pod_steps` take what is known (the request, its pod, the API server's time) and return what to do, in
this order, and when to look again. They keep no state: after a crash between any two actions, the same objects give
the rest of them. What happens to containers is `decide`'s concern, on the node.

The invariant, checked by the property tests at every step: a pod is unready for a request only while the request
carries the finalizer, or has yet to be cleaned up after by `pod_steps`; and the finalizer goes only after that. A
Completed status is never followed by another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from crrd.core.api.phases import check_move
from crrd.core.api.pod import PodMeta
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import after, rfc3339
from crrd.core.api.types import ANSWER_SECONDS, DEFAULT_GRACE_SECONDS, LABEL_NODE_NAME, Request, RequestPhase, Status
from crrd.core.recreate.actions import EmitEvent
from crrd.core.recreate.messages import Message
from crrd.core.recreate.settle import failed_status

ENDS = (Reason.POD_GONE, Reason.POD_REPLACED, Reason.POD_DELETING, Reason.NO_ANSWER, Reason.DEADLINE)
"""Why the manager completes a request that its node does not bring to an end."""
GOING_SECONDS = 30
"""How long after the grace period of a pod that is being deleted the node's daemon may leave its requests open."""
DEFAULT_SLACK_SECONDS = 3600
"""What a request without a deadline has above what it asks for: for kubelet, images, and requests before it."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Write the last status of a request that its node does not bring to an end; its reason says why."""

    status: Status


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """From now on the request cannot vanish before the pod's readiness is released."""


@dataclass(frozen=True, slots=True)
class AcquireUnready:
    """Make the pod unready for this request."""

    pod: PodMeta
    key: str  # `namespace/name` of the request


@dataclass(frozen=True, slots=True)
class RecordUnready:
    """Tell the node that the pod is unready."""

    at: str  # RFC 3339, the API server's time


@dataclass(frozen=True, slots=True)
class ReleaseUnready:
    """Take this request from the reasons for which the pod is unready."""

    pod: PodMeta
    key: str  # `namespace/name` of the request


@dataclass(frozen=True, slots=True)
class InitReadiness:
    """Set the condition True on a pod that has the gate and no condition yet."""

    pod: PodMeta


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """The readiness is released: the request may vanish."""


@dataclass(frozen=True, slots=True)
class RemoveActive:
    """Take the active label: nodes need not watch the request any more."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a completed request whose time to live is over."""


PodAction = AcquireUnready | ReleaseUnready | InitReadiness
RequestAction = Complete | AddFinalizer | RecordUnready | RemoveFinalizer | RemoveActive | Delete
LifecycleAction = PodAction | RequestAction | EmitEvent


@dataclass(frozen=True, slots=True)
class Steps:
    """What to do now, in this order, and when to look again if nothing happens before (None for never)."""

    actions: tuple[LifecycleAction, ...] = ()
    wake_at: datetime | None = None


def next_steps(
    request: Request,
    pod: PodMeta | None,
    now: datetime,
    *,
    known: bool = True,
    since: datetime | None = None,
    slack: int = DEFAULT_SLACK_SECONDS,
) -> Steps:
    """Decide about one request.

    Args:
        request: the request.
        pod: the pod of that name, None where there is none for certain: that completes the request, which is final.
        now: the API server's time, aware of its zone.
        known: False where the pod could not be looked up, and is None. What time alone decides happens all the same;
            the pod's readiness, and the finalizer that guards it, wait.
        since: since when the request counts as it is, open or completed, by the same clock. None for an open request
            that is as old as its creationTimestamp says (that may be another API server's time, and their clocks may
            differ by minutes), and for a completed one where that is now.
        slack: seconds that a request without a deadline has above what it asks for.
    """
    own = pod if pod is not None and request.pod_uid in ("", pod.uid) else None
    release = _release(request, own) if known else ()
    deactivate = (RemoveActive(),) if request.active else ()
    if request.deleting:
        held = request.finalizers and not request.has_finalizer  # by somebody else: it does not vanish, released or not
        return Steps(deactivate if held else release)
    if request.completed:
        return _clean_up(request, release + deactivate, now, since or now)
    if known and own is None:
        values = {"wanted": request.pod_uid, "key": request.pod_key, "found": pod.uid if pod else ""}
        return _end(request, Reason.POD_GONE if pod is None else Reason.POD_REPLACED, now, **values)
    times = [(after(own.grace_ends if own else "", GOING_SECONDS), Reason.POD_DELETING)]
    created = request.created if since is None else since.isoformat()
    seconds, deadline = request.deadline_seconds, f"{request.deadline_seconds}s"
    if seconds is None:
        seconds = default_deadline(request, slack)
        deadline = f"{seconds}s, the manager's default"
    times.append((after(created, seconds), Reason.DEADLINE))
    if request.status.phase is RequestPhase.EMPTY:
        times.append((after(created, ANSWER_SECONDS), Reason.NO_ANSWER))
    for at, reason in times:
        if at is not None and at <= now:
            no_label = f", because admission set no label {LABEL_NODE_NAME}"
            where = f" on node {request.node_name}" if request.node_name else no_label
            return _end(request, reason, now, deadline=deadline, where=where, waited=_last_wait(request))
    wake_at = min((at for at, _ in times if at is not None), default=None)
    if own is not None and wants_unready(request, own):
        return Steps(_acquire(request, own, now), wake_at)
    return Steps(release, wake_at)


def default_deadline(request: Request, slack: int) -> int:
    """Seconds after its creation until a request without a deadline ends: all that it asks for, and `slack`.

    A node whose daemon is dead must not keep a pod unready for ever, nor any request open.
    """
    strategy = request.strategy
    grace = DEFAULT_GRACE_SECONDS if strategy.grace_seconds is None else strategy.grace_seconds
    each = grace + strategy.min_started_seconds
    return (strategy.unready_grace_seconds or 0) + len(request.containers) * each + slack


def pod_steps(pod: PodMeta, requests: Iterable[Request]) -> Steps:
    """Decide about the readiness of one pod beyond its requests: nobody else would repair it.

    A pod with the gate and no condition yet gets it, or it would never be ready. A reason to be unready whose request
    is not there any more (the finalizer was taken by force) is removed; one whose request carries the finalizer is
    `next_steps`' concern. `requests`: all those for this pod.
    """
    if not pod.readiness_gate or pod.deleting or pod.ended:
        return Steps()
    if not pod.readiness.status:
        return Steps((InitReadiness(pod),))
    kept = {request.key for request in requests if request.has_finalizer or wants_unready(request, pod)}
    return Steps(tuple(ReleaseUnready(pod, key) for key in pod.readiness.keys if key not in kept))


def wants_unready(request: Request, pod: PodMeta) -> bool:
    """Whether the pod has to be unready for the request now.

    Only from when the node serves the request: while it waits behind another one of its pod, traffic is not taken
    from the pod. Without the gate nothing would come of it; the node says so and does not wait.
    """
    return (
        request.live
        and request.status.phase is RequestPhase.RECREATING
        and request.strategy.unready_grace_seconds is not None
        and pod.readiness_gate
        and not pod.deleting
        and request.pod_uid in ("", pod.uid)
    )


def _acquire(request: Request, pod: PodMeta, now: datetime) -> tuple[LifecycleAction, ...]:
    """Make the pod unready: the finalizer goes first, so that a crash afterwards cannot leave the pod so for ever."""
    actions: list[LifecycleAction] = []
    if not request.has_finalizer:
        actions.append(AddFinalizer())
    if not pod.readiness.acquired_by(request.key):
        actions.append(AcquireUnready(pod, request.key))
    if not request.unready_acquired:
        actions.append(RecordUnready(rfc3339(now)))
    return tuple(actions)


def _release(request: Request, own: PodMeta | None) -> tuple[LifecycleAction, ...]:
    """Give the pod its readiness back, then let the request go; a pod that has gone took its condition along."""
    if not request.has_finalizer:
        return ()
    if own is None or not own.readiness_gate:
        return (RemoveFinalizer(),)
    return (ReleaseUnready(own, request.key), RemoveFinalizer())


def _clean_up(request: Request, actions: tuple[LifecycleAction, ...], now: datetime, ended_at: datetime) -> Steps:
    """What is left to do about a completed request: these actions, and its end.

    Its time to live counts from when it was seen to be completed. The completionTime is of a node's clock: one that is
    ahead would keep the request for ever, one that is behind would delete it before anybody has read what became of it.
    """
    expires = None if request.ttl_seconds is None else ended_at + timedelta(seconds=request.ttl_seconds)
    if expires is not None and expires <= now:
        return Steps((*actions, Delete()))
    return Steps(actions, expires)


def _last_wait(request: Request) -> str:
    """What its first unfinished container waited for, as the end of a sentence."""
    waits = (state for state in request.status.states if state.message and not state.phase.final)
    return next((f"; container {state.name} was still waiting: {state.message}" for state in waits), "")


def _end(request: Request, reason: Reason, now: datetime, **values: object) -> Steps:
    """Complete a request that nobody else completes. The cleaning up follows once that is written."""
    why = Message.of(reason, **values)
    status = failed_status(request, why, rfc3339(now))
    check_move(request.status, status)
    event = EmitEvent(request, EventReason.FAILED, f"Request {request.name}: {why.text}", warning=True)
    return Steps((Complete(status), event))
