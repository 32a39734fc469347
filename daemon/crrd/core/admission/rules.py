"""What a ContainerRecreateRequest has to be like to be let in, and what admission fills in; pods' readiness gates.

`review_create` judges new requests, `update` completes changed ones; what must not change is said by the CRD and by the
policy crrd-admission. Pure: the pod is given, None where there is none. Nothing here raises for what somebody else
wrote. Fetching the pod, AdmissionReviews and TLS are `manager.webhook`'s work.

All denials carry 422 (Invalid). A 404 or a 409 would be taken for the API server's own word on the request that is
being written: that its kind is not installed, that its name is taken.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crrd.core.admission.patch import Operation, json_patch
from crrd.core.api.pod import Pod, PodContainer, has_gate, parse_pod
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

NAMING_LABELS = (LABEL_POD_UID, LABEL_NODE_NAME)
"""The labels that say which pod a request is for, and which node's daemon serves it."""
WHILE_SERVED = (ANNOTATION_UNREADY_ACQUIRED, ANNOTATION_PINNED)
"""What manager and node write on a request; on a new one it can only be left over from the one it was copied from."""
SET_BY_ADMISSION = tuple(
    field.name for field in FIELDS.values() if field.parent == "spec.containers[]" and field.set_by is not SetBy.USER
)
"""In an entry of spec.containers, what OpenKruise's admission sets included."""
_COMPLETED = ("metadata.labels", "metadata.annotations", "spec.containers")
"""Where a new request shows that admission has completed it."""
_LONGEST_LABEL = 63


class DenialReason(StrEnum):
    """Why a write is not let in, in one word: what denials are counted by."""

    INVALID_SPEC = "invalid_spec"
    SET_BY_ADMISSION = "set_by_admission"  # The user gave what admission sets
    POD_NOT_FOUND = "pod_not_found"
    POD_NOT_ACTIVE = "pod_not_active"
    POD_NOT_SCHEDULED = "pod_not_scheduled"
    NODE_NAME_TOO_LONG = "node_name_too_long"
    CONTAINER_NOT_FOUND = "container_not_found"
    CONTAINER_KIND = "container_kind"  # An ordinary init container, or an ephemeral one
    CONTAINER_NEVER_RESTARTED = "container_never_restarted"
    CONTAINER_NOT_STARTED = "container_not_started"
    RESTARTS_POD = "restarts_whole_pod"
    """Its restartPolicyRules may have kubelet restart the whole pod, and the request does not allow that."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The object may be written, as it is here."""

    obj: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Denied:
    """The object may not be written."""

    message: str  # One sentence that names the field and what would be right
    reason: DenialReason
    code: int = 422  # The HTTP status that the user gets


def wanted_pod(obj: Mapping[str, Any]) -> str | Denied:
    """The name of the pod that the request is about, which is needed to judge it; Denied where it is wrong anyhow."""
    spec = dict(mapping(mapping(obj).get("spec")))
    most, count = FIELDS["spec.containers[]"].high, len(items(spec.get("containers")))
    if most is not None and count > most:  # before anything walks them
        return Denied(f"spec.containers must have at most {most} entries, not {count}", DenialReason.INVALID_SPEC)
    if isinstance(spec.get("containers"), list | tuple):
        spec["containers"] = [_bare(entry) for entry in spec["containers"]]
    error = _spec_error(spec)
    return Denied(error, DenialReason.INVALID_SPEC) if error else text(spec.get("podName"))


def container_names(obj: Mapping[str, Any]) -> list[str]:
    """The containers that a request names."""
    return [text(entry.get("name")) for _, entry in _containers(obj)]


