"""The private containerd itself: what the other tests here stand on, and that it leaves nothing behind."""

from pathlib import Path

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from cri_stubs.api_pb2_grpc import RuntimeServiceStub
from tests.support.containerd import Containerd, processes_naming
from tests.support.images import BUSYBOX_IMAGE

pytestmark = [pytest.mark.containerd, pytest.mark.usefixtures("containerd")]


def run_container(stub: RuntimeServiceStub, name: str) -> str:
    sandbox = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name, namespace="support", uid=name),
        linux=pb.LinuxPodSandboxConfig(
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=pb.NODE))
        ),
    )
    sandbox_id = stub.RunPodSandbox(pb.RunPodSandboxRequest(config=sandbox), timeout=30).pod_sandbox_id
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="app"),
        image=pb.ImageSpec(image=BUSYBOX_IMAGE),
        command=["/bin/sleep", "1000"],
        linux=pb.LinuxContainerConfig(),
    )
    create = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
    container_id = stub.CreateContainer(create, timeout=30).container_id
    stub.StartContainer(pb.StartContainerRequest(container_id=container_id), timeout=30)
    return container_id


def shell_of(endpoint: str, container_id: str) -> bytes:
    with grpc.insecure_channel(endpoint) as channel:
        request = pb.ExecSyncRequest(container_id=container_id, cmd=["/bin/sh", "-c", "echo $0"], timeout=10)
        return RuntimeServiceStub(channel).ExecSync(request, timeout=30).stdout


def test_containers_outlive_the_death_and_the_restart_of_their_runtime_and_nothing_outlives_destroy() -> None:
    runtime = Containerd()
    try:
        runtime.prepare()
        with grpc.insecure_channel(runtime.endpoint) as channel:
            container_id = run_container(RuntimeServiceStub(channel), "outlives")
        runtime.kill()
        assert not runtime.running
        runtime.start()
        assert shell_of(runtime.endpoint, container_id) == b"/bin/sh\n"
        runtime.restart()
        assert shell_of(runtime.endpoint, container_id) == b"/bin/sh\n"
        runtime.kill()  # destroy has to start it once more to take the container down
    finally:
        runtime.destroy()

    assert not runtime.folder.exists()
    assert runtime.address not in Path("/proc/mounts").read_text()
    assert not list(processes_naming(runtime.address))


def test_removing_the_pods_of_one_namespace_leaves_the_others(containerd: Containerd) -> None:
    with grpc.insecure_channel(containerd.endpoint) as channel:
        stub = RuntimeServiceStub(channel)
        container_id = run_container(stub, "namespaces")
        containerd.remove_pods("another")
        assert stub.ContainerStatus(pb.ContainerStatusRequest(container_id=container_id), timeout=30).status.id
        containerd.remove_pods("support")
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            stub.ContainerStatus(pb.ContainerStatusRequest(container_id=container_id), timeout=30)
