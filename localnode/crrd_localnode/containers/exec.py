"""Runs one command with a time limit and collects its output, for ExecSync."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import cast

from cri_stubs import api_pb2

MAX_OUTPUT = 16 * 1024 * 1024  # Limit for each stream in bytes; containerd's limit


class _Collector(asyncio.SubprocessProtocol):
    """Collects the command's output. Done when the command has ended and its output is closed."""

    def __init__(self) -> None:
        self.output = {1: bytearray(), 2: bytearray()}
        self.exited = asyncio.Event()
        self.done = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        kept = self.output[fd]
        kept += data[: MAX_OUTPUT - len(kept)]

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set()


async def run(
    command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, seconds: float | None, groups: set[int]
) -> api_pb2.ExecSyncResponse:
    """Run a command in its own process group, which is killed on a timeout or cancellation.

    `seconds` (None for no limit) ends when the output is closed. `groups` contains the group's number while it runs.
    Raises TimeoutError on a timeout, and OSError if the command cannot be started.
    """
    loop, null = asyncio.get_running_loop(), asyncio.subprocess.DEVNULL
    start = loop.subprocess_exec(_Collector, *command, stdin=null, env=env, cwd=cwd, start_new_session=True)
    transport, protocol = await start
    group = transport.get_pid()
    groups.add(group)
    try:
        async with asyncio.timeout(seconds):
            await protocol.done.wait()
    finally:
        if not protocol.done.is_set():
            # Other processes of the group may keep the output open although the command itself has ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            await protocol.exited.wait()
        transport.close()
        groups.discard(group)
    code = cast("int", transport.get_returncode())
    code = code if code >= 0 else 128 - code  # 128 plus the number of the signal that killed it
    stdout, stderr = map(bytes, protocol.output.values())
    return api_pb2.ExecSyncResponse(exit_code=code, stdout=stdout, stderr=stderr)
