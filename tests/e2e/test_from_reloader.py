"""Deployments with annotations of Stakater Reloader get policies, as docs/from-reloader.md says, on a real cluster."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.kube.resources import CONFIG_MAPS, POLICIES, SECRETS, Resource
from crrd.lib.jsonfields import condition
from crrd_localnode.workload import RESOURCES
from tests.e2e.test_policies import install_crd
from tests.support.cluster import Cluster, foreign, restart_count
from tests.support.command import crrd
from tests.support.recreates import daemons, grant, pod_spec, pods_of, workload

Json = dict[str, Any]
HOST = "reloader.stakater.com"
CRON_JOBS = Resource("cronjobs", "batch")
SETTLED_SECONDS = 5
"""Containers that start while a change settles are restarted once more."""
ANNOTATED = {
    "all": {f"{HOST}/auto": "true", f"deployment.{HOST}/pause-period": "2s"},
    "named": {f"configmap.{HOST}/reload": "main", f"deployment.{HOST}/pause-period": "2s"},
    "searching": {f"{HOST}/search": "true", f"deployment.{HOST}/pause-period": "2s"},
    "excluding": {
        f"{HOST}/auto": "true",
        f"configmaps.exclude.{HOST}/reload": "main",
        f"secrets.exclude.{HOST}/reload": "token",
        f"deployment.{HOST}/pause-period": "2s",
    },
}
RESTARTED = {
    "main": ("all", "named", "searching"),
    "extra": ("all", "excluding"),
    "token": ("all",),
}
"""Which Deployments restart after a change of an object."""


async def deploy(cluster: Cluster) -> dict[str, list[Json]]:
    """Create the objects, the Deployments and a CronJob. Return the pods of each Deployment."""
    client, namespace = cluster.client, cluster.namespace
    match = {"annotations": {f"{HOST}/match": "true"}}
    await client.create(CONFIG_MAPS, namespace, {"metadata": {"name": "main", **match}, "data": {"VALUE": "old"}})
    await client.create(CONFIG_MAPS, namespace, {"metadata": {"name": "extra"}, "data": {"VALUE": "old"}})
    await client.create(SECRETS, namespace, {"metadata": {"name": "token"}, "stringData": {"VALUE": "old"}})
    spec = pod_spec(cluster, "app", "side")
    uses = [{"configMapRef": {"name": name}, "prefix": name} for name in ("main", "extra")]
    spec["containers"][0]["envFrom"] = [*uses, {"secretRef": {"name": "token"}, "prefix": "token"}]
    found = {}
    for name, annotations in ANNOTATED.items():
        found[name] = await workload(cluster, "Deployment", name, 2, spec=spec)
        body = {"metadata": {"annotations": annotations}}
        await client.merge_patch(RESOURCES["Deployment"], namespace, name, body)
    job = {"template": {"spec": {**spec, "restartPolicy": "Never"}}}
    nightly = {"schedule": "0 3 * * *", "jobTemplate": {"spec": job}}
    meta = {"name": "nightly", "annotations": {f"{HOST}/auto": "true"}}
    await client.create(CRON_JOBS, namespace, {"metadata": meta, "spec": nightly})
    return found


async def settled(cluster: Cluster, *, runs: tuple[str, ...] = ()) -> None:
    """Wait until all policies do nothing, and the last run of these has ended."""

    def idle(found: Json) -> bool:
        run = (found.get("status") or {}).get("run") or {}
        ended = bool(run.get("finished")) if found["metadata"]["name"] in runs else True
        return condition(found, "Ready").get("reason") == "Idle" and ended

    for name in ANNOTATED:
        await cluster.wait(POLICIES, name, idle, "the policy to be idle", seconds=120)


@pytest.mark.cluster
@pytest.mark.skipif(foreign() is None, reason="needs a cluster with a controller of Deployments")
@pytest.mark.timeout(600)
async def test_policies_do_what_the_annotations_ask_for(cluster: Cluster, tmp_path: Path) -> None:
    client, namespace = cluster.client, cluster.namespace
    await install_crd(cluster)
    before = await deploy(cluster)
    printed = await crrd("policies", "from-reloader", "-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    assert printed.code == 0, printed.err
    assert printed.err.startswith(f"no policy for CronJob nightly in namespace {namespace}:\n")
    policies = [*yaml.safe_load_all(printed.out)]
    assert {each["metadata"]["name"] for each in policies} == ANNOTATED.keys()
    for each in policies:
        assert each["spec"]["triggers"]["configChange"]["settle"] == "2s"
        assert each["spec"]["budget"] == {"maxUnavailable": "25%"}, "the default of the API server"
        await client.create(POLICIES, namespace, each)
    for role in ("crrd-read-config", "crrd-read-secrets"):
        assert f" create rolebinding {role} -n {namespace} " in printed.err
        await grant(cluster, role)
    expected = dict.fromkeys(ANNOTATED, 0)
    async with daemons(cluster, tmp_path):
        await settled(cluster)
        for name, annotations in ANNOTATED.items():  # Reloader leaves, and no pod changes
            gone = {"metadata": {"annotations": dict.fromkeys(annotations)}}
            await client.merge_patch(RESOURCES["Deployment"], namespace, name, gone)
        for name, restarted in RESTARTED.items():
            await asyncio.sleep(SETTLED_SECONDS)
            kind, data = (SECRETS, "stringData") if name == "token" else (CONFIG_MAPS, "data")
            await client.merge_patch(kind, namespace, name, {data: {"VALUE": f"new of {name}"}})
            async with asyncio.timeout(120):
                for each in restarted:
                    expected[each] += 1
                    while [restart_count(pod, "app") for pod in await pods_of(cluster, each)] != [expected[each]] * 2:
                        await asyncio.sleep(0.5)
            await settled(cluster, runs=restarted)
            for each in ANNOTATED:
                after = await pods_of(cluster, each)
                assert [restart_count(pod, "app") for pod in after] == [expected[each]] * 2, (name, each)
                assert [restart_count(pod, "side") for pod in after] == [0, 0]
                assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before[each]]
        for name in ANNOTATED:  # The way back
            await client.delete(POLICIES, namespace, name)
    for each, found in before.items():
        assert [pod["metadata"]["uid"] for pod in await pods_of(cluster, each)] == [
            pod["metadata"]["uid"] for pod in found
        ]
