"""The node daemon's metrics. The controller (through `Recorder`) and the edges update them, and Prometheus reads them.

Stages are timed with the daemon's monotonic clock, from what this process has seen. After a restart of the daemon,
stages in progress start again, or are left out if their start is not known.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from crrd.core.api.reasons import Reason
from crrd.core.api.types import PLURAL, Request, RequestPhase, StatePhase
from crrd.core.recreate.declared import HANDLERS, Reload
from crrd.core.recreate.invariants import Rule
from crrd.core.recreate.observation import Hook, HookKind, HookResult
from crrd.lib import metrics as lib
from crrd.lib.workqueue import QueueState
from crrd.ports import Recorder, RequestRecorder

NAMESPACES = 100  # Number of namespaces that get their own label value; further ones are counted as "other"
STAGES = ("queued", "unready_grace", "pre_stop", "stop", "new_container_seen", "ready", "total")
OUTCOMES = ("succeeded", "partial", "failed", "gone")
WATCH_REASONS = ("ended", "expired", "silent", "refused", "error")  # The reasons of `crrd.kube.reflector`
ELSEWHERE = "CompletedElsewhere"  # Reason of containers whose request another client completed without a reason


@dataclass(frozen=True, slots=True)
class WatchState:
    """The health of one watch. Times are monotonic, or None for never."""

    resource: str
    last_list: float | None
    last_activity: float | None


@dataclass(frozen=True, slots=True)
class NodeState:
    """The daemon's current state, read when Prometheus scrapes."""

    live: Callable[[], Iterable[tuple[Request, float]]]
    """The requests that the node may still act on, each with the monotonic time at which this process first saw it."""
    queue: Callable[[], QueueState]
    watches: Callable[[], Iterable[WatchState]]


class NodeMetrics(Recorder):
    """The node daemon's metrics, and their Recorder. `clock` is the controller's (monotonic, seconds)."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self.clock = clock
        self.namespace = lib.Capped(NAMESPACES)
        self.api_call = lib.api_call_metrics(registry)  # For the API client: `on_call`
        self.event_dropped = lib.dropped_events_metric(registry)  # For the events: `on_drop`
        cri_calls = lib.CallMetrics(registry, "crrd_cri_call", "calls to the container runtime", ("method", "code"))
        self.cri_call = cri_calls.count  # For the runtime's client: see `crrd.cri.client.OnCall`
        counter = partial(Counter, registry=registry)
        self.requests = counter(
            "crrd_requests",
            "Requests that ended, by outcome: succeeded (all containers recreated), partial (some), failed (none), "
            "gone (deleted before its end).",
            ["outcome"],
        )
        text = "Requested containers that reached the phase Succeeded or Failed."
        self.recreations = counter("crrd_container_recreations", text, ["result", "reason"])
        text = "Containers that were stopped because of a request."
        self.restarts = counter("crrd_requested_restarts", text, ["pod_namespace"])
        name, text = "crrd_stage_duration_seconds", "Duration of each stage of a recreate, in seconds."
        stages = Histogram(name, text, ["stage"], registry=registry, buckets=lib.STAGE_BUCKETS)
        self.stages = {stage: stages.labels(stage) for stage in STAGES}
        self.hooks = counter("crrd_pre_stop_hooks", "preStop hooks that ended.", ["kind"])
        text = "preStop hooks that failed. The container is stopped anyway."
        self.hook_failures = counter("crrd_pre_stop_hook_failures", text, ["kind"])
        self.reloads = counter("crrd_reloads", "Reloads of containers that ended.", ["kind"])
        text = "Reloads of containers that failed. No container was stopped."
        self.reload_failures = counter("crrd_reload_failures", text, ["kind"])
        text = "Watches that ended and were restarted."
        self._watch_restarts = counter("crrd_watch_restarts", text, ["resource", "reason"])
        text = "Decisions that a safety check withheld. Each one is a bug of crrd."
        self._withheld = counter("crrd_withheld_decisions", text, ["rule"])
        text = "Container runtime of the node."
        self._runtime = Gauge("crrd_runtime_info", text, ["name", "version"], registry=registry)
        lib.start_at_zero(self.requests, OUTCOMES)
        lib.start_at_zero(self.recreations, ["succeeded"], ["stopped", "already_recreated", "reloaded"])
        failures = [reason for reason in Reason if reason.final]
        lib.start_at_zero(self.recreations, ["failed"], [*failures, ELSEWHERE])
        lib.start_at_zero(self._watch_restarts, [PLURAL, "pods"], WATCH_REASONS)
        lib.start_at_zero(self._withheld, Rule)
        lib.start_at_zero(self.hooks, HookKind)
        lib.start_at_zero(self.hook_failures, HookKind)
        lib.start_at_zero(self.reloads, HANDLERS)
        lib.start_at_zero(self.reload_failures, HANDLERS)

    def show(self, state: NodeState) -> None:
        """Add gauges of the daemon's current state."""
        self._registry.register(lib.Computed(partial(_of_state, state, self.clock, self.namespace)))

    def show_differing(self, differing: Callable[[], int | None]) -> None:
        """Add the number of containers whose stored hash differs from the one that their kubelet computes.

        `differing` returns None while the number is unknown; then there is no such metric.
        """

        def compute() -> Iterator[Metric]:
            if (count := differing()) is not None:
                name = "crrd_kubelet_hash_mismatch_containers"
                what = "Containers whose stored hash differs from the one that their kubelet computes."
                yield GaugeMetricFamily(name, what, float(count))

        self._registry.register(lib.Computed(compute))

    def watch_restarted(self, resource: str, reason: str) -> None:
        """Count the end of a watch of this resource (plural). Reasons are those of `crrd.kube.reflector`."""
        self._watch_restarts.labels(resource, reason).inc()

    def runtime_found(self, name: str, version: str) -> None:
        """Record the runtime that the daemon is connected to."""
        self._runtime.labels(name, version).set(1)

    def begin(self, request: Request) -> "RequestMetrics":
        """See `Recorder`."""
        return RequestMetrics(self, request)

    def withheld(self, rule: Rule) -> None:
        """See `Recorder`."""
        self._withheld.labels(rule.value).inc()


