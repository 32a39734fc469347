"""Policies whose containers read files: kubelet refreshes them before a restart, or a condition says why not."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_REFRESH
from crrd.kube.resources import BUDGETS
from crrd_localnode.api.admission import AdmissionRequest
from crrd_localnode.api.errors import forbidden
from tests.manager.test_policies import Managed, is_done, is_idle, managing, ready
from tests.support.faulty_api import Call
from tests.support.played_cluster import NAMESPACE

VOLUMES = [{"name": "cfg", "configMap": {"name": "cfg"}}]
MOUNTS = [{"name": "cfg", "mountPath": "/etc/part", "subPath": "LOG"}]
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "reader"}
OLD = "restarted containers can read a file that is up to a minute old, because pods cannot be patched: patch /api/v1/"
GRANT = (
    "; to allow it, bind the present ClusterRole crrd-read-config: kubectl create rolebinding crrd-read-config "
    "-n default --clusterrole=crrd-read-config --serviceaccount=crrd-system:crrd-manager"
)


def is_touch(call: Call) -> bool:
    return (call.verb, call.resource, call.subresource) == ("patch", "pods", "")


def files_refreshed(status: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == "FilesRefreshed"), {})


class Reading:
    """A policy for a Deployment that mounts the ConfigMap, and the writes to pods and requests with their times."""

    def __init__(self, managed: Managed) -> None:
        self.managed, self.cluster = managed, managed.cluster
        self.calls: list[tuple[float, Call]] = []

    @property
    def writes(self) -> list[tuple[float, str, str]]:
        """Time, verb and kind of the writes of runs that succeeded."""
        create = ("create", "containerrecreaterequests")
        found = [each for each in self.calls if is_touch(each[1]) or (each[1].verb, each[1].resource) == create]
        return [(at, call.verb, call.resource) for at, call in found if call.status < 300]

    async def tokens(self) -> set[str]:
        """The tokens on the pods of the Deployment."""
        pods = [pod for pod in await self.cluster.pods() if pod["metadata"]["labels"]["app"] == "reader"]
        return {pod["metadata"].get("annotations", {}).get(ANNOTATION_REFRESH, "") for pod in pods}

    async def edit(self, value: str) -> dict[str, Any]:
        """Edit the ConfigMap. Return the policy's status after the run."""
        before = (await self.managed.until(is_idle)).get("run", {}).get("name")
        await self.managed.config(LOG=value)
        return await self.managed.until(lambda status: is_done(status) and status["run"]["name"] != before)


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    calls: list[tuple[float, Call]] = []
    async with managing(tmp_path, log=lambda call: calls.append((time.monotonic(), call))) as managed:
        await managed.cluster.workload("Deployment", "reader", 2, "app", volumes=VOLUMES, volumeMounts=MOUNTS)
        await managed.policy(targetRef=TARGET)
        await managed.lead()
        await managed.until(is_idle)
        found = Reading(managed)
        found.calls = calls
        yield found


async def test_each_pod_is_refreshed_before_its_restart(reading: Reading) -> None:
    status = await reading.edit("debug")
    times, writes = zip(*((at, (verb, kind)) for at, verb, kind in reading.writes), strict=True)
    assert writes == (("patch", "pods"), ("create", "containerrecreaterequests")) * 2
    assert min(times[1] - times[0], times[3] - times[2]) >= 1.9
    assert files_refreshed(status) == {}
    (first,) = await reading.tokens()
    await reading.edit("trace")
    (second,) = await reading.tokens()
    assert len({first, second, ""}) == 3, "each change has its own token"


async def test_a_manager_that_dies_after_the_refresh_is_followed_by_one_that_waits_again(reading: Reading) -> None:
    await reading.managed.config(LOG="debug")
    while not reading.writes:
        await reading.managed.until(lambda _: True)
    await reading.managed.die()
    again = time.monotonic()
    await reading.managed.lead()
    await reading.managed.until(is_done)
    assert [verb for _, verb, _ in reading.writes] == ["patch", "create"] * 2, "no pod is patched twice"
    assert reading.writes[1][0] >= again + 2
    assert len(reading.cluster.stops) == 2


async def test_a_binding_of_an_old_role_costs_no_restart_and_a_condition_says_what_is_missing(reading: Reading) -> None:
    reading.cluster.api.fail_next(2, status=403, match=is_touch)
    status = await reading.edit("debug")
    status = await reading.managed.until(lambda found: bool(files_refreshed(found)))
    condition = files_refreshed(status)
    assert (condition["status"], condition["reason"]) == ("False", "PodPatchRefused")
    assert condition["message"].startswith(OLD)
    assert condition["message"].endswith(GRANT)
    assert ready(status)["status"] == "True"
    assert len(reading.cluster.stops) == 2
    await reading.managed.die()
    await reading.managed.lead()
    assert files_refreshed(await reading.managed.until(is_idle)) == condition, "it stays until a run knows more"
    await reading.edit("trace")
    await reading.managed.until(lambda found: not files_refreshed(found))


async def test_a_patch_that_a_webhook_denies_costs_no_restart(reading: Reading) -> None:
    async def deny(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "pods" and not asked.subresource:
            raise forbidden("", "pods", asked.name, "hands off")

    reading.cluster.api.admission.mutating.append(deny)
    await reading.edit("debug")
    condition = files_refreshed(await reading.managed.until(lambda found: bool(files_refreshed(found))))
    assert "hands off" in condition["message"]
    assert "create rolebinding" not in condition["message"]
    assert len(reading.cluster.stops) == 2


async def test_a_pod_that_waits_for_a_budget_is_not_touched(reading: Reading) -> None:
    await reading.cluster.budget("guard", {"app": "reader"}, 0)
    await reading.managed.config(LOG="debug")
    await reading.managed.until(lambda status: "PodDisruptionBudget guard" in ready(status).get("message", ""))
    assert reading.writes == []
    await reading.cluster.client.delete(BUDGETS, NAMESPACE, "guard")
    await reading.managed.until(is_done)
    assert len(reading.cluster.stops) == 2
