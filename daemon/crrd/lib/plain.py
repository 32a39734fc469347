"""Texts for people: untrusted text made safe for a terminal and a status, lists of names, and tables."""

from collections.abc import Sequence

LINE_CHARACTERS = 1024  # Longest message that is kept as one line, for a request's status and events


def plain(text: str) -> str:
    """Return the text with escapes for unprintable characters.

    Otherwise a user who can write a status or an event could control the terminal of the reader.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def and_more(names: Sequence[str], others: int) -> str:
    """Return names as a list that ends with the number of others, if there are any."""
    return ", ".join(names) + (f" and {others} more" if others > 0 else "")


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
