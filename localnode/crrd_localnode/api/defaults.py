"""Defaults and forbidden changes of built-in kinds, as far as this project can notice them.

The values are those of Kubernetes' `pkg/apis/core/v1/defaults.go` and its pod strategy. Kubelet's hash of a container,
restart policies and grace periods depend on the defaults.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from crrd.core.api.types import DEFAULT_GRACE_SECONDS
from crrd_localnode.api.errors import Cause
from crrd_localnode.api.objects import Object, dig, metadata

_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_POD: Mapping[str, Any] = {
    "dnsPolicy": "ClusterFirst", "enableServiceLinks": True, "restartPolicy": "Always", "securityContext": {},
    "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS,
}  # fmt: skip
_CONTAINER: Mapping[str, Any] = {
    "resources": {}, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"
}  # fmt: skip
_PROBE: Mapping[str, Any] = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def _changed(obj: Object, field: str, change: Callable[[Any], Any]) -> Object:
    """Return the object with `change` applied to a field, if it is set."""
    return {**obj, field: change(obj[field])} if obj.get(field) else obj


def complete_pod(pod: Object) -> Object:
    """Return a pod with the API server's defaults."""
    spec = {**_POD, **(pod.get("spec") or {})}
    for name in _CONTAINER_LISTS:
        spec = _changed(spec, name, lambda containers: [_complete_container(container) for container in containers])
    return {**pod, "spec": spec}


def _complete_container(container: Object) -> Object:
    image = str(container.get("image", ""))
    name, _, tag = image.rpartition("/")[2].partition(":")
    latest = "@" not in name and tag in ("", "latest")
    container = {**_CONTAINER, "imagePullPolicy": "Always" if latest else "IfNotPresent", **container}
    container = _changed(container, "ports", lambda ports: [{"protocol": "TCP", **port} for port in ports])
    container = _changed(container, "env", lambda entries: [_complete_env(entry) for entry in entries])
    container = _changed(container, "resources", _complete_resources)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        container = _changed(container, probe, lambda value: _complete_handler({**_PROBE, **value}))
    completed = {name: _complete_handler(hook) for name, hook in (container.get("lifecycle") or {}).items()}
    return _changed(container, "lifecycle", lambda _hooks: completed)


def _complete_handler(handler: Object) -> Object:
    return _changed(handler, "httpGet", lambda get: {"path": "/", "scheme": "HTTP", **get})


def _complete_env(entry: Object) -> Object:
    reference = dig(entry, "valueFrom", "fieldRef")
    if not isinstance(reference, dict):
        return entry
    return {**entry, "valueFrom": {"fieldRef": {"apiVersion": "v1", **reference}}}


def _complete_resources(resources: Object) -> Object:
    limits = resources.get("limits")
    return {**resources, "requests": {**limits, **(resources.get("requests") or {})}} if limits else resources


def create_pod(pod: Object) -> Object:
    """Return a pod with its initial status."""
    return {**pod, "status": {"phase": "Pending", "qosClass": qos_class(pod)}}


def qos_class(pod: Object) -> str:
    """Return the pod's quality-of-service class, by cpu and memory of its (init) containers."""
    containers = [c for name in ("containers", "initContainers") for c in dig(pod, "spec", name) or []]
    amounts = [
        (dig(container, "resources", "requests", what), dig(container, "resources", "limits", what))
        for container in containers
        for what in ("cpu", "memory")
    ]
    if all(request is None and limit is None for request, limit in amounts):
        return "BestEffort"
    return "Guaranteed" if all(limit is not None and request == limit for request, limit in amounts) else "Burstable"


