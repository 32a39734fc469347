"""`crrd recreate --whole-pod` on the local node, whose kubelet restarts a pod because of a second sandbox."""

from collections import Counter
from pathlib import Path

from tests.support.cluster import Cluster, Json, container_status, local_cluster, pod_ready, restart_count
from tests.support.recreates import daemons, pod_spec, pods_of, recreate, requests_of, workload


def with_init(cluster: Cluster) -> Json:
    """Return the spec of pods whose init container and preStop hook write to a shared folder."""
    spec = pod_spec(cluster, "app", "side")
    (shared := cluster.shared("web")).mkdir()
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    app, side = spec["containers"]

    def writes(what: str) -> list[str]:
        return ["/bin/sh", "-c", f"echo {what} >> /shared/log"]

    hook = {"preStop": {"exec": {"command": writes("hook")}}}
    init = {**app, "name": "setup", "command": writes("init"), "volumeMounts": mounts}
    volume = {"name": "shared", "hostPath": {"path": str(shared), "type": "Directory"}}
    containers = [{**app, "lifecycle": hook, "volumeMounts": mounts}, side]
    return {**spec, "hostNetwork": False, "initContainers": [init], "containers": containers, "volumes": [volume]}


async def test_whole_pods_restart_one_after_the_other(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, backoff=0.05) as cluster, daemons(cluster, tmp_path):
        before = await workload(cluster, "Deployment", "web", 2, spec=with_init(cluster))
        ended = await recreate(cluster, "deployment/web", "--whole-pod", "--run", "mine")
        assert ended.code == 0, ended.out + ended.err
        after = await pods_of(cluster, "web")
        assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in before]
        assert all(pod_ready(each) for each in after)
        assert {restart_count(each, name) for each in after for name in ("app", "side")} == {1}
        assert Counter(cluster.read("web", "log").split()) == {"init": 4, "hook": 2}
        assert len(await requests_of(cluster, "mine")) == len(after)


async def test_an_init_container_runs_with_another_image_and_with_the_one_from_before(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, backoff=0.05) as cluster, daemons(cluster, tmp_path):
        before = await workload(cluster, "Deployment", "web", 1, spec=with_init(cluster))
        words = ("deployment/web", "--whole-pod", "-c", "setup", "--image", cluster.second_image)
        ended = await recreate(cluster, *words, "--template", "keep", "--run", "mine")
        assert ended.code == 0, ended.out + ended.err
        after = await pods_of(cluster, "web")
        assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in before]
        assert {container_status(each, "setup")["image"] for each in after} == {cluster.second_image}
        assert Counter(cluster.read("web", "log").split()) == {"init": 2, "hook": 1}
        undone = await recreate(cluster, "undo", "mine")
        assert undone.code == 0, undone.out + undone.err
        back = await pods_of(cluster, "web")
        assert {container_status(each, "setup")["image"] for each in back} == {cluster.image}
        assert Counter(cluster.read("web", "log").split()) == {"init": 3, "hook": 2}
