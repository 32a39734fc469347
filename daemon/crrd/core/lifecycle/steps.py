"""The manager's next steps for a request, so that it ends and is cleaned up whatever its node's daemon does.

`next_steps` and `pod_steps` take the request, its pod and the API server's time, and return the actions in order, and
when to decide again. They keep no state: after a crash between two actions, the same objects give the remaining ones.
The containers are the concern of `decide`, on the node.

The invariant, checked by the property tests at every step: a pod is unready for a request only while the request has
the finalizer, or until `pod_steps` cleans up. The finalizer is removed only after the pod's readiness is released. A
Completed status is final.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from crrd.core.api.phases import check_move
from crrd.core.api.pod import PodMeta
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import after, rfc3339
from crrd.core.api.types import (
    LABEL_NODE_NAME,
    UNANSWERED_SECONDS,
    Request,
    RequestPhase,
    Status,
)
from crrd.core.recreate.actions import EmitEvent
from crrd.core.recreate.messages import Message
from crrd.core.recreate.settle import failed_status

ENDS = (
    Reason.POD_GONE,
    Reason.POD_REPLACED,
    Reason.POD_DELETING,
    Reason.NO_ANSWER,
    Reason.DEADLINE,
    Reason.RUN_STOPPED,
)
"""The reasons for which the manager completes a request that its node has not completed."""
ABORT_SECONDS = 60
"""How long after an abort a request ends that nobody has marked: the command that aborts was killed,
or is an older one. By then, the node has reported a pod that has the image."""
POD_DELETION_SECONDS = 30
"""How long the node's daemon may take to complete a deleted pod's requests, after the pod's grace period has ended."""
DEFAULT_SLACK_SECONDS = 3600
"""Added to the durations in a request without a deadline: for kubelet, image pulls, and earlier requests."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Write the final status of a request that its node has not completed. The status has the reason."""

    status: Status


@dataclass(frozen=True, slots=True)
class Progress:
    """Write the status of a request that the manager carries out itself (`core.patching`)."""

    status: Status


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add the finalizer, so that the request cannot disappear before the pod's readiness is released."""


@dataclass(frozen=True, slots=True)
class AcquireUnready:
    """Make the pod unready for this request."""

    pod: PodMeta
    key: str  # `namespace/name` of the request


@dataclass(frozen=True, slots=True)
class RecordUnready:
    """Record in an annotation, for the node, that the pod is unready."""

    at: str  # RFC 3339, the API server's time


@dataclass(frozen=True, slots=True)
class ReleaseUnready:
    """Remove this request's entry from the pod's readiness condition."""

    pod: PodMeta
    key: str  # `namespace/name` of the request


@dataclass(frozen=True, slots=True)
class InitReadiness:
    """Set the condition to True on a pod with the gate and no condition yet."""

    pod: PodMeta


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove the finalizer after the readiness is released."""


@dataclass(frozen=True, slots=True)
class RemoveActive:
    """Remove the label active, so that nodes no longer watch the request."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a completed request whose TTL has expired."""


PodAction = AcquireUnready | ReleaseUnready | InitReadiness
RequestAction = Complete | Progress | AddFinalizer | RecordUnready | RemoveFinalizer | RemoveActive | Delete
LifecycleAction = PodAction | RequestAction | EmitEvent


@dataclass(frozen=True, slots=True)
class Steps:
    """The actions to carry out now, in order, and when to decide again if nothing changes (None: never)."""

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
    held: bool = False,
) -> Steps:
    """Decide about one request.

    Args:
        request: the request.
        pod: the pod of that name. None only if it certainly does not exist, because the request is then completed.
        now: the API server's time, with its time zone.
        known: False if the pod could not be read; `pod` is then None. Decisions that depend only on time are still
            made. The pod's readiness and the finalizer wait.
        since: when the request counts as created (if open) or completed, by the same clock as `now`. None: the
            creationTimestamp of an open request (maybe by another API server, whose clock may differ by minutes), and
            `now` for a completed one.
        slack: seconds added to the durations in a request without a deadline.
        held: whether the finalizer must stay, because kubelet is about to restart a container for the request.
    """
    own = pod if pod is not None and request.pod_uid in ("", pod.uid) else None
    release = _release(request, own) if known and not held else ()
    deactivate = (RemoveActive(),) if request.active else ()
    if request.deleting:
        foreign = request.finalizers and not request.has_finalizer  # only foreign finalizers keep it
        return Steps(deactivate if foreign else release)
    if request.completed:
        return _clean_up(request, release + deactivate, now, since or now)
    if known and own is None:
        values = {"wanted": request.pod_uid, "key": request.pod_key, "found": pod.uid if pod else ""}
        return _end(request, Reason.POD_GONE if pod is None else Reason.POD_REPLACED, now, **values)
    if request.for_image and request.stopped:
        return _end(request, Reason.RUN_STOPPED, now)  # nobody gives the pod the image, and it would stay unready
    times = [(after(own.grace_ends if own else "", POD_DELETION_SECONDS), Reason.POD_DELETING)]
    if request.for_image and not any(state.started for state in request.status.states):
        times.append((after(request.aborted, ABORT_SECONDS), Reason.RUN_STOPPED))
    created = request.created if since is None else since.isoformat()
    ends_at, deadline = deadline_of(request, since, slack)
    times.append((ends_at, Reason.DEADLINE))
    if request.status.phase is RequestPhase.EMPTY:
        times.append((after(created, UNANSWERED_SECONDS), Reason.NO_ANSWER))
    for at, reason in times:
        if at is not None and at <= now:
            no_label = f", because admission set no label {LABEL_NODE_NAME}"
            where = f" on node {request.node_name}" if request.node_name else no_label
            return _end(request, reason, now, deadline=deadline, where=where, waited=_last_wait(request))
    wake_at = min((at for at, _ in times if at is not None), default=None)
    if own is not None and wants_unready(request, own):
        return Steps(_acquire(request, own, now), wake_at)
    return Steps(release, wake_at)