def review_create(
    obj: Mapping[str, Any], pod: Mapping[str, Any] | None, user: str, kubelet_minor: int | None = None
) -> Admitted | Denied:
    """Check and complete what a user wants to create.

    Labels and annotations that are admission's to set are set whatever the user gave; what only manager and node
    write is taken away. Fields of the spec that are admission's to set are refused, unless all of them are as admission
    would set them now: the API server asks again about its own work when another webhook has changed something since.

    Args:
        obj: the request as the user wrote it.
        pod: the pod that `wanted_pod` named, from the request's namespace.
        user: name of the user who asks.
        kubelet_minor: of the version of the kubelet on the pod's node; None where nobody knows it.
    """
    if denied := _unfit(obj, pod, kubelet_minor):
        return denied
    completed = _completed(obj, mapping(pod), user)
    given = ((i, key) for i, entry in _containers(obj) for key in SET_BY_ADMISSION if entry.get(key) is not None)
    index, key = next(given, (0, ""))
    if key and any(value_at(obj, path) != value_at(completed, path) for path in _COMPLETED):
        sentence = f"spec.containers[{index}].{key} must be left out: admission takes it from the pod"
        if any(key in of_meta(obj, "labels") for key in NAMING_LABELS):
            sentence += " (if you left it out, another webhook has changed the request)"
        return Denied(sentence, DenialReason.SET_BY_ADMISSION)
    error = _spec_error(mapping(completed["spec"]))
    return Denied(error, DenialReason.INVALID_SPEC) if error else Admitted(completed)


def mutate_pod(pod: Mapping[str, Any]) -> list[Operation]:
    """The patch that gives a new pod the readiness gate KruisePodReady; empty where it has it or cannot use it.

    A pod whose shape is wrong is left to the API server's own checks.
    """
    spec, gates = mapping(pod).get("spec"), mapping(mapping(pod).get("spec")).get("readinessGates")
    mirror = ANNOTATION_MIRROR in mapping(mapping(mapping(pod).get("metadata")).get("annotations"))
    if mirror or not isinstance(spec, Mapping) or not isinstance(gates, list | tuple | None):
        return []
    if has_gate(pod):
        return []
    gate = {"conditionType": READINESS_GATE}
    return json_patch(spec, {**spec, "readinessGates": [*items(gates), gate]}, "/spec")


