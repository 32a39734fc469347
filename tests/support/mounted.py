"""Pods of the local node that get a ConfigMap in every way: what their containers see, before and after an edit.

For tests of restarts after an edit. A container of `reader` writes the values that it starts with, so `starts` shows
whether a restart has come too early, too late, or twice.
"""

import asyncio
from pathlib import Path
from typing import Any

from crrd.kube.resources import CONFIG_MAPS, PODS
from tests.support.cluster import WAITING_SCRIPT, Cluster, Json, container

NAME = "cfg"
KEY = "key"
TOUCHED = "tests/touched"
VOLUMES: tuple[Json, ...] = (
    {"name": NAME, "configMap": {"name": NAME}},
    {"name": "notes", "downwardAPI": {"items": [{"path": KEY, "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
)
"""The ConfigMap, and the pod's annotations, which show when the node has refreshed the pod's volumes."""
WHOLE: Json = {"name": NAME, "mountPath": "/etc/cfg"}
PART: Json = {"name": NAME, "mountPath": "/etc/part", "subPath": KEY}


def reader(name: str = "app") -> Json:
    """Return a container that appends the ConfigMap's value as variable, file and subPath to `/shared/starts`."""
    script = f"echo $VALUE $(cat $CRRD_ROOT/etc/cfg/{KEY}) $(cat $CRRD_ROOT/etc/part) >> /shared/starts"
    env = [{"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": NAME, "key": KEY}}}]
    return container(name, f"{script}; {WAITING_SCRIPT}", env=env, volumeMounts=[WHOLE, PART])


def starts(cluster: Cluster, pod: str) -> list[str]:
    """Return the values of each start of the pod's `reader`: variable, file and subPath."""
    return cluster.read(pod, "starts").splitlines()


async def create_config(cluster: Cluster, value: str, **fields: Any) -> None:
    """Create the ConfigMap. `fields` are added to it, for example `immutable`."""
    body = {"metadata": {"name": NAME}, "data": {KEY: f"{value}\n"}, **fields}
    await cluster.client.create(CONFIG_MAPS, cluster.namespace, body)


async def edit_config(cluster: Cluster, value: str) -> None:
    """Change the value. The node may know of it only a moment later."""
    body = {"data": {KEY: f"{value}\n"}}
    await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, NAME, body)


async def touch(cluster: Cluster, pod: str, value: str = "1") -> None:
    """Change an annotation of the pod, so that kubelet refreshes its volumes a moment later."""
    body = {"metadata": {"annotations": {TOUCHED: value}}}
    await cluster.client.merge_patch(PODS, cluster.namespace, pod, body)


def file_of(cluster: Cluster, pod: Json, volume: Json = VOLUMES[0]) -> Path:
    """Return the file on the node that a volume of the pod has for the key."""
    plugin = "configmap" if "configMap" in volume else "downward-api"
    root = cluster.local.root / "kubelet" / "pods" / str(pod["metadata"]["uid"])
    return root / "volumes" / f"kubernetes.io~{plugin}" / str(volume["name"]) / KEY


async def wait_file(path: Path, content: str) -> None:
    """Wait until a file of a volume has this content."""

    def arrived() -> bool:
        return path.read_text() == content

    async with asyncio.timeout(30):
        while True:
            if arrived():
                return
            await asyncio.sleep(0.01)


async def run_settled(cluster: Cluster, name: str, app: Json) -> Json:
    """Run a pod, and return it when all refreshes since its start are over, as with a pod that runs for long."""
    pod = await cluster.run_pod(name, [app], volumes=list(VOLUMES))
    await refresh(cluster, pod, "0")
    return pod


async def refresh(cluster: Cluster, pod: Json, value: str = "1") -> None:
    """Touch the pod with another value than before, and wait until its volumes are refreshed."""
    await touch(cluster, pod["metadata"]["name"], value)
    await wait_file(file_of(cluster, pod, VOLUMES[1]), f'{TOUCHED}="{value}"')


async def edit_known(cluster: Cluster, value: str) -> None:
    """Edit the ConfigMap, and return when the node knows: a pod that is touched has the new file."""
    witness = await run_settled(cluster, "witness", container("app", volumeMounts=[WHOLE]))
    await edit_config(cluster, value)
    await touch(cluster, "witness")
    await wait_file(file_of(cluster, witness), f"{value}\n")
