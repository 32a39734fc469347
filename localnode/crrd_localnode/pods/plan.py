"""From what the runtime and the probes say of a pod to what kubelet does next about it, which `crrd.kubelet` knows.

Nothing is decided here: this only puts one side's words into the other's. A local node has no pod network, so neither
its mode nor an IP is compared; and it keeps no record of the resources that a container was given, so nothing is ever
restarted for theirs.
"""

from cri_stubs import api_pb2
from crrd.kubelet.hash.container_hash import container_hash
from crrd.kubelet.runtime_status import ContainerState
from crrd_localnode.planner.actions import PodActions
from crrd_localnode.planner.pod_actions import end_pod, pod_actions
from crrd_localnode.planner.pod_status import ContainerStatus, PodRuntimeStatus, SandboxStatus
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.kuberuntime import RuntimePod
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.status import Health

_STATES = {
    api_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    api_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    api_pb2.CONTAINER_EXITED: ContainerState.EXITED,
}


def hash_of(spec: Json, version: str) -> str:
    """The container's hash as a kubelet of this version writes it; "0" where that cannot be told."""
    return f"{container_hash(spec, version) or 0:x}"


def make(pod: Json, view: RuntimePod, health: Health, version: str) -> PodActions:
    """What a kubelet of this version does about the pod as it is now."""
    current = [(spec, found) for spec in podspec.all_containers(pod) if (found := view.newest(spec["name"]))]
    status = PodRuntimeStatus(
        sandboxes=_sandboxes(view),
        containers=_containers(view),
        started=frozenset(each.id for spec, each in current if each.running and health.started(spec, each)),
        startup_failed=frozenset(each.id for _, each in current if health.failed(each.id) == "startup"),
        liveness_failed=frozenset(each.id for _, each in current if health.failed(each.id) == "liveness"),
    )
    return pod_actions(pod, status, version)


def end(pod: Json, view: RuntimePod, version: str, why: str) -> PodActions:
    """The same where the pod is over: all of it is killed, its sidecars last."""
    return end_pod(pod, PodRuntimeStatus(_sandboxes(view), _containers(view)), version, why)


def _sandboxes(view: RuntimePod) -> tuple[SandboxStatus, ...]:
    return tuple(
        SandboxStatus(each.id, each.attempt, ready=each.ready, created_at=each.created_at) for each in view.sandboxes
    )


def _containers(view: RuntimePod) -> tuple[ContainerStatus, ...]:
    return tuple(
        ContainerStatus(
            id=each.id,
            name=each.name,
            state=_STATES.get(each.state, ContainerState.UNKNOWN),
            exit_code=each.exit_code,
            hash=each.hash,
            restart_count=each.restart_count,
            created_at=each.created_at,
            finished_at=each.finished_at,
            sandbox_id=each.sandbox_id,
            reason=each.reason,
        )
        for each in view.containers
    )
