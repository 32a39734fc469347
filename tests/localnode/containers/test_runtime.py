"""The local runtime over its real socket: sandboxes, containers, lists, events, images."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from crrd_localnode.containers.rpc import snake_case
from tests.support.local_runtime import NOBODY, PATIENCE, Client, alive, content, eventually, gone, refused, serving

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
        "Version", "Status", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus",
        "ListPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "ListContainers",
        "ContainerStatus", "ContainerStats", "ListContainerStats", "ExecSync", "GetContainerEvents", "ListImages",
        "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo",
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
    described = await client.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox))
    assert described.status.state == pb.SANDBOX_READY
    assert described.status.network.ip == "127.0.0.1"
    assert described.status.metadata.uid == "uid-of-web"
    assert dict(described.status.labels) == {"tier": "front"}
    assert dict(described.status.annotations) == {"kept": "as it is"}

    container = await client.run(sandbox)
    for _ in range(2):
        await client.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    described = await client.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox))
    assert described.status.state == pb.SANDBOX_NOTREADY
    assert [(one.id, one.exit_code) for one in described.containers_statuses] == [(container, 137)]
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "stopped"):
        await client.create(sandbox, attempt=1)

    for _ in range(2):
        await client.runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    async with refused(NOT_FOUND, sandbox):
        await client.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox))
    async with refused(NOT_FOUND, container):
        await client.status(container)
    await client.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))


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
    for field in ("id", "metadata", "image", "image_ref", "image_id", "state", "created_at", "labels", "annotations"):
        assert getattr(listed, field) == getattr(described, field)


async def test_streams_an_event_for_each_change(client: Client) -> None:
    sandbox = await client.sandbox()
    call = client.runtime.GetContainerEvents(pb.GetEventsRequest())
    container = ""
    seen: list[tuple[str, int]] = []

    async with asyncio.timeout(PATIENCE):
        # The stream begins when the runtime has taken the call; until then, make containers for it to tell of.
        first = asyncio.ensure_future(call.read())
        attempt = 0
        while not first.done():
            container = await client.create(sandbox, name="probe", attempt=attempt)
            attempt += 1
            await asyncio.wait([first], timeout=0.1)
        container = await client.create(sandbox, "trap 'exit 5' TERM; while :; do sleep 0.05; done")
        await client.start(container)
        await client.stop(container, 0)
        await client.remove(container)
        while len(seen) < 4:
            event = await call.read()
            assert isinstance(event, pb.ContainerEventResponse)
            if event.container_id == container:
                seen.append((pb.ContainerEventType.Name(event.container_event_type), len(event.containers_statuses)))
                assert event.pod_sandbox_status.id == sandbox
                assert event.created_at > 0
    total = attempt + 1
    assert seen == [
        ("CONTAINER_CREATED_EVENT", total),
        ("CONTAINER_STARTED_EVENT", total),
        ("CONTAINER_STOPPED_EVENT", total),
        ("CONTAINER_DELETED_EVENT", total - 1),
    ]
    call.cancel()


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
    async with refused(invalid, "image"):
        await client.create(sandbox, image="")
    async with refused(NOT_FOUND, "image"):
        await client.create(sandbox, image="shop/web:does-not-exist")
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


async def test_images_are_names(client: Client) -> None:
    async def pull(name: str) -> str:
        request = pb.PullImageRequest(image=pb.ImageSpec(image=name))
        return (await client.images.PullImage(request)).image_ref

    async def names() -> list[str]:
        return [image.repo_tags[0] for image in (await client.images.ListImages(pb.ListImagesRequest())).images]

    async def status(name: str) -> pb.ImageStatusResponse:
        return await client.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=name)))

    assert not (await status("shop/web:1")).HasField("image")
    reference = await pull("shop/web:1")
    assert await pull("shop/web:1") == reference
    await pull("shop/db:2")
    assert await names() == ["shop/web:1", "shop/db:2"]
    image = (await status(reference)).image
    assert (image.id, list(image.repo_tags)) == (reference, ["shop/web:1"])
    assert image.size > 0
    wanted = pb.ImageFilter(image=pb.ImageSpec(image="shop/db:2"))
    assert len((await client.images.ListImages(pb.ListImagesRequest(filter=wanted))).images) == 1
    for _ in range(2):
        await client.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image="shop/web:1")))
    assert await names() == ["shop/db:2"]
    for missing in ("shop/web:does-not-exist", "does-not-exist/web:1"):
        async with refused(NOT_FOUND, missing):
            await pull(missing)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT):
        await pull("")
    usage = await client.images.ImageFsInfo(pb.ImageFsInfoRequest())
    assert len(usage.image_filesystems) == 1


async def test_what_a_container_uses(client: Client) -> None:
    sandbox = await client.sandbox()
    busy = await client.run(sandbox, "while :; do :; done", name="busy")
    idle = await client.run(sandbox, name="idle")
    created = await client.create(sandbox, name="created")

    async def listed(**wanted: Any) -> dict[str, pb.ContainerStats]:
        request = pb.ListContainerStatsRequest(filter=pb.ContainerStatsFilter(**wanted))
        found = (await client.runtime.ListContainerStats(request)).stats
        return {one.attributes.id: one for one in found}

    assert (await listed()).keys() == {busy, idle}, "those that run"
    assert (await listed(id=idle)).keys() == {idle}
    assert await listed(pod_sandbox_id=NOBODY) == {}

    async def worked() -> bool:
        found = await client.runtime.ContainerStats(pb.ContainerStatsRequest(container_id=busy))
        assert found.stats.attributes.metadata.name == "busy"
        return found.stats.cpu.usage_core_nano_seconds.value > 50_000_000

    await eventually(worked)
    assert (await listed())[idle].memory.working_set_bytes.value > 10_000
    found = await client.runtime.ContainerStats(pb.ContainerStatsRequest(container_id=created))
    assert (found.stats.cpu.usage_core_nano_seconds.value, found.stats.memory.working_set_bytes.value) == (0, 0)
    async with refused(NOT_FOUND):
        await client.runtime.ContainerStats(pb.ContainerStatsRequest(container_id=NOBODY))
