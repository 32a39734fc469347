"""What the node daemon knows of each pod: one record, which all of its parts read and write. It decides nothing.

Who forgets what, and when:

- A request that is deleted or leaves the selection takes its RequestRecord with it once nothing needs the record: no
  write of it, no metrics that have yet to hear of its end, and no hook whose stop has to follow (`drop_if_done`).
- What the runtime said of the containers (`RuntimeState`) goes when no request of the pod is live or owes such a stop
  (`reconcile`).
- What the API says of the pod (`PodState`) goes when no watch keeps it up to date (`forget_pod`, `forget_pods`).
- What was done to a container (`Work`) goes by the rules of `works`.
- A record in which nothing of this is left goes itself.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from crrd.core.api.pod import Pod, PodMeta
from crrd.core.api.types import Request, StartTimes, Status
from crrd.core.recreate.observation import Ending, Instance, Work
from crrd.kube.store import VersionedStore, older
from crrd.lib.backoff import Backoff, Retry
from crrd.ports import RequestRecorder

RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0, jitter=0.1)
"""Between looks at a runtime that does not answer; unless something wakes the pod meanwhile."""
FORGIVEN_SECONDS = 30.0  # After so long without a failed look the next one is a first one again
POD_RETRY = Backoff(initial=0.5, factor=2.0, maximum=10.0, jitter=0.1)
"""Between questions for a pod that the API server does not answer, unless it names a time."""
WRITE_RETRY = Backoff(initial=0.2, factor=2.0, maximum=30.0, jitter=0.2)
"""Between tries of a write of one request, whatever it failed of: also of having had no effect."""

WorkKey = tuple[str, str]  # Request UID, bare container ID


@dataclass(slots=True)
class WriteRetry(Retry):
    """The tries of one kind of write of a request: one that is refused holds back none of the other kind."""

    backoff: Backoff = WRITE_RETRY
    version: str = ""  # The resourceVersion that must wait for the next try, "" for every one
    error: str = ""  # Why the last try failed, other than by a conflict


@dataclass(slots=True)
class RequestRecord:
    """One request of a pod, and what this process keeps for it."""

    request: Request
    first_seen: float  # Monotonic time at which this process saw it first, or saw it come back
    unready_seen: float | None = None  # Monotonic time at which this process first saw its mark unready-acquired
    unpinned: bool = False  # Whether somebody has removed pins from it: they are to be written again
    left: bool = False  # Whether it is deleted, or not active any more; see `Pods.drop_if_done`
    recorder: RequestRecorder | None = None
    """Where its metrics are counted, from the first round in which it is live to its end. While there is one, the
    record is kept though the request has left: a round that awaits something still finds it."""
    emitted: set[tuple[str, str]] = field(default_factory=set)  # Reason and text of its events so far
    status_retry: WriteRetry = field(default_factory=WriteRetry)
    pin_retry: WriteRetry = field(default_factory=WriteRetry)
    wrote: Status | None = None  # What this process has written last
    undone: Retry = field(default_factory=lambda: Retry(WRITE_RETRY))
    """How often somebody else wrote another status since, and when the same one may be written again."""
    writing: bool = False  # Whether a write of it is under way: there is one at most
    completing: bool = False  # Whether that one is its last status: nothing is begun for it

    @property
    def live(self) -> bool:
        """Whether this node may still act on the request."""
        return not self.left and self.request.live


@dataclass(slots=True)
class PodState:
    """The pod as the API server's watches tell it."""

    pod: Pod | None = None
    at: float = 0.0  # Monotonic time at which this version came
    gone_at: float | None = None  # Monotonic time at which the pod went, None while it is there or was never seen
    known_since: float | None = None
    """Monotonic time since which it is known whether the pod is there, by a watch of its own."""


