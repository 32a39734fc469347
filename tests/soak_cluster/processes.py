"""Processes of the cluster that the soak kills and starts again, with their own command line and environment.

They are named by files that have their process ID, as most ways to start a cluster write them. What was started here
goes on after the soak, and its new ID is in the same file. The processes of `tests.tools.cluster` run in namespaces.
"""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from crrd.lib.errors import ConfigurationError
from tests.soak_cluster.record import Part
from tests.tools.cluster.cluster import RealCluster
from tests.tools.cluster.machine import Machine

PROGRAMS = {
    "kubelet": Part.KUBELET,
    "containerd": Part.RUNTIME,
    "crio": Part.RUNTIME,
    "kube-apiserver": Part.API,
    "etcd": Part.ETCD,
    "kube-controller-manager": Part.CONTROLLERS,
    "kube-scheduler": Part.CONTROLLERS,
}


class Process(Protocol):
    """A process of the cluster. Every call may block for seconds."""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. After SIGKILL, wait for its end."""

    def start(self) -> None:
        """Start it again, if it does not run."""


class PlainProcess:
    """A process of this machine."""

    def __init__(self, pid_file: Path) -> None:
        """Read its command line, environment, folder and outputs. Raises ConfigurationError if it does not run."""
        self._file = pid_file
        try:
            self.pid = int(pid_file.read_text())
            place = Path(f"/proc/{self.pid}")
            self._command = place.joinpath("cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            environment = place.joinpath("environ").read_bytes().rstrip(b"\0").split(b"\0")
            self._folder = place.joinpath("cwd").readlink()
            self._outputs = [place.joinpath("fd", number).readlink() for number in ("1", "2")]
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{pid_file} does not name a running process: {error}") from error
        self._environment = dict(entry.partition(b"=")[::2] for entry in environment if entry)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The name of its program."""
        return Path(os.fsdecode(self._command[0])).name

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. After SIGKILL, wait for its end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            if number is signal.SIGKILL:
                self._wait()

    def _wait(self) -> None:
        if self._child is not None:
            self._child.wait()
            return
        descriptor = os.pidfd_open(self.pid)  # readable once it has ended
        try:
            select.select([descriptor], [], [])
        finally:
            os.close(descriptor)

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        if self._child is not None:
            return self._child.poll() is None
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX"  # its parent has not noticed its end yet

    def start(self) -> None:
        """Start it again, if it does not run."""
        if self.runs:
            return
        logs = [path if path.is_file() else Path(os.devnull) for path in self._outputs]
        with logs[0].open("ab") as out, logs[1].open("ab") as err:
            self._child = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self._child.pid
        self._file.write_text(f"{self.pid}\n")


class MachineProcess:
    """A process of `tests.tools.cluster`."""

    def __init__(self, machine: Machine, name: str) -> None:
        """Read its command line. Raises ConfigurationError if it does not run."""
        self._machine, self._name = machine, name
        machine.need(name)
        pid = (machine.folder / f"{name}.pid").read_text().strip()
        self._command = machine.run("cat", f"/proc/{pid}/cmdline").rstrip("\0").split("\0")

    def send(self, number: signal.Signals) -> None:
        """See `Process`."""
        self._machine.kill(self._name, number)

    def start(self) -> None:
        """See `Process`."""
        if not self._machine.runs(self._name):
            self._machine.begin(self._name, self._command, str(Path(self._command[0]).parent))


def found_in(folders: Sequence[Path]) -> dict[Part, list[Process]]:
    """Return the processes of the cluster whose PID files are in these folders."""
    found: dict[Part, list[Process]] = {}
    for folder in folders:
        for file in sorted(folder.glob("**/*.pid")):
            with suppress(ConfigurationError):
                process = PlainProcess(file)
                if (part := PROGRAMS.get(process.name)) is not None:
                    found.setdefault(part, []).append(process)
    return found


def found_in_cluster(folder: Path, node: str) -> dict[Part, list[Process]]:
    """Return the processes of a cluster of `tests.tools.cluster` that matter for one of its nodes."""
    cluster = RealCluster.find(folder)
    found: dict[Part, list[Process]] = {}
    for machine in (cluster.control_plane, cluster.node(node)):
        for file in sorted(machine.folder.glob("*.pid")):
            if (part := PROGRAMS.get(file.stem)) is not None:
                found.setdefault(part, []).append(MachineProcess(machine, file.stem))
    return found
