"""What kubelet does next about a pod's init containers, native sidecars among them.

A part of `pod_actions`, which asks this once the pod's sandbox is in order.

Source: `computeInitContainerActions` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from crrd.kubelet.restart_rules import SIDECAR_HASH_SINCE
from crrd.kubelet.runtime_status import ContainerState
from crrd_localnode.planner.actions import (
    Cause,
    Kill,
    Start,
    Unknown,
    again,
    has_changed,
    missing,
    of_unknown_state,
    resized,
)
from crrd_localnode.planner.pod_status import ContainerStatus, PodRuntimeStatus
from crrd_localnode.planner.resize import resize_of
from crrd_localnode.planner.restarts import Spec, is_sidecar, restarts, restarts_on_failure

_OOM = "OOMKilled"


class _Step(Enum):
    """How far an init container is."""

    PENDING = auto()
    INITIALIZED = auto()  # The next one may be started
    FATAL = auto()  # It has failed, and is not tried again: nor is the pod


class InitPlanner:
    """The decisions for one pod's init containers at one moment."""

    def __init__(self, pod: Mapping[str, Any], status: PodRuntimeStatus, minor: int) -> None:
        self._pod = pod
        self._spec: Spec = pod.get("spec") or {}
        self._status = status
        self._minor = minor
        self._regular: list[Spec] = list(self._spec.get("containers") or [])
        self._init: list[Spec] = list(self._spec.get("initContainers") or [])
        self._start: dict[int, Start] = {}  # By their place in the spec
        self.kill: list[Kill] = []
        self.unknown: list[Unknown] = []

    @property
    def start(self) -> list[Start]:
        """The containers to start, in the order of the spec."""
        return [start for _, start in sorted(self._start.items())]

    def compute(self) -> tuple[str, bool]:
        """What to do about the init containers, sidecars among them.

        Returns:
            Why the pod is over, "" where it is not; and whether the regular containers may run.
        """
        if not self._init:
            return "", True
        states = [current.state for spec in self._regular if (current := self._status.newest(spec["name"]))]
        done = ContainerState.CREATED in states or ContainerState.RUNNING in states
        # From the last to the first: ended ones may have been removed from the runtime, all but the latest.
        passed = done
        for place, spec in reversed(list(enumerate(self._init))):
            current = self._in_this_sandbox(spec["name"])
            sidecar = is_sidecar(spec, self._minor)
            if current is None:
                if passed and sidecar:
                    self._start[place] = missing(spec)
                continue
            if sidecar or not passed:
                step = self._sidecar(place, spec, current) if sidecar else self._ordinary(place, spec, current)
                if step is _Step.FATAL:
                    return f"Init container {spec['name']} failed and is not restarted", False
                if step is _Step.INITIALIZED:
                    if place + 1 == len(self._init):
                        done = True
                    elif not passed:
                        self._start[place + 1] = missing(self._init[place + 1])
            passed = True
        if not passed:
            self._start[0] = missing(self._init[0])
        return "", done

    def _in_this_sandbox(self, name: str) -> ContainerStatus | None:
        """The current instance of an init container. One of a sandbox before does not count: kubelet removes these."""
        current, sandbox = self._status.newest(name), self._status.sandbox
        own = current is None or sandbox is None or current.sandbox_id in ("", sandbox.id)
        return current if own else None

    def _ordinary(self, place: int, spec: Spec, current: ContainerStatus) -> _Step:
        """An init container that is to end before the next one begins."""
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
            self.kill.append(of_unknown_state(current, "Init container"))
        self._start[place] = again(spec, current)
        return _Step.PENDING

    def _sidecar(self, place: int, spec: Spec, current: ContainerStatus) -> _Step:
        """An init container that is kept running beside the others."""
        if current.state is not ContainerState.RUNNING:
            if current.state is ContainerState.UNKNOWN:
                self.kill.append(of_unknown_state(current, "Init container"))
            self._start[place] = again(spec, current)
            return _Step.PENDING
        if spec.get("startupProbe") and current.id not in self._status.started:
            if current.id in self._status.startup_failed:
                self._replace_sidecar(place, current, Cause.STARTUP, "failed startup probe")
            return _Step.PENDING
        changed = has_changed(spec, current, self._minor) if self._minor >= SIDECAR_HASH_SINCE else False
        if isinstance(changed, Unknown):
            self.unknown.append(changed)
        elif changed:
            self._replace_sidecar(place, current, Cause.DEFINITION_CHANGED, "definition changed")
            return _Step.INITIALIZED
        if spec.get("livenessProbe") and current.id in self._status.liveness_failed:
            self._replace_sidecar(place, current, Cause.LIVENESS, "failed liveness probe")
            return _Step.INITIALIZED
        resize = resize_of(self._pod, spec, current, self._status.resources, self._minor)
        if resize.unknown:
            self.unknown.append(Unknown(current.name, resize.unknown))
        if resize.restart:
            kill, self._start[place] = resized(current)
            self.kill.append(kill)
        return _Step.INITIALIZED

    def _replace_sidecar(self, place: int, current: ContainerStatus, cause: Cause, what: str) -> None:
        message = f"Init container {current.name} {what}"
        self.kill.append(Kill(current, cause, message))
        self._start[place] = Start(current.name, cause, message)
