"""What the daemons ask of the API is what the roles grant: each call is allowed, and no rule is unused."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.api import types as model
from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import POLICIES, REQUESTS, Resource
from crrd_localnode.api.admission import User
from crrd_localnode.daemons import running_manager
from tests.manager.test_policies import is_done, is_idle, managing
from tests.manager.test_restore import newest_kept, prepare, until_left
from tests.support.cluster import container, on_local_node, states
from tests.support.daemons import NodeDaemon, second_manager
from tests.support.faulty_api import Call, FaultyApiServer
from tests.support.faulty_node import FaultyNode

SECRETS = Resource("secrets")
CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
PATCHED = ("crrd-manager", "patch", POLICIES.plural)
MANIFESTS = Path(__file__).parents[2] / "manifests"
DEFAULT = MANIFESTS / "default"
Json = dict[str, Any]


def granted(name: str) -> set[tuple[str, str, str]]:
    """(verb, group, resource or resource/subresource) of every rule of a ServiceAccount's roles."""
    text = subprocess.run(["kubectl", "kustomize", str(DEFAULT)], capture_output=True, text=True, check=True).stdout
    roles = [each for each in yaml.safe_load_all(text) if each["kind"] in ("Role", "ClusterRole")]
    return {
        (verb, group, resource)
        for role in roles
        if role["metadata"]["name"] == name
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def asked(calls: list[Call], user: str) -> set[tuple[str, str, str]]:
    return {
        (call.verb, call.group, f"{call.resource}/{call.subresource}" if call.subresource else call.resource)
        for call in calls
        if call.user == user and call.resource  # /version is open to everybody
    }


def is_managers_write(call: Call) -> bool:
    return (call.user, call.verb, call.resource) == ("crrd-manager", "patch", model.PLURAL)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to render manifests")
async def test_every_call_is_allowed_and_every_rule_is_used(tmp_path: Path) -> None:
    calls: list[Call] = []
    users = {"n": User("crrd-node"), "m": User("crrd-manager")}
    api = FaultyApiServer(tokens=users, log=calls.append)
    async with (
        FaultyNode(tmp_path / "node", api=api) as local,
        on_local_node(local, tmp_path) as cluster,
    ):
        manager_config = api.kubeconfig(tmp_path / "manager.kubeconfig", token="m")
        node_config = api.kubeconfig(tmp_path / "node.kubeconfig", token="n")
        async with (
            running_manager(local, manager_config),
            NodeDaemon(cluster, tmp_path / "node.log", kubeconfig=node_config),
        ):
            async with second_manager(local, manager_config):  # one that does not lead watches the lease
                async with asyncio.timeout(20):
                    while not any((call.verb, call.resource) == ("watch", "leases") for call in calls):
                        await asyncio.sleep(0.05)
            await cluster.create_gated_pod("web")
            await cluster.wait_pod("web", lambda pod: bool(pod["status"].get("containerStatuses")), "has statuses")
            await cluster.wait_pod(
                "web",
                lambda pod: bool((pod["status"]["containerStatuses"][0]).get("ready")),
                "app is ready",
            )
            body: Json = {
                "apiVersion": model.API_VERSION,
                "kind": model.KIND,
                "metadata": {"name": "one", "namespace": cluster.namespace},
                "spec": {
                    "podName": "web",
                    "containers": [{"name": "app"}],
                    "strategy": {"unreadyGracePeriodSeconds": 1, "forceRecreate": True},
                    "ttlSecondsAfterFinished": 1,
                },
            }
            # A policy that does nothing; what its runs need is granted by namespace.
            spec = {"selector": {"matchLabels": {"a": "b"}}, "triggers": {"maxAge": "72h"}, "suspend": True}
            policy = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "rest"}, "spec": spec}
            await cluster.client.create(POLICIES, cluster.namespace, policy)
            async with asyncio.timeout(30):
                while not any((call.user, call.verb, call.resource) == PATCHED for call in calls):
                    await asyncio.sleep(0.05)
            # Somebody was faster with a write: the manager reads the request again.
            api.fail_next(status=409, match=is_managers_write)
            await cluster.create_request(body)
            await cluster.wait_gone(REQUESTS, "one")
            late: Json = {**body, "metadata": {**body["metadata"], "name": "two"}}
            late["spec"] = {"podName": "web", "containers": [{"name": "app"}], "activeDeadlineSeconds": 3}
            late["spec"]["strategy"] = {"minStartedSeconds": 600}
            await cluster.create_request(late)
            await cluster.wait_completed("two")
            await cluster.delete_pod("web", grace=1)
            # Whether kubelet starts this one again depends on its version, which is in the Node.
            await cluster.run_pod("own", [container("app", restartPolicy="Always")], restartPolicy="Never")
            late |= {"metadata": {**body["metadata"], "name": "three"}}
            late["spec"] = {"podName": "own", "containers": [{"name": "app"}]}
            await cluster.create_request(late)
            assert states(await cluster.wait_completed("three")) == {"app": "Succeeded"}
            async with asyncio.timeout(20):
                while not any(call.user == "crrd-node" and call.resource == "events" for call in calls):
                    await asyncio.sleep(0.05)
        # A Secret that lost its content is written anew: what a renewal does after some months.
        await cluster.client.merge_patch(SECRETS, "crrd-system", "crrd-manager-tls", {"data": None})
        async with second_manager(local, manager_config):
            pass
    for user in ("crrd-node", "crrd-manager"):
        allowed, used = granted(user), asked(calls, user)
        assert used - allowed == set(), "calls that no rule allows"
        assert allowed - used == set(), "rules that nothing needs"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to render manifests")
