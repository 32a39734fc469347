"""Data with which a run of one policy has failed does not reach the pods of another one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crrd.core.policy import decide
from crrd.kube.resources import PODS, Resource
from tests.manager.test_policies import ENV_FROM, Managed, is_done, is_idle, managing, ready
from tests.support.faulty_api import Call
from tests.support.played_cluster import NAMESPACE

DEPLOYMENTS = Resource("deployments", "apps")
ROUNDS = 3.0
"""Seconds for some looks, at which a run would begin."""


@pytest.fixture
async def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Managed]:
    monkeypatch.setattr(decide, "FAILED_RETRY", decide.FAILED_RETRY / 15)
    async with managing(tmp_path) as found:
        yield found


async def two(managed: Managed, **spec: Any) -> list[str]:
    """Two policies for two Deployments that use one ConfigMap. The run of web fails at its first pod. Return its pods.

    The other one settles a little later, so that web begins.
    """
    await managed.cluster.workload("Deployment", "api", 2, envFrom=ENV_FROM)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}
    web = [pod["metadata"]["name"] for pod in await managed.cluster.pods() if pod["metadata"]["labels"]["app"] == "web"]
    await managed.policy(**spec)
    await managed.policy("api", targetRef=target, triggers={"configChange": {"settle": "2s"}})
    await managed.lead()
    await managed.until(is_idle)
    await managed.until(is_idle, "api")
    managed.cluster.fails[web[0]] = ("PreStopFailed", "it broke")
    return web


async def none_of_the_other(managed: Managed, web: list[str]) -> None:
    await asyncio.sleep(ROUNDS)
    assert [pod for pod, _ in managed.cluster.stops if pod not in web] == []


async def test_a_moment_without_any_pod_is_no_repair(managed: Managed) -> None:
    web = await two(managed)
    await managed.config(LOG="bad")
    await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
    await managed.until(lambda status: ready(status).get("reason") == "WaitingForPolicy", "api")
    for pod in web:  # scaled to 0
        await managed.cluster.client.delete(PODS, NAMESPACE, pod)
    await none_of_the_other(managed, web)


@pytest.mark.parametrize(("gone", "reason"), [(False, "RunFailed"), (True, "TargetNotFound")])
async def test_data_that_is_corrected_reaches_the_other_although_no_pod_of_the_first_is_left(
    managed: Managed, gone: bool, reason: str
) -> None:
    """Also if another manager leads meanwhile."""
    web = await two(managed)
    await managed.config(LOG="bad")
    await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
    await managed.until(lambda status: ready(status).get("reason") == "WaitingForPolicy", "api")
    await managed.die()
    if gone:
        await managed.cluster.client.delete(DEPLOYMENTS, NAMESPACE, "web")
    for pod in web:
        await managed.cluster.client.delete(PODS, NAMESPACE, pod)
    await managed.lead()
    await none_of_the_other(managed, web)
    await managed.config(LOG="good")
    await managed.until(is_done, "api")
    assert len({pod for pod, _ in managed.cluster.stops if pod not in web}) == 2
    assert ready(await managed.until(lambda _: True))["reason"] == reason


async def test_without_the_right_to_read_a_policy_without_a_target_still_says_so(managed: Managed) -> None:
    web = await two(managed)
    await managed.config(LOG="bad")
    await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
    await managed.die()
    await managed.cluster.client.delete(DEPLOYMENTS, NAMESPACE, "web")
    managed.cluster.api.fail_next(10000, status=403, match=lambda call: call.resource == "configmaps")
    await managed.lead()
    await managed.until(lambda status: ready(status).get("reason") == "TargetNotFound")
    await none_of_the_other(managed, web)


async def test_a_first_step_that_has_failed_is_not_done(managed: Managed) -> None:
    """The API server is busy when the failure is to be recorded."""
    web = await two(managed, budget={"steps": [1]})
    writing = asyncio.Event()

    def busy(call: Call) -> bool:
        return call.resource == "containerrecreatepolicies" and call.name == "web" and call.writes and writing.is_set()

    managed.cluster.api.fail_next(10000, status=503, match=busy)
    managed.cluster.goes_on.clear()
    await managed.config(LOG="bad")
    await managed.until(lambda status: ready(status).get("reason") == "Running")
    await managed.until(lambda status: ready(status).get("reason") == "WaitingForPolicy", "api")
    writing.set()
    managed.cluster.goes_on.set()
    await none_of_the_other(managed, web)
