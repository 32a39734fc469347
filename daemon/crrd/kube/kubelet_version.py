"""Which version of kubelet runs on a node, for the few decisions that depend on it.

A node's kubelet may be older than the API server, and it is kubelet's rules that say what becomes of a container.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from crrd.kube.resources import NODES, ObjectReader
from crrd.kubelet.version import known_minor, reported_version
from crrd.lib.errors import CrrdError

FRESH_SECONDS = 60.0
"""For how long an answer counts: a kubelet is replaced while its node's daemon lives on."""
REMEMBERED_NODES = 256

log = structlog.get_logger(__name__)


class KubeletVersions:
    """Asks the API server for Nodes, one question at a time, and remembers the answers for a minute.

    Args:
        nodes: where to ask.
    """

    def __init__(self, nodes: ObjectReader) -> None:
        self._nodes = nodes
        self._lock = asyncio.Lock()
        self._known: dict[str, tuple[float, int | None]] = {}
        """By node: when it was asked for, and the minor version."""

    async def minor(self, node_name: str) -> int | None:
        """The minor version of the node's kubelet, 36 for 1.36; None where it cannot be learned."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            asked_at, minor = self._known.get(node_name, (float("-inf"), None))
            if now - asked_at < FRESH_SECONDS:
                return minor
            try:
                minor = minor_of(await self._nodes.get(NODES, "", node_name))
            except CrrdError as error:
                log.warning("kubelet version unknown", node_name=node_name, error=str(error))
                return None
            if len(self._known) >= REMEMBERED_NODES:
                self._known.clear()
            self._known[node_name] = now, minor
            return minor


def minor_of(node: Mapping[str, Any]) -> int | None:
    """The minor version of a Node's kubelet; None where it cannot be read."""
    return known_minor(reported_version(node))
