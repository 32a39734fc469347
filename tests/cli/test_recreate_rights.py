"""What `kubectl recreate` asks of the API is what the ClusterRole crrd-recreate grants: nothing less, nothing more."""

from pathlib import Path

import pytest
import yaml

from crrd.kube.resources import PODS, REQUESTS
from crrd.rollout.refusals import IN_ROLE
from crrd_localnode.api.admission import AdmissionRequest, User
from crrd_localnode.api.errors import Cause, invalid
from tests.support.faulty_api import Call
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played

ROLE = Path(__file__).parents[2] / "manifests" / "base" / "recreate.yaml"
LIKE_DEPLOYMENTS = {"statefulsets", "daemonsets", "jobs", "clonesets"}
"""Workloads of which a run asks the same as of a Deployment."""


def granted() -> set[tuple[str, str]]:
    """(verb, resource) of every rule."""
    role = yaml.safe_load(ROLE.read_text(encoding="utf-8"))
    return {(verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]}


def test_all_workloads_have_the_same_rights() -> None:
    for kind in LIKE_DEPLOYMENTS | {"replicasets"}:
        verbs = {verb for verb, resource in granted() if resource == kind}
        assert verbs == {verb for verb, resource in granted() if resource == "deployments"}


def test_what_is_said_of_the_role_is_what_it_has() -> None:
    role = yaml.safe_load(ROLE.read_text(encoding="utf-8"))
    resources = {(group, each) for rule in role["rules"] for group in rule["apiGroups"] for each in rule["resources"]}
    assert {f"{each}.{group}".rstrip(".") for group, each in resources} == IN_ROLE


@pytest.mark.timeout(300)
async def test_every_call_is_allowed_and_every_rule_is_used(tmp_path: Path) -> None:
    calls: list[Call] = []
    async with played(tmp_path, tokens={"r": User("recreate")}, log=calls.append) as cluster:
        cluster.api.kubeconfig(cluster.kubeconfig, token="r")
        await story(cluster)
    mine = [call for call in calls if call.user == "recreate" and call.resource]
    used = {(call.verb, f"{call.resource}/{call.subresource}" if call.subresource else call.resource) for call in mine}
    allowed = {each for each in granted() if each[1] not in LIKE_DEPLOYMENTS}
    used.discard(("create", "selfsubjectaccessreviews"))  # which system:basic-user grants to every user
    assert used - allowed == set(), "calls that no rule allows"
    assert allowed - used == {("list", "replicasets"), ("watch", "replicasets")}, "rules that nothing needs"


async def story(cluster: PlayedCluster) -> None:
    """A failure that is explained, an answer that is lost, a pod that admission refuses, and an abort."""
    pods = await cluster.workload("Deployment", "web", 2, "app")
    cluster.api.fail_next(
        status=None, after=True, match=lambda call: (call.verb, call.resource) == ("create", REQUESTS.plural)
    )
    cluster.fails[pods[1]] = ("StillRuns", "it still runs")
    assert (await cluster.recreate("deployment/web", "-c", "app", "--max-per-zone", "1", "--run", "one")).code == 1
    assert (await cluster.recreate("abort", "one")).code == 0

    async def refuse(asked: AdmissionRequest) -> None:
        if asked.kind.plural == REQUESTS.plural and asked.old is None:
            raise invalid(asked.kind.group, asked.kind.kind, asked.name, [Cause("spec", "no")])

    cluster.api.admission.validating.append(refuse)
    assert (await cluster.recreate(f"pod/{pods[0]}", "-c", "app")).code == 1
    cluster.api.admission.validating.remove(refuse)
    cluster.goes_on.clear()
    await cluster.client.delete(PODS, NAMESPACE, pods[1], grace_seconds=0)
    cluster.api.admission.mutating.clear()
    assert (await cluster.recreate(f"pod/{pods[0]}", "-c", "app")).code == 2, "without admission it is taken back"
