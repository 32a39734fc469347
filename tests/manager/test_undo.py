"""Policies with `onFailure: Undo` through the local API server: a bad image leaves the pods that have it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crrd.core.rollout.phases import RunPhase
from crrd.core.rollout.progress import ANNOTATION_PROGRESS
from crrd_localnode.api.admission import User
from tests.manager.test_policies import is_idle, ready
from tests.manager.test_policy_steps import judged
from tests.manager.test_template_images import shopping
from tests.support.manifests import needs_kubectl

FOLLOW: dict[str, Any] = {
    "triggers": {"templateImage": {}},
    "budget": {"maxUnavailable": 1, "minReady": "0s", "steps": [1]},
    "judge": {"for": "60s"},
    "onFailure": "Undo",
}
"""One pod gets the image, and then it is judged for a minute."""


def is_judged(request: dict[str, Any]) -> bool:
    """Whether the run has recorded that it judges its first step."""
    return RunPhase.JUDGING.value in request["metadata"]["annotations"].get(ANNOTATION_PROGRESS, "")


@needs_kubectl
@pytest.mark.parametrize("leader_dies", [False, True])
async def test_an_image_that_the_judgement_refuses_is_taken_back_and_not_given_again(
    tmp_path: Path, *, leader_dies: bool
) -> None:
    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}) as shop:
        managed, before = shop.managed, await shop.pods()
        await managed.policy(**FOLLOW)
        await managed.lead()
        await managed.until(is_idle)
        await shop.set("i:2")
        async with asyncio.timeout(20):
            while not any(map(is_judged, await managed.cluster.requests())):
                await asyncio.sleep(0.02)
        (first,) = (each["spec"]["podName"] for each in await managed.cluster.requests())
        await managed.cluster.set_ready(first, ready=False)
        await managed.until(lambda status: "undoes" in status.get("run", {}))
        if leader_dies:
            await managed.die()
            await managed.lead()
        async with asyncio.timeout(20):
            while any(each["spec"]["containers"][0]["image"] == "i:2" for each in await managed.cluster.pods()):
                await asyncio.sleep(0.02)
        await managed.cluster.set_ready(first, ready=True)
        status = await managed.until(lambda status: ready(status).get("reason") == "RunFailed")
        assert await shop.pods() == before
        assert await shop.replica_set() == "i:1"
        run, (failed, back) = status["run"], status["tried"]
        assert (run["image"], run["before"], run["undoes"], run["failed"]) == ("i:1", ["i:2"], failed["name"], False)
        assert back["name"] == run["name"]
        assert f"run {run['name']}, which gives i:1 back, has ended: 1 of 1 pods recreated" in ready(status)["message"]
        assert "is no:" in judged(status)["message"]
        first_end, *others = managed.ended
        assert first_end == ("templateImage", "halted")
        assert {*others} == {("templateImage", "succeeded")}, "a leader may die before it has recorded the end"
        await shop.released()
        await shop.set("i:1")
        await managed.until(is_idle)
        assert await shop.pods() == before
