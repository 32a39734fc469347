"""What the node daemon knows of a pod: one record. Each of its parts is forgotten at a time of its own.

- RequestRecord: when its request was deleted or left the selection, and no write is under way, its metrics have ended,
  and no stop after a hook is due (`Pods.drop_if_done`).
- RuntimeState: when no request of the pod is live and no stop after a hook is due (`reconcile`).
- PodState: when no watch keeps it up to date (`Pods.forget_pod`).
- Work: see `drop_unneeded`.
- PodRecord: when it is empty. While one watch covers the whole node, every pod of the node has a record.
"""

import asyncio
from dataclasses import dataclass, field

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request, Status
from crrd.core.recreate.observation import Ending, Instance, Work
from crrd.lib.backoff import Backoff, Retry
from crrd.ports import RequestRecorder

RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0, jitter=0.1)
"""Between looks at a runtime that does not answer; unless something wakes the pod meanwhile."""
FORGIVEN_SECONDS = 30.0  # After so long without a failure the next one counts as the first
POD_RETRY = Backoff(initial=0.5, factor=2.0, maximum=10.0, jitter=0.1)
"""Between lookups of a pod that fail, unless the API server names a time."""
WRITE_RETRY = Backoff(initial=0.2, factor=2.0, maximum=30.0, jitter=0.2)
"""Between tries of a failed write of one request. A write without effect has failed, too."""

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
    unpinned: bool = False  # Whether another client removed or changed its pins or start times: write them again
    left: bool = False  # Whether it is deleted, or not active any more; see `Pods.drop_if_done`
    recorder: RequestRecorder | None = None  # From the first round in which it is live to its end
    emitted: set[tuple[str, str]] = field(default_factory=set)  # Reason and text of its events so far
    status_retry: WriteRetry = field(default_factory=WriteRetry)
    pin_retry: WriteRetry = field(default_factory=WriteRetry)
    wrote: Status | None = None  # What this process has written last
    undone: Retry = field(default_factory=lambda: Retry(WRITE_RETRY))
    """How often another client replaced that status, and when the same one may be written again."""
    writing: bool = False  # Whether a write of it is under way, at most one at a time
    completing: bool = False  # Whether that write completes it: then no hook or stop begins

    @property
    def live(self) -> bool:
        """Whether this node may still act on the request."""
        return not self.left and self.request.live


@dataclass(slots=True)
class PodState:
    """The pod as the watches report it."""

    pod: Pod | None = None
    at: float = 0.0  # Monotonic time at which this version came
    gone_at: float | None = None  # Monotonic time at which the pod went, None while it is there or was never seen
    known_since: float | None = None  # Since when a watch of its own says whether the pod is there (monotonic)


@dataclass(slots=True)
class RuntimeState:
    """What the runtime says of the pod's containers, while a request is live or a stop after a hook is due."""

    running_since: dict[str, float] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    foreign: dict[str, Instance | None] = field(default_factory=dict)  # An ID never changes its pod: one look-up
    retry: Retry = field(default_factory=lambda: Retry(RUNTIME_RETRY, forgiven=FORGIVEN_SECONDS))
    error: str = ""  # Why the last look at the runtime failed, "" for an answer
    kubelet_minor: int | None = None  # Of kubelet's version, where something depends on it
    awaited: bool = False  # Whether a change of its containers in the runtime is awaited


@dataclass(slots=True)
class PodRecord:
    """All that is known of one pod."""

    key: str  # `namespace/name`
    requests: dict[str, RequestRecord] = field(default_factory=dict)  # By request UID
    state: PodState = field(default_factory=PodState)
    pod_known: asyncio.Event | None = None  # Set once it is known whether the pod is there; None if nothing waits
    runtime: RuntimeState = field(default_factory=RuntimeState)
    deleting_uid: str = ""  # UID of the pod that was last seen in deletion, which nothing takes back
    api_retry: Retry = field(default_factory=lambda: Retry(POD_RETRY))  # Of asking the API server for the pod itself
    works: dict[WorkKey, Work] = field(default_factory=dict)  # What this process did
    expiries: dict[WorkKey, asyncio.TimerHandle] = field(default_factory=dict)  # What ends works that are kept a while

    def note_deletion(self, pod: Pod) -> None:
        """Remember that the pod is being deleted. A static pod's mirror may be deleted while the pod goes on."""
        if pod.deleting and not pod.static_uid:
            self.deleting_uid = pod.uid

    @property
    def present(self) -> list[RequestRecord]:
        """The requests that are there."""
        return [record for record in self.requests.values() if not record.left]

    @property
    def live(self) -> list[RequestRecord]:
        """Of these, the live ones."""
        return [record for record in self.requests.values() if record.live]

    def ended_before_stop(self, now: float) -> list[RequestRecord]:
        """The requests that have ended, are gone or are invalid, while the stop after their hook is still due."""
        owed = {uid for (uid, _), work in self.works.items() if work.stop_still_due(now)}
        ended = (record for uid, record in self.requests.items() if uid in owed)
        return [record for record in ended if not record.live or record.request.error]

    @property
    def under_way(self) -> set[WorkKey]:
        """The hooks and stops under way."""
        return {key for key, work in self.works.items() if work.under_way is not None}

    def forget_observations(self) -> None:
        """Forget what was observed, and the failures of that: nothing is asked about the pod any more."""
        self.runtime, self.api_retry = RuntimeState(), Retry(POD_RETRY)

    @property
    def empty(self) -> bool:
        """Whether nothing is left to keep. The poll of the runtime (`awaited`) needs the record, too."""
        kept = (self.runtime.awaited, self.requests, self.works, self.pod_known, self.state != PodState())
        return not any(kept)
