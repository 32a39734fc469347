"""What shows on a cluster how a container was restarted, and what may forbid it: logs, rights, admission policies."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml

from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import Resource
from crrd.lib.errors import GoneError
from tests.support.cluster import PATIENCE, Cluster, Json, container_id
from tests.support.recreates import pod_spec

ONE_RESTART = ("start", "hook", "term", "start")
"""What a container of `logged_spec` has written after one restart."""
_ACCOUNTS, _ROLE_BINDINGS = Resource("serviceaccounts"), Resource("rolebindings", "rbac.authorization.k8s.io")
_ADMISSION = "admissionregistration.k8s.io"
EDITOR = "editor"


def logged_spec(cluster: Cluster, *names: str) -> Json:
    """Return a pod spec with containers that write down each start, preStop hook and SIGTERM. `wrote` reads it."""
    spec = pod_spec(cluster, *names)
    for each in spec["containers"]:
        file = f"/log/{each['name']}"
        run = f"echo start >> {file}; trap 'echo term >> {file}; exit 0' TERM; while :; do sleep 0.1 & wait $!; done"
        each["command"] = ["/bin/sh", "-c", run]
        each["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", f"echo hook >> {file}"]}}}
        each["volumeMounts"] = [{"name": "log", "mountPath": "/log"}]
    return {**spec, "volumes": [{"name": "log", "emptyDir": {}}]}


async def wrote(cluster: Cluster, pod: Json, name: str, *words: str) -> None:
    """Assert that the instances of a container of a pod have written this. The last one may need a moment for it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            read = await cluster.execute(container_id(pod, name), "cat", f"/log/{name}")
            if len(found := read.stdout.decode().split()) >= len(words):
                break
            await asyncio.sleep(0.2)
    assert found == [*words], f"{name} of {pod['metadata']['name']} has written {found}"


async def editor(cluster: Cluster, folder: Path) -> Path:
    """Return the kubeconfig of a user who has the ClusterRole `edit` in the test's namespace, and nothing else."""
    where = cluster.namespace
    await cluster.client.create(_ACCOUNTS, where, {"metadata": {"name": EDITOR}})
    role = {"apiGroup": _ROLE_BINDINGS.group, "kind": "ClusterRole", "name": "edit"}
    subject = {"kind": "ServiceAccount", "name": EDITOR, "namespace": where}
    binding = {"metadata": {"name": EDITOR}, "roleRef": role, "subjects": [subject]}
    await cluster.client.create(_ROLE_BINDINGS, where, binding)
    words = ("--kubeconfig", str(cluster.kubeconfig), "-n", where, "create", "token", EDITOR)
    process = await asyncio.create_subprocess_exec("kubectl", *words, stdout=asyncio.subprocess.PIPE)
    token = (await process.communicate())[0].decode().strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    context = next(each for each in config["contexts"] if each["name"] == config["current-context"])
    context["context"] = {"cluster": context["context"]["cluster"], "user": EDITOR}
    made = folder / "editor.kubeconfig"
    user = {"name": EDITOR, "user": {"token": token}}
    made.write_text(json.dumps({**config, "contexts": [context], "users": [user]}))
    return made


@asynccontextmanager
async def admission_policy(
    cluster: Cluster, kind: str, spec: Json, in_force: Callable[[], Awaitable[bool]]
) -> AsyncIterator[None]:
    """Keep an admission policy in force for the test's namespace. Skips the test if the API server has none of them.

    Args:
        cluster: the cluster.
        kind: "Validating" or "Mutating".
        spec: of the policy, without its namespace.
        in_force: whether the API server uses it already, which takes a moment.
    """
    policies, bindings = (Resource(f"{kind.lower()}admissionpolic{end}", _ADMISSION) for end in ("ies", "ybindings"))
    name, deny = cluster.namespace, {"validationActions": ["Deny"]} if kind == "Validating" else {}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}}
    constraints = {**spec["matchConstraints"], **here}
    try:
        policy = {"metadata": {"name": name}, "spec": {**spec, "matchConstraints": constraints}}
        await cluster.client.create(policies, "", policy)
    except ResourceMissingError:
        pytest.skip(f"needs {kind}AdmissionPolicies")
    try:
        await cluster.client.create(bindings, "", {"metadata": {"name": name}, "spec": {"policyName": name, **deny}})
        async with asyncio.timeout(PATIENCE):
            while not await in_force():
                await asyncio.sleep(0.2)
        yield
    finally:
        for each in (bindings, policies):
            with suppress(GoneError):
                await cluster.client.delete(each, "", name)
