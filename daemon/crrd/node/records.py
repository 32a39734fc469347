"""Everything that the node daemon knows of a pod, in one record. Its parts are dropped at different times.

- RequestRecord, also in `live`, `worked` and the agenda: when its request was deleted or left the selection, no write
  is running, its metrics have ended, and none of its work is kept (`Pods.drop_if_done`).
- RuntimeState: when no request of the pod is live and no stop after a hook is due (`reconcile`).
- PodState: when no watch keeps it up to date (`Pods.forget_pod`).
- Work: see `drop_unneeded`.
- PodRecord: when it is empty. While one watch covers the whole node, every pod of the node has a record.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request, Status
from crrd.core.recreate.actions import earliest
from crrd.core.recreate.decide import serving_order
from crrd.core.recreate.observation import Ending, Instance, ObservedRequest, Sandbox, Work
from crrd.lib.backoff import Backoff, Retry
from crrd.node.agenda import Agenda
from crrd.node.lookups import FORGIVEN_SECONDS, RUNTIME_RETRY, Key, Lookup
from crrd.ports import RequestRecorder

POD_RETRY = Backoff(initial=0.5, factor=2.0, maximum=10.0, jitter=0.1)
"""Delay between failed reads of a pod, unless the API server requests another one."""
WRITE_RETRY = Backoff(initial=0.2, factor=2.0, maximum=30.0, jitter=0.2)
"""Delay between attempts of a failed write of one request. A write without effect counts as failed."""


@dataclass(slots=True)
class WriteRetry(Retry):
    """The attempts of one kind of write of a request. Failures of one kind do not delay the other."""

    backoff: Backoff = WRITE_RETRY
    version: str = ""  # The resourceVersion that must wait for the next attempt, "" for all
    error: str = ""  # Why the last attempt failed; conflicts are not recorded


@dataclass(slots=True)
class RequestRecord:
    """One request of a pod, and what this process remembers about it."""

    request: Request
    first_seen: float  # Monotonic time at which this process first saw it, or saw it again
    unready_seen: float | None = None  # Monotonic time at which this process first saw the annotation unready-acquired
    left: bool = False  # Whether it was deleted or is not active any more; see `Pods.drop_if_done`
    recorder: RequestRecorder | None = None  # From the first round in which it is live until its end
    works: dict[str, Work] = field(default_factory=dict)  # Bare container ID -> the hook and stop of this process
    expiries: dict[str, asyncio.TimerHandle] = field(default_factory=dict)  # Timers that drop works kept a while
    emitted: set[tuple[str, str]] = field(default_factory=set)  # Reason and text of its events so far
    status_retry: WriteRetry = field(default_factory=WriteRetry)
    pin_retry: WriteRetry = field(default_factory=WriteRetry)
    last_written: Status | None = None  # The last status that this process has written
    overwrite_retry: Retry = field(default_factory=lambda: Retry(WRITE_RETRY))
    """How often another client replaced that status, and when that status may be written again."""
    writing: bool = False  # Whether a write of it is running; at most one runs at a time
    completing: bool = False  # Whether that write completes it; then no hook or stop may begin
    superseded: bool = False  # Whether a round has decided to complete it meanwhile

    @property
    def live(self) -> bool:
        """Whether this node may still act on the request."""
        return not self.left and self.request.live

    def stop_due(self, now: float) -> bool:
        """Whether a stop after a hook is due."""
        return any(work.stop_still_due(now) for work in self.works.values())

    def observed(self) -> ObservedRequest:
        """Return the request, and what `decide` needs to know of it, as a value."""
        return ObservedRequest(
            request=self.request,
            first_seen=self.first_seen,
            unready_seen=self.unready_seen,
            left=self.left,
            pin_error=self.pin_retry.error,
            works=dict(self.works),
        )


@dataclass(slots=True)
class PodState:
    """The pod as reported by the watches."""

    pod: Pod | None = None
    at: float = 0.0  # Monotonic time at which this version arrived
    refreshed_at: float = 0.0  # Monotonic time at which it arrived with its present `Pod.refresh`
    gone_at: float | None = None  # Monotonic time at which the pod was deleted; None if it exists or was never seen
    known_since: float | None = None  # Since when its own watch reports whether the pod exists (monotonic)


@dataclass(slots=True)
class RuntimeState:
    """The runtime's data on the pod's containers, while a request is live or a stop after a hook is due."""

    running_since: dict[str, float] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """Kubelet's hashes of the instances that requests for another image name: bare container ID -> hash."""
    sandboxes: tuple[Sandbox, ...] = ()  # See `ObservedPod`
    foreign: dict[str, Instance | None] = field(default_factory=dict)  # An ID never changes its pod: looked up once
    retry: Retry = field(default_factory=lambda: Retry(RUNTIME_RETRY, forgiven=FORGIVEN_SECONDS))
    error: str = ""  # Error of the last call to the runtime, or ""
    unready: Mapping[str, str] = field(default_factory=dict)  # See `ObservedPod`
    lookups: dict[Key, Lookup] = field(default_factory=dict)  # What requests that are served need besides
    kubelet_minor: int | None = None  # Kubelet's minor version, if something depends on it
    kubelet_asked: bool = False  # Whether that was asked for, so that None means that it is not known
    awaited: bool = False  # Whether a change of its containers in the runtime is awaited

    def next_look(self, now: float) -> float | None:
        """Return when a call that has failed is to be made again, or when it is to be shown that one is late.

        What was due before `now` is needed by no request, because the round has not made it again.
        """
        due = [self.retry.next_try] if self.error else [each.next_change for each in self.lookups.values()]
        return earliest(*(at for at in due if at > now))


