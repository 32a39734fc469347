"""Policies of a manager that patches pods, because there are no node daemons (`--via patch`), in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from crrd.core.api.types import ACTIVE, LABEL_ACTIVE
from crrd.core.policy.types import API_VERSION, KIND
from crrd.core.rollout.patch.operations import restart_for
from crrd.core.rollout.patched import read_patched
from crrd.core.rollout.state import read_member
from crrd.kube.resources import PODS, POLICIES, REQUESTS
from crrd.lib.errors import ApiRefusedError
from crrd.lib.health import Health
from crrd.lib.jsonfields import condition
from crrd.lib.supervise import cancel
from tests.support.patch_cluster import PatchCluster
from tests.support.policy_runs import policy_controller
from tests.support.run_cluster import NAMESPACE
from tests.support.spelled import image_of

pytestmark = pytest.mark.virtual_time
NAMES = ["web-0002", "web-0001", "web-0000"]
Json = dict[str, Any]


class Shop(PatchCluster):
    """Pods that have run for long, and a policy with a maximum age."""

    def __init__(self) -> None:
        super().__init__(3)
        self.crds = True
        self.stateful_set(3)
        self.policy({"maxAge": "1h"})

    def policy(self, triggers: Json, **spec: Any) -> None:
        target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"}
        meta = {"namespace": NAMESPACE, "name": "web", "uid": "policy", "generation": 1}
        spec = {"targetRef": target, "triggers": triggers, **spec}
        self.put(POLICIES, {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})

    @property
    def status(self) -> Json:
        found = self.objects[POLICIES.plural]["web"]
        return cast("Json", found.get("status") or {})

    @property
    def ready(self) -> Json:
        return dict(condition({"status": self.status}, "Ready"))

    @property
    def images(self) -> set[str]:
        return {image_of(self.now(name), "app") for name in NAMES}

    @asynccontextmanager
    async def led(self, *, patch: bool = True) -> AsyncIterator[None]:
        """A manager leads."""
        leader = asyncio.create_task(policy_controller(self, patch=patch).run(Health()))
        yield
        await cancel([leader])


async def test_a_policy_restarts_pods_one_after_the_other() -> None:
    shop = Shop()
    async with shop.led():
        await asyncio.sleep(120)
    assert (shop.restarts, shop.most_away, shop.created) == (dict.fromkeys(NAMES, 1), 1, NAMES)
    assert (shop.status["run"]["failed"], shop.ready["reason"]) == (False, "Idle")
    assert "3 of 3 pods recreated" in shop.status["run"]["message"]
    for name in NAMES:
        patched = read_patched(shop.now(name))
        assert patched is not None
        assert (patched.run.name, patched.run.options.policy) == (shop.status["run"]["name"], "policy")


async def test_the_next_leader_restarts_none_twice() -> None:
    shop = Shop()
    async with shop.led():
        while len(shop.created) < 2:
            await asyncio.sleep(0.01)
    async with shop.led():
        await asyncio.sleep(120)
    assert (shop.restarts, shop.most_away) == (dict.fromkeys(NAMES, 1), 1)


async def test_without_the_role_nothing_starts_and_the_status_says_what_to_do() -> None:
    shop = Shop()
    shop.may_not = {"respell"}
    async with shop.led():
        await asyncio.sleep(60)
        assert (shop.created, shop.ready["reason"]) == ([], "PodsNotPatchable")
        assert "may not respell pods.crr.apps.kruise.io in this namespace" in shop.ready["message"]
        assert f"kubectl create rolebinding crrd-patch-pods -n {NAMESPACE} " in shop.ready["message"]
        shop.may_not = set()
        await asyncio.sleep(900)
    assert shop.restarts == dict.fromkeys(NAMES, 1)


async def test_an_image_of_the_template_needs_node_daemons() -> None:
    shop = Shop()
    shop.policy({"templateImage": {}})
    async with shop.led():
        await asyncio.sleep(60)
    assert (shop.created, shop.ready["reason"]) == ([], "InvalidSpec")
    assert "templateImage needs node daemons" in shop.ready["message"]


@pytest.mark.parametrize("gone", [True, False])
async def test_a_container_that_kubelet_cannot_start_gets_its_image_back_whatever_becomes_of_the_policy(
    *, gone: bool
) -> None:
    """It is suspended or deleted before the run has seen that kubelet cannot start the container."""
    shop = Shop()
    before, shop.missing = shop.images, {*NAMES}
    async with shop.led():
        while not shop.created:
            await asyncio.sleep(0.01)
        if gone:
            shop.remove(POLICIES, "web")
        else:
            shop.policy({"maxAge": "1h"}, suspend=True)
        await asyncio.sleep(120)
    assert (shop.images, len(shop.created)) == (before, 2), "one patch, and one that takes it back"
    assert not shop.away


async def test_each_leader_gives_images_back_that_earlier_ones_have_left() -> None:
    shop = Shop()
    before, shop.missing = shop.images, {*NAMES}
    async with shop.led():
        while not shop.created:
            await asyncio.sleep(0.01)
    shop.remove(POLICIES, "web")
    async with shop.led():
        await asyncio.sleep(120)
    assert shop.images == before


@pytest.mark.parametrize("status", [422, 403])
async def test_a_refused_patch_that_gives_images_back_is_tried_again(status: int) -> None:
    """With 422, the pod has changed since it was read."""
    shop = Shop()
    before, shop.missing = shop.images, {*NAMES}
    async with shop.led():
        while not shop.created:
            await asyncio.sleep(0.01)
    shop.remove(POLICIES, "web")
    shop.denies = lambda _: ApiRefusedError("not now", status=status)
    async with shop.led():
        await asyncio.sleep(120)
        assert shop.images != before
        shop.denies = lambda _: None
        await asyncio.sleep(600)
    assert shop.images == before


async def test_a_pod_that_is_gone_needs_no_image() -> None:
    shop = Shop()
    shop.missing = {*NAMES}
    async with shop.led():
        while not shop.created:
            await asyncio.sleep(0.01)
    shop.remove(POLICIES, "web")
    shop.before = lambda name: shop.remove(PODS, name)
    async with shop.led():
        await asyncio.sleep(120)
    assert len({*NAMES} & {*shop.objects["pods"]}) == 2


@pytest.mark.parametrize("there", [True, False])
async def test_what_requests_have_left_gets_its_image_back_when_they_are_over(*, there: bool) -> None:
    """The manager runs with node daemons now, and carries out no request."""
    shop = Shop()
    shop.remove(POLICIES, "web")
    before, shop.missing = shop.images, {*NAMES}
    member = read_member(shop.now("web-0000"))
    patch = restart_for(member, "ask", "uid-ask", ("app",), "2026-01-01T00:16:41Z")
    await shop.json_patch(PODS, NAMESPACE, "web-0000", patch)
    if there:
        meta = {"name": "ask", "namespace": NAMESPACE, "uid": "uid-ask", "labels": {LABEL_ACTIVE: ACTIVE}}
        asked = {"podName": "web-0000", "containers": [{"name": "app"}]}
        shop.put(REQUESTS, {"metadata": meta, "spec": asked})
    async with shop.led(patch=False):
        await asyncio.sleep(120)
        assert (shop.images == before) is not there
        shop.objects.get(REQUESTS.plural, {}).pop("ask", None)
        await asyncio.sleep(120)
    assert shop.images == before


async def test_a_container_that_a_request_has_restarted_keeps_its_name() -> None:
    shop = Shop()
    shop.remove(POLICIES, "web")
    member = read_member(shop.now("web-0000"))
    patch = restart_for(member, "ask", "uid-ask", ("app",), "2026-01-01T00:16:41Z")
    await shop.json_patch(PODS, NAMESPACE, "web-0000", patch)
    async with shop.led():
        await asyncio.sleep(120)
    assert shop.restarts == {"web-0000": 1}
