"""Reads and patches the readiness condition of pods. `core.lifecycle.readiness` decides the new value.

Each change is computed from the current pod and bound to its resourceVersion, because kubelet and other programs write
the same list of conditions. After a conflict the change is computed again.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from crrd.core.api.gate import Readiness, readiness_of
from crrd.core.api.pod import PodMeta, parse_meta
from crrd.core.api.time import rfc3339
from crrd.core.api.types import READINESS_GATE
from crrd.core.lifecycle.readiness import readiness_after
from crrd.core.lifecycle.steps import PodAction
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ConflictError, GoneError
from crrd.lib.jsonfields import condition, items, mapping, value_at

ATTEMPTS = 6  # Attempts after conflicts, until the change is left for later
_IS_READY = ("Ready", "True")
_NOT_READY = "ReadinessGatesNotReady"
_WHY_NOT = f'the status of pod readiness gate "{READINESS_GATE}" is not "True", but False'
"""Kubelet's own message, so that its next write changes nothing."""


async def change_readiness(client: KubeClient, action: PodAction, now: Callable[[], datetime]) -> PodMeta | None:
    """Carry out an action on a pod's readiness condition if needed. If the pod becomes unready, set Ready to False too.

    `now` returns the API server's time. Returns the pod after the change, or None if it is gone or has another UID.

    Raises ConflictError if the pod changes faster than it can be patched.
    """
    pod = action.pod
    for attempt in range(1, ATTEMPTS + 1):
        try:
            found = await client.get(PODS, pod.namespace, pod.name)
            if value_at(found, "metadata.uid") != pod.uid:
                return None
            before = readiness_of(found)
            if (after := readiness_after(action, before)) == before:
                return parse_meta(found)
            body = _patch(found, after, now())
            del found  # whole pods need much memory, and a thousand patches may wait for their turn
            return parse_meta(await client.merge_patch(PODS, pod.namespace, pod.name, body, subresource="status"))
        except GoneError:
            return None
        except ConflictError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _patch(pod: Mapping[str, Any], after: Readiness, now: datetime) -> dict[str, Any]:
    """Return a merge patch of the pod's status: the whole list of conditions, bound to the version that was read.

    If the gate becomes False, `Ready` becomes False in the same write, as in OpenKruise. Kubelet would set it too, but
    perhaps late, and clients that see the mark on the request rely on traffic leaving the pod. This code never sets
    `Ready` to True. Only kubelet does, because only kubelet knows the containers.
    """
    known = [mapping(each) for each in items(value_at(pod, "status.conditions"))]
    before = condition(pod, READINESS_GATE)
    since = before.get("lastTransitionTime", rfc3339(now)) if before.get("status") == after.status else rfc3339(now)
    gate = {"type": READINESS_GATE, "status": after.status, "lastTransitionTime": since}
    if after.message:
        gate["message"] = after.message
    unready = {"status": "False", "lastTransitionTime": rfc3339(now), "reason": _NOT_READY, "message": _WHY_NOT}
    others = [
        {**each, **unready} if after.status == "False" and (each.get("type"), each.get("status")) == _IS_READY else each
        for each in known
        if each.get("type") != READINESS_GATE
    ]
    version = {key: value_at(pod, f"metadata.{key}") for key in ("uid", "resourceVersion")}
    return {"metadata": version, "status": {"conditions": [*others, gate]}}
