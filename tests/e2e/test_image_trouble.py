"""`kubectl recreate --image` on a cluster while something goes wrong: kills, registries, budgets, other writers."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.resources import PODS, REPLICA_SETS, Resource
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import Cluster, Json, container, foreign
from tests.support.command import Ended
from tests.support.recreates import (
    BUDGETS,
    daemons,
    hold,
    image_of,
    kept,
    killed,
    pod_spec,
    pods_of,
    recorded,
    recreate,
    release,
    rolled_out,
    wait_ready,
    workload,
)
from tests.support.registry import Registry, registry
from tests.support.restarts import admission_policy

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(foreign() is None, reason="needs the controllers of a cluster"),
]
SECRETS = Resource("secrets")
KINDS = pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])


def uids(pods: list[Json]) -> list[str]:
    """Return the UIDs of pods."""
    return [str(pod["metadata"]["uid"]) for pod in pods]


def words(kind: str, name: str, image: str, template: str = "adopt") -> tuple[str, ...]:
    """Return a command that gives the first container of a workload an image."""
    flags = ("--template", template, "--allow-mutable-tag", "--max-unavailable", "2", "--min-ready", "0")
    return (f"{kind.lower()}/{name}", "-c", "app", "--image", image, *flags)


async def no_pull_pods(cluster: Cluster) -> None:
    """Assert that no pull pod is left."""
    where = {"namespace": cluster.namespace, "label_selector": LABEL_PULL}
    left = await cluster.client.list_all(PODS, dict, **where)
    assert not [pod for pod in left.items if "deletionTimestamp" not in pod["metadata"]]


async def prepared(cluster: Cluster, kind: str, name: str, template: str) -> tuple[list[Json], tuple[str, ...]]:
    """Create a workload. Return its pods, and the command that gives them another image."""
    image, before = cluster.need_second_image(), await workload(cluster, kind, name, 1 if kind == "DaemonSet" else 2)
    if template == "adopt":
        return before, (*words(kind, name, image), "--run", name)
    await hold(cluster, kind, name, image)
    flags = ("--image-from-template", "--allow-mutable-tag", "--max-unavailable", "2", "--min-ready", "0")
    return before, (f"{kind.lower()}/{name}", *flags, "--run", name)


@KINDS
@pytest.mark.parametrize("template", ["adopt", "follow"])
async def test_a_run_that_is_killed_after_any_write_can_be_resumed(
    cluster: Cluster, tmp_path: Path, kind: str, template: str
) -> None:
    writes = 0
    async with daemons(cluster, tmp_path):
        while True:
            writes += 1
            name = f"web{writes}"
            before, arguments = await prepared(cluster, kind, name, template)
            code = await killed(cluster, writes, *arguments)
            if code >= 0:
                break
            ended = await recreate(cluster, *arguments)
            assert ended.code == 0, (writes, ended)
            if template == "follow":
                await release(cluster, kind, name)
            found = await rolled_out(cluster, kind, name)
            kept(before, await pods_of(cluster, name), "app")
            assert image_of(found["spec"]["template"]) == cluster.second_image, writes
            assert "crr.apps.kruise.io/adopting-run" not in found["metadata"].get("labels", {}), writes
            await no_pull_pods(cluster)
            await cluster.client.delete(RESOURCES[kind], cluster.namespace, name)
        print(f"killed after each of {writes - 1} writes")  # for -rP
        assert (code, writes > 5) == (0, True)


async def test_an_abort_in_any_step_of_an_adoption_leaves_nothing_held(cluster: Cluster, tmp_path: Path) -> None:
    image, writes = cluster.need_second_image(), 0
    async with daemons(cluster, tmp_path):
        while True:
            writes += 1
            name = f"web{writes}"
            before = await workload(cluster, "Deployment", name, 2)
            arguments = (*words("Deployment", name, image), "--run", name)
            if await killed(cluster, writes, *arguments) >= 0:
                break
            ended = await recreate(cluster, "abort", name)
            over = "not found" in ended.err or "there is nothing to abort" in ended.err
            assert ended.code == (2 if over else 0), (writes, ended)
            found = await rolled_out(cluster, "Deployment", name)
            assert (found["spec"].get("paused"), uids(await wait_ready(cluster, name, 2))) == (None, uids(before))
            await no_pull_pods(cluster)
            await cluster.client.delete(RESOURCES["Deployment"], cluster.namespace, name)


@asynccontextmanager
async def injected(cluster: Cluster) -> AsyncIterator[None]:
    """Add the container mesh to all pods of the app web. Skips the test on an API server before 1.36."""
    command = "', '".join(container("mesh")["command"]).replace("trap 'exit 0'", r"trap \'exit 0\'")
    fields = f"name: 'mesh', image: '{cluster.image}', imagePullPolicy: 'IfNotPresent', command: ['{command}']"
    value = f"Object.spec.containers{{{fields}}}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    patch = {"expression": f'[JSONPatch{{op: "add", path: "/spec/containers/-", value: {value}}}]'}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "web", "expression": "object.metadata.?labels[?'app'].orValue('') == 'web'"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": patch}],
        "reinvocationPolicy": "Never",
    }
    pod = {"metadata": {"name": "trial", "labels": {"app": "web"}}, "spec": pod_spec(cluster, "app")}

    async def in_force() -> bool:
        made = await cluster.client.create(PODS, cluster.namespace, pod, dry_run=True)
        return len(made["spec"]["containers"]) == 2

    async with admission_policy(cluster, "Mutating", spec, in_force):
        yield


async def test_an_injected_container(cluster: Cluster, tmp_path: Path) -> None:
    """The template does not have it. New pods get the injector's image."""
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path), injected(cluster):
        before = await workload(cluster, "Deployment", "web", 2, "app")
        ended = await recreate(cluster, "deployment/web", "-c", "mesh", "--image", image)
        assert (ended.code, f"2 of 2 pods have {image}" in ended.out) == (0, True), ended
        kept(before, await pods_of(cluster, "web"), "mesh")


