"""Runs of policies for images, in virtual time: how they end when nothing helps, and what they leave behind."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from crrd.core.policy.pace import TURN_SECONDS
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.limits import Times
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Wait
from crrd.kube.client import KubeClient
from crrd.kube.resources import POLICIES, Resource
from crrd.lib.errors import ConfigurationError
from crrd.lib.health import Health
from crrd.lib.supervise import cancel
from crrd.manager.policies import run_task
from crrd.manager.policies.statuses import Policies
from crrd.rollout.refresher import FileObjects
from crrd.rollout.target import Aim
from tests.support.laned_api import LanedApi
from tests.support.policy_runs import policy_controller, policy_runs
from tests.support.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time
DEPLOYMENTS = Resource("deployments", "apps")
TARGET = Target("deployment.apps/web", "apps/v1", "Deployment", "web", "uid-1")
AT = "2026-01-01T00:00:00Z"
RECORD = RunRecord("web-1", "templateImage", ("app",), AT, AT, 1, image="i:2", before=("i:1",), template="t")
STUCK = Plan(
    (), wait=Wait("waiting until container app of pod web-1 has started"), end=End.YIELDED, phase=RunPhase.ADOPTING
)


class NoCluster:
    """Stands for the watches of a run."""

    def __init__(self, *_: object, **__: object) -> None:
        self.kind_objects, self.changed = FileObjects(lambda: None), asyncio.Event()

    async def __aenter__(self) -> "NoCluster":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def world(self) -> World:
        return World(())


class Shop:
    """The runs of one policy, each of whose turns brings nothing, and ends as `turn` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shop, self.turn, self.begun = self, cast("Plan | Exception", STUCK), list[Run]()

        class Runner:
            def __init__(self, *_: object, times: Times, **__: object) -> None:
                self._patience = times.patience or 0.0

            async def run(self, run: Run) -> Plan:
                shop.begun.append(run)
                await asyncio.sleep(self._patience)
                if isinstance(shop.turn, Exception):
                    raise shop.turn
                return shop.turn

            async def finish(self, *_: object) -> str:
                return ""

        monkeypatch.setattr(run_task, "Runner", Runner)
        monkeypatch.setattr(run_task, "make_cluster", NoCluster)
        self.api, self.woken = LanedApi(), list[float]()
        client, self.policies = cast("KubeClient", self.api), Policies(cast("KubeClient", self.api), lambda *_: None)
        self._put({})
        self.runs = policy_runs(client, LoopClock(), self.policies, wake_at=lambda _, at: self.woken.append(at))

    @property
    def policy(self) -> Policy:
        return read_policy(self.api.objects[POLICIES.plural]["p"])

    @property
    def run(self) -> Mapping[str, Any]:
        """The run in the policy's status."""
        return dict(self.api.objects[POLICIES.plural]["p"].get("status", {}).get("run", {}))

    def _put(self, status: Mapping[str, Any]) -> None:
        meta = {"namespace": "n", "name": "p", "uid": "p", "resourceVersion": "1"}
        spec: dict[str, Any] = {"triggers": {"templateImage": {}}}
        self.api.put(POLICIES, {"metadata": meta, "spec": spec, "status": status})
        self.policies.objects.put(self.policy)

    def follow(self, record: RunRecord = RECORD, uid: str = "uid-1") -> None:
        """Carry out a run, which is in the policy's status before that."""
        self._put(write_status(PolicyStatus(run=record)))
        self.runs.follow(self.policy, record, Aim(replace(TARGET, uid=uid), DEPLOYMENTS, "app=web"), None)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(monkeypatch)


async def test_a_right_that_is_taken_back_ends_a_run(shop: Shop) -> None:
    """So what keeps pods unready is released. A run without an image keeps none unready, and goes on."""
    shop.turn = ConfigurationError("patch pods: forbidden")
    shop.follow(replace(RECORD, image="", trigger="maxAge"))
    await asyncio.sleep(600)
    assert not shop.run.get("finished")
    shop.follow(replace(RECORD, name="web-2"))
    await asyncio.sleep(TURN_SECONDS + 1)
    assert (shop.run["failed"], shop.run["message"]) == (False, "patch pods: forbidden")


async def test_a_workload_that_was_created_again_is_the_target_of_the_same_run(shop: Shop) -> None:
    shop.follow()
    await asyncio.sleep(1)
    shop.follow()
    await asyncio.sleep(1)
    assert [each.target.uid for each in shop.begun] == ["uid-1"]
    shop.follow(uid="uid-2")
    await asyncio.sleep(1)
    assert [each.target.uid for each in shop.begun] == ["uid-1", "uid-2"]
    shop.runs.stop_all()


class Allowing(LanedApi):
    """All is allowed. Writes are answered, and change nothing."""

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        assert body["spec"]["resourceAttributes"]["namespace"] == "n" != namespace
        self.calls.append((asyncio.get_running_loop().time(), "create", resource.plural, ""))
        return {"status": {"allowed": True}}


@pytest.mark.parametrize("paused", [True, False])
async def test_a_controller_that_is_waited_for_is_looked_at_ever_more_rarely(*, paused: bool) -> None:
    """It has not observed its Deployment, or the Deployment is not held. Each look asks about eight rights."""
    api = Allowing()
    meta = {"namespace": "n", "name": "web", "uid": "w", "resourceVersion": "1", "generation": 2}
    template = {"spec": {"containers": [{"name": "app", "image": "i:2"}]}}
    spec = {"paused": paused, "selector": {"matchLabels": {"app": "web"}}, "template": template, "replicas": 1}
    api.put(DEPLOYMENTS, {"metadata": meta, "spec": spec, "status": {"observedGeneration": 1 if paused else 2}})
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    policy = {"targetRef": target, "triggers": {"templateImage": {}}}
    meta = {"namespace": "n", "name": "p", "uid": "p", "resourceVersion": "1", "generation": 1}
    api.put(POLICIES, {"metadata": meta, "spec": policy})
    controller = policy_controller(api)
    task = asyncio.create_task(controller.run(Health()))
    await asyncio.sleep(900)
    reviews = [at for at, verb, kind, _ in api.calls if (verb, kind) == ("create", "selfsubjectaccessreviews")]
    assert 5 * 8 <= len(reviews) <= 14 * 8
    status = api.objects[POLICIES.plural]["p"]["status"]
    (found,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    assert found["reason"] == ("WaitingForController" if paused else "TemplateNotFollowed")
    await cancel([task])
