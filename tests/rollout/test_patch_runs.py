"""`crrd recreate` on the local node where nothing of crrd is installed: no CRDs, no node daemon, no manager."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.cluster import (
    WAITING_SCRIPT,
    Cluster,
    Json,
    container,
    container_status,
    local_cluster,
    pod_ready,
    restart_count,
)
from tests.support.faulty_api import FaultyApiServer
from tests.support.recreates import kept, pod_spec, pods_of, recorded, recreate, workload


@asynccontextmanager
async def bare_cluster(folder: Path, backoff: float) -> AsyncIterator[Cluster]:
    api = FaultyApiServer()
    api.crds = []
    async with local_cluster(folder, api=api, relist=0.1, backoff=backoff) as cluster:
        yield cluster


def with_hook(cluster: Cluster) -> Json:
    """Return the spec of pods whose preStop hook appends the pod's name to `hooks`."""
    spec = pod_spec(cluster, "app", "side")
    (shared := cluster.shared("web")).mkdir()
    app: Json = {
        **spec["containers"][0],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo $POD >> /shared/hooks"]}}},
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    volume = {"name": "shared", "hostPath": {"path": str(shared), "type": "Directory"}}
    return {**spec, "containers": [app, spec["containers"][1]], "volumes": [volume]}


async def test_a_deployment_is_restarted_twice(tmp_path: Path) -> None:
    async with bare_cluster(tmp_path, backoff=300) as cluster:
        pods = await workload(cluster, "Deployment", "web", 3, spec=with_hook(cluster))
        for times in (1, 2):
            async with recorded(cluster, "web") as record:
                ended = await recreate(cluster, "deployment/web", "-c", "app")
            assert ended.code == 0, ended
            assert "crrd is not installed in this cluster" in ended.out + ended.err
            after = await pods_of(cluster, "web")
            kept(pods, after, "app")
            assert [image_id(pod) for pod in after] == [image_id(pod) for pod in pods]
            assert record.most_unready <= 1
            names = [pod["metadata"]["name"] for pod in pods]
            assert Counter(cluster.read("web", "hooks").split()) == dict.fromkeys(names, times), "one hook a restart"
            status = await recreate(cluster, "status")
            assert (status.code, len(status.out.splitlines())) == (0, 2), "the pods have the record of the last run"
            assert status.out.splitlines()[1].split()[1:5] == ["deployment.apps/web", "done", "Over", "3/3"]
            pods = after


def image_id(pod: Json) -> str:
    return str(container_status(pod, "app")["imageID"])


async def test_a_container_in_crash_loop_back_off_starts_at_once(tmp_path: Path) -> None:
    async with bare_cluster(tmp_path, backoff=300) as cluster:
        app = container("app", f"test -e /shared/good || exit 3; {WAITING_SCRIPT}")
        await cluster.create_pod("web", [app, container("side")])
        before = await cluster.wait_pod("web", is_held, "CrashLoopBackOff")
        (cluster.shared("web") / "good").touch()
        ended = await recreate(cluster, "pod/web", "-c", "app")
        assert ended.code == 0, ended
        after = await cluster.pod("web")
        assert pod_ready(after)
        assert restart_count(after, "app") == restart_count(before, "app") + 1
        assert container_status(after, "side") == container_status(before, "side")


def is_held(pod: Json) -> bool:
    state = container_status(pod, "app").get("state") or {}
    side = container_status(pod, "side").get("ready")
    return bool(side and state.get("waiting", {}).get("reason") == "CrashLoopBackOff")
