"""The effect of a stop on the rest of the pod, if a restart rule of the container restarts the whole pod."""

from collections.abc import Iterable, Mapping

from crrd.core.api.pod import PodContainer
from crrd.core.api.types import RequestedContainer, StatePhase
from crrd.core.recreate.observation import Instance
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.restart_rules import RESTART_ALL, matching_action, restart_all_code, stays_down
from crrd.kubelet.runtime_status import ContainerState, newest


def beside(view: ContainerView) -> Mapping[str, str]:
    """Return the containers that the request does not name and such a restart would replace: name -> bare ID.

    Empty if no rule of the container restarts the pod.
    """
    if restart_all_code(view.status.restart_rules, view.observed.kubelet_minor) is None:
        return {}
    named = {container.name for container in view.request.containers}
    others = (each for each in view.pod.containers.values() if each.kind.recreatable and each.name not in named)
    found = ((each.name, newest(view.observed.instances, each.name)) for each in others)
    return {name: instance.id for name, instance in found if instance is not None}


def restarted_beside(view: ContainerView) -> list[str]:
    """Return the containers that the request does not name and that were restarted since this one's stop."""
    changed = beside(view).items() - view.work.beside.items() if view.work.beside else ()
    return sorted(name for name, _ in changed)


def not_back(view: ContainerView) -> list[str]:
    """Return the other containers that are not running and ready, if kubelet may have restarted the whole pod.

    Failed containers of the request are left out, because they may stay down.
    """
    if not any(_may_restart_pod(view, each) for each in view.request.containers):
        return []
    failed = {each.name for each in view.request.status.states if each.phase is StatePhase.FAILED}
    others = (each for each in view.pod.containers.values() if each.kind.recreatable and each.name != view.name)
    return sorted(each.name for each in others if each.name not in failed and not _is_back(view, each))


def left_down(view: ContainerView, missing: Iterable[str]) -> list[str]:
    """Return those of the `missing` containers that have failed since the stop and that kubelet does not restart."""
    return [name for name in missing if _final_exit_code(view, view.pod.containers[name]) is not None]


def _may_restart_pod(view: ContainerView, container: RequestedContainer) -> bool:
    """Whether the stop of a container of the request may make kubelet restart the whole pod, or has done so.

    False if the exit code in the pod's status matches a rule with another action. False if the runtime still lists
    the old instance beside a newer one: kubelet removes all containers of such a pod before it starts one.
    """
    status = view.pod.containers.get(container.name, PodContainer(container.name))
    rules, target = status.restart_rules, view.request.target(container)
    if not _stop_sent(view, container.name) or restart_all_code(rules, view.observed.kubelet_minor) is None:
        return False
    if status.exit_code is not None and matching_action(rules, status.exit_code) != RESTART_ALL:
        return False
    listed = target is not None and view.observed.instance(target.bare_id) is not None
    return not listed or _is_old(view, newest(view.observed.instances, container.name))


def _stop_sent(view: ContainerView, name: str) -> bool:
    """Whether a container of the request was stopped for it, or is being stopped."""
    own = (work for (uid, _), work in view.observed.works.items() if uid == view.request.uid)
    sent = any(work.name == name and work.stop_sent is not None for work in own)
    return sent or view.request.status.state(name).is_killed


def _is_old(view: ContainerView, instance: Instance | None) -> bool:
    """Whether an instance is a target of the request."""
    targets = (view.request.target(each) for each in view.request.containers)
    return instance is not None and any(each is not None and each.bare_id == instance.id for each in targets)


def _is_back(view: ContainerView, other: PodContainer) -> bool:
    """Whether the pod's status shows the newest instance of another container as running and ready.

    It must not be a target. An instance that was started after the stop may also have completed.
    """
    current = newest(view.observed.instances, other.name)
    if current is None or current.state is not ContainerState.RUNNING:
        return _final_exit_code(view, other) == 0
    if _stop_sent(view, other.name) and _is_old(view, current):
        return False
    return other.container_id == current.pin.container_id and other.running and other.ready


def _final_exit_code(view: ContainerView, other: PodContainer) -> int | None:
    """Return the exit code of an instance that came after the stop and ended, if kubelet does not restart it."""
    current, stop, minor = newest(view.observed.instances, other.name), view.work.last_stop, view.observed.kubelet_minor
    if current is None or stop is None or not other.terminated or other.container_id != current.pin.container_id:
        return None
    code, stopped_at = other.exit_code, view.observed.wall - (view.now - stop.ended)
    if code is None or current.created_at / 1e9 <= stopped_at:
        return None
    return code if stays_down(other.policy(minor), other.restart_rules, code, minor) else None
