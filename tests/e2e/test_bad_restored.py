"""Bad data on a real cluster where policies restore the last good data, or share an object.

`pytest tests/e2e/test_bad_restored.py -rP` prints the figures in docs/policy.md.
"""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from crrd.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS, POLICIES
from tests.e2e.test_bad_changes import (
    REPLICAS,
    conditions,
    configured,
    disturbed,
    edit,
    first_request,
    give_policy,
    is_done,
    is_halted,
    run_pods,
    until_policy,
)
from tests.support.cluster import Cluster, Json
from tests.support.real_nodes import kill_managers, machines, wait_for_manager
from tests.support.recreates import grant, pods_of, recorded, wait_ready
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(machines() is None, reason="needs a cluster of python -m tests.tools.cluster"),
]


async def give_restoring_policy(cluster: Cluster) -> None:
    """Create the policy of "web", and wait until it has kept the good data."""
    await grant(cluster, "crrd-restore-config")
    await give_policy(cluster, onFailure="Restore")
    await until_policy(cluster, lambda found: conditions(found)["Restorable"]["status"] == "True", "restorable")


def is_bad(policy: Json) -> bool:
    return bool(policy["status"].get("bad"))


def is_restored(policy: Json) -> bool:
    return is_bad(policy) and bool(policy["status"]["bad"][0].get("restored"))


def is_over(policy: Json) -> bool:
    return is_restored(policy) and conditions(policy)["Ready"]["reason"] == "Idle"


MOMENTS = ("run", "request", "bad", "written")
CASES = [("variable", ""), ("file", ""), ("subPath", ""), *(("file", each) for each in MOMENTS)]


@pytest.mark.parametrize(("use", "killed"), CASES)
async def test_the_last_good_data_comes_back(cluster: Cluster, nodes: Machines, use: str, killed: str) -> None:
    """Managers are killed at one moment, if it has a name. Then a GitOps controller writes the bad data again."""
    before = await configured(cluster, use)
    await give_restoring_policy(cluster)
    began = time.monotonic()
    async with recorded(cluster, "web") as record:
        await edit(cluster, "crashes")
        match killed:
            case "run":
                await until_policy(cluster, lambda found: bool(found["status"].get("run")), "a run")
            case "request":
                await first_request(cluster, lambda _: True)
            case "bad":
                await until_policy(cluster, is_bad, "bad data")
            case "written":
                await cluster.wait(CONFIG_MAPS, "cfg", lambda found: found["data"]["value"] == "good", "restored")
        if killed:
            await asyncio.to_thread(kill_managers, nodes)
        await cluster.wait(CONFIG_MAPS, "cfg", lambda found: found["data"]["value"] == "good", "restored", seconds=300)
        print(f"{use}, managers killed: {killed or 'never'}: restored after {time.monotonic() - began:.0f} s")
        await until_policy(cluster, is_over, "over")
        await wait_ready(cluster, "web", REPLICAS)
        print(f"{use}, managers killed: {killed or 'never'}: all ready after {time.monotonic() - began:.0f} s")
        assert len(disturbed(record)) == 1
        restarts = len(record.restarts)
        await edit(cluster, "crashes")
        reason = "BadRevision"
        await until_policy(cluster, lambda found: conditions(found)["Ready"]["reason"] == reason, reason)
        await asyncio.sleep(20)  # nothing more happens
        assert len(record.restarts) == restarts
    after = await pods_of(cluster, "web")
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    kept = await cluster.client.list_all(CONTROLLER_REVISIONS, dict, namespace=cluster.namespace)
    owned = [each for each in kept.items if each["metadata"]["ownerReferences"][0]["kind"] != "Deployment"]
    assert [each["data"] for each in owned] == [{"data": {"value": "good"}}]
    await asyncio.to_thread(wait_for_manager, nodes)


@pytest.mark.parametrize("after", [[], ["web"]])
async def test_bad_data_of_two_policies_costs_one_pod(cluster: Cluster, nodes: Machines, after: list[str]) -> None:
    await configured(cluster, "variable")
    await run_pods(cluster, "api", "variable", 5)
    await give_policy(cluster)
    await give_policy(cluster, "api", after=after)
    async with AsyncExitStack() as stack:
        records = [await stack.enter_async_context(recorded(cluster, name)) for name in ("web", "api")]
        await edit(cluster, "crashes")
        (first,) = await _first_halted(cluster)
        second = {"web": "api", "api": "web"}[first]
        assert first == "web" or not after
        await until_policy(
            cluster, lambda found: conditions(found)["Ready"]["reason"] == "WaitingForPolicy", "waits", second
        )
        await asyncio.sleep(30)  # nothing more happens
        assert sum(len(disturbed(record)) for record in records) == 1
        await edit(cluster, "good")
        await until_policy(cluster, is_done, "done", first)
        await until_policy(cluster, lambda found: conditions(found)["Ready"]["reason"] == "Idle", "idle", second)
        await wait_ready(cluster, "web", REPLICAS)
        await wait_ready(cluster, "api", 5)
        assert sum(len(disturbed(record)) for record in records) == 1, "the others never had the bad data"


async def _first_halted(cluster: Cluster) -> list[str]:
    async with asyncio.timeout(200):
        while True:
            found = (await cluster.client.list_all(POLICIES, dict, namespace=cluster.namespace)).items
            if halted := [each["metadata"]["name"] for each in found if is_halted(dict(each))]:
                return halted
            await asyncio.sleep(0.3)
