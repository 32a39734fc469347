"""Calls of the controller that hang, as many as a client has under way at once, keep nobody else waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from crrd.core.api.types import ANNOTATION_UNREADY_ACQUIRED
from crrd.kube.client import Deadlines
from crrd.kube.lanes import PLACES
from crrd.kube.leader import LeaderElection, LeaseTiming
from crrd.manager.daemon import _run
from crrd_localnode.api.admission import AdmissionRequest
from tests.support.lifecycle_cluster import LifecycleCluster, lifecycle_cluster
from tests.support.manager import CONFIG

LASTING = LeaseTiming(duration=1000.0, renew_deadline=900.0, retry=0.05)
"""A lease that is not renewed stays what it is for the length of the test."""


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LifecycleCluster]:
    """With a whole manager, whose calls are never given up."""
    stop = asyncio.Event()
    monkeypatch.setattr("crrd.manager.daemon.stop_on_signals", lambda: stop)
    monkeypatch.setattr("crrd.manager.daemon.LeaderElection", partial(LeaderElection, timing=LASTING))
    monkeypatch.setattr("crrd.kube.client.Deadlines", partial(Deadlines, call=900.0))
    async with lifecycle_cluster() as made:
        kubeconfig = made.server.kubeconfig(tmp_path / "kubeconfig")
        managing = asyncio.create_task(_run(replace(CONFIG, kubeconfig=str(kubeconfig), namespace="default")))
        try:
            yield made
        finally:
            stop.set()
            await managing


@asynccontextmanager
async def hanging_marks(cluster: LifecycleCluster) -> AsyncIterator[list[str]]:
    """Requests whose mark a webhook does not let through, before the end of the block."""
    held: list[str] = []
    over = asyncio.Event()

    async def hold(asked: AdmissionRequest) -> None:
        annotations = (asked.new or {}).get("metadata", {}).get("annotations", {})
        if asked.kind.plural == "containerrecreaterequests" and ANNOTATION_UNREADY_ACQUIRED in annotations:
            held.append(asked.name)
            await over.wait()

    cluster.server.admission.validating.append(hold)
    try:
        yield held
    finally:
        over.set()


def renewed(cluster: LifecycleCluster) -> str:
    """When the lease was renewed last."""
    (lease,) = cluster.server.store.objects("coordination.k8s.io/leases").values()
    return str(lease.obj["spec"]["renewTime"])


async def renewal(cluster: LifecycleCluster) -> None:
    """Wait until the lease is renewed."""
    before = renewed(cluster)
    await cluster.until("the lease is renewed", lambda: renewed(cluster) != before)


async def test_a_leader_renews_its_lease_while_its_writes_hang(cluster: LifecycleCluster) -> None:
    names = [f"web-{number}" for number in range(PLACES)]
    async with hanging_marks(cluster) as held:
        for name in names:
            await cluster.request(name, await cluster.pod(name), grace=3600)
            await cluster.node_says(name, "Recreating")
        await cluster.until("all writes hang", lambda: sorted(held) == names)
        for _ in range(3):  # one may have been under way
            await renewal(cluster)
        assert not any(cluster.acquired(name) for name in names)
    await cluster.until("all are marked", lambda: all(cluster.acquired(name) for name in names))
