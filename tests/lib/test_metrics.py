"""The page `/metrics`: both formats, exemplars, and what every daemon tells of itself."""

import platform
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Metric, parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from crrd import __version__
from crrd.core.api.reasons import Reason
from crrd.lib.health import StatusServer
from crrd.lib.metrics import Capped, metrics_route, new_registry
from crrd.node.metrics import NodeMetrics
from tests.support.scrapes import node_state
from tests.support.worlds import request

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Parse = Callable[[str], Iterable[Metric]]
parse_text: Parse = parser.text_string_to_metric_families
parse_openmetrics: Parse = openmetrics_parser.text_string_to_metric_families


@pytest.fixture
def registry() -> CollectorRegistry:
    return new_registry()


@pytest.fixture
async def address(registry: CollectorRegistry) -> AsyncIterator[str]:
    server = StatusServer("127.0.0.1:0", [metrics_route(registry)])
    yield await server.start()
    await server.stop()


async def read(address: str, accept: str = "") -> tuple[str, str]:
    """The page's content type and text."""
    headers = {"Accept": accept} if accept else {}
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics", headers=headers) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.text()


def samples(text: str, parse: Parse) -> dict[tuple[str, tuple[tuple[str, str], ...]], Any]:
    """Every sample by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample
        for family in parse(text)
        for sample in family.samples
    }


API = {"verb", "resource", "code"}
PROCESS = ("cpu_seconds", "max_fds", "open_fds", "resident_memory_bytes", "start_time_seconds", "virtual_memory_bytes")
CONTRACT: dict[str, set[str]] = {
    **{f"process_{name}": set() for name in PROCESS},
    "crrd_build_info": {"version", "python_version"},
    "crrd_api_calls": API,
    "crrd_api_call_duration_seconds": {"verb"},
    "crrd_cri_calls": {"method", "code"},
    "crrd_cri_call_duration_seconds": {"method"},
    "crrd_requests": {"outcome"},
    "crrd_container_recreations": {"result", "reason"},
    "crrd_requested_restarts": {"pod_namespace"},
    "crrd_stage_duration_seconds": {"stage"},
    "crrd_active_requests": {"phase", "pod_namespace"},
    "crrd_oldest_request_age_seconds": set(),
    "crrd_pre_stop_hooks": {"kind"},
    "crrd_pre_stop_hook_failures": {"kind"},
    "crrd_reloads": {"kind"},
    "crrd_reload_failures": {"kind"},
    "crrd_watch_restarts": {"resource", "reason"},
    "crrd_withheld_decisions": {"rule"},
    "crrd_queue_depth": {"controller"},
    "crrd_queue_oldest_age_seconds": {"controller"},
    "crrd_last_list_timestamp_seconds": {"resource"},
    "crrd_last_activity_timestamp_seconds": {"resource"},
    "crrd_runtime_info": {"name", "version"},
    "crrd_kubelet_hash_mismatch_containers": set(),
    "crrd_events_dropped": set(),
    "crrd_log_lines_dropped": set(),
}
"""The families (counters without `_total`) and labels that dashboards and alerts of users are written for."""
STAGES = {"queued", "unready_grace", "pre_stop", "stop", "new_container_seen", "ready", "total"}
REASONS = {
    *(("succeeded", reason) for reason in ("stopped", "already_recreated", "reloaded")),
    *(("failed", reason.value) for reason in Reason if reason.final),
    ("failed", "CompletedElsewhere"),
}
"""tests/core/api/test_reasons.py writes out the names of those with which a container fails."""


async def test_names_and_labels_are_as_promised(registry: CollectorRegistry, address: str) -> None:
    metrics = NodeMetrics(registry)
    metrics.show(node_state())
    metrics.show_differing(lambda: 3)
    metrics.api_call("patch", "pods", 200, 0.02)
    metrics.cri_call("StopContainer", "OK", 3.0)
    metrics.runtime_found("containerd", "1.7.24")
    metrics.begin(request()).stop_ended(0.1)
    families = list(parse_openmetrics((await read(address, OPENMETRICS))[1]))
    labels: dict[str, set[str]] = {}
    for family in families:
        name = family.name.removesuffix("_info") + "_info" if family.type == "info" else family.name
        for sample in family.samples:
            labels.setdefault(name, set()).update(sample.labels.keys() - {"le"})
    assert labels == CONTRACT
    assert {family.name for family in families if not family.documentation} == set()

    def values(family: str, *names: str) -> set[tuple[str, ...]]:
        found = next(one for one in families if one.name == family)
        return {tuple(sample.labels[name] for name in names) for sample in found.samples}

    assert values("crrd_stage_duration_seconds", "stage") == {(stage,) for stage in STAGES}
    assert values("crrd_container_recreations", "result", "reason") == REASONS
    assert values("crrd_watch_restarts", "resource") == {("pods",), ("containerrecreaterequests",)}


async def test_text_for_who_does_not_ask(registry: CollectorRegistry, address: str) -> None:
    NodeMetrics(registry).begin(request(uid="5f2c")).stop_ended(0.3)
    content_type, text = await read(address)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert "5f2c" not in text
    found = samples(text, parse_text)
    assert found["crrd_stage_duration_seconds_bucket", (("le", "0.5"), ("stage", "stop"))].value == 1
    assert found["crrd_stage_duration_seconds_bucket", (("le", "0.25"), ("stage", "stop"))].value == 0


async def test_openmetrics_has_exemplars_that_lead_to_the_request(registry: CollectorRegistry, address: str) -> None:
    NodeMetrics(registry).begin(request(uid="5f2c")).stop_ended(0.3)
    content_type, text = await read(address, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    exemplars = {key: sample.exemplar for key, sample in samples(text, parse_openmetrics).items() if sample.exemplar}
    [((_, labels), exemplar)] = exemplars.items()
    assert dict(labels) == {"le": "0.5", "stage": "stop"}
    assert exemplar.labels == {"request_uid": "5f2c"}


async def test_what_every_daemon_tells_of_itself(address: str) -> None:
    found = samples((await read(address))[1], parse_text)
    build = (("python_version", platform.python_version()), ("version", __version__))
    assert found["crrd_build_info", build].value == 1
    assert found["process_resident_memory_bytes", ()].value > 1e6


async def test_calls_are_counted_by_code_and_timed_by_verb(registry: CollectorRegistry, address: str) -> None:
    metrics = NodeMetrics(registry)
    metrics.api_call("patch", "pods", 200, 0.02)
    metrics.api_call("patch", "pods", 200, 0.03)
    metrics.api_call("patch", "pods", 0, 10.0)
    metrics.cri_call("StopContainer", "DEADLINE_EXCEEDED", 3.0)
    metrics.watch_restarted("pods", "expired")
    metrics.runtime_found("containerd", "1.7.24")
    found = samples((await read(address))[1], parse_text)

    def value(metric: str, **labels: str) -> float:
        return float(found[metric, tuple(sorted(labels.items()))].value)

    assert value("crrd_api_calls_total", verb="patch", resource="pods", code="200") == 2
    assert value("crrd_api_calls_total", verb="patch", resource="pods", code="none") == 1
    assert value("crrd_api_call_duration_seconds_count", verb="patch") == 3
    assert value("crrd_cri_calls_total", method="StopContainer", code="DEADLINE_EXCEEDED") == 1
    assert value("crrd_cri_call_duration_seconds_sum", method="StopContainer") == 3
    assert value("crrd_watch_restarts_total", resource="pods", reason="expired") == 1
    assert value("crrd_runtime_info", name="containerd", version="1.7.24") == 1


async def test_counters_begin_at_zero(registry: CollectorRegistry, address: str) -> None:
    NodeMetrics(registry)
    found = samples((await read(address))[1], parse_text)
    for outcome in ("succeeded", "partial", "failed", "gone"):
        assert found["crrd_requests_total", (("outcome", outcome),)].value == 0
    for kind in ("exec", "httpGet", "sleep", "tcpSocket", "invalid"):
        assert found["crrd_pre_stop_hooks_total", (("kind", kind),)].value == 0
        assert found["crrd_pre_stop_hook_failures_total", (("kind", kind),)].value == 0
    assert not [name for name, _ in found if name.endswith("_created")]


def test_values_beyond_the_cap_are_other() -> None:
    cap = Capped(2)
    assert [cap(value) for value in ("a", "b", "c", "a", "d", "b")] == ["a", "b", "other", "a", "other", "b"]


def test_values_that_are_too_long_or_cannot_be_written_are_other() -> None:
    cap, longest = Capped(2), "a" * 128
    assert [cap(value) for value in (longest, "a" * 129, "\ud800", "a\n", "b")] == [longest, *["other"] * 3, "b"]
