"""Converts requests from JSON, and a request's status to JSON.

Nothing here raises for invalid input. An invalid request becomes a `Request` with `error` set. It keeps
the names of its containers, so that `decide` can report each of them as Failed.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from crrd.core.api.fields import Section
from crrd.core.api.reasons import Reason
from crrd.core.api.schema import FIELDS
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    ACTIVE,
    ACTIVE_IMAGE,
    ACTIVE_POD,
    ACTIVE_RELOAD,
    ANNOTATION_ABORTED,
    ANNOTATION_PINNED,
    ANNOTATION_REFRESH,
    ANNOTATION_STOPPED,
    ANNOTATION_UNREADY_ACQUIRED,
    CONDITIONS_UNREADY,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    NO_PINS,
    NO_START_TIMES,
    WHOLE_POD,
    Action,
    FailurePolicy,
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StartTimes,
    StatePhase,
    Status,
    Strategy,
)
from crrd.lib.jsonfields import Reader, items, mapping, shown, text

_IDENTITY = ("namespace", "name", "uid")
_POD_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""No other name is a pod's (RFC 1123); a field selector would read some as more than a name."""
_CONTAINER_ID = re.compile(r"[^\s:/]+://\S+")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_CONTEXT = "spec.containers[].statusContext"
_REASONS = frozenset(Reason)
_section = partial(Section, FIELDS)


def parse_request(obj: Mapping[str, Any]) -> Request:
    """Parse one ContainerRecreateRequest. Errors are in `error`, and nothing is raised."""
    reader = Reader()
    whole = reader.mapping(obj, "the object")
    meta = reader.mapping(whole.get("metadata"), "metadata")
    spec = _section(reader, whole.get("spec"), "spec")
    labels = reader.mapping(meta.get("labels"), "metadata.labels")
    namespace, name, uid = (reader.text(meta.get(key), f"metadata.{key}", required=True) for key in _IDENTITY)
    pod_name = spec.text("podName")
    if pod_name and not _POD_NAME.fullmatch(pod_name):
        reader.reject("spec.podName", f"must be a pod's name, made of a-z, 0-9, '-' and '.', not {shown(pod_name)}")
    whole_pod = spec.flag("wholePod")
    reloads = mapping(spec.raw.get("strategy")).get("action") == Action.RELOAD
    containers = _containers(reader, spec, completed_later=whole_pod or reloads)
    strategy_section = spec.section("strategy")
    strategy = _strategy(strategy_section)
    _check_kind(reader, spec, strategy_section, containers, whole_pod=whole_pod)
    deadline, ttl = (spec.optional_integer(key) for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"))
    annotations = reader.mapping(meta.get("annotations"), "metadata.annotations")
    status_section = _section(reader, whole.get("status"), "status")
    status = _status(status_section)
    notes, names = Reader(), {WHOLE_POD} if whole_pod else {container.name for container in containers}
    pinned, start_times = _pinned(notes, annotations.get(ANNOTATION_PINNED), names)
    unready_acquired = _unready_acquired(notes, annotations, status_section.raw, strategy)
    return Request(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=reader.text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        created=reader.text(meta.get("creationTimestamp"), "metadata.creationTimestamp"),
        pod_name=pod_name,
        pod_uid=_label(reader, labels, LABEL_POD_UID),
        node_name=_label(reader, labels, LABEL_NODE_NAME),
        containers=containers,
        strategy=strategy,
        whole_pod=whole_pod,
        active=_label(reader, labels, LABEL_ACTIVE) == active_value(containers, whole_pod=whole_pod, reloads=reloads),
        deleting=meta.get("deletionTimestamp") is not None,
        pinned=pinned,
        start_times=start_times,
        unready_acquired=unready_acquired,
        refresh=text(annotations.get(ANNOTATION_REFRESH)),
        aborted=text(annotations.get(ANNOTATION_ABORTED)),
        stopped=ANNOTATION_STOPPED in annotations,
        deadline_seconds=deadline,
        ttl_seconds=ttl,
        finalizers=tuple(filter(None, map(text, items(meta.get("finalizers"))))),
        status=status,
        error=reader.error or notes.error,
        spoilt=bool(notes.error and not reader.error),
    )


def active_value(containers: Iterable[RequestedContainer], *, whole_pod: bool, reloads: bool) -> str:
    """Return the label active of a request for these containers that needs work. No other value makes it active."""
    if reloads:
        return ACTIVE_RELOAD
    if whole_pod:
        return ACTIVE_POD
    return ACTIVE_IMAGE if any(each.image for each in containers) else ACTIVE


def status_to_json(status: Status) -> dict[str, Any]:
    """Return the `status` as JSON, without empty or false fields."""
    states = [_state_to_json(state) for state in status.states]
    optional = _non_empty(message=status.message, reason=status.reason.value, completionTime=status.completion_time)
    return {"phase": status.phase.value, "containerRecreateStates": states, **optional}


def pins_to_json(pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes] = NO_START_TIMES) -> str:
    """Return the text of the annotation pinned-containers. Equal pins give equal texts."""
    shape: dict[str, dict[str, Any]] = {}
    for name, pin in pins.items():
        times = start_times.get(name, StartTimes())
        optional = _non_empty(hookStartedAt=times.hook, stopSentAt=times.stop, reloadedAt=times.reload)
        shape[name] = {"containerID": pin.container_id, "restartCount": pin.restart_count, **optional}
    return json.dumps(shape, sort_keys=True, separators=(",", ":"))


