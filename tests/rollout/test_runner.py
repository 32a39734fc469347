"""What a runner does where its watches lag behind the API server."""

import asyncio
from datetime import datetime
from typing import Any, cast

from crrd.core.rollout.plan import End
from crrd.core.rollout.state import Member, World
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display
from crrd.rollout.runner import Runner
from tests.support.rollouts import NOW, member, recreated, run


class LateCluster:
    """Shows the pods as they were, until one is asked for."""

    problem = ""

    def __init__(self, shown: Member, real: Member) -> None:
        self.changed = asyncio.Event()
        self._shown, self._real = shown, real

    async def learn(self) -> None: ...

    async def look_again(self, name: str) -> None:
        assert name == self._real.pod.name
        self._shown = self._real

    def world(self) -> World:
        return World((self._shown,))


class Clock:
    def now(self) -> datetime:
        return NOW


class NoCreation:
    async def create(self, *_: Any) -> Any:
        raise AssertionError("the pod gets another request")


async def test_a_pod_that_was_restarted_unseen_gets_no_other_request() -> None:
    """Its request has ended and was deleted, and the watch of pods has yet to show the new container."""
    before = member("web-0")
    cluster = cast("Cluster", LateCluster(before, recreated(before)))
    client, clock = cast("KubeClient", NoCreation()), cast("ServerClock", Clock())
    plan, _ = await Runner(client, cluster, clock, Display(), timeout=5, confirmed=True).run(run())
    assert plan.end is End.DONE
    assert [row.why for row in plan.rows] == ["app was already restarted"]
