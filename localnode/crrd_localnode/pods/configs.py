"""Converts a pod's spec to the CRI configs of its sandbox and containers, with kubelet's labels and annotations.

Other programs read a container's labels and annotations later (the node daemon, a restarted kubelet), so they are
written exactly as kubelet does.
Source: pkg/kubelet/kuberuntime/labels.go, kuberuntime_container.go and security_context.go in Kubernetes.
"""

import json
from collections.abc import Mapping
from typing import Any

from cri_stubs import api_pb2
from crrd.kubelet import labels as kubelet_labels
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.kuberuntime import LABEL_NODE
from crrd_localnode.pods.spec import Json

MASKED_PATHS = (
    "/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
    "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
)  # fmt: skip
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_UNCONFINED = api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Unconfined)
_FIELD_ORDER = {
    "ports": ("name", "hostPort", "containerPort", "protocol", "hostIP"),
    "preStop": ("exec", "httpGet", "tcpSocket", "sleep"),
}


def pod_labels(pod: Json) -> dict[str, str]:
    """Return the three labels that identify the pod of a sandbox or container."""
    metadata = pod["metadata"]
    return {
        kubelet_labels.LABEL_POD_NAME: metadata["name"],
        kubelet_labels.LABEL_POD_NAMESPACE: metadata["namespace"],
        kubelet_labels.LABEL_POD_UID: metadata["uid"],
    }


def sandbox_config(pod: Json, *, node_name: str, log_directory: str, attempt: int) -> api_pb2.PodSandboxConfig:
    """Return the sandbox's config. It always uses the host's network, because a local node has no CNI."""
    metadata = pod["metadata"]
    security_context = api_pb2.LinuxSandboxSecurityContext(
        namespace_options=namespace_options(pod),
        privileged=any(_privileged(container) for container in podspec.all_containers(pod)),
        seccomp=_UNCONFINED,
        supplemental_groups=_supplemental_groups(pod["spec"]),
    )
    names = {field: metadata[field] for field in ("name", "namespace", "uid")}
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(attempt=attempt, **names),
        log_directory=log_directory,
        labels={**(metadata.get("labels") or {}), **pod_labels(pod), LABEL_NODE: node_name},
        annotations={**(metadata.get("annotations") or {}), kubelet_labels.ANNOTATION_CONFIG_SOURCE: "api"},
        linux=api_pb2.LinuxPodSandboxConfig(security_context=security_context),
    )


def namespace_options(pod: Json) -> api_pb2.NamespaceOption:
    """Return the namespaces that the pod's containers share."""
    spec = pod["spec"]
    pid = api_pb2.POD if spec.get("shareProcessNamespace") else api_pb2.CONTAINER
    if spec.get("hostPID"):
        pid = api_pb2.NODE
    ipc = api_pb2.NODE if spec.get("hostIPC") else api_pb2.POD
    return api_pb2.NamespaceOption(network=api_pb2.NODE, pid=pid, ipc=ipc)


def container_annotations(pod: Json, spec: Json, *, restart_count: int, container_hash: str) -> dict[str, str]:
    """Return the annotations that kubelet writes on a container (`newContainerAnnotations`)."""
    annotations = {
        kubelet_labels.ANNOTATION_HASH: container_hash,
        kubelet_labels.ANNOTATION_RESTART_COUNT: str(restart_count),
        kubelet_labels.ANNOTATION_MESSAGE_PATH: spec["terminationMessagePath"],
        kubelet_labels.ANNOTATION_MESSAGE_POLICY: spec["terminationMessagePolicy"],
    }
    if (grace := pod["spec"].get("terminationGracePeriodSeconds")) is not None:
        annotations[kubelet_labels.ANNOTATION_GRACE] = str(grace)
    if pre_stop := (spec.get("lifecycle") or {}).get("preStop"):
        annotations[kubelet_labels.ANNOTATION_PRE_STOP] = _dump(_ordered(pre_stop, "preStop"))
    if spec.get("ports"):
        annotations[kubelet_labels.ANNOTATION_PORTS] = _dump([_ordered(port, "ports") for port in spec["ports"]])
    return annotations


def _ordered(value: Json, kind: str) -> Json:
    """Return the object with its known fields in the order of Kubernetes' Go type, as in its JSON."""
    names = [name for name in _FIELD_ORDER[kind] if name in value]
    return {name: value[name] for name in [*names, *(name for name in value if name not in names)]}


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def container_config(
    pod: Json,
    spec: Json,
    *,
    image_id: str,
    restart_count: int,
    container_hash: str,
    mounts: list[api_pb2.Mount],
    variables: Mapping[str, str],
) -> api_pb2.ContainerConfig:
    """Return the config of one container instance with these environment variables."""
    return api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=spec["name"], attempt=restart_count),
        image=api_pb2.ImageSpec(image=image_id, user_specified_image=spec["image"]),
        command=[podspec.expand(word, variables) for word in spec.get("command") or []],
        args=[podspec.expand(word, variables) for word in spec.get("args") or []],
        working_dir=spec.get("workingDir", ""),
        envs=[
            api_pb2.KeyValue(key=name, value=value.encode(errors="surrogateescape"))
            for name, value in variables.items()
        ],
        mounts=mounts,
        labels={**pod_labels(pod), kubelet_labels.LABEL_CONTAINER_NAME: spec["name"]},
        annotations=container_annotations(pod, spec, restart_count=restart_count, container_hash=container_hash),
        log_path=f"{spec['name']}/{restart_count}.log",
        stdin=bool(spec.get("stdin")),
        stdin_once=bool(spec.get("stdinOnce")),
        tty=bool(spec.get("tty")),
        linux=api_pb2.LinuxContainerConfig(security_context=_security_context(pod, spec)),
    )


def _security(pod: Json, spec: Json, name: str) -> Any:
    """Return a field of securityContext: the container's own, or else the pod's."""
    own = (spec.get("securityContext") or {}).get(name)
    return (pod["spec"].get("securityContext") or {}).get(name) if own is None else own


def _privileged(spec: Json) -> bool:
    return bool((spec.get("securityContext") or {}).get("privileged"))


def _supplemental_groups(pod_spec: Json) -> list[int]:
    context = pod_spec.get("securityContext") or {}
    groups = [int(group) for group in context.get("supplementalGroups") or []]
    return [*groups, int(context["fsGroup"])] if context.get("fsGroup") is not None else groups


def _security_context(pod: Json, spec: Json) -> api_pb2.LinuxContainerSecurityContext:
    own = spec.get("securityContext") or {}
    privileged = _privileged(spec)
    capabilities = own.get("capabilities") or {}
    added, dropped = capabilities.get("add") or [], capabilities.get("drop") or []
    context = api_pb2.LinuxContainerSecurityContext(
        namespace_options=namespace_options(pod),
        privileged=privileged,
        readonly_rootfs=bool(own.get("readOnlyRootFilesystem")),
        no_new_privs=own.get("allowPrivilegeEscalation") is False,
        supplemental_groups=_supplemental_groups(pod["spec"]),
        capabilities=api_pb2.Capability(add_capabilities=added, drop_capabilities=dropped),
        seccomp=_UNCONFINED,
        masked_paths=() if privileged else MASKED_PATHS,
        readonly_paths=() if privileged else READONLY_PATHS,
    )
    user, group = _security(pod, spec, "runAsUser"), _security(pod, spec, "runAsGroup")
    if user is not None:
        context.run_as_user.value = int(user)
        if group is not None:
            context.run_as_group.value = int(group)  # the CRI accepts a group only with a user
    return context
