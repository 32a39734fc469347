"""Reads and patches the readiness condition of pods. What it becomes is decided in `core.lifecycle.readiness`.

Each change is worked out from the pod as the API server has it now and bound to that version, because the kubelet and
other programs write the same list of conditions; a conflict starts over.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from crrd.core.api.pod import PodMeta, Readiness, parse_meta, readiness_of
from crrd.core.api.time import rfc3339
from crrd.core.api.types import READINESS_GATE
from crrd.core.lifecycle.readiness import acquired, released
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ConflictError, GoneError
from crrd.lib.jsonfields import items, mapping, text

ATTEMPTS = 6
"""How often a change starts over after a conflict before it is left for later."""
_IS_READY = ("Ready", "True")
_NOT_READY = "ReadinessGatesNotReady"
_WHY_NOT = f'the status of pod readiness gate "{READINESS_GATE}" is not "True", but False'
"""Kubelet's own words, so that its next write changes nothing."""


class PodReadiness:
    """Changes the condition KruisePodReady of single pods, and takes Ready away with it.

    Every method does nothing where nothing is left to do, returns the pod as it is afterwards, None where it has gone
    or is another one, and raises

        ConflictError: the pod changes faster than it can be patched.
        ApiUnavailableError, ApiRefusedError: see there.
    """

    def __init__(self, client: KubeClient, now: Callable[[], datetime]) -> None:
        """`now` gives the API server's time, for the condition's lastTransitionTime."""
        self._client = client
        self._now = now

    async def acquire(self, pod: PodMeta, key: str) -> PodMeta | None:
        """Make the pod unready for this request (`namespace/name`)."""
        return await self._change(pod, partial(acquired, key=key))

    async def release(self, pod: PodMeta, key: str) -> PodMeta | None:
        """Take this request from the reasons to be unready; with none left, the pod is ready."""
        return await self._change(pod, partial(_released, key=key))

    async def init(self, pod: PodMeta) -> PodMeta | None:
        """Make a pod ready that has the gate and no condition."""
        return await self._change(pod, _initial)

    async def _change(self, pod: PodMeta, change: Callable[[Readiness], Readiness]) -> PodMeta | None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                found = await self._client.get(PODS, pod.namespace, pod.name)
                if text(mapping(found.get("metadata")).get("uid")) != pod.uid:
                    return None
                before = readiness_of(found)
                after = change(before)
                if after != before:
                    body = _patch(found, after, self._now())
                    found = await self._client.merge_patch(PODS, pod.namespace, pod.name, body, subresource="status")
                return parse_meta(found)
            except GoneError:
                return None
            except ConflictError:
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")


def _released(before: Readiness, key: str) -> Readiness:
    """A pod that is not unready for this request is left as it is, whatever its message says."""
    return released(before, key) if key in before.keys else before


def _initial(before: Readiness) -> Readiness:
    return before if before.status else Readiness("True")


def _patch(pod: Mapping[str, Any], after: Readiness, now: datetime) -> dict[str, Any]:
    """A merge patch of the pod's status: the whole list of conditions, bound to the version that it was read from.

    With the gate goes `Ready`, in the same write, as with OpenKruise: kubelet would set it too, but maybe late, and
    who sees the mark on the request counts on traffic leaving the pod. `Ready` is only ever taken away here; to give it
    back is kubelet's, who alone knows the containers.
    """
    meta = mapping(pod.get("metadata"))
    known = [mapping(condition) for condition in items(mapping(pod.get("status")).get("conditions"))]
    before = next((each for each in known if each.get("type") == READINESS_GATE), {})
    gate: dict[str, Any] = {"type": READINESS_GATE, "status": after.status, "lastTransitionTime": rfc3339(now)}
    if after.message:
        gate["message"] = after.message
    if before.get("status") == after.status and "lastTransitionTime" in before:
        gate["lastTransitionTime"] = before["lastTransitionTime"]
    unready = {"status": "False", "lastTransitionTime": rfc3339(now), "reason": _NOT_READY, "message": _WHY_NOT}
    others = [
        {**each, **unready} if after.status == "False" and (each.get("type"), each.get("status")) == _IS_READY else each
        for each in known
        if each.get("type") != READINESS_GATE
    ]
    return {
        "metadata": {"uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion")},
        "status": {"conditions": [*others, gate]},
    }
