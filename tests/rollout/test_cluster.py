"""What a run sees of the cluster beside its pods, requests and budgets."""

from pathlib import Path

from crrd.core.api.types import API_VERSION, KIND
from crrd.core.rollout.run import Options, Run, Target
from crrd.kube.resources import EVENTS, PODS, REQUESTS
from crrd.rollout.cluster import Cluster
from crrd.rollout.target import Aim
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played

TARGET = Target("pods app=web", selector="app=web")
RUN = Run(NAMESPACE, "mine", TARGET, Options(("app",)), "2026-01-01T12:00:00Z")


async def probe_failed(cluster: PlayedCluster, uid: str, message: str, at: str, reason: str = "Unhealthy") -> None:
    """Kubelet's event on a pod."""
    involved = {"kind": "Pod", "namespace": NAMESPACE, "uid": uid, "fieldPath": "spec.containers{app}"}
    meta = {"name": f"web.{at[-3:-1]}{reason.lower()}", "namespace": NAMESPACE}
    body = {"metadata": meta, "involvedObject": involved, "reason": reason, "message": message, "lastTimestamp": at}
    await cluster.client.create(EVENTS, NAMESPACE, body)


async def test_what_probes_said_last_of_pods_with_a_request(tmp_path: Path) -> None:
    async with played(tmp_path) as cluster:
        uid = (await cluster.pod("web-0", {"app": "web"}))["metadata"]["uid"]
        await cluster.set_ready("web-0", ready=False)
        await probe_failed(cluster, uid, "Readiness probe failed: HTTP 503", "2026-01-01T12:00:50Z")
        await probe_failed(cluster, uid, "Readiness probe failed: HTTP 500", "2026-01-01T12:00:40Z")
        await probe_failed(cluster, uid, "Pulled", "2026-01-01T12:00:59Z", "Pulled")
        aim = Aim(TARGET)
        async with Cluster(cluster.client, NAMESPACE, aim, RUN.options) as seen:
            assert seen.world().probes == {}, "nobody asks for a pod that the run has nothing to do with"
        cluster.goes_on.clear()
        body = RUN.request("web-0", uid, ("app",))
        await cluster.client.create(REQUESTS, NAMESPACE, {"apiVersion": API_VERSION, "kind": KIND, **body})
        await cluster.set_ready("web-0", ready=False)
        async with Cluster(cluster.client, NAMESPACE, aim, RUN.options) as seen:
            ((key, said),) = seen.world().probes.items()
        assert (key, said.message) == ((uid, "app"), "readiness probe failed: HTTP 503")
        cluster.api.fail_next(status=403, match=lambda call: call.resource == "events")
        async with Cluster(cluster.client, NAMESPACE, aim, RUN.options) as seen:
            assert seen.world().probes == {}, "who may not list events goes without"
        await cluster.client.delete(PODS, NAMESPACE, "web-0", grace_seconds=0)
