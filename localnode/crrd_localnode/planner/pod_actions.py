"""Kubelet's next actions on a pod: the containers to kill and to start, and whether to create a new sandbox.

The caller handles two things. `start` includes containers in back-off, which the caller must delay. And a pod whose
phase is Succeeded or Failed has ended, whatever `pod_actions` returns. Changes of resources are ignored.

Source: `computePodActions` and `computeInitContainerActions` in pkg/kubelet/kuberuntime, `PodSandboxChanged` in
pkg/kubelet/kuberuntime/util, in 1.28 to 1.36. Feature gates have each version's defaults.
"""

from collections.abc import Mapping
from typing import Any

from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from crrd_forecast.hash.version import parse_minor
from crrd_localnode.planner.init_actions import InitPlanner
from crrd_localnode.planner.restarts import Spec, is_sidecar, restarts, restarts_all, restarts_on_failure, runs_once
from crrd_localnode.planner.values import ContainerStatus, Kill, NetworkMode, PodActions, PodRuntimeStatus, Remove


def pod_actions(pod: Mapping[str, Any], status: PodRuntimeStatus, kubelet_version: str) -> PodActions:
    """Return the actions of a kubelet of this version (for example "v1.31.0-rc.1+k3s1", else ValueError) on a pod."""
    return _Planner(pod, status, parse_minor(kubelet_version)).compute()


def end_pod(pod: Mapping[str, Any], status: PodRuntimeStatus, kubelet_version: str, why: str) -> PodActions:
    """Return the actions on a pod that ends for a reason that the caller knows: everything is killed."""
    return _Planner(pod, status, parse_minor(kubelet_version)).end(why)


