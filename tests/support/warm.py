"""Commands of crrd as processes that have no imports left to do: forks of a process that has done them.

Tests run a command as its own process, and most of its time would be imports. So each worker of the suite keeps one
process with all imports (`serve`), and a command is a fork of it, with its own arguments, environment, working
directory and standard streams.
"""

import asyncio
import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

from coverage import Coverage

from tests.support.signals import OF_TERMINALS

_LENGTH = 8  # Size of the length field of a message, in bytes


async def run(arguments: list[str], environment: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Run `python -m crrd` with these arguments to its end. Kill it if the caller is cancelled.

    Args:
        arguments: after the program's name.
        environment: the whole environment.
        stdin: its standard input.

    Returns:
        Its exit code, negative for a signal; its stdout and stderr.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        async with _asked(arguments, environment, [stream.fileno() for stream in (given, out, err)]) as answer:
            await answer.readline()
            code = int(await answer.readline())
        return code, _all_of(out), _all_of(err)


class Started:
    """A command that runs, without input. Its stdout and stderr are one stream. `begun` yields it."""

    def __init__(self, pid: int, answer: asyncio.StreamReader, stdout: asyncio.StreamReader) -> None:
        self.stdout = stdout
        self._pid = pid
        self._code = asyncio.create_task(self._read(answer))

    async def _read(self, answer: asyncio.StreamReader) -> int:
        return int(await answer.readline() or -signal.SIGKILL)

    @property
    def runs(self) -> bool:
        """Whether its end is not known yet."""
        return not self._code.done()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._pid, number)

    async def ended(self) -> tuple[int, str]:
        """Wait for its end, and return its exit code (negative for a signal), and its output that is not read yet."""
        out = await self.stdout.read()
        return await self._code, out.decode()


@asynccontextmanager
async def begun(
    arguments: list[str], environment: Mapping[str, str], *, ignores: Collection[int] = ()
) -> AsyncIterator[Started]:
    """Run a command while the block lasts, and kill it then. It ignores these of a terminal's signals."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as nothing, os.fdopen(reading, "rb") as output:
        async with _asked(arguments, environment, [nothing.fileno(), writing, writing], ignores) as answer:
            os.close(writing)
            stdout = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(stdout)
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, output)
            try:
                yield Started(int(await answer.readline()), answer, stdout)
            finally:
                pipe.close()


@asynccontextmanager
async def _asked(
    arguments: list[str], environment: Mapping[str, str], streams: list[int], ignores: Collection[int] = ()
) -> AsyncIterator[asyncio.StreamReader]:
    """Start a command, and yield two lines: its PID, and at its end its exit code. Afterwards, it is killed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address())
    asked = json.dumps([arguments, dict(environment), str(Path.cwd()), list(ignores)]).encode()
    socket.send_fds(connection, [len(asked).to_bytes(_LENGTH, "big")], streams)
    connection.sendall(asked)
    answer, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        yield answer
    finally:
        writer.close()


def _all_of(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


@cache
def _address() -> str:
    """Return the address of this process' server, which is started once."""
    address = f"\0crrd-warm-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        number = listening.fileno()
        measured = ["-m", "coverage", "run"] if Coverage.current() else []
        command = [sys.executable, *measured, "-m", "tests.support.warm", str(number)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[number], cwd=Path(__file__).parents[2])
    atexit.register(process.communicate)  # it ends with its stdin
    return address


def serve(listening: socket.socket) -> None:
    """Fork for each connection, until stdin ends."""
    import crrd.cli  # noqa: PLC0415 - only needed here

    for module in pkgutil.iter_modules(crrd.cli.__path__, "crrd.cli."):
        importlib.import_module(module.name)
    gc.freeze()  # so that the exit does not traverse it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the results of the waiting processes are not needed
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _wait_for(connection)
        connection.close()


def _wait_for(connection: socket.socket) -> None:
    """In a separate process: start the command, and send its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    asked = b""
    while len(asked) < int.from_bytes(length, "big"):
        asked += connection.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        connection.close()
        arguments, environment, folder, ignores = json.loads(asked)
        for number in OF_TERMINALS:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in ignores else usual)
        _become(arguments, environment, folder, streams)
    with suppress(OSError):
        connection.sendall(f"{pid}\n".encode())
    process = os.pidfd_open(pid)
    ready, _, _ = select.select([process, connection.fileno()], [], [])
    if process not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


def _become(arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> NoReturn:
    """Run `python -m crrd` in this process."""
    from crrd.cli.main import main  # noqa: PLC0415 - only needed here

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    encoding = environment.get("PYTHONIOENCODING") or sys.stdout.encoding
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115 - may be a pipe now
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["crrd", *arguments]
    main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
