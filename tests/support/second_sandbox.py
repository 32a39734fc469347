"""A second sandbox of a pod, made through the CRI, and pods that write down how kubelet restarts them because of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from cri_stubs import api_pb2 as pb
from crrd.kube.resources import NODES, PODS
from crrd.lib.errors import ApiRefusedError
from tests.support.cluster import (
    PATIENCE,
    Cluster,
    Json,
    container,
    container_id,
    container_status,
    pod_ready,
)
from tests.tools.matrix import versions

LABEL = "crrd-test/second-sandbox"
STATIC_UID = "kubernetes.io/config.hash"
"""The annotation of a mirror pod with the UID by which kubelet and the runtime know the static pod."""
WINDOW_SECONDS = 4.0
"""Kubelet looks at the runtime's pods once a second. What it has not done after this time, it does not do."""
SPEC: Json = {"hostNetwork": False, "volumes": [{"name": "kept", "emptyDir": {}}]}
WHOLE_POD = (
    *("init-1", "side-start-1", "app-start-1"),
    *("app-hook", "app-hooked", "app-term", "app-end", "side-term", "side-end"),
    *("init-2", "side-start-2", "app-start-2"),
)
"""What a pod with `INIT`, `SIDE` and `APP` has written after one restart: a hook, a grace period and the order."""


def _counted(name: str, event: str) -> str:
    """Return the script that writes an event with its number, which it counts in the pod's emptyDir."""
    return f"echo x >> /kept/{name}; echo {event}-$(wc -l < /kept/{name}) >> /shared/log"


def member(name: str, *, code: int = 0, hook_seconds: int = -1, **fields: Any) -> Json:
    """Return a container that writes each start, preStop hook, SIGTERM and end. Without hook if its time is negative.

    It ends with the exit code, a second after SIGTERM.
    """
    write = f">> /shared/log; sleep 1; echo {name}-end >> /shared/log; exit {code}"
    script = f"{_counted(name, f'{name}-start')}; trap 'echo {name}-term {write}' TERM; sleep 1000000 & wait"
    if hook_seconds >= 0:
        hook = f"echo {name}-hook >> /shared/log; sleep {hook_seconds}; echo {name}-hooked >> /shared/log"
        fields["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", hook]}}}
    return container(name, script, volumeMounts=[{"name": "kept", "mountPath": "/kept"}], **fields)


def init(script: str = "true") -> Json:
    """Return an init container that writes its run, and then runs the script."""
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    return container("init", f"{_counted('init', 'init')}; {script}", volumeMounts=mounts)


APP, SIDE, INIT = member("app", hook_seconds=1), member("side", restartPolicy="Always"), init()


def runtime_uid(pod: Json) -> str:
    """Return the UID by which the runtime knows a pod. A static pod's is not the one of its mirror pod."""
    metadata = pod["metadata"]
    return str((metadata.get("annotations") or {}).get(STATIC_UID) or metadata["uid"])


def as_in_runtime(pod: Json) -> Json:
    """Return the pod with the UID by which the runtime knows it."""
    return {**pod, "metadata": {**pod["metadata"], "uid": runtime_uid(pod)}}


def configuration(pod: Json, attempt: int, network: "pb.NamespaceMode.ValueType" = pb.NODE) -> pb.PodSandboxConfig:
    """Return an empty sandbox with the identity of a pod."""
    metadata, uid = pod["metadata"], runtime_uid(pod)
    name, namespace = metadata["name"], metadata["namespace"]
    labels = {"name": name, "namespace": namespace, "uid": uid}
    options = pb.NamespaceOption(network=network, pid=pb.CONTAINER)
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name, namespace=namespace, uid=uid, attempt=attempt),
        labels={**{f"io.kubernetes.pod.{key}": value for key, value in labels.items()}, LABEL: "true"},
        log_directory=f"/var/log/pods/{namespace}_{name}_{uid}",
        linux=pb.LinuxPodSandboxConfig(security_context=pb.LinuxSandboxSecurityContext(namespace_options=options)),
    )


async def run(cluster: Cluster, config: pb.PodSandboxConfig) -> str:
    """Run a sandbox, and return its ID. Raises grpc.aio.AioRpcError."""
    return (await cluster.cri.RunPodSandbox(pb.RunPodSandboxRequest(config=config), timeout=PATIENCE)).pod_sandbox_id


async def second_sandbox(
    cluster: Cluster, pod: Json, network: "pb.NamespaceMode.ValueType" = pb.NODE, step: int = 1
) -> str:
    """Run a second sandbox of the pod, and return its ID. Its attempt is the newest one plus `step`.

    Kubelet's next sandbox has the newest attempt plus 1.
    """
    newest = max((each.metadata.attempt for each in await cluster.sandboxes(as_in_runtime(pod))), default=0)
    return await run(cluster, configuration(pod, newest + step, network))


async def remove(cluster: Cluster, sandbox_id: str) -> None:
    """Remove a sandbox, ready or not, without stopping it first."""
    await cluster.cri.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=PATIENCE)


async def sandboxes(cluster: Cluster, pod: Json) -> dict[int, str]:
    """Return the pod's sandboxes: whether each attempt is ready, and which of them are not of kubelet."""
    found = await cluster.sandboxes(as_in_runtime(pod))
    states = {pb.SANDBOX_READY: "ready", pb.SANDBOX_NOTREADY: "stopped"}
    return {each.metadata.attempt: states[each.state] for each in sorted(found, key=lambda x: x.metadata.attempt)}


