"""`kubectl recreate --image` on a cluster, in namespaces that accept few pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import LIMIT_RANGES, PODS, Resource
from crrd.lib.errors import ApiRefusedError, GoneError
from tests.support.cluster import PATIENCE, Cluster, Json, foreign
from tests.support.recreates import daemons, image_of, kept, pod_spec, pods_of, recreate, workload

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(foreign() is None, reason="needs the admission plugins of a cluster"),
]
FIRST, LAST = 1000650000, 1000659999
"""The range of UIDs of the namespace."""
FLAGS = ("-c", "app", "--template", "keep", "--allow-mutable-tag", "--max-unavailable", "2", "--min-ready", "0")


async def test_a_limit_range_that_refuses_pull_pods(cluster: Cluster, tmp_path: Path) -> None:
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path):
        before = await workload(cluster, "Deployment", "web", 2)
        bounds = {"type": "Container", "min": {"cpu": "50m"}, "maxLimitRequestRatio": {"cpu": "1", "memory": "1"}}
        body = {"metadata": {"name": "small"}, "spec": {"limits": [bounds, {"type": "Pod", "min": {"memory": "64Mi"}}]}}
        await cluster.client.create(LIMIT_RANGES, cluster.namespace, body)
        words = ("deployment/web", *FLAGS, "--image", image)
        ended = await recreate(cluster, *words)
        assert ended.code == 2, ended
        assert "minimum cpu usage per Container is 50m, but request is 10m" in ended.err
        assert "minimum memory usage per Pod is 64Mi" in ended.err
        assert "(LimitRange small); to set what pull pods request: --pull-resources" in ended.err
        kept(before, await pods_of(cluster, "web"))
        ended = await recreate(cluster, *words, "--pull-resources", "cpu=50m,memory=64Mi")
        assert ended.code == 0, ended
        kept(before, await pods_of(cluster, "web"), "app")


def rules(cluster: Cluster) -> dict[str, Json]:
    """Return admission policies that do with pull pods what OpenShift does for restricted-v2."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    shared = {
        "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
        "matchConditions": [
            {"name": "pulls", "expression": f"'{LABEL_PULL}' in object.metadata.?labels.orValue({{}})"}
        ],
    }
    added = {
        "/metadata/annotations/openshift.io~1scc": "'restricted-v2'",
        "/spec/securityContext/fsGroup": str(FIRST),
        "/spec/containers/0/securityContext/runAsUser": str(FIRST),
    }
    *of_pod, of_container = (
        f'[JSONPatch{{op: "add", path: "{path}", value: {value}}}]' for path, value in added.items()
    )
    patch = f"{' + '.join(of_pod)} + (has(object.spec.securityContext.runAsUser) ? [] : {of_container})"
    user = f"securityContext.?runAsUser.orValue({FIRST})"
    users = f"([object.spec.{user}] + object.spec.containers.map(one, one.{user}))"
    return {
        "mutating": {
            **shared,
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
            "reinvocationPolicy": "Never",
        },
        "validating": {
            **shared,
            "validations": [{"expression": f"{users}.all(uid, uid >= {FIRST} && uid <= {LAST})"}],
        },
    }


@asynccontextmanager
async def restricted(cluster: Cluster) -> AsyncIterator[None]:
    """Have such a namespace. Skips the test on an API server before 1.36."""
    name, group, made = cluster.namespace, "admissionregistration.k8s.io", list[Resource]()
    try:
        for kind, spec in rules(cluster).items():
            policies, bindings = (Resource(f"{kind}admissionpolic{end}", group) for end in ("ies", "ybindings"))
            try:
                await cluster.client.create(policies, "", {"metadata": {"name": name}, "spec": spec})
            except ResourceMissingError:
                pytest.skip("needs MutatingAdmissionPolicies")
            made += [policies, bindings]
            actions = {"validationActions": ["Deny"]} if kind == "validating" else {}
            body = {"metadata": {"name": name}, "spec": {"policyName": name, **actions}}
            await cluster.client.create(bindings, "", body)
        async with asyncio.timeout(PATIENCE):
            while await user_of(cluster) != FIRST or await user_of(cluster, 65534) is not None:
                await asyncio.sleep(0.2)
        yield
    finally:
        for each in made:
            with suppress(GoneError):
                await cluster.client.delete(each, "", name)


async def user_of(cluster: Cluster, uid: int | None = None) -> int | None:
    """Return the user that a new pull pod would get, None if it would be rejected."""
    container = {"name": "pull", "image": cluster.image, "securityContext": {"runAsNonRoot": True}}
    spec = {"containers": [container], "securityContext": {"runAsUser": uid} if uid else {"runAsNonRoot": True}}
    meta = {"name": "trial", "labels": {LABEL_PULL: "trial"}, "annotations": {"a": "b"}}
    try:
        made = await cluster.client.create(PODS, cluster.namespace, {"metadata": meta, "spec": spec}, dry_run=True)
    except ApiRefusedError:
        return None
    found: int | None = made["spec"]["containers"][0]["securityContext"].get("runAsUser")
    return found


@pytest.mark.parametrize("uid", [None, FIRST + 5])
async def test_users_of_pull_pods_as_under_openshift(cluster: Cluster, tmp_path: Path, uid: int | None) -> None:
    """The user of the pods is accepted. Where they have none, a pull pod gets one from admission."""
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path), restricted(cluster):
        spec = pod_spec(cluster, "app")
        if uid:
            spec["containers"][0]["securityContext"] = {"runAsUser": uid}
        before = await workload(cluster, "Deployment", "web", 2, spec=spec)
        ended = await recreate(cluster, "deployment/web", *FLAGS, "--image", image)
        assert ended.code == 0, ended
        after = await pods_of(cluster, "web")
        kept(before, after, "app")
        assert {image_of(pod) for pod in after} == {image}
