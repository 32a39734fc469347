"""The hash that a kubelet of a given version computes of a container, and compares with the one it once stored.

Three eras, all FNV-1a with 32 bits: up to 1.15 over a dump of the Go struct, from 1.16 over the container's JSON, from
1.31 over the JSON of name and image alone. Source: `HashContainer` in pkg/kubelet/container/helpers.go and
`DeepHashObject` in pkg/util/hash/hash.go. What this does with the hash is `report`'s matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.kubelet.hash import go_dump, go_values
from crrd.kubelet.hash.container_types import InexpressibleError
from crrd.kubelet.hash.fnv import fnv32a, fnv32a_of_printed_bytes
from crrd.kubelet.hash.go_json import Writer
from crrd.kubelet.version import OLDEST_MINOR, parse_minor

JSON_SINCE = 16
"""Minor version from which the container's JSON is hashed instead of its dump."""
NAME_AND_IMAGE_SINCE = 31
"""Minor version from which name and image alone are hashed."""


@dataclass(frozen=True, slots=True)
class Hash:
    """A container's hash, or why it cannot be told."""

    value: int | None
    why: str = ""
    """Where there is no value: one line that says why."""


def container_hash(container: Mapping[str, Any], kubelet_version: str) -> int | None:
    """The hash that a kubelet of that version computes; None where that cannot be told.

    Args:
        container: As in the pod's JSON (spec.containers[i]), with the API server's defaults.
        kubelet_version: "1.26", "v1.9.11", "1.31.0-rc.1+k3s1".

    Raises:
        ValueError: the version is none of Kubernetes.
    """
    return hash_of(container, parse_minor(kubelet_version)).value


def hash_of(container: Mapping[str, Any], minor: int) -> Hash:
    """The same for 1.`minor`, with the reason where it cannot be told."""
    try:
        if minor < OLDEST_MINOR:
            return Hash(None, f"how kubelet 1.{minor} hashes is not known: 1.{OLDEST_MINOR} is the oldest that is")
        if minor < JSON_SINCE:
            return Hash(fnv32a(go_dump.dump(container, minor).encode()))
        writer = Writer(minor)
        written = writer.container(container) if minor < NAME_AND_IMAGE_SINCE else _name_and_image(container, writer)
        return Hash(fnv32a_of_printed_bytes(written.encode()))
    except InexpressibleError as error:
        return Hash(None, str(error))


def era(minor: int) -> str:
    """What kubelet 1.`minor` hashes, in words."""
    if minor < JSON_SINCE:
        return "a dump of the whole container"
    return "the whole container's JSON" if minor < NAME_AND_IMAGE_SINCE else "name and image alone"


def _name_and_image(container: Any, writer: Writer) -> str:
    if not isinstance(container, Mapping):
        raise InexpressibleError("container is no object")
    name, image = (
        writer.text(go_values.text(container.get(key) or "", f"container.{key}"), key) for key in ("name", "image")
    )
    return f'{{"image":{image},"name":{name}}}'
