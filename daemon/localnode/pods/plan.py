"""What kubelet does next about one pod: which containers it stops, which it starts, whether it makes a new sandbox.

Source: `computePodActions` in pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

import json
from dataclasses import dataclass, field
from typing import Protocol

from daemon.core.model import RestartPolicy
from daemon.localnode.pods import spec as podspec
from daemon.localnode.pods.kuberuntime import RuntimeContainer, RuntimePod
from daemon.localnode.pods.spec import Json


class Health(Protocol):
    """What the probes found."""

    def started(self, spec: Json, container: RuntimeContainer) -> bool:
        """Whether a running container has started."""
        ...

    def failed(self, container_id: str) -> str:
        """The probe for which a container has to be restarted, "startup" or "liveness"; "" for none."""
        ...


@dataclass(slots=True)
class Plan:
    """What to do, in this order."""

    kill_pod: bool = False
    """Stop all containers and the sandbox."""
    kill: list[tuple[RuntimeContainer, str]] = field(default_factory=list)
    """Containers to stop, each with the reason."""
    new_sandbox: bool = False
    start: list[str] = field(default_factory=list)
    """Names of containers to start."""


def hash_of(spec: Json) -> str:
    """Kubelet's hash of the container's spec, hex: of its name and image alone, as of Kubernetes 1.36.

    FNV-1a, 32 bits, over what Go's `%#v` makes of the bytes of their JSON (`HashContainer`, `DeepHashObject`).
    """
    shape = json.dumps(
        {"image": spec.get("image", ""), "name": spec["name"]}, separators=(",", ":"), ensure_ascii=False
    )
    for character in "<>&":  # as Go's encoder writes them
        shape = shape.replace(character, f"\\u{ord(character):04x}")
    value = 0x811C9DC5
    for byte in f"([]uint8)[{' '.join(str(each) for each in shape.encode())}]".encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return f"{value:x}"


def make(pod: Json, view: RuntimePod, health: Health) -> Plan:
    """What kubelet does about the pod as it is now."""
    if view.sandbox is None or not view.sandbox.ready:
        return _anew(pod, view)
    plan = Plan()
    if not _initialize(pod, view, health, plan):
        return plan
    kept = False
    for spec in podspec.regular_containers(pod):
        current = view.newest(spec["name"])
        if current is None or not current.running:
            if _restarts(pod, spec, current):
                plan.start.append(spec["name"])
            continue
        reason, restart = _fault(pod, spec, current, health)
        kept |= not reason
        if reason:
            plan.kill.append((current, reason))
            if restart:
                plan.start.append(spec["name"])
    regular = {spec["name"] for spec in podspec.regular_containers(pod)}
    if not kept and not regular & set(plan.start):
        return Plan(kill_pod=True)
    return plan


def _anew(pod: Json, view: RuntimePod) -> Plan:
    """The pod has no sandbox that is ready: everything begins again, if anything is to."""
    plan = Plan(kill_pod=bool(view.sandboxes))
    if view.containers and podspec.pod_restart_policy(pod) is RestartPolicy.NEVER:
        return plan
    wanted = [
        spec["name"] for spec in podspec.regular_containers(pod) if _restarts(pod, spec, view.newest(spec["name"]))
    ]
    if wanted:
        plan.new_sandbox = True
        plan.start = [spec["name"] for spec in podspec.init_containers(pod)[:1]] or wanted
    return plan


def _initialize(pod: Json, view: RuntimePod, health: Health, plan: Plan) -> bool:
    """Plan for the init containers, sidecars among them; whether the regular ones may run."""
    sandbox = view.sandbox.id if view.sandbox else ""
    begun = any(
        (found := view.newest(spec["name"])) is not None and found.sandbox_id == sandbox
        for spec in podspec.regular_containers(pod)
    )
    for spec in podspec.init_containers(pod):
        current = view.newest(spec["name"])
        if current is not None and current.sandbox_id != sandbox:
            current = None  # of a sandbox before: this one has to be initialized again
        if podspec.is_sidecar(spec):
            if current is None or not current.running:
                plan.start.append(spec["name"])
            elif health.failed(current.id):
                plan.kill.append((current, f"Init container {spec['name']} failed {health.failed(current.id)} probe"))
                plan.start.append(spec["name"])
            elif health.started(spec, current):
                continue
            if not begun:
                return False
        elif not begun and not (current is not None and current.exited and current.exit_code == 0):
            if current is None or not current.running:
                if current is not None and podspec.pod_restart_policy(pod) is RestartPolicy.NEVER:
                    plan.kill_pod = True
                else:
                    plan.start.append(spec["name"])
            return False
    return True


def _fault(pod: Json, spec: Json, current: RuntimeContainer, health: Health) -> tuple[str, bool]:
    """Why a running container has to be stopped, "" for not at all; and whether it is started again."""
    name = spec["name"]
    if current.hash != hash_of(spec):
        return f"Container {name} definition changed, will be restarted", True
    probe = health.failed(current.id)
    if probe:
        restart = _policy(pod, spec) is not RestartPolicy.NEVER
        return f"Container {name} failed {probe} probe{', will be restarted' if restart else ''}", restart
    return "", False


def _policy(pod: Json, spec: Json) -> RestartPolicy:
    """The container's own restartPolicy where it has one (KEP-5307), else the pod's."""
    return RestartPolicy(spec.get("restartPolicy") or podspec.pod_restart_policy(pod))


def _restarts(pod: Json, spec: Json, current: RuntimeContainer | None) -> bool:
    """Whether a container that does not run is started (`ShouldContainerBeRestarted`)."""
    if current is None or not current.exited:
        return True
    policy = _policy(pod, spec)
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and current.exit_code != 0)
