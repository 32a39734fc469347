"""Containers reload, on a real runtime and kubelet: the files are new, and no container is restarted."""

import asyncio
import json
import time

import pytest

from crrd.core.api.types import ANNOTATION_REFRESH, ANNOTATION_RELOAD
from crrd.kube.resources import CONFIG_MAPS, PODS, REQUESTS
from crrd.lib.errors import GoneError
from tests.support.cluster import Cluster, Json, container, container_id, reload_request, restart_count, states
from tests.support.command import explained
from tests.support.daemons import NodeDaemon

pytestmark = [pytest.mark.containerd, pytest.mark.cluster, pytest.mark.timeout(300)]

HUP = {"signal": "HUP"}
READS = (
    "read_again() { cat /config/level >> /shared/read; echo >> /shared/read; }; "
    "trap read_again HUP; trap 'exit 0' TERM; read_again; while :; do sleep 0.1; done"
)
PATIENCE = 150.0


async def configure(cluster: Cluster, level: str, name: str = "web") -> None:
    """Create or change the ConfigMap."""
    body = {"metadata": {"name": name}, "data": {"level": level}}
    try:
        await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, name, body)
    except GoneError:
        await cluster.client.create(CONFIG_MAPS, cluster.namespace, body)


async def started(cluster: Cluster, declaration: Json | None = None, **app: Json) -> Json:
    """Run a pod whose container reads a file of a ConfigMap, and reads it again when it reloads."""
    await configure(cluster, "info")
    annotations = {f"{ANNOTATION_RELOAD}app": json.dumps(HUP if declaration is None else declaration)}
    spec = container("app", READS, volumeMounts=[{"name": "config", "mountPath": "/config"}], **app)
    pod = await cluster.run_pod(
        "web",
        [spec],
        metadata={"annotations": annotations},
        volumes=[{"name": "config", "configMap": {"name": "web"}}],
    )
    await cluster.wait_words("web", "read", "info")
    return pod


async def reload(cluster: Cluster, pod: Json, name: str = "reload", token: str = "1", **strategy: Json) -> Json:
    """Have the container reload, once kubelet has refreshed its files. Return the completed request."""
    await cluster.client.merge_patch(
        PODS, cluster.namespace, pod["metadata"]["name"], {"metadata": {"annotations": {ANNOTATION_REFRESH: token}}}
    )
    body = reload_request(pod, name, "app", refresh=token, **strategy)
    await cluster.client.create(REQUESTS, cluster.namespace, body)
    return await cluster.wait_completed(name, PATIENCE)


def assert_same(before: Json, after: Json) -> None:
    """The container is the one from before."""
    assert container_id(after, "app") == container_id(before, "app")
    assert restart_count(after, "app") == restart_count(before, "app") == 0


async def test_a_container_reads_its_new_files_and_is_not_restarted(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster)
    levels = ["info"]
    for number, level in enumerate(("debug", "warning", "error")):
        await configure(cluster, level)
        edited = time.monotonic()
        done = await reload(cluster, before, f"reload-{number}", str(number))
        print(f"from the edit of the ConfigMap to the completed request: {time.monotonic() - edited:.1f} s")
        assert states(done) == {"app": "Succeeded"}, done["status"]
        levels.append(level)
        await cluster.wait_words("web", "read", *levels)
    assert_same(before, await cluster.pod("web"))
    assert done["status"]["message"] == "1 of 1 containers reloaded"
    assert "reloaded in" in await explained(cluster, "reload-2")
    assert node_daemon.pid


async def test_a_command_that_fails_is_reported(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster, {"exec": ["/bin/sh", "-c", "echo unknown directive >&2; exit 3"]})
    done = await reload(cluster, before)
    (state,) = done["status"]["containerRecreateStates"]
    assert (state["phase"], state["reason"]) == ("Failed", "ReloadFailed")
    assert "exec ended with exit code 3: unknown directive" in state["message"]
    assert_same(before, await cluster.pod("web"))
    assert node_daemon.pid


async def test_a_command_that_was_set_later_does_not_run(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    """Kubelet has recorded on the sandbox what the pod's author declared."""
    before = await started(cluster)
    later = {f"{ANNOTATION_RELOAD}app": json.dumps({"exec": ["/bin/sh", "-c", "echo stolen >> /shared/read"]})}
    await cluster.client.merge_patch(PODS, cluster.namespace, "web", {"metadata": {"annotations": later}})
    done = await reload(cluster, before)
    (state,) = done["status"]["containerRecreateStates"]
    assert (state["phase"], state["reason"]) == ("Failed", "ReloadChanged")
    assert cluster.read("web", "read").split() == ["info"]
    assert_same(before, await cluster.pod("web"))
    assert node_daemon.pid


async def test_kill_9_while_it_reloads(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await started(cluster, {"exec": ["/bin/sh", "-c", "echo begins >> /shared/read; sleep 3"]})
    await cluster.client.create(REQUESTS, cluster.namespace, reload_request(before, "reload", "app", refresh="1"))
    annotations = {"metadata": {"annotations": {ANNOTATION_REFRESH: "1"}}}
    await cluster.client.merge_patch(PODS, cluster.namespace, "web", annotations)
    async with asyncio.timeout(60):
        while "begins" not in cluster.read("web", "read"):
            await asyncio.sleep(0.05)
    await node_daemon.restart()
    done = await cluster.wait_completed("reload", PATIENCE)
    assert states(done) == {"app": "Succeeded"}, done["status"]
    assert cluster.read("web", "read").split().count("begins") == 2, "again, because the daemon died in it"
    assert_same(before, await cluster.pod("web"))
