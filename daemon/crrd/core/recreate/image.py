"""Step 14: another program gives the container another image, and kubelet replaces it. Nothing is stopped here.

Before that, the node says whether it has the image, because kubelet stops the container first, and pulls then. After
that, the newest instance must have been started for this image. Its image ID is never compared: one image may have
several, and two tags the same.
"""

from crrd.core.api.reasons import Reason
from crrd.core.api.types import DEFAULT_GRACE_SECONDS, StatePhase
from crrd.core.recreate.messages import Message, kubelet_message
from crrd.core.recreate.observation import Instance
from crrd.core.recreate.outcome import await_next
from crrd.core.recreate.step import Step, fail, recreating, resting, with_message
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.image_hash import SINCE, hash_of_name_and_image
from crrd.kubelet.runtime_status import ContainerState

STOP_SPARE = 10.0  # Seconds that a stop may take in addition to its grace period
SHOWN_SECONDS = 2.0  # From the change of the pod until the status says that kubelet has not replaced the container yet


def await_image(view: ContainerView, *, blocked: bool) -> Step:
    """Return what to do about a container that gets another image."""
    if not view.status.has_image(view.image):
        return await_change(view, blocked=blocked)
    newest = view.newest
    if newest is None or newest.state is ContainerState.EXITED:
        return await_next(view)
    if not _started_for_image(view, newest):
        return _await_kubelet(view)
    if view.target is not None and newest.id == view.target.bare_id:
        return _await_kept(view)
    return await_next(view)


def _await_kept(view: ContainerView) -> Step:
    """The pod got its image back before kubelet had replaced the container. It may be stopping it, and is still ready.

    It keeps the container if it has seen the present spec, or else has had the time for a stop that it had begun.
    """
    over_at = _replaced_by(view)
    if not view.whole.pod.spec_observed and view.whole.now < over_at:
        return Step(state=recreating(view.state, view.work), wake_at=over_at, poll_runtime=True)
    step = await_next(view)
    if step.state.phase is not StatePhase.SUCCEEDED:
        return step
    return Step(state=with_message(step.state, Message.of(Reason.IMAGE_KEPT, image=view.image)))


def _replaced_by(view: ContainerView) -> float:
    """Return by when kubelet has replaced the container, if it must do so for the present spec of the pod."""
    pod = view.whole.pod
    grace = DEFAULT_GRACE_SECONDS if pod.grace_seconds is None else pod.grace_seconds
    return view.whole.observed.pod_at + grace + STOP_SPARE


def _await_kubelet(view: ContainerView) -> Step:
    """Wait until kubelet replaces the container. It does so within a second after the pod has changed."""
    state, shown_at = recreating(view.state, view.work), view.whole.observed.pod_at + SHOWN_SECONDS
    if view.whole.now < shown_at:
        return Step(state=state, wake_at=shown_at, poll_runtime=True)
    why = kubelet_message(view.status) or Message.of(Reason.IMAGE_NOT_APPLIED, image=view.image)
    return Step(state=recreating(view.state, view.work, why), poll_runtime=True)


def await_change(view: ContainerView, *, blocked: bool) -> Step:
    """Say that the node has the image, once the unready grace period is over, so that the pod may get it."""
    if view.unfit:
        return fail(view, view.unfit)
    if blocked:
        return Step(state=resting(view))
    if view.written.reason is Reason.IMAGE_PRESENT:
        return Step(state=view.written)
    present = view.whole.observed.images.get(view.image)
    if present is None:  # the pod came after the runtime was asked
        return Step(state=view.written, wake_at=view.whole.now)
    if not present:
        return fail(view, Message.of(Reason.IMAGE_MISSING, image=view.image, node=view.whole.node.name))
    return Step(state=with_message(view.state, Message.of(Reason.IMAGE_PRESENT, image=view.image)))


def _started_for_image(view: ContainerView, newest: Instance) -> bool:
    """Whether kubelet started the instance with the image that the pod has now.

    If nothing says so, kubelet must have had the time to replace this one: then none ran before, or kubelet removed all
    earlier ones before this process began.
    """
    known = started_for_image(view, newest)
    if known is not None:
        return known
    return view.whole.now >= _replaced_by(view) and view.whole.kubelet_waits is None


def started_for_image(view: ContainerView, newest: Instance) -> bool | None:
    """Return whether kubelet started the instance with the image that the pod has now; None if nothing says so.

    The runtime tells it, or else kubelet's hash of the container. Before 1.31 that is a hash of all of its spec: then
    it must differ from that of the instance that ran before, or of one that came after that.
    """
    if newest.image:
        return newest.image == view.status.image
    minor, observed, target = view.whole.node.kubelet_minor, view.whole.observed, view.target
    if minor is None or minor >= SINCE:
        return newest.hash == hash_of_name_and_image(view.name, view.status.image)
    if target is not None:
        if (before := observed.hashes.get(target.bare_id)) is not None:
            return newest.hash != before
        own = (each for each in observed.instances if each.name == view.name)
        if any(each.hash != newest.hash for each in own if each.restart_count > target.restart_count):
            return True
    return None
