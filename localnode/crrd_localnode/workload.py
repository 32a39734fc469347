"""Workloads on a local node. It has no controllers, so this creates the objects that a cluster's would create.

The objects stay as they are: deleted pods are not replaced, and statuses are not updated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, Resource

Json = dict[str, Any]
RESOURCES = {
    kind: Resource(f"{kind.lower()}s", "apps") for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")
}
_HASH = "6c7f9d5b8"
_LETTERS, _MORE_LETTERS = "bcdfghjklm", "kmnpqrstvw"


@dataclass(frozen=True, slots=True)
class Maker:
    """Creates the objects in one namespace."""

    client: KubeClient
    namespace: str

    async def workload(self, kind: str, name: str, replicas: int, pod_spec: Mapping[str, Any]) -> Json:
        """Create a Deployment with its ReplicaSet, or a StatefulSet, and its pods. Return the workload.

        `pod_spec` names the node, because there is no scheduler. The pods are not ready yet.
        """
        labels = {"app": name}
        workload = await self._rolled_out(kind, name, _spec(replicas, labels, pod_spec), {})
        if kind == "StatefulSet":
            for number in range(replicas):
                await self._pod(f"{name}-{number}", labels, pod_spec, workload)
            return workload
        labels = {**labels, "pod-template-hash": _HASH}
        spec = _spec(replicas, labels, pod_spec)
        meta = {"labels": labels, **owned_by(workload)}
        owner = await self._rolled_out("ReplicaSet", f"{name}-{_HASH}", spec, meta)
        for number in range(replicas):
            made_up = f"{_LETTERS[number // 10 % 10]}{_LETTERS[number % 10]}x7{_MORE_LETTERS[number // 100 % 10]}"
            await self._pod(f"{name}-{_HASH}-{made_up}", labels, pod_spec, owner)
        return workload

    async def _pod(self, name: str, labels: Mapping[str, str], spec: Mapping[str, Any], owner: Json) -> None:
        meta = {"name": name, "namespace": self.namespace, "labels": dict(labels), **owned_by(owner)}
        await self.client.create(PODS, self.namespace, {"metadata": meta, "spec": dict(spec)})

    async def _rolled_out(self, kind: str, name: str, spec: Json, metadata: Json) -> Json:
        """Create one object, with the status that its controller would write at the end of the rollout."""
        resource = RESOURCES[kind]
        meta = {"name": name, "namespace": self.namespace, **metadata}
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}
        made = await self.client.create(resource, self.namespace, body)
        counts = ("replicas", "readyReplicas", "availableReplicas", *(["updatedReplicas"] if not metadata else []))
        status = {"observedGeneration": made["metadata"]["generation"], **dict.fromkeys(counts, spec["replicas"])}
        written = self.client.merge_patch(resource, self.namespace, name, {"status": status}, subresource="status")
        return dict(await written)


def _spec(replicas: int, labels: Mapping[str, str], pod_spec: Mapping[str, Any]) -> Json:
    template = {"metadata": {"labels": dict(labels)}, "spec": dict(pod_spec)}
    return {"replicas": replicas, "selector": {"matchLabels": dict(labels)}, "template": template}


def owned_by(owner: Mapping[str, Any]) -> Json:
    """Return the metadata of an object that the owner's controller has created."""
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"]}
    return {"ownerReferences": [{**reference, "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True}]}
