"""The processes of a cluster on this machine by the part that they are of, and what they have used."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from tests.tools.cluster.cluster import RealCluster

NAMES = ("kube-apiserver", "etcd", "containerd", "kubelet", "node daemon", "managers")
OTHERS = ("kube-controller", "kube-scheduler", "containerd-shim", "kruise-daemon", "kruise-manager")
_TICKS = os.sysconf("SC_CLK_TCK")


def processes(name: str) -> Iterator[Path]:
    """The processes of this machine by one of these names, as folders of /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            short = (folder / "comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        crrd = any(Path(word).name == "crrd" for word in words[:3])
        kind = "node daemon" if crrd and "node" in words else "managers" if crrd and "manager" in words else short
        if kind == name:
            yield folder


def cpu_seconds() -> dict[str, float]:
    """Seconds of CPU that the processes of NAMES have used; without those that are not on this machine."""
    found: dict[str, float] = {}
    for name in NAMES:
        for folder in processes(name):
            fields = _fields(folder)
            found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def used(cluster: RealCluster) -> dict[str, list[tuple[float, float]]]:
    """What each process of each part has used: CPU in seconds, with that of children that have ended, and MiB."""
    holders = {machine.pid for machine in (cluster.control_plane, *cluster.nodes)}
    found = defaultdict(list)
    for part in (*NAMES, *OTHERS):
        for folder in processes(part):
            with suppress(OSError, KeyError):  # it has just ended
                if _is_on(folder, holders):
                    lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                    seconds = sum(map(int, _fields(folder)[11:15])) / _TICKS
                    found[part].append((seconds, int(lines["VmRSS"].split()[0]) / 1024))
    return dict(found)


def seconds_of_machine() -> float:
    """Seconds of CPU that this machine has used, the kernel included, without this process."""
    words = Path("/proc/stat").read_text().split(maxsplit=8)
    user, nice, system, _idle, _waits, interrupts, soft = map(int, words[1:8])
    return (user + nice + system + interrupts + soft) / _TICKS - sum(os.times()[:2])


def _is_on(folder: Path, holders: Collection[int]) -> bool:
    """Whether a process runs on one of the machines. `holders` are the PIDs of their first processes."""
    pid = int(folder.name)
    while pid not in holders and pid > 1:
        pid = int(_fields(Path("/proc") / str(pid))[1])
    return pid in holders


def _fields(folder: Path) -> list[str]:
    """The fields of a process's stat, from its state on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
