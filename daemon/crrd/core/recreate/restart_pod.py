"""Step 16: kubelet restarts the whole pod in place, because the pod has a second sandbox that is ready.

Then kubelet runs the preStop hooks, keeps the grace period, stops sidecars last, makes a new sandbox, and starts again
with the first init container. crrd makes that second sandbox, and stops nothing. The sandbox that is to go is recorded
before. The runtime makes at most one second sandbox for it, because its number is fixed. So a pod is restarted at most
once for a request, even if the daemon is killed after any step.

`serve` is an ordered table of rules, the first match wins. Source: kubelet's PodSandboxChanged, computePodActions and
killContainersWithSyncResult (pkg/kubelet/kuberuntime), 1.30 to 1.36.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from crrd.core.api.pod import ContainerKind, Pod
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import WHOLE_POD, RecreateState, Strategy
from crrd.core.recreate.actions import Decision, PinContainers, RestartPod, earliest, joined
from crrd.core.recreate.init_image import await_image, await_run, await_start, has_run, is_early, lacks_image
from crrd.core.recreate.messages import LATER_STEPS, NO_MESSAGE, Message, held_back, waited
from crrd.core.recreate.observation import WorkKind
from crrd.core.recreate.outcome import await_next
from crrd.core.recreate.sandbox_view import SandboxView
from crrd.core.recreate.settle import complete_as_failed, settle
from crrd.core.recreate.step import Step, hold, recreating, resting
from crrd.core.recreate.stop import LOOK_AGAIN
from crrd.core.recreate.view import ContainerView
from crrd.core.recreate.whole_pod import PodView


class Turn(StrEnum):
    """What is done for a request for the whole pod now."""

    MISNAMED = "ends the request, because its containers are not those of the pod"
    FOREIGN = "ends the request, because it names a container of another pod"
    UNANSWERED = "waits until the runtime has said what a container ID is"
    PIN_LOST = "ends the request, because its record of the sandbox was removed"
    NOT_CREATED = "waits until the pod has a sandbox"
    IMAGE_AWAITED = "waits until the pod has the image of an init container"
    EARLY = "waits, because kubelet may not know the image yet, or may run the init container with it anyway"
    NOT_PINNED = "records the sandbox that is to go"
    RESTARTED = "waits until the containers are ready in their new sandbox"
    AWAITED = "waits until kubelet has restarted the pod"
    POD_ENDED = "ends the request, because the pod has ended"
    UNFIT = "ends the request, because the pod would not come back as it was"
    UNREADY = "waits for the unready grace period"
    MAKING = "waits until the runtime has made the second sandbox"
    DRAINING = "begins nothing, because the daemon shuts down"
    RESTARTING = "waits until kubelet has restarted the pod for a reason of its own"
    KUBELET_SILENT = "waits for kubelet"
    OTHER_WORK = "waits for the work of an earlier request"
    ABANDONED = "ends the request, because the runtime has refused the second sandbox for too long"
    RETRIED = "waits before the next attempt"
    NO_SLOT = "waits until the node has a slot"
    SENT = "makes the second sandbox"


def serve(whole: PodView) -> tuple[Turn, Decision]:
    """Decide about the current request of a pod, which is for the whole pod."""
    view = SandboxView(whole)
    return next((turn, act(view)) for applies, turn, act in _RULES if applies(view))


def _misnamed(view: SandboxView) -> Decision:
    names = ", ".join(view.whole.pod.recreatable)
    error = f"spec.containers must name all containers of the pod: {names}"
    return complete_as_failed(view.whole, Message.of(Reason.INVALID_REQUEST, error=error))


def _foreign(view: SandboxView) -> Decision:
    return complete_as_failed(view.whole, next(each.problem for each in view.containers if each.problem))


def _unanswered(view: SandboxView) -> Decision:
    why = max(each.unanswered or "" for each in view.containers)
    if why:
        return _all(view, lambda each: hold(each, Message.of(Reason.RUNTIME_UNAVAILABLE, error=why)))
    wake_at = earliest(*(each.look_again_at for each in view.containers))
    return _all(view, lambda each: Step(state=each.written, wake_at=wake_at))


def _pin_lost(view: SandboxView) -> Decision:
    return complete_as_failed(view.whole, Message.of(Reason.PIN_LOST))


def _not_created(view: SandboxView) -> Decision:
    return _all(view, lambda each: hold(each, Message.of(Reason.NOT_CREATED)))


def _pin(view: SandboxView) -> Decision:
    request, found = view.whole.request, view.to_pin
    pins = {} if found is None else {WHOLE_POD: found.pin}
    pinned = Decision((PinContainers(request, pins, request.start_times),))
    error = view.whole.known.pin_error
    if not error:
        return pinned
    return pinned + _all(view, lambda each: hold(each, Message.of(Reason.NOT_PINNED, error=error)))


def _await_kubelet(view: SandboxView) -> Decision:
    """Wait for the end of the old instances and for the next ones. A wait beyond the grace period gets a message."""
    why, more_at = _init_trouble(view.whole.pod), None
    if not why and view.second is not None:
        since = view.second.created_at / 1e9 + _grace(view.whole.pod)
        late = since - view.whole.node.wall + view.whole.now
        seconds, more_at = waited(late, view.whole.now, LATER_STEPS)
        why = Message.of(Reason.POD_NOT_RESTARTED, seconds=seconds) if seconds else NO_MESSAGE

    def step(each: ContainerView) -> Step:
        if each.image and _is_next(view, each):
            return await_run(view, each, why)
        if _is_next(view, each):
            return await_next(each)
        state = recreating(
            replace(each.state, is_killed=view.second is not None or each.state.is_killed), each.work, why
        )
        return Step(state=state, wake_at=more_at, poll_runtime=True, stop_sent=view.work.stop_sent)

    return _all(view, lambda each: Step(state=each.written) if each.written.phase.final else step(each))


def _is_next(view: SandboxView, container: ContainerView) -> bool:
    """Whether the newest instance of a container was created in a later sandbox than the recorded one.

    If that one is gone, every other one is later, or of the next pod with that name.
    """
    newest = container.newest
    home = next((each for each in view.sandboxes if newest is not None and each.id == newest.sandbox), None)
    return home is not None and (view.is_later(home) or view.first is None)


def _init_trouble(pod: Pod) -> Message:
    """Return what kubelet says that an init container waits for."""
    for each in pod.containers.values():
        if each.kind is ContainerKind.INIT and (details := held_back(each)):
            return Message.of(Reason.HELD_BACK, details=f"init container {each.name}: {details}")
    return NO_MESSAGE


def _await_image(view: SandboxView) -> Decision:
    return _all(view, lambda each: await_image(view, each))


def _await_start(view: SandboxView) -> Decision:
    why = _init_trouble(view.whole.pod)
    return _all(view, lambda each: await_start(view, each, why))


def _ended(view: SandboxView) -> Decision:
    return complete_as_failed(view.whole, Message.of(Reason.POD_ENDED, phase=view.whole.pod.phase))


def _unfit(view: SandboxView) -> Decision:
    return complete_as_failed(view.whole, view.unfit)


def _grace(pod: Pod) -> float:
    """Return the pod's grace period in seconds."""
    return float(Strategy().grace(pod.grace_seconds))


