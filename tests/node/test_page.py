"""The node daemon's `/metrics` as a cluster scrapes it: what is told of a success, a failure, and of being at rest."""

import asyncio
from collections.abc import Callable

import aiohttp
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from crrd.core.api import types as model
from tests.support.cluster import PATIENCE, Cluster, Json, container, crr_for, states
from tests.support.daemons import NodeDaemon

HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "exit 7"]}}}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def page_of(daemon: NodeDaemon, accept: str = "") -> str:
    """The page as it is now."""
    headers = {"Accept": accept} if accept else {}
    url = f"http://{daemon.address}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert answer.status == 200
        return await answer.text()


class Samples:
    """The samples of one page."""

    def __init__(self, text: str) -> None:
        self.values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parse_text(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.values.get((name, frozenset(labels.items())), 0.0)

    def nonzero(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """The series of one name that are not 0."""
        return {labels: value for (found, labels), value in self.values.items() if found == name and value}


async def once(daemon: NodeDaemon, condition: Callable[[Samples], bool]) -> Samples:
    """The page once it shows what is waited for."""
    async with asyncio.timeout(PATIENCE):
        while not condition(samples := Samples(await page_of(daemon))):
            await asyncio.sleep(0.05)
    return samples


async def succeed_and_fail(cluster: Cluster) -> Json:
    """A request that succeeds though its hook fails, one for a container that is none; the first."""
    pod = await cluster.run_pod("web", [container("app", lifecycle=HOOK)])
    await cluster.recreate(pod, ["app"], name="good")
    good = await cluster.wait_completed("good")
    assert states(good) == {"app": "Succeeded"}
    body = crr_for(pod, ["app"], name="bad")
    body["spec"]["containers"] = [{"name": "none"}]
    await cluster.create_request(body)
    assert states(await cluster.wait_completed("bad")) == {"none": "Failed"}
    return good


async def test_a_success_and_a_failure_are_told(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    good = await succeed_and_fail(cluster)
    samples = await once(node_daemon, lambda samples: len(samples.nonzero("crrd_requests_total")) == 2)
    assert samples("crrd_requests_total", outcome="succeeded") == 1
    assert samples("crrd_requests_total", outcome="failed") == 1
    assert samples.nonzero("crrd_container_recreations_total") == {
        frozenset({("result", "succeeded"), ("reason", "stopped")}): 1,
        frozenset({("result", "failed"), ("reason", "ContainerNotFound")}): 1,
    }
    assert samples("crrd_requested_restarts_total", pod_namespace=cluster.namespace) == 1
    assert samples("crrd_pre_stop_hooks_total", kind="exec") == 1
    assert samples("crrd_pre_stop_hook_failures_total", kind="exec") == 1
    for stage in ("pre_stop", "stop", "new_container_seen", "ready"):
        assert samples("crrd_stage_duration_seconds_count", stage=stage) == 1
    assert samples("crrd_stage_duration_seconds_count", stage="total") == 2
    assert samples("crrd_cri_calls_total", method="StopContainer", code="OK") == 1
    assert samples("crrd_cri_call_duration_seconds_count", method="StopContainer") == 1
    for resource in (model.PLURAL, "pods"):
        assert samples("crrd_api_calls_total", verb="list", resource=resource, code="200") >= 1
        assert samples("crrd_last_list_timestamp_seconds", resource=resource) > 1.7e9
    assert len(samples.nonzero("crrd_runtime_info")) == 1
    assert samples("process_resident_memory_bytes") > 1e6

    uids = {
        sample.exemplar.labels["request_uid"]
        for family in parse_openmetrics(await page_of(node_daemon, OPENMETRICS))  # type: ignore[no-untyped-call]  # the library's own gap
        for sample in family.samples
        if sample.exemplar and sample.labels.get("stage") == "stop"
    }
    assert uids == {good["metadata"]["uid"]}


async def test_an_active_request_is_told_while_it_is(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    idle = {"phase": "recreating", "pod_namespace": ""}
    busy = {"phase": "recreating", "pod_namespace": cluster.namespace}
    before = Samples(await page_of(node_daemon))
    assert ("crrd_active_requests", frozenset(idle.items())) in before.values
    assert before("crrd_oldest_request_age_seconds") == 0
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "while [ ! -e /shared/go ]; do sleep 0.1; done"]}}}
    pod = await cluster.run_pod("slow", [container("app", lifecycle=hook)])
    await cluster.recreate(pod, ["app"], name="slow")
    samples = await once(node_daemon, lambda samples: samples("crrd_active_requests", **busy) == 1)
    assert samples("crrd_oldest_request_age_seconds") > 0
    (cluster.shared("slow") / "go").touch()
    await cluster.wait_completed("slow")
    samples = await once(node_daemon, lambda samples: samples("crrd_active_requests", **busy) == 0)
    assert samples("crrd_oldest_request_age_seconds") == 0


async def test_what_an_earlier_process_completed_is_not_counted_again(
    cluster: Cluster, node_daemon: NodeDaemon
) -> None:
    await succeed_and_fail(cluster)
    await node_daemon.restart()
    pod = await cluster.run_pod("other", [container("app")])
    await cluster.recreate(pod, ["app"], name="third")
    await cluster.wait_completed("third")
    samples = await once(node_daemon, lambda samples: samples("crrd_requests_total", outcome="succeeded") == 1)
    assert sum(samples.nonzero("crrd_requests_total").values()) == 1
    assert sum(samples.nonzero("crrd_container_recreations_total").values()) == 1
