"""What a runner does where its watches lag behind the API server."""

import asyncio
from datetime import datetime
from typing import Any, cast

import pytest

from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.state import Budget, Member, World
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.rollout import runner
from crrd.rollout.cluster import Cluster
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import Runner
from crrd.rollout.text import TextLines
from tests.support.rollouts import NOW, budget, member, recreated, run


class LateCluster:
    """Shows the pods as they were, until one is asked for."""

    def __init__(self, shown: Member, real: Member, *budgets: Budget) -> None:
        self.changed = asyncio.Event()
        self._shown, self._real, self._budgets = shown, real, budgets

    async def refresh(self) -> str:
        return ""

    async def learn_probes(self, plan: Plan) -> bool:
        return False

    async def look_again(self, name: str) -> None:
        assert name == self._real.pod.name
        self._shown = self._real

    def world(self) -> World:
        return World((self._shown,), budgets=self._budgets)


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
    plan, _ = await Runner(client, cluster, clock, TextLines(), timeout=5, confirmed=True, remedies=FLAGS).run(run())
    assert plan.end is End.DONE
    assert [row.wait.why for row in plan.rows] == ["container app was already restarted"]


async def test_a_run_that_gets_nowhere_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 0.05)
    pod = member("web-0")
    cluster = cast("Cluster", LateCluster(pod, pod, budget(0)))
    client, clock = cast("KubeClient", NoCreation()), cast("ServerClock", Clock())
    given = run(pod_timeout=0)
    plan, timed_out = await Runner(
        client, cluster, clock, TextLines(), timeout=None, confirmed=True, remedies=FLAGS
    ).run(given)
    assert (timed_out, plan.wait.why) == (True, "PodDisruptionBudget guard allows no disruption now")