def container_id_error(value: object) -> str:
    """Return what is wrong with a container's ID, "" for nothing."""
    is_id = isinstance(value, str) and _CONTAINER_ID.fullmatch(value)
    return "" if is_id else f"must look like containerd://ID, not {shown(value)}"


def _label(reader: Reader, labels: Mapping[str, Any], key: str) -> str:
    return reader.text(labels.get(key), f"the label {key}")


def _containers(reader: Reader, spec: Section, *, completed_later: bool) -> tuple[RequestedContainer, ...]:
    """Return the containers. For a whole pod or a reload, admission has named them, or will (`completed_later`)."""
    found: dict[str, RequestedContainer] = {}
    entries = spec.sections("containers")
    if not entries and not completed_later:
        reader.reject("spec.containers", "must name at least one container")
    for entry in entries:
        name = entry.text("name")
        context = entry.optional_section("statusContext")
        pin = None if context is None else _pin(reader, context)
        if name in found:
            reader.reject(entry.where("name"), f"must not contain {shown(name)} twice")
        elif name:
            found[name] = RequestedContainer(name, pin, entry.text("image"))
    return tuple(found.values())


def _check_kind(
    reader: Reader, spec: Section, strategy: Section, containers: Collection[RequestedContainer], *, whole_pod: bool
) -> None:
    """Reject fields that say different things about what is to be done."""
    images, reloads = sum(bool(each.image) for each in containers), strategy.text("action") == Action.RELOAD
    if images and not whole_pod and len(containers) > 1:
        reader.reject("spec.containers", "must name one container, because the request has an image")
    elif images > 1:
        reader.reject("spec.containers", "must have an image for only one init container")
    elif reloads and (images or whole_pod):
        what = "has an image" if images else "is for the whole pod"
        strategy.reject(f"must not be Reload, because the request {what}", "action")


def _pin(reader: Reader, context: Section) -> Pin | None:
    count = context.integer("restartCount")
    container_id = context.raw.get("containerID")
    if error := container_id_error(container_id):
        reader.reject(context.where("containerID"), error)
        return None
    return Pin(text(container_id), count)


