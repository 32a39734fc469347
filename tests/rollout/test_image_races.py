"""Runs with an image whose objects change between a look and a write."""

from dataclasses import replace
from typing import Any

from crrd.core.rollout.adoption import Adoption, set_label
from crrd.core.rollout.image_change import ImageChange
from crrd.core.rollout.image_steps import ImageSteps
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import read_member
from crrd.core.rollout.template import LABEL_REVISION
from crrd.kube.resources import PODS
from crrd.rollout.cluster import Cluster
from crrd.rollout.image_writer import ImageWriter
from crrd.rollout.target import Aim
from tests.support.played_cluster import NAMESPACE, PlayedCluster

Json = dict[str, Any]
CHANGE = ImageChange("i:2", ("i:1",), pulls=False)
RUN = Run(
    NAMESPACE,
    "mine",
    Target("pods app=web", selector="app=web"),
    Options(("app",), image=CHANGE),
    "2026-01-01T12:00:00Z",
)


async def test_a_pod_that_is_replaced_before_it_gets_its_label_keeps_its_own(cluster: PlayedCluster) -> None:
    """The watch has not reported it yet. The new pod has the same name, and the run goes on with it."""
    labels = {"app": "web", LABEL_REVISION: "one"}
    old = await cluster.pod("web-0", labels)
    seen = Cluster(cluster.client, NAMESPACE, Aim(RUN.target), RUN.options)  # without its watches
    seen.pod_written(old)
    assert seen.images is not None
    await cluster.client.delete(PODS, NAMESPACE, "web-0", grace_seconds=0)
    new = await cluster.pod("web-0", labels)
    write = set_label(RUN, replace(CHANGE, image="i:1"), read_member(old), "one", "two")
    steps = ImageSteps(adoption=Adoption((write,)))
    await ImageWriter(cluster.client, seen, seen.images).carry_out(RUN, Plan((), image=steps))
    assert [each.pod.uid for each in seen.world().members] == [new["metadata"]["uid"]]
    assert (await cluster.client.get(PODS, NAMESPACE, "web-0"))["metadata"]["labels"] == labels