def of_meta(obj: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The labels or annotations of an object."""
    return mapping(mapping(mapping(obj).get("metadata")).get(field))


def _spec_error(spec: Mapping[str, Any]) -> str:
    """What is wrong with a spec by itself: the same rules by which the node reads it."""
    identity = {"namespace": "any", "name": "any", "uid": "any"}
    return parse_request({"metadata": identity, "spec": spec}).error


def _bare(entry: object) -> object:
    """An entry of spec.containers without what admission sets."""
    if not isinstance(entry, Mapping):
        return entry
    return {key: value for key, value in entry.items() if key not in SET_BY_ADMISSION}


def _containers(obj: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return list(enumerate(map(mapping, items(mapping(obj.get("spec")).get("containers")))))


def _unfit(obj: Mapping[str, Any], pod: Mapping[str, Any] | None, kubelet_minor: int | None) -> Denied | None:
    """Why the pod, as it is, does not allow the request; the request by itself is judged first."""
    name = wanted_pod(obj)
    if isinstance(name, Denied):
        return name
    return (
        _unfit_pod(name, pod)
        or _too_long(obj, mapping(pod))
        or next(_unfit_containers(obj, parse_pod(mapping(pod)), kubelet_minor), None)
    )


def _too_long(obj: Mapping[str, Any], pod: Mapping[str, Any]) -> Denied | None:
    """A duration beyond reason; the pod's own grace period, which admission fills in, may be what it is."""
    for field in FIELDS.values():
        if field.longest is None:
            continue
        longest, duration = field.longest
        seconds = Reader().integer(value_at(obj, field.path), "") or 0
        if seconds > longest and not (field.of_pod and seconds == _of_pod(field, pod)):
            sentence = f"{field.path} must be at most {longest} ({duration}), not {seconds}"
            return Denied(sentence, DenialReason.INVALID_SPEC)
    return None


def _of_pod(field: Field, pod: Mapping[str, Any]) -> int | None:
    """The number of the same name in the pod's spec."""
    return Reader().integer(mapping(pod.get("spec")).get(field.name), "")


def _unfit_pod(name: str, pod: Mapping[str, Any] | None) -> Denied | None:
    if pod is None:
        sentence = f"spec.podName must name a pod in the request's namespace: pod {shown(name)} not found"
        return Denied(sentence, DenialReason.POD_NOT_FOUND)
    view = parse_pod(pod)
    if view.ended or view.deleting:
        why = "is being deleted" if view.deleting else f"has ended (phase {view.phase})"
        return Denied(f"spec.podName must name an active pod: pod {shown(name)} {why}", DenialReason.POD_NOT_ACTIVE)
    node = _node_name(pod)
    if not node:
        sentence = f"spec.podName must name a scheduled pod: pod {shown(name)} has not been scheduled yet"
        return Denied(sentence, DenialReason.POD_NOT_SCHEDULED)
    if len(node) > _LONGEST_LABEL:
        rule = "spec.podName must name a pod on a node whose name fits a label (at most 63 characters)"
        return Denied(f"{rule}, not on {shown(node)}", DenialReason.NODE_NAME_TOO_LONG)
    return None


def _unfit_containers(obj: Mapping[str, Any], pod: Pod, kubelet_minor: int | None) -> Iterator[Denied]:
    for index, entry in _containers(obj):
        name = text(entry.get("name"))
        known = pod.containers.get(name)
        if found := _unfit_container(name, known, pod, kubelet_minor):
            rule, reason = found
            yield Denied(f"spec.containers[{index}].name must name a container {rule}", reason)
        code = restart_all_code(known.restart_rules, kubelet_minor) if known is not None else None
        if code is not None and value_at(obj, "spec.strategy.allowPodRestart") is not True:
            why = say(Reason.RESTARTS_POD, code=code)
            sentence = f"spec.strategy.allowPodRestart must be true for container {shown(name)}: {why}"
            yield Denied(sentence, DenialReason.RESTARTS_POD)


def _unfit_container(
    name: str, known: PodContainer | None, pod: Pod, kubelet_minor: int | None
) -> tuple[str, DenialReason] | None:
    """How the rest of the sentence goes, and the reason; None for a container that is fit."""
    if known is None:
        return f"of pod {shown(pod.name)}: container {shown(name)} not found", DenialReason.CONTAINER_NOT_FOUND
    if not known.kind.recreatable:
        return f"or a native sidecar: {shown(name)} is an {known.kind}", DenialReason.CONTAINER_KIND
    if known.policy(kubelet_minor) is RestartPolicy.NEVER:
        rule = f"that kubelet restarts: the restartPolicy of {shown(name)} is Never"
        return rule, DenialReason.CONTAINER_NEVER_RESTARTED
    if not known.container_id:
        rule = f"that has started: {shown(name)} has no container ID yet, try later"
        return rule, DenialReason.CONTAINER_NOT_STARTED
    return None


def _node_name(pod: Mapping[str, Any]) -> str:
    return text(mapping(pod.get("spec")).get("nodeName"))


def _completed(obj: Mapping[str, Any], pod: Mapping[str, Any], user: str) -> dict[str, Any]:
    """The request with all that admission sets, whatever stood there before."""
    meta = mapping(obj.get("metadata"))
    labels = {
        LABEL_POD_UID: text(mapping(pod.get("metadata")).get("uid")),
        LABEL_NODE_NAME: _node_name(pod),
        LABEL_ACTIVE: "true",
    }
    annotations = {key: value for key, value in mapping(meta.get("annotations")).items() if key not in WHILE_SERVED}
    containers = [
        {**mapping(_bare(entry)), "statusContext": _status_context(text(entry.get("name")), pod)}
        for _, entry in _containers(obj)
    ]
    return with_values(
        obj,
        {
            "metadata.labels": {**mapping(meta.get("labels")), **labels},
            "metadata.annotations": {**annotations, ANNOTATION_REQUESTED_BY: user},
            "spec.containers": containers,
            **_defaults(obj, pod),
        },
    )


def _defaults(obj: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, object]:
    """The defaults of the fields that the user left out, by path."""
    left_out = (field for field in FIELDS.values() if field.filled_in and field.absent(value_at(obj, field.path)))
    defaults = ((field.path, _of_pod(field, pod) if field.of_pod else field.default) for field in left_out)
    return {path: default for path, default in defaults if default is not None}


def _status_context(name: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    """The container's instance as the pod's status has it now.

    Nothing else of the container goes into the request, its preStop hook least of all: hook, ports and environment
    may hold secrets, the response goes to the client, and the node takes them from what kubelet recorded anyway.
    """
    status = mapping(pod.get("status"))
    entries = [*items(status.get("containerStatuses")), *items(status.get("initContainerStatuses"))]
    current = next((entry for entry in map(mapping, entries) if entry.get("name") == name), {})
    return {
        "containerID": text(current.get("containerID")),
        "restartCount": Reader().integer(current.get("restartCount"), "", high=INT32_MAX) or 0,
    }