class _Planner(InitPlanner):
    """All decisions for one pod at one moment."""

    def compute(self) -> PodActions:
        if (self._pod.get("metadata") or {}).get("deletionTimestamp"):
            return self.end("the pod is being deleted")
        fault = self._sandbox_fault()
        to_remove = self._to_remove()
        if to_remove:
            why = "a container has ended with a code for which all containers of the pod are restarted"
            if fault:
                return self.end(f"{fault}; {why}", new_sandbox=True)
            return PodActions(attempt=self._attempt(), remove=to_remove, why=why)
        if fault:
            return self._restart_pod(fault)
        failed, initialized = self._look_at_init()
        if failed:
            return self.end(failed)
        ephemeral = self._spec.get("ephemeralContainers") or []  # never restarted
        start: list[str] = [spec["name"] for spec in ephemeral if self._status.newest(spec["name"]) is None]
        start += [self._init[place]["name"] for place in sorted(self._init_start)]
        if initialized and not self._look_at_regular(start):
            return self.end("no container of the pod runs on or is to be started")
        return PodActions(attempt=self._attempt(), kill=tuple(self._kill), start=tuple(start))

    # The sandbox

    def _sandbox_fault(self) -> str:
        """Return why the pod needs a new sandbox, or ""."""
        sandbox = self._status.sandbox
        if sandbox is None:
            return "the pod has no sandbox"
        if sum(each.ready for each in self._status.sandboxes) > 1:
            return "the pod has more than one sandbox that is ready"
        if not sandbox.ready:
            return "the pod's sandbox is not ready"
        on_host = bool(self._spec.get("hostNetwork"))
        wanted = NetworkMode.NODE if on_host else NetworkMode.POD
        if sandbox.network not in (None, wanted):
            return f"the pod's sandbox is in the network namespace {sandbox.network}, the pod wants {wanted}"
        if not on_host and sandbox.ip == "":
            return "the pod's sandbox has no IP address"
        return ""

    def _attempt(self, *, new: bool = False) -> int:
        sandbox = self._status.sandbox
        return 0 if sandbox is None else sandbox.attempt + new

    def _restart_pod(self, fault: str) -> PodActions:
        """Start again in a new sandbox, if there is anything to start."""
        never = self._spec.get("restartPolicy") == RestartPolicy.NEVER
        if never and self._attempt(new=True) != 0 and self._status.containers:
            return self.end(f"{fault}, and the pod is not restarted")
        starting = [spec for spec in self._regular if not self._is_done(spec)]
        found = [self._status.newest(spec["name"]) for spec in self._regular]
        if not starting and any(each and each.state is not ContainerState.UNKNOWN for each in found):
            return self.end(f"{fault}, and no container is to be started")
        start = [spec["name"] for spec in self._init[:1] or starting]
        return self.end(fault, new_sandbox=True, start=tuple(start))

    def _is_done(self, spec: Spec) -> bool:
        """Whether a container has succeeded that must succeed only once."""
        current = self._status.newest(spec["name"])
        succeeded = current is not None and current.state is ContainerState.EXITED and current.exit_code == 0
        return succeeded and runs_once(spec, self._spec, self._minor)

    # All containers at once

    def end(self, why: str, *, new_sandbox: bool = False, start: tuple[str, ...] = ()) -> PodActions:
        """Kill all containers and sandboxes, sidecars last, and continue only with the given actions."""
        sidecars = [spec["name"] for spec in self._init if is_sidecar(spec, self._minor)]
        alive = (ContainerState.RUNNING, ContainerState.UNKNOWN)
        running = [each for each in self._status.containers if each.state in alive]
        present = {each.name for each in running}
        last_first = [name for name in reversed(sidecars) if name in present]
        stages = {name: stage for stage, name in enumerate(last_first, 1)}
        kill = [Kill(each, f"Stopping container {each.name}: {why}", stages.get(each.name, 0)) for each in running]
        return PodActions(
            kill_pod=bool(self._status.sandboxes or running),
            new_sandbox=new_sandbox,
            attempt=self._attempt(new=True),
            kill=tuple(sorted(kill, key=lambda each: each.stage)),
            start=start,
            why=why,
        )

    def _to_remove(self) -> tuple[Remove, ...]:
        """Return all instances of all containers, if one has ended with an exit code that restarts all containers.

        Those that have ended so are last: while they exist, the unfinished removal is noticed and continues.
        """
        specs = [*self._regular, *self._init]
        of_spec = [(spec, each) for spec in specs for each in self._status.containers if each.name == spec["name"]]
        exited = [(spec, each) for spec, each in of_spec if each.state is ContainerState.EXITED]
        triggers = {each.id for spec, each in exited if restarts_all(spec, each.exit_code, self._minor)}
        if not any((current := self._status.newest(spec["name"])) and current.id in triggers for spec in specs):
            return ()
        found = [each for _, each in of_spec]
        found.sort(key=lambda each: each.id in triggers)
        return tuple(Remove(each, kill=each.state is not ContainerState.EXITED) for each in found)

    # Regular containers

    def _look_at_regular(self, starts: list[str]) -> bool:
        """Plan the regular containers. Return whether any of them keeps running or is to be started."""
        going_on = False
        for spec in self._regular:
            current = self._status.newest(spec["name"])
            kept = False
            if current is not None and current.state is ContainerState.RUNNING:
                start, kept = self._running(spec, current)
            else:
                start = current is None or self._not_running(spec, current)
            going_on |= start or kept
            if start:
                starts.append(spec["name"])
        return going_on

    def _not_running(self, spec: Spec, current: ContainerStatus) -> bool:
        """Whether a container is started that has ended, was not started or is in an unknown state."""
        if current.state is ContainerState.EXITED:
            return restarts(spec, self._spec, current.exit_code, self._minor)
        if current.state is ContainerState.UNKNOWN:
            self._stop_unknown(current, "Container")
        return True

    def _running(self, spec: Spec, current: ContainerStatus) -> tuple[bool, bool]:
        """Whether a container is started after its end, and whether it keeps running."""
        restart = restarts_on_failure(spec, self._spec, self._minor)
        if self._has_changed(spec, current):
            why, restart = "definition changed", True
        elif current.id in self._status.liveness_failed:
            why = "failed liveness probe"
        elif current.id in self._status.startup_failed:
            why = "failed startup probe"
        else:
            return False, True
        self._kill.append(Kill(current, f"Container {current.name} {why}{', will be restarted' if restart else ''}"))
        return restart, False
