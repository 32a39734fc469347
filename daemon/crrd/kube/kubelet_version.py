"""The version of kubelet on a node, and whether the node is Ready, for the few decisions that depend on it.

A node's kubelet may be older than the API server, and its rules decide whether a container is restarted.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from crrd.kube.resources import NODES, ObjectReader
from crrd.kubelet.version import known_minor, reported_version
from crrd.lib.errors import ApiUnavailableError, CrrdError
from crrd.lib.jsonfields import condition_is_true
from crrd.lib.looptime import loop_time

FRESH_SECONDS = 60.0  # For how long a result is reused; kubelet may be upgraded while the daemon runs
RETRY_SECONDS = 5.0
"""Pause after a failed read. Until the next read, the last known version is used."""
REFRESH_SECONDS = 1.0  # Time limit for a read if a version is already known, because a stop may wait for it
TRY_SECONDS = 2.0
"""For how long a failed read is retried if no version is known, because the decision that needs it is final."""
TRY_AGAIN_SECONDS = 0.5
REMEMBERED_NODES = 256

log = structlog.get_logger(__name__)


class KubeletVersions:
    """Reads Nodes from the API server, and reuses each result for a while.

    Callers for one node wait for one read. A slow one delays no caller for another node.
    """

    def __init__(self, nodes: ObjectReader, *, fresh: float = FRESH_SECONDS, most: int = REMEMBERED_NODES) -> None:
        """`fresh`: for how many seconds a result is reused. `most`: how many nodes are remembered."""
        self._nodes, self._fresh, self._most = nodes, fresh, most
        self._locks: dict[str, asyncio.Lock] = {}  # By node
        self._known: dict[str, tuple[float, str, bool]] = {}
        """By node: the loop's time of the next read, kubelet's version, and whether the node is Ready."""

    async def minor(self, node_name: str) -> int | None:
        """Return the minor version of the node's kubelet (36 for 1.36), or None if it is not known."""
        return known_minor(await self.version(node_name))

    async def version(self, node_name: str) -> str:
        """Return the version of the node's kubelet, for example v1.36.2, or "" if it is not known."""
        return (await self._look(node_name))[0]

    async def ready(self, node_name: str) -> bool:
        """Whether the node was Ready at the last read, which is at most a minute old. False if the read failed."""
        return (await self._look(node_name))[1]

    async def _look(self, node_name: str) -> tuple[str, bool]:
        async with self._locks.setdefault(node_name, asyncio.Lock()):
            ask_at, version, ready = self._known.get(node_name, (float("-inf"), "", False))
            if loop_time() < ask_at:
                return version, ready
            ready, wait = False, RETRY_SECONDS
            try:
                async with asyncio.timeout(REFRESH_SECONDS if version else None):
                    node = await self._read(node_name, patience=0.0 if version else TRY_SECONDS)
                version, wait = reported_version(node), self._fresh
                ready = condition_is_true(node, "Ready")
            except (CrrdError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
                log.warning("kubelet version cannot be read", node_name=node_name, error=reason, known=version)
            finally:  # also if the caller was cancelled
                if len(self._known) >= self._most:
                    self._known.clear()
                    self._locks = {node: lock for node, lock in self._locks.items() if lock.locked()}
                self._known[node_name] = loop_time() + wait, version, ready
            return version, ready

    async def _read(self, node_name: str, patience: float) -> Mapping[str, Any]:
        """Return the Node. Retry a failed read for up to `patience` seconds."""
        last_try = loop_time() + patience
        while True:
            try:
                return await self._nodes.get(NODES, "", node_name)
            except ApiUnavailableError:
                if loop_time() >= last_try:
                    raise
            await asyncio.sleep(TRY_AGAIN_SECONDS)
