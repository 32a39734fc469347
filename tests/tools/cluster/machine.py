"""A machine within this machine: network, mount and PID namespaces of its own, and the processes in them.

Process 1 of the PID namespace only holds the namespaces. When it is killed, the kernel ends everything that was started
there, containers included, and takes mounts and network away. `/run`, `/var/lib` and `/var/log` are folders of its own,
so that a runtime and a kubelet find their usual paths empty. All else of the file system is this machine's.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from crrd.lib.errors import ConfigurationError

OWN_FOLDERS = {"run": "/run", "lib": "/var/lib", "log": "/var/log"}
"""Folder of the machine: where its processes see it."""
NEEDED = ("unshare", "nsenter", "setsid", "mount", "ip", "sh", "env", "sleep", "kill")
_END_SECONDS = 20.0
_START_SECONDS = 20.0
# With SIGCHLD ignored, the kernel reaps the orphans of the machine.
_HOLD = """\
mount --make-rshared /
for each in run:/run lib:/var/lib log:/var/log; do mount --bind "$1/${each%%:*}" "${each#*:}"; done
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$1/up"
exec env --ignore-signal=CHLD sleep infinity
"""
_RUN = 'echo $$ > "$1.new"; mv "$1.new" "$1"; log=$2; shift 2; exec "$@" >> "$log" 2>&1 < /dev/null'


def wait(what: str, check: Callable[[], bool], seconds: float, tell: Callable[[str], None] = lambda _: None) -> None:
    """Wait until the check holds, and tell every 10 s what it waits for. Raises ConfigurationError at a timeout."""
    began = time.monotonic()
    told = began
    while not check():
        now = time.monotonic()
        if now - began > seconds:
            raise ConfigurationError(f"timed out after {seconds:.0f}s waiting for {what}")
        if now - told >= 10:
            tell(f"waiting for {what} ({now - began:.0f}s)")
            told = now
        time.sleep(0.02)


class Machine:
    """Namespaces and processes whose state is in a folder, so that another process can find them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    @property
    def pid(self) -> int:
        """The PID of the process that holds the namespaces, or 0 if it does not run."""
        try:
            pid, started = (self.folder / "holder").read_text().split()
        except (OSError, ValueError):
            return 0
        return int(pid) if _started(int(pid)) == started else 0

    def start(self) -> None:
        """Make the namespaces. Raises ConfigurationError."""
        for name in OWN_FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        up, log = self.folder / "up", self.folder / "namespaces.log"
        up.unlink(missing_ok=True)
        apart = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
        with log.open("wb") as output:
            # stays until `end`, whoever calls it
            parent = _start_detached([*apart, "sh", "-euc", _HOLD, "sh", str(self.folder)], output.fileno())
        children = Path(f"/proc/{parent}/task/{parent}/children")
        wait(f"the namespaces of {self.name}", lambda: up.exists() or not children.exists(), _START_SECONDS)
        if not up.exists():
            raise ConfigurationError(f"cannot make namespaces for {self.name}: {log.read_text().strip()}")
        (child,) = children.read_text().split()
        (self.folder / "holder").write_text(f"{child} {_started(int(child))}\n")

    def end(self) -> None:
        """Kill everything that runs in the machine."""
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)
            wait(f"the end of {self.name}", lambda: not self.pid, _END_SECONDS)
        for file in (*self.folder.glob("*.pid"), self.folder / "holder"):
            file.unlink(missing_ok=True)

    def enter(self, *kinds: str) -> list[str]:
        """Return the words before a command that run it in these namespaces of the machine (mount, net, pid)."""
        if not (pid := self.pid):
            raise ConfigurationError(f"{self.name} does not run")
        return ["nsenter", "--target", str(pid), *(f"--{kind}" for kind in kinds), "--"]

    def run(self, *command: str, path: str = "") -> str:
        """Run a command there and return its output. Raises ConfigurationError with what it wrote."""
        done = subprocess.run(
            [*self.enter("mount", "net", "pid"), *command],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(path),
        )
        if done.returncode:
            raise ConfigurationError(f"{self.name}: {' '.join(command)}: {done.stdout.strip()}")
        return done.stdout

    # Processes

    def begin(self, name: str, command: Sequence[str], path: str = "", **environment: str) -> None:
        """Start a process that goes on after this one, with its log in NAME.log. `path` comes first in its PATH."""
        pid_file = self._pid_file(name)
        pid_file.unlink(missing_ok=True)
        # setsid leaves it to process 1, so that it does not depend on who has started it
        words = ["setsid", "--fork", "sh", "-c", _RUN, "sh", str(pid_file), str(self.log_file(name)), *command]
        subprocess.run([*self.enter("mount", "net", "pid"), *words], check=True, env=_environment(path) | environment)
        wait(f"the start of {name} on {self.name}", pid_file.exists, _START_SECONDS)

    def runs(self, name: str) -> bool:
        """Whether this process was started and has not ended."""
        return self._signal(name, 0)

    def need(self, name: str) -> None:
        """Raise ConfigurationError if this process has ended."""
        if not self.runs(name):
            log = self.log_file(name)
            raise ConfigurationError(f"{name} on {self.name} has ended: {self.last_line(name)} (log: {log})")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process. SIGKILL and SIGTERM wait for its end, and SIGKILL follows a late SIGTERM."""
        if not self._signal(name, number) or number not in (signal.SIGKILL, signal.SIGTERM):
            return
        try:
            wait(f"the end of {name} on {self.name}", lambda: not self.runs(name), _END_SECONDS)
        except ConfigurationError:
            if number == signal.SIGKILL:
                raise
            self.kill(name)
        self._pid_file(name).unlink(missing_ok=True)

    def log_file(self, name: str) -> Path:
        """Return the file with the output of the process."""
        return self.folder / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line that the process has written, for messages."""
        try:
            lines = self.log_file(name).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:300] if lines else "no output"

    def _pid_file(self, name: str) -> Path:
        return self.folder / f"{name}.pid"

    def _signal(self, name: str, number: int) -> bool:
        """Send a signal by the PID that the process has in the machine. Return whether there was such a process."""
        try:
            pid = self._pid_file(name).read_text().strip()
        except OSError:
            return False
        if not self.pid:
            return False
        command = [*self.enter("pid"), "kill", f"-{int(number)}", pid]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _start_detached(command: list[str], output: int) -> int:
    """Start a process that this one does not wait for, and return its PID."""
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    files = [nothing, *((os.POSIX_SPAWN_DUP2, output, target) for target in (1, 2))]
    return os.posix_spawnp(command[0], command, os.environ, file_actions=files, setsid=True)


def _environment(path: str) -> dict[str, str]:
    """Return this process' environment, with the paths in which runtimes look for their programs."""
    own = os.environ.get("PATH", "/usr/bin:/bin")
    return {**os.environ, "PATH": ":".join(filter(None, (path, own, "/usr/sbin:/sbin")))}


def _started(pid: int) -> str:
    """Return when a process was started, in ticks since boot, or "" if there is none: a PID may come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
