"""Reads fields of a pod's JSON like kubelet. The API server has set the defaults."""

import json
import re
from collections.abc import Mapping
from typing import Any

from crrd.core.api.types import DEFAULT_GRACE_SECONDS
from crrd.kubelet.restart_rules import RestartPolicy

Json = dict[str, Any]  # A Kubernetes object or a part of one

NODE_IP = "127.0.0.1"  # IP of the node and of its pods, which all use the node's network
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


def uid(pod: Json) -> str:
    """Return the pod's UID."""
    return str(pod["metadata"]["uid"])


def key(pod: Json) -> str:
    """Return `namespace/name`."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def regular_containers(pod: Json) -> list[Json]:
    """Return `spec.containers`."""
    return list(pod["spec"].get("containers") or [])


def init_containers(pod: Json) -> list[Json]:
    """Return `spec.initContainers`, including native sidecars."""
    return list(pod["spec"].get("initContainers") or [])


def all_containers(pod: Json) -> list[Json]:
    """Return the init containers, then the regular ones."""
    return init_containers(pod) + regular_containers(pod)


def container(pod: Json, name: str) -> Json | None:
    """Return the container with this name, or None."""
    return next((spec for spec in all_containers(pod) if spec["name"] == name), None)


def is_sidecar(spec: Json) -> bool:
    """Whether an init container is a native sidecar (KEP-753), which keeps running beside the regular containers."""
    return spec.get("restartPolicy") == RestartPolicy.ALWAYS


def sidecars(pod: Json) -> set[str]:
    """Return the names of the pod's native sidecars."""
    return {spec["name"] for spec in init_containers(pod) if is_sidecar(spec)}


def grace_seconds(pod: Json) -> int:
    """Return the grace period of the pod's containers: that of its deletion if it is being deleted."""
    deletion = pod["metadata"].get("deletionGracePeriodSeconds") if being_deleted(pod) else None
    given = (deletion, pod["spec"].get("terminationGracePeriodSeconds"), DEFAULT_GRACE_SECONDS)
    return int(next(seconds for seconds in given if seconds is not None))


def being_deleted(pod: Json) -> bool:
    """Whether the API server has marked the pod for deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def volumes(pod: Json) -> list[Json]:
    """Return `spec.volumes`. A volume without a kind is an emptyDir."""
    return [{"emptyDir": {}, **each} if len(each) == 1 else each for each in pod["spec"].get("volumes") or []]


def field(pod: Json, path: str) -> str:
    """Return the value of a `fieldRef`, for the paths that the API allows. LookupError for others."""
    metadata, spec = pod["metadata"], pod["spec"]
    plain = {
        **{f"metadata.{name}": metadata[name] for name in ("name", "namespace", "uid")},
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), NODE_IP),
    }
    if path in plain:
        return str(plain[path])
    for kind in ("labels", "annotations"):
        values, prefix = metadata.get(kind) or {}, f"metadata.{kind}['"
        if path == f"metadata.{kind}":
            return "\n".join(
                f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(values.items())
            )
        if path.startswith(prefix) and path.endswith("']"):
            return str(values.get(path[len(prefix) : -2], ""))
    raise LookupError(f'fieldRef "{path}" is not known')


def expand(text: str, variables: Mapping[str, str], *, strict: bool = False) -> str:
    """Replace `$(NAME)` by the variable's value, like Kubernetes' forked expansion.go; `$$` is one dollar sign.

    An unknown name is left as it is, or is a LookupError if `strict`.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if strict and name is not None and name not in variables:
            raise LookupError(f'missing value for "{name}"')
        return "$" if name is None else variables.get(name, match[0])

    return _VARIABLE.sub(replace, text)
