"""What the node daemon counts and times. Fed by the controller (a `Recorder`) and the edges; read by Prometheus alone.

A stage is timed on the daemon's monotonic clock, from what this process saw itself: after a restart of the daemon the
stages that were under way begin anew, or are left out where their beginning is not known.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crrd.core.api.reasons import CAUSES
from crrd.core.api.types import PLURAL, Request, RequestPhase, StatePhase
from crrd.core.recreate.observation import Hook, HookKind, HookResult
from crrd.lib.metrics import (
    OTHER,
    STAGE_BUCKETS,
    CallMetrics,
    Capped,
    api_call_metrics,
    dropped_events_metric,
    start_at_zero,
)

NAMESPACES = 100
"""Namespaces that a label may name; those of further pods count as "other"."""
STAGES = ("queued", "unready_grace", "pre_stop", "stop", "new_container_seen", "ready", "total")
OUTCOMES = ("succeeded", "partial", "failed", "gone")
WATCH_REASONS = ("ended", "expired", "silent", "refused", "error")
"""As `crrd.kube.reflector` tells them."""
ELSEWHERE = "CompletedElsewhere"
"""Reason of containers whose request somebody else completed, and did not say why."""
_FAILURES = [*(reason for reason, cause in CAUSES.items() if cause.final), ELSEWHERE]


@dataclass(frozen=True, slots=True)
class WatchState:
    """One watch's health; times are monotonic, None for never."""

    resource: str
    last_list: float | None
    last_activity: float | None


@dataclass(frozen=True, slots=True)
class NodeState:
    """Where the daemon stands right now; asked when Prometheus asks."""

    live: Callable[[], Iterable[Request]]
    """The requests that the node may still act on."""
    first_seen: Mapping[str, float]
    """Request UID -> monotonic time."""
    queue_depth: Callable[[], int]
    queue_oldest: Callable[[], float | None]
    """Monotonic time since which a pod waits for its turn."""
    watches: Callable[[], Iterable[WatchState]]


@dataclass(slots=True)
class _Track:
    """What is known of one request's stages; monotonic times, None for not yet."""

    seen: float
    turn: float | None = None
    acted: bool = False
    stops: dict[str, float] = field(default_factory=dict)
    successors: dict[str, float] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    """Containers whose final state was counted; what was final at first sight, an earlier process counted."""
    completed: bool = False


