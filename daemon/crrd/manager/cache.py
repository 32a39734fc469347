"""What the manager's watches saw last: the requests of the cluster by pod, and the pods that matter to the manager."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from crrd.core.api.pod import PodMeta
from crrd.core.api.types import Request
from crrd.kube.store import VersionedStore

_MOST_REPAIRED = 256  # Pods remembered by `remember_repair`: the newest


class ManagerCache:
    """All requests of a cluster that are not settled, and the pods that they are about or that have the readiness gate.

    `on_change` is called with a pod's `namespace/name` whenever something about it has changed. `has_work` says whether
    there is something to do about a pod, whatever its requests.
    """

    def __init__(self, on_change: Callable[[str], None], has_work: Callable[[PodMeta], bool]) -> None:
        self._on_change, self._has_work = on_change, has_work
        self._requests: VersionedStore[Request] = VersionedStore()
        self._by_pod: dict[str, set[str]] = {}  # Pod -> UIDs of its requests
        self._pods: dict[str, PodMeta] = {}
        self._repaired: dict[str, None] = {}  # Pods of `remember_repair`, the last one last

    def requests(self, pod_key: str) -> list[Request]:
        """All known requests for a pod, the oldest first."""
        found = filter(None, map(self._requests.get, self._by_pod.get(pod_key, ())))
        return sorted(found, key=lambda request: (request.created, request.name))

    def requested(self) -> tuple[str, ...]:
        """Every pod (`namespace/name`) that has a request."""
        return tuple(self._by_pod)

    def pod(self, pod_key: str) -> PodMeta | None:
        """The pod as last seen, None where it was not seen or does not matter."""
        return self._pods.get(pod_key)

    def request_changed(self, request: Request) -> None:
        """A request was added or modified, or written by this process; of a completed one only little is kept."""
        request = request.slimmed()
        known = self._requests.get(request.uid)
        if request.settled:
            if known is not None:
                self.request_deleted(request)
            return
        if not self._requests.put(request):
            return
        if known is not None and known.pod_key != request.pod_key:  # a CRD without crrd's rules lets that happen
            self._leave_pod(known)
        self._by_pod.setdefault(request.pod_key, set()).add(request.uid)
        if known != request:
            self._on_change(request.pod_key)

    def request_deleted(self, request: Request) -> None:
        """A request is no more: only a later version of it brings it back."""
        known = self._requests.drop(request.uid, request.resource_version)
        if known is not None:
            self._leave_pod(known)
        pod = self._pods.get(request.pod_key)
        if pod is not None and not pod.readiness_gate and request.pod_key not in self._by_pod:
            self.forget_pod(request.pod_key)

    def _leave_pod(self, request: Request) -> None:
        """It is none of its pod's requests any more."""
        siblings = self._by_pod[request.pod_key]
        siblings.discard(request.uid)
        if not siblings:
            del self._by_pod[request.pod_key]
        self._on_change(request.pod_key)

    def expect_requests(self) -> None:
        """The newest list of requests is asked for now: it overrules what is known by now."""
        self._requests.expect_list()

    def requests_listed(self, requests: Iterable[Request], version: str) -> None:
        """A whole list, as of this resourceVersion: what is not in it is gone."""
        listed = tuple(requests)
        for known in self._requests.absent(listed, version):
            self.request_deleted(replace(known, resource_version=version))
        for request in listed:
            self.request_changed(request)
        for key in self._repaired:
            self._on_change(key)

    def remember_repair(self, pod_key: str) -> None:
        """Record that a pod's condition was changed for no request. Each new list of requests reports the pod.

        A restored etcd can lose that write, and then no request leads to the pod.
        """
        self._repaired.pop(pod_key, None)
        self._repaired[pod_key] = None
        if len(self._repaired) > _MOST_REPAIRED:
            del self._repaired[next(iter(self._repaired))]

    def repaired(self, pod_key: str) -> bool:
        """Whether `remember_repair` was called for a pod."""
        return pod_key in self._repaired

    def forget_repair(self, pod_key: str) -> None:
        """There is no pod of this name."""
        self._repaired.pop(pod_key, None)

    def pod_changed(self, pod: PodMeta) -> None:
        """A pod was added or modified."""
        requested = pod.key in self._by_pod
        if not pod.readiness_gate and not requested:
            return
        known = self._pods.get(pod.key)
        self._pods[pod.key] = pod
        if known != pod and (requested or self._has_work(pod)):
            self._on_change(pod.key)

    def pod_deleted(self, pod: PodMeta) -> None:
        """A pod is no more; the one of the same name that followed it may be known already."""
        known = self._pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.key]
            if pod.key in self._by_pod:
                self._on_change(pod.key)

    def pods_listed(self, pods: Iterable[PodMeta], _version: str, namespace: str = "") -> None:
        """A whole list: what is not in it is gone. A namespace's tells of no other."""
        listed = {pod.key: pod for pod in pods}
        for key, pod in tuple(self._pods.items()):
            if key not in listed and namespace in ("", pod.namespace):
                self.pod_deleted(pod)
        for pod in listed.values():
            self.pod_changed(pod)

    def forget_pod(self, pod_key: str) -> None:
        """Drop a pod: nothing tells of its changes any more."""
        self._pods.pop(pod_key, None)

    def forget_namespace(self, namespace: str) -> None:
        """Likewise for all pods of a namespace, "" for all there are; whoever has requests is to be asked for."""
        for key, pod in tuple(self._pods.items()):
            if namespace in ("", pod.namespace):
                self.forget_pod(key)
                if key in self._by_pod:
                    self._on_change(key)
