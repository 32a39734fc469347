"""The local kubelet drives a real containerd: what holds on plain processes holds on real containers."""

import pytest

from cri_stubs import api_pb2 as pb
from tests.support.cluster import (
    Cluster,
    bare,
    container,
    container_id,
    container_status,
    pod_ready,
    restart_count,
    restarted,
)

pytestmark = pytest.mark.containerd


async def test_an_image_update_recreates_one_container_and_leaves_the_rest(cluster: Cluster) -> None:
    image = cluster.need_second_image()
    script = "trap 'echo term >> /shared/log; exit 0' TERM; echo started >> /shared/log; while :; do sleep 0.1; done"
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log"]}}}
    before = await cluster.run_pod("web", [container("app", script, lifecycle=hook), container("side")])
    await cluster.wait_words("web", "log", "started")
    sandboxes = await cluster.sandboxes(before)
    assert [restart_count(before, name) for name in ("app", "side")] == [0, 0]

    await cluster.set_image("web", "app", image)
    after = await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "app restarted")

    assert restart_count(after, "app") == 1
    assert container_id(after, "app") != container_id(before, "app")
    assert container_status(after, "app")["image"] == image
    assert container_status(after, "app")["lastState"]["terminated"]["exitCode"] == 0
    assert container_status(after, "side") == container_status(before, "side")
    assert await cluster.sandboxes(after) == sandboxes
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await cluster.wait_words("web", "log", "started", "hook", "term", "started")
    assert [entry.id for entry in await cluster.instances(after, "app")] == [
        bare(container_id(after, "app")),
        bare(container_id(before, "app")),
    ]


async def test_a_crashed_container_is_restarted_and_its_last_words_are_kept(cluster: Cluster) -> None:
    script = "test -e /shared/again && exec sleep 1000; touch /shared/again; echo oh > /dev/termination-log; exit 7"
    await cluster.create_pod("web", [container("app", script)])
    pod = await cluster.wait_pod("web", restarted("app"), "restarted")
    ended = container_status(pod, "app")["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "oh\n")


async def test_a_deleted_pod_leaves_nothing_running_in_the_runtime(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.delete_pod("web")
    sandboxes, instances = await cluster.sandboxes(pod), await cluster.instances(pod, "app")
    assert pb.SANDBOX_READY not in [sandbox.state for sandbox in sandboxes]
    assert pb.CONTAINER_RUNNING not in [instance.state for instance in instances]
    if cluster.node is not None:  # a cluster's kubelet collects the remains once a minute
        assert (sandboxes, instances) == ([], [])


async def test_what_kubelet_writes_on_a_container_arrives_in_the_runtime(cluster: Cluster) -> None:
    hook = {"preStop": {"sleep": {"seconds": 1}}}
    ports = [{"name": "web", "containerPort": 18080, "hostPort": 18080, "protocol": "TCP"}]
    pod = await cluster.run_pod("web", [container("app", lifecycle=hook, ports=ports)], grace=7)
    status = await cluster.status(container_id(pod, "app"))
    assert dict(status.labels) == {
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": cluster.namespace,
        "io.kubernetes.pod.uid": pod["metadata"]["uid"],
        "io.kubernetes.container.name": "app",
    }
    annotations = dict(status.annotations)
    assert int(annotations.pop("io.kubernetes.container.hash"), 16) < 2**32
    assert annotations == {
        "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "7",
        "io.kubernetes.container.preStopHandler": '{"sleep":{"seconds":1}}',
        "io.kubernetes.container.ports": ('[{"name":"web","hostPort":18080,"containerPort":18080,"protocol":"TCP"}]'),
    }
