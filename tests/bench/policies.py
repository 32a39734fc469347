"""`python -m tests.bench.policies KUBECONFIG`: many policies on a real API server, with crrd installed there.

Makes 1 000 Deployments of ten pods, each with a policy and five ConfigMaps of 100 KiB, edits 40 of the ConfigMaps, and
prints the memory of the managers of this machine, and the time from an edit to its first request. The pods run nowhere:
kube-controller-manager must not run meanwhile, because it would delete them. Nothing is deleted afterwards.
"""

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.access.config import find_access
from crrd.kube.client import KubeClient
from crrd.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, POLICIES, REQUESTS, Resource

SPACES, POLICIES_EACH, PODS_EACH, CONFIG_EACH, USED = 10, 100, 10, 500, 5
BYTES = 100 * 1024
SETTLE_SECONDS = 3
EDITS = 40
PARALLEL = 24
NODE = "load-1"
ACCOUNTS, BINDINGS = Resource("serviceaccounts"), Resource("rolebindings", "rbac.authorization.k8s.io")
DEPLOYMENTS, REPLICA_SETS = Resource("deployments", "apps"), Resource("replicasets", "apps")
Json = dict[str, Any]


def _template(number: int) -> Json:
    names = [f"cm-{number * USED + each}" for each in range(USED)]
    app = {
        "name": "app",
        "image": "none",
        "env": [{"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": names[0], "key": "value"}}}],
        "envFrom": [{"configMapRef": {"name": names[1]}}],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names[2:]],
    }
    spec = {
        "nodeName": NODE,
        "automountServiceAccountToken": False,
        "containers": [app, {"name": "side", "image": "none"}],
        "volumes": [{"name": name, "configMap": {"name": name}} for name in names[2:]],
    }
    return {"metadata": {"labels": {"app": f"web-{number}"}}, "spec": spec}


