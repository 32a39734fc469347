"""The manager carries out requests by patches on the local node, where no node daemon runs."""

from pathlib import Path

import pytest

from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError
from crrd_localnode.daemons import running_manager
from tests.support.cluster import container, container_id, local_cluster, request_for, restart_count, states
from tests.support.patching import HOOK, SCRIPT, patching_manager, restart_twice


async def test_two_requests_for_a_container(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, relist=0.1, backoff=300) as cluster, patching_manager(cluster):
        await restart_twice(cluster)


async def test_from_admission_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole manager, in a process of its own."""
    monkeypatch.setenv("CRRD_VIA", "patch")
    async with local_cluster(tmp_path, relist=0.1) as cluster, running_manager(cluster.local):
        before = await cluster.run_pod("web", [container("app", SCRIPT, lifecycle=HOOK), container("side")])
        forced = request_for(before, "app")
        forced["spec"]["strategy"] = {"forceRecreate": True}
        with pytest.raises(
            ApiRefusedError, match=r"spec\.strategy\.forceRecreate must be left out: without a node daemon"
        ):
            await cluster.create_request(forced)
        created = await cluster.create_request(request_for(before, "app"))
        assert created["spec"]["containers"][0]["statusContext"]["containerID"] == container_id(before, "app")
        assert states(await cluster.wait_completed("web-app")) == {"app": "Succeeded"}
        await cluster.wait_words("web", "log", "started", "hook", "term", "started")
        after = await cluster.client.get(PODS, cluster.namespace, "web")
        assert [restart_count(dict(after), name) for name in ("app", "side")] == [1, 0]
