"""Computes a pod's `status` from its spec and the runtime's state.

Pure, except that it reads the files of termination messages. Source: `generateAPIPodStatus`, `getPhase` and
`convertToAPIContainerStatuses` in pkg/kubelet/kubelet_pods.go, pkg/kubelet/status/generate.go for the conditions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from crrd.core.api.time import rfc3339
from crrd.lib.plain import one_line
from crrd_forecast.hash.version import parse_minor
from crrd_localnode.planner.restarts import restarts
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.kuberuntime import RuntimeContainer, RuntimePod
from crrd_localnode.pods.spec import Json

MESSAGE_BYTES = 4096
LOG_MESSAGE_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run yet: the result of the last attempt to start it."""

    reason: str
    message: str


class Health(Protocol):
    """The results of the probes."""

    def started(self, spec: Json, container: RuntimeContainer) -> bool:
        """Whether a running container's startupProbe has succeeded, or it has none."""

    def ready(self, spec: Json, container: RuntimeContainer) -> bool:
        """Whether a started container's readinessProbe succeeds, or it has none."""

    def failed(self, container_id: str) -> str:
        """Return the probe because of which a container must be restarted, "startup" or "liveness", or ""."""


def timestamp(nanoseconds: int) -> str:
    """Format as RFC 3339 in UTC with whole seconds, like the API's `Time`."""
    return rfc3339(datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC))


def pod_status(
    pod: Json, view: RuntimePod, *, waiting: Mapping[str, Waiting], health: Health, runtime: str, version: str, now: int
) -> Json:
    """Return the status at `now` (nanoseconds since the epoch). Other programs' conditions are kept.

    `version` is kubelet's, because restarts and the phase depend on it.
    """
    old = pod.get("status") or {}
    minor = parse_minor(version)
    build = _Builder(pod, view, waiting, health, runtime, minor)
    init = [build.container(spec, init=True) for spec in podspec.init_containers(pod)]
    regular = [build.container(spec, init=False) for spec in podspec.regular_containers(pod)]
    phase = _phase(pod, init, regular, minor)
    status: Json = {
        "phase": phase,
        "hostIP": podspec.NODE_IP,
        "hostIPs": [{"ip": podspec.NODE_IP}],
        "startTime": old.get("startTime") or timestamp(now),
        "containerStatuses": regular,
    }
    if init:
        status["initContainerStatuses"] = init
    sandbox_ready = view.sandbox is not None and view.sandbox.ready
    if sandbox_ready or old.get("podIP"):
        status |= {"podIP": podspec.NODE_IP, "podIPs": [{"ip": podspec.NODE_IP}]}
    status["conditions"] = _conditions(pod, init, regular, phase, sandbox_ready=sandbox_ready, now=timestamp(now))
    return status


@dataclass(frozen=True, slots=True)
class _Builder:
    """The container statuses of one pod."""

    _pod: Json
    _view: RuntimePod
    _waiting: Mapping[str, Waiting]
    _health: Health
    _runtime_name: str
    _minor: int  # Of kubelet's version

    def container(self, spec: Json, *, init: bool) -> Json:
        """Return the status of one container."""
        name = spec["name"]
        instances = self._view.instances(name)
        entries = (self._pod.get("status") or {}).get("initContainerStatuses" if init else "containerStatuses") or []
        old: Json = next((entry for entry in entries if entry["name"] == name), {})
        if not instances and init and (old.get("state") or {}).get("terminated"):
            return old  # an init container that has ended may be removed at any time
        status: Json = {
            "name": name, "image": spec["image"], "imageID": "", "restartCount": old.get("restartCount", 0),
            "ready": False, "started": False, "lastState": old.get("lastState") or {},
            "state": {"waiting": {"reason": self._default_reason(init=init)}},
        }  # fmt: skip
        if instances:
            current = instances[0]
            started = current.running and self._health.started(spec, current)
            ready = started and self._health.ready(spec, current)
            if init and not podspec.is_sidecar(spec):
                ready = current.exited and current.exit_code == 0
            status |= {
                "image": current.image or spec["image"],
                "imageID": current.image_id,
                "containerID": f"{self._runtime_name}://{current.id}",
                "restartCount": current.restart_count,
                "ready": ready,
                "started": started,
                "state": self._state(spec, current, init=init),
                "lastState": self._state(spec, instances[1], init=init) if len(instances) > 1 else {},
            }
        self._hold_back(spec, status, init=init)
        return status

    def _default_reason(self, *, init: bool) -> str:
        """Return the waiting reason of a container before the first attempt to start it."""
        if init:
            return "PodInitializing"
        specs = [spec for spec in podspec.init_containers(self._pod) if not podspec.is_sidecar(spec)]
        done = all((found := self._view.newest(spec["name"])) is not None and found.exited for spec in specs)
        return "ContainerCreating" if done else "PodInitializing"

    def _state(self, spec: Json, container: RuntimeContainer, *, init: bool) -> Json:
        if container.running:
            return {"running": {"startedAt": timestamp(container.started_at)}}
        if not container.exited:
            return {"waiting": {"reason": self._default_reason(init=init)}}
        terminated: Json = {
            "exitCode": container.exit_code,
            "reason": container.reason or ("Completed" if container.exit_code == 0 else "Error"),
            "startedAt": timestamp(container.started_at),
            "finishedAt": timestamp(container.finished_at),
            "containerID": f"{self._runtime_name}://{container.id}",
        }
        if message := container.message + termination_message(spec, container):
            terminated["message"] = message
        return {"terminated": terminated}

    def _hold_back(self, spec: Json, status: Json, *, init: bool) -> None:
        """Set a container that could not be started to waiting, with the reason."""
        held = self._waiting.get(spec["name"])
        if held is None or "running" in status["state"]:
            return
        terminated = status["state"].get("terminated")
        if terminated:
            if init and not podspec.is_sidecar(spec) and terminated["exitCode"] == 0:
                return
            if not _restarts(self._pod, status, self._minor):  # stopped for another instance, which could not start
                return
            status["lastState"] = status["state"]
        status["state"] = {"waiting": {"reason": held.reason, "message": held.message}}
        status["ready"] = status["started"] = False