class NodeMetrics:
    """The node daemon's metrics, and the Recorder that feeds them.

    Args:
        registry: where they are registered.
        clock: monotonic seconds, the controller's.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._tracks: dict[str, _Track] = {}
        self._namespace = Capped(NAMESPACES)
        self.api_call = api_call_metrics(registry)
        """For the API client: `on_call`."""
        self.event_dropped = dropped_events_metric(registry)
        """For the events: `on_drop`."""
        cri_calls = CallMetrics(registry, "crrd_cri_call", "calls to the container runtime", ("method", "code"))
        self.cri_call = cri_calls.count
        """For the runtime's client: see `crrd.cri.client.OnCall`."""
        self._requests = Counter(
            "crrd_requests",
            "Requests that ended: every container succeeded, some (partial), none (failed), or gone before their end.",
            ["outcome"],
            registry=registry,
        )
        self._recreations = Counter(
            "crrd_container_recreations",
            "Containers of requests that reached their final state.",
            ["result", "reason"],
            registry=registry,
        )
        self._restarts = Counter(
            "crrd_requested_restarts",
            "Containers that were stopped on request, for kubelet to start again.",
            ["pod_namespace"],
            registry=registry,
        )
        self._stages = Histogram(
            "crrd_stage_duration_seconds",
            "Seconds that each stage of a recreate took.",
            ["stage"],
            registry=registry,
            buckets=STAGE_BUCKETS,
        )
        self._hooks = Counter("crrd_pre_stop_hooks", "preStop hooks that ended.", ["kind"], registry=registry)
        self._hook_failures = Counter(
            "crrd_pre_stop_hook_failures",
            "preStop hooks that failed; the stop follows all the same.",
            ["kind"],
            registry=registry,
        )
        self._watch_restarts = Counter(
            "crrd_watch_restarts", "Watches that ended and were begun anew.", ["resource", "reason"], registry=registry
        )
        self._runtime = Gauge("crrd_runtime_info", "A container runtime.", ["name", "version"], registry=registry)
        start_at_zero(self._requests, OUTCOMES)
        start_at_zero(self._recreations, ["succeeded"], ["stopped", "already_recreated"])
        start_at_zero(self._recreations, ["failed"], _FAILURES)
        start_at_zero(self._watch_restarts, [PLURAL, "pods"], WATCH_REASONS)
        start_at_zero(self._hooks, HookKind)
        start_at_zero(self._hook_failures, HookKind)
        self._stage = {stage: self._stages.labels(stage) for stage in STAGES}

    def show(self, state: NodeState) -> None:
        """From now on also tell where the daemon stands."""
        self._registry.register(_StateCollector(state, self._clock, self._namespace))

    def show_differing(self, differing: Callable[[], int | None]) -> None:
        """Also tell how many containers have a hash that their kubelet would not compute; None while unknown."""
        self._registry.register(_DifferingCollector(differing))

    def watch_restarted(self, resource: str, reason: str) -> None:
        """A watch of this resource (plural) has ended; reasons as in `crrd.kube.reflector`."""
        self._watch_restarts.labels(resource, reason).inc()

    def runtime_found(self, name: str, version: str) -> None:
        """The daemon is connected to this runtime."""
        self._runtime.labels(name, version).set(1)

    # What the controller tells: crrd.ports.Recorder.

    def seen(self, request: Request) -> None:
        """A live request is looked at for the first time."""
        ended = {state.name for state in request.status.states if state.phase.final}
        self._tracks[request.uid] = _Track(self._clock(), counted=ended)

    def turn(self, request: Request) -> None:
        """The request is its pod's current one: it queues no longer."""
        track = self._tracks.get(request.uid)
        if track is not None and track.turn is None:
            track.turn = self._clock()
            self._observe("queued", track.turn - track.seen, request)

    def hook_started(self, request: Request) -> None:
        """A preStop hook is about to run."""
        self._acts(request)

    def hook_ended(self, request: Request, hook: Hook, result: HookResult) -> None:
        """A preStop hook has ended."""
        kind = hook.kind.value
        self._count(self._hooks, kind)
        if result.error:
            self._count(self._hook_failures, kind)
        self._observe("pre_stop", result.seconds, request)

    def stop_sent(self, request: Request, container: str) -> None:
        """A StopContainer is about to be sent."""
        self._acts(request)
        if track := self._tracks.get(request.uid):
            track.stops.setdefault(container, self._clock())

    def stop_ended(self, request: Request, seconds: float) -> None:
        """A container was stopped; its StopContainer took this many seconds."""
        self._observe("stop", seconds, request)
        self._count(self._restarts, self._namespace(request.namespace))

    def successor_seen(self, request: Request, container: str) -> None:
        """The runtime lists the next instance; told in each round from then on."""
        track = self._tracks.get(request.uid)
        if track is None or container in track.successors:
            return
        track.successors[container] = self._clock()
        if container in track.stops:
            self._observe("new_container_seen", track.successors[container] - track.stops[container], request)

    def written(self, before: Request, after: Request) -> None:
        """A request was written; count what reached its end by this write."""
        track = self._tracks.get(before.uid)
        if track is None or track.completed:
            return
        for state in after.status.states:
            succeeded = state.phase is StatePhase.SUCCEEDED and not before.status.state(state.name).phase.final
            if succeeded and state.name in track.successors:
                self._observe("ready", self._clock() - track.successors[state.name], after)
        self._count_ended(track, after, OTHER)

    def forgotten(self, request: Request) -> None:
        """A request has ended or is gone: drop what is kept for it, and count an end that was not of our writing."""
        track = self._tracks.pop(request.uid, None)
        if track is None or track.completed:
            return
        if request.completed:
            self._count_ended(track, request, ELSEWHERE)
        else:
            self._count(self._requests, "gone")

    def _count_ended(self, track: _Track, request: Request, unknown: str) -> None:
        """Count what has ended and was not counted yet: a write whose answer was lost is told by nobody."""
        for state in request.status.states:
            if not state.phase.final or state.name in track.counted:
                continue
            track.counted.add(state.name)
            if state.phase is StatePhase.FAILED:
                self._count(self._recreations, "failed", state.reason or unknown)
            else:
                self._count(
                    self._recreations,
                    "succeeded",
                    "stopped" if state.name in track.stops or state.is_killed else "already_recreated",
                )
        if request.completed:
            track.completed = True
            self._count(self._requests, _outcome(request))
            self._observe("total", self._clock() - track.seen, request)

    def _acts(self, request: Request) -> None:
        """The request's first hook or stop begins: its unready grace period, if it has one, is over."""
        track = self._tracks.get(request.uid)
        if track is None or track.acted:
            return
        track.acted = True
        if request.strategy.unready_grace_seconds is not None and track.turn is not None:
            self._observe("unready_grace", self._clock() - track.turn, request)

    def _observe(self, stage: str, seconds: float, request: Request) -> None:
        """Time one stage; the request's UID leads from a slow bucket to the request (OpenMetrics exemplars)."""
        self._stage[stage].observe(seconds, {"request_uid": request.uid[:64]})

    def _count(self, counter: Counter, *labels: str) -> None:
        counter.labels(*labels).inc()


