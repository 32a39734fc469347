"""A store that outlives its process: every change is one line of a file, read again at the next start.

The file is written through to the operating system with every change, so that a killed server loses nothing; it is
not synced to the disk, so a crash of the machine may. A last line that was cut off is ignored.
"""

import os
from pathlib import Path
from typing import IO

from daemon.localnode.api.objects import Object, dumps, loads
from daemon.localnode.api.store import Event, Store, Stored, name_of

REWRITE_ABOVE = 10_000
"""Lines in the file from which on a start rewrites it as the bare objects, giving up older watch history."""


class Journal:
    """The file behind a store: `load` it once; between `follow` and `close` it takes down all changes."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._file: IO[bytes] | None = None

    def load(self) -> None:
        """Bring the store to where the file ends. Raises ValueError for a file of another make."""
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
        for number, line in enumerate(lines[:-1], 1):
            try:
                self._replay(loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self._path}, line {number}: not a line of this server's state file") from error
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if len(lines) > REWRITE_ABOVE:
            self._rewrite()
        elif lines[-1]:
            os.truncate(self._path, self._path.stat().st_size - len(lines[-1]))
        self._store.subscribe(None, self._write)

    def follow(self) -> None:
        """Take down all changes from now on."""
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        """Take down nothing more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def compacted(self) -> None:
        """Note that the store has been compacted."""
        if self._file is not None:
            self._file.write(dumps({"compacted": self._store.revision}) + b"\n")

    def _write(self, event: Event) -> None:
        if self._file is None:
            return
        if event.new is not None:
            self._file.write(b'{"key":"%s","put":%s}\n' % (event.key.encode(), event.new.text))
        elif event.old is not None:
            gone = {"key": event.key, "name": event.old.name, "deleted": event.revision}
            self._file.write(dumps(gone) + b"\n")

    def _replay(self, line: Object) -> None:
        if "compacted" in line:
            self._store.revision = max(self._store.revision, line["compacted"])
            self._store.compact(line["compacted"])
        elif "put" in line:
            new = Stored(line["put"], int(line["put"]["metadata"]["resourceVersion"]))
            old = self._store.get(line["key"], name_of(new.obj))
            self._store.apply(Event(line["key"], new.revision, old, new))
        else:
            namespace, name = line["name"]
            self._store.apply(
                Event(line["key"], line["deleted"], self._store.objects(line["key"])[namespace, name], None)
            )

    def _rewrite(self) -> None:
        """Leave only the objects of now; watches then start from now at the earliest."""
        self._store.compact()
        stored = sorted(self._store.everything(), key=lambda pair: pair[1].revision)
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            for key, one in stored:
                file.write(b'{"key":"%s","put":%s}\n' % (key.encode(), one.text))
            file.write(dumps({"compacted": self._store.revision}) + b"\n")
        fresh.replace(self._path)
