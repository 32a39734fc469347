"""Kubelet's next actions on a pod's init containers and sidecars; base class of the planner in `pod_actions`.

Source: `computeInitContainerActions` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from crrd.kubelet.restart_rules import SIDECAR_HASH_SINCE
from crrd.kubelet.runtime_status import ContainerState
from crrd_forecast.hash.container_hash import hash_of
from crrd_localnode.planner.restarts import Spec, is_sidecar, restarts, restarts_on_failure
from crrd_localnode.planner.values import ContainerStatus, Kill, PodRuntimeStatus

_OOM = "OOMKilled"


class _Step(Enum):
    """The progress of an init container."""

    PENDING = auto()
    INITIALIZED = auto()  # The next one may start
    FATAL = auto()  # It has failed and is not restarted, and neither is the pod


class InitPlanner:
    """One pod at one moment, its planned actions, and the decisions for its init containers."""

    def __init__(self, pod: Mapping[str, Any], status: PodRuntimeStatus, minor: int) -> None:
        self._pod = pod
        self._spec: Spec = pod.get("spec") or {}
        self._status = status
        self._minor = minor
        self._regular: list[Spec] = list(self._spec.get("containers") or [])
        self._init: list[Spec] = list(self._spec.get("initContainers") or [])
        self._init_start: set[int] = set()  # By index in the spec
        self._kill: list[Kill] = []

    def _has_changed(self, spec: Spec, current: ContainerStatus) -> bool:
        """Whether kubelet computes another hash than the stored one; False if it is not known which one it computes.

        Kubelet treats a missing or invalid stored hash as 0 (`getContainerInfoFromAnnotations`).
        """
        expected = hash_of(spec, self._minor).value
        try:
            stored = int(current.hash, 16)
        except ValueError:
            stored = 0
        return expected not in (None, stored)

    def _stop_unknown(self, current: ContainerStatus, what: str) -> None:
        """Stop a container that may be running, so that there are never two instances."""
        self._kill.append(Kill(current, f'{what} is in "{current.state}" state, try killing it before restart'))

    def _look_at_init(self) -> tuple[str, bool]:
        """Plan the init containers. Return why the pod has ended ("" if not), and whether regular ones may run."""
        if not self._init:
            return "", True
        states = [current.state for spec in self._regular if (current := self._status.newest(spec["name"]))]
        done = ContainerState.CREATED in states or ContainerState.RUNNING in states
        # Backwards, because the runtime may have removed ended containers, except the latest.
        passed = done
        for place, spec in reversed(list(enumerate(self._init))):
            current = self._in_this_sandbox(spec["name"])
            sidecar = is_sidecar(spec, self._minor)
            if current is None:
                if passed and sidecar:
                    self._init_start.add(place)
                continue
            if sidecar or not passed:
                step = self._sidecar(place, spec, current) if sidecar else self._ordinary(place, spec, current)
                if step is _Step.FATAL:
                    return f"Init container {spec['name']} failed and is not restarted", False
                if step is _Step.INITIALIZED:
                    if place + 1 == len(self._init):
                        done = True
                    elif not passed:
                        self._init_start.add(place + 1)
            passed = True
        if not passed:
            self._init_start.add(0)
        return "", done

    def _in_this_sandbox(self, name: str) -> ContainerStatus | None:
        """Return an init container's current instance. One of an earlier sandbox does not count: kubelet removes it."""
        current, sandbox = self._status.newest(name), self._status.sandbox
        own = current is None or sandbox is None or current.sandbox_id in ("", sandbox.id)
        return current if own else None

    def _ordinary(self, place: int, spec: Spec, current: ContainerStatus) -> _Step:
        """Handle an init container that must end before the next one starts."""
        if current.state is ContainerState.RUNNING:
            return _Step.PENDING
        if current.state is ContainerState.EXITED:
            if current.exit_code == 0 and current.reason != _OOM:
                return _Step.INITIALIZED
            if not restarts(spec, self._spec, current.exit_code, self._minor):
                return _Step.FATAL
        elif current.state is ContainerState.UNKNOWN:
            if not restarts_on_failure(spec, self._spec, self._minor):
                return _Step.FATAL
            self._stop_unknown(current, "Init container")
        self._init_start.add(place)
        return _Step.PENDING

    def _sidecar(self, place: int, spec: Spec, current: ContainerStatus) -> _Step:
        """Handle an init container that keeps running beside the others."""
        if current.state is not ContainerState.RUNNING:
            if current.state is ContainerState.UNKNOWN:
                self._stop_unknown(current, "Init container")
            self._init_start.add(place)
            return _Step.PENDING
        if spec.get("startupProbe") and current.id not in self._status.started:
            if current.id in self._status.startup_failed:
                self._replace(place, current, "failed startup probe")
            return _Step.PENDING
        if self._minor >= SIDECAR_HASH_SINCE and self._has_changed(spec, current):
            self._replace(place, current, "definition changed")
        elif spec.get("livenessProbe") and current.id in self._status.liveness_failed:
            self._replace(place, current, "failed liveness probe")
        return _Step.INITIALIZED

    def _replace(self, place: int, current: ContainerStatus, why: str) -> None:
        """Stop a sidecar and start it again."""
        self._kill.append(Kill(current, f"Init container {current.name} {why}"))
        self._init_start.add(place)
