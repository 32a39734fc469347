"""The stop of one instance that has to go: its hook, then StopContainer, which is retried until it is abandoned.

Kubelet must be there to start the container again, no other request may be at work on it, and a slot for the stop must
be free. StopContainer is decided in two places: `_send` for a live request, `finish_hooked` for one that has ended.
`outcome` has what follows the response.
"""

from collections.abc import Iterable
from dataclasses import replace
from zlib import crc32

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import RecreateState, StatePhase
from crrd.core.recreate.actions import RunHook, StopContainer
from crrd.core.recreate.draft import PERSIST_SECONDS, Draft
from crrd.core.recreate.messages import LATER_STEPS, Message, waited
from crrd.core.recreate.observation import Hook, HookKind, Instance, ObservedRequest, StopAttempt, Work, WorkKind
from crrd.core.recreate.outcome import await_exit
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.runtime_status import ContainerState

IP_PATIENCE = 10.0
"""Seconds that a hook waits for the pod's IP, because a list of pods can be older than the pod's containers."""
RETRY_FIRST, RETRY_LIMIT, RETRY_JITTER = 0.5, 20.0, 0.2
"""Step 9: the wait after a failed stop doubles from the first to the limit, and grows by up to this share of itself."""
LOOK_AGAIN = 1.0  # Seconds between checks of kubelet's health, which no watch reports


def stop(draft: Draft, view: ContainerView, instance: Instance, *, blocked: bool) -> RecreateState:
    """Steps 6 to 9: return the next state of a container whose target still runs.

    `blocked`: whether an earlier container of the request must be stopped or be back first.
    """
    work, node = view.work, draft.node
    if work.under_way is not None:
        draft.note_start_times(work)
        if work.under_way is WorkKind.HOOK:
            draft.hook_runs = True
            return replace(view.state, phase=StatePhase.RECREATING)
        draft.stops[view.name] = draft.now if work.stop_sent is None else work.stop_sent
        return _await_answer(draft, view)
    if work.last_stop is not None and work.stopped:
        return await_exit(draft, view, work.last_stop.ended)
    if view.unfit:
        return draft.fail(view.state, view.unfit)
    if work.last_stop is not None and (failed := _after_error(draft, view, instance, work.last_stop)) is not None:
        return failed
    if instance.state is ContainerState.CREATED:
        return draft.hold(view.state, Message.of(Reason.NOT_STARTED))
    if not draft.gate.open or blocked or (node.draining and not view.hook_done):
        return view.resting()
    if view.whole.pod.restarting:
        return draft.hold(view.state, Message.of(Reason.POD_RESTARTING))
    if node.kubelet_silent_since is not None:
        return _await_kubelet(draft, view, instance, node.kubelet_silent_since)
    if others := [work for work in view.others if work.under_way is not None]:
        return _wait_or_shorten(draft, view, instance, others)
    return _begin(draft, view, instance)


def _await_answer(draft: Draft, view: ContainerView) -> RecreateState:
    """Return the state while a stop runs. A stop longer than the grace period gets a message."""
    if view.work.until is not None:
        seconds, more_at = waited(view.work.until, draft.now, LATER_STEPS)
        if more_at is not None:
            draft.wake(more_at)
        if seconds:
            return view.recreating(Message.of(Reason.NOT_ENDING, seconds=seconds))
    return replace(view.state, phase=StatePhase.RECREATING)


def retry_delay(attempts: int, salt: str) -> float:
    """Seconds after this many failed attempts (at least 1). Not `lib.backoff`: each round must get the same jitter."""
    base = float(min(RETRY_LIMIT, RETRY_FIRST * 2 ** (attempts - 1)))
    return base * (1 + RETRY_JITTER * (crc32(f"{salt}/{attempts}".encode()) % 1000) / 1000)


def finish_hooked(draft: Draft, others: Iterable[ObservedRequest]) -> None:
    """Step 9: send the stops after the hooks of a request that has ended, was deleted or is invalid.

    A container whose preStop hook has run is stopped, even if its request has ended. The stop is sent or retried until
    LATE_STOP_SECONDS after the hook's grace period, or until the usual limit (`Work.stop_abandoned`). A daemon that
    shuts down sends it, too. If a live request stops the same instance, it is left to that one. If the API server does
    not say whether the pod is being deleted, the stop is sent when the grace period ends, or at shutdown.
    """
    observed, node, request = draft.pod, draft.node, draft.request
    for bare_id, work in draft.known.works.items():
        instance = observed.instance(bare_id)
        if instance is None or instance.state is not ContainerState.RUNNING:
            continue
        if work.under_way is not None or not work.stop_still_due(draft.now) or _stopped_by_other(others, bare_id):
            continue
        if instance.pod_uid == observed.deleting_uid:
            continue  # kubelet stops it itself
        pod = observed.pod or (observed.answer.pod if observed.answer is not None else None)
        if pod is None and observed.answer is None:  # no live request, so no watch: ask the API server
            ends = work.hook_until or draft.now
            if not observed.api_silent or not (node.draining or draft.now >= ends):
                draft.ask_api = True
                draft.wake(max(ends, draft.now))
                continue
        elif pod is None or pod.runtime_uid != instance.pod_uid or pod.deleting or pod.ended:
            if request.pod_uid not in ("", instance.pod_uid):  # a static pod: kubelet creates a new mirror pod
                draft.wake(draft.now + LOOK_AGAIN)
            continue
        retry_at = draft.now if (last := work.last_stop) is None else last.ended + retry_delay(last.count, bare_id)
        if draft.now < retry_at:
            draft.wake(retry_at)
        elif node.kubelet_silent_since is not None or (pod is not None and pod.restarting):
            draft.wake(draft.now + LOOK_AGAIN)
        elif not observed.may_stop:
            draft.waits_for_slot = True
        else:
            seconds = work.stop_seconds((work.hook_until or 0.0) - (work.hook_began or 0.0), draft.now)
            draft.actions.append(StopContainer(request, instance, seconds, work.spent_before))


