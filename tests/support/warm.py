"""Commands of crrd as processes that have no imports left to do: forks of a process that has done them.

Tests run a command as its own process, and most of its time would be imports. So each worker of the suite keeps one
process with all imports (`serve`), and a command is a fork of it, with its own arguments, environment, working
directory and standard streams.
"""

import asyncio
import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

from coverage import Coverage

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
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_address())
            asked = json.dumps([arguments, dict(environment), str(Path.cwd())]).encode()
            streams = [stream.fileno() for stream in (given, out, err)]
            socket.send_fds(connection, [len(asked).to_bytes(_LENGTH, "big")], streams)
            connection.sendall(asked)
            connection.setblocking(False)
            code = int(await asyncio.get_running_loop().sock_recv(connection, 100))
        return code, _all_of(out), _all_of(err)


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
        arguments, environment, folder = json.loads(asked)
        _become(arguments, environment, folder, streams)
    process = os.pidfd_open(pid)
    ready, _, _ = select.select([process, connection.fileno()], [], [])
    if process not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        connection.sendall(str(code).encode())
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
    if encoding := environment.get("PYTHONIOENCODING"):
        sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding)
    sys.argv = ["crrd", *arguments]
    main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
