"""Workloads on a local node, which has no controllers: the objects that a cluster's would have made, made at once.

They stay as they are: nobody replaces a pod that goes, and nobody keeps a status up to date.
"""

import copy
from collections.abc import Mapping
from typing import Any

from daemon.kube.client import KubeClient
from daemon.kube.resources import PODS, Resource

Json = dict[str, Any]
RESOURCES = {kind: Resource(f"{kind.lower()}s", "apps") for kind in ("Deployment", "ReplicaSet", "StatefulSet")}
_HASH = "6c7f9d5b8"


async def create_workload(
    client: KubeClient, namespace: str, kind: str, name: str, replicas: int, pod_spec: Mapping[str, Any]
) -> Json:
    """Create a Deployment with its ReplicaSet, or a StatefulSet, rolled out, and its pods; returns the workload.

    `pod_spec` names the node: there is no scheduler. The pods are not ready yet.
    """
    labels = {"app": name}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": dict(pod_spec)},
    }
    workload = await _rolled_out(client, namespace, kind, name, spec, {})
    owner, labels = workload, dict(labels)
    if kind == "Deployment":
        labels["pod-template-hash"] = _HASH
        below = copy.deepcopy(spec)
        below["selector"]["matchLabels"] = below["template"]["metadata"]["labels"] = labels
        owner = await _rolled_out(client, namespace, "ReplicaSet", f"{name}-{_HASH}", below, owned_by(workload))
    for number in range(replicas):
        pod_name = (
            f"{name}-{_HASH}-{'bcdfghjklm'[number // 10 % 10]}{number % 10}x"
            if kind == "Deployment"
            else f"{name}-{number}"
        )
        meta = {"name": pod_name, "namespace": namespace, "labels": labels, **owned_by(owner)}
        await client.create(PODS, namespace, {"metadata": meta, "spec": dict(pod_spec)})
    return workload


async def _rolled_out(client: KubeClient, namespace: str, kind: str, name: str, spec: Json, owner: Json) -> Json:
    """One object, with the status that its controller writes in the end."""
    resource = RESOURCES[kind]
    body = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **owner},
        "spec": spec,
    }
    made = await client.create(resource, namespace, body)
    counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), spec["replicas"])
    if kind == "ReplicaSet":
        del counts["updatedReplicas"]
    status = {"observedGeneration": made["metadata"]["generation"], **counts}
    return dict(await client.merge_patch(resource, namespace, name, {"status": status}, subresource="status"))


def owned_by(owner: Mapping[str, Any]) -> Json:
    """Metadata of what a controller has made."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"ownerReferences": [reference]}
