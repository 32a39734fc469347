"""Whether kubelet restarts a container after an in-place change of its resources, according to its resizePolicy.

Kubelet compares the spec with its record of the resources that it gave the container. The caller must provide this
record; without it the result is "unknown" with the reason. A change in the spec counts as admitted, unless the pod has
the condition PodResizePending. The API server accepts no such policy on an ordinary init container.

Source: `computePodResizeAction` in pkg/kubelet/kuberuntime, `IsInPlacePodVerticalScalingAllowed` in
pkg/kubelet/allocation, in 1.33 to 1.36.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.kubelet.labels import ANNOTATION_MIRROR
from crrd.kubelet.quantity import parse
from crrd_localnode.planner.restarts import Spec
from crrd_localnode.planner.values import ContainerStatus

RESIZE_SINCE = 33  # First minor version that changes resources in place (InPlacePodVerticalScaling)
STATIC_POD_SINCE = 36  # First minor version that does so for static pods
POD_LEVEL_SINCE = 36  # First one in which the pod's limits count (InPlacePodLevelResourcesVerticalScaling)
_STATIC = "kubernetes.io/config.source"
_UNITS = {"cpu": 1000, "memory": 1}  # Kubelet's unit for each resource: thousandths of a CPU, bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """The effect of a change of resources on a running container."""

    restart: bool = False
    unknown: str = ""  # Why it is unknown whether the container is restarted, or ""


def resize_of(
    pod: Mapping[str, Any], container: Spec, current: ContainerStatus, given_to_pod: Spec | None, minor: int
) -> Resize:
    """Whether kubelet 1.`minor` restarts a running container (regular or sidecar) because of its resources.

    `given_to_pod` is the pod's own `resources` as kubelet applied them last, or None if unknown.
    """
    restarting = _restarting(container)
    if not restarting or minor < RESIZE_SINCE or (minor < STATIC_POD_SINCE and _is_static(pod)):
        return Resize()
    if current.resources is None:
        return Resize(unknown="what resources kubelet gave it is not known, and a change of them restarts it")
    spec: Spec = pod.get("spec") or {}
    of_pod: Spec = (spec.get("resources") or {}) if minor >= POD_LEVEL_SINCE else {}
    wanted: Spec = container.get("resources") or {}
    inherits = any(not _limit(wanted, name) and _limit(of_pod, name) for name in restarting)
    if inherits and given_to_pod is None:
        return Resize(unknown="what resources kubelet gave its pod is not known, and a change of them restarts it")
    given_pod = (given_to_pod or {}) if minor >= POD_LEVEL_SINCE else {}
    try:
        given = current.resources
        changed = any(_counts(wanted, of_pod, name) != _counts(given, given_pod, name) for name in restarting)
    except ValueError as error:
        return Resize(unknown=f"its resources cannot be compared: {error}")
    if changed and _is_pending(pod):
        return Resize(unknown="its resources have changed, a change restarts it, and kubelet has not admitted it yet")
    return Resize(restart=changed)


def _restarting(container: Spec) -> list[str]:
    """Return the resources whose change restarts the container. Of two policies for one resource, the first counts."""
    policies = {each.get("resourceName"): each for each in reversed(container.get("resizePolicy") or [])}
    return [name for name in _UNITS if (policies.get(name) or {}).get("restartPolicy") == "RestartContainer"]


def _is_static(pod: Mapping[str, Any]) -> bool:
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return ANNOTATION_MIRROR in annotations or annotations.get(_STATIC, "api") != "api"


def _is_pending(pod: Mapping[str, Any]) -> bool:
    """Whether kubelet has reported that it cannot make the change, or not now."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "PodResizePending" and each.get("status") == "True" for each in conditions)


def _counts(resources: Spec, of_pod: Spec, name: str) -> tuple[int, int]:
    """Return limit (which may be the pod's) and request as kubelet compares them; 0 if not set."""
    return _limit(resources, name) or _limit(of_pod, name), _count(resources.get("requests"), name)


def _limit(resources: Spec, name: str) -> int:
    return _count(resources.get("limits"), name)


def _count(quantities: Mapping[str, Any] | None, name: str) -> int:
    """Return one quantity in kubelet's unit, rounded up."""
    return math.ceil(parse(str((quantities or {}).get(name) or "0")).value * _UNITS[name])
