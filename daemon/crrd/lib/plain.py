"""Texts for people: untrusted text made safe for a terminal and a status, commands, lists of names, and tables."""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

LINE_CHARACTERS = 1024  # Longest message that is kept as one line, for a request's status and events
_VERBS = "-n|api-resources|apply|create|delete|describe|get|label|logs|rollout|set"
"""Of kubectl, as far as crrd suggests them."""
_COMMAND = re.compile(
    rf"\b(?:kubectl(?= (?:{_VERBS})\b)|(?:kubectl|crrd) recreate(?= [^-])|crrd (?:explain|doctor)\b(?! --))"
)
"""A command in a text, up to where kubectl accepts flags for the connection."""


def plain(text: str) -> str:
    """Return the text with escapes for unprintable characters.

    Otherwise a user who can write a status or an event could control the terminal of the reader.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def with_flags(text: str, flags: str) -> str:
    """Return the text with these flags in each command, so that it works on the same cluster."""
    return _COMMAND.sub(lambda found: f"{found[0]} {flags}", text) if flags else text


def json_with_flags(shape: object, flags: str, *, indent: int | None = None) -> str:
    """Return JSON, in whose texts each command has these flags."""
    separators = (",", ":") if indent is None else None
    return with_flags(json.dumps(shape, indent=indent, separators=separators), json.dumps(flags)[1:-1])


def and_more(names: Sequence[str], others: int) -> str:
    """Return names as a list that ends with the number of others, if there are any."""
    return ", ".join(names) + (f" and {others} more" if others > 0 else "")


def wrapped(text: str, *, first: str = "", others: str = "", color: str = "") -> list[str]:
    """Return a paragraph: wrapped and coloured on a terminal, else as one line.

    `first` and `others` begin its lines, and `color` is the number of a terminal's colour.
    """
    text = plain(text)
    if not sys.stdout.isatty():
        return [first + text]
    width = max(60, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )
    if not color or os.environ.get("NO_COLOR"):
        return lines
    return [f"\033[1;{color}m{line}\033[0m" for line in lines]


def columns(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Format rows as lines: each column as wide as its widest cell, with `gap` spaces between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [(" " * gap).join(cells).rstrip() for cells in padded]


def one_line(text: str) -> str:
    """Return the text without line breaks and unprintable characters, cut to LINE_CHARACTERS."""
    clean = "".join(each if each.isprintable() else " " for each in text[: 4 * LINE_CHARACTERS])
    clean = " ".join(clean.split())
    return clean if len(clean) <= LINE_CHARACTERS else clean[: LINE_CHARACTERS - 1] + "…"