def _strategy(section: Section) -> Strategy:
    return Strategy(
        failure_policy=section.choice("failurePolicy", FailurePolicy),
        ordered=section.flag("orderedRecreate"),
        force=section.flag("forceRecreate"),
        grace_seconds=section.optional_integer("terminationGracePeriodSeconds"),
        unready_grace_seconds=section.optional_integer("unreadyGracePeriodSeconds"),
        min_started_seconds=section.integer("minStartedSeconds"),
        allow_pod_restart=section.flag("allowPodRestart"),
        action=section.choice("action", Action),
        reload_containers=section.texts("reloadContainers"),
    )


def _pinned(reader: Reader, raw: object, names: Collection[str]) -> tuple[Mapping[str, Pin], Mapping[str, StartTimes]]:
    """Return the annotation's entries for these containers. Entries for other containers are ignored."""
    path = f"the annotation {ANNOTATION_PINNED}"
    annotation = reader.text(raw, path)
    if not annotation:
        return NO_PINS, NO_START_TIMES
    try:
        shape = json.loads(annotation)
    except (ValueError, RecursionError):
        shape = None
    if not isinstance(shape, dict):
        reader.reject(path, "must be a JSON object of containers")
        return NO_PINS, NO_START_TIMES
    pins, start_times = {}, {}
    for name, entry in shape.items():
        if name in names:
            if pin := _pin(reader, _section(reader, entry, _CONTEXT, f"{path}: {shown(name)}")):
                pins[name] = pin
            if times := _start_times(mapping(entry)):
                start_times[name] = times
    return pins, start_times


def _start_times(entry: Mapping[str, Any]) -> StartTimes | None:
    """Return the start times. Invalid ones count as absent, because they could only shorten a grace period."""
    keys = "hookStartedAt", "stopSentAt", "reloadedAt"
    times = StartTimes(*(text(at) if _is_rfc3339(at) else "" for at in map(entry.get, keys)))
    return None if times == StartTimes() else times


def _unready_acquired(
    reader: Reader, annotations: Mapping[str, Any], status: Mapping[str, Any], strategy: Strategy
) -> bool:
    """Whether the manager has made the pod unready; without a grace period, the annotation has no effect."""
    for condition in map(mapping, items(status.get("conditions"))):
        if condition.get("type") in CONDITIONS_UNREADY and condition.get("status") == "True":
            return True
    at = annotations.get(ANNOTATION_UNREADY_ACQUIRED)
    if at is None or at == "":
        return False
    if _is_rfc3339(at):
        return True
    if strategy.unready_grace_seconds is not None:
        reader.reject(f"the annotation {ANNOTATION_UNREADY_ACQUIRED}", f"must be an RFC 3339 time, not {shown(at)}")
    return False


def _is_rfc3339(value: object) -> bool:
    return isinstance(value, str) and _RFC3339.fullmatch(value) is not None and parse_time(value) is not None


def _status(section: Section) -> Status:
    states = tuple(_state(entry) for entry in section.sections("containerRecreateStates"))
    phase, message = section.choice("phase", RequestPhase), section.text("message")
    return Status(phase, states, message, section.text("completionTime"), read_reason(section.raw.get("reason")))


def _state(entry: Section) -> RecreateState:
    name, phase, message = entry.text("name"), entry.choice("phase", StatePhase), entry.text("message")
    return RecreateState(name, phase, message, entry.flag("isKilled"), read_reason(entry.raw.get("reason")))


def read_reason(value: object) -> Reason:
    """Return the reason if it is one of this version of crrd, or else NONE."""
    return Reason(value) if isinstance(value, str) and value in _REASONS else Reason.NONE


def _state_to_json(state: RecreateState) -> dict[str, Any]:
    optional = _non_empty(message=state.message, isKilled=state.is_killed, reason=state.reason.value)
    return {"name": state.name, "phase": state.phase.value, **optional}


def _non_empty(**fields: str | bool) -> dict[str, str | bool]:
    """Return the fields that are not empty or false."""
    return {name: value for name, value in fields.items() if value}
