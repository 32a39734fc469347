"""Reads the nodes of a run's pods: whether they are down, and the version of their kubelet where that matters."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from crrd.core.api.time import parse_time
from crrd.core.rollout.skips import kubelet_matters
from crrd.core.rollout.state import Member, NodeDaemon, World
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES
from crrd.kubelet.version import reported_version
from crrd.lib.errors import ApiRefusedError
from crrd.lib.jsonfields import condition, text
from crrd.lib.looptime import loop_time

_SECONDS = 10.0  # Interval of reading a node that may be down
_AT_ONCE = 10


class Nodes:
    """The known nodes. The constructor reads nothing."""

    def __init__(self, client: KubeClient, changed: Callable[[], None], *, for_image: bool) -> None:
        """`changed` is called when a node goes down, or comes back. `for_image`: whether a run sets an image."""
        self._client, self._changed, self._for_image = client, changed, for_image
        self.down: frozenset[str] = frozenset()  # Nodes that are not ready, of those that were read
        self.kubelets: dict[str, str] = {}  # By node: the version of its kubelet, "" if it cannot be read
        self.ready_since: dict[str, datetime] = {}  # By node that is ready: since when, by the API server's clock
        self._read_at: dict[str, float] = {}  # The loop's time

    async def learn(self, members: Iterable[Member], daemons: Mapping[str, NodeDaemon] | None) -> None:
        """Read the nodes of these pods that must be read now, some of them if they are many.

        These are nodes whose kubelet matters or that a restart by a patch has waited for in vain, once, and nodes that
        may be down or were, every few seconds. Raises ApiUnavailableError.
        """
        matter, doubtful = set[str](), set(self.down)
        for each in members:
            node, daemon = each.pod.node_name, (daemons or {}).get(each.pod.node_name)
            if self._kubelet_matters(each) or _has_failed(each):
                matter.add(node)
            if not daemon.ready if daemon is not None else daemons is None and not each.ready:
                doubtful.add(node)
        late = loop_time() - _SECONDS
        due = [(at, node) for node in doubtful - {""} if (at := self._read_at.get(node, float("-inf"))) < late]
        await asyncio.gather(
            *map(self._read, (matter - self.kubelets.keys() - {""}) | {node for _, node in sorted(due)[:_AT_ONCE]})
        )

    async def look_again(self, member: Member) -> None:
        """Read the node of a pod that is about to start, if its kubelet matters or it may be down."""
        if self._kubelet_matters(member) or not member.ready:
            await self._read(member.pod.node_name)

    def is_as_in(self, world: World, node: str) -> bool:
        """Whether a node is as in this world."""
        return (node in self.down, self.kubelets.get(node)) == (node in world.down, world.kubelets.get(node))

    def _kubelet_matters(self, member: Member) -> bool:
        return kubelet_matters(member.pod, for_image=self._for_image) or member.pod.has_startup_probe

    async def _read(self, node: str) -> None:
        """Read a node. Its version and condition Ready are unknown after a refusal."""
        self._read_at[node] = loop_time()
        found: Mapping[str, Any] = {}
        with suppress(ApiRefusedError):
            found = await self._client.get(NODES, "", node)
        down, since = _is_down(found), parse_time(text(condition(found, "Ready").get("lastTransitionTime")))
        self.kubelets[node] = reported_version(found) if found else ""
        if since is not None and not down:
            self.ready_since[node] = since
        if down != (node in self.down):
            self.down ^= {node}
            self._changed()


def _has_failed(member: Member) -> bool:
    """Whether the last restart by a patch has failed, which may be because the node was down."""
    asked = member.patched
    return asked is not None and asked.request.completed and not asked.succeeded


class DownNodes:
    """Which nodes are down, for all who ask. Each node is read every few seconds at most, and a few of them at once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[str, tuple[float, bool]] = {}  # By node: the loop's time of the read, and whether it is down

    async def among(self, nodes: Iterable[str]) -> set[str]:
        """Return which of these nodes are known not to be ready. Raises ApiUnavailableError."""
        late, wanted = loop_time() - _SECONDS, sorted(nodes)
        self._known = {node: found for node, found in self._known.items() if found[0] >= late}
        due = [node for node in wanted if node not in self._known]
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*map(self._read, due[first : first + _AT_ONCE]))
        return {node for node in wanted if self._known.get(node, (late, False))[1]}

    async def _read(self, node: str) -> None:
        down = False
        with suppress(ApiRefusedError):
            down = _is_down(await self._client.get(NODES, "", node))
        self._known[node] = loop_time(), down


def _is_down(node: Mapping[str, Any]) -> bool:
    return bool(condition(node, "Ready").get("status", "True") != "True")  # unknown without the condition