class RequestMetrics(RequestRecorder):
    """The RequestRecorder of the node daemon: times the stages of one request, and counts its result."""

    def __init__(self, metrics: NodeMetrics, request: Request) -> None:
        self._metrics = metrics
        self._request = request
        self._first_seen = metrics.clock()
        self._served_at: float | None = None
        self._acted = False
        self._stops: dict[str, float] = {}
        self._successors: dict[str, float] = {}
        self._counted = {state.name for state in request.status.states if state.phase.final}
        """Containers whose final state was counted, by this process or (if final at first sight) by an earlier one."""
        self._completed = False

    def served(self) -> None:
        """The request does not wait for other requests of its pod any more."""
        if self._served_at is None:
            self._served_at = self._metrics.clock()
            self._observe_since("queued", self._first_seen)

    def work_started(self) -> None:
        """The request's first hook or stop begins, so its unready grace period, if any, is over."""
        if self._acted:
            return
        self._acted = True
        if self._request.strategy.unready_grace_seconds is not None and self._served_at is not None:
            self._observe_since("unready_grace", self._served_at)

    def hook_ended(self, hook: Hook, result: HookResult) -> None:
        """See `RequestRecorder`."""
        self._metrics.hooks.labels(hook.kind.value).inc()
        if result.error:
            self._metrics.hook_failures.labels(hook.kind.value).inc()
        self._observe("pre_stop", result.seconds)

    def reload_ended(self, reload: Reload, result: HookResult) -> None:
        """See `RequestRecorder`."""
        self._metrics.reloads.labels(reload.kind).inc()
        if result.error:
            self._metrics.reload_failures.labels(reload.kind).inc()

    def stop_sent(self, container: str) -> None:
        """See `RequestRecorder`."""
        self.work_started()
        self._stops.setdefault(container, self._metrics.clock())

    def stop_ended(self, seconds: float) -> None:
        """See `RequestRecorder`."""
        self._observe("stop", seconds)
        self._restarted(1)

    def pod_restarted(self) -> None:
        """See `RequestRecorder`."""
        self._restarted(len(self._request.containers))

    def _restarted(self, containers: int) -> None:
        self._metrics.restarts.labels(self._metrics.namespace(self._request.namespace)).inc(containers)

    def successor_seen(self, container: str) -> None:
        """See `RequestRecorder`."""
        if container not in self._successors:
            self._successors[container] = self._metrics.clock()
            if container in self._stops:
                self._observe_since("new_container_seen", self._stops[container])

    def written(self, before: Request, after: Request) -> None:
        """Count the containers and the request that this write has completed."""
        if self._completed:
            return
        for state in after.status.states:
            succeeded = state.phase is StatePhase.SUCCEEDED and not before.status.state(state.name).phase.final
            if succeeded and state.name in self._successors:
                self._observe_since("ready", self._successors[state.name])
        self._count_ended(after, lib.OTHER)

    def forgotten(self, request: Request) -> None:
        """Count a result that this process did not write."""
        if self._completed:
            return
        if request.completed:
            self._count_ended(request, ELSEWHERE)
        else:
            self._metrics.requests.labels("gone").inc()

    def _count_ended(self, request: Request, unknown: str) -> None:
        """Count each final state once, even if the response to its write was lost."""
        for state in request.status.states:
            if not state.phase.final or state.name in self._counted:
                continue
            self._counted.add(state.name)
            if state.phase is StatePhase.FAILED:
                labels = ("failed", state.reason or unknown)
            else:
                stopped = state.name in self._stops or state.is_killed
                how = "stopped" if stopped else "already_recreated"
                labels = ("succeeded", "reloaded" if request.reloads else how)
            self._metrics.recreations.labels(*labels).inc()
        if request.completed:
            self._completed = True
            self._metrics.requests.labels(_outcome(request)).inc()
            self._observe_since("total", self._first_seen)

    def _observe_since(self, stage: str, began: float) -> None:
        self._observe(stage, self._metrics.clock() - began)

    def _observe(self, stage: str, seconds: float) -> None:
        """Time one stage. An OpenMetrics exemplar links a slow bucket to the request's UID."""
        self._metrics.stages[stage].observe(seconds, {"request_uid": self._request.uid[:64]})


