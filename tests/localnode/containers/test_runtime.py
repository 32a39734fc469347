"""The local runtime over its real socket: sandboxes, containers, lists, events, images."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from crrd_localnode.containers.rpc import snake_case
from tests.support.local_runtime import NOBODY, Client, alive, content, gone, refused, serving

NOT_FOUND = grpc.StatusCode.NOT_FOUND


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(tmp_path) as client:
        yield client


async def test_says_who_it_is_and_that_it_is_well(client: Client) -> None:
    version = await client.runtime.Version(pb.VersionRequest())
    assert (version.runtime_name, version.runtime_api_version) == ("crrd-local", "v1")
    status = await client.runtime.Status(pb.StatusRequest())
    assert {one.type: one.status for one in status.status.conditions} == {"RuntimeReady": True, "NetworkReady": True}


async def test_answers_all_other_methods_with_unimplemented(client: Client) -> None:
    served = {
        "Version", "Status", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "ListPodSandbox",
        "PodSandboxStatus",
        "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "ListContainers",
        "ContainerStatus", "ExecSync", "ListImages", "ImageStatus", "PullImage", "RemoveImage",
    }  # fmt: skip
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            if method.name not in served:
                path = f"/{service.full_name}/{method.name}"
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(path)
                async with refused(grpc.StatusCode.UNIMPLEMENTED):
                    await call(b"")


def test_method_names_are_found_in_snake_case() -> None:
    assert [snake_case(name) for name in ("RunPodSandbox", "ImageFsInfo", "Version")] == [
        "run_pod_sandbox", "image_fs_info", "version",
    ]  # fmt: skip


async def test_a_sandbox_from_run_to_removal(client: Client) -> None:
    sandbox = await client.sandbox("web", labels={"tier": "front"})
    assert len(sandbox) == 64
    assert int(sandbox, 16)
    [listed] = (await client.runtime.ListPodSandbox(pb.ListPodSandboxRequest())).items
    assert (listed.id, listed.state, listed.metadata.uid) == (sandbox, pb.SANDBOX_READY, "uid-of-web")
    assert dict(listed.labels) == {"tier": "front"}
    assert dict(listed.annotations) == {"kept": "as it is"}

    container = await client.run(sandbox)
    for _ in range(2):
        await client.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    [listed] = (await client.runtime.ListPodSandbox(pb.ListPodSandboxRequest())).items
    assert listed.state == pb.SANDBOX_NOTREADY
    assert (await client.status(container)).exit_code == 137
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "stopped"):
        await client.create(sandbox, attempt=1)

    for _ in range(2):
        await client.runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert not (await client.runtime.ListPodSandbox(pb.ListPodSandboxRequest())).items
    async with refused(NOT_FOUND, container):
        await client.status(container)
    await client.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))


@pytest.mark.parametrize("verbose", [True, False])
async def test_a_verbose_status_of_a_sandbox_has_its_configuration(client: Client, *, verbose: bool) -> None:
    sandbox = await client.sandbox("web")
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=verbose)
    found = await client.runtime.PodSandboxStatus(request)
    assert (found.status.id, found.status.state) == (sandbox, pb.SANDBOX_READY)
    assert ("info" in found.info) is verbose
    if verbose:
        assert json.loads(found.info["info"])["config"]["metadata"]["name"] == "web"


async def test_removing_a_sandbox_kills_what_runs_in_it(client: Client) -> None:
    sandbox = await client.sandbox()
    pid, _ = await client.pids(await client.run(sandbox))
    await client.runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert not alive(pid)
    assert await client.list() == []


async def test_lists_sandboxes_by_id_state_and_labels(client: Client) -> None:
    web = await client.sandbox("web", labels={"tier": "front", "zone": "a"})
    db = await client.sandbox("db", labels={"tier": "back", "zone": "a"})
    await client.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=db))

    async def ids(wanted: pb.PodSandboxFilter | None) -> list[str]:
        answer = await client.runtime.ListPodSandbox(pb.ListPodSandboxRequest(filter=wanted))
        return [item.id for item in answer.items]

    assert await ids(None) == [web, db]
    assert await ids(pb.PodSandboxFilter(id=db)) == [db]
    assert await ids(pb.PodSandboxFilter(state=pb.PodSandboxStateValue(state=pb.SANDBOX_READY))) == [web]
    assert await ids(pb.PodSandboxFilter(state=pb.PodSandboxStateValue(state=pb.SANDBOX_NOTREADY))) == [db]
    assert await ids(pb.PodSandboxFilter(label_selector={"zone": "a"})) == [web, db]
    assert await ids(pb.PodSandboxFilter(label_selector={"zone": "a", "tier": "front"})) == [web]
    assert await ids(pb.PodSandboxFilter(id=web, label_selector={"tier": "back"})) == []


async def test_a_container_from_creation_to_removal(client: Client, tmp_path: Path) -> None:
    sandbox = await client.sandbox(logs=str(tmp_path / "logs"))
    container = await client.create(sandbox, attempt=3, labels={"io.kubernetes.container.name": "app"}, log="app/3.log")
    created = await client.status(container)
    assert created.state == pb.CONTAINER_CREATED
    assert created.created_at > 0
    assert (created.started_at, created.finished_at) == (0, 0)
    assert created.metadata == pb.ContainerMetadata(name="app", attempt=3)
    assert dict(created.labels) == {"io.kubernetes.container.name": "app"}
    assert dict(created.annotations) == {"io.kubernetes.container.restartCount": "3"}
    assert created.log_path == str(tmp_path / "logs" / "app" / "3.log")
    assert await client.pids(container) == (0, 0)

    await client.start(container)
    running = await client.status(container)
    assert running.state == pb.CONTAINER_RUNNING
    assert running.started_at > running.created_at
    assert running.finished_at == 0
    pid, shim = await client.pids(container)
    assert alive(pid)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "RUNNING"):
        await client.start(container)

    await client.stop(container, 10)
    exited = await client.status(container)
    assert exited.state == pb.CONTAINER_EXITED
    assert exited.finished_at > exited.started_at
    await gone(shim)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "EXITED"):
        await client.start(container)

    for _ in range(2):
        await client.remove(container)
    async with refused(NOT_FOUND, container):
        await client.status(container)


async def test_removing_a_running_container_kills_it(client: Client) -> None:
    container = await client.run(await client.sandbox())
    pid, _ = await client.pids(container)
    await client.remove(container)
    assert not alive(pid)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "Completed"),
        ("exit 3", 3, "Error"),
        ("kill -KILL $$", 137, "Error"),
        ("kill -TERM $$", 143, "Error"),
    ],
)
async def test_tells_how_a_container_ended(client: Client, script: str, code: int, reason: str) -> None:
    container = await client.run(await client.sandbox(), script)
    status = await client.exited(container)
    assert (status.exit_code, status.reason) == (code, reason)


async def test_without_command_and_args_a_container_just_stays(client: Client) -> None:
    container = await client.run(await client.sandbox(), "")
    pid, _ = await client.pids(container)
    assert await content(Path(f"/proc/{pid}/cmdline")) == "sleep\0infinity\0"


async def test_a_program_that_is_not_there_cannot_be_started(client: Client) -> None:
    sandbox = await client.sandbox()
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="app"), image=pb.ImageSpec(image="busybox"), command=["no-such-program"]
    )
    request = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
    container = (await client.runtime.CreateContainer(request)).container_id
    async with refused(grpc.StatusCode.UNKNOWN, "No such file"):
        await client.start(container)
    status = await client.status(container)
    assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, 128, "StartError")
    assert "No such file" in status.message


async def test_lists_containers_by_id_state_sandbox_and_labels(client: Client) -> None:
    web, db = await client.sandbox("web"), await client.sandbox("db")
    created = await client.create(web, labels={"pod": "web", "name": "app"})
    running = await client.create(web, name="side", labels={"pod": "web", "name": "side"})
    exited = await client.create(db, "exit 0", labels={"pod": "db", "name": "app"})
    await client.start(running)
    await client.start(exited)
    await client.exited(exited)

    async def ids(wanted: pb.ContainerFilter | None) -> list[str]:
        return [item.id for item in await client.list(wanted)]

    def state(value: pb.ContainerState.ValueType) -> pb.ContainerFilter:
        return pb.ContainerFilter(state=pb.ContainerStateValue(state=value))

    assert await ids(None) == [created, running, exited]
    assert await ids(pb.ContainerFilter(id=running)) == [running]
    assert await ids(state(pb.CONTAINER_CREATED)) == [created]
    assert await ids(state(pb.CONTAINER_RUNNING)) == [running]
    assert await ids(state(pb.CONTAINER_EXITED)) == [exited]
    assert await ids(pb.ContainerFilter(pod_sandbox_id=web)) == [created, running]
    assert await ids(pb.ContainerFilter(label_selector={"name": "app"})) == [created, exited]
    assert await ids(pb.ContainerFilter(label_selector={"name": "app", "pod": "db"})) == [exited]
    assert await ids(pb.ContainerFilter(pod_sandbox_id=db, label_selector={"pod": "web"})) == []
    [listed] = await client.list(pb.ContainerFilter(id=created))
    described = await client.status(created)
    for field in ("id", "metadata", "image_id", "state", "created_at", "labels", "annotations"):
        assert getattr(listed, field) == getattr(described, field)


async def test_refuses_what_makes_no_sense(client: Client, tmp_path: Path) -> None:
    invalid, taken = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS
    async with refused(invalid, "metadata.name"):
        await client.sandbox("")
    async with refused(invalid, "runtime handler 'gvisor'"):
        await client.runtime.RunPodSandbox(pb.RunPodSandboxRequest(runtime_handler="gvisor"))
    async with refused(NOT_FOUND, "pod sandbox"):
        await client.create(NOBODY)
    sandbox = await client.sandbox()
    async with refused(taken, sandbox):
        await client.sandbox()
    async with refused(invalid, "metadata.name"):
        await client.create(sandbox, name="")
    for image in ("", "shop/never-pulled:1"):
        async with refused(NOT_FOUND, f"image '{image}'"):
            await client.create(sandbox, image=image)
    async with refused(invalid, "not absolute"):
        await client.create(sandbox, mounts=[pb.Mount(container_path="data", host_path=str(tmp_path))])
    async with refused(invalid, "root directory"):
        await client.create(sandbox, mounts=[pb.Mount(container_path="/", host_path=str(tmp_path))])
    async with refused(invalid, "does not exist"):
        await client.create(sandbox, mounts=[pb.Mount(container_path="/data", host_path=str(tmp_path / "none"))])
    container = await client.create(sandbox)
    async with refused(taken, container):
        await client.create(sandbox)
    assert [item.id for item in await client.list()] == [container]
    async with refused(NOT_FOUND, "container"):
        await client.start(NOBODY)
