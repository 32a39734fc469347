"""The stop of one instance that has to go: its hook, then StopContainer, which is retried until it is abandoned.

Kubelet must be there to start the container again, no other request may be at work on it, and a slot for the stop must
be free. StopContainer is decided in two places: `_send` for a live request, `finish_hooked` for one that has ended.
`outcome` has what follows the response.
"""

from dataclasses import replace
from zlib import crc32

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import StatePhase
from crrd.core.recreate.actions import NOTHING, Decision, EmitEvent, RunHook, StopContainer, joined
from crrd.core.recreate.messages import LATER_STEPS, Message, waited
from crrd.core.recreate.observation import Hook, HookKind, Instance, Work, WorkKind
from crrd.core.recreate.outcome import await_exit
from crrd.core.recreate.request_view import PERSIST_SECONDS, RequestView
from crrd.core.recreate.step import Step, event, fail, hold, recreating, resting
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.runtime_status import ContainerState

IP_PATIENCE = 10.0
"""Seconds that a hook waits for the pod's IP, because a list of pods can be older than the pod's containers."""
RETRY_FIRST, RETRY_LIMIT, RETRY_JITTER = 0.5, 20.0, 0.2
"""Step 9: the wait after a failed stop doubles from the first to the limit, and grows by up to this share of itself."""
LOOK_AGAIN = 1.0  # Seconds between checks of kubelet's health, which no watch reports


def stop(view: ContainerView, instance: Instance, *, blocked: bool) -> Step:
    """Steps 6 to 9: what to do about a container whose target still runs.

    `blocked`: whether it has to wait for the unready grace period, or because an earlier container of the request must
    be stopped or be back first.
    """
    work, now = view.work, view.whole.now
    if work.under_way is WorkKind.HOOK:
        return Step(state=replace(view.state, phase=StatePhase.RECREATING), hook_runs=True, lasting=True)
    if work.under_way is WorkKind.STOP:
        return _await_answer(view)
    last = work.last_stop
    if last is not None and work.stopped:
        return await_exit(view, last.ended)
    if view.unfit:
        return fail(view, view.unfit)
    if last is None:
        return _next_part(view, instance, blocked=blocked)
    if work.stop_abandoned:
        seconds = round(last.ended - (work.stop_sent or last.ended))
        return fail(view, Message.of(Reason.STOP_FAILED, count=last.count, seconds=seconds, error=last.error))
    retry_at = last.ended + stop_pause(last.count, instance.id)
    if now >= retry_at:
        return replace(_next_part(view, instance, blocked=blocked), lasting=True)
    times = "once" if last.count == 1 else f"{last.count} times"
    why = Message.of(Reason.STOP_RETRIED, times=times, error=last.error)
    return Step(state=recreating(view.state, view.work, why), wake_at=retry_at, lasting=True)


def _await_answer(view: ContainerView) -> Step:
    """Wait while a stop runs. A stop longer than the grace period gets a message."""
    work, now = view.work, view.whole.now
    seconds, more_at = (0, None) if work.until is None else waited(work.until, now, LATER_STEPS)
    state = replace(view.state, phase=StatePhase.RECREATING)
    if seconds:
        state = recreating(view.state, view.work, Message.of(Reason.NOT_ENDING, seconds=seconds))
    sent = now if work.stop_sent is None else work.stop_sent
    return Step(state=state, wake_at=more_at, stop_sent=sent, lasting=True)


def stop_pause(attempts: int, salt: str) -> float:
    """Seconds after this many failed attempts (at least 1). Not `lib.backoff`: each round must get the same jitter."""
    base = float(min(RETRY_LIMIT, RETRY_FIRST * 2 ** (attempts - 1)))
    return base * (1 + RETRY_JITTER * (crc32(f"{salt}/{attempts}".encode()) % 1000) / 1000)


def finish_hooked(view: RequestView) -> Decision:
    """Step 9: send the stops after the hooks of a request that has ended, was deleted or is invalid.

    A container whose preStop hook has run is stopped, even if its request has ended. The stop is sent or retried until
    LATE_STOP_SECONDS after the hook's grace period, or until the usual limit (`Work.stop_abandoned`). A daemon that
    shuts down sends it, too. If a live request stops the same instance, it is left to that one. If the API server does
    not say whether the pod is being deleted, the stop is sent when the grace period ends, or at shutdown.
    """
    works = ((view.observed.instance(bare_id), work) for bare_id, work in view.known.works.items())
    return joined(_finish(view, instance, work) for instance, work in works if instance is not None)


def _finish(view: RequestView, instance: Instance, work: Work) -> Decision:
    """Decide about the stop of one instance."""
    observed, node, now = view.observed, view.node, view.now
    due = work.under_way is None and work.stop_still_due(now) and not _stopped_by_other(view, instance.id)
    if not due or instance.state is not ContainerState.RUNNING:
        return NOTHING
    if instance.pod_uid == observed.deleting_uid:
        return NOTHING  # kubelet stops it itself
    pod = observed.pod or (observed.answer.pod if observed.answer is not None else None)
    if pod is None and observed.answer is None:  # no live request, so no watch: ask the API server
        ends = work.hook_until or now
        if not observed.api_silent or not (node.draining or now >= ends):
            return Decision(wake_at=max(ends, now), ask_api=True)
    elif pod is None or pod.runtime_uid != instance.pod_uid or pod.deleting or pod.ended:
        static = view.request.pod_uid not in ("", instance.pod_uid)  # kubelet creates a new mirror pod
        return Decision(wake_at=now + LOOK_AGAIN) if static else NOTHING
    elif instance.name not in pod.containers:
        return NOTHING  # it was removed from the pod, and kubelet stops it itself
    retry_at = now if (last := work.last_stop) is None else last.ended + stop_pause(last.count, instance.id)
    if now < retry_at:
        return Decision(wake_at=retry_at)
    if view.kubelet_waits is not None or (pod is not None and pod.restarting):
        return Decision(wake_at=now + LOOK_AGAIN)
    if not observed.may_stop:
        return Decision(waits_for_slot=True)
    seconds = work.stop_seconds((work.hook_until or 0.0) - (work.hook_began or 0.0), now)
    return Decision((StopContainer(view.request, instance, seconds, work.spent_before),))


