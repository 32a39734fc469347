"""Standard output as commands write it: a write that fails is an error of its own class."""

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from crrd.lib.errors import OutputError


class Output:
    """A stream whose errors are OutputErrors; what its encoding lacks is written as an escape."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is None where the process was started without one: the first write says so."""
        self._lost = None if stream is not None else _error(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        self._stream: TextIO = io.StringIO() if stream is None else stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write. Raises OutputError, after the first time always."""
        if self._lost is not None:
            raise self._lost
        self._carry_out(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered. Raises OutputError, once."""
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
    """A line on stderr, where somebody may read it."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        _discard(sys.stderr)


def _error(error: OSError) -> OutputError:
    return OutputError(f"stdout: {error.strerror or error}", reader_gone=error.errno == errno.EPIPE)


def _discard(stream: TextIO) -> None:
    """What the stream still holds goes nowhere, so that the interpreter does not stumble over it at its end."""
    with suppress(OSError):  # it has no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
