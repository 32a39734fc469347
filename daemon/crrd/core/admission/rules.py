"""The rules for admitting ContainerRecreateRequests, the fields that admission sets, and the readiness gates of pods.

`review_create` checks new requests, and `update` completes changed ones. The CRD and the policy crrd-admission forbid
changes of immutable fields. Invalid input never raises an exception here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import Pod, has_gate, parse_pod
from crrd.core.api.reasons import Reason, say
from crrd.core.api.schema import FIELDS, Field, SetBy
from crrd.core.api.types import (
    ANNOTATION_PINNED,
    ANNOTATION_REQUESTED_BY,
    ANNOTATION_UNREADY_ACQUIRED,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    READINESS_GATE,
)
from crrd.core.api.v1alpha1 import parse_request
from crrd.kubelet.labels import ANNOTATION_MIRROR
from crrd.kubelet.restart_rules import RestartPolicy, restart_all_code
from crrd.lib.jsonfields import INT32_MAX, Reader, items, mapping, shown, text, value_at, with_values

LABELS_OF_POD_AND_NODE = (LABEL_POD_UID, LABEL_NODE_NAME)
"""The labels with the UID of the request's pod, and with the node whose daemon serves the request."""
ANNOTATIONS_OF_DAEMONS = (ANNOTATION_UNREADY_ACQUIRED, ANNOTATION_PINNED)
"""Annotations that manager and node write on a request. A new request has them only if it is a copy of another one."""
SET_BY_ADMISSION = tuple(
    field.name for field in FIELDS.values() if field.parent == "spec.containers[]" and field.set_by is not SetBy.USER
)
"""Fields of an entry of spec.containers that admission sets, those of OpenKruise's admission included."""
Operation = dict[str, Any]  # Of a JSON patch (RFC 6902)
_COMPLETED = ("metadata.labels", "metadata.annotations", "spec.containers")
"""The fields that show whether admission has already completed a new request."""
_LONGEST_LABEL = 63


class DenialReason(StrEnum):
    """Why a write is denied, as a label of the metric of denials."""

    INVALID_SPEC = "invalid_spec"
    SET_BY_ADMISSION = "set_by_admission"  # The user set a field that only admission may set
    POD_NOT_FOUND = "pod_not_found"
    POD_NOT_ACTIVE = "pod_not_active"
    POD_NOT_SCHEDULED = "pod_not_scheduled"
    NODE_NAME_TOO_LONG = "node_name_too_long"
    CONTAINER_NOT_FOUND = "container_not_found"
    CONTAINER_KIND = "container_kind"  # An ordinary init container, or an ephemeral one
    CONTAINER_NEVER_RESTARTED = "container_never_restarted"
    CONTAINER_NOT_STARTED = "container_not_started"
    RESTARTS_POD = "restarts_whole_pod"
    """The container's restartPolicyRules may make kubelet restart the whole pod; the request does not allow that."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The write is denied."""

    message: str  # One sentence that names the field and the valid values
    reason: str  # One of DenialReason, or of the webhook's own reasons
    code: int = 422
    """The HTTP status for the user. The rules use 422 (Invalid), because clients would take a 404 or 409 for the API
    server's own answer about the request: that its kind is not installed, or its name is taken."""
    retry_after: int | None = None  # Seconds after which the same write may succeed; None if it never will


def pod_name_or_denied(obj: Mapping[str, Any]) -> str | Denied:
    """Return the name of the request's pod, which `review_create` needs; Denied if the spec itself is invalid."""
    spec = dict(mapping(mapping(obj).get("spec")))
    most, count = FIELDS["spec.containers[]"].high, len(items(spec.get("containers")))
    if most is not None and count > most:  # check this first, so that no code iterates over a huge list
        return Denied(f"spec.containers must have at most {most} entries, not {count}", DenialReason.INVALID_SPEC)
    if isinstance(spec.get("containers"), list | tuple):
        spec["containers"] = [_without_admission_fields(entry) for entry in spec["containers"]]
    error = _spec_error(spec)
    return Denied(error, DenialReason.INVALID_SPEC) if error else text(spec.get("podName"))


def container_names(obj: Mapping[str, Any]) -> list[str]:
    """Return the names of the request's containers."""
    return [text(mapping(entry).get("name")) for entry in items(value_at(obj, "spec.containers"))]


