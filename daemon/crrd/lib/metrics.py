"""The common part of all daemons' metrics: their own registry, API calls, and the page `/metrics`.

Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` on counters. The number of label values
is bounded: no pod, request or container is ever a label's value. `node.metrics` and `manager.metrics` have the rest.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from crrd import __version__
from crrd.lib.log import dropped_lines
from crrd.lib.workqueue import QueueState

# Seconds, for calls and responses
FAST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Seconds, for stages of a recreate: from a container that stops at once to a grace period of half an hour
STAGE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
LONGEST_VALUE = 128  # Most characters of a label's value that clients can choose
OTHER = "other"
NONE = "none"


def new_registry() -> CollectorRegistry:
    """Make a registry with the metrics of every daemon: its build and its process (CPU, memory, file descriptors)."""
    # `_created` series would be a third of all series, and have no use
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library lacks an annotation
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge("crrd_build_info", "Version of this crrd.", ["version", "python_version"], registry=registry)
    build.labels(__version__, platform.python_version()).set(1)
    registry.register(Computed(_dropped_lines))
    return registry


class Computed(Collector):
    """Metrics that a function computes at each scrape, so that no other code has to update them."""

    def __init__(self, compute: Callable[[], Iterable[Metric]]) -> None:
        self._compute = compute

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        return self._compute()


def _dropped_lines() -> Iterator[Metric]:
    text = "Log lines that were dropped because the log output was blocked."
    yield CounterMetricFamily("crrd_log_lines_dropped", text, value=dropped_lines())


def metrics_route(registry: CollectorRegistry) -> web.RouteDef:
    """`/metrics`: Prometheus' text format, or OpenMetrics (with exemplars) if the client accepts it."""

    async def page(request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return web.get("/metrics", page)


class CallMetrics:
    """Counts calls by all labels. Their latency has only the first label, to keep the number of series small."""

    def __init__(self, registry: CollectorRegistry, name: str, what: str, labels: tuple[str, ...]) -> None:
        self._calls = Counter(f"{name}s", f"{what}.", labels, registry=registry)
        durations = f"Duration of {what}, in seconds."
        self._seconds = Histogram(
            f"{name}_duration_seconds", durations, labels[:1], registry=registry, buckets=FAST_BUCKETS
        )

    def count(self, *labels_and_seconds: Any) -> None:
        """Count one call: each label's value (a text or a number, 0 for none), then its duration in seconds."""
        *labels, seconds = labels_and_seconds
        self._calls.labels(*(value or NONE for value in labels)).inc()
        self._seconds.labels(labels[0]).observe(seconds)


def api_call_metrics(registry: CollectorRegistry) -> Callable[[str, str, int, float], None]:
    """Make the metrics of calls to the API server. Returns a `crrd.kube.transport.CallObserver`."""
    return CallMetrics(registry, "crrd_api_call", "calls to the API server", ("verb", "resource", "code")).count


def dropped_events_metric(registry: CollectorRegistry) -> Callable[[], None]:
    """Make the counter of dropped Kubernetes events. Returns `on_drop` for `crrd.kube.events.KubeEventSink`."""
    return Counter("crrd_events_dropped", "Kubernetes events that were dropped.", registry=registry).inc


def queue_metrics(queues: Iterable[QueueState]) -> Iterator[Metric]:
    """Yield the gauges of the controllers' queues."""
    text = "Pods or policies that are being processed or are in the queue."
    depth = GaugeMetricFamily("crrd_queue_depth", text, labels=["controller"])
    text = "Seconds that the oldest pod or policy has been in the queue. 0 if the queue is empty."
    oldest = GaugeMetricFamily("crrd_queue_oldest_age_seconds", text, labels=["controller"])
    for queue in queues:
        depth.add_metric([queue.controller], queue.depth)
        oldest.add_metric([queue.controller], queue.oldest_seconds)
    yield from (depth, oldest)


class Capped:
    """Limits a label's values: the first `most` values are used, all later ones become "other".

    So do values that are too long, or have unprintable characters (for example half of a surrogate pair).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the value, or "other"."""
        if value in self._known:
            return value
        if len(self._known) >= self._most or len(value) > LONGEST_VALUE or not value.isprintable():
            return OTHER
        self._known.add(value)
        return value


def start_at_zero(counter: Counter, *labels: Iterable[str]) -> None:
    """Create the series of all combinations of these labels' values, so that a rate includes the first event, too."""
    for combination in product(*labels):
        counter.labels(*combination)
