"""The process between the runtime and one container: it starts the container's process and waits until it ends.

So the runtime can restart: the shim keeps copying the container's output to its log, waits for its exit and records
the result. Its directory, its standard streams and signals control it:

- `spec.json` (Spec) is what to run. It is run when one byte arrives on standard input. If the input ends without one,
  the runtime died before it recorded the shim, and nothing is run.
- One line on standard output is the result of the start: "" or the error.
- `process.json` (Running) has the container's process, and `exit.json` (Ended) is written when it has ended.
- SIGUSR1 sends the stop signal to the container's process group, and SIGUSR2 kills it.

When the container's first process has ended, the shim kills all other processes that it started, like the end of a PID
namespace in a real runtime. It is run as a program (`python -S -m`) with the directory, and has few imports.
"""
# ruff: noqa: PTH105, PTH123 - pathlib takes as long to load as the rest of a shim

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
HELD = (STOP, KILL)  # Blocked when a shim starts; unblocked when there is a process to forward them to

START_ERROR_CODE = 128  # Exit code if the container's process could not be started, as containerd reports it
PR_SET_CHILD_SUBREAPER = 36


class Spec(TypedDict):
    """What to run, and how."""

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
    """The container's result. Times are in nanoseconds since the epoch."""

    exit_code: int
    finished_at: int
    reason: str
    message: str


@cache
def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identity(pid: int) -> str | None:
    """Return a unique identity of a process: the machine's boot and its start time. None if it does not exist."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        # The program's name in parentheses may contain spaces and parentheses. Field 22 is the start time.
        return f"{_boot()}:{file.read().rpartition(')')[2].split()[19]}"
    return None


def write_json(path: str, value: Any) -> None:
    """Write a file atomically: a reader sees all of it or the old file.

    A shim and a runtime that considers it dead may both write the same file.
    """
    part = f"{path}.{os.getpid()}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    os.replace(part, path)


class Shim:
    """One shim. `run` does all its work."""

    def __init__(self, directory: str) -> None:
        with open(f"{directory}/spec.json") as file:
            self._spec: Spec = json.load(file)
        self._directory = directory
        self._log = CriLog("")
        self._selector = selectors.DefaultSelector()
        self._pid = 0

    def run(self) -> None:
        """Start the container's process, wait until it ends, and record the result."""
        # The shim adopts orphaned processes of the container instead of init, so that it can kill all of them.
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
        # The signals were blocked since the start (see HELD): a stop that arrived meanwhile is handled now.
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
        # These signals are for the runtime or a login session, and not for containers.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        return read

    def _start(self) -> str:
        """Start the container's process. Return the error, or ""."""
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
            except BaseException as error:  # noqa: BLE001 - the child process must not continue with the shim's code
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
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:  # nohup makes the node ignore some
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - runs the container's command

    def _reply(self, error: str) -> None:
        os.write(1, f"{error}\n".encode())
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)

    def _obey(self, signals: bytes) -> None:
        meant: dict[int, int] = {STOP: self._spec["stop_signal"], KILL: signal.SIGKILL}
        for number in signals:
            # Only `_end` reaps the first process, so its number cannot belong to another group yet.
            with contextlib.suppress(ProcessLookupError):
                if number in meant:
                    os.killpg(self._pid, meant[number])

    def _copy(self, file: int, stream: str) -> bool:
        """Copy the available output to the log. Return False if there is none now, or the stream has ended."""
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
        """Reap adopted processes. Return whether the first process has ended (it is not reaped here)."""
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return False
            if found.si_pid == self._pid:
                return True
            os.waitpid(found.si_pid, 0)

    def _end(self) -> int:
        """Kill the container's other processes and read the rest of its output. Return the exit code for the CRI."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        # All other processes are or become children of the shim, because their parents are killed.
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
    """Wait for the runtime's go-ahead, then run."""
    shim = Shim(sys.argv[1])
    if os.read(0, 1):
        shim.run()


if __name__ == "__main__":
    main()
