"""What the watches saw last: requests by pod, and pods. One cache for each daemon, on one base.

A cache never goes back behind this process' own writes: what a write returned is put in at once, and older versions
that a watch still brings are dropped. It decides nothing; it tells `on_change` which pod to look at again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Generic, TypeVar

from crrd.core.api.pod import Pod, PodMeta
from crrd.core.api.types import Begun, Request

P = TypeVar("P", bound=PodMeta)

TOMBSTONES = 1024
"""How many requests that have gone are remembered, so that a late answer to a write does not revive one."""


class Cache(Generic[P]):
    """The last known requests and pods.

    Args:
        on_change: called with a pod's `namespace/name` whenever something about it has changed.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._requests: dict[str, Request] = {}
        self._by_pod: dict[str, dict[str, Request]] = {}
        self._pods: dict[str, P] = {}
        self._gone_at: OrderedDict[str, str] = OrderedDict()
        """UID of a request that has gone, or left the selection -> the resourceVersion at which it did."""

    def requests(self, pod_key: str) -> list[Request]:
        """All known requests for a pod, the oldest first."""
        return sorted(self._by_pod.get(pod_key, {}).values(), key=lambda request: (request.created, request.name))

    def request(self, uid: str) -> Request | None:
        """The request with this UID."""
        return self._requests.get(uid)

    def pod(self, pod_key: str) -> P | None:
        """The pod as last seen, None where it was not seen or does not matter."""
        return self._pods.get(pod_key)

    def request_changed(self, request: Request) -> None:
        """A request was added or modified, or written by this process."""
        known = self._requests.get(request.uid)
        if known is not None and older(request.resource_version, known.resource_version):
            return
        left_at = self._gone_at.get(request.uid)
        if left_at is not None and not older(left_at, request.resource_version):
            return
        self._gone_at.pop(request.uid, None)
        if known is not None and known.pod_key != request.pod_key:  # a CRD without crrd's rules lets that happen
            self._leave_pod(known)
        self._requests[request.uid] = request
        self._by_pod.setdefault(request.pod_key, {})[request.uid] = request
        if known != request:
            self._on_change(request.pod_key)

    def request_deleted(self, request: Request) -> None:
        """A request is no more, or has left the selection: only a later version of it brings it back."""
        self._gone_at[request.uid] = request.resource_version
        self._gone_at.move_to_end(request.uid)
        if len(self._gone_at) > TOMBSTONES:
            self._gone_at.popitem(last=False)
        known = self._requests.pop(request.uid, None)
        if known is None:
            return
        self._leave_pod(known)

    def _leave_pod(self, request: Request) -> None:
        """It is none of its pod's requests any more."""
        siblings = self._by_pod[request.pod_key]
        del siblings[request.uid]
        if not siblings:
            del self._by_pod[request.pod_key]
        self._on_change(request.pod_key)

    def requests_listed(self, requests: Iterable[Request], version: str) -> None:
        """A whole list, as of this resourceVersion: what is not in it is gone."""
        listed = {request.uid: request for request in requests}
        for uid in self._requests.keys() - listed.keys():
            self.request_deleted(replace(self._requests[uid], resource_version=version))
        for request in listed.values():
            self.request_changed(request)

    def pod_changed(self, pod: P) -> None:
        """A pod was added or modified."""
        known = self._pods.get(pod.key)
        self._pods[pod.key] = pod
        if known != pod and pod.key in self._by_pod:
            self._on_change(pod.key)

    def pod_deleted(self, pod: PodMeta) -> None:
        """A pod is no more; the one of the same name that followed it may be known already."""
        known = self._pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.key]
            if pod.key in self._by_pod:
                self._on_change(pod.key)

    def pods_listed(self, pods: Iterable[P], version: str, namespace: str = "") -> None:
        """A whole list, as of this resourceVersion: what is not in it is gone. A namespace's tells of no other."""
        listed = {pod.key: pod for pod in pods}
        for key, pod in tuple(self._pods.items()):
            if key not in listed and namespace in ("", pod.namespace):
                self.pod_deleted(pod)
        for pod in listed.values():
            self.pod_changed(pod)