def _rest(view: SandboxView) -> Decision:
    return _all(view, lambda each: Step(state=resting(each)))


def _make(view: SandboxView) -> Decision:
    """Wait for the answer of the runtime. Kubelet may have begun already."""
    sent = view.work.stop_sent
    return _all(view, lambda each: Step(state=_killed(each), stop_sent=view.whole.now if sent is None else sent))


def _restarting(view: SandboxView) -> Decision:
    return _all(view, lambda each: hold(each, Message.of(Reason.POD_RESTARTING)))


def _silent(view: SandboxView) -> Decision:
    why = view.whole.kubelet_waits or NO_MESSAGE
    return _all(view, lambda each: hold(each, why, look_at=view.whole.now + LOOK_AGAIN))


def _other_work(view: SandboxView) -> Decision:
    why = Message.of(Reason.OTHER_WORK, work=view.other_work or WorkKind.SANDBOX)
    return _all(view, lambda each: hold(each, why, look_at=view.whole.pod_restart_until))


def _abandon(view: SandboxView) -> Decision:
    last = view.last
    seconds = round(last.ended - (view.work.stop_sent or last.ended))
    why = Message.of(Reason.SANDBOX_FAILED, count=last.count, seconds=seconds, error=last.error)
    return complete_as_failed(view.whole, why)


def _retry(view: SandboxView) -> Decision:
    count, error, at = view.last.count, view.last.error or "the second sandbox was removed", view.retry_at
    why = Message.of(Reason.SANDBOX_RETRIED, times="once" if count == 1 else f"{count} times", error=error)
    return _all(view, lambda each: Step(state=recreating(each.state, each.work, why), wake_at=at))


