"""Admission plugins of clusters that accept few pods: LimitRanger, and OpenShift's SecurityContextConstraint.

They do for pull pods what the real ones do, with their messages.
"""

from typing import Any

from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.client import KubeClient
from crrd.kube.resources import LIMIT_RANGES
from crrd_forecast.hash.quantity import parse
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import forbidden
from crrd_localnode.api.objects import Object

Json = dict[str, Any]
RANGE = range(1000650000, 1000660000)
"""The UIDs of the namespace."""


def _new_pull_pod(asked: AdmissionRequest) -> Object | None:
    if asked.kind.plural != "pods" or asked.operation is not Operation.CREATE or asked.new is None:
        return None
    return asked.new if LABEL_PULL in asked.new["metadata"].get("labels", {}) else None


async def create_limit_range(client: KubeClient, namespace: str, **least: str) -> None:
    """Create LimitRanges, of which `small` has these least quantities for containers."""
    limits: dict[str, Json] = {
        "small": {"type": "Container", "min": least},
        "large": {"type": "Container", "max": {"cpu": "4"}},
    }
    for name, limit in limits.items():
        body = {"metadata": {"name": name}, "spec": {"limits": [limit]}}
        await client.create(LIMIT_RANGES, namespace, body)


def limit_ranger(**least: str) -> Any:
    """Refuse pull pods that request less than this, or less than their limits."""

    async def admit(asked: AdmissionRequest) -> Object | None:
        if (pod := _new_pull_pod(asked)) is None:
            return None
        resources, broken = pod["spec"]["containers"][0]["resources"], []
        for name, quantity in least.items():
            request, limit = (resources[key][name] for key in ("requests", "limits"))
            if parse(request).value < parse(quantity).value:
                broken.append(f"minimum {name} usage per Container is {quantity}, but request is {request}")
            if request != limit:
                broken.append(f"{name} max limit to request ratio per Container is 1, but provided ratio is 10.000000")
        if broken:
            raise forbidden("", "pods", asked.name, broken[0] if len(broken) == 1 else f"[{', '.join(broken)}]")
        return pod

    return admit


async def restricted_v2(asked: AdmissionRequest) -> Object | None:
    """Refuse pull pods with a UID of another range, and give them one of the namespace."""
    if (pod := _new_pull_pod(asked)) is None:
        return None
    context, (container,) = pod["spec"]["securityContext"], pod["spec"]["containers"]
    uid = context.get("runAsUser", RANGE[0])
    if uid not in RANGE:
        why = f".containers[0].runAsUser: Invalid value: {uid}: must be in the ranges: [{RANGE[0]}, {RANGE[-1]}]"
        raise forbidden("", "pods", asked.name, f"unable to validate against any security context constraint: [{why}]")
    if "runAsUser" not in context:
        container["securityContext"]["runAsUser"] = uid
    context |= {"fsGroup": uid, "seLinuxOptions": {"level": "s0:c26,c5"}}
    pod["metadata"]["annotations"]["openshift.io/scc"] = "restricted-v2"
    return pod
