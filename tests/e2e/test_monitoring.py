"""A real Prometheus scrapes a node daemon and a manager while they work; every panel of the dashboard has data."""

import subprocess
from pathlib import Path

import aiohttp
import pytest

from crrd_localnode.daemons import running_manager
from tests.support import traffic
from tests.support.cluster import Cluster
from tests.support.daemons import NodeDaemon
from tests.support.prometheus import Prometheus, missing, panels

pytestmark = [
    pytest.mark.containerd,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


async def page_of(address: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        return await answer.text()


def checked(page: str) -> tuple[int, str]:
    """What promtool says of a page."""
    command = ["promtool", "check", "metrics"]
    result = subprocess.run(command, input=page, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode, result.stdout + result.stderr


async def test_every_panel_has_data(cluster: Cluster, node_daemon: NodeDaemon, tmp_path: Path) -> None:
    node = cluster.local
    async with running_manager(node) as manager:
        addresses = {"crrd-node": node_daemon.address, "crrd-manager": manager.address}
        jobs = {
            "crrd-node": {cluster.node_name: addresses["crrd-node"]},
            "crrd-manager": {"manager-0": addresses["crrd-manager"]},
        }
        async with Prometheus(tmp_path / "prometheus", jobs) as prometheus:
            await traffic.start_pods(cluster)
            await prometheus.until("sum(up)", lambda value: value == 2)
            sent = await traffic.send_requests(cluster)
            await traffic.send_stuck_request(cluster)
            await prometheus.until("sum(crrd_requests_total)", lambda value: value == 5)
            await prometheus.until("sum(crrd_ttl_deletions_total)", lambda value: value == 1)
            await prometheus.until("max(crrd_oldest_request_age_seconds)", lambda value: value > 2)

            outcomes = {
                sample["metric"]["outcome"]: float(sample["value"][1])
                for sample in await prometheus.query("sum by (outcome) (crrd_requests_total)")
            }
            assert outcomes == {"succeeded": 4, "failed": 1, "partial": 0, "gone": 0}
            assert await prometheus.value('crrd_container_recreations_total{reason="LeftDown"}') == 1
            assert await prometheus.value("crrd_pre_stop_hook_failures_total") == 1
            assert await prometheus.value('crrd_active_requests{phase="recreating"}') == 1
            assert await prometheus.value("crrd_requested_restarts_total") == 7
            assert await prometheus.value('crrd_admission_reviews_total{decision="denied"}') == 1

            for panel in panels():
                for query, _ in panel.queries:
                    assert await prometheus.query(query), f"{panel.title}: no data for {query}"

            groups = (await prometheus.api("rules"))["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) >= 19
            assert {(rule["name"], rule["health"]) for rule in rules if rule["health"] != "ok"} == set()
            for address in addresses.values():
                assert checked(await page_of(address)) == (0, "")

            exemplars = await prometheus.api(
                "query_exemplars",
                query='crrd_stage_duration_seconds_bucket{stage="total"}',
                start="2020-01-01T00:00:00Z",
                end="2100-01-01T00:00:00Z",
            )
            uids = {one["labels"]["request_uid"] for series in exemplars for one in series["exemplars"]}
            assert uids
            assert uids <= sent
