"""The kubelet version that a Node reports, and the minor version, on which most rules depend."""

import re
from collections.abc import Mapping
from typing import Any

from crrd.lib.jsonfields import decimal, mapping, text

_MINOR = re.compile(r"v?1\.(\d+)", re.ASCII)


def reported_version(node: Mapping[str, Any]) -> str:
    """Return a Node's `status.nodeInfo.kubeletVersion`, such as `v1.36.2+k3s1`; "" for none."""
    info = mapping(mapping(node.get("status")).get("nodeInfo"))
    return text(info.get("kubeletVersion"))


def known_minor(version: str) -> int | None:
    """Return N of a version such as `v1.N.P+k3s1`, of kubelet; None if it cannot be parsed."""
    found = _MINOR.match(version)
    return decimal(found[1]) if found else None