def _running() -> Json:
    """The status of a pod whose two containers run, since long ago."""
    containers = [
        {
            "name": name,
            "image": "none",
            "imageID": "none",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "containerID": f"containerd://{os.urandom(32).hex()}",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
        for name in ("app", "side")
    ]
    conditions = [{"type": each, "status": "True"} for each in ("Ready", "ContainersReady", "Initialized")]
    return {"status": {"phase": "Running", "conditions": conditions, "containerStatuses": containers}}


class Load:
    """The objects, and what is done to them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(PARALLEL)

    async def _create(self, resource: Resource, namespace: str, name: str, body: Json) -> Mapping[str, Any]:
        metadata = {"name": name, **body.pop("metadata", {})}
        async with self._slots:
            return await self._client.create(resource, namespace, {"metadata": metadata, **body})

    async def _status(self, resource: Resource, namespace: str, name: str, body: Json) -> None:
        async with self._slots:
            await self._client.merge_patch(resource, namespace, name, body, subresource="status")

    async def daemon(self) -> None:
        """A pod that looks like the node daemon of the node of all pods."""
        labels = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}
        spec = {"nodeName": NODE, "containers": [{"name": "crrd", "image": "none"}]}
        await self._create(PODS, "crrd-node", NODE, {"metadata": {"labels": labels}, "spec": spec})

    async def space(self, namespace: str) -> None:
        """One namespace with its ConfigMaps, Deployments, pods and policies."""
        await self._create(NAMESPACES, "", namespace, {})
        await self._create(ACCOUNTS, namespace, "default", {})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "crrd-read-config"}
        account = {"kind": "ServiceAccount", "name": "crrd-manager", "namespace": "crrd-system"}
        await self._create(BINDINGS, namespace, "crrd-read-config", {"roleRef": role, "subjects": [account]})
        data = {"value": "old", "rest": "x" * BYTES}
        await asyncio.gather(
            *(self._create(CONFIG_MAPS, namespace, f"cm-{each}", {"data": data}) for each in range(CONFIG_EACH))
        )
        await asyncio.gather(*(self._workload(namespace, each) for each in range(POLICIES_EACH)))

    async def _workload(self, namespace: str, number: int) -> None:
        name, template = f"web-{number}", _template(number)
        labels = template["metadata"]["labels"]
        spec = {"replicas": PODS_EACH, "selector": {"matchLabels": labels}, "template": template}
        deployment = await self._create(DEPLOYMENTS, namespace, name, {"spec": spec})
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), PODS_EACH)
        await self._status(DEPLOYMENTS, namespace, name, {"status": {"observedGeneration": 1, **counts}})
        owned = {"labels": labels, "ownerReferences": _owner("Deployment", deployment)}
        replica_set = await self._create(REPLICA_SETS, namespace, name, {"metadata": owned, "spec": spec})
        owned = {"labels": labels, "ownerReferences": _owner("ReplicaSet", replica_set)}
        for pod in (f"{name}-{each}" for each in range(PODS_EACH)):
            await self._create(PODS, namespace, pod, {"metadata": {**owned}, "spec": template["spec"]})
            await self._status(PODS, namespace, pod, _running())
        policy = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "triggers": {"configChange": {"settle": f"{SETTLE_SECONDS}s"}},
            },
        }
        await self._create(POLICIES, namespace, name, policy)

    async def known(self, namespace: str) -> int:
        """How many policies remember all that their containers use."""
        found = (await self._client.list_all(POLICIES, dict, namespace=namespace)).items
        return sum(len(policy.get("status", {}).get("config", ())) == USED for policy in found)

    async def edit(self, namespace: str, number: int) -> float:
        """Seconds from an edit's answer to the first request for a pod, without the time to settle."""
        version = (await self._client.list_all(REQUESTS, dict, namespace=namespace)).resource_version
        async with asyncio.timeout(60), self._client.watch(REQUESTS, version, namespace=namespace) as events:
            edited = {"data": {"value": str(random.random())}}
            await self._client.merge_patch(CONFIG_MAPS, namespace, f"cm-{number * USED}", edited)
            began = time.monotonic()
            async for event in events:
                if event.kind == "ADDED" and event.object["spec"]["podName"].startswith(f"web-{number}-"):
                    break
            return time.monotonic() - began - SETTLE_SECONDS


def _owner(kind: str, owner: Mapping[str, Any]) -> list[Json]:
    meta = owner["metadata"]
    return [{"apiVersion": "apps/v1", "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}]


def _managers() -> dict[int, str]:
    """Resident memory and its peak, of each `crrd manager` of this machine."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"crrd\0manager" in (folder / "cmdline").read_bytes():
                lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                resident, peak = (int(lines[name].split()[0]) // 1024 for name in ("VmRSS", "VmHWM"))
                found[int(folder.name)] = f"{resident} MiB, at most {peak}"
        except OSError:  # it has ended
            continue
    return found


async def main(kubeconfig: str) -> None:
    """Run the bench."""
    async with KubeClient(find_access(kubeconfig, {})) as client:
        load, spaces = Load(client), [f"load-{each}" for each in range(SPACES)]
        await load.daemon()
        for namespace in spaces:
            await load.space(namespace)
            print(f"made {namespace}; managers {_managers()}", flush=True)
        while (known := sum([await load.known(each) for each in spaces])) < SPACES * POLICIES_EACH:
            print(f"{known} policies have looked at their target; managers {_managers()}", flush=True)
            await asyncio.sleep(5)
        took = []
        for number in random.sample(range(SPACES * POLICIES_EACH), EDITS):
            await asyncio.sleep(random.random())  # kubelet and managedFields count in whole seconds
            took.append(await load.edit(spaces[number // POLICIES_EACH], number % POLICIES_EACH))
        print(f"edit to first request, above settle: median {statistics.median(took):.2f} s, most {max(took):.2f} s")
        print(f"managers {_managers()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {__doc__.splitlines()[0].split('`')[1]}")
    asyncio.run(main(sys.argv[1]))
