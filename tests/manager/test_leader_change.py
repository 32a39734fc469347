"""The leading manager is killed in the middle of things; the other one finishes them, on the whole local node."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from crrd.core.api import types as model
from crrd.kube.resources import REQUESTS, Resource
from crrd_localnode.daemons import Daemon, ask_manager, running_manager
from tests.support.cluster import Cluster, Json, condition, container, container_status, states
from tests.support.daemons import NodeDaemon, second_manager

LEASES = Resource("leases", "coordination.k8s.io")


@dataclass(frozen=True)
class Managers:
    """The one that leads, and another one that waits for the lease."""

    cluster: Cluster
    leader: Daemon
    second: Daemon

    async def kill_leader(self) -> None:
        """SIGKILL; admission goes to the other one then."""
        os.kill(self.leader.pid, signal.SIGKILL)
        await ask_manager(self.cluster.local, self.second)


@asynccontextmanager
async def two_managers(cluster: Cluster) -> AsyncIterator[Managers]:
    """Both serve admission; the first one leads."""
    node = cluster.local
    async with running_manager(node) as leader:
        await cluster_lease_held(cluster)
        async with second_manager(node) as second:
            yield Managers(cluster, leader, second)


async def cluster_lease_held(cluster: Cluster) -> None:
    system = Cluster(**{name: getattr(cluster, name) for name in cluster.__slots__} | {"namespace": "crrd-system"})
    await system.wait(LEASES, "crrd-manager", lambda lease: bool(lease["spec"].get("holderIdentity")), "is held")


async def gated_pod(cluster: Cluster, name: str) -> Json:
    await cluster.create_gated_pod(name)
    return await cluster.wait_pod(name, lambda pod: condition(pod, "Ready") == "True", "ready, the gate too")


async def post(cluster: Cluster, name: str, pod: str, strategy: Json | None = None, **spec: Any) -> None:
    body = {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": {"podName": pod, "containers": [{"name": "app"}], "strategy": strategy or {}, **spec},
    }
    await cluster.create_request(body)


@pytest.mark.timeout(180)
async def test_the_other_manager_finishes_what_a_killed_leader_began(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    """In an unready grace, before a deadline and before a TTL: all at once, as a takeover takes a while."""
    async with two_managers(cluster) as managers:
        await asyncio.gather(*(gated_pod(cluster, name) for name in ("graceful", "late", "short")))
        await post(cluster, "ttl", "short", ttlSecondsAfterFinished=6)
        await cluster.wait_completed("ttl")
        await post(cluster, "deadline", "late", {"minStartedSeconds": 600}, activeDeadlineSeconds=10)
        await post(cluster, "grace", "graceful", {"unreadyGracePeriodSeconds": 5})
        await cluster.wait_request("deadline", lambda found: bool(found.get("status")), "answered")
        await cluster.wait_pod("graceful", lambda pod: condition(pod, model.READINESS_GATE) == "False", "unready")
        await managers.kill_leader()

        assert states(await cluster.wait_completed("grace")) == {"app": "Succeeded"}
        released = await cluster.wait_pod(
            "graceful", lambda pod: condition(pod, model.READINESS_GATE) == "True", "the readiness is released"
        )
        assert container_status(released, "app")["restartCount"] == 1
        request = await cluster.wait_request(
            "grace", lambda found: not found["metadata"].get("finalizers"), "the finalizer is removed"
        )
        assert request["status"]["phase"] == "Completed"
        late = await cluster.wait_completed("deadline")
        assert states(late) == {"app": "Failed"}
        assert "activeDeadlineSeconds" in str(late["status"])
        await cluster.wait_gone(REQUESTS, "ttl")
        assert node_daemon.pid


async def test_a_pod_without_the_gate_is_recreated_at_once_and_told_why(
    cluster: Cluster, node_daemon: NodeDaemon
) -> None:
    async with running_manager(cluster.local):
        await cluster.run_pod("web", [container("app")])
        await post(cluster, "one", "web", {"unreadyGracePeriodSeconds": 3600})
        request = await cluster.wait_completed("one")
        assert states(request) == {"app": "Succeeded"}
        assert "no readiness gate KruisePodReady" in request["status"]["message"]
        assert node_daemon.pid
