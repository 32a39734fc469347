"""The questions that `decide` asks before it moves anything: who is meant, may it be stopped, is it time.

Pure predicates over one request and one observation. No phase is moved here.
"""

from dataclasses import dataclass

from daemon.core.api.pod import ContainerKind, Pod, PodContainer
from daemon.core.api.types import (
    DEFAULT_GRACE_SECONDS,
    MINIMUM_GRACE_SECONDS,
    READINESS_GATE,
    Pin,
    Request,
    RequestedContainer,
)
from daemon.core.recreate.observation import Instance, Observation
from daemon.kubelet.restart_rules import comes_back

UNREMARKABLE_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that every start goes through: not worth a write."""

NO_GATE = f"the pod has no readiness gate {READINESS_GATE}: unreadyGracePeriodSeconds is not waited for"


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether the unready grace period lets stops through."""

    open: bool
    message: str = ""
    wake_at: float | None = None


def unready_gate(request: Request, seen: Observation, pod: Pod, now: float) -> Gate:
    """Step 7: the mark, then the grace period on this node's monotonic clock from when the mark was seen.

    A request that has already stopped something has its grace period behind it.
    """
    grace = request.strategy.unready_grace_seconds
    if grace is None:
        return Gate(open=True)
    if not pod.readiness_gate:
        return Gate(open=True, message=NO_GATE)
    if any(state.is_killed for state in request.status.states):
        return Gate(open=True)
    if not request.unready_acquired:
        return Gate(open=False, message="waiting for the manager to make the pod unready")
    until = seen.unready_seen.get(request.uid, now) + grace
    if now < until:
        return Gate(open=False, message=f"the pod is unready; stopping after {grace} s", wake_at=until)
    return Gate(open=True)


def wrong_container(request: Request, container: RequestedContainer, pod: Pod) -> str:
    """Why the pod's spec does not allow this container to be recreated, "" where it does."""
    known = pod.containers.get(container.name)
    if known is None:
        return f'pod {request.pod_key} has no container "{container.name}"'
    if known.kind not in (ContainerKind.REGULAR, ContainerKind.SIDECAR):
        article = "an" if known.kind.value[0] in "aei" else "a"
        return f"is {article} {known.kind}: only containers and native sidecars can be recreated"
    return ""


def wrong_identity(request: Request, container: RequestedContainer, seen: Observation) -> str:
    """Steps 3 and 4: why a container ID of the request is not this pod's container, "" where it is.

    An ID that the runtime does not know any more is no mistake: dead containers are collected.
    """
    for pin in (container.context, request.pinned.get(container.name)):
        if pin is None:
            continue
        if pin.runtime not in seen.runtime_names:
            runtimes = ", ".join(sorted(seen.runtime_names))
            return f"container ID {pin.container_id} is of runtime {pin.runtime!r}, this node has {runtimes}"
        instance = seen.instance(pin.bare_id) or seen.foreign.get(pin.bare_id)
        if instance is not None and (problem := _mismatch(request, container.name, instance, seen)):
            return f"container ID {pin.container_id} {problem}"
    newest = seen.newest(container.name)
    if newest is not None and (problem := _mismatch(request, container.name, newest, seen)):
        return f"container ID {newest.pin.container_id} {problem}"
    return ""


def not_looked_up(request: Request, container: RequestedContainer, seen: Observation) -> bool:
    """Whether nobody has asked the runtime yet whose a container ID of the request is: nothing may follow from it."""
    pins = (container.context, request.pinned.get(container.name))
    return any(
        pin is not None and seen.instance(pin.bare_id) is None and pin.bare_id not in seen.foreign for pin in pins
    )


def _mismatch(request: Request, name: str, instance: Instance, seen: Observation) -> str:
    """What the runtime's labels say otherwise than the request; they have the UID that the pod has on its node."""
    uid = seen.pod.static_uid if seen.pod else ""
    uid = uid or request.pod_uid or (seen.pod.uid if seen.pod else "")
    if (instance.pod_namespace, instance.pod_name, instance.pod_uid) != (request.namespace, request.pod_name, uid):
        return f"belongs to pod {instance.pod_namespace}/{instance.pod_name} with UID {instance.pod_uid}"
    if instance.name != name:
        return f'is container "{instance.name}", not "{name}"'
    return ""


def target_of(request: Request, container: RequestedContainer) -> Pin | None:
    """Which instance has to go; None where it must be pinned first (steps 4 and 5)."""
    pin = request.pinned.get(container.name)
    if request.strategy.force:
        return pin
    return container.context or pin


def will_not_return(status: PodContainer, pod: Pod, newest: Instance, *, exited: bool) -> str:
    """Step 6: why kubelet would not start the container again, "" where it would.

    Source: kubelet's ShouldContainerBeRestarted.
    """
    if not comes_back(status.restart_policy, None):
        return "restartPolicy is Never: kubelet would not start the container again"
    if exited and not comes_back(status.restart_policy, newest.exit_code):
        return "the container exited with code 0 and restartPolicy is OnFailure: kubelet leaves it down"
    if pod.ended:
        return f"the pod has ended (phase {pod.phase}): kubelet starts nothing in it any more"
    return ""


def held_back(status: PodContainer) -> str:
    """Kubelet's own words for what it waits for before it starts the container, "" for nothing remarkable."""
    if status.waiting_reason in UNREMARKABLE_WAITS:
        return ""
    return f"{status.waiting_reason}: {status.waiting_message}".removesuffix(": ")


def grace_of(request: Request, instance: Instance) -> int:
    """Step 9: the grace period in whole seconds: the strategy's, else the pod's, else Kubernetes' default."""
    for seconds in (request.strategy.grace_seconds, instance.grace_seconds):
        if seconds is not None:
            return max(0, seconds)
    return DEFAULT_GRACE_SECONDS


def stop_seconds(request: Request, instance: Instance, seen: Observation, now: float) -> float:
    """Step 9: StopContainer's timeout: what hook and earlier attempts left of the grace period, at least 2 s."""
    left = float(grace_of(request, instance))
    if hook := seen.hooks.get(instance.id):
        left -= hook.seconds
    if attempt := seen.stops.get(instance.id):
        left -= now - attempt.first_sent
    return max(float(MINIMUM_GRACE_SECONDS), left)
