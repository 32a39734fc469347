"""Standard output for commands. A failed write raises an error class of its own."""

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from crrd.lib.errors import OutputError


class Output:
    """A stream whose errors are OutputErrors. Characters that its encoding lacks are written as escapes."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is None if the process was started without one; then every write raises an error."""
        self._lost = None if stream is not None else _error(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        self._stream: TextIO = io.StringIO() if stream is None else stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write. Raises OutputError; after one failure, every write raises it again."""
        if self._lost is not None:
            raise self._lost
        self._carry_out(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the buffer. Raises OutputError, but not again after a failure."""
        if self._lost is None:
            self._carry_out(self._stream.flush)

    def _carry_out(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            self._lost = _error(error)
            _discard(self._stream)
            raise self._lost from error


def complain(line: str) -> None:
    """Print a line on stderr. Errors are ignored."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        _discard(sys.stderr)


def _error(error: OSError) -> OutputError:
    return OutputError(f"stdout: {error.strerror or error}", reader_gone=error.errno == errno.EPIPE)


def _discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that the interpreter's flush at exit does not fail."""
    with suppress(OSError):  # it has no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
