"""Makes a container's mounts and working directory visible to its process at the paths of the pod's spec.

As root, the process gets a mount namespace whose root is a small tmpfs. Every entry of the node's root directory is
bound into it, then the container's mounts. So programs and libraries are the node's, no image is needed, and a path
like `/data` is not created on the node. Without the rights for that, there is only a directory of links
(`<rootfs>/data` -> the mounted path), and CRRD_ROOT in the environment is its path. Otherwise CRRD_ROOT is not set, so
`$CRRD_ROOT/data` is correct in both cases. Nothing else is isolated.

Every shim loads this module, so it imports only the standard library. Run as a program (`python -S -m`) with a
directory, it checks whether namespaces can be created.
"""
# ruff: noqa: PTH101, PTH102, PTH103, PTH112, PTH115, PTH116, PTH118, PTH120, PTH211
# pathlib takes as long to load as the rest of a shim.

import ctypes
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TypedDict

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_UNBINDABLE, MS_SLAVE = 0x1, 0x20, 0x1000, 0x4000, 0x20000, 0x80000


class Mount(TypedDict):
    """A path of the node that is visible in the container."""

    container_path: str
    host_path: str
    readonly: bool


def enter(rootfs: str, mounts: Sequence[Mount], directories: Iterable[str] = ()) -> None:
    """Move the calling process to its own mount namespace with the mounts, and to its root directory.

    `rootfs` is an empty directory of the node, and stays empty outside of the namespace. `directories` are further
    absolute paths to create in the new root if missing. After an OSError (a mount failed), the process cannot be used
    any more.
    """
    _check(_libc().unshare(CLONE_NEWNS), "unshare")
    # Private mounts would keep the node from unmounting while containers run. Slave mounts follow the node.
    _mount("none", "/", MS_REC | MS_SLAVE)
    _mount("tmpfs", rootfs, 0)
    # Otherwise, binding the directory that contains rootfs would bind the new root into itself.
    _mount("none", rootfs, MS_UNBINDABLE)
    root = _Root(rootfs)
    # Parents first. A path below another mount exists only after that mount. All others are created before any mount,
    # because creating a path can cover its parent directory.
    ordered = sorted(mounts, key=lambda mount: os.path.realpath(mount["container_path"]).count("/"))
    top = [mount for mount in ordered if not _nested(mount, ordered)]
    for path in directories:
        if not any(_below(path, mount["container_path"]) for mount in mounts):
            root.make(path, directory=True)
    for mount in top:
        root.make(mount["container_path"], directory=os.path.isdir(mount["host_path"]))
    for mount in ordered:
        root.bind(mount)
    for path in directories:
        root.make(path, directory=True)
    os.chroot(rootfs)
    os.chdir("/")


def link(rootfs: str, mounts: Sequence[Mount]) -> None:
    """Create links to the mounts below the directory `rootfs`. OSError if one cannot be created."""
    for mount in sorted(mounts, key=lambda mount: mount["container_path"].count("/")):
        if _nested(mount, mounts):  # its link would be created inside the mounted path
            raise OSError(f"{mount['container_path']} is below another mount, which needs a mount namespace")
        target = rootfs + mount["container_path"].rstrip("/")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.link(mount["host_path"], target)  # like a mount, it keeps a file that is removed from its folder
        except FileNotFoundError:
            raise
        except OSError:  # a folder, or a file of another file system or user
            os.symlink(mount["host_path"], target)


class _Root:
    """The new root directory. Some of its directories are its own (in memory), others are the node's."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._own: set[str] = set()
        self._bound: list[str] = []
        self._mirror("/")

    def make(self, path: str, *, directory: bool) -> None:
        """Create `path` and its parents in the new root, without creating it on the node."""
        path = os.path.realpath(path)
        target = self._path + path
        if os.path.lexists(target):
            return
        parent = os.path.dirname(path)
        self.make(parent, directory=True)
        inside = any(_below(path, bound) for bound in self._bound)
        if parent not in self._own and not inside:
            _mount("tmpfs", self._path + parent, 0)
            self._mirror(parent)
        _make(target, directory=directory)
        if directory and not inside:
            self._own.add(path)

    def bind(self, mount: Mount) -> None:
        """Mount a path of the node."""
        path = os.path.realpath(mount["container_path"])
        self.make(path, directory=os.path.isdir(mount["host_path"]))
        _mount(mount["host_path"], self._path + path, MS_BIND | MS_REC)
        if mount["readonly"]:
            _mount("none", self._path + path, MS_REMOUNT | MS_BIND | MS_RDONLY)
        self._bound.append(path)

    def _mirror(self, path: str) -> None:
        """Bind the entries of a directory of the node one by one, so that others can be added."""
        os.chmod(self._path + path, os.stat(path).st_mode & 0o7777)
        with os.scandir(path) as entries:
            for entry in entries:
                target = os.path.join(self._path + path, entry.name)
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), target)
                    continue
                _make(target, directory=entry.is_dir(follow_symlinks=False))
                try:
                    _mount(entry.path, target, MS_BIND | MS_REC)
                except OSError as error:
                    # An entry that was deleted meanwhile, or a dead network mount, is usually not needed.
                    sys.stderr.write(f"{error}\n")
        self._own.add(path)


def _make(path: str, *, directory: bool) -> None:
    if directory:
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _below(path: str, above: str) -> bool:
    above = os.path.realpath(above)
    return os.path.realpath(path).startswith(above.rstrip("/") + "/")


def _nested(mount: Mount, mounts: Iterable[Mount]) -> bool:
    return any(_below(mount["container_path"], other["container_path"]) for other in mounts)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, flags: int) -> None:
    kind = b"tmpfs" if source == "tmpfs" else None
    result = _libc().mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), None)
    _check(result, f"mount {source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main() -> int:
    """Try to enter a root like a container's at a given directory. The exit code is 0 if that works."""
    try:
        enter(sys.argv[1], [])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
