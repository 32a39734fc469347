"""What the manager's watches saw last: requests, and the pods that matter to them, by pod.

The board never goes back behind this process' own writes, and forgets what nothing can be left to do for. It decides
nothing; it tells `on_change` which pod to look at again.
"""

from collections import deque
from collections.abc import Callable, Iterable

from daemon.core.api.pod import PodMeta
from daemon.core.api.views import RequestView, slim
from daemon.core.lifecycle.steps import pod_steps

TOMBSTONES = 1024
"""How many deleted requests are remembered, so that a late answer to a write does not revive one."""


class Board:
    """The last known requests (by pod) and pods; `on_change` is called with a pod's `namespace/name`."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._views: dict[str, RequestView] = {}
        self._by_pod: dict[str, dict[str, RequestView]] = {}
        self._pods: dict[str, PodMeta] = {}
        self._deleted: deque[str] = deque(maxlen=TOMBSTONES)

    def pod_keys(self) -> set[str]:
        """Every pod (`namespace/name`) that is known or has a request."""
        return self._by_pod.keys() | self._pods.keys()

    def views(self, pod_key: str) -> list[RequestView]:
        """All known requests for a pod, the oldest first."""
        found = self._by_pod.get(pod_key, {}).values()
        return sorted(found, key=lambda view: (view.request.created, view.request.name))

    def pod(self, pod_key: str) -> PodMeta | None:
        """The pod as last seen, None where it was not seen or does not matter."""
        return self._pods.get(pod_key)

    def request_changed(self, view: RequestView) -> None:
        """A request was added or modified, or written by this process."""
        request = view.request
        known = self._views.get(request.uid)
        if request.uid in self._deleted or (known is not None and _older(view, known)):
            return
        view = slim(view)
        self._views[request.uid] = view
        self._by_pod.setdefault(request.pod_key, {})[request.uid] = view
        if known != view:
            self._on_change(request.pod_key)

    def request_deleted(self, view: RequestView) -> None:
        """A request is no more."""
        uid = view.request.uid
        self._deleted.append(uid)
        known = self._views.pop(uid, None)
        if known is None:
            return
        key = known.request.pod_key
        siblings = self._by_pod[key]
        del siblings[uid]
        if not siblings:
            del self._by_pod[key]
            pod = self._pods.get(key)
            if pod is not None and not pod.gate:
                del self._pods[key]
        self._on_change(key)

    def requests_listed(self, views: Iterable[RequestView]) -> None:
        """A whole list: what is not in it is gone."""
        listed = {view.request.uid: view for view in views}
        for uid in self._views.keys() - listed.keys():
            self.request_deleted(self._views[uid])
        for view in listed.values():
            self.request_changed(view)

    def pod_changed(self, pod: PodMeta) -> None:
        """A pod was added or modified, or read or written by this process."""
        if not pod.gate and pod.key not in self._by_pod:
            return
        known = self._pods.get(pod.key)
        self._pods[pod.key] = pod
        if known != pod and (pod.key in self._by_pod or pod_steps(pod, ()).actions):
            self._on_change(pod.key)

    def pod_deleted(self, pod: PodMeta) -> None:
        """A pod is no more; the one of the same name that followed it may be known already."""
        known = self._pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.key]
        if pod.key in self._by_pod:
            self._on_change(pod.key)

    def pods_listed(self, pods: Iterable[PodMeta]) -> None:
        """A whole list: what is not in it is gone."""
        listed = {pod.key: pod for pod in pods}
        for key in self._pods.keys() - listed.keys():
            self.pod_deleted(self._pods[key])
        for pod in listed.values():
            self.pod_changed(pod)


def _older(view: RequestView, known: RequestView) -> bool:
    """Whether a version is behind the one on the board.

    Kubernetes' resourceVersions of one resource are comparable as integers (KEP-5504); where they are not integers,
    everything that comes counts as newer.
    """
    try:
        return int(view.request.resource_version) < int(known.request.resource_version)
    except ValueError:
        return False