def pod_rules(pod: Object, old: Object | None) -> list[Cause]:
    """Return the faults of a pod: on create missing fields, on update all changes except the few allowed ones."""
    spec: Object = pod["spec"]
    if old is None:
        return _new_pod_rules(spec)
    before: Object = old["spec"]
    if spec == before:
        return []
    for field in _CONTAINER_LISTS[:2]:
        if [c.get("name") for c in spec.get(field) or []] != [c.get("name") for c in before.get(field) or []]:
            return [_forbidden(f"spec.{field}", "pod updates may not add or remove containers")]
    added = spec.get("tolerations") or []
    if any(toleration not in added for toleration in before.get("tolerations") or []):
        return [_forbidden("spec.tolerations", "existing toleration can not be modified")]
    if _fixed_part(spec) != _fixed_part(before):
        text = (
            "pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously "
            "negative)"
        )
        return [_forbidden("spec", text)]
    return []


def _forbidden(field: str, why: str) -> Cause:
    return Cause(field, f"Forbidden: {why}")


def _new_pod_rules(spec: Object) -> list[Cause]:
    containers = spec.get("containers")
    if not containers:
        return [Cause("spec.containers", "Required value")]
    causes, seen = [], set()
    for field in _CONTAINER_LISTS[:2]:
        for at, container in enumerate(spec.get(field) or []):
            name, path = container.get("name"), f"spec.{field}[{at}].name"
            if not name:
                causes.append(Cause(path, "Required value"))
            elif name in seen:
                causes.append(Cause(path, f'Duplicate value: "{name}"'))
            seen.add(name)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        text = f'Unsupported value: "{spec.get("restartPolicy")}": supported values: "Always", "OnFailure", "Never"'
        causes.append(Cause("spec.restartPolicy", text))
    return causes


def _fixed_part(spec: Object) -> Object:
    free = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "ephemeralContainers")
    fixed = {name: value for name, value in spec.items() if name not in free}
    if fixed.get("terminationGracePeriodSeconds", 0) < 0:
        fixed["terminationGracePeriodSeconds"] = 1
    for field in _CONTAINER_LISTS[:2]:
        fixed[field] = [{**container, "image": ""} for container in fixed.get(field) or []]
    return fixed


def complete_secret(secret: Object) -> Object:
    """Return a secret with its type, and with `stringData` encoded into `data`."""
    clear = secret.get("stringData")
    secret = {"type": "Opaque", **{name: value for name, value in secret.items() if name != "stringData"}}
    if clear:
        encoded = {name: base64.b64encode(str(text).encode()).decode() for name, text in clear.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}
    return secret


def complete_namespace(namespace: Object) -> Object:
    """Return a namespace with the label of its name."""
    meta = metadata(namespace)
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta.get("name", "")}
    return {"spec": {"finalizers": ["kubernetes"]}, **namespace, "metadata": {**meta, "labels": labels}}


def create_namespace(namespace: Object) -> Object:
    """Return a namespace with its initial status."""
    return {**namespace, "status": {"phase": "Active"}}


def immutable_data(obj: Object, old: Object | None) -> list[Cause]:
    """Return the faults of a change to an immutable Secret or ConfigMap."""
    if old is None or not old.get("immutable"):
        return []
    changed = [field for field in ("data", "binaryData", "immutable") if obj.get(field) != old.get(field)]
    return [_forbidden(field, "field is immutable when `immutable` is set") for field in changed]


def lease_rules(lease: Object, _old: Object | None) -> list[Cause]:
    """Return the numbers of a lease that are out of range: `ValidateLeaseSpec` in pkg/apis/coordination/validation."""
    spec, bounds = lease.get("spec") or {}, {"leaseDurationSeconds": 1, "leaseTransitions": 0}
    texts = ("must be greater than or equal to 0", "must be greater than 0")
    return [
        Cause(f"spec.{field}", f"Invalid value: {spec[field]}: {texts[least]}")
        for field, least in bounds.items()
        if spec.get(field) is not None and spec[field] < least
    ]


def revision_rules(revision: Object, old: Object | None) -> list[Cause]:
    """Return the faults of a ControllerRevision: `ValidateControllerRevision` in pkg/apis/apps/validation."""
    if not isinstance(revision.get("data"), dict):
        return [Cause("data", "Required value: data is mandatory")]
    if old is not None and revision["data"] != old.get("data"):
        return [Cause("data", "Invalid value: field is immutable")]
    return []