@dataclass(slots=True)
class PodRecord:
    """Everything known about one pod."""

    key: str  # `namespace/name`
    requests: dict[str, RequestRecord] = field(default_factory=dict)  # By request UID
    present: int = 0  # How many of them still exist
    live: dict[str, RequestRecord] = field(default_factory=dict)  # Those of them that are live
    worked: dict[str, RequestRecord] = field(default_factory=dict)  # Those of them with work
    agenda: Agenda = field(default_factory=Agenda)
    state: PodState = field(default_factory=PodState)
    pod_known: asyncio.Event | None = None  # Set when it is known whether the pod exists; None if nothing waits
    runtime: RuntimeState = field(default_factory=RuntimeState)
    deleting_uid: str = ""  # UID of the pod that was last seen being deleted, which cannot be undone
    api_retry: Retry = field(default_factory=lambda: Retry(POD_RETRY))  # For reading the pod from the API server

    def note_deletion(self, pod: Pod) -> None:
        """Record that the pod is being deleted. A static pod continues if its mirror pod is deleted."""
        if pod.deleting and not pod.static_uid:
            self.deleting_uid = pod.uid

    def note_change(self, record: RequestRecord) -> None:
        """Record whether a request that has changed is live, and its place in the order of step 2."""
        request = record.request
        if record.live:
            self.live[request.uid] = record
        else:
            self.live.pop(request.uid, None)
        self.agenda.change(request.uid, serving_order(request) if record.live and not request.error else None)

    def to_look_at(self, now: float) -> list[RequestRecord]:
        """Return the requests that matter in a round. The others wait, and nothing has changed for them."""
        uids = dict.fromkeys((*self.worked, *self.agenda.due(now)))
        self.agenda.done(uid for uid in uids if uid not in self.requests)
        return [self.requests[uid] for uid in uids if uid in self.requests]

    def ended_before_stop(self, now: float) -> list[RequestRecord]:
        """Return the requests that have ended, were deleted or are invalid while a stop after their hook is due."""
        ended = (record for record in self.worked.values() if not record.live or record.request.error)
        return [record for record in ended if record.stop_due(now)]

    @property
    def works(self) -> list[Work]:
        """The hooks and stops of this process, for all requests."""
        return [work for record in self.worked.values() for work in record.works.values()]

    @property
    def under_way(self) -> set[tuple[str, str]]:
        """The running hooks and stops: request UID, bare container ID."""
        records = self.worked.items()
        return {(uid, key) for uid, each in records for key, work in each.works.items() if work.under_way is not None}

    def forget_observations(self) -> None:
        """Forget what was observed, and the failures, because no more calls about the pod are made."""
        self.runtime, self.api_retry = RuntimeState(), Retry(POD_RETRY)

    @property
    def empty(self) -> bool:
        """Whether nothing needs to be kept. Polling the runtime (`awaited`) also needs the record."""
        kept = (self.runtime.awaited, self.requests, self.pod_known, self.state != PodState())
        return not any(kept)
