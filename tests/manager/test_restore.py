"""`onFailure: Restore` through the local API server: the last good data of a ConfigMap is kept, and written back."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crrd.core.policy.stored import ANNOTATION_HASH, ANNOTATION_OBJECT, LABEL_KEPT
from crrd.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS, POLICIES
from tests.manager.test_policies import Managed, is_idle, managing, ready
from tests.support.faulty_api import Call
from tests.support.played_cluster import NAMESPACE


def is_kept(status: Mapping[str, Any]) -> bool:
    """Whether all data is kept, and the status says so."""
    return restorable(status).get("status") == "True"


def newest_kept(status: Mapping[str, Any]) -> bool:
    """Whether the present data is kept."""
    return all(each["hash"] == each.get("kept") for each in status["revisions"])


def restorable(status: Mapping[str, Any]) -> dict[str, Any]:
    return next((dict(each) for each in status["conditions"] if each["type"] == "Restorable"), {})


async def kept(managed: Managed) -> list[dict[str, Any]]:
    return list((await managed.cluster.client.list_all(CONTROLLER_REVISIONS, dict, namespace=NAMESPACE)).items)


async def until_left(managed: Managed, count: int) -> list[dict[str, Any]]:
    """Return what is kept, once it is so much."""
    async with asyncio.timeout(10):
        while len(found := await kept(managed)) != count:
            await asyncio.sleep(0.05)
    return found


async def data(managed: Managed) -> dict[str, Any]:
    return dict((await managed.cluster.client.get(CONFIG_MAPS, NAMESPACE, "cfg"))["data"])


async def prepare(managed: Managed, **spec: Any) -> None:
    """The data LOG=info is kept, and the first pod fails with the next."""
    await managed.policy(onFailure="Restore", **spec)
    await managed.lead()
    await managed.until(is_kept)
    first, _ = [pod["metadata"]["name"] for pod in await managed.cluster.pods()]
    managed.cluster.fails[first] = ("PreStopFailed", "it broke")


async def test_the_last_good_data_is_kept_in_an_object_of_the_policy(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        await managed.policy(onFailure="Restore")
        await managed.lead()
        status = await managed.until(is_kept)
        (one,) = await kept(managed)
        policy = await managed.cluster.client.get(POLICIES, NAMESPACE, "web")
        meta = one["metadata"]
        assert one["data"] == {"data": {"LOG": "info"}}
        assert meta["labels"] == {LABEL_KEPT: policy["metadata"]["uid"]}
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (policy["metadata"]["uid"], True)
        revision = status["revisions"][0]
        notes = meta["annotations"]
        assert (notes[ANNOTATION_OBJECT], notes[ANNOTATION_HASH]) == ("cfg", revision["kept"])
        assert revision["revision"] == meta["name"]
        await managed.config(LOG="debug")
        await managed.until(lambda status: is_kept(status) and status["revisions"][0]["kept"] != revision["kept"])
        await managed.until(lambda _: len(managed.cluster.stops) == 2)
        (one,) = await until_left(managed, 1)
        assert one["data"] == {"data": {"LOG": "debug"}}, "older data of the object is deleted"


async def test_bad_data_is_replaced_by_the_last_good_data_once(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        await prepare(managed)
        await managed.config(LOG="bad", MORE="x")
        status = await managed.until(lambda status: bool(status.get("bad")) and is_idle(status) and is_kept(status))
        assert await data(managed) == {"LOG": "info"}
        (bad,) = status["bad"]
        assert (bad["kind"], bad["name"], bad["keys"], bad["restored"]) == ("ConfigMap", "cfg", ["data.*"], True)
        assert status["run"]["message"].endswith(
            "its changes were taken back, and all containers have the data from before and are ready"
        )
        events = {(each["reason"], each["involvedObject"]["kind"]) for each in await managed.all_events()}
        assert {("ConfigRestored", "ConfigMap"), ("ConfigRestored", "ContainerRecreatePolicy")} <= events
        before = list(managed.cluster.stops)
        for _ in range(2):
            await managed.config(LOG="bad", MORE="x")
            status = await managed.until(lambda status: ready(status).get("reason") == "BadRevision")
            assert ready(status)["message"].startswith(
                f"ConfigMap cfg (data.*) has the data with which run {bad['run']} failed, so no container is restarted"
            )
            await managed.cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"data": {"LOG": "info"}})
            await managed.cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"data": {"MORE": None}})
            await managed.until(is_idle)
        assert managed.cluster.stops == before, "nothing is restarted"
        managed.cluster.fails.clear()
        await managed.config(LOG="bad", MORE="x")
        await managed.until(lambda status: ready(status).get("reason") == "BadRevision")
        await managed.config(LOG="better")
        await managed.until(lambda status: is_kept(status) and is_idle(status))
        assert len(managed.cluster.stops) == len(before) + 2


async def test_data_that_a_user_wants_in_spite_of_it_needs_halt(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        await prepare(managed)
        await managed.config(LOG="bad")
        await managed.until(lambda status: bool(status.get("bad")) and is_idle(status))
        await managed.config(LOG="bad")
        await managed.until(lambda status: ready(status).get("reason") == "BadRevision")
        managed.cluster.fails.clear()
        await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", {"spec": {"onFailure": "Halt"}})
        status = await managed.until(lambda status: is_idle(status) and "bad" not in status)
        assert "revisions" not in status or status["revisions"] == []
        await managed.until(lambda _: len({*managed.cluster.stops}) == 2)
        assert await until_left(managed, 0) == []


async def test_a_write_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    """Not even if it does not change the keys that containers use."""
    env = [{"name": "LOG", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "LOG"}}}]
    async with managing(tmp_path) as managed:
        (pod,) = await managed.cluster.workload("Deployment", "api", 1, "app", env=env)
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}
        await managed.policy(onFailure="Restore", targetRef=target)
        await managed.lead()
        await managed.until(is_kept)
        managed.cluster.fails[pod] = ("PreStopFailed", "it broke")
        managed.cluster.goes_on.clear()
        await managed.config(LOG="bad")
        await managed.until(lambda status: bool(status.get("run")))
        await managed.config(LOG="bad", OTHER="of another team")
        managed.cluster.goes_on.set()
        status = await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
        assert "bad" not in status or status["bad"] == []
        assert await data(managed) == {"LOG": "bad", "OTHER": "of another team"}


async def test_what_the_api_server_refuses_is_shown_and_tried_again(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        await prepare(managed)

        refuses = asyncio.Event()

        def is_refused(call: Call) -> bool:
            return refuses.is_set() and (call.verb, call.resource) == ("patch", "configmaps")

        managed.cluster.api.fail_next(1000, status=403, match=is_refused)
        await managed.config(LOG="bad")
        refuses.set()
        await managed.until(lambda status: "cannot be restored" in restorable(status).get("message", ""))
        refuses.clear()
        await managed.until(lambda status: bool(status.get("bad")) and is_idle(status))
        assert await data(managed) == {"LOG": "info"}


@pytest.mark.parametrize("rule", ["immutable", "hashed"])
async def test_what_is_another_object_for_new_data_is_said(tmp_path: Path, rule: str) -> None:
    async with managing(tmp_path) as managed:
        name = "cfg-7h2k9d4m5t" if rule == "hashed" else "fixed"
        body = {"metadata": {"name": name}, "data": {"A": "1"}, "immutable": rule == "immutable"}
        await managed.cluster.client.create(CONFIG_MAPS, NAMESPACE, body)
        await managed.cluster.workload("Deployment", "api", 1, "app", envFrom=[{"configMapRef": {"name": name}}])
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}
        await managed.policy(onFailure="Restore", targetRef=target)
        await managed.lead()
        status = await managed.until(lambda status: restorable(status).get("status") == "False")
        assert f"ConfigMap {name}: it" in restorable(status)["message"]
        assert "a rollout of the template brings it" in restorable(status)["message"]
        assert await kept(managed) == []


async def test_kept_data_whose_label_was_taken_off_is_named(tmp_path: Path) -> None:
    """A look does not find it by its label, and cannot create it once more."""
    async with managing(tmp_path) as managed:
        await managed.policy(onFailure="Restore")
        await managed.lead()
        await managed.until(is_kept)
        (one,) = await kept(managed)
        name = one["metadata"]["name"]
        taken_off = {"metadata": {"labels": {LABEL_KEPT: None}}}
        await managed.cluster.client.merge_patch(CONTROLLER_REVISIONS, NAMESPACE, name, taken_off)
        await managed.cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"metadata": {"labels": {"a": "b"}}})
        status = await managed.until(lambda status: "cannot be kept" in restorable(status).get("message", ""))
        assert restorable(status)["message"] == (
            f"ConfigMap cfg: its data cannot be kept: ControllerRevision {name} exists, but its label {LABEL_KEPT} was "
            "changed: delete it"
        )
        await managed.cluster.client.delete(CONTROLLER_REVISIONS, NAMESPACE, name)
        await managed.until(is_kept)


async def test_kept_data_that_cannot_be_deleted_is_tried_again_rarely(tmp_path: Path) -> None:
    async with managing(tmp_path) as managed:
        tried, denies = list[Call](), asyncio.Event()
        denies.set()

        def is_delete(call: Call) -> bool:
            found = (call.verb, call.resource) == ("delete", "controllerrevisions")
            tried.extend([call] * found)
            return found and denies.is_set()

        managed.cluster.api.fail_next(1000, status=403, match=is_delete)
        await managed.policy(onFailure="Restore")
        await managed.lead()
        await managed.until(is_kept)
        await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", {"spec": {"onFailure": "Halt"}})
        await asyncio.sleep(5)
        assert 1 <= len(tried) <= 4
        denies.clear()
        await managed.cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"metadata": {"labels": {"a": "b"}}})
        assert await until_left(managed, 0) == []
