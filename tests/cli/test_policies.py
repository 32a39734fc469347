"""`crrd policies from-reloader` as its user meets it, on the local API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.cli.policies import next_steps
from crrd.core.api.types import POLICY_GROUP, POLICY_PLURAL
from crrd.core.policy.reloader import Marks, convert
from crrd_localnode.api.admission import User
from tests.support.command import Ended, crrd
from tests.support.faulty_api import Call
from tests.support.local_api import Api, running

HOST = "reloader.stakater.com"
GRANTS = [
    (f"  kubectl create rolebinding {role} -n shop --clusterrole={role} --serviceaccount=crrd-system:crrd-manager")
    for role in ("crrd-read-config", "crrd-read-secrets")
]


def workload(name: str, annotations: dict[str, str], *, namespace: str = "shop") -> dict[str, Any]:
    sources = [{"configMapRef": {"name": "web"}}, {"secretRef": {"name": "token"}}]
    labels = {"app": name}
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "app", "image": "busybox", "envFrom": sources}]},
            },
        },
    }


@asynccontextmanager
async def shop(log: Any = None) -> AsyncIterator[Api]:
    """Three Deployments and a Job with annotations, one Deployment in another namespace, one without annotations."""
    async with running(**({"log": log} if log else {}), tokens={"t": User("somebody")}) as api:
        for namespace in ("shop", "other"):
            await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        marked = {"name": "web", "annotations": {f"{HOST}/match": "true"}}
        await api.post("/api/v1/namespaces/shop/configmaps", {"metadata": marked, "data": {"KEY": "private"}})
        secret = {"metadata": {"name": "token"}, "stringData": {"KEY": "hidden"}}
        await api.post("/api/v1/namespaces/shop/secrets", secret)
        for each in (
            workload("auto", {f"{HOST}/auto": "true", f"deployment.{HOST}/pause-period": "5m"}),
            workload("found", {f"{HOST}/search": "true"}),
            workload("lost", {f"configmap.{HOST}/reload": "elsewhere"}),
            workload("plain", {}),
            workload("else", {f"configmap.{HOST}/auto": "true"}, namespace="other"),
        ):
            path = f"/apis/apps/v1/namespaces/{each['metadata']['namespace']}/deployments"
            assert (await api.post(path, each)).status == 201
        job = workload("once", {f"{HOST}/auto": "true"})
        assert (await api.post("/apis/batch/v1/namespaces/shop/jobs", job)).status == 201
        yield api


async def printed(api: Api, folder: Path, *words: str, token: str = "t") -> Ended:
    return await crrd(
        "policies", "from-reloader", *words, KUBECONFIG=str(api.server.kubeconfig(folder / "kubeconfig", token=token))
    )


async def test_policies_for_a_namespace(tmp_path: Path) -> None:
    async with shop() as api:
        ended = await printed(api, tmp_path, "-n", "shop")
        auto, found = yaml.safe_load_all(ended.out)
        for each in (auto, found):
            assert (
                await api.post(f"/apis/{POLICY_GROUP}/v1alpha1/namespaces/shop/{POLICY_PLURAL}", each)
            ).status == 201
    assert ended.code == 0
    assert ended.out.startswith(
        "---\n# Deployment auto in namespace shop\n"
        "# - settle counts from the last change, and pause-period counts from the first one\n"
        "apiVersion: crrd.dev/v1alpha1\nkind: ContainerRecreatePolicy\n"
    )
    assert auto["spec"]["triggers"]["configChange"] == {"secrets": True, "settle": "5m"}
    assert found["spec"]["triggers"]["configChange"] == {}
    *lost, of_job, why_job, count, config, secrets = ended.err.splitlines()
    assert lost == [
        "no policy for Deployment lost in namespace shop:",
        "  - its containers use no ConfigMap or Secret whose changes would reload it",
        "  - no container uses ConfigMap elsewhere, so a policy does not see its changes",
    ]
    assert of_job == "no policy for Job once in namespace shop:"
    assert why_job.startswith("  - Reloader creates it again")
    assert count == "2 policies. These commands let the manager read the configuration:"
    assert [config, secrets] == GRANTS


async def test_all_namespaces_and_all_workloads(tmp_path: Path) -> None:
    async with shop() as api:
        every = await printed(api, tmp_path, "-A")
        more = await printed(api, tmp_path, "-A", "--auto-reload-all")
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(every.out)]
    assert names == ["else", "auto", "found"]
    assert "-n other --clusterrole=crrd-read-config" in every.err
    assert "-n other --clusterrole=crrd-read-secrets" not in every.err
    assert "plain" in [each["metadata"]["name"] for each in yaml.safe_load_all(more.out)]


def test_a_role_for_argo_rollouts() -> None:
    """No ClusterRole of crrd includes their kind."""
    rollout = {**workload("web", {f"{HOST}/auto": "true"}), "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    account = "--serviceaccount=crrd-system:crrd-manager"
    count, *commands = next_steps(convert([rollout], Marks()))
    assert count.startswith("1 policy. ")
    assert commands == [
        *GRANTS,
        "  kubectl create role crrd-read-rollouts -n shop --verb=get,list,watch --resource=rollouts.argoproj.io",
        f"  kubectl create rolebinding crrd-read-rollouts -n shop --role=crrd-read-rollouts {account}",
    ]


async def test_the_namespace_of_the_context_and_flags_in_suggested_commands(tmp_path: Path) -> None:
    async with shop() as api:
        nothing = await printed(api, tmp_path)
        told = await printed(api, tmp_path, "-n", "other", "--token", "t")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "no workload has annotations of Reloader that a policy can replace\n"
    assert told.err.startswith("1 policy. These")
    assert "  kubectl --token=TOKEN create" in told.err or "  kubectl --token TOKEN create" in told.err


async def test_it_reads_no_data_and_writes_nothing(tmp_path: Path) -> None:
    calls: list[Call] = []
    async with shop(calls.append) as api:
        calls.clear()
        ended = await printed(api, tmp_path, "-A")
    assert not [each for each in calls if each.verb not in ("list", "get")]
    assert {each.verb for each in calls if each.resource in ("configmaps", "secrets")} == {"list"}
    assert "private" not in ended.out + ended.err


async def test_what_may_not_be_read(tmp_path: Path) -> None:
    async with shop() as api:
        api.server.fail_next(count=9, status=403, match=lambda call: call.resource in ("secrets", "daemonsets"))
        partly = await printed(api, tmp_path, "-n", "shop")
        api.server.front.faults.clear()
        refused = await printed(api, tmp_path, "-n", "shop", token="wrong")
    lines = [each for each in partly.err.splitlines() if each.startswith("cannot list")]
    assert len(lines) == 1
    assert lines[0].startswith("cannot list daemonsets.apps, secrets, so their annotations do not count here: ")
    assert partly.code == 1
    assert len([*yaml.safe_load_all(partly.out)]) == 2
    assert refused.code == 2
    assert refused.last_line.startswith("crrd policies: the API server does not accept ")


async def test_no_api_server(tmp_path: Path) -> None:
    async with running() as api:
        kubeconfig = api.server.kubeconfig(tmp_path / "kubeconfig")
    ended = await crrd("policies", "from-reloader", "-n", "shop", KUBECONFIG=str(kubeconfig))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("crrd policies: cannot reach the API server: ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "the following arguments are required: TOOL"),
        (("from-kured",), "invalid choice: 'from-kured'"),
        (("from-reloader", "-A", "-n", "shop"), "not allowed with argument"),
        (("from-reloader", "shop"), "unknown arguments: shop"),
    ],
)
async def test_bad_input(words: tuple[str, ...], why: str) -> None:
    ended = await crrd("policies", *words)
    assert (ended.code, ended.out) == (2, "")
    assert why in ended.err
