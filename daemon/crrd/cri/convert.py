"""Converts the CRI's protobuf messages to the core's `Instance`.

A container's pod, restart count and preStop hook come from the labels and annotations that kubelet writes on it. Their
text can be anything. A value that cannot be parsed counts as missing (a hook becomes an invalid hook with the reason),
and never raises an error. This module does not decide whether an instance is the target of a request.

Source of the names: Kubernetes' pkg/kubelet/types/labels.go and pkg/kubelet/kuberuntime/labels.go.
"""

import json
from collections.abc import Mapping

from cri_stubs import api_pb2
from crrd.core.api.types import ANNOTATION_RELOAD
from crrd.core.recreate.handlers import invalid, is_port, read_command, read_http
from crrd.core.recreate.observation import NETWORK_READY, Hook, HookKind, Instance, Sandbox
from crrd.kubelet import labels
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.jsonfields import INT32_MAX, INT64_MAX, decimal, items, mapping, text
from crrd.lib.plain import one_line

LABEL_MADE_BY, MADE_BY = "crrd.dev/made-by", "crrd"  # On sandboxes that crrd has made
LABEL_REQUEST_UID = "crrd.dev/request-uid"
RUNTIME_READY = "RuntimeReady"  # A condition of CRI's Status
POD_LOGS = "/var/log/pods"  # Kubelet's default. CRI-O makes a folder of its own without one

_STATES = {
    api_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    api_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    api_pb2.CONTAINER_EXITED: ContainerState.EXITED,
}


def instance(container: api_pb2.Container, runtime: str) -> Instance:
    """Convert one entry of ListContainers; `runtime` is the runtime's name, the prefix of container IDs."""
    marks, annotations = container.labels, container.annotations
    restarts = decimal(annotations.get(labels.ANNOTATION_RESTART_COUNT, ""), INT32_MAX)
    handler = annotations.get(labels.ANNOTATION_PRE_STOP)
    return Instance(
        id=container.id,
        runtime=runtime,
        name=marks.get(labels.LABEL_CONTAINER_NAME, ""),
        pod_namespace=marks.get(labels.LABEL_POD_NAMESPACE, ""),
        pod_name=marks.get(labels.LABEL_POD_NAME, ""),
        pod_uid=marks.get(labels.LABEL_POD_UID, ""),
        state=_STATES.get(container.state, ContainerState.UNKNOWN),
        created_at=container.created_at,
        restart_count=container.metadata.attempt if restarts is None else restarts,
        grace_seconds=decimal(annotations.get(labels.ANNOTATION_GRACE, "")),
        hook=None if handler is None else hook(handler),
        ports=named_ports(annotations.get(labels.ANNOTATION_PORTS, "")),
        image=container.image.user_specified_image,
        hash=annotations.get(labels.ANNOTATION_HASH, ""),
        sandbox=container.pod_sandbox_id,
    )


def unready(response: api_pb2.StatusResponse) -> dict[str, str]:
    """Return which conditions are not true that kubelet needs to start containers, and why.

    Source: kubelet's `updateRuntimeUp`. One that the runtime does not report is not true.
    """
    found = {each.type: each for each in response.status.conditions}
    missing = api_pb2.RuntimeCondition(message="the runtime does not report it")
    conditions = ((name, found.get(name, missing)) for name in (RUNTIME_READY, NETWORK_READY))
    return {name: one_line(each.message or each.reason) for name, each in conditions if not each.status}


def sandbox(listed: api_pb2.PodSandbox, runtime: str) -> Sandbox:
    """Convert one entry of ListPodSandbox; `runtime` is the runtime's name.

    Kubelet copies the labels and annotations of a pod, which may be anything, to its sandboxes, and adds an annotation
    of its own.
    """
    marks, of_kubelet = listed.labels, labels.ANNOTATION_CONFIG_SOURCE in listed.annotations
    return Sandbox(
        id=listed.id,
        runtime=runtime,
        pod_namespace=marks.get(labels.LABEL_POD_NAMESPACE, ""),
        pod_name=marks.get(labels.LABEL_POD_NAME, ""),
        pod_uid=marks.get(labels.LABEL_POD_UID, ""),
        ready=listed.state == api_pb2.SANDBOX_READY,
        created_at=listed.created_at,
        attempt=listed.metadata.attempt,
        request_uid="" if of_kubelet else marks.get(LABEL_REQUEST_UID, ""),
        reloads={
            key.removeprefix(ANNOTATION_RELOAD): value
            for key, value in listed.annotations.items()
            if of_kubelet and key.startswith(ANNOTATION_RELOAD)
        },
    )