async def test_what_a_policy_needs_in_its_namespace_is_what_its_owner_binds(tmp_path: Path) -> None:
    calls: list[Call] = []
    options: Json = {"tokens": {"m": User("crrd-manager")}, "log": calls.append}
    async with managing(tmp_path, "m", **options) as managed:
        mounts: Json = {"volumeMounts": [{"name": "cfg", "mountPath": "/etc/cfg"}]}
        volumes = [{"name": "cfg", "configMap": {"name": "cfg"}}]
        await managed.cluster.workload("Deployment", "reader", 1, "app", volumes=volumes, **mounts)
        await managed.policy(targetRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "reader"})
        await managed.lead()
        await managed.until(is_idle)
        await managed.config(LOG="debug")
        await managed.until(is_done)
    used, bound = asked(calls, "crrd-manager"), granted("crrd-read-config")
    assert used - granted("crrd-manager") - bound == set(), "calls that no rule allows"
    runs = {("create", "apps.kruise.io", model.PLURAL), ("patch", "", "pods"), ("get", "", "configmaps")}
    assert runs <= used & bound


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to render manifests")
async def test_what_a_policy_that_restores_data_needs_is_what_its_owner_binds(tmp_path: Path) -> None:
    calls: list[Call] = []
    options: Json = {"tokens": {"m": User("crrd-manager")}, "log": calls.append}
    async with managing(tmp_path, "m", **options) as managed:
        await prepare(managed)
        await managed.config(LOG="bad")
        await managed.until(lambda status: bool(status.get("bad")) and is_idle(status))
        managed.cluster.fails.clear()
        await managed.config(LOG="better")
        await managed.until(lambda status: newest_kept(status) and len(managed.cluster.stops) > 1)
        await until_left(managed, 1)
    open_to_all = {("create", "authorization.k8s.io", "selfsubjectaccessreviews")}
    used, bound = asked(calls, "crrd-manager") - open_to_all, granted("crrd-restore-config")
    assert used - granted("crrd-manager") - granted("crrd-read-config") - bound == set(), "calls that no rule allows"
    assert bound - used == {("restore", "crr.apps.kruise.io", "configmaps")}, "rules that nothing needs"
