"""What the watches saw last: the requests of this node and, while one is live, its pods.

The board implements `ports.Observer`. It never goes back behind this process' own writes: what a write returned is
put up at once, and older versions that the watch still brings are dropped. It decides nothing; it tells `on_change`
which pod to look at again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from daemon.core.api.pod import PodView
from daemon.core.api.types import Request

TOMBSTONES = 1024
"""How many deleted requests are remembered, so that a late answer to a write does not revive one."""


class Board:
    """The last known requests (by pod) and pods.

    Args:
        on_change: called with a pod's `namespace/name` whenever something about it has changed.
        clock: monotonic seconds.
    """

    def __init__(self, on_change: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._on_change = on_change
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._by_pod: dict[str, dict[str, Request]] = {}
        self._pods: dict[str, PodView] = {}
        self._gone: set[str] = set()
        self._live: set[str] = set()
        self._deleted: deque[str] = deque(maxlen=TOMBSTONES)
        self.first_seen: dict[str, float] = {}
        self.unready_seen: dict[str, float] = {}
        self.pods_since: float | None = None
        self.pods_known = asyncio.Event()
        """Set while the node's pods are known."""
        self.active = asyncio.Event()
        """Set while at least one request is live."""
        self.idle = asyncio.Event()
        """Set while none is."""
        self.idle.set()

    @property
    def pending(self) -> int:
        """How many requests are live."""
        return len(self._live)

    def requests(self, pod_key: str) -> Sequence[Request]:
        """Every known request of the pod."""
        return list(self._by_pod.get(pod_key, {}).values())

    def request(self, uid: str) -> Request | None:
        """The request with this UID."""
        return self._requests.get(uid)

    def live_requests(self) -> list[Request]:
        """Every live request of the node."""
        return [self._requests[uid] for uid in self._live]

    def live_pods(self) -> set[str]:
        """Pods (`namespace/name`) with at least one live request."""
        return {self._requests[uid].pod_key for uid in self._live}

    def pod(self, pod_key: str) -> PodView | None:
        """The pod as last seen, None while it was not seen."""
        return self._pods.get(pod_key)

    def pod_gone(self, pod_key: str) -> bool:
        """Whether the pod was seen here and is no more."""
        return pod_key in self._gone

    def request_changed(self, request: Request) -> None:
        """See `ports.Observer`; also takes what a write of our own returned."""
        known = self._requests.get(request.uid)
        if request.uid in self._deleted or (known is not None and _older(request, known)):
            return
        if not request.active:
            self._forget(request)
            return
        now = self._clock()
        self.first_seen.setdefault(request.uid, now)
        if request.unready_acquired:
            self.unready_seen.setdefault(request.uid, now)
        self._requests[request.uid] = request
        self._by_pod.setdefault(request.pod_key, {})[request.uid] = request
        if request.live:
            self._live.add(request.uid)
        else:
            self._live.discard(request.uid)
        self._mark()
        if known is None or known != request:
            self._on_change(request.pod_key)

    def request_deleted(self, request: Request) -> None:
        """See `ports.Observer`."""
        self._deleted.append(request.uid)
        self._forget(request)

    def requests_listed(self, requests: Mapping[str, Request]) -> None:
        """See `ports.Observer`."""
        for uid in self._requests.keys() - requests.keys():
            self.request_deleted(self._requests[uid])
        for request in requests.values():
            self.request_changed(request)

    def pod_changed(self, pod: PodView) -> None:
        """See `ports.Observer`."""
        key = f"{pod.namespace}/{pod.name}"
        self._gone.discard(key)
        if self._pods.get(key) != pod:
            self._pods[key] = pod
            self._poke(key)

    def pod_deleted(self, pod: PodView) -> None:
        """See `ports.Observer`."""
        key = f"{pod.namespace}/{pod.name}"
        if self._pods.pop(key, None) is not None:
            self._gone.add(key)
            self._poke(key)

    def pods_listed(self, pods: Mapping[str, PodView]) -> None:
        """See `ports.Observer`."""
        if self.pods_since is None:
            self.pods_since = self._clock()
        for key in self._pods.keys() - pods.keys():
            self.pod_deleted(self._pods[key])
        for pod in pods.values():
            self.pod_changed(pod)
        self.pods_known.set()

    def forget_pods(self) -> None:
        """Nothing watches the pods any more: what was known of them ages from now on."""
        self._pods.clear()
        self._gone.clear()
        self.pods_since = None
        self.pods_known.clear()

    def _forget(self, request: Request) -> None:
        """Take a request down; the pod's next one starts at once."""
        known = self._requests.pop(request.uid, None)
        for memory in (self.first_seen, self.unready_seen):
            memory.pop(request.uid, None)
        self._live.discard(request.uid)
        self._mark()
        if known is None:
            return
        siblings = self._by_pod[known.pod_key]
        del siblings[request.uid]
        if not siblings:
            del self._by_pod[known.pod_key]
        self._on_change(known.pod_key)

    def _mark(self) -> None:
        """Keep the two events in step with what is live."""
        if self._live:
            self.active.set()
            self.idle.clear()
        else:
            self.active.clear()
            self.idle.set()

    def _poke(self, pod_key: str) -> None:
        """A pod changed: of interest only where it has a request."""
        if pod_key in self._by_pod:
            self._on_change(pod_key)


def _older(request: Request, known: Request) -> bool:
    """Whether a version is behind the one on the board.

    Kubernetes' resourceVersions of one resource are comparable as integers (KEP-5504); where they are not integers,
    everything that comes counts as newer.
    """
    try:
        return int(request.resource_version) < int(known.resource_version)
    except ValueError:
        return False
