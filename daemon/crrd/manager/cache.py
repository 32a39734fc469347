"""The last known requests of the cluster by pod, and the pods that matter to the manager."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from crrd.core.api.pod import PodMeta
from crrd.core.api.types import Request
from crrd.kube.informer import Objects

_MOST_REPAIRED = 256  # Pods remembered by `remember_repair`: the newest


class ManagerCache:
    """All requests of a cluster that are not settled, their pods, and the pods with the readiness gate.

    `on_change` is called with a pod's `namespace/name` when something about it has changed, `on_new` with a request
    that no list reported, and `on_list` after a list of requests. `has_work` returns whether a pod needs an action that
    no request causes.
    """

    def __init__(
        self,
        on_change: Callable[[str], None],
        on_new: Callable[[Request], None],
        on_list: Callable[[], None],
        has_work: Callable[[PodMeta], bool],
    ) -> None:
        self._on_change, self._on_new, self._on_list, self._has_work = on_change, on_new, on_list, has_work
        self.requests = Objects[Request](  # Of completed ones, only few fields: see `Request.slimmed`
            self._request_moved,
            listed=self._requests_listed,
            group=lambda request: request.pod_key,
            wanted=lambda request: not request.settled,
        )
        self._pods: dict[str, PodMeta] = {}
        self._repaired: OrderedDict[str, None] = OrderedDict()  # Pods of `remember_repair`, the last one last

    def requests_of(self, pod_key: str) -> list[Request]:
        """Return all known requests for a pod, the oldest first."""
        return sorted(self.requests.of(pod_key), key=lambda request: (request.created, request.name))

    def pod(self, pod_key: str) -> PodMeta | None:
        """Return the last known version of a pod, or None if it is not known."""
        return self._pods.get(pod_key)

    def _requests_listed(self) -> None:
        for key in self._repaired:
            self._on_change(key)
        self._on_list()

    def _request_moved(self, before: Request | None, after: Request | None) -> None:
        """Report the pod of a request, and the one before: a CRD without crrd's rules lets a request change its pod."""
        if before is None and after is not None and not self.requests.listing:
            self._on_new(after)
        for key in dict.fromkeys(each.pod_key for each in (before, after) if each is not None):
            self._on_change(key)
            pod = self._pods.get(key)
            if pod is not None and not pod.readiness_gate and key not in self.requests.groups:
                self.forget_pod(key)

    def remember_repair(self, pod_key: str) -> None:
        """Record that a pod's condition was changed for no request. Each new list of requests reports the pod.

        A restored etcd can lose that write, and then no request leads to the pod.
        """
        self._repaired[pod_key] = None
        self._repaired.move_to_end(pod_key)
        if len(self._repaired) > _MOST_REPAIRED:
            self._repaired.popitem(last=False)

    def repaired(self, pod_key: str) -> bool:
        """Whether `remember_repair` was called for a pod."""
        return pod_key in self._repaired

    def forget_repair(self, pod_key: str) -> None:
        """Undo `remember_repair`, because the pod does not exist any more."""
        self._repaired.pop(pod_key, None)

    def pod_changed(self, pod: PodMeta) -> None:
        """Record that a pod was added or modified."""
        requested = pod.key in self.requests.groups
        if not pod.readiness_gate and not requested:
            return
        known = self._pods.get(pod.key)
        self._pods[pod.key] = pod
        if known != pod and (requested or self._has_work(pod)):
            self._on_change(pod.key)

    def pod_read(self, pod: PodMeta) -> None:
        """Record a pod, and start no round for it. A round has read it, or the caller starts one."""
        if pod.readiness_gate or pod.key in self.requests.groups:
            self._pods[pod.key] = pod

    def pod_deleted(self, pod: PodMeta) -> None:
        """Record that a pod was deleted. The next one of the same name may be known already."""
        known = self._pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.key]
            if pod.key in self.requests.groups:
                self._on_change(pod.key)

    def pods_listed(self, pods: Iterable[PodMeta], _version: str, namespace: str) -> None:
        """Record the whole list of a namespace. Its pods that are not in the list are deleted."""
        listed = {pod.key: pod for pod in pods}
        for key, pod in tuple(self._pods.items()):
            if key not in listed and namespace == pod.namespace:
                self.pod_deleted(pod)
        for pod in listed.values():
            self.pod_changed(pod)

    def forget_pod(self, pod_key: str) -> None:
        """Drop a pod, because no watch reports its changes any more."""
        self._pods.pop(pod_key, None)

    def forget_namespace(self, namespace: str) -> None:
        """Drop all pods of a namespace. Pods with requests are read again."""
        for key, pod in tuple(self._pods.items()):
            if namespace == pod.namespace:
                self.forget_pod(key)
                if key in self.requests.groups:
                    self._on_change(key)