def review_create(
    obj: Mapping[str, Any], pod: Mapping[str, Any] | None, user: str, kubelet_minor: int | None = None
) -> dict[str, Any] | Denied:
    """Check and complete a new request. Return the request to store, or Denied.

    Admission overwrites its own labels and annotations, and removes those that only manager and node write. A request
    with spec fields that only admission may set is denied, unless all of them are as admission would set them now: if
    another webhook changes the request, the API server calls this one again with its own result.

    Args:
        obj: the request as the user wrote it.
        pod: the pod with the name from `pod_name_or_denied`, in the request's namespace; None if it does not exist.
        user: name of the user who creates the request.
        kubelet_minor: minor version of the kubelet on the pod's node; None if unknown.
    """
    name = pod_name_or_denied(obj)
    if isinstance(name, Denied):
        return name
    view = parse_pod(mapping(pod))
    if (
        denied := _unfit_pod(name, pod)
        or _deny_long_durations(obj, mapping(pod))
        or _unrecreatable_container(obj, view, kubelet_minor)
    ):
        return denied
    completed = _completed(obj, mapping(pod), user)
    given = ((i, key) for i, entry in _containers(obj) for key in SET_BY_ADMISSION if entry.get(key) is not None)
    index, key = next(given, (0, ""))
    if key and any(value_at(obj, path) != value_at(completed, path) for path in _COMPLETED):
        sentence = f"spec.containers[{index}].{key} must be left out: admission takes it from the pod"
        if any(key in of_meta(obj, "labels") for key in LABELS_OF_POD_AND_NODE):
            sentence += " (if you left it out, another webhook has changed the request)"
        return Denied(sentence, DenialReason.SET_BY_ADMISSION)
    error = _spec_error(mapping(completed["spec"]))
    return Denied(error, DenialReason.INVALID_SPEC) if error else completed


def mutate_pod(pod: Mapping[str, Any]) -> list[Operation]:
    """Return the patch that adds the readiness gate KruisePodReady to a new pod; empty if not needed or not possible.

    Malformed pods get no patch, because the API server rejects them itself.
    """
    spec, gates = value_at(pod, "spec"), value_at(pod, "spec.readinessGates")
    mirror = ANNOTATION_MIRROR in of_meta(pod, "annotations")
    if mirror or not isinstance(spec, Mapping) or not isinstance(gates, list | tuple | None) or has_gate(pod):
        return []
    gate = {"conditionType": READINESS_GATE}
    return json_patch(spec, {**spec, "readinessGates": [*items(gates), gate]}, "/spec")