@dataclass(slots=True)
class RuntimeState:
    """What the runtime says of the pod's containers while it has a live request."""

    running_since: dict[str, float] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    foreign: dict[str, Instance | None] = field(default_factory=dict)
    """An ID never changes its pod: it is looked up once."""
    retry: Retry = field(default_factory=lambda: Retry(RUNTIME_RETRY, forgiven=FORGIVEN_SECONDS))
    error: str = ""  # Why the last look at the runtime failed, "" for an answer
    kubelet_minor: int | None = None  # Of kubelet's version, where something depends on it
    awaited: bool = False  # Whether a change of its containers in the runtime is awaited


@dataclass(slots=True)
class PodRecord:
    """All that is known of one pod."""

    key: str  # `namespace/name`
    records: dict[str, RequestRecord] = field(default_factory=dict)  # By request UID
    state: PodState = field(default_factory=PodState)
    known: asyncio.Event | None = None
    """Set once it is known whether the pod is there; None where nobody waits for that."""
    runtime: RuntimeState = field(default_factory=RuntimeState)
    api_retry: Retry = field(default_factory=lambda: Retry(POD_RETRY))  # Of asking the API server for the pod itself
    works: dict[WorkKey, Work] = field(default_factory=dict)
    """What this process did, for a request to a container instance."""
    expiries: dict[WorkKey, asyncio.TimerHandle] = field(default_factory=dict)
    """Of these, the ones that are kept for a while, with what ends that."""

    @property
    def present(self) -> list[RequestRecord]:
        """The requests that are there."""
        return [record for record in self.records.values() if not record.left]

    @property
    def live(self) -> list[RequestRecord]:
        """Of these, the live ones."""
        return [record for record in self.records.values() if record.live]

    def ended_before_stop(self, now: float) -> list[RequestRecord]:
        """The requests that have ended or gone though the stop after a hook of theirs still has to follow."""
        owed = {uid for (uid, _), work in self.works.items() if work.owes_stop(now)}
        ended = (record for uid, record in self.records.items() if uid in owed)
        return [record for record in ended if not record.live or record.request.error]

    @property
    def under_way(self) -> set[WorkKey]:
        """Which hooks and stops are going on."""
        return {key for key, work in self.works.items() if work.under_way is not None}

    @property
    def stop_outstanding(self) -> bool:
        """Whether a hook of a live request has run, and its stop was not sent yet."""
        hooked = {uid for (uid, _), work in self.works.items() if work.hook is not None and work.stop_sent is None}
        return any(each.request.uid in hooked for each in self.live)

    def forget_observations(self) -> None:
        """Nothing is asked about the pod any more: forget what was observed, and failures of it."""
        self.runtime, self.api_retry = RuntimeState(), Retry(POD_RETRY)

    @property
    def empty(self) -> bool:
        """Whether there is nothing left to know."""
        if self.runtime.awaited:
            return False
        state = self.state
        informed = (state.pod, state.gone_at, state.known_since, self.known)
        return not self.records and not self.works and all(each is None for each in informed)


