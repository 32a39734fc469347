"""What follows a stop: the instance exits, kubelet creates the next one, and that one gets ready.

Each function is one of these waits. The container is Recreating during it, and then Succeeded or Failed. When all
containers of the request have ended, `settle` completes it.
"""

from dataclasses import replace

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import StatePhase
from crrd.core.recreate.actions import earliest
from crrd.core.recreate.messages import Message, kubelet_message, not_ready, not_started_again
from crrd.core.recreate.observation import Instance
from crrd.core.recreate.request_view import ASK_AGAIN
from crrd.core.recreate.step import Step, event, fail, hold, recreating, with_message
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.runtime_status import ContainerState

STOP_SETTLE = 10.0  # Limit for how long a container is listed as running after its stop
LOOK_AT_EXIT = 0.5  # Seconds between lists while a stopped instance is listed as running
LOOK_AT_UNREADY = 5.0  # Seconds between lists while an instance is not ready


def await_exit(view: ContainerView, stopped_at: float) -> Step:
    """The runtime has reported that the container stopped. A list that shows it running may be older than that."""
    listed_at = view.whole.observed.listed_at
    if listed_at >= stopped_at + STOP_SETTLE:
        return fail(view, Message.of(Reason.STILL_RUNS))
    look_at = view.whole.now + (ASK_AGAIN if listed_at <= stopped_at else LOOK_AT_EXIT)
    return Step(state=replace(view.state, phase=StatePhase.RECREATING), wake_at=look_at, poll_runtime=True)


def await_next(view: ContainerView) -> Step:
    """The target has ended. Wait until kubelet creates the next instance, and until that one is ready."""
    if view.newest is None or view.newest.state is ContainerState.EXITED:
        return _await_successor(view)
    return _await_ready(view, view.newest)


def _await_successor(view: ContainerView) -> Step:
    """Steps 6 and 10: the instance has ended. Wait until kubelet creates the next one."""
    if view.left_down:
        return fail(view, view.left_down)
    why, more_at = not_started_again(view.whole.observed.endings.get(view.name), view.newest, view.whole.now)
    return Step(
        state=recreating(view.state, view.work, kubelet_message(view.status) or why), wake_at=more_at, poll_runtime=True
    )


def _await_ready(view: ContainerView, newest: Instance) -> Step:
    """Step 10: the next instance exists. Wait until the pod's status shows it as running and ready."""
    whole, status = view.whole, view.status
    if newest.state is not ContainerState.RUNNING:
        if view.pod_ended:
            return fail(view, view.pod_ended)
        return Step(state=recreating(view.state, view.work, kubelet_message(view.status)), poll_runtime=True)
    running_since = whole.observed.running_since.get(newest.id, whole.now)
    if status.container_id != newest.pin.container_id or not (status.running and status.ready):
        why, more_at = not_ready(status, newest, running_since, whole.now)
        # It may end again while kubelet is down and cannot report it.
        return Step(
            state=recreating(view.state, view.work, why), wake_at=earliest(more_at, whole.now + LOOK_AT_UNREADY)
        )
    waiting, runs_until = recreating(view.state, view.work), running_since + view.request.strategy.min_started_seconds
    if whole.now < runs_until:
        return Step(state=waiting, wake_at=runs_until)
    missing = view.not_back
    if down := whole.left_down(missing, view.work.last_stop):
        return fail(view, Message.of(Reason.REST_LEFT_DOWN, names=", ".join(down)), waiting)
    if whole.pod.restarting or missing:
        return hold(view, Message.of(Reason.NOT_BACK, names=", ".join(missing) or "kubelet"), waiting)
    message = f"Container {view.name} was recreated as {newest.pin.container_id}"
    if others := view.restarted_beside:
        rest = Message.of(Reason.POD_RESTARTED, names=", ".join(others))
        waiting, message = with_message(waiting, rest), f"{message}; {rest.text}"
    recreated = event(view, EventReason.RECREATED, message)
    return Step((recreated,), state=replace(waiting, phase=StatePhase.SUCCEEDED))
