"""Log set-up: one line per event on standard error, as text or JSON.

Events are short constants with key-values. SIGUSR1 switches the debug level on and off at run time.
"""

import atexit
import io
import logging
import os
import select
import signal
import sys
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog

LogFormat = Literal["console", "json"]
PENDING_BYTES = 2**20  # Most bytes of lines that are kept while the log's reader stalls
PIECE_BYTES = 4096  # Bytes that a pipe with room accepts without blocking (PIPE_BUF, pipe(7))
EXIT_SECONDS = 2.0  # How long a process that ends waits for the log's reader
LONGEST_VALUE = 2048  # Characters kept of one value, because hook output and server responses can be long

_processors: list[Any] = []  # One list for the whole process, because loggers keep the list of their first use


class _Level:
    """The current log level, which can change at run time."""

    number = logging.INFO
    configured = logging.INFO


class _StandardError(io.TextIOBase):
    """The current standard error. Its failures are ignored, because work must not stop when the log is not read.

    A pipe whose reader stalls would block the writer, which is the event loop. So only what the pipe accepts at once is
    written. The rest is kept for later, up to PENDING_BYTES. Lines beyond that are dropped and counted.
    """

    def __init__(self) -> None:
        self._pending: deque[bytes] = deque()
        self._size = 0
        self.dropped = 0
        self._reported = 0  # The number of dropped lines that the log has reported

    def write(self, text: str, /) -> int:
        """Write, keep or drop the line. The pipe may be full or broken, the disk full, or the stream closed."""
        line = text.encode(errors="backslashreplace")
        self._drain(0.0)
        if self._size + len(line) > PENDING_BYTES:
            self.dropped += 1
        else:
            if self.dropped > self._reported and not self._pending:
                count, self._reported = self.dropped - self._reported, self.dropped
                line = f"{count} log lines were dropped, because the log output was blocked\n".encode() + line
            self._pending.append(line)
            self._size += len(line)
        self._drain(0.0)
        return len(text)

    def flush(self) -> None:
        """Write as much as possible without blocking."""
        self._drain(0.0)

    def close(self) -> None:
        """Write the kept lines, waiting for the reader for EXIT_SECONDS."""
        self._drain(EXIT_SECONDS)

    def _drain(self, seconds: float) -> None:
        """Write the kept lines, waiting at most `seconds` for each piece."""
        try:
            number = sys.stderr.fileno()
            ready = select.poll()
            ready.register(number, select.POLLOUT)
            while self._pending and ready.poll(seconds * 1000):
                line = self._pending.popleft()
                written = os.write(number, line[:PIECE_BYTES])
                self._size -= written
                if written < len(line):
                    self._pending.appendleft(line[written:])
        except (OSError, ValueError, AttributeError):  # the reader is gone, or stderr is not a file
            with suppress(OSError, ValueError, AttributeError):
                for line in self._pending:
                    sys.stderr.write(line.decode())
            self._pending.clear()
            self._size = 0


_stream = _StandardError()


def dropped_lines() -> int:
    """Return how many lines were dropped because the log output was blocked."""
    return _stream.dropped


def configure(log_format: LogFormat, level: str, **everywhere: str) -> None:
    """Set up structlog for this process: console for people (coloured on a terminal), or json for machines.

    `everywhere` is added to every line, e.g. the node's name.
    """

    def prepare(_: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Drop events below the current level. Remove values that are None, and cut values that are too long."""
        name = {"exception": "error", "warn": "warning"}.get(method, method)
        if getattr(logging, name.upper(), logging.INFO) < _Level.number:
            raise structlog.DropEvent
        for key, value in list(event.items()):
            if value is None:
                del event[key]
            elif isinstance(value, str) and len(value) > LONGEST_VALUE:
                event[key] = f"{value[:LONGEST_VALUE]}... ({len(value)} characters)"
        for key, value in everywhere.items():
            event.setdefault(key, value)
        return event

    atexit.register(_stream.close)
    logging.lastResort = handler = _for_libraries()
    logging.getLogger("py.warnings").handlers = [handler]
    logging.captureWarnings(capture=True)
    _Level.number = _Level.configured = getattr(logging, level.upper())
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    _processors[:] = [
        structlog.contextvars.merge_contextvars,  # controller and round
        prepare,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if log_format == "json" else []),
        renderer,
    ]
    structlog.configure(
        processors=_processors,
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _stream)),
        cache_logger_on_first_use=True,
    )


def _for_libraries() -> logging.Handler:
    """Return a handler that writes logs and warnings of asyncio and aiohttp to the same stream, so they never block."""
    handler = logging.StreamHandler(cast("TextIO", _stream))
    handler.setLevel(logging.WARNING)
    return handler


def toggle_debug_on_signal() -> None:
    """Make SIGUSR1 switch between the configured level and debug. Call it in the event loop's thread."""

    def toggled(*_: object) -> None:
        _Level.number = _Level.configured if _Level.number == logging.DEBUG else logging.DEBUG
        structlog.get_logger(__name__).warning("log level changed", level=logging.getLevelName(_Level.number).lower())

    signal.signal(signal.SIGUSR1, toggled)