class NodeCache(Cache[Pod]):
    """The active requests of a node and, while they are live, their pods (or all of the node's).

    Args:
        on_change: see Cache.
        clock: monotonic seconds.
    """

    def __init__(self, on_change: Callable[[str], None], clock: Callable[[], float]) -> None:
        super().__init__(on_change)
        self._clock = clock
        self._gone: dict[str, float] = {}
        """Pod -> monotonic time at which the one that was seen here went."""
        self._pod_at: dict[str, float] = {}
        self._live: set[str] = set()
        self._known_since: dict[str, float] = {}
        """Pod -> monotonic time since which it is known whether it is there, and kept up to date."""
        self._all_known_since: float | None = None
        """The same for every pod of the node at once."""
        self._awaited: dict[str, asyncio.Event] = {}
        """By pods that somebody waits for to be known."""
        self.first_seen: dict[str, float] = {}
        """Request UID -> monotonic time at which it was first seen; the same for the next one and its mark."""
        self.unready_seen: dict[str, float] = {}
        self.unpinned: set[str] = set()
        """UIDs of requests from which somebody has removed pins: they are to be written again."""
        self.live_changed = asyncio.Event()
        """Set when a request begins or ceases to be live; whoever heeds it clears it."""
        self.active = asyncio.Event()
        """Set while at least one request is live."""
        self.idle = asyncio.Event()
        """Set while none is."""
        self.idle.set()

    def live_requests(self) -> list[Request]:
        """Every live request."""
        return [self._requests[uid] for uid in self._live]

    def live_pods(self) -> set[str]:
        """Pods (`namespace/name`) with at least one live request."""
        return {self._requests[uid].pod_key for uid in self._live}

    def pod_gone(self, pod_key: str) -> bool:
        """Whether the pod was seen here and is no more."""
        return pod_key in self._gone

    def heard_of(self, pod_key: str) -> object:
        """Differs from what it was before where a watch has since told anything new of the pod."""
        return self._pods.get(pod_key), self._gone.get(pod_key)

    def pod_at(self, pod_key: str) -> float:
        """Monotonic time at which the pod's version came; 0 for a pod that is not known."""
        return self._pod_at.get(pod_key, 0.0)

    def known_since(self, pod_key: str) -> float | None:
        """Monotonic time since which it is known whether the pod is there, None while it is not."""
        return self._known_since.get(pod_key, self._all_known_since)

    async def wait_until_known(self, pod_key: str) -> None:
        """Return when it is known whether the pod is there."""
        if self.known_since(pod_key) is None:
            await self._awaited.setdefault(pod_key, asyncio.Event()).wait()

    def request_changed(self, request: Request, *, own_pins: bool = False) -> None:
        """See Cache; a request without the active label is none of the node's. Its pins stay, whoever changes them.

        `own_pins`: they are what this process has just written.
        """
        known = self._requests.get(request.uid)
        if not request.active:
            if known is None or not older(request.resource_version, known.resource_version):
                self.request_deleted(request)
            return
        if known is not None and not known.error and request.spoilt:
            request = replace(request, error="", spoilt=False)
        said = request
        if known is not None and not own_pins:
            # Nobody changes which instance is meant, or takes back what was begun: the annotation can be edited.
            pinned, begun = {**request.pinned, **known.pinned}, dict(known.begun)
            for name, times in request.begun.items():
                pin = request.pinned.get(name)
                if pin is not None and pin.bare_id == pinned[name].bare_id:  # times count with the instance they are of
                    begun[name] = times.after(known.begun.get(name, Begun()))
            request = replace(request, pinned=pinned, begun=begun)
        super().request_changed(request)
        if self._requests.get(request.uid) is not request:
            return
        (self.unpinned.discard if request == said else self.unpinned.add)(request.uid)
        now = self._clock()
        self.first_seen.setdefault(request.uid, now)
        if request.unready_acquired:
            self.unready_seen.setdefault(request.uid, now)
        (self._live.add if request.live else self._live.discard)(request.uid)
        self._mark()

    def request_deleted(self, request: Request) -> None:
        """See Cache; the pod's next request starts at once."""
        for memory in (self.first_seen, self.unready_seen):
            memory.pop(request.uid, None)
        self._live.discard(request.uid)
        self.unpinned.discard(request.uid)
        super().request_deleted(request)
        if request.pod_key not in self._by_pod:
            self._gone.pop(request.pod_key, None)
        self._mark()

    def pod_changed(self, pod: Pod) -> None:
        """See Cache."""
        self._gone.pop(pod.key, None)
        if self._pods.get(pod.key) != pod:
            self._pod_at[pod.key] = self._clock()
        super().pod_changed(pod)

    def pod_deleted(self, pod: PodMeta) -> None:
        """See Cache."""
        known = self._pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            if pod.key in self._by_pod:
                self._gone[pod.key] = self._clock()
            self._pod_at.pop(pod.key, None)
        super().pod_deleted(pod)

    def pods_listed(self, pods: Iterable[Pod], version: str, namespace: str = "") -> None:
        """See Cache."""
        first = self._all_known_since is None
        if first:
            self._all_known_since = self._clock()
        super().pods_listed(pods, version, namespace)
        if first:
            for key in self._by_pod.keys() - self._pods.keys():
                self._on_change(key)  # that it is not there is news
        for event in self._awaited.values():
            event.set()

    def pod_listed(self, pod_key: str, pod: Pod | None) -> None:
        """What the node has under this name, None for nothing."""
        first = self.known_since(pod_key) is None
        self._known_since.setdefault(pod_key, self._clock())
        if pod is not None:
            self.pod_changed(pod)
        elif (known := self._pods.get(pod_key)) is not None:
            self.pod_deleted(known)
        elif first:
            self._on_change(pod_key)  # that it is not there is news
        if event := self._awaited.get(pod_key):
            event.set()

    def forget_pod(self, pod_key: str) -> None:
        """Nothing watches the pod any more: what was known of it ages from now on."""
        for memory in (self._pods, self._pod_at, self._known_since):
            memory.pop(pod_key, None)
        self._gone.pop(pod_key, None)
        if event := self._awaited.pop(pod_key, None):
            event.set()  # who waits is to look at what there is

    def forget_pods(self) -> None:
        """The same for all pods."""
        for memory in (self._pods, self._pod_at, self._known_since):
            memory.clear()
        self._gone.clear()
        for event in self._awaited.values():
            event.set()
        self._awaited.clear()
        self._all_known_since = None

    def _mark(self) -> None:
        """Keep the events in step with what is live."""
        came, went = (self.active, self.idle) if self._live else (self.idle, self.active)
        came.set()
        went.clear()
        self.live_changed.set()