def _no_slot(view: SandboxView) -> Decision:
    return replace(_rest(view), waits_for_slot=True)


def _send(view: SandboxView) -> Decision:
    whole = view.whole
    events = [whole.event(EventReason.RECREATING, "Restarting the pod in place, with its init containers")]
    if whole.gate.message:
        why = f"Request {whole.request.name}: {whole.gate.message.text}"
        events.append(whole.event(EventReason.NO_READINESS_GATE, why))
    begin = [] if view.last.count else events
    first = () if view.first is None else (RestartPod(whole.request, view.first, _grace(whole.pod)),)
    made = Decision((*begin, *first))
    return made + _all(view, lambda each: Step(state=_killed(each), stop_sent=whole.now))


def _killed(container: ContainerView) -> RecreateState:
    return replace(recreating(container.state, container.work), is_killed=True)


def _all(view: SandboxView, step: Callable[[ContainerView], Step]) -> Decision:
    """Return the same step for each container, and the request's status."""
    whole, steps = view.whole, [step(each) for each in view.containers]
    return joined(
        [
            *steps,
            Decision(wake_at=whole.gate.until),
            settle(whole, whole.gate.message, steps, result=_result(whole.pod)),
        ]
    )


def _result(pod: Pod) -> str:
    """Return what else the message of the completed request says."""
    init = [each.name for each in pod.containers.values() if each.kind is ContainerKind.INIT]
    ran = f"init containers ran again: {', '.join(init)}" if init else ""
    return "; ".join(filter(None, (ran, f"the pod's IP is {pod.pod_ip}" if pod.pod_ip else "")))


_Rule = tuple[Callable[[SandboxView], object], Turn, Callable[[SandboxView], Decision]]
_RULES: tuple[_Rule, ...] = (
    (lambda view: view.names != set(view.whole.pod.recreatable), Turn.MISNAMED, _misnamed),
    (lambda view: any(each.problem for each in view.containers), Turn.FOREIGN, _foreign),
    (lambda view: view.pin is None and view.asks, Turn.UNANSWERED, _unanswered),
    (lambda view: view.pin is None and view.gets_image is not None and view.unfit, Turn.UNFIT, _unfit),
    (lambda view: view.pin is None and lacks_image(view), Turn.IMAGE_AWAITED, _await_image),
    (lambda view: view.pin is None and has_run(view), Turn.RESTARTED, _await_kubelet),
    (lambda view: view.pin is None and is_early(view), Turn.EARLY, _await_start),
    (lambda view: view.pin is None and view.started, Turn.PIN_LOST, _pin_lost),
    (lambda view: view.pin is None and view.to_pin is None, Turn.NOT_CREATED, _not_created),
    (lambda view: view.pin is None and view.unfit, Turn.UNFIT, _unfit),
    (lambda view: view.pin is None, Turn.NOT_PINNED, _pin),
    (lambda view: view.whole.pod.ended, Turn.POD_ENDED, _ended),
    (lambda view: view.restarted, Turn.RESTARTED, _await_kubelet),
    (lambda view: view.second is not None, Turn.AWAITED, _await_kubelet),
    (lambda view: view.work.under_way is not None, Turn.MAKING, _make),
    (lambda view: view.first is not None and not view.first.ready, Turn.AWAITED, _await_kubelet),
    (lambda view: view.unfit, Turn.UNFIT, _unfit),
    (lacks_image, Turn.IMAGE_AWAITED, _await_image),
    (lambda view: not view.whole.gate.open, Turn.UNREADY, _rest),
    (lambda view: view.whole.node.draining, Turn.DRAINING, _rest),
    (lambda view: view.whole.pod.restarting, Turn.RESTARTING, _restarting),
    (lambda view: view.whole.kubelet_waits is not None, Turn.KUBELET_SILENT, _silent),
    (lambda view: view.waits_for_others, Turn.OTHER_WORK, _other_work),
    (lambda view: view.work.stop_abandoned, Turn.ABANDONED, _abandon),
    (lambda view: view.whole.now < view.retry_at, Turn.RETRIED, _retry),
    (lambda view: not view.whole.observed.may_stop, Turn.NO_SLOT, _no_slot),
    (lambda view: True, Turn.SENT, _send),
)
