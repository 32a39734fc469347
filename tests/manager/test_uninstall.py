"""The hook that ends all requests: with a manager, without one, and with pods that others hold as well."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.api.gate import readiness_of
from crrd.core.api.pod import PodMeta
from crrd.core.api.types import FINALIZER
from crrd.core.lifecycle.steps import PodAction
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, WEBHOOKS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.manager import uninstall as hook
from crrd.manager.readiness import change_readiness
from tests.support.lifecycle_cluster import LifecycleCluster, Wire, lifecycle_cluster
from tests.support.manifests import MANIFESTS, needs_kubectl, one, rendered

OTHERS = {"userAgent": 'Operation "Job"', "key": "web-0"}


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LifecycleCluster]:
    monkeypatch.setattr(hook, "ROUND_SECONDS", 0.01)
    async with lifecycle_cluster() as made:
        await made.client.create(WEBHOOKS, "", {"metadata": {"name": hook.CONFIGURATION}, "webhooks": []})
        yield made


async def held(cluster: LifecycleCluster, *others: dict[str, str], name: str = "one") -> None:
    """A pod that a request holds unready, and that request."""
    await cluster.request(name, await cluster.pod(), grace=0)
    await cluster.finalizers(name, FINALIZER)
    ours = {"userAgent": "ContainerRecreateRequest", "key": f"default/{name}"}
    condition = {"type": "KruisePodReady", "status": "False", "message": json.dumps([ours, *others])}
    await cluster.client.merge_patch(
        PODS, "default", "web-0", {"status": {"conditions": [condition]}}, subresource="status"
    )


async def nothing_is_left(cluster: LifecycleCluster) -> None:
    assert cluster.crrs() == {}
    with pytest.raises(GoneError):
        await cluster.client.get(WEBHOOKS, "", hook.CONFIGURATION)


async def test_a_manager_that_works_releases(cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MANAGER_ROUNDS", "ROUNDS"):
        monkeypatch.setattr(hook, name, 3000)
    manager = cluster.manager()
    await held(cluster)
    assert await hook.uninstall(cluster.client)
    assert cluster.condition() == ("True", "")
    assert {type(action).__name__ for action in manager.done} >= {"ReleaseUnready", "RemoveFinalizer"}
    await nothing_is_left(cluster)


async def test_without_a_manager_everything_of_ours_is_released_and_nothing_else(cluster: LifecycleCluster) -> None:
    await held(cluster, OTHERS)
    assert await hook.uninstall(cluster.client)
    assert cluster.condition() == ("False", json.dumps([OTHERS], separators=(",", ":")))
    await nothing_is_left(cluster)


@needs_kubectl
async def test_the_managers_role_and_the_hooks_allow_every_call(cluster: LifecycleCluster) -> None:
    await held(cluster)
    cluster.calls.clear()
    assert await hook.uninstall(cluster.client)
    rules = one(rendered("default"), "ClusterRole", "crrd-manager")["rules"]
    (template,) = re.findall(r"(?ms)^rules:.*?(?=^---)", (MANIFESTS / "chart/templates/uninstall.yaml").read_text())
    rules = [*rules, *yaml.safe_load(template)["rules"]]  # a copy, because other tests use the rendered objects, too
    allowed = {(verb, name) for rule in rules for verb in rule["verbs"] for name in rule["resources"]}
    asked = {(call.verb, "/".join(filter(None, (call.resource, call.subresource)))) for call in cluster.calls}
    assert asked - allowed == set()
    assert ("delete", WEBHOOKS.plural) in asked


async def test_a_pod_whose_request_has_gone_is_released(cluster: LifecycleCluster) -> None:
    await held(cluster)
    await cluster.finalizers("one")
    await cluster.delete("one")
    assert await hook.uninstall(cluster.client)
    assert cluster.condition() == ("True", "")


async def test_a_request_that_somebody_else_keeps_is_told(
    cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "MANAGER_ROUNDS", 1)
    monkeypatch.setattr(hook, "ROUNDS", 4)
    await held(cluster)
    await cluster.finalizers("one", FINALIZER, "a.example/b")
    assert not await hook.uninstall(cluster.client)
    assert cluster.condition() == ("True", "")
    assert cluster.deleting("one")
    assert not cluster.has_finalizer("one")


async def test_an_api_server_that_is_away_is_asked_again(cluster: LifecycleCluster) -> None:
    class Flaky(Wire):
        asked = 0

        async def current(self) -> Any:
            self.asked += 1
            if self.asked in (2, 4):
                raise ApiUnavailableError("away")
            return await super().current()

    async with KubeClient(Flaky(cluster.server.url)) as client:
        assert await hook.uninstall(client)
    await nothing_is_left(cluster)


async def test_a_pod_that_cannot_be_released_holds_up_no_other(
    cluster: LifecycleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy refuses the write of the first pod: what else is to do is done, and then the error is told."""
    refused: list[str] = []

    async def refusing(client: KubeClient, action: PodAction, now: Callable[[], datetime]) -> PodMeta | None:
        if action.pod.name == "web-0":
            refused.append(action.pod.name)
            raise ApiRefusedError("denied by a policy", status=422)
        return await change_readiness(client, action, now)

    monkeypatch.setattr(hook, "change_readiness", refusing)
    monkeypatch.setattr(hook, "MANAGER_ROUNDS", 1)
    await held(cluster)
    await cluster.request("two", await cluster.client.get(PODS, "default", "web-0"), grace=0)
    await cluster.finalizers("two", FINALIZER)
    await cluster.pod("web-1")
    conditions = (await cluster.client.get(PODS, "default", "web-0"))["status"]["conditions"]
    status = {"status": {"conditions": conditions}}
    await cluster.client.merge_patch(PODS, "default", "web-1", status, subresource="status")
    with pytest.raises(ApiRefusedError, match="denied by a policy"):
        await hook.uninstall(cluster.client)
    assert refused
    assert readiness_of(await cluster.client.get(PODS, "default", "web-1")).status == "True"
    assert cluster.crrs().keys() == {"one"}


async def test_the_definition_may_have_gone(cluster: LifecycleCluster) -> None:
    definition = Resource("customresourcedefinitions", "apiextensions.k8s.io")
    await cluster.client.delete(definition, "", REQUESTS.full_name)
    assert await hook.uninstall(cluster.client)


@pytest.mark.parametrize("there", [True, False])
async def test_the_program_says_how_it_ended(cluster: LifecycleCluster, tmp_path: Path, *, there: bool) -> None:
    config = cluster.server.kubeconfig(tmp_path / "config")
    environment = {**os.environ, "KUBECONFIG": str(config if there else tmp_path / "none")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "crrd.manager.uninstall", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    last = json.loads(err.splitlines()[-1])
    assert process.returncode == (0 if there else 1)
    assert last["event"] == (
        "all requests are deleted, and no pod is kept unready" if there else "cannot end all requests"
    )
