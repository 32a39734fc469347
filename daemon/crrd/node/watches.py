"""Watches the node's active requests (always) and the pods of live requests, and reads single pods.

Watches parse objects at once and pass them to `Pods`. They keep no objects.
"""

import asyncio
from typing import NoReturn

from crrd.core.api.pod import Pod
from crrd.core.api.types import ACTIVE_REQUESTS, LABEL_NODE_NAME, Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.config.uses import parse_reloading_pod
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer
from crrd.kube.reflector import Handler, Reflector, RestartObserver, Selection
from crrd.kube.resources import PODS, REQUESTS
from crrd.kube.watchset import ALL_OBJECTS, WatchSet
from crrd.lib.errors import ApiUnavailableError
from crrd.lib.heartbeat import Heartbeat
from crrd.node.pods import Pods

SINGLE_WATCHES = 8
"""Largest number of pods with a watch each. For more pods, one watch covers all pods of the node. Each watch has its
own connection, and a node's list must be read completely. On a node with 110 pods of 10 KiB, eight requests at once
cost 80 ms of CPU either way, and one request 16 ms with its own watch and 33 ms with the node's list."""
PAUSE_SECONDS = 0.02
"""Pause between listing pods and watching them, so that a stop that follows from the list does not wait for another
connection."""
FIND_SECONDS = 20.0  # Time limit for reading one pod, well below the time after which a handler counts as hanging


def request_source(
    client: KubeClient, node_name: str, pods: Pods, on_restart: RestartObserver | None = None
) -> Informer[Request]:
    """Return the watch of the node's active requests. `run` it for the daemon's whole life.

    A request that loses its label `active` is reported as deleted, because it leaves the selection.
    """
    selector = f"{LABEL_NODE_NAME}={node_name},{ACTIVE_REQUESTS}"
    selection = Selection(REQUESTS, parse_request, label_selector=selector)
    return Informer(client, selection, pods.requests, strict=True, on_restart=on_restart)


def pod_source(
    client: KubeClient,
    node_name: str,
    observed: Pods,
    on_restart: RestartObserver | None = None,
    *,
    key: str = ALL_OBJECTS,
) -> Reflector[Pod]:
    """Return the watch of the pod `namespace/name`, or of all pods of the node. The owner runs and cancels it.

    Refusals are always retried, because they must not end a daemon with running stops.
    """
    namespace, _, name = key.partition("/")
    here = f"spec.nodeName={node_name}"
    # With resourceVersion 0, the API server answers from its cache, which finds pods by node and by name. For the
    # newest version it would read every pod of the cluster. The watch reports what the cache lacks at that time.
    selection = Selection(
        PODS,
        parse_reloading_pod,
        namespace=namespace,
        field_selector=f"metadata.name={name},{here}" if name else here,
        list_version="0",
        pause=PAUSE_SECONDS,
    )

    def listed(pods: tuple[Pod, ...], version: str) -> None:
        if name:
            observed.pod_listed(key, next((pod for pod in pods if pod.key == key), None))
        else:
            observed.pods_listed(pods, version)

    handler = Handler(listed, observed.pod_changed, observed.pod_deleted)
    return Reflector(client, selection, handler, strict=False, on_restart=on_restart)


class PodWatches(WatchSet[Reflector[Pod]]):
    """Watches the pods of live requests: each pod, or if there are many, all pods of the node (until none is live).

    Only one of the two at a time, so what one reports is never older than what the other has reported before.
    """

    plural = PODS.plural

    def __init__(
        self, client: KubeClient, node_name: str, pods: Pods, on_restart: RestartObserver | None = None
    ) -> None:
        super().__init__(lambda key: pod_source(client, node_name, pods, on_restart, key=key), list_version="0")
        self._pods = pods
        self._heartbeat = Heartbeat()

    async def run(self) -> NoReturn:
        """Watch the wanted pods until cancelled. May be called again."""
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
        """For health pages: return what hangs, or ""."""
        return self._heartbeat.check() or super().check()

    async def _adjust(self, wanted: set[str], group: asyncio.TaskGroup) -> None:
        """End the watches that are not wanted any more, and start the wanted ones."""
        running = self.keys
        if ALL_OBJECTS in running or len(wanted) > SINGLE_WATCHES:
            wanted = {ALL_OBJECTS}
            await self._end(running - wanted)
        else:
            await self._end(running - wanted, forget=True)
        self.begin(wanted - running, group)

    async def _end(self, keys: set[str], *, forget: bool = False) -> None:
        """End watches. With `forget`, also forget their pods, because no other watch continues."""
        tasks = self.cancel(keys)
        for key in sorted(keys) if forget else ():
            self._pods.forget_pod(key)
        await asyncio.gather(*tasks, return_exceptions=True)


async def find_pod(client: KubeClient, namespace: str, name: str) -> Pod | None:
    """See `Edges.find_pod`. Lists that one name without resourceVersion, so that no cache answers.

    The watch already has the right to list pods. A `get` would need another right.
    """
    selector = f"metadata.name={name}"
    try:
        async with asyncio.timeout(FIND_SECONDS):
            listing = await client.list_all(PODS, parse_reloading_pod, namespace=namespace, field_selector=selector)
    except TimeoutError as error:
        raise ApiUnavailableError(f"timed out reading pod {namespace}/{name} from the API server") from error
    return next((pod for pod in listing.items if pod.name == name), None)
