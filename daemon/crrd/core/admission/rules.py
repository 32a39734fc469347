"""The rules for admitting ContainerRecreateRequests, the fields that admission sets, and the readiness gates of pods.

`review_create` checks new requests, and `update` completes changed ones. The CRD and the policy crrd-admission forbid
changes of immutable fields. Invalid input never raises an exception here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from crrd.core.admission.reload import containers_to_reload, unfit_for_reload
from crrd.core.api.fields import SetBy
from crrd.core.api.gate import has_gate
from crrd.core.api.pod import ContainerKind, Pod
from crrd.core.api.reasons import Reason
from crrd.core.api.schema import FIELDS
from crrd.core.api.types import (
    ANNOTATION_PINNED,
    ANNOTATION_REQUESTED_BY,
    ANNOTATION_UNREADY_ACQUIRED,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_NAME,
    LABEL_POD_UID,
    READINESS_GATE,
    UNANSWERED_SECONDS,
    Request,
    RequestedContainer,
)
from crrd.core.api.v1alpha1 import active_value, container_id_error, parse_request
from crrd.core.recreate.sandbox_view import unfit
from crrd.kubelet.labels import ANNOTATION_MIRROR
from crrd.kubelet.restart_rules import RestartPolicy, restart_all_code
from crrd.lib.jsonfields import items, mapping, mapping_at, number, shown, value_at, with_values
from crrd.lib.jsonpatch import Operation, json_patch

LABELS_OF_POD_AND_NODE = (LABEL_POD_UID, LABEL_NODE_NAME)
"""The labels with the UID of the request's pod, and with the node whose daemon serves the request."""
ANNOTATIONS_OF_DAEMONS = (ANNOTATION_UNREADY_ACQUIRED, ANNOTATION_PINNED)
"""Annotations that manager and node write on a request. A new request has them only if it is a copy of another one."""
SET_BY_ADMISSION = tuple(
    field.name for field in FIELDS.values() if field.parent == "spec.containers[]" and field.set_by is not SetBy.USER
)
"""Fields of an entry of spec.containers that admission sets, those of OpenKruise's admission included."""
_COMPLETED = ("metadata.labels", "metadata.annotations", "spec.containers")
"""The fields that show whether admission has already completed a new request."""
_LONGEST_LABEL = 63


_ALL_CONTAINERS = "spec.containers must be left out, or name all containers of pod {pod}: {names}"


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
    IMAGE = "image"  # The container cannot get the request's image, or has it already
    WHOLE_POD = "whole_pod"  # The pod cannot be restarted in place, or the request says something else in addition
    RELOAD = "reload"  # The pod does not declare it, or the request says something else in addition
    NEEDS_DAEMON = "needs_node_daemon"  # No node daemon serves the node, and nothing else can do it
    RESTARTS_POD = "restarts_whole_pod"
    """The request does not allow that kubelet restarts the whole pod (restartPolicyRules), or that the pod's owner
    replaces its group."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The write is denied."""

    message: str  # One sentence that names the field and the valid values
    reason: str  # One of DenialReason, or of the webhook's own reasons
    code: int = 422
    """The HTTP status for the user. The rules use 422 (Invalid), because clients would take a 404 or 409 for the API
    server's own answer about the request: that its kind is not installed, or its name is taken."""
    retry_after: int | None = None  # Seconds after which the same write may succeed; None if it never will


