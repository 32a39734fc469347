"""Reading a pod's JSON as kubelet does; the API server has filled in the defaults. Nothing is decided here."""

import re
from collections.abc import Mapping
from typing import Any

from crrd.core.api.types import DEFAULT_GRACE_SECONDS
from crrd.kubelet.restart_rules import RestartPolicy

Json = dict[str, Any]  # A Kubernetes object, or a part of one, as the API speaks it

NODE_IP = "127.0.0.1"  # The node's address, and its pods', which are all on the node's network
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


def uid(pod: Json) -> str:
    """The pod's UID."""
    return str(pod["metadata"]["uid"])


def key(pod: Json) -> str:
    """`namespace/name`."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def regular_containers(pod: Json) -> list[Json]:
    """`spec.containers`."""
    return list(pod["spec"].get("containers") or [])


def init_containers(pod: Json) -> list[Json]:
    """`spec.initContainers`, native sidecars among them."""
    return list(pod["spec"].get("initContainers") or [])


def all_containers(pod: Json) -> list[Json]:
    """Init containers first, then the regular ones."""
    return init_containers(pod) + regular_containers(pod)


def container(pod: Json, name: str) -> Json | None:
    """The container of this name, None where the pod has none."""
    return next((spec for spec in all_containers(pod) if spec["name"] == name), None)


def is_sidecar(spec: Json) -> bool:
    """Whether an init container is a native sidecar (KEP-753): one that is kept running beside the pod's own."""
    return spec.get("restartPolicy") == RestartPolicy.ALWAYS


def sidecars(pod: Json) -> set[str]:
    """The names of the pod's native sidecars."""
    return {spec["name"] for spec in init_containers(pod) if is_sidecar(spec)}


def grace_seconds(pod: Json) -> int:
    """For how long a container of the pod may take to stop: of its deletion where it is being deleted."""
    deletion = pod["metadata"].get("deletionGracePeriodSeconds") if being_deleted(pod) else None
    given = (deletion, pod["spec"].get("terminationGracePeriodSeconds"), DEFAULT_GRACE_SECONDS)
    return int(next(seconds for seconds in given if seconds is not None))


def being_deleted(pod: Json) -> bool:
    """Whether the API server has marked the pod for deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Put variables' values where the text says `$(NAME)`, as Kubernetes' forked expansion.go: `$$` is one dollar."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _VARIABLE.sub(replace, text)
