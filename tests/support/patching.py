"""A leading manager that carries out requests by patches, in this process, and what it does on a kubelet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.lib.health import Health
from crrd.lib.supervise import cancel
from crrd.manager.lifecycle import LifecycleController
from tests.support.cluster import Cluster, Json, container, container_id, container_status, restart_count, states
from tests.support.lifecycle_cluster import Events

HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log"]}}}
SCRIPT = "trap 'echo term >> /shared/log; exit 0' TERM; echo started >> /shared/log; while :; do sleep 0.1; done"


@asynccontextmanager
async def patching_manager(cluster: Cluster) -> AsyncIterator[Events]:
    """Run the manager, and yield its events."""
    clock, events = ServerClock(), Events()
    async with KubeClient(KubeconfigAccess(str(cluster.kubeconfig)), on_date=clock.observe) as client:
        controller = LifecycleController(client, events, clock, account="crrd-system:crrd-manager")
        task = asyncio.create_task(controller.run(Health()))
        try:
            yield events
        finally:
            await cancel([task])


async def restart_twice(cluster: Cluster) -> None:
    """Two requests for a container one after the other: one hook and one start each, and nothing else changes."""
    before = first = await cluster.run_pod("web", [container("app", SCRIPT, lifecycle=HOOK), container("side")])
    await cluster.wait_words("web", "log", "started")
    for number in (1, 2):
        asked = await cluster.recreate(before, ["app"])
        done = await cluster.wait_completed(asked["metadata"]["name"])
        assert states(done) == {"app": "Succeeded"}, done
        after = await cluster.pod("web")
        kept_as_it_was(first, after)
        assert restart_count(after, "app") == number
        assert container_id(after, "app") != container_id(before, "app")
        await cluster.wait_words("web", "log", "started", *("hook", "term", "started") * number)
        before = after


def kept_as_it_was(before: Json, after: Json) -> None:
    """Assert that the pod and all but the container `app` are the same, and that this runs the same image."""
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"].get("podIP") == before["status"].get("podIP")
    assert container_status(after, "side") == container_status(before, "side")
    assert container_status(after, "app")["imageID"] == container_status(before, "app")["imageID"]
