"""A pod is what its UID says: another pod may have its name at any time, as those of StatefulSets do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.api.types import ANNOTATION_REFRESH, ANNOTATION_STOPPED
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.core.rollout.image.steps import ImageActions
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.restart import FileActions
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import read_member
from crrd.kube.clock import ServerClock
from crrd.kube.resources import PODS, REQUESTS
from crrd.rollout.cluster import Cluster
from crrd.rollout.kinds import make_cluster, make_writer
from crrd.rollout.target import Aim
from crrd.rollout.text import TextLines
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.objects import Object
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.rollouts import run
from tests.support.sessions import recreated

Json = dict[str, Any]
RUN, PLAIN = run(image=ImageChange("i:2", ("i:1",))), run()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlayedCluster]:
    async with played(tmp_path) as found:
        yield found


async def replaced(cluster: PlayedCluster, image: str = "i:1") -> Json:
    """Delete the pod db-0, and create another one of that name that has started just now. Return the new one."""
    await cluster.client.delete(PODS, NAMESPACE, "db-0", grace_seconds=0)
    spec = {"nodeName": "node-a", "containers": [{"name": "app", "image": image}]}
    body = {"metadata": {"name": "db-0", "labels": {"app": "db"}}, "spec": spec}
    pod = dict(await cluster.client.create(PODS, NAMESPACE, body))
    await cluster.run(pod, started=rfc3339(cluster.api.now()))
    return pod


async def test_a_request_for_the_next_pod_of_that_name_is_taken_back(cluster: PlayedCluster) -> None:
    """The pod is replaced between the last look at it and its request, which names it only by its name."""
    await cluster.pod("db-0", {"app": "db"})
    cluster.deaf.add("db-0")
    made: list[str] = []

    async def replace_pod(asked: AdmissionRequest) -> Object | None:
        if asked.kind.plural == REQUESTS.plural and asked.operation is Operation.CREATE and not made:
            made.append(asked.name)
            await replaced(cluster)
        return None

    cluster.api.admission.mutating.insert(0, replace_pod)
    assert await recreated(cluster, "-l", "app=db", "-c", "app") == 0
    assert (len(made), await cluster.requests()) == (1, [])


async def seen(cluster: PlayedCluster, made: Run = RUN) -> tuple[Cluster, Row]:
    """Return what a run knows of the first pod of that name, which is replaced by one with the run's image."""
    pod = await cluster.pod("db-0", {"app": "db"})
    request = made.request("db-0", pod["metadata"]["uid"], ("app",))
    asked = await cluster.client.create(REQUESTS, NAMESPACE, request)
    member = read_member(await cluster.client.get(PODS, NAMESPACE, "db-0"))
    known = make_cluster(cluster.client, NAMESPACE, Aim(made.target), made.options)  # without its watches
    await replaced(cluster, "i:2")
    row = Row("db-0", member.pod.uid, Stage.FAILED, node="node-a", member=member, containers=("app",))
    return known, replace(row, request=read_run_request(asked))


async def test_a_pod_does_not_have_the_image_because_the_next_one_has_it(cluster: PlayedCluster) -> None:
    known, row = await seen(cluster)
    await make_writer(cluster.client, known, RUN, TextLines(), ServerClock()).carry_out(
        RUN, Plan((), actions=ImageActions(stop=(row,)))
    )
    (request,) = await cluster.requests()
    assert request["metadata"]["annotations"].get(ANNOTATION_STOPPED) == "true"


async def test_no_pull_pod_is_made_like_another_pod(cluster: PlayedCluster) -> None:
    known, row = await seen(cluster)
    plan = Plan((row,), actions=ImageActions(pull=("node-a",)))
    await make_writer(cluster.client, known, RUN, TextLines(), ServerClock()).carry_out(RUN, plan)
    assert not [pod for pod in await cluster.pods() if LABEL_PULL in pod["metadata"]["labels"]]


async def test_the_next_pod_gets_no_annotation(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    known, row = await seen(cluster, PLAIN)
    refresher = make_writer(cluster.client, known, PLAIN, TextLines(), ServerClock())
    await refresher.carry_out(PLAIN, Plan((), actions=FileActions(((row, "0123456789abcdef"),))))
    while row.uid not in getattr(known.world().extra, "refreshes", {}):
        await asyncio.sleep(0.01)
    (pod,) = await cluster.pods()
    assert ANNOTATION_REFRESH not in pod["metadata"].get("annotations", {})
    assert capsys.readouterr().out == "", "it is no problem"


async def test_a_policy_that_refuses_the_annotation_is_said(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API server refuses it with the same status as for another pod of that name."""
    member = read_member(await cluster.pod("db-0", {"app": "db"}))
    cluster.api.fail_next(1, 422, match=lambda call: (call.verb, call.resource) == ("patch", "pods"))
    known = make_cluster(cluster.client, NAMESPACE, Aim(RUN.target), PLAIN.options)
    row = Row("db-0", member.pod.uid, Stage.WAITING, node="node-a", member=member, containers=("app",))
    refresher = make_writer(cluster.client, known, PLAIN, TextLines(), ServerClock())
    await refresher.carry_out(PLAIN, Plan((), actions=FileActions(((row, "0123456789abcdef"),))))
    while not (out := capsys.readouterr().out):
        await asyncio.sleep(0.01)
    assert out.startswith("restarted containers can read a file that is up to a minute old")
