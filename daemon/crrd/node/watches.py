"""What a node watches: its active requests, always, and the pods that they are about, while they are; and what it asks.

Watches parse at once and tell the Observer; neither keeps an object.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.types import LABEL_ACTIVE, LABEL_NODE_NAME, Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, RestartObserver, Selection
from crrd.kube.resources import PODS, REQUESTS
from crrd.kube.store import older
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
_EVERY_POD = ""
"""In place of a pod's key."""


class RequestSource(Reflector[Request]):
    """The node's active requests. `run` it for the daemon's whole life; see Reflector for its health.

    A request that has lost its active label comes as deleted: so API servers say that an object left a selection.
    """

    def __init__(
        self, client: KubeClient, node_name: str, observer: Observer, on_restart: RestartObserver | None = None
    ) -> None:
        selection = Selection(
            REQUESTS, parse_request, label_selector=f"{LABEL_NODE_NAME}={node_name},{LABEL_ACTIVE}=true"
        )
        handler = Handler(observer.requests_listed, observer.request_changed, observer.request_deleted)
        super().__init__(client, selection, handler, strict=True, on_restart=on_restart)


class PodSource(Reflector[Pod]):
    """One pod of the node, or all of them. The owner runs it and cancels it as it needs; see Reflector for its health.

    Refusals are always retried: they must not end a daemon that has stops under way.

    Args:
        client: to reach the API server with.
        node_name: this node.
        observer: is told.
        key: the pod's `namespace/name`; "" for every pod of the node.
        on_restart: see Reflector.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        observer: Observer,
        *,
        key: str = _EVERY_POD,
        on_restart: RestartObserver | None = None,
    ) -> None:
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
        super().__init__(client, selection, handler, strict=False, on_restart=on_restart)


@dataclass(frozen=True, slots=True)
class _Running:
    """A source that runs."""

    source: PodSource
    task: asyncio.Task[NoReturn]
    began_with: str
    """What its first list was not to be older than."""


class PodWatches:
    """Watches the pods of live requests: a few one by one, many by one watch of the node until no request is live.

    One of the two at a time: what one of them has told is never older than what the other told before.

    Args:
        client: to reach the API server with.
        node_name: this node.
        pods: say whose requests are live, and are told.
        on_restart: see Reflector.
    """

    plural = PODS.plural

    def __init__(
        self, client: KubeClient, node_name: str, pods: Pods, on_restart: RestartObserver | None = None
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._pods = pods
        self._on_restart = on_restart
        self._running: dict[str, _Running] = {}
        self._list_version = "0"
        """What no list may be older than, "" for the newest: what was watched before must not go back in time."""
        self._last_list_time: float | None = None
        self._last_activity: float | None = None
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
                await self._end(tuple(self._running))

    def check(self) -> str:
        """For health pages: what of it hangs."""
        signs = (self._heartbeat, *(running.source.heartbeat for running in self._running.values()))
        return next(filter(None, (sign.check() for sign in signs)), "")

    @property
    def last_error(self) -> str:
        """Why one of the watches has no connection now, "" for nothing."""
        return next(filter(None, (running.source.last_error for running in self._running.values())), "")

    @property
    def last_list_time(self) -> float | None:
        """Monotonic time of the last list of them, None before."""
        return _latest(self._last_list_time, *(running.source.last_list_time for running in self._running.values()))

    @property
    def last_activity(self) -> float | None:
        """Monotonic time at which the API server last said anything of pods, None before."""
        return _latest(self._last_activity, *(running.source.last_activity for running in self._running.values()))

    async def _adjust(self, wanted: set[str], group: asyncio.TaskGroup) -> None:
        """End what is not wanted any more, and begin what is."""
        if _EVERY_POD in self._running or len(wanted) > SINGLE_WATCHES:
            await self._end([key for key in self._running if key != _EVERY_POD])
            wanted = {_EVERY_POD}
        else:
            await self._end([key for key in self._running if key not in wanted], forget=True)
        for key in wanted - self._running.keys():
            source = PodSource(self._client, self._node_name, self._pods, key=key, on_restart=self._on_restart)
            source.list_version = self._list_version
            task = group.create_task(source.run(), name=f"pod watch {key}")
            self._running[key] = _Running(source, task, self._list_version)

    async def _end(self, keys: Sequence[str], *, forget: bool = False) -> None:
        """End watches; what they told is forgotten, unless another watch goes on from it."""
        ended = [self._running.pop(key) for key in keys]
        for running in ended:
            running.task.cancel()
            self._learn(running)  # at once: the wait below may be cut short
        for key in keys if forget else ():
            self._pods.forget_pod(key)
        await asyncio.gather(*(running.task for running in ended), return_exceptions=True)

    def _learn(self, ended: _Running) -> None:
        """Remember of a watch what outlives it."""
        source, version = ended.source, ended.source.list_version
        self._last_list_time = _latest(self._last_list_time, source.last_list_time)
        self._last_activity = _latest(self._last_activity, source.last_activity)
        if not version or (not self._list_version and ended.began_with):
            self._list_version = ""  # a version was lost: only the newest list is sure to be new enough
        elif not self._list_version or older(self._list_version, version):
            self._list_version = version


def _latest(*times: float | None) -> float | None:
    return max((time for time in times if time is not None), default=None)


class KubePodFinder:
    """Implements `ports.PodFinder`: a list of that one name, with no resourceVersion, so that no cache answers it.

    The right to list pods is there for the watch; a `get` would need one more.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def find(self, namespace: str, name: str) -> Pod | None:
        """See PodFinder."""
        selector = f"metadata.name={name}"
        try:
            async with asyncio.timeout(FIND_SECONDS):
                listing = await self._client.list_all(PODS, parse_pod, namespace=namespace, field_selector=selector)
        except TimeoutError as error:
            raise ApiUnavailableError(f"pod {namespace}/{name} was asked for, and not answered in time") from error
        return next((pod for pod in listing.items if pod.name == name), None)
