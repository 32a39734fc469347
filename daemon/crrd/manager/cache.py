"""The last known requests of the cluster by pod, and the pods that matter to the manager."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from crrd.core.api.pod import PodMeta
from crrd.core.api.types import Request
from crrd.kube.informer import Objects

_MOST_REPAIRED = 256  # Pods remembered by `remember_repair`: the newest


class ManagerCache:
    """All requests of a cluster that are not settled, their pods, and the pods with the readiness gate.

    `on_change` is called with a pod's `namespace/name` when something about it has changed. `has_work` returns whether
    a pod needs an action that no request causes.
    """

    def __init__(self, on_change: Callable[[str], None], has_work: Callable[[PodMeta], bool]) -> None:
        self._on_change, self._has_work = on_change, has_work
        self._requests = Objects[Request](
            self._request_moved, group=lambda request: request.pod_key, wanted=lambda request: not request.settled
        )
        self._pods: dict[str, PodMeta] = {}
        self._repaired: OrderedDict[str, None] = OrderedDict()  # Pods of `remember_repair`, the last one last

    def requests(self, pod_key: str) -> list[Request]:
        """Return all known requests for a pod, the oldest first."""
        return sorted(self._requests.of(pod_key), key=lambda request: (request.created, request.name))

    def knows(self, request: Request) -> bool:
        """Whether a version of the request is known."""
        return self._requests.get(request.uid) is not None

    def requested(self) -> tuple[str, ...]:
        """Return the pods (`namespace/name`) that have a request."""
        return tuple(self._requests.groups)

    def pod(self, pod_key: str) -> PodMeta | None:
        """Return the last known version of a pod, or None if it is not known."""
        return self._pods.get(pod_key)

    def request_changed(self, request: Request) -> None:
        """Record that a request was added, modified or written. Of a completed one, only few fields are kept."""
        self._requests.put(request.slimmed())

    def request_deleted(self, request: Request) -> None:
        """Record that a request was deleted. Only a later version brings it back."""
        self._requests.delete(request)

    def expect_requests(self) -> None:
        """Record that the newest list of requests is requested now. It overrules all earlier versions."""
        self._requests.expect_list()

    def requests_listed(self, requests: Iterable[Request], version: str) -> None:
        """Record a whole list of this resourceVersion. Requests that are not in it are deleted."""
        self._requests.replace((request.slimmed() for request in requests), version)
        for key in self._repaired:
            self._on_change(key)

    def _request_moved(self, before: Request | None, after: Request | None) -> None:
        """Report the pod of a request, and the one before: a CRD without crrd's rules lets a request change its pod."""
        for key in dict.fromkeys(each.pod_key for each in (before, after) if each is not None):
            self._on_change(key)
            pod = self._pods.get(key)
            if pod is not None and not pod.readiness_gate and key not in self._requests.groups:
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
        requested = pod.key in self._requests.groups
        if not pod.readiness_gate and not requested:
            return
        known = self._pods.get(pod.key)
        self._pods[pod.key] = pod
        if known != pod and (requested or self._has_work(pod)):
            self._on_change(pod.key)

    def pod_deleted(self, pod: PodMeta) -> None:
        """Record that a pod was deleted. The next one of the same name may be known already."""
        known = self._pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.key]
            if pod.key in self._requests.groups:
                self._on_change(pod.key)

    def pods_listed(self, pods: Iterable[PodMeta], _version: str, namespace: str = "") -> None:
        """Record a whole list, of one namespace or of all. Pods that are not in it are deleted."""
        listed = {pod.key: pod for pod in pods}
        for key, pod in tuple(self._pods.items()):
            if key not in listed and namespace in ("", pod.namespace):
                self.pod_deleted(pod)
        for pod in listed.values():
            self.pod_changed(pod)

    def forget_pod(self, pod_key: str) -> None:
        """Drop a pod, because no watch reports its changes any more."""
        self._pods.pop(pod_key, None)

    def forget_namespace(self, namespace: str) -> None:
        """Drop all pods of a namespace ("" for all). Pods with requests are read again."""
        for key, pod in tuple(self._pods.items()):
            if namespace in ("", pod.namespace):
                self.forget_pod(key)
                if key in self._requests.groups:
                    self._on_change(key)
