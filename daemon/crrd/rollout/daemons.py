"""The node daemons of the cluster, from a watch of their pods: a node without a ready one cannot restart containers."""

from collections.abc import Callable, Mapping

from crrd.core.api.types import NODE_DAEMONS
from crrd.core.rollout.state import NodeDaemon, read_node_daemon
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Values, Version
from crrd.kube.reflector import Selection
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError


class NodeDaemons(Values[NodeDaemon]):
    """The known pods of node daemons. `changed` is called after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(read_node_daemon, self._note)
        self._notify = changed
        self._by_node: dict[str, NodeDaemon] = {}
        self._outdated = True

    @property
    def by_node(self) -> Mapping[str, NodeDaemon] | None:
        """The node daemon of each node: a ready one, if there are several. None if there has been none at all.

        Then another program serves the requests (kruise-daemon, or a daemon outside of the cluster). A node whose
        daemon is gone is kept, because an update replaces the pod.
        """
        if self._outdated:
            found = sorted((each for each in self.values() if each.node), key=lambda each: each.ready)
            gone = {node: NodeDaemon(node, ready=False) for node in self._by_node}
            self._by_node, self._outdated = gone | {each.node: each for each in found}, False
        return self._by_node or None

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