def termination_message(spec: Json, container: RuntimeContainer) -> str:
    """Return the container's termination message, or the end of its log if its policy allows that."""
    text = _tail(Path(container.termination_file), MESSAGE_BYTES) if container.termination_file else ""
    fall_back = spec["terminationMessagePolicy"] == "FallbackToLogsOnError" and container.exit_code != 0
    if text or not fall_back or not container.log_path:
        return text
    lines = _tail(Path(container.log_path), LOG_MESSAGE_BYTES).splitlines(keepends=True)
    # A line of a CRI log is "<time> <stream> <tag> <text>". The first one may be cut.
    return "".join(line.split(" ", 3)[3] for line in lines if line.count(" ") >= 3)


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read(size).decode(errors="replace")
    except OSError:  # removed with its container
        return ""


def _phase(pod: Json, init: list[Json], regular: list[Json], minor: int) -> str:
    """Return the phase, like kubelet's `getPhase`."""
    sidecars, pending_init = podspec.sidecars(pod), False
    for status in init:
        ended = status["state"].get("terminated") or (status["lastState"] or {}).get("terminated")
        if status["name"] in sidecars:
            pending_init |= not status["started"] and ended is None
        elif "terminated" in status["state"]:
            failed = ended is not None and ended["exitCode"] != 0
            if failed and not _restarts(pod, status, minor):
                return "Failed"
            pending_init |= failed
        else:
            pending_init = True
    states = [status["state"] for status in regular]
    waiting = [status for status in regular if "waiting" in status["state"] and not status["lastState"]]
    if (pending_init and not any("running" in state for state in states)) or waiting:
        return "Pending"
    if any("running" in state for state in states):
        return "Running"
    exits = [state["terminated"]["exitCode"] for state in states if "terminated" in state]
    if len(exits) < len(states):  # one could not be started
        return "Running"
    # A pod that is being deleted ends with its containers.
    if not podspec.being_deleted(pod) and any(_restarts(pod, status, minor) for status in regular):
        return "Running"
    return "Failed" if any(exits) else "Succeeded"


def _restarts(pod: Json, status: Json, minor: int) -> bool:
    """Whether a container that has ended is restarted."""
    spec = podspec.container(pod, status["name"]) or {}
    return restarts(spec, pod["spec"], status["state"]["terminated"]["exitCode"], minor)


def _conditions(
    pod: Json, init: list[Json], regular: list[Json], phase: str, *, sandbox_ready: bool, now: str
) -> list[Json]:
    old = {entry["type"]: entry for entry in (pod.get("status") or {}).get("conditions") or []}
    sidecars = podspec.sidecars(pod)
    done = {status["name"]: status["started" if status["name"] in sidecars else "ready"] for status in init}
    uninitialized = [name for name, holds in done.items() if not holds]
    unready = [status["name"] for status in regular if not status["ready"]]
    unready += [status["name"] for status in init if status["name"] in sidecars and not status["ready"]]
    incomplete = f"containers with incomplete status: [{' '.join(uninitialized)}]"
    found: dict[str, tuple[bool, str, str]] = {
        "PodReadyToStartContainers": (sandbox_ready, "", ""),
        "Initialized": (not uninitialized or phase == "Succeeded", "ContainersNotInitialized", incomplete),
    }
    containers_ready = (not unready, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    if phase in ("Succeeded", "Failed"):
        containers_ready = (False, "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    found["Ready"] = containers_ready if not containers_ready[0] else _gates(pod, old)
    found["ContainersReady"] = containers_ready
    found["PodScheduled"] = (True, "", "")
    conditions = []
    for kind, (holds, reason, message) in found.items():
        status = "True" if holds else "False"
        entry: Json = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": now}
        if not holds:
            entry |= {name: text for name, text in (("reason", reason), ("message", message)) if text}
        before = old.get(kind, {})
        if before.get("status") == status and before.get("lastTransitionTime"):
            entry["lastTransitionTime"] = before["lastTransitionTime"]
        conditions.append(entry)
    return conditions + [entry for kind, entry in old.items() if kind not in found]


def _gates(pod: Json, conditions: Mapping[str, Json]) -> tuple[bool, str, str]:
    """Whether the pod's readiness gates allow it to be ready (KEP-580), with reason and message if not."""
    messages = []
    for gate in pod["spec"].get("readinessGates") or []:
        kind = gate["conditionType"]
        condition = conditions.get(kind)
        if condition is None:
            messages.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif condition.get("status") != "True":
            messages.append(f'the status of pod readiness gate "{kind}" is not "True", but {condition.get("status")}')
    return (False, "ReadinessGatesNotReady", one_line(", ".join(messages))) if messages else (True, "", "")
