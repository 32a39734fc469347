"""A run whose last pods are on a node that stopped, and its resumption, in virtual time."""

import asyncio
from typing import Any, cast

import pytest

from crrd.cli.recreate import requested
from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.rollout.phases import End
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Amount
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES
from crrd.rollout.carry_out import conclude
from crrd.rollout.session import Session
from crrd.rollout.text import TextLines
from tests.support.run_cluster import NAMESPACE, RunCluster
from tests.support.sessions import parsed

pytestmark = pytest.mark.virtual_time
LOST = ["web-0001", "web-0003", "web-0005"]  # On node-1


async def typed(api: RunCluster, *words: str) -> int:
    """Carry out a command line, and return its exit code."""

    async def unexplained(*_: Any) -> str:
        return ""

    args = parsed(*words)
    code: int = await args.work(
        Session(cast("KubeClient", api), api.clock, NAMESPACE, TextLines(), requested(args), unexplained)
    )
    return code


def turn(api: RunCluster, *, up: bool) -> None:
    """The kubelet of node-1 stops with all pods of its node, or is back."""
    api.down = set() if up else {"node-1"}
    condition = {"type": "Ready", "status": str(up)}
    api.put(NODES, {"metadata": {"name": "node-1"}, "status": {"conditions": [condition]}})
    api.daemon("node-1", ready=up)
    for pod in LOST:
        api.pod(pod, "node-1", instance=api.restarts[pod], ready=up)


@pytest.mark.parametrize("reason", [None, Reason.NO_ANSWER, Reason.DEADLINE])
async def test_the_rest_is_restarted_once_by_resume(reason: Reason | None, capsys: pytest.CaptureFixture[str]) -> None:
    """The node stops before the run, or while requests for its pods are open, which the manager then ends."""
    api = RunCluster(6, nodes=2)
    api.down = {"node-1"}
    if reason is None:
        turn(api, up=False)
    running = asyncio.create_task(api.carry_out(api.run_of(max_unavailable=Amount(4))))
    await asyncio.sleep(20)
    if reason is not None:
        assert {*LOST} < {*api.created}
        turn(api, up=False)
        for pod in LOST:
            state = {"name": "app", "phase": "Failed", "reason": reason.value, "message": "the node is down"}
            done = {"completionTime": rfc3339(api.clock.now()), "containerRecreateStates": [state]}
            api.report(api.requests()[pod]["metadata"]["name"], phase="Completed", reason=reason.value, **done)
    plan = await running
    assert plan.end is End.PUT_OFF
    there = {f"web-{number:04}" for number in (0, 2, 4)}
    assert {*api.restarts} == there
    assert await typed(api, "resume", "nightly") == End.PUT_OFF.exit_code, "the node is still down"
    turn(api, up=True)
    await asyncio.sleep(2)
    assert await typed(api, "resume", "nightly") == 0
    assert api.restarts == dict.fromkeys([f"web-{number:04}" for number in range(6)], 1)
    assert "done: 6 of 6 pods recreated" in capsys.readouterr().out


def test_of_a_workload_that_is_gone_the_run_cannot_be_resumed() -> None:
    plan = Plan((), end=End.LEFT_OUT, message="deployment.apps/web was deleted")
    expected = "0 of 0 pods recreated; deployment.apps/web was deleted; to restart the rest, start a new run"
    assert conclude(plan, "resume") == expected
