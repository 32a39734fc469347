"""The process between the runtime and one container: it starts the container's process and stays with it to the end.

So the runtime can die and come back: the shim keeps reading the container's output into its log, waits for its exit
and writes down how it ended. It is told what to do by its directory and by signals:

- `spec.json` (Spec) is what to run; it is run when one byte arrives on standard input, and not at all if the input
  ends without one, which means that the runtime died before it could note that the shim exists;
- one line on standard output then says how that went: "" for well, else the reason why not;
- `process.json` (Running) names the container's process, `exit.json` (Ended) is there once it has ended;
- SIGUSR1 sends the stop signal to the container's process group, SIGUSR2 kills it.

When the container's first process has ended, everything else that it started is killed, as the end of a PID
namespace does in a real runtime. Run as a program (`python -S -m`) with the directory; it imports little.
"""
# ruff: noqa: PTH105, PTH123 - pathlib takes as long to load as all the rest of a shim

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from functools import cache
from typing import Any, TypedDict

from crrd_localnode.containers import rootfs
from crrd_localnode.containers.cri_log import CriLog

STOP = signal.SIGUSR1
KILL = signal.SIGUSR2
HELD = (STOP, KILL)  # A shim is started with these blocked; it takes them when there is a process to hand them to

START_ERROR_CODE = 128  # Exit code of a container whose process could not be started, as containerd reports it
PR_SET_CHILD_SUBREAPER = 36


class Spec(TypedDict):
    """What to run and how."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_path: str
    mounts: list[rootfs.Mount]
    namespaced: bool
    stop_signal: int


class Running(TypedDict):
    """The container's first process."""

    pid: int
    identity: str


class Ended(TypedDict):
    """How the container ended; times in nanoseconds since the epoch."""

    exit_code: int
    finished_at: int
    reason: str
    message: str


@cache
def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identity(pid: int) -> str | None:
    """What no other process shares: the machine's boot and the process' start time; None if there is no process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        # The program's name, in parentheses, may itself hold spaces and parentheses; field 22 is the start time.
        return f"{_boot()}:{file.read().rpartition(')')[2].split()[19]}"
    return None


def write_json(path: str, value: Any) -> None:
    """Put a file in its place in one step: a reader sees all of it or the one before.

    A shim and the runtime that takes it for dead may both write the same file.
    """
    part = f"{path}.{os.getpid()}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    os.replace(part, path)


class Shim:
    """One shim; `run` is its whole life."""

    def __init__(self, directory: str) -> None:
        with open(f"{directory}/spec.json") as file:
            self._spec: Spec = json.load(file)
        self._directory = directory
        self._log = CriLog("")
        self._selector = selectors.DefaultSelector()
        self._pid = 0

    def run(self) -> None:
        """Start the container's process, see it to its end, and write down how it ended."""
        # Processes that outlive their parent come to the shim instead of to init: so none of them gets away.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake = self._take_signals()
        error = self._start()
        if error:
            self._ended(START_ERROR_CODE, "StartError", error)
        else:
            running: Running = {"pid": self._pid, "identity": identity(self._pid) or ""}
            write_json(f"{self._directory}/process.json", running)
        self._reply(error)
        if error:
            return
        # They were blocked from the beginning (see HELD): a stop that came during the start is obeyed now.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self._selector.register(wake, selectors.EVENT_READ)
        while not self._has_ended():
            for key, _ in self._selector.select():
                if key.fd == wake:
                    self._obey(os.read(wake, 64))
                else:
                    self._copy(key.fd, key.data)
        code = self._end()
        self._ended(code, "Completed" if code == 0 else "Error", "")

    def _take_signals(self) -> int:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*HELD, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # What is meant for the runtime, or for a whole login session, is not meant for containers.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        return read

    def _start(self) -> str:
        """Start the container's process; the reason why not, or ""."""
        try:
            self._log = CriLog(self._spec["log_path"])
        except OSError as error:
            return f"the log cannot be opened: {error}"
        failure_read, failure = os.pipe2(os.O_CLOEXEC)
        outputs = {stream: os.pipe2(os.O_CLOEXEC) for stream in ("stdout", "stderr")}
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.dup2(outputs["stdout"][1], 1)
                os.dup2(outputs["stderr"][1], 2)
                self._become_container()
            except BaseException as error:  # noqa: BLE001 - nothing of the shim's may go on in this process
                os.write(failure, str(error).encode())
            os._exit(START_ERROR_CODE)
        os.close(failure)
        for stream, (read, write) in outputs.items():
            os.close(write)
            os.set_blocking(read, False)
            self._selector.register(read, selectors.EVENT_READ, stream)
        with open(failure_read, "rb") as reader:
            error_text = reader.read().decode(errors="replace")
        if error_text:
            os.waitpid(self._pid, 0)
        return error_text

    def _become_container(self) -> None:
        spec = self._spec
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if spec["namespaced"]:
            rootfs.enter(f"{self._directory}/rootfs", spec["mounts"], [spec["cwd"]])
        else:
            rootfs.link(f"{self._directory}/rootfs", spec["mounts"])
        os.chdir(spec["cwd"])
        os.umask(0o022)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - that is what a container is

    def _reply(self, error: str) -> None:
        os.write(1, f"{error}\n".encode())
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)

    def _obey(self, signals: bytes) -> None:
        meant: dict[int, int] = {STOP: self._spec["stop_signal"], KILL: signal.SIGKILL}
        for number in signals:
            # The first process is reaped by `_end` alone, so its number cannot be another group's yet.
            with contextlib.suppress(ProcessLookupError):
                if number in meant:
                    os.killpg(self._pid, meant[number])

    def _copy(self, file: int, stream: str) -> bool:
        """Copy what there is to the log; False when there is nothing now, or never again."""
        try:
            data = os.read(file, 65536)
        except BlockingIOError:
            return False
        if data:
            self._log.write(stream, data)
            return True
        self._selector.unregister(file)
        os.close(file)
        self._log.finish(stream)
        return False

    def _has_ended(self) -> bool:
        """Reap what came to the shim; whether the first process has ended (it is not reaped here)."""
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return False
            if found.si_pid == self._pid:
                return True
            os.waitpid(found.si_pid, 0)

    def _end(self) -> int:
        """Kill what is left of the container and read its last words; the exit code as the CRI has it."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        # With their parent gone, all others are, or become while this goes on, children of the shim.
        while children := self._children():
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                while self._copy(key.fd, key.data):
                    pass
                self._log.finish(key.data)
        return status if status >= 0 else 128 - status

    def _children(self) -> list[int]:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def _ended(self, code: int, reason: str, message: str) -> None:
        ended: Ended = {"exit_code": code, "finished_at": time.time_ns(), "reason": reason, "message": message}
        write_json(f"{self._directory}/exit.json", ended)


def main() -> None:
    """Wait for the word of the runtime, then run."""
    shim = Shim(sys.argv[1])
    if os.read(0, 1):
        shim.run()


if __name__ == "__main__":
    main()
