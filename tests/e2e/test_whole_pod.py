"""A whole pod is restarted in place: hooks, grace, order, init containers, on a real runtime and kubelet."""

import asyncio

import pytest

from crrd.kube.resources import REQUESTS
from tests.support.cluster import (
    Cluster,
    Json,
    container,
    container_id,
    foreign,
    pod_ready,
    restart_count,
    states,
    whole_pod_request,
)
from tests.support.command import explained
from tests.support.daemons import NodeDaemon

pytestmark = [pytest.mark.containerd, pytest.mark.cluster, pytest.mark.timeout(300)]

HOOK = {
    "preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log; sleep 1; echo hooked >> /shared/log"]}}
}
PATIENCE = 90.0


def running(name: str) -> str:
    """A script that notes its start and its SIGTERM."""
    trap = f"trap 'echo {name}-term >> /shared/log; exit 0' TERM"
    return f"{trap}; echo {name}-start >> /shared/log; while :; do sleep 0.1; done"


async def started(cluster: Cluster, name: str = "web") -> Json:
    """Run a pod with an init container, a native sidecar and a container with a hook."""
    init = [container("init", "echo init >> /shared/log"), container("side", running("side"), restartPolicy="Always")]
    pod = await cluster.run_pod(
        name, [container("app", running("app"), lifecycle=HOOK)], init_containers=init, grace=10, hostNetwork=False
    )
    await cluster.wait_words(name, "log", "init", "side-start", "app-start")
    return pod


async def restart(cluster: Cluster, pod: Json, name: str = "whole", **strategy: Json) -> Json:
    await cluster.client.create(REQUESTS, cluster.namespace, whole_pod_request(pod, name, **strategy))
    return await cluster.wait_completed(name, PATIENCE)


def once(words: list[str]) -> bool:
    """Whether a log has one start, one orderly stop, and one more start."""
    ups = ["init", "side-start", "app-start"]
    return words == [*ups, "hook", "hooked", "app-term", "side-term", *ups]


async def test_a_pod_is_restarted_in_place(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster)
    done = await restart(cluster, before)
    assert states(done) == {"app": "Succeeded", "side": "Succeeded"}, done["status"]
    after = await cluster.wait_pod("web", pod_ready, "ready")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restart_count(after, "app") == 1
    for name in ("app", "side", "init"):
        assert container_id(after, name) != container_id(before, name)
    assert once(cluster.read("web", "log").split()), cluster.read("web", "log")
    assert done["status"]["message"].startswith("2 of 2 containers recreated; init containers ran again: init")
    ready = [each for each in await cluster.sandboxes(after) if each.state == 0]
    assert len(ready) == 1
    assert not [each for each in ready if each.labels.get("crrd.dev/made-by")]
    assert "whole pod" in await explained(cluster, "whole")
    assert node_daemon.pid


MOMENTS = ("before it looks", "hook", "app-term", "side-term", "at the end")


@pytest.mark.parametrize("moment", ("hook", "at the end") if foreign() is None else MOMENTS)
async def test_kill_9_at_every_step(cluster: Cluster, node_daemon: NodeDaemon, moment: str) -> None:
    before = await started(cluster)
    if moment == "before it looks":
        await node_daemon.kill()
    await cluster.client.create(REQUESTS, cluster.namespace, whole_pod_request(before, "whole"))
    if moment == "at the end":
        await cluster.wait_pod("web", lambda pod: restart_count(pod, "app") == 1, "app is back")
    elif moment != "before it looks":
        async with asyncio.timeout(60):
            while moment not in cluster.read("web", "log").split():
                await asyncio.sleep(0.02)
    await node_daemon.restart()
    done = await cluster.wait_completed("whole", PATIENCE)
    assert states(done) == {"app": "Succeeded", "side": "Succeeded"}, done["status"]
    assert once(cluster.read("web", "log").split()), cluster.read("web", "log")


async def test_a_request_that_is_deleted_leaves_nothing(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    """Its second sandbox is made while kubelet is away, and must be gone before kubelet comes back."""
    before = await started(cluster)
    node = cluster.local
    await node.stop_kubelet()
    await cluster.client.create(REQUESTS, cluster.namespace, whole_pod_request(before, "whole"))
    async with asyncio.timeout(60):
        while len(await cluster.sandboxes(before)) < 2:
            await asyncio.sleep(0.05)
    await node_daemon.kill()
    await cluster.delete_request("whole")
    await node_daemon.start()
    async with asyncio.timeout(60):
        while len(await cluster.sandboxes(before)) > 1:
            await asyncio.sleep(0.05)
    await node.start_kubelet()
    second = await restart(cluster, before, "again")
    assert states(second) == {"app": "Succeeded", "side": "Succeeded"}
    assert once(cluster.read("web", "log").split()), cluster.read("web", "log")


@pytest.mark.skipif(foreign() is None, reason="takes long, because of the back-off: only on a real kubelet")
async def test_two_requests_restart_it_twice(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster)
    for name in ("one", "two"):
        body = whole_pod_request(before, name, forceRecreate=True)
        await cluster.client.create(REQUESTS, cluster.namespace, body)
    for name in ("one", "two"):
        assert states(await cluster.wait_completed(name, PATIENCE)) == {"app": "Succeeded", "side": "Succeeded"}
    after = await cluster.pod("web")
    assert restart_count(after, "app") == 2  # kubelet may count init containers and sidecars from 0 again
    assert cluster.read("web", "log").split().count("hooked") == 2
    assert node_daemon.pid


async def test_a_request_for_instances_that_were_restarted_is_done(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster)
    await restart(cluster, before, "one")
    done = await restart(cluster, before, "two")
    assert states(done) == {"app": "Succeeded", "side": "Succeeded"}
    assert once(cluster.read("web", "log").split()), cluster.read("web", "log")
    assert node_daemon.pid
