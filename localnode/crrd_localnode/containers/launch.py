"""Converts a CRI container config to command lines: the container's first process, and commands beside it."""

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from cri_stubs import api_pb2
from crrd_localnode.containers.rootfs import Mount
from crrd_localnode.containers.rpc import invalid
from crrd_localnode.containers.shim import Spec

DEFAULT_COMMAND = ("sleep", "infinity")  # Without command and args, because there is no image to define them
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT_VARIABLE = "CRRD_ROOT"  # Set if mounts are only symbolic links (see `rootfs`): the directory that contains them


def mounts_of(config: api_pb2.ContainerConfig) -> list[Mount]:
    """Return a container's mounts. CallError if a path is not absolute. The shim finds out whether they exist."""
    mounts: list[Mount] = []
    for mount in config.mounts:
        for path in (mount.container_path, mount.host_path):
            if not Path(path).is_absolute():
                raise invalid(f"mount path {path!r} is not absolute")
        if Path(mount.container_path) == Path("/"):
            raise invalid("the root directory cannot be mounted over")
        mounts.append(Mount(container_path=mount.container_path, host_path=mount.host_path, readonly=mount.readonly))
    return mounts


def stop_signal(config: api_pb2.ContainerConfig) -> int:
    """Return StopContainer's first signal. The CRI's names have a prefix since Kubernetes 1.37."""
    name = api_pb2.Signal.Name(config.stop_signal).removeprefix("SIGNAL_")
    return int(signal.Signals.__members__.get(name, signal.SIGTERM))


def spec_of(config: api_pb2.ContainerConfig, rootfs: Path, log_path: str, hostname: str, *, namespaced: bool) -> Spec:
    """Return what the shim is to run. CallError if the config is invalid.

    `log_path` is absolute or "". `hostname` is only for the environment. `rootfs` is the container's own.
    """
    cwd = config.working_dir or "/"
    env = {"PATH": DEFAULT_PATH, "HOME": "/", "HOSTNAME": hostname}
    if not namespaced:
        below = rootfs / cwd.lstrip("/")
        cwd = str(below if below.is_dir() else rootfs)
        env[ROOT_VARIABLE] = str(rootfs)
    return {
        "argv": [*config.command, *config.args] or list(DEFAULT_COMMAND),
        "env": env | {variable.key: variable.value.decode(errors="surrogateescape") for variable in config.envs},
        "cwd": cwd,
        "log_path": log_path,
        "mounts": mounts_of(config),
        "namespaced": namespaced,
        "stop_signal": stop_signal(config),
    }


def exec_argv(spec: Spec, pid: int, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` in the container of process `pid`. FileNotFoundError if not found."""
    root = f"/proc/{pid}/root" if spec["namespaced"] else ""
    cwd = root + spec["cwd"]
    if not _has_program(command[0], spec["env"].get("PATH", DEFAULT_PATH), root, cwd):
        raise FileNotFoundError(f"{command[0]!r}: no such program in the container")
    if not spec["namespaced"]:
        return list(command)
    # Searched in the runtime's own PATH, because the container may not have it.
    nsenter = shutil.which("nsenter") or "/usr/bin/nsenter"
    return [nsenter, f"--target={pid}", "--mount", f"--root={root}", f"--wd={cwd}", "--", *command]


def _has_program(name: str, path: str, root: str, cwd: str) -> bool:
    """Whether a program exists. nsenter would exit with 127, which a shell in the container could also return."""
    candidates = [Path(root + directory) / name for directory in path.split(":")]
    if "/" in name:
        candidates = [Path(root + name) if name.startswith("/") else Path(cwd) / name]
    return any(candidate.is_file() and os.access(candidate, os.X_OK) for candidate in candidates)
