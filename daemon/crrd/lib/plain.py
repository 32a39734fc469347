"""Words that others may have written, made safe for a terminal and for a status."""

from collections.abc import Sequence

LINE_CHARACTERS = 1024  # Of a message that is kept as one line: it ends in a request's status and in events


def plain(text: str) -> str:
    """The words, with escapes for what is not printable.

    Otherwise a user who may write a status or an event could control the terminal of the reader.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def columns(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Rows as lines: each column as wide as its widest cell, `gap` spaces between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [(" " * gap).join(cells).rstrip() for cells in padded]


def one_line(text: str) -> str:
    """The words without line breaks and unprintable characters, cut to LINE_CHARACTERS."""
    clean = "".join(each if each.isprintable() else " " for each in text[: 4 * LINE_CHARACTERS])
    clean = " ".join(clean.split())
    return clean if len(clean) <= LINE_CHARACTERS else clean[: LINE_CHARACTERS - 1] + "…"