def _outcome(request: Request) -> str:
    """How a completed request ended."""
    succeeded = sum(state.phase is StatePhase.SUCCEEDED for state in request.status.states)
    if succeeded == 0:
        return "failed"
    return "succeeded" if succeeded == len(request.containers) else "partial"


class _DifferingCollector(Collector):
    """One gauge, absent while its value is not known."""

    def __init__(self, differing: Callable[[], int | None]) -> None:
        self._differing = differing

    def collect(self) -> Iterator[Metric]:
        """The gauge, where there is one."""
        if (count := self._differing()) is not None:
            name = "crrd_kubelet_hash_mismatch_containers"
            yield GaugeMetricFamily(name, "Containers whose stored hash their kubelet would not compute.", float(count))


class _StateCollector(Collector):
    """Gauges that are read off the daemon when they are asked for, so that nothing has to keep them up to date."""

    def __init__(self, state: NodeState, clock: Callable[[], float], namespace: Capped) -> None:
        self._state = state
        self._clock = clock
        self._namespace = namespace

    def collect(self) -> Iterator[Metric]:
        """Every gauge, as of now."""
        state, now = self._state, self._clock()
        active = {("pending", ""): 0, ("recreating", ""): 0}
        oldest = now
        for request in state.live():
            phase = "recreating" if request.status.phase is RequestPhase.RECREATING else "pending"
            key = (phase, self._namespace(request.namespace))
            active[key] = active.get(key, 0) + 1
            oldest = min(oldest, state.first_seen.get(request.uid, now))
        requests = GaugeMetricFamily(
            "crrd_active_requests", "Requests that this node serves now.", labels=["phase", "pod_namespace"]
        )
        for labels, count in active.items():
            requests.add_metric(labels, count)
        yield requests
        yield GaugeMetricFamily(
            "crrd_oldest_request_age_seconds",
            "Seconds since this daemon first saw the oldest request that it serves now; 0 for none.",
            now - oldest,
        )
        yield GaugeMetricFamily(
            "crrd_queue_depth", "Pods that are looked at or wait for it.", float(state.queue_depth())
        )
        waiting_since = state.queue_oldest()
        yield GaugeMetricFamily(
            "crrd_queue_oldest_age_seconds",
            "Seconds that a pod has waited for being looked at; 0 for none.",
            now - waiting_since if waiting_since is not None else 0.0,
        )
        yield from self._watches(now)

    def _watches(self, now: float) -> Iterator[Metric]:
        """When each watch last listed, and last heard anything, as Unix times."""
        unix = time.time()
        listed = GaugeMetricFamily(
            "crrd_last_list_timestamp_seconds", "When a resource was last listed as a whole.", labels=["resource"]
        )
        heard = GaugeMetricFamily(
            "crrd_last_activity_timestamp_seconds",
            "When the API server last said anything in a resource's watch; bookmarks come every minute.",
            labels=["resource"],
        )
        for watch in self._state.watches():
            for family, at in ((listed, watch.last_list), (heard, watch.last_activity)):
                if at is not None:
                    family.add_metric([watch.resource], unix - (now - at))
        yield listed
        yield heard
