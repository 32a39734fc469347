"""What a node watches: its active requests, always, and the pods that they are about, while they are; and what it asks.

Watches parse at once and tell the Observer; neither keeps an object.
"""

import asyncio
from typing import NoReturn

from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.types import LABEL_ACTIVE, LABEL_NODE_NAME, Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, RestartObserver, Selection
from crrd.kube.resources import PODS, REQUESTS
from crrd.kube.watchset import EVERY, WatchSet
from crrd.lib.errors import ApiUnavailableError
from crrd.lib.heartbeat import Heartbeat
from crrd.node.pods import Pods
from crrd.ports import Observer

SINGLE_WATCHES = 8
"""Pods that are watched each by its own watch; where more of them matter, one watch has all pods of the node. Each
watch has a connection of its own, and a node's list has to be read as a whole: on a node with 110 pods of 10 KiB, eight
requests at once cost the daemon 80 ms of CPU either way, one 16 ms by itself and 33 ms by the node's list."""
PAUSE_SECONDS = 0.02
"""Between a list of pods and its watch: what follows from the list, a stop, need not wait for another connection."""
FIND_SECONDS = 20.0
"""For an answer about one pod, while its handler waits: well under what counts as a handler that hangs."""


def request_source(
    client: KubeClient, node_name: str, observer: Observer, on_restart: RestartObserver | None = None
) -> Reflector[Request]:
    """The node's active requests. `run` it for the daemon's whole life.

    A request that has lost its active label comes as deleted: so API servers say that an object left a selection.
    """
    selector = f"{LABEL_NODE_NAME}={node_name},{LABEL_ACTIVE}=true"
    selection = Selection(REQUESTS, parse_request, label_selector=selector)
    told = (observer.requests_listed, observer.request_changed, observer.request_deleted, observer.expect_requests)
    return Reflector(client, selection, Handler(*told), strict=True, on_restart=on_restart)


def pod_source(
    client: KubeClient,
    node_name: str,
    observer: Observer,
    on_restart: RestartObserver | None = None,
    *,
    key: str = EVERY,
) -> Reflector[Pod]:
    """The pod `namespace/name` of the node, or all of them. The owner runs it and cancels it as it needs.

    Refusals are always retried: they must not end a daemon that has stops under way.
    """
    namespace, _, name = key.partition("/")
    here = f"spec.nodeName={node_name}"
    # Version 0 is answered from the API server's cache, which finds pods by node and by name; the newest would
    # make it read every pod of the cluster. What the cache lacks by then comes with the watch.
    selection = Selection(
        PODS,
        parse_pod,
        namespace=namespace,
        field_selector=f"metadata.name={name},{here}" if name else here,
        list_version="0",
        pause=PAUSE_SECONDS,
    )

    def listed(pods: tuple[Pod, ...], version: str) -> None:
        if name:
            observer.pod_listed(key, next((pod for pod in pods if pod.key == key), None))
        else:
            observer.pods_listed(pods, version)

    handler = Handler(listed, observer.pod_changed, observer.pod_deleted)
    return Reflector(client, selection, handler, strict=False, on_restart=on_restart)


class PodWatches(WatchSet[Reflector[Pod]]):
    """Watches the pods of live requests: a few one by one, many by one watch of the node until no request is live.

    One of the two at a time: what one of them has told is never older than what the other told before.
    """

    plural = PODS.plural

    def __init__(
        self, client: KubeClient, node_name: str, pods: Pods, on_restart: RestartObserver | None = None
    ) -> None:
        super().__init__(lambda key: pod_source(client, node_name, pods, on_restart, key=key), list_version="0")
        self._pods = pods
        self._heartbeat = Heartbeat()

    async def run(self) -> NoReturn:
        """Watch what is wanted, until cancelled; may be run again."""
        changed = self._pods.live_changed
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    changed.clear()
                    await self._adjust(self._pods.live_pods(), group)
                    self._heartbeat.until(changed, "waiting for another request")
                    await changed.wait()
            finally:
                self._heartbeat.rest()
                await self._end(self.keys)

    def check(self) -> str:
        """For health pages: what of it hangs."""
        return self._heartbeat.check() or super().check()

    async def _adjust(self, wanted: set[str], group: asyncio.TaskGroup) -> None:
        """End what is not wanted any more, and begin what is."""
        running = self.keys
        if EVERY in running or len(wanted) > SINGLE_WATCHES:
            wanted = {EVERY}
            await self._end(running - wanted)
        else:
            await self._end(running - wanted, forget=True)
        self.begin(wanted - running, group)

    async def _end(self, keys: set[str], *, forget: bool = False) -> None:
        """End watches; what they told is forgotten, unless another watch goes on from it."""
        tasks = self.cancel(keys)
        for key in sorted(keys) if forget else ():
            self._pods.forget_pod(key)
        await asyncio.gather(*tasks, return_exceptions=True)


async def find_pod(client: KubeClient, namespace: str, name: str) -> Pod | None:
    """See `Edges.find_pod`: a list of that one name, with no resourceVersion, so that no cache answers it.

    The right to list pods is there for the watch; a `get` would need one more.
    """
    selector = f"metadata.name={name}"
    try:
        async with asyncio.timeout(FIND_SECONDS):
            listing = await client.list_all(PODS, parse_pod, namespace=namespace, field_selector=selector)
    except TimeoutError as error:
        raise ApiUnavailableError(f"timed out reading pod {namespace}/{name} from the API server") from error
    return next((pod for pod in listing.items if pod.name == name), None)
