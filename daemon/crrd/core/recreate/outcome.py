"""What follows a stop: the instance exits, kubelet creates the next one, and that one gets ready.

Each function is one of these waits. The container is Recreating during it, and then Succeeded or Failed. When all
containers of the request have ended, `settle` completes it.
"""

from dataclasses import replace

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import RecreateState, StatePhase
from crrd.core.recreate.draft import ASK_AGAIN, Draft, with_message
from crrd.core.recreate.messages import LATER_STEPS, NO_MESSAGE, Message, held_back, not_started_again, waited
from crrd.core.recreate.observation import Instance
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.runtime_status import ContainerState

STOP_SETTLE = 10.0  # Limit for how long a container is listed as running after its stop
LOOK_AT_EXIT = 0.5  # Seconds between lists while a stopped instance is listed as running
LOOK_AT_UNREADY = 5.0  # Seconds between lists while an instance is not ready


def await_exit(draft: Draft, view: ContainerView, stopped_at: float) -> RecreateState:
    """The runtime has reported that the container stopped. A list that shows it running may be older than that."""
    if draft.pod.listed_at >= stopped_at + STOP_SETTLE:
        return draft.fail(view.state, Message.of(Reason.STILL_RUNS))
    draft.wake(draft.now + (ASK_AGAIN if draft.pod.listed_at <= stopped_at else LOOK_AT_EXIT))
    draft.poll_runtime = True
    return replace(view.state, phase=StatePhase.RECREATING)


def await_successor(draft: Draft, view: ContainerView) -> RecreateState:
    """Steps 6 and 10: the instance has ended. Wait until kubelet creates the next one."""
    if view.left_down:
        return draft.fail(view.state, view.left_down)
    draft.poll_runtime = True
    why, more_at = not_started_again(draft.pod.endings.get(view.name), view.newest, draft.now)
    if more_at is not None:
        draft.wake(more_at)
    return view.recreating(_kubelet_says(view) or why)


def await_ready(draft: Draft, view: ContainerView, newest: Instance) -> RecreateState:
    """Step 10: the next instance exists. Wait until the pod's status shows it as running and ready."""
    if newest.state is not ContainerState.RUNNING:
        if view.pod_ended:
            return draft.fail(view.state, view.pod_ended)
        draft.poll_runtime = True
        return view.recreating(_kubelet_says(view))
    waiting, status = view.recreating(), view.status
    if status.container_id != newest.pin.container_id or not (status.running and status.ready):
        draft.wake(draft.now + LOOK_AT_UNREADY)  # it may end again while kubelet is down and cannot report it
        return view.recreating(_not_ready(draft, view, newest))
    runs_until = draft.pod.running_since.get(newest.id, draft.now) + view.request.strategy.min_started_seconds
    if draft.now < runs_until:
        draft.wake(runs_until)
        return waiting
    missing = view.not_back
    if down := view.whole.left_down(missing, view.work.last_stop):
        return draft.fail(waiting, Message.of(Reason.REST_LEFT_DOWN, names=", ".join(down)))
    if view.whole.pod.restarting or missing:
        return draft.hold(waiting, Message.of(Reason.NOT_BACK, names=", ".join(missing) or "kubelet"))
    message = f"Container {view.name} was recreated as {newest.pin.container_id}"
    if others := view.restarted_beside:
        why = Message.of(Reason.POD_RESTARTED, names=", ".join(others))
        waiting, message = with_message(waiting, why), f"{message}; {why.text}"
    draft.emit(EventReason.RECREATED, message, view.name)
    return replace(waiting, phase=StatePhase.SUCCEEDED)


def _not_ready(draft: Draft, view: ContainerView, newest: Instance) -> Message:
    """Return the message for an instance that is not ready: since when it runs, and what is missing."""
    status = view.status
    seconds, more_at = waited(draft.pod.running_since.get(newest.id, draft.now), draft.now, LATER_STEPS)
    if more_at is not None:
        draft.wake(more_at)
    if not seconds:
        return NO_MESSAGE
    if status.container_id != newest.pin.container_id or not status.running:
        why = "kubelet has not reported it yet"
    else:
        why = f"its {'readiness' if status.started else 'startup'} probe has not succeeded yet"
    return Message.of(Reason.NOT_READY, seconds=seconds, why=why)


def _kubelet_says(view: ContainerView) -> Message:
    """Return kubelet's message about what the container waits for."""
    details = held_back(view.status)
    return Message.of(Reason.HELD_BACK, details=details) if details else NO_MESSAGE
