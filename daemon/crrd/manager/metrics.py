"""The manager's metrics. Every label has few values: the number of users is capped, and reasons are enumerations."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from crrd.core.admission.rules import DenialReason
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import PatchPod
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.triggers import TRIGGERS
from crrd.core.recreate.actions import EmitEvent
from crrd.lib.connections import CROWDED, SILENT, CloseObserver
from crrd.lib.metrics import (
    FAST_BUCKETS,
    NONE,
    Capped,
    Computed,
    api_call_metrics,
    dropped_events_metric,
    new_registry,
    queue_metrics,
    start_at_zero,
)
from crrd.lib.workqueue import QueueState
from crrd.manager.webhook.server import ERROR_REASONS

USERS = 50  # Number of users that get their own label value during the life of the process
WEBHOOKS = ("mutate", "pods")
_ACTIONS: dict[type[lc.LifecycleAction | PatchPod], str] = {
    lc.Complete: "completed",
    lc.Progress: "status_written",
    PatchPod: "pod_patched",
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
    """The registry of one manager, and the callbacks that update it."""

    def __init__(self) -> None:
        self.registry = registry = new_registry()
        self.api_call = api_call_metrics(registry)  # For the API clients: `on_call`
        self.event_dropped = dropped_events_metric(registry)  # For the events: `on_drop`
        counter = partial(Counter, registry=registry)
        labels = ["webhook", "decision", "reason"]
        self._reviews = counter("crrd_admission_reviews", "Answers of the admission webhooks.", labels)
        name, text = "crrd_admission_review_duration_seconds", "Seconds from an admission call to its answer."
        seconds = Histogram(name, text, ["webhook"], registry=registry, buckets=FAST_BUCKETS)
        # Created at once, so that rate() also counts the first answer.
        self._seconds = {webhook: seconds.labels(webhook) for webhook in WEBHOOKS}
        text = "Admitted new requests, by the user who created them."
        self._admitted = counter("crrd_admitted_requests", text, ["requested_by"])
        self._user = Capped(USERS)
        text = "Actions of the lifecycle controller on requests and on the readiness of their pods."
        self._actions = counter("crrd_lifecycle_actions", text, ["action", "reason"])
        self._deletions = counter("crrd_ttl_deletions", "Completed requests that were deleted after their TTL.")
        text = (
            "Connections to the admission webhooks that were closed to make room (crowded), or because no call came "
            "(silent)."
        )
        closed = counter("crrd_admission_connections_closed", text, ["reason"])
        self.closed: CloseObserver = partial(_count, closed)
        text = "How often this manager wrote the caBundle of a webhook configuration."
        self.ca_bundle_written: Callable[[], None] = counter("crrd_ca_bundle_writes", text).inc
        text = "Finished runs of ContainerRecreatePolicies, by trigger and result."
        policy_runs = counter("crrd_policy_runs", text, ["trigger", "result"])
        self.policy_run_ended = partial(_count, policy_runs)  # For the policies: `on_run`
        start_at_zero(policy_runs, TRIGGERS, ("succeeded", "incomplete", "failed", "halted"))
        start_at_zero(closed, (CROWDED, SILENT))
        start_at_zero(self._reviews, WEBHOOKS, ("allowed",), (NONE,))
        start_at_zero(self._reviews, ("mutate",), ("denied",), DenialReason)
        start_at_zero(self._reviews, WEBHOOKS, ("error",), ERROR_REASONS)
        start_at_zero(self._actions, set(_ACTIONS.values()) - {"completed"}, [NONE])
        start_at_zero(self._actions, ["completed"], (*lc.ENDS, NONE))

    def watch(
        self,
        *,
        leading: Callable[[], bool],
        not_after: Callable[[], datetime | None],
        connections: Callable[[], int],
        policies: Callable[[], Mapping[str, int]],
        wrong_ca_bundles: Callable[[], int],
        queues: Callable[[], Iterable[QueueState]],
    ) -> None:
        """Call these functions at every scrape. `policies` returns counts by reason of the condition Ready."""
        wrong = "Webhook configurations whose caBundle is not the one that this manager wants."
        for name, text, ask in (
            ("crrd_leader", "1 if this manager is the leader, else 0.", leading),
            ("crrd_admission_connections", "Connections to the admission webhooks.", connections),
            ("crrd_ca_bundles_wrong", wrong, wrong_ca_bundles),
        ):
            Gauge(name, text, registry=self.registry).set_function(ask)
        self.registry.register(Computed(partial(_computed, not_after, policies, queues)))

    def reviewed(self, webhook: str, decision: str, reason: str, seconds: float) -> None:
        """Count an answered admission call, see `crrd.manager.webhook.server.ReviewObserver`."""
        self._reviews.labels(webhook, decision, reason or NONE).inc()
        self._seconds[webhook].observe(seconds)

    def admitted(self, user: str) -> None:
        """Count an admitted new request."""
        self._admitted.labels(self._user(user or NONE)).inc()

    def acted(self, action: lc.LifecycleAction | PatchPod) -> None:
        """Count an action that the lifecycle controller has carried out."""
        if isinstance(action, EmitEvent):
            return
        reason = action.status.reason if isinstance(action, lc.Complete) else NONE
        self._actions.labels(_ACTIONS[type(action)], reason or NONE).inc()
        if isinstance(action, lc.Delete):
            self._deletions.inc()


def _count(counter: Counter, *labels: str) -> None:
    counter.labels(*labels).inc()


def _computed(
    not_after: Callable[[], datetime | None],
    policies: Callable[[], Mapping[str, int]],
    queues: Callable[[], Iterable[QueueState]],
) -> Iterator[Metric]:
    """Yield the metrics without a value at times: the certificate's expiry before there is one, and the leader's."""
    if (at := not_after()) is not None:
        name = "crrd_certificate_expiry_timestamp_seconds"
        yield GaugeMetricFamily(name, "Unix time at which the serving certificate expires.", value=at.timestamp())
    text = "ContainerRecreatePolicies by the reason of their condition Ready. Only the leader reports them."
    family = GaugeMetricFamily("crrd_policies", text, labels=["reason"])
    counts = policies()
    for reason in set(PolicyReason) - {PolicyReason.READABLE, PolicyReason.EFFECTIVE}:
        family.add_metric([reason.value], counts.get(reason.value, 0))
    yield family
    yield from queue_metrics(queues())
