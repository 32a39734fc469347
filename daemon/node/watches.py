"""What a node watches: its active requests, always, and its pods, while somebody wants to know; and what it asks.

Watches parse at once and tell the Observer; neither keeps an object.
"""

from daemon.core.api.pod import Pod, parse_pod
from daemon.core.api.types import LABEL_ACTIVE, LABEL_NODE_NAME, Request
from daemon.core.api.v1alpha1 import parse_request
from daemon.kube.client import KubeClient
from daemon.kube.reflector import Handler, Reflector, RestartObserver, Selection
from daemon.kube.resources import PODS, REQUESTS
from daemon.ports import Observer


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
    """The node's pods. The owner runs it and cancels it as it needs readiness; see Reflector for its health.

    Refusals are always retried: they must not end a daemon that has stops under way.
    """

    def __init__(
        self, client: KubeClient, node_name: str, observer: Observer, on_restart: RestartObserver | None = None
    ) -> None:
        # Version 0 is answered from the API server's cache, which has an index of pods by node; the newest would make
        # it read every pod of the cluster. What the cache lacks by then comes with the watch.
        selection = Selection(PODS, parse_pod, field_selector=f"spec.nodeName={node_name}", list_version="0")
        handler = Handler(observer.pods_listed, observer.pod_changed, observer.pod_deleted)
        super().__init__(client, selection, handler, strict=False, on_restart=on_restart)


class KubePodFinder:
    """Implements `ports.PodFinder`: a list of that one name, with no resourceVersion, so that no cache answers it.

    The right to list pods is there for the watch; a `get` would need one more.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def find(self, namespace: str, name: str) -> Pod | None:
        """See PodFinder."""
        selector = f"metadata.name={name}"
        listing = await self._client.list_all(PODS, parse_pod, namespace=namespace, field_selector=selector)
        return next((pod for pod in listing.items if pod.name == name), None)