def _stopped_by_other(view: RequestView, bare_id: str) -> bool:
    """Whether another request stops the instance now, or a live one has tried to and will retry."""
    works = view.works_of_others(bare_id)
    return any(work.under_way is WorkKind.STOP or (work.stop_sent is not None and other.live) for other, work in works)


def _next_part(view: ContainerView, instance: Instance, *, blocked: bool) -> Step:
    """Begin the next part of the stop, unless something must be over or back before."""
    node = view.whole.node
    if instance.state is ContainerState.CREATED:
        return hold(view, Message.of(Reason.NOT_STARTED))
    if blocked or (node.draining and not view.hook_done):
        return Step(state=resting(view))
    if view.whole.pod.restarting:
        return hold(view, Message.of(Reason.POD_RESTARTING))
    if (why := view.whole.kubelet_waits) is not None:
        return _await_kubelet(view, instance, why)
    if (until := view.whole.pod_restart_until) is not None:
        return hold(view, Message.of(Reason.OTHER_WORK, work=WorkKind.SANDBOX), look_at=until)
    if others := [work for work in view.others if work.under_way is not None]:
        return _wait_or_shorten(view, instance, others)
    return _begin(view, instance)


def _await_kubelet(view: ContainerView, instance: Instance, why: Message) -> Step:
    """Step 9: wait, because kubelet would not start the container again. Record the end of its hook anyway."""
    ended = view.hook_done and not view.state.is_killed
    state = replace(recreating(view.state, view.work), is_killed=True) if ended else view.state
    step = hold(view, why, state, view.whole.now + LOOK_AGAIN)
    return replace(step, hook_ended=instance.pin) if ended else step


def _wait_or_shorten(view: ContainerView, instance: Instance, others: list[Work]) -> Step:
    """Step 9: another request's hook or stop runs. Wait for a hook for at most the grace period of this request.

    If the stop of this request would end earlier, send it. CRI accepts a second StopContainer with a shorter timeout.
    """
    now, limit = view.whole.now, None
    longest = max(others, key=lambda work: float("inf") if work.until is None else work.until)
    if longest.under_way is WorkKind.STOP:
        in_turn = longest.until is None or now + view.stop_seconds < longest.until
    else:
        limit = view.whole.known.first_seen + view.grace
        in_turn = now >= limit
    if in_turn:
        return _send(view, instance)
    return hold(view, Message.of(Reason.OTHER_WORK, work=longest.under_way), look_at=limit)


def _begin(view: ContainerView, instance: Instance) -> Step:
    """Step 9: begin the next part of a stop: the hook, then the record of its end, then StopContainer."""
    request, state, work, used = view.request, view.state, view.work, view.spent_before
    events = list[EmitEvent]()
    if not view.hook_done and work.last_stop is None and not state.is_killed:
        hook = instance.hook if view.grace > used else None
        if hook is not None and (wait := _await_ip(view, hook)):
            return wait
        if hook is not None or view.whole.observed.may_stop:
            events.append(event(view, EventReason.RECREATING, f"Stopping container {view.name} to recreate it"))
            if no_gate := view.whole.gate.message:
                why = f"Request {request.name}: {no_gate.text}"
                events.append(view.whole.event(EventReason.NO_READINESS_GATE, why))
        if hook is not None:
            run = RunHook(request, instance, hook, view.grace - used, used, view.whole.pod_ip)
            wake_at = view.whole.now + PERSIST_SECONDS
            return Step((*events, run), wake_at, state=recreating(view.state, view.work), hook_runs=True)
    if work.hook_result is not None and work.hook_result.error:
        failure = Message.of(Reason.HOOK_FAILED, error=work.hook_result.error)
        events.append(event(view, EventReason.HOOK_FAILED, f"Container {view.name}: {failure.text}", warning=True))
    latest = None if work.hook_until is None else work.stop_until
    if view.hook_done and not state.is_killed and (latest is None or view.whole.now < latest):
        recorded = replace(recreating(view.state, view.work), is_killed=True)
        return Step(tuple(events), latest, state=recorded, hook_ended=instance.pin, lasting=True)
    step = _send(view, instance)
    return replace(step, actions=(*events, *step.actions))


def _await_ip(view: ContainerView, hook: Hook) -> Step | None:
    """Step 9: a hook that needs the pod's IP waits for it. If no watch reports it in time, ask the API server."""
    if hook.kind is not HookKind.HTTP_GET or hook.host or view.whole.pod.pod_ip:
        return None
    lost = view.whole.pod_lost()
    if lost is not None:
        return fail(view, lost) if lost else None
    patience, why = view.whole.known.first_seen + IP_PATIENCE, Message.of(Reason.WAITING_FOR_IP)
    if view.whole.now < patience:
        return hold(view, why, look_at=patience)
    return replace(hold(view, why), ask_api=True)


def _send(view: ContainerView, instance: Instance) -> Step:
    """Send the stop if there is a slot for it."""
    whole, used = view.whole, view.spent_before
    if not whole.observed.may_stop:
        return Step(state=resting(view), waits_for_slot=True)
    sent = StopContainer(view.request, instance, view.stop_seconds, used, whole.beside(view.status))
    return Step((sent,), state=replace(recreating(view.state, view.work), is_killed=True), stop_sent=whole.now)
