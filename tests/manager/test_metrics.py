"""The manager's metrics, as Prometheus reads them: after real calls over TLS, and after the controller's work."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from crrd.core.admission.rules import DenialReason, Denied
from crrd.core.api.pod import PodMeta
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import RequestPhase, Status
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import PatchPod
from crrd.core.recreate.actions import EmitEvent
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.connections import CROWDED, SILENT
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.lib.health import StatusServer
from crrd.lib.metrics import metrics_route
from crrd.lib.workqueue import QueueState
from crrd.manager.metrics import USERS, ManagerMetrics
from tests.support.admission import JsonObject, new_pod, new_request, new_review, reviewed
from tests.support.faulty_api import FaultyApiServer
from tests.support.scrapes import show_manager
from tests.support.scripted_api import FixedAccess
from tests.support.webhook import Pods, Served, webhook

Labels = dict[str, str]


def value(metrics: ManagerMetrics, name: str, **labels: str) -> float | None:
    found: float | None = metrics.registry.get_sample_value(name, labels)
    return found


@dataclass
class Counted:
    """A webhook and what it counts."""

    served: Served
    metrics: ManagerMetrics

    async def ask(self, path: str, review: JsonObject) -> None:
        await self.served.ask(path, review)

    def reviews(self, webhook: str, decision: str, reason: str = "none") -> float | None:
        labels = {"webhook": webhook, "decision": decision, "reason": reason}
        return value(self.metrics, "crrd_admission_reviews_total", **labels)


@pytest.fixture
def pods() -> Pods:
    return Pods({("shop", "web-0"): new_pod()})


@pytest.fixture
async def counted(pods: Pods) -> AsyncIterator[Counted]:
    metrics = ManagerMetrics()
    async with webhook(pods, on_review=metrics.reviewed, on_admitted=metrics.admitted) as served:
        yield Counted(served, metrics)


def finished(user: str = "alice") -> JsonObject:
    outcome = reviewed(new_request(), new_pod(), user)
    assert not isinstance(outcome, Denied)
    return outcome


async def test_answers_by_webhook_decision_and_reason(counted: Counted) -> None:
    assert counted.reviews("mutate", "allowed") == 0
    assert counted.reviews("mutate", "denied", "pod_not_found") == 0
    await counted.ask("/mutate-crr", new_review(new_request()))
    await counted.ask("/mutate-crr", new_review(new_request()))
    await counted.ask("/mutate-crr", new_review(new_request(podName="elsewhere")))
    await counted.ask("/mutate-crr", new_review(new_request(containers=[])))
    await counted.ask("/mutate-pod", new_review(new_pod(), kind={"group": "", "version": "v1", "kind": "Pod"}))
    assert counted.reviews("mutate", "allowed") == 2
    assert counted.reviews("mutate", "denied", "pod_not_found") == 1
    assert counted.reviews("mutate", "denied", "invalid_spec") == 1
    assert counted.reviews("pods", "allowed") == 1
    assert value(counted.metrics, "crrd_admission_review_duration_seconds_count", webhook="mutate") == 4
    assert value(counted.metrics, "crrd_admission_review_duration_seconds_bucket", webhook="pods", le="10.0") == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiUnavailableError("connection refused"), "pod_lookup_failed"),
        (ApiRefusedError("forbidden", status=403), "pod_lookup_refused"),
    ],
)
async def test_what_the_manager_could_not_judge_is_an_error(
    counted: Counted, pods: Pods, error: Exception, reason: str
) -> None:
    async def fail() -> None:
        raise error

    pods.before = fail
    await counted.ask("/mutate-crr", new_review(new_request()))
    assert counted.reviews("mutate", "error", reason) == 1
    assert counted.reviews("mutate", "allowed") == 0


async def test_calls_that_are_none_are_errors(counted: Counted, pods: Pods) -> None:
    assert (await counted.served.post("/mutate-crr", b"{}"))[0] == 400
    assert (await counted.served.post("/mutate-pod", b"", content_type="text/plain"))[0] == 415
    assert counted.reviews("mutate", "error", "bad_call") == 1
    assert counted.reviews("pods", "error", "bad_call") == 1

    async def fail() -> None:
        raise RuntimeError("a bug")

    pods.before = fail
    assert (await counted.served.post("/mutate-crr", new_review(new_request())))[0] == 500
    assert counted.reviews("mutate", "error", "internal") == 1


def test_what_was_given_up() -> None:
    metrics = ManagerMetrics()
    metrics.closed(CROWDED)
    metrics.event_dropped()
    closed = [value(metrics, "crrd_admission_connections_closed_total", reason=each) for each in (CROWDED, SILENT)]
    assert closed == [1, 0]
    assert value(metrics, "crrd_events_dropped_total") == 1


async def test_who_asked_for_what_was_let_in(counted: Counted) -> None:
    def admitted(user: str) -> float | None:
        return value(counted.metrics, "crrd_admitted_requests_total", requested_by=user)

    def by(user: str, request: JsonObject | None = None, operation: str = "CREATE", **changes: Any) -> JsonObject:
        return new_review(request or new_request(), operation, userInfo={"username": user}, **changes)

    await counted.ask("/mutate-crr", by("alice"))
    await counted.ask("/mutate-crr", by("alice"))
    await counted.ask("/mutate-crr", by("alice", finished("alice")))  # asked again
    await counted.ask("/mutate-crr", by("bob"))
    await counted.ask("/mutate-crr", by("carol", dryRun=True))
    await counted.ask("/mutate-crr", by("carol", new_request(podName="elsewhere")))
    await counted.ask("/mutate-crr", by("carol", new_request(), "UPDATE", old=finished("carol")))
    assert (admitted("alice"), admitted("bob"), admitted("carol")) == (2, 1, None)


def test_users_are_few() -> None:
    metrics = ManagerMetrics()
    for number in range(USERS + 20):
        metrics.admitted(f"user-{number}")
    metrics.admitted("user-0")
    families = {family.name: family for family in metrics.registry.collect()}
    samples = {each.labels["requested_by"]: each.value for each in families["crrd_admitted_requests"].samples}
    assert len(samples) == USERS + 1
    assert (samples["user-0"], samples["other"]) == (2, 20)


async def test_series_do_not_grow_with_calls(counted: Counted) -> None:
    await counted.ask("/mutate-crr", new_review(new_request()))

    def series() -> int:
        return sum(len(family.samples) for family in counted.metrics.registry.collect() if "crrd" in family.name)

    before = series()
    for _ in range(20):
        await counted.ask("/mutate-crr", new_review(new_request()))
    assert series() == before


POD = PodMeta("shop", "web-0", "uid-1")


def complete(reason: Reason) -> lc.Complete:
    return lc.Complete(Status(RequestPhase.COMPLETED, reason=reason))


ACTIONS: list[tuple[lc.LifecycleAction | PatchPod, str, str]] = [
    (complete(Reason.POD_GONE), "completed", "PodGone"),
    (complete(Reason.POD_REPLACED), "completed", "PodReplaced"),
    (complete(Reason.POD_DELETING), "completed", "PodDeleting"),
    (complete(Reason.NO_ANSWER), "completed", "NoDaemonAnswered"),
    (complete(Reason.DEADLINE), "completed", "DeadlineExceeded"),
    (complete(Reason.RUN_STOPPED), "completed", "RunStopped"),
    (complete(Reason.PATCH_REFUSED), "completed", "PatchRefused"),
    (complete(Reason.NONE), "completed", "none"),
    (lc.Progress(Status(RequestPhase.RECREATING)), "status_written", "none"),
    (PatchPod(()), "pod_patched", "none"),
    (lc.AddFinalizer(), "finalizer_added", "none"),
    (lc.AcquireUnready(POD, "shop/r"), "readiness_acquired", "none"),
    (lc.RecordUnready("2026-01-01T00:00:00Z"), "marked", "none"),
    (lc.ReleaseUnready(POD, "shop/r"), "readiness_released", "none"),
    (lc.InitReadiness(POD), "readiness_initialised", "none"),
    (lc.RemoveFinalizer(), "finalizer_removed", "none"),
    (lc.RemoveActive(), "deactivated", "none"),
    (lc.Delete(), "deleted", "none"),
]


@pytest.mark.parametrize(("action", "name", "reason"), ACTIONS, ids=[f"{name} {why}" for _, name, why in ACTIONS])
def test_what_the_controller_did(action: lc.LifecycleAction | PatchPod, name: str, reason: str) -> None:
    metrics = ManagerMetrics()

    def counted() -> dict[tuple[str, str], float]:
        families = {family.name: family for family in metrics.registry.collect()}
        samples = families["crrd_lifecycle_actions"].samples
        return {(each.labels["action"], each.labels["reason"]): each.value for each in samples}

    by_patches = {("completed", "PatchRefused")}  # Only a manager with `--via patch` counts these
    labels = {(name, reason) for _, name, reason in ACTIONS} - by_patches
    assert counted() == dict.fromkeys(labels, 0.0)
    metrics.acted(action)
    metrics.acted(EmitEvent(parse_request(new_request()), EventReason.FAILED, "not counted"))
    assert counted() == {**dict.fromkeys(labels, 0.0), (name, reason): 1}
    assert value(metrics, "crrd_ttl_deletions_total") == float(name == "deleted")


async def test_the_page_in_both_formats(counted: Counted) -> None:
    expires: datetime | None = None
    leads = False
    show_manager(
        counted.metrics,
        leading=lambda: leads,
        not_after=lambda: expires,
        connections=lambda: 7,
        policies=lambda: {"Idle": 3},
        wrong_ca_bundles=lambda: 2,
        queues=lambda: [QueueState("policies", 4, 1.5)],
    )
    await counted.ask("/mutate-crr", new_review(new_request(podName="elsewhere")))
    server = StatusServer("127.0.0.1:0", [metrics_route(counted.metrics.registry)])
    url = f"http://{await server.start()}/metrics"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                plain = await answer.text()
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            leads, expires = True, datetime(2027, 1, 1, tzinfo=UTC)
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            async with session.get(url, headers=accept) as answer:
                modern = await answer.text()
                assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    finally:
        await server.stop()
    before = {family.name: family for family in parse_text(plain)}
    after = {family.name: family for family in parse_openmetrics(modern)}  # type: ignore[no-untyped-call]  # the library's own gap
    for families in (before, after):
        assert {"crrd_build_info", "crrd_leader", "crrd_admission_review_duration_seconds"} <= families.keys()
        assert all(family.documentation for family in families.values())
        assert [sample.value for sample in families["crrd_admission_connections"].samples] == [7]
        assert [sample.value for sample in families["crrd_ca_bundles_wrong"].samples] == [2]
    assert [sample.value for sample in before["crrd_leader"].samples] == [0]
    assert "crrd_certificate_expiry_timestamp_seconds" not in before
    assert [sample.value for sample in after["crrd_leader"].samples] == [1]
    (expiry,) = after["crrd_certificate_expiry_timestamp_seconds"].samples
    assert expiry.value == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    denied = [
        sample.value
        for sample in after["crrd_admission_reviews"].samples
        if sample.labels == {"webhook": "mutate", "decision": "denied", "reason": DenialReason.POD_NOT_FOUND}
    ]
    assert denied == [1]


async def test_calls_to_the_api_server() -> None:
    metrics = ManagerMetrics()
    async with FaultyApiServer() as api, KubeClient(FixedAccess(api.url), on_call=metrics.api_call) as client:
        with pytest.raises(GoneError):
            await client.get(PODS, "default", "nobody")
        api.fail_next(count=9, status=None)
        with pytest.raises(ApiUnavailableError):
            await client.get(PODS, "default", "nobody")

    def calls(code: str) -> float | None:
        return value(metrics, "crrd_api_calls_total", verb="get", resource="pods", code=code)

    assert calls("404") == 1
    assert (calls("none") or 0) >= 1
    assert (value(metrics, "crrd_api_call_duration_seconds_count", verb="get") or 0) >= 2
