"""The manager's `/metrics` as a cluster scrapes it: who leads, what was admitted, what the lifecycle did."""

import asyncio
from collections.abc import Callable

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from crrd.core.api import types as model
from crrd.kube.resources import REQUESTS
from crrd_localnode.daemons import Daemon, running_manager
from tests.support.cluster import PATIENCE, Cluster, container
from tests.support.daemons import NodeDaemon, second_manager

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(manager: Daemon) -> Samples:
    """The samples of the page as it is now."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{manager.address}/metrics") as answer:
        text = await answer.text()
    families = text_string_to_metric_families(text)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for one in families for sample in one.samples}


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


async def once(manager: Daemon, condition: Callable[[Samples], bool]) -> Samples:
    """The page once it shows what is waited for."""
    async with asyncio.timeout(PATIENCE):
        while not condition(samples := await scrape(manager)):
            await asyncio.sleep(0.05)
    return samples


async def test_the_manager_tells_what_it_does(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    assert node_daemon.pid
    node = cluster.local
    async with running_manager(node) as leader:
        await once(leader, lambda samples: sample(samples, "crrd_leader") == 1)
        async with second_manager(node) as second:
            assert sample(await scrape(second), "crrd_leader") == 0

        await cluster.run_pod("web", [container("app")])
        await cluster.create_request(
            {
                "apiVersion": model.API_VERSION,
                "kind": model.KIND,
                "metadata": {"name": "one", "namespace": cluster.namespace},
                "spec": {"podName": "web", "containers": [{"name": "app"}], "ttlSecondsAfterFinished": 0},
            }
        )
        await cluster.wait_gone(REQUESTS, "one")
        samples = await once(leader, lambda samples: sample(samples, "crrd_ttl_deletions_total") == 1)
        assert sample(samples, "crrd_lifecycle_actions_total", action="deleted", reason="none") == 1
        assert sample(samples, "crrd_lifecycle_actions_total", action="deactivated", reason="none") == 1
        labels = {"webhook": "mutate", "decision": "allowed", "reason": "none"}
        assert sample(samples, "crrd_admission_reviews_total", **labels) >= 1
        users = [value for (name, _), value in samples.items() if name == "crrd_admitted_requests_total"]
        assert users == [1]
        assert sample(samples, "crrd_certificate_expiry_timestamp_seconds") > 1.7e9
        labels = {"verb": "delete", "resource": model.PLURAL, "code": "200"}
        assert sample(samples, "crrd_api_calls_total", **labels) == 1
        assert sample(samples, "process_resident_memory_bytes") > 1e6
