"""From what the runtime and the probes say of a pod to what kubelet does next about it, which `planner` knows.

A local node has no pod network, so neither its mode nor an IP is compared; and it keeps no record of the resources
that a container was given, so nothing is ever restarted for theirs.
"""

from crrd.kubelet.hash.container_hash import container_hash
from crrd_localnode.planner.actions import PodActions
from crrd_localnode.planner.pod_actions import end_pod, pod_actions
from crrd_localnode.planner.pod_status import PodRuntimeStatus
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.kuberuntime import RuntimePod
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.status import Health


def hash_of(spec: Json, version: str) -> str:
    """The container's hash as a kubelet of this version writes it; "0" where that cannot be told."""
    return f"{container_hash(spec, version) or 0:x}"


def make(pod: Json, view: RuntimePod, health: Health, version: str) -> PodActions:
    """What a kubelet of this version does about the pod as it is now."""
    current = [(spec, found) for spec in podspec.all_containers(pod) if (found := view.newest(spec["name"]))]
    status = PodRuntimeStatus(
        sandboxes=view.sandboxes,
        containers=view.containers,
        started=frozenset(each.id for spec, each in current if each.running and health.started(spec, each)),
        startup_failed=frozenset(each.id for _, each in current if health.failed(each.id) == "startup"),
        liveness_failed=frozenset(each.id for _, each in current if health.failed(each.id) == "liveness"),
    )
    return pod_actions(pod, status, version)


def end(pod: Json, view: RuntimePod, version: str, why: str) -> PodActions:
    """The same where the pod is over: all of it is killed, its sidecars last."""
    return end_pod(pod, PodRuntimeStatus(view.sandboxes, view.containers), version, why)
