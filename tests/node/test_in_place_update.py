"""An in-place image update and a request for the same container cost one restart in all, whichever comes first.

The real daemon and the local kubelet stop the container both; each runs its preStop hook, and so says that it is there.
The container does not end before the test lets it.
"""

from collections.abc import Callable

import pytest

from tests.support.cluster import (
    Cluster,
    Json,
    container,
    container_id,
    container_status,
    image_request,
    pod_ready,
    restart_count,
    restarted,
    states,
)
from tests.support.daemons import NodeDaemon

SCRIPT = (
    "trap 'echo term >> /shared/log; while ! test -e /shared/go; do sleep 0.05; done; exit 0' TERM; "
    "echo start >> /shared/log; while :; do sleep 0.05; done"
)
HOOK = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log"]}}}


@pytest.fixture
async def pod(cluster: Cluster, node_daemon: NodeDaemon) -> Json:
    """Runs, and has said so."""
    assert node_daemon.pid
    found = await cluster.run_pod("web", [container("app", SCRIPT, lifecycle=HOOK), container("side")], grace=60)
    await cluster.wait_words("web", "log", "start")
    return found


def let_it_end(cluster: Cluster) -> None:
    (cluster.shared("web") / "go").touch()


async def check_one_restart(cluster: Cluster, before: Json, request: Json) -> None:
    """Both have what they asked for, and nothing more is to come: the container that runs is the updated one."""
    assert states(request) == {"app": "Succeeded"}
    after = await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "restarted")
    assert restart_count(after, "app") == 1
    assert container_status(after, "app")["image"] == cluster.second_image
    assert container_status(after, "side") == container_status(before, "side")
    assert cluster.read("web", "log").split().count("start") == 2
    hashes = {
        (await cluster.status(container_id(each, "app"))).annotations["io.kubernetes.container.hash"]
        for each in (before, after)
    }
    assert len(hashes) == 2, "the hash of the one that runs is the updated one's: kubelet has nothing to replace"


async def test_the_update_first(cluster: Cluster, pod: Json) -> None:
    await cluster.set_image("web", "app", cluster.second_image)
    await cluster.wait_words("web", "log", "start", "hook", "term")  # kubelet's
    created = await cluster.recreate(pod, ["app"])
    await cluster.wait_words("web", "log", "start", "hook", "term", "hook")  # the daemon's
    let_it_end(cluster)
    await check_one_restart(cluster, pod, await cluster.wait_completed(created["metadata"]["name"]))


async def test_the_request_first(cluster: Cluster, pod: Json) -> None:
    created = await cluster.recreate(pod, ["app"])
    await cluster.wait_words("web", "log", "start", "hook", "term")  # the daemon's
    await cluster.set_image("web", "app", cluster.second_image)
    await cluster.wait_words("web", "log", "start", "hook", "term", "hook")  # kubelet's
    let_it_end(cluster)
    await check_one_restart(cluster, pod, await cluster.wait_completed(created["metadata"]["name"]))


async def test_the_update_over_before_the_request(cluster: Cluster, pod: Json, node_daemon: NodeDaemon) -> None:
    let_it_end(cluster)
    await cluster.set_image("web", "app", cluster.second_image)
    await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "updated")
    created = await cluster.recreate(pod, ["app"])  # for the container as it was before the update
    await check_one_restart(cluster, pod, await cluster.wait_completed(created["metadata"]["name"]))
    assert "stopping container" not in [line["event"] for line in node_daemon.log]


async def test_the_request_over_before_the_update(cluster: Cluster, pod: Json) -> None:
    """Then there are two restarts: what the request asked for had happened already."""
    let_it_end(cluster)
    created = await cluster.recreate(pod, ["app"])
    request = await cluster.wait_completed(created["metadata"]["name"])
    assert states(request) == {"app": "Succeeded"}
    await cluster.set_image("web", "app", cluster.second_image)
    after = await cluster.wait_pod("web", lambda pod: restart_count(pod, "app") == 2 and pod_ready(pod), "updated")
    assert container_status(after, "app")["image"] == cluster.second_image


def has_reason(reason: str) -> Callable[[Json], bool]:
    return lambda found: (
        [each.get("reason") for each in found.get("status", {}).get("containerRecreateStates", ())] == [reason]
    )


async def test_a_request_with_an_image_watches_the_update_and_stops_nothing(cluster: Cluster, pod: Json) -> None:
    let_it_end(cluster)
    await cluster.create_request(image_request(pod, "app", "i/does-not-exist:1", "missing"))
    assert states(await cluster.wait_completed("missing")) == {"app": "Failed"}
    await cluster.run_pod("puller", [container("app", image=cluster.second_image)], grace=1)
    await cluster.create_request(image_request(pod, "app", cluster.second_image, "present"))
    await cluster.wait_request("present", has_reason("ImagePresent"), "the node has the image")
    assert container_id(await cluster.pod("web"), "app") == container_id(pod, "app")
    await cluster.set_image("web", "app", cluster.second_image)
    await check_one_restart(cluster, pod, await cluster.wait_completed("present"))
    assert cluster.read("web", "log").split().count("hook") == 1, "kubelet's, and no other"
