"""What the node daemon counts and times. Fed by the controller (a `Recorder`) and the edges; read by Prometheus alone.

A stage is timed on the daemon's monotonic clock, from what this process saw itself: after a restart of the daemon the
stages that were under way begin anew, or are left out where their beginning is not known.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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

NAMESPACES = 100  # Namespaces that a label may name; those of further pods count as "other"
STAGES = ("queued", "unready_grace", "pre_stop", "stop", "new_container_seen", "ready", "total")
OUTCOMES = ("succeeded", "partial", "failed", "gone")
WATCH_REASONS = ("ended", "expired", "silent", "refused", "error")  # As `crrd.kube.reflector` tells them
ELSEWHERE = "CompletedElsewhere"  # Reason of containers whose request somebody else completed, and did not say why
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

    live: Callable[[], Iterable[tuple[Request, float]]]
    """The requests that the node may still act on, each with the monotonic time at which it was first seen."""
    queue_depth: Callable[[], int]
    queue_oldest: Callable[[], float | None]  # Monotonic time since which a pod waits for its turn
    watches: Callable[[], Iterable[WatchState]]


class NodeMetrics:
    """The node daemon's metrics, and the Recorder that feeds them.

    Args:
        registry: where they are registered.
        clock: monotonic seconds, the controller's.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._namespace = Capped(NAMESPACES)
        self.api_call = api_call_metrics(registry)  # For the API client: `on_call`
        self.event_dropped = dropped_events_metric(registry)  # For the events: `on_drop`
        cri_calls = CallMetrics(registry, "crrd_cri_call", "calls to the container runtime", ("method", "code"))
        self.cri_call = cri_calls.count  # For the runtime's client: see `crrd.cri.client.OnCall`
        self._requests = Counter(
            "crrd_requests",
            "Requests that ended, by outcome: succeeded (all containers recreated), partial (some), failed (none), "
            "gone (deleted before its end).",
            ["outcome"],
            registry=registry,
        )
        self._recreations = Counter(
            "crrd_container_recreations",
            "Requested containers that reached the phase Succeeded or Failed.",
            ["result", "reason"],
            registry=registry,
        )
        self._restarts = Counter(
            "crrd_requested_restarts",
            "Containers that were stopped because of a request.",
            ["pod_namespace"],
            registry=registry,
        )
        self._stages = Histogram(
            "crrd_stage_duration_seconds",
            "Duration of each stage of a recreate, in seconds.",
            ["stage"],
            registry=registry,
            buckets=STAGE_BUCKETS,
        )
        self._hooks = Counter("crrd_pre_stop_hooks", "preStop hooks that ended.", ["kind"], registry=registry)
        self._hook_failures = Counter(
            "crrd_pre_stop_hook_failures",
            "preStop hooks that failed. The container is stopped anyway.",
            ["kind"],
            registry=registry,
        )
        self._watch_restarts = Counter(
            "crrd_watch_restarts", "Watches that ended and were restarted.", ["resource", "reason"], registry=registry
        )
        self._runtime = Gauge(
            "crrd_runtime_info", "Container runtime of the node.", ["name", "version"], registry=registry
        )
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

    def begin(self, request: Request) -> "RequestMetrics":
        """A live request is looked at for the first time: see `ports.Recorder`."""
        return RequestMetrics(self, request)

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    def count_hook(self, kind: HookKind, *, failed: bool) -> None:
        """A preStop hook has ended."""
        self._hooks.labels(kind.value).inc()
        if failed:
            self._hook_failures.labels(kind.value).inc()

    def count_restart(self, namespace: str) -> None:
        """A container was stopped on request."""
        self._restarts.labels(self._namespace(namespace)).inc()

    def count_recreation(self, result: str, reason: str) -> None:
        """A container has reached its final state."""
        self._recreations.labels(result, reason).inc()

    def count_request(self, outcome: str) -> None:
        """A request has ended."""
        self._requests.labels(outcome).inc()

    def observe(self, stage: str, seconds: float, request: Request) -> None:
        """Time one stage; the request's UID leads from a slow bucket to the request (OpenMetrics exemplars)."""
        self._stage[stage].observe(seconds, {"request_uid": request.uid[:64]})


