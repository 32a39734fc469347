"""The hash of a container that a kubelet of a given version computes, and compares with the stored one.

All versions of kubelet use FNV-1a with 32 bits, but each era of versions hashes a different text (see ERAS). Source:
`HashContainer` in pkg/kubelet/container/helpers.go and `DeepHashObject` in pkg/util/hash/hash.go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crrd.kubelet.image_hash import SINCE as NAME_AND_IMAGE_SINCE
from crrd_forecast.hash import go_dump, go_values
from crrd_forecast.hash.container_types import InexpressibleError
from crrd_forecast.hash.fnv import fnv32a, fnv32a_of_printed_bytes
from crrd_forecast.hash.go_json import Writer
from crrd_forecast.hash.version import OLDEST_MINOR, parse_minor


@dataclass(frozen=True, slots=True)
class Hash:
    """A container's hash, or why it cannot be computed."""

    value: int | None
    why: str = ""  # The reason in one line if there is no value


@dataclass(frozen=True, slots=True)
class Era:
    """A range of kubelet versions with the same hash algorithm."""

    since: int  # The first minor version
    hashed: str  # What is hashed, for messages
    hash: Callable[[Mapping[str, Any], int], int]  # (container, minor version) -> hash; raises InexpressibleError
    absent_counts: bool = False  # Whether each version with a new field has different hashes, even if it is not set


def _hash_dump(container: Mapping[str, Any], minor: int) -> int:
    return fnv32a(go_dump.dump(container, minor).encode())


def _hash_json(container: Mapping[str, Any], minor: int) -> int:
    return fnv32a_of_printed_bytes(Writer(minor).struct(container).encode())


def _hash_name_and_image(container: Any, minor: int) -> int:
    if not isinstance(container, Mapping):
        raise InexpressibleError("container is no object")
    name, image = (go_values.text(container.get(key) or "", f"container.{key}") for key in ("name", "image"))
    write = Writer(minor).text
    name, image = write(name, "name"), write(image, "image")
    return fnv32a_of_printed_bytes(f'{{"image":{image},"name":{name}}}'.encode())


ERAS = (  # The oldest first
    Era(OLDEST_MINOR, "a dump of the whole container", _hash_dump, absent_counts=True),
    Era(16, "the whole container's JSON", _hash_json),
    Era(NAME_AND_IMAGE_SINCE, "only name and image", _hash_name_and_image),
)


def era_of(minor: int) -> Era:
    """Return the era of kubelet 1.`minor`; the oldest era for older versions."""
    return next((era for era in reversed(ERAS) if era.since <= minor), ERAS[0])


def container_hash(container: Mapping[str, Any], kubelet_version: str) -> int | None:
    """Return the hash that a kubelet of this version ("1.26", "v1.9.11") computes; None if unknown.

    `container` is as in the pod's JSON, with the API server's defaults. Raises ValueError for an invalid version.
    """
    return hash_of(container, parse_minor(kubelet_version)).value


def hash_of(container: Mapping[str, Any], minor: int) -> Hash:
    """Return the hash that kubelet 1.`minor` computes, or the reason why it is unknown."""
    if minor < OLDEST_MINOR:
        oldest = f"the oldest known version is 1.{OLDEST_MINOR}"
        return Hash(None, f"crrd does not know how kubelet 1.{minor} computes hashes: {oldest}")
    try:
        return Hash(era_of(minor).hash(container, minor))
    except InexpressibleError as error:
        return Hash(None, str(error))
