"""Short methods for CRI calls, for tests of the local runtime over its real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from cri_stubs.api_pb2_grpc import ImageServiceStub, RuntimeServiceStub
from crrd_localnode.runtime import ProcessRuntime

if TYPE_CHECKING:
    from cri_stubs.api_pb2_grpc import ImageServiceAsyncStub, RuntimeServiceAsyncStub

T = TypeVar("T")

IMAGE = "busybox"  # Of containers, unless a test wants another one
NOBODY = "0" * 64  # An ID that does not exist
PATIENCE = 30.0  # Seconds until a test fails because a condition is not met


async def eventually(condition: Callable[[], Awaitable[T]]) -> T:
    """Poll an async condition, and return its first true value."""
    async with asyncio.timeout(PATIENCE):
        while not (value := await condition()):
            await asyncio.sleep(0.01)
        return value


async def until(condition: Callable[[], T]) -> T:
    """Poll a condition, and return its first true value."""

    async def look() -> T:
        return condition()

    return await eventually(look)


class Client:
    """A client of one runtime."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.runtime: RuntimeServiceAsyncStub = RuntimeServiceStub(channel)
        self.images: ImageServiceAsyncStub = ImageServiceStub(channel)

    async def sandbox(self, name: str = "web", *, labels: Mapping[str, str] | None = None, logs: str = "") -> str:
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, namespace="shop", uid=f"uid-of-{name}"),
            labels=labels,
            annotations={"kept": "as it is"},
            log_directory=logs,
        )
        return (await self.runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=config))).pod_sandbox_id

    async def pull(self, image: str) -> str:
        request = pb.PullImageRequest(image=pb.ImageSpec(image=image))
        return (await self.images.PullImage(request)).image_ref

    async def create(
        self,
        sandbox: str,
        script: str = "exec sleep 1000",
        *,
        name: str = "app",
        attempt: int = 0,
        image: str = IMAGE,
        mounts: Sequence[pb.Mount] = (),
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        log: str = "",
    ) -> str:
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=image),
            command=["sh", "-c"] if script else [],
            args=[script] if script else [],
            envs=[pb.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()],
            mounts=mounts,
            labels=labels,
            annotations={"io.kubernetes.container.restartCount": str(attempt)},
            log_path=log,
        )
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
        return (await self.runtime.CreateContainer(request)).container_id

    async def start(self, container: str) -> None:
        await self.runtime.StartContainer(pb.StartContainerRequest(container_id=container))

    async def run(
        self,
        sandbox: str,
        script: str = "exec sleep 1000",
        *,
        name: str = "app",
        mounts: Sequence[pb.Mount] = (),
        env: Mapping[str, str] | None = None,
        log: str = "",
    ) -> str:
        container = await self.create(sandbox, script, name=name, mounts=mounts, env=env, log=log)
        await self.start(container)
        return container

    async def stop(self, container: str, seconds: int) -> None:
        await self.runtime.StopContainer(pb.StopContainerRequest(container_id=container, timeout=seconds))

    async def remove(self, container: str) -> None:
        await self.runtime.RemoveContainer(pb.RemoveContainerRequest(container_id=container))

    async def status(self, container: str) -> pb.ContainerStatus:
        return (await self.runtime.ContainerStatus(pb.ContainerStatusRequest(container_id=container))).status

    async def pids(self, container: str) -> tuple[int, int]:
        """Return the PIDs of the container's process and of its shim."""
        request = pb.ContainerStatusRequest(container_id=container, verbose=True)
        info = json.loads((await self.runtime.ContainerStatus(request)).info["info"])
        return info["pid"], info["shimPid"]

    async def exited(self, container: str) -> pb.ContainerStatus:
        """Wait until the container has ended, and return its status."""

        async def ended() -> pb.ContainerStatus | None:
            status = await self.status(container)
            return status if status.state == pb.CONTAINER_EXITED else None

        status = await eventually(ended)
        assert status is not None
        return status

    async def list(self, wanted: pb.ContainerFilter | None = None) -> Sequence[pb.Container]:
        return (await self.runtime.ListContainers(pb.ListContainersRequest(filter=wanted))).containers

    async def execute(self, container: str, *command: str, seconds: int = 0) -> pb.ExecSyncResponse:
        request = pb.ExecSyncRequest(container_id=container, cmd=command, timeout=seconds)
        return await self.runtime.ExecSync(request)


@asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[Client]:
    """Yield a client of the runtime at a socket, which may be about to start.

    The image of the containers is pulled. The client has its own connection: gRPC would share one with an earlier
    client of the same socket, whose runtime was killed.
    """
    soon = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50)]
    options = [*soon, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=options) as channel:
        await asyncio.wait_for(channel.channel_ready(), PATIENCE)
        client = Client(channel)
        await client.pull(IMAGE)
        yield client


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Client]:
    """Yield a client of a new runtime, which ends with its containers."""
    runtime = ProcessRuntime(directory / "root", directory / "cri.sock")
    await runtime.start()
    try:
        async with connected(runtime.socket) as client:
            yield client
    finally:
        await runtime.stop()


@asynccontextmanager
async def refused(code: grpc.StatusCode, words: str = "") -> AsyncIterator[None]:
    """Check that the call inside gets this status, and a message with these words."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value
    assert words in (caught.value.details() or "")


def alive(pid: int) -> bool:
    """Whether a process is running. A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    await until(lambda: not alive(pid))


async def content(file: Path, words: str = "") -> str:
    """Wait until a file contains these words, and return its content."""

    def text() -> str:
        found = file.read_text() if file.exists() else ""
        return found if words in found else ""

    return await until(text)
