"""The pod around a container that is recreated: its readiness, and its other containers.

A restart rule of a container may make its stop restart the whole pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import RequestedContainer, StatePhase
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import StopAttempt
from crrd.core.recreate.request_view import RequestView
from crrd.kubelet.restart_rules import RESTART_ALL, matching_action, restart_all_code, stays_down
from crrd.kubelet.runtime_status import ContainerState


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether stops may begin, as far as the unready grace period is concerned."""

    open: bool
    message: Message = NO_MESSAGE
    until: float | None = None  # When it opens, if that is known


@dataclass(frozen=True)
class PodView(RequestView):
    """The pod of the request that is served. It exists, and its runtime has answered."""

    pod: Pod

    @cached_property
    def gate(self) -> Gate:
        """Step 7: wait for the mark, then for the grace period, by this node's clock since the mark was seen.

        If a hook or stop of the request has begun, its unready grace period is over.
        """
        known, request = self.known, self.request
        grace = request.strategy.unready_grace_seconds
        if grace is None:
            return Gate(open=True)
        if not self.pod.readiness_gate:
            return Gate(open=True, message=Message.of(Reason.NO_READINESS_GATE))
        begun = any(times.hook or times.stop or times.reload for times in request.start_times.values())
        work_begun = begun or any(state.is_killed for state in request.status.states)
        if work_begun or known.works:
            return Gate(open=True)
        if known.unready_seen is None:
            return Gate(open=False, message=Message.of(Reason.WAITING_FOR_UNREADY))
        until = known.unready_seen + grace
        if self.now < until:
            return Gate(open=False, message=Message.of(Reason.UNREADY_GRACE, grace=grace), until=until)
        return Gate(open=True)

    @property
    def pod_ip(self) -> str:
        """The pod's IP from the watch, or else from the get at the API server."""
        answer = self.observed.answer
        return self.pod.pod_ip or (answer.pod.pod_ip if answer is not None and answer.pod is not None else "")

    def beside(self, container: PodContainer) -> Mapping[str, str]:
        """Return what the restart of the pod by a container's rule would replace without being named.

        By name, the bare ID, or "" without an instance. Empty if no rule of the container restarts the pod.
        """
        if restart_all_code(container.restart_rules, self.node.kubelet_minor) is None:
            return {}
        named = {each.name for each in self.request.containers}
        found = ((name, self.observed.newest(name)) for name in self.pod.recreatable if name not in named)
        return {name: instance.id if instance is not None else "" for name, instance in found}

    def not_back(self, name: str, stop: StopAttempt | None) -> list[str]:
        """Return the containers besides this one that are not running and ready, if the whole pod may have restarted.

        Failed containers of the request are left out, because they may stay down. So are those that were added to the
        pod after the stop that restarts it. `stop`: the container's.
        """
        request = self.request
        causes = [each for each in request.containers if self._may_restart_pod(each)]
        named = {each.name for each in request.containers}
        failed = {each.name for each in request.status.states if each.phase is StatePhase.FAILED}
        others = (each for each in self.pod.recreatable.values() if each.name not in failed | {name})
        return sorted(
            each.name
            for each in others
            if any(each.name in named or self._was_beside(each, cause) for cause in causes)
            and not self._is_back(each, stop)
        )

    def _was_beside(self, other: PodContainer, cause: RequestedContainer) -> bool:
        """Whether a container was in the pod already when the stop of another one was sent.

        The stop of an earlier process is known by its time, if at all. A container that came later has no instance from
        before, and was never restarted.
        """
        work = self.known.work_on(cause.name)
        if work.beside is not None:
            return other.name in work.beside
        sent = parse_time(self.request.start_times_of(cause.name, self.request.target(cause)).stop)
        if sent is None or other.restart_count:
            return True
        current = self.observed.newest(other.name)
        return bool(other.container_id) if current is None else current.created_at / 1e9 <= sent.timestamp() + 1

    def left_down(self, missing: Iterable[str], stop: StopAttempt | None) -> list[str]:
        """Return those of the `missing` containers that failed after the stop and that kubelet does not restart."""
        return [name for name in missing if self._final_exit_code(self.pod.containers[name], stop) is not None]

    def _may_restart_pod(self, container: RequestedContainer) -> bool:
        """Whether the stop of a container of the request may make kubelet restart the whole pod, or has done so.

        False if the exit code in the pod's status matches a rule with another action. False if the runtime still lists
        the old instance beside a newer one: kubelet removes all containers of such a pod before it starts one.
        """
        status = self.pod.containers.get(container.name, PodContainer(container.name))
        rules, target = status.restart_rules, self.request.target(container)
        if not self.known.stop_sent(container.name) or restart_all_code(rules, self.node.kubelet_minor) is None:
            return False
        if status.exit_code is not None and matching_action(rules, status.exit_code) != RESTART_ALL:
            return False
        listed = target is not None and self.observed.instance(target.bare_id) is not None
        current = self.observed.newest(container.name)
        return not listed or (current is not None and self.known.is_target(current))

    def _is_back(self, other: PodContainer, stop: StopAttempt | None) -> bool:
        """Whether the pod's status shows the newest instance of another container as running and ready.

        It must not be a target. An instance that was started after the stop may also have completed.
        """
        current = self.observed.newest(other.name)
        if current is None or current.state is not ContainerState.RUNNING:
            return self._final_exit_code(other, stop) == 0
        if self.known.stop_sent(other.name) and self.known.is_target(current):
            return False
        return other.container_id == current.pin.container_id and other.running and other.ready

    def _final_exit_code(self, other: PodContainer, stop: StopAttempt | None) -> int | None:
        """Return the exit code of an instance that came after the stop and ended, if kubelet does not restart it."""
        current, minor = self.observed.newest(other.name), self.node.kubelet_minor
        if current is None or stop is None or not other.terminated or other.container_id != current.pin.container_id:
            return None
        code, stopped_at = other.exit_code, self.node.wall - (self.now - stop.ended)
        if code is None or current.created_at / 1e9 <= stopped_at:
            return None
        return code if stays_down(other.policy(minor), other.restart_rules, code, minor) else None
