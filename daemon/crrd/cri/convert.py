"""From the CRI's protobuf messages to the core's `Instance`.

What a container is (whose, how often restarted, with which hook) is read from the labels and annotations that kubelet
writes on it. They are text that can hold anything: what cannot be read becomes its absence (or an invalid hook that
says why), never an error. Whether an instance is the one that a request means is not decided here.

Source of the names: Kubernetes' pkg/kubelet/types/labels.go and pkg/kubelet/kuberuntime/labels.go.
"""

import json
from collections.abc import Mapping
from typing import TypeGuard

from cri_stubs import api_pb2
from crrd.core.recreate.observation import Hook, HookKind, Instance
from crrd.kubelet.labels import (
    ANNOTATION_GRACE,
    ANNOTATION_PORTS,
    ANNOTATION_PRE_STOP,
    ANNOTATION_RESTART_COUNT,
    LABEL_CONTAINER_NAME,
    LABEL_POD_NAME,
    LABEL_POD_NAMESPACE,
    LABEL_POD_UID,
)
from crrd.kubelet.runtime_status import ContainerState

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

_STATES = {
    api_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    api_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    api_pb2.CONTAINER_EXITED: ContainerState.EXITED,
}


def instance(container: api_pb2.Container, runtime: str) -> Instance:
    """One entry of ListContainers.

    Args:
        container: As the runtime sent it.
        runtime: The runtime's name (Version.runtime_name), as in front of container IDs.
    """
    labels, annotations = container.labels, container.annotations
    restarts = _number(annotations.get(ANNOTATION_RESTART_COUNT, ""), INT32_MAX)
    return Instance(
        id=container.id,
        runtime=runtime,
        name=labels.get(LABEL_CONTAINER_NAME, ""),
        pod_namespace=labels.get(LABEL_POD_NAMESPACE, ""),
        pod_name=labels.get(LABEL_POD_NAME, ""),
        pod_uid=labels.get(LABEL_POD_UID, ""),
        state=_STATES.get(container.state, ContainerState.UNKNOWN),
        created_at=container.created_at,
        restart_count=container.metadata.attempt if restarts is None else restarts,
        grace_seconds=_number(annotations.get(ANNOTATION_GRACE, ""), INT64_MAX),
        hook=hook(annotations[ANNOTATION_PRE_STOP]) if ANNOTATION_PRE_STOP in annotations else None,
        ports=named_ports(annotations.get(ANNOTATION_PORTS, "")),
    )


def named_ports(text: str) -> tuple[tuple[str, int], ...]:
    """The named ports of the annotation's JSON list of container ports; what is no such port is left out."""
    ports = _json(text)
    if not isinstance(ports, list):
        return ()
    found = []
    for port in ports:
        if isinstance(port, dict):
            name, number = port.get("name"), port.get("containerPort")
            if isinstance(name, str) and name and _is_port(number):
                found.append((name, number))
    return tuple(found)


def hook(text: str) -> Hook:
    """The preStop handler in the annotation's JSON: the pod spec's `lifecycle.preStop`.

    Several handlers in one are refused by the API server; kubelet would take the first of exec, httpGet and sleep,
    and so does this.
    """
    handler = _json(text)
    if not isinstance(handler, dict):
        return _invalid("the preStop hook that kubelet recorded on the container is not a JSON object")
    for kind, read in ((HookKind.EXEC, _exec), (HookKind.HTTP_GET, _http), (HookKind.SLEEP, _sleep)):
        body = handler.get(kind)
        if isinstance(body, dict):
            return read(body)
        if body is not None:
            return _invalid(f"the preStop hook's {kind} is not an object")
    if handler.get(HookKind.TCP_SOCKET) is not None:
        return Hook(kind=HookKind.TCP_SOCKET)
    return _invalid("the preStop hook has no supported handler (exec, httpGet, sleep)")


def _exec(body: Mapping[str, object]) -> Hook:
    command = body.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        return _invalid("the preStop hook's exec.command is not a list of strings")
    return Hook(kind=HookKind.EXEC, command=tuple(command))


def _sleep(body: Mapping[str, object]) -> Hook:
    seconds = body.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= INT64_MAX:
        return _invalid("the preStop hook's sleep.seconds is not a number of seconds")
    return Hook(kind=HookKind.SLEEP, seconds=float(seconds))


def _http(body: Mapping[str, object]) -> Hook:
    port, headers = body.get("port"), body.get("httpHeaders") or []
    path, host, scheme = body.get("path") or "/", body.get("host") or "", body.get("scheme") or ""
    if not _is_port(port) and (not isinstance(port, str) or not port):
        return _invalid("the preStop hook's httpGet.port is neither a port number nor a name")
    if not isinstance(path, str) or not isinstance(host, str) or not isinstance(scheme, str):
        return _invalid("the preStop hook's httpGet.path, host or scheme is not a string")
    if scheme.lower() not in ("", "http", "https"):
        return _invalid("the preStop hook's httpGet.scheme is neither HTTP nor HTTPS")
    if not isinstance(headers, list) or not all(_is_header(header) for header in headers):
        return _invalid("the preStop hook's httpGet.httpHeaders are not a list of names and values")
    return Hook(
        kind=HookKind.HTTP_GET,
        host=host,
        port=port,
        path=path,
        scheme=scheme.lower() or "http",
        headers=tuple((header["name"], header.get("value", "")) for header in headers),
    )


def _is_port(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _is_header(header: object) -> bool:
    return (
        isinstance(header, dict)
        and isinstance(header.get("name"), str)
        and bool(header["name"])
        and isinstance(header.get("value", ""), str)
    )


def _invalid(error: str) -> Hook:
    return Hook(kind=HookKind.INVALID, error=error)


def _json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):  # the second for a few thousand nested brackets
        return None
    return value


def _number(text: str, most: int) -> int | None:
    """A decimal, not negative and not above `most`; None for anything else."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    value = int(text)
    return value if value <= most else None
