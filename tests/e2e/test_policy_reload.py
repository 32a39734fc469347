"""A policy with `action: ReloadOrRestart`, on a real runtime and kubelet: an edit is read by the same containers."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_RELOAD
from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import POLICIES
from tests.e2e.test_policies import install
from tests.e2e.test_reload import HUP, READS, assert_same, configure
from tests.support.cluster import Cluster, Json, container, foreign, restart_count
from tests.support.recreates import daemons

pytestmark = [pytest.mark.containerd, pytest.mark.cluster, pytest.mark.timeout(300)]

PODS = ("web-0", "web-1")


async def started(cluster: Cluster, name: str, **app: Any) -> Json:
    """Run a pod whose container reads a file of a ConfigMap, and reads it again when it reloads."""
    spec = container("app", READS, volumeMounts=[{"name": "config", "mountPath": "/config"}], **app)
    annotations = {f"{ANNOTATION_RELOAD}app": json.dumps(HUP)}
    return await cluster.run_pod(
        name,
        [spec],
        metadata={"annotations": annotations, "labels": {"app": "web"}},
        volumes=[{"name": "config", "configMap": {"name": "web"}}],
    )


async def idle(cluster: Cluster, after: str = "") -> Json:
    """The run of the policy, once another one than this has ended and nothing is left to do."""

    def holds(found: Json) -> bool:
        status = found.get("status") or {}
        reasons = [each["reason"] for each in status.get("conditions", ()) if each["type"] == "Ready"]
        run = status.get("run") or {}
        return reasons == ["Idle"] and (not after or (run.get("name", after) != after and bool(run.get("finished"))))

    found = await cluster.wait(POLICIES, "web", holds, f"a run after {after or 'none'}", seconds=150)
    return dict((found.get("status") or {}).get("run") or {})


async def edited(cluster: Cluster, run: str, level: str) -> Json:
    """Change the data. Return the run for it."""
    await configure(cluster, level)
    since = time.monotonic()
    found = await idle(cluster, run)
    print(f"from the edit of the ConfigMap to the end of the run: {time.monotonic() - since:.1f} s")
    return found


async def test_an_edit_reaches_all_containers_and_restarts_those_that_use_it_otherwise(
    cluster: Cluster, tmp_path: Path
) -> None:
    await configure(cluster, "info")
    before = [await started(cluster, name) for name in PODS]
    if foreign() is not None:
        await install(cluster, "crrd-read-config")
    change = {"settle": "2s", "action": "ReloadOrRestart"}
    spec: Json = {"selector": {"matchLabels": {"app": "web"}}, "triggers": {"configChange": change}}
    spec |= {"budget": {"maxUnavailable": "100%"}}
    policy = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
    async with daemons(cluster, tmp_path):
        await cluster.client.create(POLICIES, cluster.namespace, policy)
        await idle(cluster)
        levels = ["info"]
        run: Json = {"name": "none"}
        for level in ("debug", "info"):
            run = await edited(cluster, run["name"], level)
            assert (run["reload"], run["message"]) == (True, "2 of 2 pods reloaded")
            levels.append(level)
            for name in PODS:
                await cluster.wait_words(name, "read", *levels)
        for pod in before:
            assert_same(pod, await cluster.pod(pod["metadata"]["name"]))
        variable = {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "web", "key": "level"}}}
        await started(cluster, "web-2", env=[variable])
        run = await edited(cluster, run["name"], "error")
        assert run["reason"].endswith("; restarting app, because app uses ConfigMap web (env)")
        for name in (*PODS, "web-2"):
            assert restart_count(await cluster.pod(name), "app") == 1