def attempts(found: Mapping[int, str]) -> str:
    """Return the result of `sandboxes` in words."""
    return ", ".join(f"{attempt} {state}" for attempt, state in found.items())


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of the restart of a pod."""

    before: Json
    after: Json
    addresses: Sequence[str]
    """The pod's IPs in the API, in order. "" is none."""
    seconds: float
    """From the second sandbox until the pod was ready again."""

    @property
    def address(self) -> str:
        """What became of the IP."""
        first, *between, last = self.addresses if len(self.addresses) > 1 else 2 * [*self.addresses]
        kept = "same IP" if first == last else "new IP"
        return f"{kept}, {' and '.join(each or 'none' for each in between)} between" if between else kept


def names(pod: Json) -> list[str]:
    """Return the names of all containers of a pod, init containers too."""
    return [each["name"] for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])]


def counts(pod: Json) -> dict[str, int]:
    """Return the restart count of each container, without init containers."""
    return {each["name"]: int(each["restartCount"]) for each in pod["status"].get("containerStatuses") or ()}


def _id(pod: Json, name: str) -> str:
    return str(container_status(pod, name).get("containerID") or "")


def restarted_whole(before: Json) -> Callable[[Json], bool]:
    """Return a condition: each container has a new instance, and the pod is ready.

    By IDs, because kubelet counts the restarts of init containers anew in each sandbox.
    """

    def check(pod: Json) -> bool:
        return pod_ready(pod) and all(_id(pod, name) not in ("", _id(before, name)) for name in names(pod))

    return check


async def awaited(cluster: Cluster, before: Json, since: float) -> Seen:
    """Wait until the whole pod has been restarted."""
    is_over, addresses = restarted_whole(before), [before["status"].get("podIP", "")]

    def check(pod: Json) -> bool:
        address = pod["status"].get("podIP", "")
        if address != addresses[-1]:
            addresses.append(address)
        return is_over(pod)

    after = await cluster.wait_pod(before["metadata"]["name"], check, "restarted")
    return Seen(before=before, after=after, addresses=addresses, seconds=monotonic() - since)


async def restart(cluster: Cluster, before: Json, network: "pb.NamespaceMode.ValueType" = pb.NODE) -> Seen:
    """Run a second sandbox of a pod, and wait until kubelet has restarted the pod."""
    since = monotonic()
    await second_sandbox(cluster, before, network)
    return await awaited(cluster, before, since)


async def restarted_once(cluster: Cluster, seen: Seen) -> None:
    """Assert that each container was restarted once, in the same pod, and that kubelet leaves one ready sandbox.

    Looks after `WINDOW_SECONDS`, in which kubelet would begin another restart.
    """
    await asyncio.sleep(WINDOW_SECONDS)
    now = await cluster.pod(seen.before["metadata"]["name"])
    assert now["metadata"]["uid"] == seen.before["metadata"]["uid"]
    assert counts(now) == {name: count + 1 for name, count in counts(seen.before).items()}
    assert [container_id(now, name) for name in names(now)] == [container_id(seen.after, name) for name in names(now)]
    assert list((await sandboxes(cluster, now)).values()).count("ready") == 1


def words(cluster: Cluster, pod: Json) -> list[str]:
    """Return what the containers of a pod have written."""
    return cluster.read(pod["metadata"]["name"], "log").split()


def of(name: str, found: Sequence[str]) -> list[str]:
    """Return what a container has written, without its name."""
    return [each.removeprefix(f"{name}-") for each in found if each.startswith(f"{name}-")]


async def written(cluster: Cluster, pod: Json, word: str, times: int = 1) -> None:
    """Wait until a container of the pod has written the word so often."""
    async with asyncio.timeout(PATIENCE):
        while words(cluster, pod).count(word) < times:
            await asyncio.sleep(0.02)


async def run_ruled(cluster: Cluster, name: str, containers: Sequence[Json], **options: Any) -> Json:
    """Run a pod with restart rules that restart all containers. Skips the test if the API server does not know them."""
    why = "this cluster has no RestartAllContainers (Kubernetes 1.36)"
    node = await cluster.client.get(NODES, "", cluster.node_name)
    if int(node["status"]["nodeInfo"]["kubeletVersion"].split(".")[1]) < 36:
        pytest.skip(why)
    try:
        pod = await cluster.run_pod(name, containers, **SPEC, **options)
    except ApiRefusedError as error:
        if "restartPolicy" not in str(error) and "action" not in str(error):
            raise
        pytest.skip(why)
    if "restartPolicyRules" not in pod["spec"]["containers"][0]:
        pytest.skip(why)
    return pod


async def show(cluster: Cluster, results: Mapping[str, str]) -> None:
    """Print rows for the table of docs/support.md."""
    server, node = await cluster.client.document("/version"), await cluster.client.get(NODES, "", cluster.node_name)
    for case, result in results.items():
        print(f"| {case} | {' | '.join(versions(server, node)[:2])} | {result} |")  # for -rP


async def all_meet(cluster: Cluster, pods: Sequence[Json], condition: Callable[[Json], Callable[[Json], bool]]) -> None:
    """Wait until each pod of the test's namespace meets its condition, by lists."""
    checks = {pod["metadata"]["name"]: condition(pod) for pod in pods}
    async with asyncio.timeout(3 * PATIENCE):
        while True:
            listing = await cluster.client.list_all(PODS, dict, namespace=cluster.namespace)
            if all(checks[each["metadata"]["name"]](each) for each in listing.items):
                return
            await asyncio.sleep(0.2)