class RequestMetrics:
    """Times the stages of one request, and counts how it ends: the RequestRecorder of the node daemon."""

    def __init__(self, metrics: NodeMetrics, request: Request) -> None:
        self._metrics = metrics
        self._request = request
        self._first_seen = metrics.now()
        self._served_at: float | None = None
        self._acted = False
        self._stops: dict[str, float] = {}
        self._successors: dict[str, float] = {}
        self._counted = {state.name for state in request.status.states if state.phase.final}
        """Containers whose final state was counted; what was final at first sight, an earlier process counted."""
        self._completed = False

    def served(self) -> None:
        """The request no longer waits for other requests of its pod."""
        if self._served_at is None:
            self._served_at = self._metrics.now()
            self._observe("queued", self._served_at - self._first_seen)

    def hook_started(self) -> None:
        """A preStop hook is about to run."""
        self._act()

    def hook_ended(self, hook: Hook, result: HookResult) -> None:
        """A preStop hook has ended."""
        self._metrics.count_hook(hook.kind, failed=bool(result.error))
        self._observe("pre_stop", result.seconds)

    def stop_sent(self, container: str) -> None:
        """A StopContainer is about to be sent."""
        self._act()
        self._stops.setdefault(container, self._metrics.now())

    def stop_ended(self, seconds: float) -> None:
        """A container was stopped; its StopContainer took this many seconds."""
        self._observe("stop", seconds)
        self._metrics.count_restart(self._request.namespace)

    def successor_seen(self, container: str) -> None:
        """The runtime lists the next instance; told in each round from then on."""
        if container in self._successors:
            return
        self._successors[container] = self._metrics.now()
        if container in self._stops:
            self._observe("new_container_seen", self._successors[container] - self._stops[container])

    def written(self, before: Request, after: Request) -> None:
        """Count what reached its end by this write."""
        if self._completed:
            return
        for state in after.status.states:
            succeeded = state.phase is StatePhase.SUCCEEDED and not before.status.state(state.name).phase.final
            if succeeded and state.name in self._successors:
                self._observe("ready", self._metrics.now() - self._successors[state.name])
        self._count_ended(after, OTHER)

    def forgotten(self, request: Request) -> None:
        """Count an end that was not of our writing."""
        if self._completed:
            return
        if request.completed:
            self._count_ended(request, ELSEWHERE)
        else:
            self._metrics.count_request("gone")

    def _count_ended(self, request: Request, unknown: str) -> None:
        """Count what has ended and was not counted yet, because the response to a write was lost."""
        for state in request.status.states:
            if not state.phase.final or state.name in self._counted:
                continue
            self._counted.add(state.name)
            if state.phase is StatePhase.FAILED:
                self._metrics.count_recreation("failed", state.reason or unknown)
            else:
                stopped = state.name in self._stops or state.is_killed
                self._metrics.count_recreation("succeeded", "stopped" if stopped else "already_recreated")
        if request.completed:
            self._completed = True
            self._metrics.count_request(_outcome(request))
            self._observe("total", self._metrics.now() - self._first_seen)

    def _act(self) -> None:
        """The request's first hook or stop begins: its unready grace period, if it has one, is over."""
        if self._acted:
            return
        self._acted = True
        if self._request.strategy.unready_grace_seconds is not None and self._served_at is not None:
            self._observe("unready_grace", self._metrics.now() - self._served_at)

    def _observe(self, stage: str, seconds: float) -> None:
        self._metrics.observe(stage, seconds, self._request)


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
            what = "Containers whose stored hash differs from the one that their kubelet computes."
            yield GaugeMetricFamily(name, what, float(count))


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
        for request, first_seen in state.live():
            phase = "recreating" if request.status.phase is RequestPhase.RECREATING else "pending"
            key = (phase, self._namespace(request.namespace))
            active[key] = active.get(key, 0) + 1
            oldest = min(oldest, first_seen)
        requests = GaugeMetricFamily(
            "crrd_active_requests", "Active requests of this node.", labels=["phase", "pod_namespace"]
        )
        for labels, count in active.items():
            requests.add_metric(labels, count)
        yield requests
        yield GaugeMetricFamily(
            "crrd_oldest_request_age_seconds",
            "Seconds since this daemon first saw its oldest active request. 0 if no request is active.",
            now - oldest,
        )
        yield GaugeMetricFamily(
            "crrd_queue_depth", "Pods that are being processed or are in the queue.", float(state.queue_depth())
        )
        waiting_since = state.queue_oldest()
        yield GaugeMetricFamily(
            "crrd_queue_oldest_age_seconds",
            "Seconds that the oldest pod has been in the queue. 0 if the queue is empty.",
            now - waiting_since if waiting_since is not None else 0.0,
        )
        yield from self._watches(now)

    def _watches(self, now: float) -> Iterator[Metric]:
        """When each watch last listed, and last heard anything, as Unix times."""
        unix = time.time()
        listed = GaugeMetricFamily(
            "crrd_last_list_timestamp_seconds", "Unix time of the last full list of a resource.", labels=["resource"]
        )
        heard = GaugeMetricFamily(
            "crrd_last_activity_timestamp_seconds",
            "Unix time of the last event or bookmark of a watch. Bookmarks come every minute.",
            labels=["resource"],
        )
        for watch in self._state.watches():
            for family, at in ((listed, watch.last_list), (heard, watch.last_activity)):
                if at is not None:
                    family.add_metric([watch.resource], unix - (now - at))
        yield listed
        yield heard
