"""The hash that kubelet stores with a container, for every era of kubelet: FNV-32a over what that era writes.

- up to 1.15: the Go struct, dumped; its fields are those of the version;
- 1.16 to 1.30: the container as Go's JSON, the bytes dumped as numbers;
- from 1.31: the same over the JSON of image and name alone.

Source: kubelet's `HashContainer` (pkg/kubelet/container/helpers.go) and `DeepHashObject` (pkg/util/hash).
Ends there: which hash a container has, and what follows from another one, is others' business.
"""

import re
from collections.abc import Mapping
from typing import Any

from daemon.forecast.go_format import InexpressibleError, dump, go_json, marshal
from daemon.forecast.go_types import OLDEST, Version

FIRST_JSON: Version = (1, 16)
FIRST_NAME_AND_IMAGE: Version = (1, 31)

_OFFSET, _PRIME = 2166136261, 16777619
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+].*)?")


def parse_version(text: str) -> Version:
    """Major and minor of a kubelet version: "1.26", "v1.9.11", "1.31.0-rc.1+k3s1".

    Raises:
        ValueError: it is no version.
    """
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no Kubernetes version; give one like 1.31 or v1.31.2")
    return int(found[1]), int(found[2])


def fnv32a(data: bytes) -> int:
    """FNV-1a with 32 bits, as Go's hash/fnv."""
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value


def hashed_text(container: Mapping[str, Any], kubelet_version: str) -> str | None:
    """What the version's kubelet puts into the hash; None where the version cannot express the container.

    Raises:
        ValueError: the version is none.
    """
    version = parse_version(kubelet_version)
    if version < OLDEST:
        return None
    try:
        if version < FIRST_JSON:
            return dump(container, version)
        if version < FIRST_NAME_AND_IMAGE:
            return _as_numbers(marshal(container, version))
        name, image = container.get("name"), container.get("image", "")
        if not isinstance(name, str) or not isinstance(image, str):
            return None
        return _as_numbers(go_json({"image": image, "name": name}))
    except (InexpressibleError, UnicodeEncodeError):
        return None


def container_hash(container: Mapping[str, Any], kubelet_version: str) -> int | None:
    """The hash that a kubelet of this version computes for a container, as in the pod's JSON after defaulting.

    Returns None for "unknown": a version before 1.7, or a container that the version cannot express. Never a guess.

    Raises:
        ValueError: the version is none.
    """
    text = hashed_text(container, kubelet_version)
    if text is None:
        return None
    try:
        return fnv32a(text.encode())
    except UnicodeEncodeError:
        return None


def _as_numbers(text: str) -> str:
    """Bytes as Go's spew dumps them."""
    return f"([]uint8)[{' '.join(map(str, text.encode()))}]"