@dataclass(frozen=True, slots=True)
class Allowed:
    """The write is allowed."""

    patch: Sequence[Operation] = ()  # Of the object; empty if it stays as it is
    warnings: tuple[str, ...] = ()  # Shown to the user; kubectl may cut long ones


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A new request whose spec is valid, without the fields that admission sets."""

    written: Mapping[str, Any]  # As the user wrote it, in JSON, with those fields
    entries: list[dict[str, Any]]  # Of spec.containers
    parsed: Request  # Without its metadata


def read_new(obj: Mapping[str, Any]) -> NewRequest | Denied:
    """Parse a new request; Denied if the spec itself is invalid, by the same rules as on the node."""
    spec = dict(mapping(obj.get("spec")))
    most, count = FIELDS["spec.containers[]"].high, len(items(spec.get("containers")))
    if most is not None and count > most:  # check this first, so that no code iterates over a huge list
        return Denied(f"spec.containers must have at most {most} entries, not {count}", DenialReason.INVALID_SPEC)
    if isinstance(spec.get("containers"), list | tuple):
        spec["containers"] = [_of_user(entry) if isinstance(entry, Mapping) else entry for entry in spec["containers"]]
    identity = {"namespace": "any", "name": "any", "uid": "any"}
    parsed = parse_request({"metadata": identity, "spec": spec})
    if parsed.error:
        return Denied(parsed.error, DenialReason.INVALID_SPEC)
    return NewRequest(obj, spec.get("containers") or [], parsed)


def review_create(
    request: NewRequest, pod: Pod | None, user: str, kubelet_minor: int | None = None
) -> dict[str, Any] | Denied:
    """Check and complete a new request. Return the request to store, or Denied.

    Admission overwrites its own labels and annotations, and removes those that only manager and node write. A request
    with spec fields that only admission may set is denied, unless all of them are as admission would set them now: if
    another webhook changes the request, the API server calls this one again with its own result.

    Args:
        request: the request from `read_new`.
        pod: the pod with its podName, in the request's namespace; None if it does not exist.
        user: name of the user who creates the request.
        kubelet_minor: minor version of the kubelet on the pod's node; None if unknown.
    """
    if pod is None:
        sentence = f"a pod in the request's namespace: pod {shown(request.parsed.pod_name)} not found"
        return Denied(f"spec.podName must name {sentence}", DenialReason.POD_NOT_FOUND)
    request = _for_all_containers(request, pod)
    if denied := (
        _unfit_pod(pod)
        or _deny_long_durations(request.written, pod)
        or _unfit_for_restart_in_place(request.parsed, pod, kubelet_minor)
        or _unfit_for_reload(request.parsed, pod)
        or _unrecreatable_container(request.parsed, pod, kubelet_minor)
        or _unfit_for_image(request.parsed, pod, kubelet_minor)
    ):
        return denied
    completed = _completed(request, pod, user)
    if any(value_at(request.written, path) != value_at(completed, path) for path in _COMPLETED):
        return _set_by_user(request.written) or completed
    return completed


def without_daemon(node: str) -> Denied:
    """Deny a request for a pod on a node that has no ready node daemon."""
    sentence = f"spec.podName must name a pod on a node with a ready node daemon: node {shown(node)} has none now"
    return Denied(sentence, DenialReason.NEEDS_DAEMON)


def warn_of_no_daemon(node: str) -> str:
    """Return the warning about an admitted request for a pod on such a node."""
    return f"no node daemon is ready on node {node}: the request fails if none answers within {UNANSWERED_SECONDS}s"


def mutate_pod(pod: Mapping[str, Any]) -> list[Operation]:
    """Return the patch that adds the readiness gate KruisePodReady to a new pod; empty if not needed or not possible.

    Malformed pods get no patch, because the API server rejects them itself.
    """
    spec, gates = value_at(pod, "spec"), value_at(pod, "spec.readinessGates")
    mirror = ANNOTATION_MIRROR in mapping_at(pod, "metadata.annotations")
    if mirror or not isinstance(spec, Mapping) or not isinstance(gates, list | tuple | None) or has_gate(pod):
        return []
    gate = {"conditionType": READINESS_GATE}
    return json_patch(spec, {**spec, "readinessGates": [*items(gates), gate]}, "/spec")


def _of_user(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of spec.containers without the fields that admission sets."""
    return {key: value for key, value in entry.items() if key not in SET_BY_ADMISSION}


def _set_by_user(written: Mapping[str, Any]) -> Denied | None:
    """Deny the first field of a container that only admission may set; None if the user has set none."""
    for index, entry in enumerate(items(value_at(written, "spec.containers"))):
        if key := next((key for key in SET_BY_ADMISSION if entry.get(key) is not None), ""):
            sentence = f"spec.containers[{index}].{key} must be left out: admission takes it from the pod"
            if any(key in mapping_at(written, "metadata.labels") for key in LABELS_OF_POD_AND_NODE):
                sentence += " (if you left it out, another webhook has changed the request)"
            return Denied(sentence, DenialReason.SET_BY_ADMISSION)
    return None