def of_meta(obj: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the labels or annotations of an object."""
    return mapping(value_at(obj, f"metadata.{field}"))


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[Operation]:
    """Return the operations that change the object `before` at `path` into `after`; none if they are equal.

    Uses only `add`, `replace` and `remove`. Replaces whole lists, because the lists that admission changes are short.
    """
    operations: list[Operation] = []
    for key in [*(key for key in before if key not in after), *after]:
        where = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"  # a JSON pointer (RFC 6901)
        if key not in after:
            operations.append({"op": "remove", "path": where})
        elif key not in before:
            operations.append({"op": "add", "path": where, "value": after[key]})
        elif isinstance(after[key], Mapping) and isinstance(before[key], Mapping):
            operations += json_patch(before[key], after[key], where)
        elif after[key] != before[key]:
            operations.append({"op": "replace", "path": where, "value": after[key]})
    return operations


def _spec_error(spec: Mapping[str, Any]) -> str:
    """Return what is wrong with the spec itself, by the same rules as on the node; "" for nothing."""
    identity = {"namespace": "any", "name": "any", "uid": "any"}
    return parse_request({"metadata": identity, "spec": spec}).error


def _without_admission_fields(entry: object) -> object:
    """Return an entry of spec.containers without the fields that admission sets."""
    if not isinstance(entry, Mapping):
        return entry
    return {key: value for key, value in entry.items() if key not in SET_BY_ADMISSION}


def _containers(obj: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return list(enumerate(map(mapping, items(mapping(obj.get("spec")).get("containers")))))


def _deny_long_durations(obj: Mapping[str, Any], pod: Mapping[str, Any]) -> Denied | None:
    """Deny a duration above its limit. A value copied from the pod (its grace period) has no limit."""
    for field in FIELDS.values():
        if field.longest is None:
            continue
        longest, duration = field.longest
        seconds = Reader().integer(value_at(obj, field.path), "") or 0
        if seconds > longest and not (field.of_pod and seconds == _value_in_pod(field, pod)):
            sentence = f"{field.path} must be at most {longest} ({duration}), not {seconds}"
            return Denied(sentence, DenialReason.INVALID_SPEC)
    return None


def _value_in_pod(field: Field, pod: Mapping[str, Any]) -> int | None:
    """Return the number with the field's name in the pod's spec, None if missing."""
    return Reader().integer(mapping(pod.get("spec")).get(field.name), "")


def _unfit_pod(name: str, pod: Mapping[str, Any] | None) -> Denied | None:
    view = parse_pod(mapping(pod))
    if pod is None:
        rule, reason = f"a pod in the request's namespace: pod {shown(name)} not found", DenialReason.POD_NOT_FOUND
    elif view.ended or view.deleting:
        why = "is being deleted" if view.deleting else f"has ended (phase {view.phase})"
        rule, reason = f"an active pod: pod {shown(name)} {why}", DenialReason.POD_NOT_ACTIVE
    elif not view.node_name:
        why = "has not been scheduled yet"
        rule, reason = f"a scheduled pod: pod {shown(name)} {why}", DenialReason.POD_NOT_SCHEDULED
    elif len(view.node_name) > _LONGEST_LABEL:
        rule = f"a pod on a node whose name fits a label (at most 63 characters), not on {shown(view.node_name)}"
        reason = DenialReason.NODE_NAME_TOO_LONG
    else:
        return None
    return Denied(f"spec.podName must name {rule}", reason)


def _unrecreatable_container(obj: Mapping[str, Any], pod: Pod, kubelet_minor: int | None) -> Denied | None:
    """Deny the first container of the request that cannot be recreated; None if all can be."""
    for index, entry in _containers(obj):
        name = text(entry.get("name"))
        container, known = shown(name), pod.containers.get(name)
        if known is None:
            rule = f"of pod {shown(pod.name)}: container {container} not found"
            reason = DenialReason.CONTAINER_NOT_FOUND
        elif not known.kind.recreatable:
            rule, reason = f"or a native sidecar: {container} is an {known.kind}", DenialReason.CONTAINER_KIND
        elif known.policy(kubelet_minor) is RestartPolicy.NEVER:
            rule = f"that kubelet restarts: the restartPolicy of {container} is Never"
            reason = DenialReason.CONTAINER_NEVER_RESTARTED
        elif not known.container_id:
            rule = f"that has started: {container} has no container ID yet, try later"
            reason = DenialReason.CONTAINER_NOT_STARTED
        else:
            code = restart_all_code(known.restart_rules, kubelet_minor)
            if code is None or value_at(obj, "spec.strategy.allowPodRestart") is True:
                continue
            why = say(Reason.RESTARTS_POD, code=code)
            sentence = f"spec.strategy.allowPodRestart must be true for container {container}: {why}"
            return Denied(sentence, DenialReason.RESTARTS_POD)
        return Denied(f"spec.containers[{index}].name must name a container {rule}", reason)
    return None


def _completed(obj: Mapping[str, Any], pod: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Return the request with all fields that admission sets, replacing earlier values."""
    naming = {LABEL_POD_UID: text(value_at(pod, "metadata.uid")), LABEL_NODE_NAME: text(value_at(pod, "spec.nodeName"))}
    annotations = {
        key: value for key, value in of_meta(obj, "annotations").items() if key not in ANNOTATIONS_OF_DAEMONS
    }
    left_out = (field for field in FIELDS.values() if field.filled_in and field.absent(value_at(obj, field.path)))
    defaults = ((field.path, _value_in_pod(field, pod) if field.of_pod else field.default) for field in left_out)
    return with_values(
        obj,
        {
            "metadata.labels": {**of_meta(obj, "labels"), **naming, LABEL_ACTIVE: "true"},
            "metadata.annotations": {**annotations, ANNOTATION_REQUESTED_BY: user},
            "spec.containers": [
                {
                    **mapping(_without_admission_fields(entry)),
                    "statusContext": _status_context(text(entry.get("name")), pod),
                }
                for _, entry in _containers(obj)
            ],
            **{path: default for path, default in defaults if default is not None},
        },
    )


def _status_context(name: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return container ID and restart count from the pod's present status.

    Nothing else of the container is copied into the request. Hook, ports and environment may contain secrets, and the
    client gets the response. The node reads the hook and the ports from what kubelet recorded on the container.
    """
    status = mapping(pod.get("status"))
    entries = [*items(status.get("containerStatuses")), *items(status.get("initContainerStatuses"))]
    current = next((entry for entry in map(mapping, entries) if entry.get("name") == name), {})
    return {
        "containerID": text(current.get("containerID")),
        "restartCount": Reader().integer(current.get("restartCount"), "", high=INT32_MAX) or 0,
    }