class ManagerCache(Cache[PodMeta]):
    """All requests of a cluster, and the pods that matter to them or have the readiness gate.

    Args:
        on_change: see Cache.
        has_work: whether there is something to do about a pod, whatever its requests.
    """

    def __init__(self, on_change: Callable[[str], None], has_work: Callable[[PodMeta], bool]) -> None:
        super().__init__(on_change)
        self._has_work = has_work

    def requested(self) -> tuple[str, ...]:
        """Every pod (`namespace/name`) that has a request."""
        return tuple(self._by_pod)

    def request_changed(self, request: Request) -> None:
        """See Cache; of a completed request only little is kept."""
        super().request_changed(request.slimmed())

    def request_deleted(self, request: Request) -> None:
        """See Cache."""
        super().request_deleted(request)
        pod = self._pods.get(request.pod_key)
        if pod is not None and not pod.readiness_gate and request.pod_key not in self._by_pod:
            self.forget_pod(request.pod_key)

    def pod_changed(self, pod: PodMeta) -> None:
        """See Cache."""
        if not pod.readiness_gate and pod.key not in self._by_pod:
            return
        known = self._pods.get(pod.key)
        super().pod_changed(pod)
        if known != pod and pod.key not in self._by_pod and self._has_work(pod):
            self._on_change(pod.key)

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


def older(version: str, than: str) -> bool:
    """Whether a resourceVersion is behind another.

    Those of one resource are comparable as integers (KEP-5504); where they are not integers, everything that comes
    counts as newer.
    """
    try:
        return int(version) < int(than)
    except ValueError:
        return False
