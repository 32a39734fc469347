"""Restarts by patches on a real kubelet, without crrd's daemons: what stays, kills, budgets, rights, and policies."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.time import parse_time
from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES, PODS
from crrd.kubelet.restart_rules import keeps_sidecars
from crrd.kubelet.version import known_minor, reported_version
from crrd.lib.errors import ApiRefusedError
from tests.support.cluster import Cluster, Json, container_status, foreign, pod_ready, restart_count
from tests.support.recreates import (
    BUDGETS,
    a_deployment_and_a_statefulset,
    create_workload,
    kept,
    killed,
    pods_of,
    recorded,
    recreate,
    wait_ready,
    workload,
)
from tests.support.restarts import ONE_RESTART, admission_policy, editor, logged_spec, wrote

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
]
BY_PATCH = ("--via", "patch")
UPDATES = {
    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}]
}
"""What an admission policy applies to."""


async def test_a_deployment_and_a_statefulset(cluster: Cluster) -> None:
    await a_deployment_and_a_statefulset(cluster, *BY_PATCH)


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [("Deployment", 2), ("StatefulSet", 2), ("DaemonSet", 1), ("ReplicaSet", 2), ("Pod", 2)],
)
async def test_killed_after_each_write_and_resumed(cluster: Cluster, kind: str, replicas: int) -> None:
    """Runs that are killed after another write are in progress side by side."""
    names = ("app", "side")
    patches = replicas * len(names)
    spec = logged_spec(cluster, *names)

    async def interrupted(writes: int) -> None:
        name = f"web{writes}"
        before = await workload(cluster, kind, name, replicas, spec=spec)
        target = ("-l", f"app={name}") if kind == "Pod" else (f"{kind.lower()}/{name}",)
        code = await killed(cluster, writes, *target, "-c", ",".join(names), "--ordered", "--run", name, *BY_PATCH)
        assert code < 0 or (code == 0 and writes > patches), f"exit code {code} before {writes} writes"
        if code:
            ended = await recreate(cluster, "resume", name)
            assert ended.code == 0, ended
        after = await pods_of(cluster, name)
        kept(before, after, *names)
        for pod in after:
            for each in names:
                await wrote(cluster, pod, each, *ONE_RESTART)

    progress = 2  # At least one more write records how the run has ended
    await asyncio.gather(*(interrupted(writes) for writes in range(1, patches + progress + 1)))


async def test_a_container_in_its_back_off_starts_at_once(cluster: Cluster) -> None:
    """It crashes four times, after which kubelet waits for 40 s, and then runs."""
    spec = logged_spec(cluster, "app")
    (app,) = spec["containers"]
    crash = "[ $(grep -c start /log/app) -gt 4 ] || exit 1"
    app["command"][2] = app["command"][2].replace("; trap", f"; {crash}; trap")

    def waits(pod: Json) -> bool:
        state = container_status(pod, "app").get("state", {})
        in_back_off = state.get("waiting", {}).get("reason") == "CrashLoopBackOff" or "terminated" in state
        return in_back_off and restart_count(pod, "app") == 3

    await create_workload(cluster, "Deployment", "web", 1, spec)
    await wait_ready(cluster, "web", 1, waits)
    ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
    assert ended.code == 0, ended
    (after,) = await pods_of(cluster, "web")
    await wrote(cluster, after, "app", *["start"] * 5)
    status = container_status(after, "app")
    began, ended_at = (
        parse_time(status["state"]["running"]["startedAt"]),
        parse_time(status["lastState"]["terminated"]["finishedAt"]),
    )
    assert began is not None
    assert ended_at is not None
    assert began - ended_at < timedelta(seconds=40)


async def test_a_native_sidecar(cluster: Cluster) -> None:
    spec = logged_spec(cluster, "app", "proxy")
    app, proxy = spec["containers"]
    sidecar = {**spec, "containers": [app], "initContainers": [{**proxy, "restartPolicy": "Always"}]}
    before = await workload(cluster, "Deployment", "web", 1, spec=sidecar)
    ended = await recreate(cluster, "deployment/web", "-c", "proxy", *BY_PATCH)
    after = await wait_ready(cluster, "web", 1)
    kept(before, after)
    kubelet = reported_version(await cluster.client.get(NODES, "", cluster.node_name))
    old, new = (container_status(pods[0], "proxy") for pods in (before, after))
    if keeps_sidecars(known_minor(kubelet)):
        assert (ended.code, "is older than 1.32" in ended.err) == (2, True), ended
        assert new == old
        return
    assert ended.code == 0, ended
    await wrote(cluster, after[0], "proxy", *ONE_RESTART)
    assert (new["restartCount"], new["imageID"]) == (old["restartCount"] + 1, old["imageID"])


async def test_two_restarts_within_seconds(cluster: Cluster) -> None:
    before = await workload(cluster, "Deployment", "web", 1, spec=logged_spec(cluster, "app"))
    for _ in range(2):
        ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
        assert ended.code == 0, ended
    (after,) = await wait_ready(cluster, "web", 1, pod_ready)
    await wrote(cluster, after, "app", *ONE_RESTART, *ONE_RESTART[1:])
    assert restart_count(after, "app") == restart_count(before[0], "app") + 2
    assert container_status(after, "app")["imageID"] == container_status(before[0], "app")["imageID"]
    assert after["metadata"]["uid"] == before[0]["metadata"]["uid"]


async def test_a_disruption_budget_is_never_exceeded(cluster: Cluster) -> None:
    before = await workload(cluster, "Deployment", "web", 6)
    body = {"spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "web"}}}}
    named = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, **body}
    await cluster.client.create(BUDGETS, cluster.namespace, named)
    async with recorded(cluster, "web") as record:
        ended = await recreate(cluster, "deployment/web", "-c", "app", "--max-unavailable", "100%", *BY_PATCH)
    assert ended.code == 0, ended
    kept(before, await pods_of(cluster, "web"), "app")
    assert record.most_unready <= 2


async def test_a_user_with_the_role_edit_in_one_namespace(cluster: Cluster, tmp_path: Path) -> None:
    """Such a user may not use the CRD, so the run takes the patch by itself."""
    user = await editor(cluster, tmp_path)
    async with KubeClient(KubeconfigAccess(str(user))) as client:
        for resource, namespace in ((NODES, ""), (PODS, "kube-system")):
            with pytest.raises(ApiRefusedError, match="forbidden"):
                await client.list_all(resource, dict, namespace=namespace)
    before = await workload(cluster, "StatefulSet", "db", 3, spec=logged_spec(cluster, "app", "side"))
    begun = ("statefulset/db", "-c", "app", "--partition", "1", "--run")
    ended = await recreate(cluster, *begun, "first", kubeconfig=user)
    first = "restarts by patches: you may not list ContainerRecreateRequests"
    assert (ended.code, ended.out.startswith(first)) == (0, True), ended
    shown = await recreate(cluster, "status", "first", kubeconfig=user)
    assert (shown.code, "1 of 3" in shown.out) == (0, True), shown
    ended = await recreate(cluster, "resume", "first", "--yes", kubeconfig=user)
    assert ended.code == 0, ended
    between = await pods_of(cluster, "db")
    kept(before, between, "app")
    ended = await recreate(cluster, *begun, "second", kubeconfig=user)
    assert ended.code == 0, ended
    ended = await recreate(cluster, "abort", "second", kubeconfig=user)
    assert ended.code == 0, ended
    shown = await recreate(cluster, "status", kubeconfig=user)
    assert "aborted" in shown.out, shown
    ended = await recreate(cluster, "resume", "second", "--yes", kubeconfig=user)
    assert ended.code == 2, ended
    after = await pods_of(cluster, "db")
    kept(between[:2], after[:2])
    kept(between[2:], after[2:], "app")
    await wrote(cluster, after[2], "app", *ONE_RESTART, *ONE_RESTART[1:])


async def refuses(cluster: Cluster, pod: Json) -> bool:
    """Whether the API server refuses an image with a digest for the first container of a pod, or changes it."""
    path, image = "/spec/containers/0/image", f"localhost/trial@sha256:{'0' * 64}"
    change = [{"op": "replace", "path": path, "value": image}]
    try:
        made = await cluster.client.json_patch(PODS, cluster.namespace, pod["metadata"]["name"], change, dry_run=True)
    except ApiRefusedError:
        return True
    return bool(made["spec"]["containers"][0]["image"] != image)


async def test_a_policy_that_forbids_digests_is_told_and_nothing_is_restarted(cluster: Cluster) -> None:
    before = await workload(cluster, "Deployment", "web", 2)
    check = {"expression": "!object.spec.containers.exists(c, c.image.contains('sha256:'))", "message": "use tags"}
    spec = {"matchConstraints": UPDATES, "validations": [check], "failurePolicy": "Fail"}
    async with admission_policy(cluster, "Validating", spec, lambda: refuses(cluster, before[0])):
        ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
    assert (ended.code, "denied request: use tags" in ended.out) == (1, True), ended
    untouched(before, await pods_of(cluster, "web"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "image",
            "'mirror.invalid/' + object.spec.containers[0].image",
            "a webhook changes the image of container app",
        ),
        ("imagePullPolicy", "'Always'", "pod updates may not change fields"),
    ],
    ids=["image", "pull policy"],
)
async def test_a_webhook_that_changes_pods_is_told_and_nothing_is_restarted(
    cluster: Cluster, path: str, value: str, message: str
) -> None:
    """The second one does what the admission plugin AlwaysPullImages does to pods that are older than its use."""
    before = await workload(cluster, "Deployment", "web", 2)
    patch = f'[JSONPatch{{op: "replace", path: "/spec/containers/0/{path}", value: {value}}}]'
    changed = "object.spec.containers[0].image != oldObject.spec.containers[0].image"
    spec = {
        "matchConstraints": UPDATES,
        "matchConditions": [{"name": "image", "expression": changed}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        "reinvocationPolicy": "Never",
    }
    async with admission_policy(cluster, "Mutating", spec, lambda: refuses(cluster, before[0])):
        ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
    assert (ended.code, message in ended.out) == (1, True), ended
    untouched(before, await pods_of(cluster, "web"))


def untouched(before: list[Json], after: list[Json]) -> None:
    """Assert that no pod was restarted, and none has an annotation of a run."""
    kept(before, after)
    assert not [pod for pod in after if ANNOTATION_PATCHED in pod["metadata"].get("annotations", {})]


async def test_containers_of_one_patch_stop_one_after_the_other(cluster: Cluster) -> None:
    """And none of them starts before that: their grace periods add up."""
    spec = logged_spec(cluster, "app", "side")
    for each in spec["containers"]:
        each["lifecycle"]["preStop"]["exec"]["command"][2] += "; sleep 6"
    await workload(cluster, "Deployment", "web", 1, spec={**spec, "terminationGracePeriodSeconds": 15})
    short = await recreate(cluster, "deployment/web", "-c", "app,side", "--pod-timeout", "59s", *BY_PATCH)
    assert (short.code, "may take longer to stop than the time limit" in short.err) == (2, True), short
    ended = await recreate(cluster, "deployment/web", "-c", "app,side", "--pod-timeout", "60s", *BY_PATCH)
    assert ended.code == 0, ended
    (after,) = await pods_of(cluster, "web")
    statuses = [container_status(after, name) for name in ("app", "side")]
    ends = [parse_time(each["lastState"]["terminated"]["finishedAt"]) for each in statuses]
    starts = [parse_time(each["state"]["running"]["startedAt"]) for each in statuses]
    first, last = sorted(filter(None, ends))
    assert last - first >= timedelta(seconds=5), "each has its hook"
    assert min(filter(None, starts)) >= last
    for name in ("app", "side"):
        await wrote(cluster, after, name, *ONE_RESTART)


async def test_an_image_that_was_changed_and_changed_back(cluster: Cluster) -> None:
    """Kubelet may have seen the first change, and may not. Either way the pod is restarted for the run, and once."""
    before = await workload(cluster, "Deployment", "web", 3, spec=logged_spec(cluster, "app"))
    image = before[0]["spec"]["containers"][0]["image"]
    for pod in before:
        for value in (f"{image}-other", image):
            change = [{"op": "replace", "path": "/spec/containers/0/image", "value": value}]
            await cluster.client.json_patch(PODS, cluster.namespace, pod["metadata"]["name"], change)
    await asyncio.sleep(5)
    between = await wait_ready(cluster, "web", 3, pod_ready)
    ended = await recreate(cluster, "deployment/web", "-c", "app", *BY_PATCH)
    assert ended.code == 0, ended
    counts = {pod["metadata"]["uid"]: restart_count(pod, "app") for pod in between}
    for pod in await pods_of(cluster, "web"):
        assert restart_count(pod, "app") == counts[pod["metadata"]["uid"]] + 1
