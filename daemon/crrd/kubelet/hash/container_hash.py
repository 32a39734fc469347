"""The hash that a kubelet of a given version computes of a container, and compares with the one it once stored.

Each era of kubelet hashes another text, all of them by FNV-1a with 32 bits: ERAS is the table. Source: `HashContainer`
in pkg/kubelet/container/helpers.go and `DeepHashObject` in pkg/util/hash/hash.go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crrd.kubelet.hash import go_dump, go_values
from crrd.kubelet.hash.container_types import InexpressibleError
from crrd.kubelet.hash.fnv import fnv32a, fnv32a_of_printed_bytes
from crrd.kubelet.hash.go_json import Writer
from crrd.kubelet.version import OLDEST_MINOR, parse_minor


@dataclass(frozen=True, slots=True)
class Hash:
    """A container's hash, or why it cannot be told."""

    value: int | None
    why: str = ""  # Where there is no value: one line that says why


@dataclass(frozen=True, slots=True)
class Era:
    """Versions of kubelet that hash containers in one way."""

    since: int  # The first minor version
    hashed: str  # What is hashed, in words
    hash: Callable[[Mapping[str, Any], int], int]  # Of a container for a minor version; raises InexpressibleError
    absent_counts: bool = False  # Whether each version with a new field hashes differently, even where it is not set


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
    Era(31, "only name and image", _hash_name_and_image),
)


def era_of(minor: int) -> Era:
    """The era of kubelet 1.`minor`; the oldest for versions before it."""
    return next((era for era in reversed(ERAS) if era.since <= minor), ERAS[0])


def container_hash(container: Mapping[str, Any], kubelet_version: str) -> int | None:
    """The hash that a kubelet of that version ("1.26", "v1.9.11") computes; None where that cannot be told.

    `container` is as in the pod's JSON, with the API server's defaults. Raises ValueError for a bad version.
    """
    return hash_of(container, parse_minor(kubelet_version)).value


def hash_of(container: Mapping[str, Any], minor: int) -> Hash:
    """The same for 1.`minor`, with the reason where it cannot be told."""
    if minor < OLDEST_MINOR:
        oldest = f"the oldest known version is 1.{OLDEST_MINOR}"
        return Hash(None, f"crrd does not know how kubelet 1.{minor} computes hashes: {oldest}")
    try:
        return Hash(era_of(minor).hash(container, minor))
    except InexpressibleError as error:
        return Hash(None, str(error))
