"""The manager's metrics: admission, leadership, the lifecycle of requests, the certificate.

The components count; this module keeps names and labels. Every label has few values: users are capped,
reasons are enumerations.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from crrd.core.admission.rules import DenialReason
from crrd.core.lifecycle import steps as lc
from crrd.core.policy.decide import PolicyReason, Trigger
from crrd.core.recreate.actions import EmitEvent
from crrd.lib.metrics import (
    FAST_BUCKETS,
    NONE,
    Capped,
    api_call_metrics,
    dropped_events_metric,
    new_registry,
    start_at_zero,
)

USERS = 50  # The number of users who get a label of their own, until the process ends
WEBHOOKS = ("mutate", "pods")
CLOSE_REASONS = ("crowded", "silent")
_ACTIONS: dict[type[lc.LifecycleAction], str] = {
    lc.Complete: "completed",
    lc.AddFinalizer: "finalizer_added",
    lc.AcquireUnready: "readiness_acquired",
    lc.RecordUnready: "marked",
    lc.ReleaseUnready: "readiness_released",
    lc.InitReadiness: "readiness_initialised",
    lc.RemoveFinalizer: "finalizer_removed",
    lc.RemoveActive: "deactivated",
    lc.Delete: "deleted",
}


class ManagerMetrics:
    """One manager's registry, and the callbacks that fill it."""

    def __init__(self) -> None:
        self.registry = registry = new_registry()
        self.api_call = api_call_metrics(registry)  # For the API clients: `on_call`
        self.event_dropped = dropped_events_metric(registry)  # For the events: `on_drop`
        self._reviews = Counter(
            "crrd_admission_reviews",
            "Answers of the admission webhooks.",
            ["webhook", "decision", "reason"],
            registry=registry,
        )
        seconds = Histogram(
            "crrd_admission_review_duration_seconds",
            "Seconds from an admission call to its answer.",
            ["webhook"],
            registry=registry,
            buckets=FAST_BUCKETS,
        )
        # Made at once: a rate then sees the first answer, too.
        self._seconds = {webhook: seconds.labels(webhook) for webhook in WEBHOOKS}
        self._admitted = Counter(
            "crrd_admitted_requests",
            "Admitted new requests, by the user who created them.",
            ["requested_by"],
            registry=registry,
        )
        self._user = Capped(USERS)
        self._actions = Counter(
            "crrd_lifecycle_actions",
            "Actions of the lifecycle controller on requests and on the readiness of their pods.",
            ["action", "reason"],
            registry=registry,
        )
        self._deletions = Counter(
            "crrd_ttl_deletions", "Completed requests that were deleted after their TTL.", registry=registry
        )
        self._closed = Counter(
            "crrd_admission_connections_closed",
            "Connections to the admission webhooks that were closed to make room (crowded), or because no call came "
            "(silent).",
            ["reason"],
            registry=registry,
        )
        self._ca_bundle_writes = Counter(
            "crrd_ca_bundle_writes",
            "How often this manager wrote the caBundle of a webhook configuration.",
            registry=registry,
        )
        self._policy_runs = Counter(
            "crrd_policy_runs",
            "Finished runs of ContainerRecreatePolicies, by trigger and result.",
            ["trigger", "result"],
            registry=registry,
        )
        start_at_zero(self._policy_runs, Trigger, ("succeeded", "failed"))
        start_at_zero(self._closed, CLOSE_REASONS)
        start_at_zero(self._reviews, WEBHOOKS, ("allowed",), (NONE,))
        start_at_zero(self._reviews, ("mutate",), ("denied",), DenialReason)
        start_at_zero(self._actions, set(_ACTIONS.values()) - {"completed"}, [NONE])
        start_at_zero(self._actions, ["completed"], lc.ENDS)

    def watch(
        self,
        leading: Callable[[], bool],
        not_after: Callable[[], datetime | None],
        connections: Callable[[], int],
        policies: Callable[[], Mapping[str, int]],
        wrong_ca_bundles: Callable[[], int],
    ) -> None:
        """Ask these whenever the page is read.

        Whether this manager leads, when its certificate expires, how many connections its webhooks have, how many
        policies there are by the reason of their condition Ready, and how many caBundles are wrong.
        """
        leader = Gauge("crrd_leader", "1 if this manager is the leader, else 0.", registry=self.registry)
        leader.set_function(lambda: float(leading()))
        self.registry.register(_Expiry(not_after))
        self.registry.register(_Policies(policies))
        opened = Gauge("crrd_admission_connections", "Connections to the admission webhooks.", registry=self.registry)
        opened.set_function(lambda: float(connections()))
        wrong = Gauge(
            "crrd_ca_bundles_wrong",
            "Webhook configurations whose caBundle is not the one that this manager wants.",
            registry=self.registry,
        )
        wrong.set_function(lambda: float(wrong_ca_bundles()))

    def reviewed(self, webhook: str, decision: str, reason: str, seconds: float) -> None:
        """An admission call was answered; see `crrd.manager.webhook.server.ReviewObserver`."""
        self._reviews.labels(webhook, decision, reason or NONE).inc()
        self._seconds[webhook].observe(seconds)

    def closed(self, reason: str) -> None:
        """A connection was closed; see `crrd.lib.connections.CloseObserver`."""
        self._closed.labels(reason).inc()

    def admitted(self, user: str) -> None:
        """A new request was let in."""
        self._admitted.labels(self._user(user or NONE)).inc()

    def ca_bundle_written(self) -> None:
        """A webhook configuration got its caBundle."""
        self._ca_bundle_writes.inc()

    def policy_run_ended(self, trigger: str, result: str) -> None:
        """A run of a policy has ended; see `crrd.manager.policies.controller.RunObserver`."""
        self._policy_runs.labels(trigger, result).inc()

    def acted(self, action: lc.LifecycleAction) -> None:
        """The lifecycle controller did this."""
        if isinstance(action, EmitEvent):
            return
        reason = action.status.reason if isinstance(action, lc.Complete) else NONE
        self._actions.labels(_ACTIONS[type(action)], reason).inc()
        if isinstance(action, lc.Delete):
            self._deletions.inc()


class _Policies(Collector):
    """How many policies there are, on the manager that leads."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        text = "ContainerRecreatePolicies by the reason of their condition Ready. Only the leader reports them."
        family = GaugeMetricFamily("crrd_policies", text, labels=["reason"])
        counts = self._count()
        for reason in set(PolicyReason) - {PolicyReason.READABLE}:
            family.add_metric([reason.value], counts.get(reason.value, 0))
        yield family


class _Expiry(Collector):
    """When the serving certificate expires; nothing while there is none."""

    def __init__(self, not_after: Callable[[], datetime | None]) -> None:
        self._not_after = not_after

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        at = self._not_after()
        if at is not None:
            name = "crrd_certificate_expiry_timestamp_seconds"
            yield GaugeMetricFamily(name, "Unix time at which the serving certificate expires.", value=at.timestamp())
