"""Policies with steps and a judgement through the local API server: a bad change reaches the pods of one step."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api.time import parse_time
from crrd.core.policy.types import ANNOTATION_CONTINUE
from crrd.kube.resources import POLICIES
from tests.manager.test_policies import Managed, is_done, is_idle, managing, ready
from tests.support.played_cluster import NAMESPACE
from tests.support.scripted_api import reply, scripted_api

STEPS = {"steps": [1], "maxUnavailable": 2}


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Managed]:
    async with managing(tmp_path) as found:
        yield found


def judged(status: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == "Judged"), {})


async def changed(managed: Managed, **spec: Any) -> None:
    """A policy exists, its manager leads, and the data has changed."""
    await managed.policy(**spec)
    await managed.lead()
    await managed.until(is_idle)
    await managed.config(LOG="debug")


async def test_a_good_change_passes_the_judgement(managed: Managed) -> None:
    await changed(managed, budget=STEPS, judge={"for": "1s"})
    status = await managed.until(is_done)
    first, second = sorted(await managed.cluster.requests(), key=lambda each: each["metadata"]["creationTimestamp"])
    done = parse_time(first["status"]["completionTime"])
    assert done is not None
    created = parse_time(second["metadata"]["creationTimestamp"])
    assert created is not None
    assert created >= done + timedelta(seconds=1)
    assert len(managed.cluster.stops) == 2
    assert (judged(status)["status"], judged(status)["reason"]) == ("True", "JudgementYes")
    assert status["run"]["steps"] == "1"


async def test_a_pod_that_crashes_halts_the_run_for_good(managed: Managed) -> None:
    await changed(managed, budget=STEPS, judge={"for": "60s"})
    await managed.cluster.stopped(1)
    first, _ = managed.cluster.stops[0]
    await managed.cluster.crash(first)
    status = await managed.until(lambda status: judged(status).get("status") == "False")
    message = f"the judgement of step 1 of 2 is no: {first} has restarted once more; 1 left"
    assert message in judged(status)["message"]
    assert (ready(status)["reason"], status["run"]["halted"]) == ("RunFailed", True)
    assert managed.ended == [("configChange", "halted")]
    assert "ContainersRecreateHalted" in await managed.events()
    await managed.die()
    await managed.lead()
    await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
    assert managed.cluster.stops == [(first, "app")]
    await managed.config(LOG="info")
    await managed.until(is_done)
    assert managed.cluster.stops == [(first, "app")] * 2, "only this pod has the data that were taken back"


async def test_an_edit_of_the_policy_in_the_judgement_does_not_void_its_no(managed: Managed) -> None:
    await changed(managed, budget=STEPS, judge={"for": "60s"})
    await managed.cluster.stopped(1)
    first, _ = managed.cluster.stops[0]
    await managed.until(lambda status: "Judging" in ready(status).get("message", ""))
    body = {"spec": {"budget": {**STEPS, "minReady": "1s"}}}
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", body)
    await managed.until(
        lambda status: status.get("observedGeneration") == 2 and "Judging" in ready(status).get("message", "")
    )
    await managed.cluster.crash(first)
    status = await managed.until(lambda status: judged(status).get("status") == "False")
    assert ready(status)["reason"] == "RunFailed"
    await managed.die()
    await managed.lead()
    await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
    assert managed.cluster.stops == [(first, "app")]


async def test_what_the_owner_allows_early_does_not_overrule_a_judgement(managed: Managed) -> None:
    await changed(managed, budget={**STEPS, "confirmSteps": True}, judge={"for": "60s"})
    await managed.cluster.stopped(1)
    status = await managed.until(lambda status: "Judging" in ready(status).get("message", ""))
    body = {"metadata": {"annotations": {ANNOTATION_CONTINUE: f"{status['run']['name']}/1"}}}
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", body)
    await managed.die()
    await managed.cluster.crash(managed.cluster.stops[0][0])
    await managed.lead()  # it knows what the owner allows
    await managed.until(lambda status: judged(status).get("status") == "False")
    assert len(managed.cluster.stops) == 1


async def test_the_owner_allows_the_next_step(managed: Managed) -> None:
    await changed(managed, budget={**STEPS, "confirmSteps": True})
    status = await managed.until(lambda status: "to continue: " in ready(status).get("message", ""))
    assert len(managed.cluster.stops) == 1
    allowed = f"{status['run']['name']}/1"
    assert (
        f"kubectl annotate crp web -n {NAMESPACE} --overwrite {ANNOTATION_CONTINUE}={allowed}"
        in ready(status)["message"]
    )
    body = {"metadata": {"annotations": {ANNOTATION_CONTINUE: allowed}}}
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", body)
    await managed.until(is_done)
    assert len(managed.cluster.stops) == 2


@pytest.mark.parametrize(
    ("allow", "words"), [((), "the manager may not ask http"), (("PROMETHEUS",), "0.9 is above 0.5")]
)
async def test_the_manager_asks_only_what_its_own_configuration_allows(
    tmp_path: Path, allow: tuple[str, ...], words: str
) -> None:
    async with managing(tmp_path) as managed, scripted_api() as prometheus:
        prometheus.then(reply({"status": "success", "data": {"resultType": "scalar", "result": [1, "0.9"]}}))
        metric = {"prometheus": {"address": prometheus.url, "query": 'errors{pod=~"{{pods}}"}', "max": 0.5}}
        await managed.policy(budget=STEPS, judge={"for": "60s", "failureLimit": 0, "metrics": [metric]})
        await managed.lead(judge_addresses=tuple(prometheus.url for _ in allow))
        await managed.until(is_idle)
        await managed.config(LOG="debug")
        status = await managed.until(lambda status: judged(status).get("status") == "False")
        assert words in judged(status)["message"]
        assert len(prometheus.bodies) == len(allow)
        assert len(managed.cluster.stops) == 1