def deadline_of(request: Request, since: datetime | None, slack: int) -> tuple[datetime | None, str]:
    """Return when an open request ends at the latest (None: unknown), and its deadline for messages.

    The parameters are as in `next_steps`.
    """
    created = request.created if since is None else since.isoformat()
    if request.deadline_seconds is not None:
        return after(created, request.deadline_seconds), f"{request.deadline_seconds}s"
    seconds = default_deadline(request, slack)
    return after(created, seconds), f"{seconds}s, the manager's default"


def default_deadline(request: Request, slack: int) -> int:
    """Return the deadline of a request without one, in seconds after its creation: its own durations plus `slack`.

    If the node's daemon is dead, the pod must not stay unready for ever, and the request must not stay open.
    """
    strategy = request.strategy
    each = strategy.grace(None) + strategy.min_started_seconds
    return (strategy.unready_grace_seconds or 0) + len(request.containers) * each + slack


def pod_steps(pod: PodMeta, requests: Iterable[Request]) -> Steps:
    """Decide about a pod's readiness where `next_steps` does not.

    A pod with the gate and without the condition gets the condition, else it would never be ready. An entry of the
    condition is removed if its request no longer exists (the finalizer was removed by force). If its request has the
    finalizer, `next_steps` decides. `requests`: all requests for this pod.
    """
    if not pod.readiness_gate or pod.deleting or pod.ended:
        return Steps()
    if not pod.readiness.status:
        return Steps((InitReadiness(pod),))
    kept = {request.key for request in requests if request.has_finalizer or wants_unready(request, pod)}
    return Steps(tuple(ReleaseUnready(pod, key) for key in pod.readiness.keys if key not in kept))


def wants_unready(request: Request, pod: PodMeta) -> bool:
    """Whether the pod must be unready for the request now.

    Only while the node serves the request. While the request waits for another one of its pod, the pod keeps its
    traffic. Without the gate the condition has no effect; the node reports that and does not wait.
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
    """Make the pod unready. The finalizer comes first, so that a crash cannot leave the pod unready for ever."""
    actions: list[LifecycleAction] = []
    if not request.has_finalizer:
        actions.append(AddFinalizer())
    if not pod.readiness.acquired_by(request.key):
        actions.append(AcquireUnready(pod, request.key))
    if not request.unready_acquired:
        actions.append(RecordUnready(rfc3339(now)))
    return tuple(actions)


def _release(request: Request, own: PodMeta | None) -> tuple[LifecycleAction, ...]:
    """Release the pod's readiness, then remove the finalizer. A pod that no longer exists needs no release."""
    if not request.has_finalizer:
        return ()
    if own is None or not own.readiness_gate:
        return (RemoveFinalizer(),)
    return (ReleaseUnready(own, request.key), RemoveFinalizer())


def _clean_up(request: Request, actions: tuple[LifecycleAction, ...], now: datetime, ended_at: datetime) -> Steps:
    """Return these actions for a completed request, and its deletion if the TTL has expired.

    The TTL counts from when the completion was seen. The completionTime is from a node's clock: if that is ahead, the
    request would stay too long, and if it is behind, the request would be deleted before a user has read its result.
    """
    expires = None if request.ttl_seconds is None else ended_at + timedelta(seconds=request.ttl_seconds)
    if expires is not None and expires <= now:
        return Steps((*actions, Delete()))
    return Steps(actions, expires)


def _last_wait(request: Request) -> str:
    """Return what the first unfinished container waited for, as the end of a sentence."""
    waits = (state for state in request.status.states if state.message and not state.phase.final)
    return next((f"; container {state.name} was still waiting: {state.message}" for state in waits), "")


def _end(request: Request, reason: Reason, now: datetime, **values: object) -> Steps:
    """Complete a request that the node has not completed. The clean-up follows after that write."""
    why = Message.of(reason, **values)
    status = failed_status(request, why, rfc3339(now))
    check_move(request.status, status)
    event = EmitEvent(request, EventReason.FAILED, f"Request {request.name}: {why.text}", warning=True)
    return Steps((Complete(status), event))
