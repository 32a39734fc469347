"""Container logs in the CRI's format: one line for each printed line, or for a part of a long one.

    2026-01-31T12:00:00.123456789Z stdout F the line as it was printed

Source: Kubernetes' design proposal "CRI: Log management". Every shim loads this module, so it has few imports.
"""

import os
import time
from contextlib import suppress

MAX_LINE = 16 * 1024  # Length in bytes after which a line is split; containerd's default


def timestamp(now_ns: int) -> str:
    """Format nanoseconds since the epoch as RFC 3339 in UTC, always with nine digits of the second."""
    seconds, nanoseconds = divmod(now_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


class CriLog:
    """A log file for several streams, created if needed. With the path "", everything is discarded."""

    def __init__(self, path: str) -> None:
        self._rest: dict[str, bytes] = {}
        self._file = -1
        if path:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib is slow to load
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, stream: str, data: bytes) -> None:
        """Log output of `stream` (stdout, stderr). Long lines are split, and all parts but the last have the tag P."""
        *lines, rest = (self._rest.get(stream, b"") + data).split(b"\n")
        for line in lines:
            self._put(stream, b"F", self._cut(stream, line))
        self._rest[stream] = self._cut(stream, rest)

    def finish(self, stream: str) -> None:
        """Handle the end of the stream: write the rest as a line."""
        rest = self._rest.pop(stream, b"")
        if rest:
            self._put(stream, b"F", rest)

    def _cut(self, stream: str, line: bytes) -> bytes:
        """Write all full parts of a line, and return the rest."""
        while len(line) > MAX_LINE:
            self._put(stream, b"P", line[:MAX_LINE])
            line = line[MAX_LINE:]
        return line

    def _put(self, stream: str, tag: bytes, text: bytes) -> None:
        if self._file >= 0:
            head = f"{timestamp(time.time_ns())} {stream} ".encode()
            # A full disk loses lines of the log, but does not stop the container.
            with suppress(OSError):
                os.write(self._file, head + tag + b" " + text + b"\n")
