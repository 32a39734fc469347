"""A whole pod is restarted in place: hooks, grace, order, init containers, on a real runtime and kubelet."""

import asyncio
from pathlib import Path

import pytest

from crrd.kube.resources import REQUESTS, Resource
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
from tests.support.recreates import daemons, lines, pod_spec, pods_of, recorded, recreate, workload

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


async def log_of(cluster: Cluster) -> list[str]:
    """Return the log of a pod that has restarted, once its app has written. It may run a moment before it does."""
    async with asyncio.timeout(60):
        while (words := cluster.read("web", "log").split()).count("app-start") < 2:
            await asyncio.sleep(0.02)
    return words


async def test_a_pod_is_restarted_in_place(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster)
    done = await restart(cluster, before)
    assert states(done) == {"app": "Succeeded", "side": "Succeeded"}, done["status"]
    after = await cluster.wait_pod("web", pod_ready, "ready")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restart_count(after, "app") == 1
    for name in ("app", "side", "init"):
        assert container_id(after, name) != container_id(before, name)
    assert once(await log_of(cluster)), cluster.read("web", "log")
    assert done["status"]["message"].startswith("2 of 2 containers recreated; init containers ran again: init")
    ready = [each for each in await cluster.sandboxes(after) if each.state == 0]
    assert len(ready) == 1
    assert not [each for each in ready if each.labels.get("crrd.dev/made-by")]
    assert "whole pod" in await explained(cluster, "whole")
    assert node_daemon.pid


MOMENTS = ("before it looks", "hook", "app-term", "side-term", "at the end")


@pytest.mark.parametrize("moment", ("hook",) if foreign() is None else MOMENTS)
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
    assert once(await log_of(cluster)), cluster.read("web", "log")


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
    assert once(await log_of(cluster)), cluster.read("web", "log")


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
    assert once(await log_of(cluster)), cluster.read("web", "log")
    assert node_daemon.pid


@pytest.mark.skipif(foreign() is None, reason="needs pods with a network of their own")
async def test_a_deployment_within_its_budget(cluster: Cluster, tmp_path: Path) -> None:
    """30 pods: each hook, stop and init container once, by a log in an emptyDir. The Service has the new IPs."""
    log = {"name": "log", "mountPath": "/shared"}
    plain = pod_spec(cluster, "app", "init", "side")
    app, init, side = ({**each, "volumeMounts": [log]} for each in plain["containers"])
    app |= {"command": ["/bin/sh", "-c", running("app")], "lifecycle": HOOK}
    init |= {"command": ["/bin/sh", "-c", "echo init >> /shared/log"]}
    side |= {"command": ["/bin/sh", "-c", running("side")], "restartPolicy": "Always"}
    own = {"hostNetwork": False, "volumes": [{"name": "log", "emptyDir": {}}]}
    spec = {**plain, **own, "containers": [app], "initContainers": [init, side], "terminationGracePeriodSeconds": 20}
    before = await workload(cluster, "Deployment", "web", 30, spec=spec)
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await cluster.client.create(Resource("services"), cluster.namespace, service)
    async with daemons(cluster, tmp_path), recorded(cluster, "web") as record:
        ended = await recreate(cluster, "deployment/web", "--whole-pod", "--max-unavailable", "20%", "-o", "json")
    assert ended.code == 0, ended
    assert lines(ended)[-1]["pods"]["done"] == 30
    assert record.most_unready <= 6
    after = await pods_of(cluster, "web")
    assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in before]
    assert not {each["status"]["podIP"] for each in after} & {each["status"]["podIP"] for each in before}
    assert [restart_count(each, "app") for each in after] == [1] * 30
    for pod in after:
        said = await cluster.execute(container_id(pod, "app"), "cat", "/shared/log")
        assert once(said.stdout.decode().split()), said.stdout
    assert await addresses(cluster) == {each["status"]["podIP"] for each in after}


async def addresses(cluster: Cluster) -> set[str]:
    """The ready addresses of the Service, once there are as many as pods."""
    slices, wanted = Resource("endpointslices", "discovery.k8s.io"), "kubernetes.io/service-name=web"
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await cluster.client.list_all(slices, dict, namespace=cluster.namespace, label_selector=wanted)
            ends = [each for one in found.items for each in one["endpoints"] if each["conditions"]["ready"]]
            if len(ends) == 30:
                return {address for each in ends for address in each["addresses"]}
            await asyncio.sleep(0.1)
