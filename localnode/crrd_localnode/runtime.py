"""A container runtime whose containers are plain local processes: CRI v1 on a Unix socket, without images and root.

Exit codes, logs, labels, signals and timeouts are real, but there is no isolation (see `containers.rootfs`). Each
container has its own shim process (`containers.shim`), so the runtime can be killed and restarted, and finds its
containers running. Its state is in its root directory, which only one runtime at a time can use.
"""

import asyncio
import fcntl
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import grpc

from crrd_localnode.containers import rootfs
from crrd_localnode.containers.images import ImageService
from crrd_localnode.containers.registry import Registry
from crrd_localnode.containers.rpc import handlers
from crrd_localnode.containers.service import RuntimeService
from crrd_localnode.containers.shim_process import python_command, python_environment

MAX_SOCKET_PATH = 107  # Limit for the path of a Unix socket on Linux, in bytes


class ProcessRuntime:
    """The runtime: `await start()`, use the socket, `await stop()`."""

    def __init__(self, root: Path, socket: Path) -> None:
        """`root` is the directory for the runtime's state, created if needed. An existing socket is replaced."""
        self.root = root.absolute()
        self.socket = socket.absolute()
        self.endpoint = f"unix://{self.socket}"
        self._registry = Registry(self.root, ImageService(self.root))
        self._server: grpc.aio.Server | None = None
        self._lock = ExitStack()

    async def start(self) -> None:
        """Load the state of an earlier process, and serve. OSError if the root or the socket cannot be used."""
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH:
            raise OSError(f"the socket's path is longer than {MAX_SOCKET_PATH} bytes: {self.socket}")
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._lock.callback(os.close, lock(self.root / "lock"))
        except BlockingIOError as error:
            raise OSError(error.errno, f"{self.root} is in use by another runtime") from error
        namespaced = await self._can_mount()
        self._registry.load()
        runtime = RuntimeService(self._registry, namespaced=namespaced)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        if self.socket.exists() and stat.S_ISSOCK(self.socket.stat().st_mode):
            self.socket.unlink()
        server = grpc.aio.server()
        images = handlers("ImageService", self._registry.images)
        server.add_generic_rpc_handlers((handlers("RuntimeService", runtime), images))
        server.add_insecure_port(self.endpoint)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop the runtime and all containers. Calls in progress are aborted."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        await asyncio.gather(*(container.stop(0) for container in self._registry.containers.values()))
        for container in self._registry.containers.values():
            container.let_go()
        self.socket.unlink(missing_ok=True)
        self._lock.close()

    async def _can_mount(self) -> bool:
        """Whether containers can have a mount namespace. It is tried, because not every root user can create one."""
        directory = self.root / "probe"
        directory.mkdir(exist_ok=True)
        command, null = python_command(rootfs.__name__, str(directory)), asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, env=python_environment(), stdin=null, stderr=null)
        return await process.wait() == 0


def lock(path: Path) -> int:
    """Lock a file until it is closed or the process ends, and return it. OSError if it is already locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
