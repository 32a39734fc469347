"""What a run sees of the cluster beside its pods, requests and budgets."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from crrd.core.api.pod import ContainerKind
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import NodeDaemon
from crrd.core.rollout.waits import Wait
from crrd.kube.client import KubeClient
from crrd.kube.resources import EVENTS, REQUESTS
from crrd.lib.errors import ApiUnavailableError
from crrd.rollout.kinds import make_cluster
from crrd.rollout.nodes import DownNodes, Nodes
from crrd.rollout.target import Aim
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.rollouts import NOW, container, member

TARGET = Target("pods app=web", selector="app=web")
RUN = Run(NAMESPACE, "mine", TARGET, Options(("app",)), "2026-01-01T12:00:00Z")


async def probe_failed(cluster: PlayedCluster, uid: str, message: str, at: str, reason: str = "Unhealthy") -> None:
    """Kubelet's event on a pod."""
    involved = {"kind": "Pod", "namespace": NAMESPACE, "uid": uid, "fieldPath": "spec.containers{app}"}
    meta = {"name": f"web.{at[-3:-1]}{reason.lower()}", "namespace": NAMESPACE}
    body = {"metadata": meta, "involvedObject": involved, "reason": reason, "message": message, "lastTimestamp": at}
    await cluster.client.create(EVENTS, NAMESPACE, body)


async def test_what_probes_said_last_of_pods_that_wait_for_one(tmp_path: Path) -> None:
    async with played(tmp_path) as cluster:
        uid = (await cluster.pod("web-0", {"app": "web"}))["metadata"]["uid"]
        await probe_failed(cluster, uid, "Readiness probe failed: HTTP 503", "2026-01-01T12:00:50Z")
        await probe_failed(cluster, uid, "Readiness probe failed: HTTP 500", "2026-01-01T12:00:40Z")
        await probe_failed(cluster, uid, "Pulled", "2026-01-01T12:00:59Z", "Pulled")
        async with make_cluster(cluster.client, NAMESPACE, Aim(TARGET), RUN.options) as seen:
            waiting = Row("web-0", uid, Stage.RECREATING, Wait("not ready for 5s", topic="not ready"))
            untimed = replace(waiting, wait=Wait("not ready for 5s"))
            assert not await seen.probes.learn(Plan((untimed,))), "nobody waits for a probe"
            assert seen.world().probes == {}
            assert await seen.probes.learn(Plan((waiting,)))
            ((key, said),) = seen.world().probes.items()
            assert (key, said.message) == ((uid, "app"), "readiness probe failed: HTTP 503")
            assert not await seen.probes.learn(Plan((waiting,))), "not every time"
        cluster.api.fail_next(status=403, match=lambda call: call.resource == "events")
        async with make_cluster(cluster.client, NAMESPACE, Aim(TARGET), RUN.options) as seen:
            assert await seen.probes.learn(Plan((waiting,)))
            assert seen.world().probes == {}, "who may not list events goes without"


async def test_a_run_that_is_undone_goes_no_further_also_if_no_request_says_that_it_was_aborted(tmp_path: Path) -> None:
    """The undo has deleted that request, while the other process had lost its watch."""
    back = ImageChange("i:0", ("i:1",), pulls=False, undoes=RUN.name)
    undo = replace(RUN, name="undo", options=replace(RUN.options, image=back))
    async with played(tmp_path) as cluster:
        uid = (await cluster.pod("web-0", {"app": "web"}))["metadata"]["uid"]
        await cluster.client.create(REQUESTS, NAMESPACE, undo.request("web-0", uid, ("app",)))
        async with make_cluster(cluster.client, NAMESPACE, Aim(TARGET), RUN.options) as seen:
            assert make_plan(seen.world(), RUN, NOW).end is End.ABORTED
            assert make_plan(seen.world(), undo, NOW).end is None


async def test_an_image_run_reads_the_kubelets_of_pods_with_native_sidecars() -> None:
    """An older kubelet would not replace them."""
    pods = [member("web-0", container(kind=ContainerKind.SIDECAR)), member("web-1", container(), node="node-b")]

    class OneNode:
        async def get(self, *_: object) -> dict[str, object]:
            return {"status": {"nodeInfo": {"kubeletVersion": "v1.31.4"}}}

    for for_image, known in ((True, {"node-a": "v1.31.4"}), (False, {})):
        nodes = Nodes(cast("KubeClient", OneNode()), lambda: None, for_image=for_image)
        await nodes.learn(pods, {each.pod.node_name: NodeDaemon(each.pod.node_name, ready=True) for each in pods})
        assert nodes.kubelets == known


async def test_all_nodes_that_may_be_down_are_read_and_not_for_each_who_asks() -> None:
    names, reads = [f"node-{number}" for number in range(25)], list[str]()

    class Zone:
        async def get(self, _: object, __: str, name: str) -> dict[str, object]:
            reads.append(name)
            return {"status": {"conditions": [{"type": "Ready", "status": "False" if name in names[20:] else "True"}]}}

    nodes = DownNodes(cast("KubeClient", Zone()))
    assert await nodes.among(names) == {*names[20:]}
    assert await nodes.among(names[19:]) == {*names[20:]}
    assert sorted(reads) == sorted(names)


async def test_what_is_known_of_a_node_stays_while_it_cannot_be_read() -> None:
    """Else its pods with a native sidecar would count as unknown, and a node that was never read as unreadable."""
    pod = member("web-0", container(kind=ContainerKind.SIDECAR))
    failing = [True]

    class OneNode:
        async def get(self, *_: object) -> dict[str, object]:
            if failing[0]:
                raise ApiUnavailableError("it is starting")
            return {"status": {"nodeInfo": {"kubeletVersion": "v1.31.4"}}}

    nodes = Nodes(cast("KubeClient", OneNode()), lambda: None, for_image=True)
    with pytest.raises(ApiUnavailableError):
        await nodes.learn([pod], None)
    assert nodes.kubelets == {}, "it is read again"
    failing[0] = False
    await nodes.learn([pod], None)
    failing[0] = True
    with pytest.raises(ApiUnavailableError):
        await nodes.look_again(pod)
    assert nodes.kubelets == {"node-a": "v1.31.4"}
