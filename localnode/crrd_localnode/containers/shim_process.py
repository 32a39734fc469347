"""The runtime's side of a shim: starts it, finds it again, sends it signals, and notices its end.

A shim is referred to by a pidfd, which also works for shims of an earlier runtime process, never refers to another
process, and becomes readable when the shim ends. So no polling is needed.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crrd_localnode.containers import shim
from crrd_localnode.containers.shim import identity

SOURCE = Path(__file__).resolve().parents[2]  # For PYTHONPATH: without site-packages, a shim starts in half the time


def python_command(module: str, argument: str) -> list[str]:
    """Return the command line of a helper program, which needs `python_environment`."""
    return [sys.executable, "-S", "-m", module, argument]


def python_environment() -> dict[str, str]:
    """Return the environment of helper programs: only their path."""
    return {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}


class ShimProcess:
    """A shim that was running when the object was created."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    @classmethod
    def find(cls, pid: int, known_as: str) -> "ShimProcess | None":
        """Return the shim with this number and identity, or None if it has ended."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        # Checked after opening, because from then on the number cannot be reused unnoticed.
        if identity(pid) == known_as:
            return cls(pid, pidfd)
        os.close(pidfd)
        return None

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Call back once, in the event loop, when the shim has ended."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(self._pidfd)
            # A shim of an earlier runtime process is not our child: its new parent reaps it.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
            os.close(self._pidfd)
            self._pidfd = -1
            callback()

        loop.add_reader(self._pidfd, ended)

    def let_go(self) -> None:
        """Stop watching. The shim continues."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def send(self, word: signal.Signals) -> None:
        """Send one of the shim's signals. Does nothing if it has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, word)


class StartingShim:
    """A shim that waits for the go-ahead to run its container."""

    def __init__(self, directory: Path) -> None:
        """Start the program. OSError if that fails."""
        go_read, self._go = os.pipe2(os.O_CLOEXEC)
        self._reply, reply_write = os.pipe2(os.O_CLOEXEC)
        errors = os.open(directory / "shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        command = python_command(shim.__name__, str(directory))
        inherit = [(os.POSIX_SPAWN_DUP2, own, theirs) for theirs, own in enumerate((go_read, reply_write, errors))]
        try:
            options: Any = {"file_actions": inherit, "setsid": True, "setsigmask": shim.HELD}
            pid = os.posix_spawn(command[0], command, python_environment(), **options)
        except OSError:
            os.close(self._go)
            os.close(self._reply)
            raise
        finally:
            for file in (go_read, reply_write, errors):
                os.close(file)
        self.process = ShimProcess(pid, os.pidfd_open(pid))
        self.known_as = identity(pid) or ""

    async def run(self) -> str:
        """Send the go-ahead and wait for the result: "" if the container's process is running, else the error."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        reply = os.fdopen(self._reply, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reply)
        try:
            # If the shim has already died, the pipe is closed, and the empty response below shows it.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._go, b"!")
            os.close(self._go)
            answer = (await reader.read()).decode(errors="replace")
        finally:
            transport.close()
        return answer.removesuffix("\n") if answer.endswith("\n") else "the shim died, see its shim.log"
