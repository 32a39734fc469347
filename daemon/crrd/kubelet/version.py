"""Kubernetes versions: the kubelet version that a Node reports, and the minor version, on which most rules depend."""

import re
from collections.abc import Mapping
from typing import Any

from crrd.lib.jsonfields import mapping, text

OLDEST_MINOR = 7  # The oldest minor version whose structs are known
NEWEST_MINOR = 36  # The newest minor version that was examined; later ones are treated in the same way
_MINOR = re.compile(r"v?1\.(\d+)", re.ASCII)
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,5}))?\+?(?:[-+][0-9A-Za-z.+~-]+)?", re.ASCII)


def reported_version(node: Mapping[str, Any]) -> str:
    """Return a Node's `status.nodeInfo.kubeletVersion`, such as `v1.36.2+k3s1`; "" for none."""
    info = mapping(mapping(node.get("status")).get("nodeInfo"))
    return text(info.get("kubeletVersion"))


def known_minor(version: str) -> int | None:
    """Return N of a version such as `v1.N.P+k3s1`, of kubelet or CRI-O; None if it cannot be parsed."""
    found = _MINOR.match(version)
    return int(found[1]) if found else None


def parse_minor(version: str) -> int:
    """Return the minor version N of "1.N", "v1.N.P", "1.N.P-rc.1+k3s1". Raises ValueError with a message for users."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ValueError(f"{version[:40]!r} is not a Kubernetes version: use one such as 1.31 or v1.30.2")
    major, minor = int(match[1]), int(match[2])
    if major != 1:
        raise ValueError(f"{version[:40]!r} is not a Kubernetes version: the major version must be 1")
    return minor
