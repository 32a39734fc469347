"""Writes the files of a volume so that a reader sees all old or all new ones, like kubelet's atomic writer.

The files are in a folder `..<time>`. The link `..data` leads to it, and is replaced by a rename. Every file or folder
at the top of the volume is a link into `..data`. So a bind mount of one file (subPath) keeps the old one.
Source: pkg/volume/util/atomic_writer.go in Kubernetes.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

DATA = "..data"


class VolumeError(Exception):
    """A volume of the pod cannot be used. The message is that of kubelet's event, if kubelet has one."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume."""

    data: bytes
    mode: int


def write(folder: Path, payload: Mapping[str, File], group: int | None = None) -> bool:
    """Write the files by path, if a path or a content has changed. Return whether it wrote.

    The files then belong to `group` (fsGroup), which may read them. Raises VolumeError for a path that is not allowed.
    """
    files = {_clean(path): file for path, file in payload.items()}
    current = folder / DATA
    old = folder / current.readlink() if current.is_symlink() else None
    stale: set[str] = set()
    if old is not None:
        wanted = {str(part) for path in files for part in (PurePosixPath(path), *PurePosixPath(path).parents)}
        stale = {str(path.relative_to(old)) for path in old.rglob("*")} - wanted
    changed = old is None or bool(stale) or any(_read(old / path) != file.data for path, file in files.items())
    if changed:
        _replace(current, files, group)
    for name in {path.partition("/")[0] for path in files}:
        if not os.path.lexists(folder / name):  # a folder that kubelet made for a missing subPath stays in the way
            (folder / name).symlink_to(f"{DATA}/{name}")
    for path in stale:
        if "/" not in path and (folder / path).is_symlink():
            (folder / path).unlink()
    if changed and old is not None:
        shutil.rmtree(old)
    return changed


def _clean(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or len(path) > 4096:
        raise VolumeError(f"invalid path: must be a relative path of at most 4096 characters: {path}")
    if ".." in parts or parts[0].startswith("..") or any(len(part) > 255 for part in parts):
        raise VolumeError(
            f"invalid path: must not contain or start with '..', or a name of over 255 characters: {path}"
        )
    return os.path.normpath(path)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _replace(current: Path, files: Mapping[str, File], group: int | None) -> None:
    """Write the files to a new folder, and let the link `current` lead to it."""
    stamp = datetime.now(UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    new = Path(tempfile.mkdtemp(prefix=stamp, dir=current.parent))
    new.chmod(0o755)
    for path, file in files.items():
        (new / path).parent.mkdir(parents=True, exist_ok=True)
        (new / path).write_bytes(file.data)
        (new / path).chmod(file.mode)
    if group is not None:
        for each in (new, *new.rglob("*")):
            with suppress(PermissionError):  # only root may give a file to a group of others
                os.chown(each, -1, group)
            each.chmod(each.stat().st_mode | (0o2550 if each.is_dir() else 0o440))
    link = current.with_name("..data_tmp")
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    link.rename(current)
