"""What a wait tells its user to do: `crrd recreate` names flags, and a policy names its fields."""

from dataclasses import replace

import pytest

from crrd.cli.recreate import flags_of
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Remedies, Skip, WaitReason
from crrd.manager.policies.run_task import POLICY_REMEDIES
from crrd.rollout.remedies import FLAGS
from tests.support.rollouts import NOW, container, member, members, planned, run, why, workload

ONE, TWO, THREE = members(3)
IN_ORDER = workload(3, in_order=True)
RULED = container(
    restart_rules=({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}},)
)
GROUPED = replace(ONE, pod=replace(ONE.pod, group="LeaderWorkerSet"))
WORLDS: dict[WaitReason | Skip, tuple[World, Run]] = {
    WaitReason.ROLLOUT: (World((ONE,), workload=workload(3, rolling="1 of 3 pods are updated")), run()),
    WaitReason.UNREADY_IN_ORDER: (World((replace(ONE, ready=False), TWO, THREE), workload=IN_ORDER), run()),
    WaitReason.NODE_LIMIT: (World((ONE, TWO)), run(max_unavailable=Amount(2), max_per_node=1)),
    WaitReason.ZONE_LIMIT: (World((ONE, TWO), zones={"node-a": "a"}), run(max_unavailable=Amount(2), max_per_zone=1)),
    Skip.RESTARTS_POD: (World((member("web-0", RULED),)), run()),
    Skip.RESTARTS_GROUP: (World((GROUPED,)), run()),
}
"""For each wait that a user can change, a run in which a pod has it."""


def waiting(reason: WaitReason | Skip) -> Plan:
    return planned(*WORLDS[reason])


@pytest.mark.parametrize("reason", WORLDS)
def test_the_planner_names_neither_flags_nor_fields(reason: WaitReason | Skip) -> None:
    plan = waiting(reason)
    assert reason in {row.wait.reason for row in plan.rows}
    assert not [each for each in why(plan).values() if "--" in each or "spec." in each]


@pytest.mark.parametrize(
    ("remedies", "reason", "end"),
    [
        (FLAGS, WaitReason.ROLLOUT, "1 of 3 pods are updated; to continue anyway: --force"),
        (FLAGS, WaitReason.UNREADY_IN_ORDER, "; restart pod/web-0 first, or use --max-unavailable 2"),
        (FLAGS, WaitReason.NODE_LIMIT, " pods in progress or unready; to change the limit: --max-per-node"),
        (FLAGS, WaitReason.ZONE_LIMIT, " pods in progress or unready; to change the limit: --max-per-zone"),
        (FLAGS, Skip.RESTARTS_POD, "; to allow this, use --allow-pod-restart"),
        (FLAGS, Skip.RESTARTS_GROUP, "may replace all pods of the group; to allow this, use --allow-pod-restart"),
        (POLICY_REMEDIES, WaitReason.ROLLOUT, "1 of 3 pods are updated"),
        (
            POLICY_REMEDIES,
            WaitReason.UNREADY_IN_ORDER,
            "; restart pod web-0 first, or set spec.budget.maxUnavailable to 2",
        ),
        (POLICY_REMEDIES, WaitReason.NODE_LIMIT, "; to change the limit: spec.budget.maxPerNode"),
        (POLICY_REMEDIES, Skip.RESTARTS_GROUP, "kubectl recreate pod/web-0 -n default -c app --allow-pod-restart"),
        (POLICY_REMEDIES, Skip.RESTARTS_POD, "kubectl recreate pod/web-0 -n default -c app --allow-pod-restart"),
    ],
)
def test_each_front_end_names_its_own(remedies: Remedies, reason: WaitReason | Skip, end: str) -> None:
    plan = waiting(reason).worded(remedies)
    assert [each for each in why(plan).values() if each.endswith(end)]


def test_pods_behind_another_one_in_order_have_its_remedy() -> None:
    plan = waiting(WaitReason.UNREADY_IN_ORDER).worded(FLAGS)
    assert why(plan)["web-1"] == f"pods are restarted in order, and web-2 waits: {why(plan)['web-2']}"
    assert plan.wait.why == why(plan)["web-2"]


def test_a_preview_names_them_too() -> None:
    world, of = WORLDS[WaitReason.UNREADY_IN_ORDER]
    preview = make_preview(world, of, NOW).worded(FLAGS)
    assert preview.stopped.why.endswith("or use --max-unavailable 2")
    assert why(preview.plan)["web-2"] == preview.stopped.why


@pytest.mark.parametrize("text", FLAGS.values())
def test_the_flags_exist(text: str) -> None:
    (flag,) = [word for word in text.split() if word.startswith("--")]
    assert flag in flags_of("")
