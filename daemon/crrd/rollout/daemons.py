"""The node daemons of the cluster, from a watch of their pods: a node without a ready one cannot restart containers."""

from collections.abc import Callable, Mapping

from crrd.core.api.types import NODE_DAEMONS
from crrd.core.rollout.state import NodeDaemon, read_node_daemon
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Values, Version
from crrd.kube.reflector import Selection
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError
from crrd.lib.looptime import loop_time

_UPDATE_SECONDS = 600.0  # A node that has no daemon for longer does not wait for the next one


class NodeDaemons(Values[NodeDaemon]):
    """The known pods of node daemons. `changed` is called after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(read_node_daemon, self._note)
        self._notify = changed
        self._by_node: Mapping[str, NodeDaemon] | None = None
        self._gone: dict[str, float] = {}  # By node without one: until when the next one is awaited (the loop's time)
        self._outdated = True

    @property
    def by_node(self) -> Mapping[str, NodeDaemon] | None:
        """The node daemon of each node: a ready one, if there are several. None if there has been none at all.

        Then another program serves the requests (kruise-daemon, or a daemon outside of the cluster). A node whose
        daemon is gone is kept for a while, because an update replaces the pod.
        """
        now = loop_time()
        if self._outdated or now >= min(self._gone.values(), default=now + 1):
            found = sorted((each for each in self.values() if each.node), key=lambda each: each.ready)
            there, before = {each.node: each for each in found}, self._by_node or {}
            until = dict.fromkeys(before, now + _UPDATE_SECONDS) | self._gone
            self._gone = {node: end for node, end in until.items() if node not in there and now < end}
            gone = {node: NodeDaemon(node, ready=False) for node in self._gone}
            if there or self._by_node is not None:
                self._by_node = gone | there
            self._outdated = False
        return self._by_node

    def _note(self) -> None:
        self._outdated = True
        self._notify()


def daemon_informer(client: KubeClient, daemons: NodeDaemons, *, strict: bool) -> Informer[Version[NodeDaemon]]:
    """Return the watch that keeps `daemons` up to date while it runs. `strict` as in Reflector."""
    selection = Selection(PODS, daemons.parse, label_selector=NODE_DAEMONS)
    return Informer(client, selection, daemons, strict=strict)


class ReadyDaemons:
    """Which nodes lack a ready node daemon, while `informer` runs."""

    def __init__(self, client: KubeClient) -> None:
        self._daemons = NodeDaemons(lambda: None)
        self.informer = daemon_informer(client, self._daemons, strict=False)

    def lacks(self, node: str) -> bool:
        """Whether there are node daemons, but no ready one on this node. False if that is not known now."""
        known = None if self.informer.ready() else self._daemons.by_node
        return known is not None and (node not in known or not known[node].ready)


async def may_list_daemons(client: KubeClient) -> bool:
    """Return whether this process may list the pods of node daemons, which are in another namespace."""
    try:
        await client.first(PODS, label_selector=NODE_DAEMONS)
    except ApiRefusedError as error:
        if error.status != 403:
            raise
        return False
    return True


async def has_daemon(client: KubeClient, node: str) -> bool:
    """Return whether a node has a pod of the node daemon, ready or not. Raises ApiUnavailableError, ApiRefusedError."""
    return await client.first(PODS, label_selector=NODE_DAEMONS, field_selector=f"spec.nodeName={node}") is not None
