"""The CRI edge against a real containerd: what it completes, cuts off and leaves behind."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from cri_stubs.api_pb2_grpc import RuntimeServiceStub
from crrd.core.api.types import Pin
from crrd.core.recreate.observation import Hook, HookKind, Instance
from crrd.cri.client import OUTPUT_BYTES
from crrd.cri.runtime import NodeRuntime, connect
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import RuntimeCallError
from tests.support.containerd import Containerd
from tests.support.images import BUSYBOX_IMAGE
from tests.support.scripted_cri import labels

pytestmark = pytest.mark.containerd

NAMESPACE = "edges"
POD_UID = "uid-of-edges"


def start_pod(endpoint: str) -> str:
    """A pod with one container that ends on TERM, as kubelet would label it; the container's ID."""
    sandbox = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name="web", namespace=NAMESPACE, uid=POD_UID),
        linux=pb.LinuxPodSandboxConfig(
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=pb.NODE))
        ),
    )
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="app", attempt=3),
        image=pb.ImageSpec(image=BUSYBOX_IMAGE),
        command=["/bin/sh", "-c", "trap 'exit 7' TERM; touch /up; while :; do sleep 0.1; done"],
        labels=labels(POD_UID, "app", "web", NAMESPACE),
        annotations={"io.kubernetes.container.preStopHandler": '{"exec":{"command":["true"]}}'},
        linux=pb.LinuxContainerConfig(),
    )
    with grpc.insecure_channel(endpoint) as channel:
        stub = RuntimeServiceStub(channel)
        sandbox_id = stub.RunPodSandbox(pb.RunPodSandboxRequest(config=sandbox), timeout=30).pod_sandbox_id
        create = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
        container_id = stub.CreateContainer(create, timeout=30).container_id
        stub.StartContainer(pb.StartContainerRequest(container_id=container_id), timeout=30)
    return container_id


@pytest.fixture
async def node(containerd: Containerd) -> AsyncIterator[NodeRuntime]:
    await asyncio.to_thread(start_pod, containerd.endpoint)
    node = await connect([containerd.address])
    yield node
    await node.close()
    await asyncio.to_thread(containerd.remove_pods, NAMESPACE)


@pytest.fixture
async def instance(node: NodeRuntime) -> Instance:
    (found,) = await node.instances(POD_UID)
    return found


async def test_one_list_tells_all_that_a_stop_needs(node: NodeRuntime, instance: Instance) -> None:
    assert node.names == {"containerd"}
    assert (instance.name, instance.pod_name, instance.pod_namespace) == ("app", "web", NAMESPACE)
    assert (instance.state, instance.restart_count) == (ContainerState.RUNNING, 3)
    assert instance.hook == Hook(HookKind.EXEC, command=("true",))


async def test_truncated_ids_are_not_taken_for_the_whole(node: NodeRuntime, instance: Instance) -> None:
    assert await node.find(instance.pin) == instance
    assert await node.find(Pin(f"containerd://{instance.id[:12]}")) is None


async def test_a_command_that_takes_too_long_is_killed(node: NodeRuntime, instance: Instance) -> None:
    with pytest.raises(RuntimeCallError) as caught:
        await node.execute(instance, ("sleep", "4711"), 1)

    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert b"4711" not in (await node.execute(instance, ("ps",), 10)).stdout


async def test_output_is_cut(node: NodeRuntime, instance: Instance) -> None:
    result = await node.execute(instance, ("sh", "-c", "yes | head -c 3000000; exit 3"), 30)

    assert (result.exit_code, len(result.stdout), result.stderr) == (3, OUTPUT_BYTES, b"")
    with pytest.raises(RuntimeCallError) as caught:
        await node.execute(instance, ("sh", "-c", "yes | head -c 9000000; exit 3"), 30)
    assert caught.value.code == "RESOURCE_EXHAUSTED"


async def test_a_stop_ends_the_container_and_may_be_repeated(node: NodeRuntime, instance: Instance) -> None:
    while (await node.execute(instance, ("test", "-e", "/up"), 10)).exit_code:
        pass  # until its trap is set

    await node.stop(instance, 30)

    (exited,) = await node.instances(instance.pod_uid)
    assert exited.state is ContainerState.EXITED
    await node.stop(instance, 30)
    await node.stop(replace(instance, id="0" * 64), 30)
    with pytest.raises(RuntimeCallError):
        await node.execute(instance, ("true",), 5)
