"""What the metrics of every daemon have in common: a registry of their own, API calls, and the page `/metrics`.

Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` on counters. Labels are bounded: no
pod, request or container is ever a label's value. What a daemon counts beyond this is the concern of
`node.metrics` and `manager.metrics`.
"""

import platform
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daemon import __version__

FAST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, for calls and answers."""
STAGE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds, for stages of a recreate: from a container that obeys at once to a grace period of half an hour."""
OTHER = "other"
NONE = "none"
NOTES = 1000
"""What a ledger notes at most before it counts."""


def new_registry() -> CollectorRegistry:
    """A registry with what every daemon tells of itself: its build and its process (CPU, memory, file descriptors)."""
    # a third of all series, for a time that nobody asks for
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own gap
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge("crrd_build_info", "The running crrd.", ["version", "python_version"], registry=registry)
    build.labels(__version__, platform.python_version()).set(1)
    return registry


def metrics_route(registry: CollectorRegistry) -> web.RouteDef:
    """`/metrics`: Prometheus' text format, or OpenMetrics (with exemplars) for those who accept it."""

    async def page(request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return web.get("/metrics", page)


class Ledger(Collector):
    """Notes what is to be counted, and counts it in one go when somebody reads the metrics, or when it has got long.

    What is counted happens on the way to a stop, among much else: noting takes a fraction of the CPU time of counting,
    and what is alike is counted together. To be made before the metrics that it feeds: a registry asks its collectors
    in order.

    Args:
        count: counts the notes that it is given.
    """

    def __init__(self, registry: CollectorRegistry, count: Callable[[list[tuple[Any, ...]]], None]) -> None:
        self._count = count
        self._notes: list[tuple[Any, ...]] = []
        registry.register(self)

    def note(self, *what: Any) -> None:
        """Count this, later."""
        self._notes.append(what)
        if len(self._notes) >= NOTES:
            self._settle()

    def describe(self) -> Iterable[Metric]:
        """No metric of its own."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """No metric of its own: bring the others up to date."""
        self._settle()
        return ()

    def _settle(self) -> None:
        notes, self._notes = self._notes, []
        self._count(notes)


class CallMetrics:
    """Calls by labels, with their latency by the first of the labels.

    Args:
        name: the metrics' common beginning, e.g. `crrd_api_call`.
        what: the calls in words, for the help.
        labels: names of the labels; the latency has the first of them alone, which keeps the series few.
    """

    def __init__(self, registry: CollectorRegistry, name: str, what: str, labels: tuple[str, ...]) -> None:
        self._ledger = Ledger(registry, self._count)
        self.note = self._ledger.note
        """Notes one call: the labels' values, a number (0 for none) or a text each, then the seconds that it took."""
        self._calls = Counter(f"{name}s", f"{what}.", labels, registry=registry)
        self._seconds = Histogram(
            f"{name}_duration_seconds",
            f"Seconds that {what} took.",
            labels[:1],
            registry=registry,
            buckets=FAST_BUCKETS,
        )

    def _count(self, notes: list[tuple[Any, ...]]) -> None:
        alike: dict[tuple[Any, ...], list[float]] = {}
        for *values, seconds in notes:
            alike.setdefault(tuple(values), []).append(seconds)
        for labels, durations in alike.items():
            self._calls.labels(*(value or NONE for value in labels)).inc(len(durations))
            observe = self._seconds.labels(labels[0]).observe
            for seconds in durations:
                observe(seconds)


def api_call_metrics(registry: CollectorRegistry) -> Callable[[str, str, int, float], None]:
    """Metrics of the calls to the API server: what tells of them is a `daemon.kube.transport.CallObserver`."""
    return CallMetrics(registry, "crrd_api_call", "calls to the API server", ("verb", "resource", "code")).note


class Capped:
    """Keeps a label's values few: the first so many are themselves, all others "other"."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value to use as a label's."""
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


def start_at_zero(counter: Counter, *labels: Iterable[str]) -> None:
    """Make the series of every combination of these labels' values: a rate then sees the first event too."""
    combinations: list[tuple[str, ...]] = [()]
    for values in labels:
        combinations = [(*before, value) for before in combinations for value in values]
    for combination in combinations:
        counter.labels(*combination)
