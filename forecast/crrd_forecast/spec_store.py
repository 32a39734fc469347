"""Stores the specs that containers were started with in a folder of the node, with one file per instance.

With them, the current spec can be compared without a hash. Files are written atomically. The oldest are removed to make
room for new ones. Specs can contain secrets, so only the owner can read the folder and its files.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 8 * 1024 * 1024  # For all files together; the 250 pods of a node have about 1 MiB of specs
MAX_FILES = 4096
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_SUFFIX = ".json"

Spec = Mapping[str, Any]  # The container in the pod's JSON


class SpecStore:
    """A folder of specs, created at the first `put`. Calls take a few ms. Only one process may write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, container_id: str, spec: Spec) -> bool:
        """Store the spec of the instance with this ID in the runtime. Return False if it is larger than the store.

        Raises ValueError for an invalid ID, and OSError.
        """
        path = self._path(container_id)
        text = json.dumps({"id": container_id, "container": spec}, sort_keys=True, separators=(",", ":"))
        data = json.dumps({"sha256": _digest(text), "body": text}).encode()
        if len(data) > MAX_BYTES:
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(len(data), path.name)
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        handle = os.open(self._folder, os.O_RDONLY)  # makes the file's name as durable as its content
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return True

    def get(self, container_id: str) -> Spec | None:
        """Return the spec of an instance, or None if none is stored or it cannot be read."""
        try:
            outer = json.loads(self._path(container_id).read_bytes())
            text = outer["body"]
            body = json.loads(text)
            sound = outer["sha256"] == _digest(text) and body["id"] == container_id
        except (ValueError, OSError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        spec = body.get("container")
        return spec if sound and isinstance(spec, dict) else None

    def __contains__(self, container_id: str) -> bool:
        """Whether there is a file for the instance, readable or not."""
        return _ID.fullmatch(container_id) is not None and (self._folder / f"{container_id}{_SUFFIX}").exists()

    def keep_only(self, container_ids: Collection[str]) -> None:
        """Remove the specs of all other instances, and the temporary files of killed writers."""
        wanted = set(container_ids)
        for name, *_ in self._files(temporary=True):
            if name.removesuffix(_SUFFIX) not in wanted or not name.endswith(_SUFFIX):
                with suppress(OSError):
                    (self._folder / name).unlink()

    def _path(self, container_id: str) -> Path:
        if _ID.fullmatch(container_id) is None:
            raise ValueError(f"{container_id[:40]!r} is not a container ID")
        return self._folder / f"{container_id}{_SUFFIX}"

    def _files(self, *, temporary: bool = False) -> list[tuple[str, int, int]]:
        """Return the name, modification time (ns) and size of each file."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) or (temporary and entry.name.startswith(".")):
                    with suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        found.append((entry.name, stat.st_mtime_ns, stat.st_size))
        return found

    def _make_room(self, size: int, name: str) -> None:
        """Remove the oldest files until there is room for `size` bytes, which replace the file `name` if it exists."""
        files = sorted((each for each in self._files() if each[0] != name), key=lambda each: each[1:2] + each[:1])
        total = sum(each[2] for each in files)
        while files and (total + size > MAX_BYTES or len(files) >= MAX_FILES):
            oldest = files.pop(0)
            total -= oldest[2]
            with suppress(OSError):
                (self._folder / oldest[0]).unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