async def replica_sets(cluster: Cluster) -> list[Json]:
    """Return the ReplicaSets of the namespace."""
    return list((await cluster.client.list_all(REPLICA_SETS, dict, namespace=cluster.namespace)).items)


async def test_a_budget_holds_at_every_moment(cluster: Cluster, tmp_path: Path) -> None:
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path):
        spec = pod_spec(cluster, "app", "side")
        spec["containers"][0]["readinessProbe"] = {"exec": {"command": ["true"]}, "initialDelaySeconds": 2}
        before = await workload(cluster, "Deployment", "web", 5, spec=spec)
        selector = {"matchLabels": {"app": "web"}}
        body = {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": selector}}
        await cluster.client.create(BUDGETS, cluster.namespace, body)
        async with recorded(cluster, "web") as record:
            ended = await recreate(cluster, *words("Deployment", "web", image), "--max-unavailable", "5")
        assert ended.code == 0, ended
        kept(before, await pods_of(cluster, "web"), "app")
        assert record.most_unready == 1


@asynccontextmanager
async def beside(work: Any) -> AsyncIterator[None]:
    """Run something until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_adoptions_while_the_workload_is_scaled(cluster: Cluster, tmp_path: Path) -> None:
    images = (cluster.need_second_image(), cluster.image)

    async def scale() -> None:
        while True:
            change = {"spec": {"replicas": 2 + secrets.randbelow(4)}}
            await cluster.client.merge_patch(RESOURCES["Deployment"], cluster.namespace, "web", change)
            await asyncio.sleep(1)

    async with daemons(cluster, tmp_path):
        await workload(cluster, "Deployment", "web", 3)
        for number in range(20):
            async with beside(scale()):
                ended = await recreate(cluster, *words("Deployment", "web", images[number % 2]))
            assert ended.code == 0, (number, ended)
            found = await rolled_out(cluster, "Deployment", "web")
            (only,) = await replica_sets(cluster)
            assert only["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
            assert image_of(found["spec"]["template"]) == image_of(only["spec"]["template"]) == images[number % 2]


async def test_a_template_that_is_put_back_is_reported_and_not_fought(cluster: Cluster, tmp_path: Path) -> None:
    image, puts = cluster.need_second_image(), 0

    async def put_back() -> None:
        nonlocal puts
        while True:
            found = await cluster.client.get(RESOURCES["Deployment"], cluster.namespace, "web")
            spec = found["spec"]["template"]["spec"]
            if image_of(found["spec"]["template"]) != cluster.image:
                spec["containers"][0]["image"] = cluster.image
                change = {"spec": {"template": {"spec": {"containers": spec["containers"]}}}}
                await cluster.client.merge_patch(RESOURCES["Deployment"], cluster.namespace, "web", change)
                puts += 1
            await asyncio.sleep(0.02)

    async with daemons(cluster, tmp_path):
        await workload(cluster, "Deployment", "web", 2)
        async with beside(put_back()):
            ended = await recreate(cluster, *words("Deployment", "web", image))
            await asyncio.sleep(3)
        assert (ended.code, puts) == (1, 1), ended
        assert "the image of deployment.apps/web was set" in ended.out


async def of_registry(cluster: Cluster, found: Registry) -> list[Json]:
    """Create a workload whose image is in a private registry. Return its pods."""
    body = {"metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson", "data": found.secret("old")}
    await cluster.client.create(SECRETS, cluster.namespace, body)
    spec = pod_spec(cluster, "app", "side")
    spec["containers"][0]["image"], spec["imagePullSecrets"] = found.image("1"), [{"name": "pull"}]
    return await workload(cluster, "Deployment", "web", 2, spec=spec)


async def test_a_private_registry_and_its_failures(cluster: Cluster, tmp_path: Path) -> None:
    """Whatever the registry does, no container is stopped before its image is on the node."""
    async with daemons(cluster, tmp_path), registry() as found:
        found.password = "old"
        for tag in ("1", "2"):
            found.push(tag)
        before = await of_registry(cluster, found)
        ended = await recreate(cluster, *words("Deployment", "web", found.image("typo")))
        unchanged(ended, before, await pods_of(cluster, "web"))
        found.password = "new"
        ended = await recreate(cluster, *words("Deployment", "web", found.image("2")))
        unchanged(ended, before, await pods_of(cluster, "web"))
        found.password, found.silent = "old", True
        ended = await recreate(cluster, *words("Deployment", "web", found.image("2")), "--pod-timeout", "15s")
        unchanged(ended, before, await pods_of(cluster, "web"))
        found.silent = False
        ended = await recreate(cluster, *words("Deployment", "web", found.image("2")))
        assert ended.code == 0, ended
        kept(before, await pods_of(cluster, "web"), "app")


def unchanged(ended: Ended, before: list[Json], after: list[Json]) -> None:
    """Assert that a run has failed, says so, and has stopped nothing."""
    assert (ended.code, "no container was stopped there" in ended.out) == (1, True), ended
    kept(before, after)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_the_names_that_restarts_by_patches_leave(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    """One pod is restarted by a patch once, and one twice. So the name of the latter has no tag."""
    async with daemons(cluster, tmp_path), registry() as found:
        first, second = f"1-{secrets.token_hex(4)}", f"2-{secrets.token_hex(4)}"
        for tag in (first, second):  # a node that knows an image by two names has no exact one
            found.push(tag)
        spec = pod_spec(cluster, "app", "side")
        spec["containers"][0]["image"] = found.image(first)
        before = await workload(cluster, kind, "web", 3, spec=spec)
        for pod in (before[0], before[0], before[-1]):
            ended = await recreate(cluster, f"pod/{pod['metadata']['name']}", "-c", "app", "--via", "patch")
            assert ended.code == 0, ended
        named = await wait_ready(cluster, "web", len(before))
        assert image_of(named[0]).startswith(f"{found.image(first).rpartition(':')[0]}@sha256:")
        ended = await recreate(cluster, *words(kind, "web", found.image(first)))
        assert (ended.code, "nothing to do" in ended.out) == (0, True), ended
        kept(named, await pods_of(cluster, "web"))
        ended = await recreate(cluster, *words(kind, "web", found.image(second)))
        assert ended.code == 0, ended
        after = await pods_of(cluster, "web")
        kept(named, after, "app")
        await rolled_out(cluster, kind, "web")
        name = ended.out.split()[1].removesuffix(":")
        ended = await recreate(cluster, f"pod/{after[0]['metadata']['name']}", "-c", "app", "--via", "patch")
        assert ended.code == 0, ended
        undone = await recreate(cluster, "undo", name)
        assert undone.code == 0, undone
        assert {image_of(pod) for pod in await pods_of(cluster, "web")} == {found.image(first)}
        assert uids(await pods_of(cluster, "web")) == uids(before)
        assert image_of((await rolled_out(cluster, kind, "web"))["spec"]["template"]) == found.image(first)


async def test_what_is_done_with_tags_and_digests(cluster: Cluster, tmp_path: Path) -> None:
    """Also with two names of one image, whose image IDs are the same."""
    async with daemons(cluster, tmp_path), registry() as found:
        found.push("1")
        digest = found.push("2", "3")
        spec = pod_spec(cluster, "app", "side")
        spec["containers"][0]["image"] = found.image("1")
        before = await workload(cluster, "Deployment", "web", 2, spec=spec)
        for name in ("2", "3", digest, "2", "1"):
            ended = await recreate(cluster, *words("Deployment", "web", found.image(name)))
            assert ended.code == 0, (name, ended)
            after = await pods_of(cluster, "web")
            kept(before, after, "app")
            before = after