def _deny_long_durations(written: Mapping[str, Any], pod: Pod) -> Denied | None:
    """Deny a duration above its limit. A value copied from the pod (its grace period) has no limit."""
    for field in FIELDS.values():
        if field.longest is None:
            continue
        longest, duration = field.longest
        seconds = number(value_at(written, field.path))
        if seconds > longest and not (field.of_pod and seconds == pod.grace_seconds):
            sentence = f"{field.path} must be at most {longest} ({duration}), not {seconds}"
            return Denied(sentence, DenialReason.INVALID_SPEC)
    return None


def _unfit_pod(pod: Pod) -> Denied | None:
    if pod.ended or pod.deleting:
        why = "is being deleted" if pod.deleting else f"has ended (phase {pod.phase})"
        rule, reason = f"an active pod: pod {shown(pod.name)} {why}", DenialReason.POD_NOT_ACTIVE
    elif not pod.node_name:
        why = "has not been scheduled yet"
        rule, reason = f"a scheduled pod: pod {shown(pod.name)} {why}", DenialReason.POD_NOT_SCHEDULED
    elif len(pod.node_name) > _LONGEST_LABEL:
        rule = f"a pod on a node whose name fits a label (at most 63 characters), not on {shown(pod.node_name)}"
        reason = DenialReason.NODE_NAME_TOO_LONG
    else:
        return None
    return Denied(f"spec.podName must name {rule}", reason)


def _unrecreatable_container(request: Request, pod: Pod, kubelet_minor: int | None) -> Denied | None:
    """Deny the first container of the request that cannot be recreated; None if all can be."""
    if request.reloads:
        return None
    for index, each in enumerate(request.containers):
        container, known = shown(each.name), pod.containers.get(each.name)
        if known is None:
            rule = f"of pod {shown(pod.name)}: container {container} not found"
            reason = DenialReason.CONTAINER_NOT_FOUND
        elif not (known.kind.recreatable or (request.whole_pod and each.image and known.kind is ContainerKind.INIT)):
            rule, reason = f"or a native sidecar: {container} is an {known.kind}", DenialReason.CONTAINER_KIND
        elif known.policy(kubelet_minor) is RestartPolicy.NEVER:
            rule = f"that kubelet restarts: the restartPolicy of {container} is Never"
            reason = DenialReason.CONTAINER_NEVER_RESTARTED
        elif not known.container_id and not request.for_image:
            rule = f"that has started: {container} has no container ID yet, try later"
            reason = DenialReason.CONTAINER_NOT_STARTED
        elif known.container_id and (error := container_id_error(known.container_id)):
            return Denied(f"spec.containers[{index}].statusContext.containerID {error}", DenialReason.INVALID_SPEC)
        else:
            code = restart_all_code(known.restart_rules, kubelet_minor)
            if (code is None and not pod.group) or request.strategy.allow_pod_restart:
                continue
            replaced = f"after its restart, its {pod.group} may replace all pods of the group"
            why = replaced if code is None else Reason.RESTARTS_POD.say(code=code)
            sentence = f"spec.strategy.allowPodRestart must be true for container {container}: {why}"
            return Denied(sentence, DenialReason.RESTARTS_POD)
        return Denied(f"spec.containers[{index}].name must name a container {rule}", reason)
    return None


def _for_all_containers(request: NewRequest, pod: Pod) -> NewRequest:
    """Return a request for a whole pod or a reload with its containers, if it names none but one that gets an image."""
    given, reloads = request.parsed.containers, request.parsed.reloads
    if not (request.parsed.whole_pod or reloads) or not all(each.image for each in given):
        return request
    wanted = containers_to_reload(request.parsed, pod) if reloads else tuple(pod.recreatable)
    names = [name for name in wanted if name not in {each.name for each in given}]
    parsed = replace(request.parsed, containers=(*given, *map(RequestedContainer, names)))
    return replace(request, entries=[*request.entries, *({"name": name} for name in names)], parsed=parsed)