def second_sandbox(first: Sandbox, request_uid: str, cgroup_parent: str) -> api_pb2.PodSandboxConfig:
    """Return the configuration of an empty sandbox beside a pod's, which makes kubelet restart the pod.

    It is on the host's network, so that no CNI plugin is called. It has the pod's cgroup, because runtimes that use
    systemd refuse one without a slice. It has the next number (`attempt`), which containerd gives only once. CRI-O
    gives the existing sandbox to a second caller. If that were kubelet, it would start containers in it. So there, it
    has a number for which kubelet does not ask.
    """
    attempt = first.attempt + (2 if first.runtime == "cri-o" else 1)
    config = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(
            name=first.pod_name, uid=first.pod_uid, namespace=first.pod_namespace, attempt=attempt
        ),
        log_directory=f"{POD_LOGS}/{first.pod_namespace}_{first.pod_name}_{first.pod_uid}",
        labels={
            labels.LABEL_POD_NAME: first.pod_name,
            labels.LABEL_POD_NAMESPACE: first.pod_namespace,
            labels.LABEL_POD_UID: first.pod_uid,
            LABEL_MADE_BY: MADE_BY,
            LABEL_REQUEST_UID: request_uid,
        },
    )
    config.linux.cgroup_parent = cgroup_parent
    namespaces = config.linux.security_context.namespace_options
    namespaces.network, namespaces.pid = api_pb2.NODE, api_pb2.CONTAINER  # CRI-O has no process for the mode POD
    return config


def cgroup_parent(info: Mapping[str, str]) -> str:
    """Return the cgroup in which the runtime has made a sandbox, "" for its default; from a verbose PodSandboxStatus.

    containerd tells the sandbox's own configuration, CRI-O its OCI specification.
    """
    told = mapping(_json(info.get("info", "")))
    if config := mapping(told.get("config")):
        return text(mapping(config.get("linux")).get("cgroup_parent"))
    path = text(mapping(mapping(mapping(told.get("runtimeSpec")).get("linux"))).get("cgroupsPath"))
    slice_, _, rest = path.partition(":")
    return slice_ if rest else path.rpartition("/")[0]


def named_ports(annotation: str) -> tuple[tuple[str, int], ...]:
    """Return the named ports in the annotation's JSON list of container ports. Skips invalid entries."""
    ports = [(text(port.get("name")), port.get("containerPort")) for port in map(mapping, items(_json(annotation)))]
    return tuple((name, number) for name, number in ports if name and is_port(number))


def hook(annotation: str) -> Hook:
    """Parse the annotation's JSON: the pod spec's `lifecycle.preStop`.

    The API server rejects several handlers in one hook. kubelet would take the first of exec, httpGet and sleep, as
    this function does.
    """
    handler = _json(annotation)
    if not isinstance(handler, dict):
        return invalid("the preStop hook that kubelet recorded on the container is not a JSON object")
    for kind, read in ((HookKind.EXEC, _exec), (HookKind.HTTP_GET, read_http), (HookKind.SLEEP, _sleep)):
        body = handler.get(kind)
        if isinstance(body, dict):
            return read(body, f"the preStop hook's {kind}")
        if body is not None:
            return invalid(f"the preStop hook's {kind} is not an object")
    if handler.get(HookKind.TCP_SOCKET) is not None:
        return Hook(kind=HookKind.TCP_SOCKET)
    return invalid("the preStop hook has no supported handler (exec, httpGet, sleep)")


def _exec(body: Mapping[str, object], what: str) -> Hook:
    return read_command(body.get("command"), f"{what}.command")


def _sleep(body: Mapping[str, object], what: str) -> Hook:
    seconds = body.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= INT64_MAX:
        return invalid(f"{what}.seconds is not a number of seconds")
    return Hook(kind=HookKind.SLEEP, seconds=float(seconds))


def _json(annotation: str) -> object:
    try:
        value: object = json.loads(annotation)
    except (ValueError, RecursionError):  # RecursionError: thousands of nested brackets
        return None
    return value
