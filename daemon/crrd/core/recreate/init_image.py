"""Step 16 with an image: an init container gets another image, and its pod is restarted as a whole.

An init container runs only when its pod starts, so kubelet does nothing when its image changes. As in step 14, the node
says first that it has the image, and another program gives it to the pod. The pod is restarted after that, unless the
init container has run with the image by then: kubelet may have restarted the pod by itself, or may have tried the init
container again because it had failed.
"""

from dataclasses import replace

from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import StatePhase
from crrd.core.recreate.image import await_change, started_for_image
from crrd.core.recreate.messages import Message
from crrd.core.recreate.sandbox_view import SandboxView
from crrd.core.recreate.step import Step, event, fail, recreating, resting
from crrd.core.recreate.view import ContainerView

SEEN_SECONDS = 5.0
"""How long after a change of a pod kubelet may still start its containers as they were before. Kubelet takes a pod, and
then waits for the next list of its containers, which comes once a second (podWorkerLoop, pkg/kubelet)."""


def lacks_image(view: SandboxView) -> bool:
    """Whether the pod is to get an image, and does not have it."""
    return view.gets_image is not None and not view.gets_image.status.has_image(view.gets_image.image)


def has_run(view: SandboxView) -> bool:
    """Whether the init container was started with the image, in the current sandbox and since the request came."""
    gets, current = view.gets_image, view.current
    if gets is None or gets.newest is None or current is None or gets.newest.sandbox != current.id:
        return False
    since = gets.target is None or gets.newest.id != gets.target.bare_id
    return since and started_for_image(gets, gets.newest) is True


def is_early(view: SandboxView) -> bool:
    """Whether a restart now may be one too many, or with the image from before.

    Kubelet may not have seen the image yet. Until the init container has succeeded, kubelet may start it with the image
    anyway.
    """
    return view.gets_image is not None and (_seen_at(view) is not None or not _is_done(view))


def await_image(view: SandboxView, each: ContainerView) -> Step:
    """Return the step of a container until the pod has the image."""
    return await_change(each, blocked=not view.whole.gate.open) if each.image else Step(state=resting(each))


def await_start(view: SandboxView, each: ContainerView, why: Message) -> Step:
    """Return the step of a container while a restart is early. `why`: what kubelet waits for."""
    if not each.image:
        return Step(state=resting(each))
    return Step(state=recreating(each.state, each.work, why), wake_at=_seen_at(view), poll_runtime=True)


def await_run(view: SandboxView, each: ContainerView, why: Message) -> Step:
    """Return the step of the init container after the restart of its pod. `why`: what kubelet waits for."""
    state = recreating(each.state, each.work, why)
    if each.newest is None or not _is_done(view):
        return Step(state=state, poll_runtime=True)
    if started_for_image(each, each.newest) is False:
        return fail(each, Message.of(Reason.IMAGE_NOT_RUN, image=each.image), state)
    ran = event(each, EventReason.RECREATED, f"Init container {each.name} has run with the image {each.image}")
    return Step((ran,), state=replace(state, phase=StatePhase.SUCCEEDED))


def _seen_at(view: SandboxView) -> float | None:
    """Return when kubelet has seen the pod's image for certain, None if it has."""
    at = view.whole.observed.pod_at + SEEN_SECONDS
    return None if view.whole.pod.spec_observed or view.whole.now >= at else at


def _is_done(view: SandboxView) -> bool:
    """Whether the init container has succeeded in the current sandbox, so that kubelet does not run it there again.

    Kubelet starts other containers only after all init containers.
    """
    gets, home = view.gets_image, view.current
    if gets is None or home is None:
        return False
    regular = {each.name for each in view.whole.pod.containers.values() if each.kind is ContainerKind.REGULAR}
    if any(each.name in regular and each.sandbox == home.id for each in view.whole.observed.instances):
        return True
    newest, status = gets.newest, gets.status
    shown = newest is not None and newest.sandbox == home.id and status.container_id == newest.pin.container_id
    return shown and status.terminated and status.exit_code == 0