class Pods:
    """The records by pod; implements `ports.Observer`, which the watches tell.

    A request never goes back behind this process' own writes (see VersionedStore).

    Args:
        on_change: called with a pod's `namespace/name` whenever something about it has changed.
        clock: monotonic seconds.
    """

    def __init__(self, on_change: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._on_change = on_change
        self._clock = clock
        self._records: dict[str, PodRecord] = {}
        self._requests: VersionedStore[Request] = VersionedStore()
        self._live = 0
        self._all_known_since: float | None = None
        """Monotonic time since which it is known of every pod of the node whether it is there."""
        self.live_changed = asyncio.Event()  # Set when a request becomes live or ends. The reader clears it.
        self.active = asyncio.Event()  # Set while at least one request is live
        self.idle = asyncio.Event()  # Set while none is
        self.idle.set()

    # What is known.

    def __iter__(self) -> Iterator[PodRecord]:
        return iter(tuple(self._records.values()))

    def ensure(self, pod_key: str) -> PodRecord:
        """What is known of the pod; a new record where that is nothing."""
        return self._records.setdefault(pod_key, PodRecord(pod_key))

    def tidy(self, record: PodRecord) -> None:
        """Drop a record in which nothing is left."""
        if record.empty and self._records.get(record.key) is record:
            del self._records[record.key]

    def peek(self, pod_key: str) -> PodRecord:
        """What is known of the pod; where that is nothing, an empty record that nobody keeps."""
        return self._records.get(pod_key) or PodRecord(pod_key)

    def live(self) -> list[RequestRecord]:
        """Every live request."""
        return [each for record in self._records.values() for each in record.live]

    def live_pods(self) -> set[str]:
        """Pods (`namespace/name`) with at least one live request."""
        return {pod.key for pod in self._records.values() if any(each.live for each in pod.records.values())}

    def known_since(self, pod_key: str) -> float | None:
        """Monotonic time since which it is known whether the pod is there, None while it is not."""
        since = self.peek(pod_key).state.known_since
        return self._all_known_since if since is None else since

    def heard_of(self, pod_key: str) -> object:
        """Differs from what it was before where a watch has since told anything new of the pod."""
        state = self.peek(pod_key).state
        return state.pod, state.gone_at

    async def wait_until_known(self, pod_key: str) -> None:
        """Return when it is known whether the pod is there."""
        if self.known_since(pod_key) is not None:
            return
        record = self.ensure(pod_key)
        record.known = known = record.known or asyncio.Event()
        try:
            await known.wait()
        finally:
            if record.known is known:
                record.known = None
            self.tidy(record)

    # What the watches and this process' own writes tell of requests.

    def request_changed(self, request: Request, *, own_pins: bool = False) -> None:
        """A request was added or modified, or written. Its pins stay, even if another client changes them.

        A request without the active label is none of the node's. `own_pins`: they are what this process has just
        written.
        """
        known = self._requests.get(request.uid)
        if not request.active:
            if known is None or not older(request.resource_version, known.resource_version):
                self.request_deleted(request)
            return
        if known is not None and not known.error and request.spoilt:
            request = replace(request, error="", spoilt=False)
        kept = request if known is None or own_pins else _with_pins_of(known, request)
        if not self._requests.put(kept):
            return
        # Only a CRD without crrd's rules lets a request change its pod.
        moved = self._leave(known) if known is not None and known.pod_key != kept.pod_key else None
        self._keep(kept, unpinned=kept != request, moved=moved)
        was_live = known is not None and known.live
        self._live += kept.live - was_live
        if known != kept:
            self._on_change(kept.pod_key)
        if kept.live != was_live or moved is not None:
            self._signal()

    def _keep(self, request: Request, *, unpinned: bool, moved: RequestRecord | None) -> None:
        records, now = self.ensure(request.pod_key).records, self._clock()
        record = records.get(request.uid)
        if record is None:
            record = records[request.uid] = RequestRecord(request, moved.first_seen if moved else now)
        elif record.left:
            record.left, record.first_seen, record.unready_seen = False, now, None
        record.request, record.unpinned = request, unpinned
        if not request.unready_acquired:
            record.unready_seen = None
        elif record.unready_seen is None:
            record.unready_seen = moved.unready_seen if moved and moved.unready_seen is not None else now

    def request_deleted(self, request: Request) -> None:
        """A request is no more, or has left the selection: only a later version of it brings it back."""
        known = self._requests.drop(request.uid, request.resource_version)
        if known is not None:
            self._live -= known.live
            self._leave(known)
            if known.live:
                self._signal()

    def _leave(self, request: Request) -> RequestRecord:
        """It is none of its pod's requests any more; the next one starts at once."""
        pod = self._records[request.pod_key]
        record = pod.records[request.uid]
        record.left = True
        self.drop_if_done(pod, record)
        if not pod.present:
            pod.state.gone_at = None
        self._on_change(request.pod_key)
        self.tidy(pod)
        return record

    def expect_requests(self) -> None:
        """See Observer."""
        self._requests.expect_list()

    def requests_listed(self, requests: Iterable[Request], version: str) -> None:
        """A whole list, as of this resourceVersion: what is not in it is gone."""
        listed = tuple(requests)
        for known in self._requests.absent(listed, version):
            self.request_deleted(replace(known, resource_version=version))
        for request in listed:
            self.request_changed(request)

    def drop_if_done(self, pod: PodRecord, record: RequestRecord) -> None:
        """Drop the record of a request that has left the node's selection, unless something still needs it."""
        uid = record.request.uid
        owed = any(key[0] == uid and work.owes_stop(self._clock()) for key, work in pod.works.items())
        if record.left and record.recorder is None and not record.writing and not owed:
            pod.records.pop(uid, None)

    # What the watches tell of pods.

    def pod_changed(self, pod: Pod) -> None:
        """A pod of this node was added or modified."""
        record = self.ensure(pod.key)
        state = record.state
        state.gone_at = None
        if state.pod != pod:
            state.pod, state.at = pod, self._clock()
            self._notify(record)

    def pod_deleted(self, pod: PodMeta) -> None:
        """A pod is no more; the one of the same name that followed it may be known already."""
        record = self.peek(pod.key)
        state = record.state
        if state.pod is not None and state.pod.uid == pod.uid:
            state.pod, state.at = None, 0.0
            if record.present:
                state.gone_at = self._clock()
            self._notify(record)
            self.tidy(record)

    def pods_listed(self, pods: Iterable[Pod], _version: str) -> None:
        """A whole list of this node's pods: what is not in it is not on this node."""
        first = self._all_known_since is None
        if first:
            self._all_known_since = self._clock()
        listed = {pod.key: pod for pod in pods}
        for record in tuple(self._records.values()):
            if record.key not in listed and record.state.pod is not None:
                self.pod_deleted(record.state.pod)
        for pod in listed.values():
            self.pod_changed(pod)
        for record in tuple(self._records.values()):
            if first and record.state.pod is None:
                self._notify(record)  # that it is not there is news
            if record.known is not None:
                record.known.set()

    def pod_listed(self, pod_key: str, pod: Pod | None) -> None:
        """What the node has under this name, None for nothing."""
        first = self.known_since(pod_key) is None
        record = self.ensure(pod_key)
        if record.state.known_since is None:
            record.state.known_since = self._clock()
        if pod is not None:
            self.pod_changed(pod)
        elif record.state.pod is not None:
            self.pod_deleted(record.state.pod)
        elif first:
            self._notify(record)  # that it is not there is news
        if record.known is not None:
            record.known.set()

    def forget_pod(self, pod_key: str) -> None:
        """Nothing watches the pod any more: what was known of it ages from now on."""
        if (record := self._records.get(pod_key)) is not None:
            known, record.known, record.state = record.known, None, PodState()
            if known is not None:
                known.set()  # who waits is to look at what there is
            self.tidy(record)

    def forget_pods(self) -> None:
        """The same for all pods."""
        self._all_known_since = None
        for pod_key in tuple(self._records):
            self.forget_pod(pod_key)

    def _notify(self, record: PodRecord) -> None:
        """Something about a pod has changed: that matters to its requests."""
        if record.present:
            self._on_change(record.key)

    def _signal(self) -> None:
        """Keep the events in step with what is live."""
        came, went = (self.active, self.idle) if self._live else (self.idle, self.active)
        came.set()
        went.clear()
        self.live_changed.set()


def _with_pins_of(known: Request, request: Request) -> Request:
    """Nobody changes which instance is meant, or takes back what was begun: the annotation can be edited."""
    pinned, start_times = {**request.pinned, **known.pinned}, dict(known.start_times)
    for name, times in request.start_times.items():
        pin = request.pinned.get(name)
        if pin is not None and pin.bare_id == pinned[name].bare_id:  # times count with the instance they are of
            start_times[name] = times.after(known.start_times.get(name, StartTimes()))
    return replace(request, pinned=pinned, start_times=start_times)
