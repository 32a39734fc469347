"""The columns that `kubectl get` shows for built-in kinds, as the API server's `pkg/printers` computes them."""

import math
from datetime import datetime
from typing import Any

from crrd.core.api.time import parse_time
from crrd_localnode.api.kinds import Column
from crrd_localnode.api.objects import Object, dig, metadata

UNKNOWN = "<unknown>"
NONE = "<none>"


_HOUR, _DAY, _YEAR = 3600, 86400, 365 * 86400
_UNITS = {"s": 1, "m": 60, "h": _HOUR, "d": _DAY, "y": _YEAR}
_SPANS = (
    (120, "s", ""), (600, "m", "s"), (3 * _HOUR, "m", ""), (8 * _HOUR, "h", "m"), (48 * _HOUR, "h", ""),
    (8 * _DAY, "d", "h"), (2 * _YEAR, "d", ""), (8 * _YEAR, "y", "d"), (math.inf, "y", ""),
)  # fmt: skip
"""Limit in seconds, the unit of a shorter duration, and the unit of its rest."""


def human_duration(seconds: float) -> str:
    """Format a duration as `kubectl` shows ages, with up to two units (apimachinery's HumanDuration)."""
    whole = max(int(seconds), 0)
    if int(seconds) < -1:
        return "<invalid>"
    large, small = next((large, small) for limit, large, small in _SPANS if whole < limit)
    count, rest = divmod(whole, _UNITS[large])
    rest = rest // _UNITS[small] if small else 0
    return f"{count}{large}" + (f"{rest}{small}" if rest else "")


def age_since(text: Any, now: datetime) -> str:
    """Return the age of an RFC 3339 time."""
    moment = parse_time(text) if isinstance(text, str) else None
    return UNKNOWN if moment is None else human_duration((now - moment).total_seconds())


def _age(obj: Object, now: datetime) -> str:
    return age_since(metadata(obj).get("creationTimestamp"), now)


AGE = Column("Age", _age, description="Time since the object was created.")
CREATED = Column("Created At", lambda obj, _now: metadata(obj).get("creationTimestamp", ""), "date")


def _field(name: str, *path: str, priority: int = 0, missing: str = NONE) -> Column:
    return Column(name, lambda obj, _now: dig(obj, *path) or missing, priority=priority)


def _pod_ready(pod: Object, _now: datetime) -> str:
    statuses = dig(pod, "status", "containerStatuses") or []
    return f"{sum(1 for status in statuses if status.get('ready'))}/{len(dig(pod, 'spec', 'containers') or [])}"


def _pod_status(pod: Object, _now: datetime) -> str:
    status = pod.get("status") or {}
    shown = status.get("reason") or status.get("phase") or UNKNOWN
    statuses = status.get("containerStatuses") or []
    for container in reversed(statuses):
        waiting, terminated = dig(container, "state", "waiting"), dig(container, "state", "terminated")
        if waiting and waiting.get("reason"):
            shown = waiting["reason"]
        elif terminated:
            signal, code = terminated.get("signal"), terminated.get("exitCode", 0)
            shown = terminated.get("reason") or (f"Signal:{signal}" if signal else f"ExitCode:{code}")
    if shown == "Completed" and any(dig(container, "state", "running") for container in statuses):
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
        shown = "Running" if ready else "NotReady"
    return "Terminating" if metadata(pod).get("deletionTimestamp") else str(shown)


def _pod_restarts(pod: Object, now: datetime) -> str:
    statuses = dig(pod, "status", "containerStatuses") or []
    count = sum(int(status.get("restartCount", 0)) for status in statuses)
    ends = [dig(status, "lastState", "terminated", "finishedAt") for status in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({age_since(last, now)} ago)" if count and last else str(count)


def _gates(pod: Object, _now: datetime) -> str:
    gates = [gate.get("conditionType") for gate in dig(pod, "spec", "readinessGates") or []]
    true = {c.get("type") for c in dig(pod, "status", "conditions") or [] if c.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate in true)}/{len(gates)}" if gates else NONE


def _node_status(node: Object, _now: datetime) -> str:
    conditions = {c.get("type"): c.get("status") for c in dig(node, "status", "conditions") or []}
    ready = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{ready},SchedulingDisabled" if dig(node, "spec", "unschedulable") else ready


def _last_seen(event: Object, now: datetime) -> str:
    series = dig(event, "series", "lastObservedTime")
    return age_since(series or event.get("lastTimestamp") or event.get("eventTime"), now)


def _involved(event: Object, _now: datetime) -> str:
    involved = event.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _count(name: str, field: str) -> Column:
    return Column(name, lambda obj, _now: len(obj.get(field) or {}), "integer")


POD = (
    Column("Ready", _pod_ready),
    Column("Status", _pod_status),
    Column("Restarts", _pod_restarts),
    AGE,
    _field("IP", "status", "podIP", priority=1),
    _field("Node", "spec", "nodeName", priority=1),
    _field("Nominated Node", "status", "nominatedNodeName", priority=1),
    Column("Readiness Gates", _gates, priority=1),
)
NODE = (
    Column("Status", _node_status),
    AGE,
    _field("Version", "status", "nodeInfo", "kubeletVersion", missing=""),
)
NAMESPACE = (_field("Status", "status", "phase", missing=""), AGE)
EVENT = (
    Column("Last Seen", _last_seen),
    _field("Type", "type", missing=""),
    _field("Reason", "reason", missing=""),
    Column("Object", _involved),
    _field("Message", "message", missing=""),
)
SECRET = (_field("Type", "type", missing=""), _count("Data", "data"), AGE)
CONFIG_MAP = (_count("Data", "data"), AGE)
LEASE = (_field("Holder", "spec", "holderIdentity", missing=""), AGE)
