"""Log set-up: one line per event, for people or for machines, on standard error.

Events are short constants with key-values. The level changes at run time: SIGUSR1 turns debug on and off.
"""

import io
import logging
import signal
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog

LogFormat = Literal["console", "json"]
LONGEST_VALUE = 2048
"""Characters of one value that are kept: hook output and server answers are not ours."""


_processors: list[Any] = []
"""One list for the life of the process: loggers keep the one that they were first used with."""


class _Level:
    """The level in force, changeable at run time."""

    number = logging.INFO
    configured = logging.INFO


class _StandardError(io.TextIOBase):
    """Today's standard error, whose failures are nobody's: work must not stop because a reader of the log has gone."""

    def write(self, text: str, /) -> int:
        """Write, or lose the line: the pipe may be broken, the disk full, the stream closed."""
        with suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(log_format: LogFormat, level: str, **everywhere: str) -> None:
    """Set up structlog for this process.

    Args:
        log_format: `console` for people (coloured on a terminal), `json` for machines.
        level: debug, info, warning or error.
        everywhere: What every line says, e.g. the node's name.
    """

    def bind(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in everywhere.items():
            event.setdefault(key, value)
        return event

    _Level.number = _Level.configured = getattr(logging, level.upper())
    renderer: Any
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    _processors[:] = [
        _drop_below_level,
        bind,
        _cut,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if log_format == "json" else []),
        renderer,
    ]
    structlog.configure(
        processors=_processors,
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _StandardError())),
        cache_logger_on_first_use=True,
    )


def toggle_debug() -> str:
    """Switch between the configured level and debug; returns the level now in force."""
    _Level.number = _Level.configured if _Level.number == logging.DEBUG else logging.DEBUG
    return logging.getLevelName(_Level.number).lower()


def toggle_debug_on_signal() -> None:
    """SIGUSR1 switches debug on and off. To be called inside the running event loop's thread."""

    def toggled(*_: object) -> None:
        structlog.get_logger(__name__).warning("log level changed", level=toggle_debug())

    signal.signal(signal.SIGUSR1, toggled)


def _drop_below_level(_: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Drop what is below the level in force, and values that are None."""
    name = {"exception": "error", "warn": "warning"}.get(method, method)
    if getattr(logging, name.upper(), logging.INFO) < _Level.number:
        raise structlog.DropEvent
    for key in [key for key, value in event.items() if value is None]:
        del event[key]
    return event


def _cut(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut values that are too long for a log line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            event[key] = f"{value[:LONGEST_VALUE]}... ({len(value)} characters)"
    return event
