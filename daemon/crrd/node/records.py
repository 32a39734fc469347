"""What the node daemon knows of a pod: one record. Each of its parts is forgotten at a time of its own.

- RequestRecord: when its request was deleted or left the selection, and nothing needs it: no write, no metrics that
  have yet to hear of the end, and no hook whose stop has to follow (`Pods.drop_if_done`).
- RuntimeState: when no request of the pod is live or owes such a stop (`reconcile`).
- PodState: when no watch keeps it up to date (`Pods.forget_pod`).
- Work: it is kept while it is under way, its request is live, or it counts (`drop_unneeded`).
- PodRecord: when nothing of this is left in it.
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
    recorder: RequestRecorder | None = None  # From the first round in which it is live to its end
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
    known_since: float | None = None  # Since when a watch of its own says whether the pod is there (monotonic)


@dataclass(slots=True)
class RuntimeState:
    """What the runtime says of the pod's containers while it has a live request."""

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
    pod_known: asyncio.Event | None = None  # Set once it is known whether the pod is there; None where nobody waits
    runtime: RuntimeState = field(default_factory=RuntimeState)
    api_retry: Retry = field(default_factory=lambda: Retry(POD_RETRY))  # Of asking the API server for the pod itself
    works: dict[WorkKey, Work] = field(default_factory=dict)  # What this process did
    expiries: dict[WorkKey, asyncio.TimerHandle] = field(default_factory=dict)  # What ends works that are kept a while

    @property
    def present(self) -> list[RequestRecord]:
        """The requests that are there."""
        return [record for record in self.requests.values() if not record.left]

    @property
    def live(self) -> list[RequestRecord]:
        """Of these, the live ones."""
        return [record for record in self.requests.values() if record.live]

    def ended_before_stop(self, now: float) -> list[RequestRecord]:
        """The requests that have ended or gone though the stop after a hook of theirs still has to follow."""
        owed = {uid for (uid, _), work in self.works.items() if work.stop_still_due(now)}
        ended = (record for uid, record in self.requests.items() if uid in owed)
        return [record for record in ended if not record.live or record.request.error]

    @property
    def under_way(self) -> set[WorkKey]:
        """Which hooks and stops are going on."""
        return {key for key, work in self.works.items() if work.under_way is not None}

    def forget_observations(self) -> None:
        """Nothing is asked about the pod any more: forget what was observed, and failures of it."""
        self.runtime, self.api_retry = RuntimeState(), Retry(POD_RETRY)

    @property
    def empty(self) -> bool:
        """Whether there is nothing left to know."""
        kept = (self.runtime.awaited, self.requests, self.works, self.pod_known, self.state != PodState())
        return not any(kept)