def _stopped_by_other(others: Iterable[ObservedRequest], bare_id: str) -> bool:
    """Whether another request stops the instance now, or a live one has tried to and will retry."""
    works = ((other, work) for other in others if (work := other.works.get(bare_id)) is not None)
    return any(work.under_way is WorkKind.STOP or (work.stop_sent is not None and other.live) for other, work in works)


def _after_error(draft: Draft, view: ContainerView, instance: Instance, last: StopAttempt) -> RecreateState | None:
    """Fail the container if its stop is abandoned, or wait for the next attempt. Return None if that is due."""
    if view.work.stop_abandoned:
        seconds = round(last.ended - (view.work.stop_sent or last.ended))
        why = Message.of(Reason.STOP_FAILED, count=last.count, seconds=seconds, error=last.error)
        return draft.fail(view.state, why)
    draft.note_start_times(view.work)
    retry_at = last.ended + retry_delay(last.count, instance.id)
    if draft.now >= retry_at:
        return None
    draft.wake(retry_at)
    times = "once" if last.count == 1 else f"{last.count} times"
    return view.recreating(Message.of(Reason.STOP_RETRIED, times=times, error=last.error))


def _await_kubelet(draft: Draft, view: ContainerView, instance: Instance, silent_since: float) -> RecreateState:
    """Step 9: wait, because kubelet would not start the container again. Record the end of its hook anyway."""
    draft.wake(draft.now + LOOK_AGAIN)
    state = view.state
    if view.hook_done and not state.is_killed:
        state = draft.note_hook_end(view.recreating(), instance.pin)
    seconds, _ = waited(silent_since, draft.now)
    return draft.hold(state, Message.of(Reason.KUBELET_SILENT, seconds=seconds))


def _wait_or_shorten(draft: Draft, view: ContainerView, instance: Instance, others: list[Work]) -> RecreateState:
    """Step 9: another request's hook or stop runs. Wait for a hook for at most the grace period of this request.

    If the stop of this request would end earlier, send it. CRI accepts a second StopContainer with a shorter timeout.
    """
    longest = max(others, key=lambda work: float("inf") if work.until is None else work.until)
    if longest.under_way is WorkKind.STOP:
        if longest.until is None or draft.now + view.stop_seconds < longest.until:
            return _send(draft, view, instance)
    else:
        limit = draft.known.first_seen + view.grace
        if draft.now >= limit:
            return _send(draft, view, instance)
        draft.wake(limit)
    return draft.hold(view.state, Message.of(Reason.OTHER_WORK, work=longest.under_way))


def _begin(draft: Draft, view: ContainerView, instance: Instance) -> RecreateState:
    """Step 9: begin the next part of a stop: the hook, then the record of its end, then StopContainer."""
    request, state, work = view.request, view.state, view.work
    if not view.hook_done and work.last_stop is None and not state.is_killed:
        hook = instance.hook if view.grace > view.spent_before else None
        if hook is not None and (wait := _await_ip(draft, view, hook)):
            return wait
        if hook is not None or draft.pod.may_stop:
            draft.emit(EventReason.RECREATING, f"Stopping container {view.name} to recreate it", view.name)
            if no_gate := draft.gate.message:
                draft.emit(EventReason.NO_READINESS_GATE, f"Request {request.name}: {no_gate.text}")
        if hook is not None:
            used = view.spent_before
            draft.actions.append(RunHook(request, instance, hook, view.grace - used, used, _pod_ip(draft, view)))
            draft.wake(draft.now + PERSIST_SECONDS)
            draft.hook_runs = True
            return view.recreating()
    if work.hook_result is not None and work.hook_result.error:
        why = Message.of(Reason.HOOK_FAILED, error=work.hook_result.error)
        draft.emit(EventReason.HOOK_FAILED, f"Container {view.name}: {why.text}", view.name, warning=True)
    if view.hook_done and not state.is_killed:
        draft.note_start_times(work)
        return draft.note_hook_end(view.recreating(), instance.pin)
    return _send(draft, view, instance)


def _pod_ip(draft: Draft, view: ContainerView) -> str:
    """Return the pod's IP from the watch, or else from the get at the API server."""
    answer = draft.pod.answer
    return view.whole.pod.pod_ip or (answer.pod.pod_ip if answer is not None and answer.pod is not None else "")


def _await_ip(draft: Draft, view: ContainerView, hook: Hook) -> RecreateState | None:
    """Step 9: a hook that needs the pod's IP waits for it. If no watch reports it in time, ask the API server."""
    if hook.kind is not HookKind.HTTP_GET or hook.host or view.whole.pod.pod_ip:
        return None
    lost = draft.pod_lost()
    if lost is not None:
        return draft.fail(view.state, lost) if lost else None
    patience = draft.known.first_seen + IP_PATIENCE
    if draft.now < patience:
        draft.wake(patience)
    else:
        draft.ask_api = True
    return draft.hold(view.state, Message.of(Reason.WAITING_FOR_IP))


def _send(draft: Draft, view: ContainerView, instance: Instance) -> RecreateState:
    """Send the stop if there is a slot for it."""
    if not draft.pod.may_stop:
        draft.waits_for_slot = True
        return view.resting()
    draft.actions.append(
        StopContainer(view.request, instance, view.stop_seconds, view.spent_before, view.whole.beside(view.status))
    )
    draft.stops[view.name] = draft.now
    return replace(view.recreating(), is_killed=True)