def _outcome(request: Request) -> str:
    """Return the result of a completed request."""
    succeeded = sum(state.phase is StatePhase.SUCCEEDED for state in request.status.states)
    if succeeded == 0:
        return "failed"
    return "succeeded" if succeeded == len(request.containers) else "partial"


def _of_state(state: NodeState, clock: Callable[[], float], namespace: lib.Capped) -> Iterator[Metric]:
    """Yield all gauges of the daemon's current state."""
    now = clock()
    active = Tally({("pending", ""): 0, ("recreating", ""): 0})
    oldest = now
    for request, first_seen in state.live():
        phase = "recreating" if request.status.phase is RequestPhase.RECREATING else "pending"
        active[phase, namespace(request.namespace)] += 1
        oldest = min(oldest, first_seen)
    labels = ["phase", "pod_namespace"]
    requests = GaugeMetricFamily("crrd_active_requests", "Active requests of this node.", labels=labels)
    for values, count in active.items():
        requests.add_metric(values, count)
    yield requests
    text = "Seconds since this daemon first saw its oldest active request. 0 if no request is active."
    yield GaugeMetricFamily("crrd_oldest_request_age_seconds", text, now - oldest)
    yield from lib.queue_metrics([state.queue()])
    yield from _of_watches(state.watches(), now)


def _of_watches(watches: Iterable[WatchState], now: float) -> Iterator[Metric]:
    """Yield the times of each watch's last list and last event, as Unix times."""
    unix = time.time()
    text = "Unix time of the last full list of a resource."
    listed = GaugeMetricFamily("crrd_last_list_timestamp_seconds", text, labels=["resource"])
    text = "Unix time of the last event or bookmark of a watch. Bookmarks come every minute."
    heard = GaugeMetricFamily("crrd_last_activity_timestamp_seconds", text, labels=["resource"])
    for watch in watches:
        for family, at in ((listed, watch.last_list), (heard, watch.last_activity)):
            if at is not None:
                family.add_metric([watch.resource], unix - (now - at))
    yield from (listed, heard)