def _unfit_for_restart_in_place(request: Request, pod: Pod, kubelet_minor: int | None) -> Denied | None:
    """Deny the restart of a whole pod that would not come back, or a field that has no effect on it."""
    strategy = request.strategy
    if not request.whole_pod:
        return None
    if running := next((each.name for each in request.containers if each.image and each.name in pod.recreatable), ""):
        rule = "is no init container, and gets its image while the pod runs"
        sentence = f"spec.wholePod must be false: {shown(running)} {rule}"
    elif {each.name for each in request.containers if not each.image} != set(pod.recreatable):
        sentence = _ALL_CONTAINERS.format(pod=shown(pod.name), names=", ".join(pod.recreatable))
    elif strategy.ordered or strategy.grace_seconds not in (None, pod.grace_seconds):
        field = "orderedRecreate" if strategy.ordered else "terminationGracePeriodSeconds"
        sentence = f"spec.strategy.{field} must be left out: kubelet stops a whole pod by its own rules"
    elif why := unfit(pod, kubelet_minor):
        sentence = f"spec.wholePod must be false: {why.text}"
    else:
        return None
    return Denied(sentence, DenialReason.WHOLE_POD)


def _unfit_for_reload(request: Request, pod: Pod) -> Denied | None:
    """Deny a reload that the pod does not declare, or a field that has no effect on it."""
    sentence = unfit_for_reload(request, pod)
    return Denied(sentence, DenialReason.RELOAD) if sentence else None


def _unfit_for_image(request: Request, pod: Pod, kubelet_minor: int | None) -> Denied | None:
    """Deny an image that the container cannot get in this pod. Kubelet stops the container then, by the pod's rules."""
    strategy = request.strategy
    index, container = next(((i, each) for i, each in enumerate(request.containers) if each.image), (0, None))
    if container is None:
        return None
    known = pod.containers[container.name]
    if strategy.force or strategy.grace_seconds not in (None, pod.grace_seconds):
        field = "forceRecreate" if strategy.force else "terminationGracePeriodSeconds"
        rule = f"strategy.{field} must be left out: kubelet stops the container for its new image"
    elif pod.static_uid:
        rule = f"containers[{index}].image must be left out: pod {shown(pod.name)} is a static pod"
    elif known.policy(kubelet_minor) is not RestartPolicy.ALWAYS and not request.whole_pod:
        policy = f"the restartPolicy of {shown(container.name)} is {known.policy(kubelet_minor)}"
        why = "if the image cannot be started, kubelet does not try again"
        rule = f"containers[{index}].image must be left out: {policy}, and {why}"
    elif known.has_image(container.image) and not request.whole_pod:
        named = f", which is named {shown(known.image)} there" if known.image != container.image else ""
        rule = f"containers[{index}].image must be another image than that of {shown(container.name)}{named}"
    else:
        return None
    return Denied(f"spec.{rule}", DenialReason.IMAGE)


def _completed(request: NewRequest, pod: Pod, user: str) -> dict[str, Any]:
    """Return the request with all fields that admission sets, replacing earlier values.

    Of a container, only its ID and restart count are copied into the request. Hook, ports and environment may contain
    secrets, and the client gets the response. The node reads hook and ports from kubelet's record of the container.
    """
    written = request.written
    naming = {
        **({LABEL_POD_NAME: pod.name} if len(pod.name) <= _LONGEST_LABEL else {}),
        LABEL_POD_UID: pod.uid,
        LABEL_NODE_NAME: pod.node_name,
        LABEL_ACTIVE: active_value(
            request.parsed.containers, whole_pod=request.parsed.whole_pod, reloads=request.parsed.reloads
        ),
    }
    labels = {key: value for key, value in mapping_at(written, "metadata.labels").items() if key != LABEL_POD_NAME}
    annotations = mapping_at(written, "metadata.annotations").items()
    left_out = [field for field in FIELDS.values() if field.filled_in and field.absent(value_at(written, field.path))]
    defaults = {field.path: pod.grace_seconds if field.of_pod else field.default for field in left_out}
    containers = []
    for entry in request.entries:
        container = pod.containers[entry["name"]]
        context = {"containerID": container.container_id, "restartCount": container.restart_count}
        containers.append({**entry, "statusContext": context} if container.container_id else entry)
    return with_values(
        written,
        {
            "metadata.labels": {**labels, **naming},
            "metadata.annotations": {
                **{key: value for key, value in annotations if key not in ANNOTATIONS_OF_DAEMONS},
                ANNOTATION_REQUESTED_BY: user,
            },
            "spec.containers": containers,
            **{path: default for path, default in defaults.items() if default is not None},
        },
    )
