"""Splits the API server's responses: the bytes of a watch into lines (one event each), and a list into its objects."""

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from crrd.kube.errors import MalformedAnswerError, decode
from crrd.lib.jsonfields import items, mapping

_ITEMS = re.compile(rb'"items"\s*:\s*\[')
_TOKENS = re.compile(rb'[][{}]|"(?:[^"\\]++|\\.)*+"', re.DOTALL)  # Brackets; and strings, to skip brackets in them
SMALL_BYTES = 512 * 2**10  # A list up to this size is decoded as a whole, because that is faster
LONGEST_LINE = 16 * 2**20  # Bytes; etcd stores no object above a few MiB, so a longer line is not an event


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the non-empty lines of a stream, without newlines. MalformedAnswerError for a line above LONGEST_LINE."""
    pending = bytearray()
    async for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending += chunk[start:end]
            if pending:
                yield bytes(pending)
                pending = bytearray()  # a new one frees the memory of a long line
            start = end + 1
        pending += chunk[start:]
        if len(pending) > LONGEST_LINE:
            raise MalformedAnswerError(f"the watch sent a line of more than {LONGEST_LINE} bytes")
    if pending:
        yield bytes(pending)


def listed(raw: bytes, what: str) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    """Return a list's metadata, and an iterable that decodes one object at a time, because a whole list is much larger.

    The metadata may come after the items (custom resources have their keys in alphabetical order), so the bytes are cut
    into objects before any is decoded. Bytes and not text, because one non-ASCII character can make a Python text take
    four bytes for each character. MalformedAnswerError if it is not a list, raised here or by the iterable.
    """
    begin = _ITEMS.search(raw) if len(raw) > SMALL_BYTES else None
    cut = None if begin is None else _objects(raw, begin.end())
    if begin is None or cut is None:
        whole = decode(raw, what)
        return mapping(whole.get("metadata")), map(mapping, items(whole.get("items")))
    objects, end = cut
    head = decode(raw[: begin.end()] + raw[end:], what)
    return mapping(head.get("metadata")), (decode(raw[start:stop], what) for start, stop in objects)


def _objects(raw: bytes, at: int) -> tuple[list[tuple[int, int]], int] | None:
    """Return start and end of each object of an array, and the array's end; None if it holds anything but objects."""
    found: list[tuple[int, int]] = []
    depth, start = 0, at
    for token in _TOKENS.finditer(raw, at):
        match raw[token.start()]:
            case 0x7B | 0x5B:  # { [
                if depth == 0:
                    between = b"" if not found else b","
                    if raw[at : token.start()].strip() != between or raw[token.start()] == 0x5B:
                        return None
                    start = token.start()
                depth += 1
            case 0x7D | 0x5D:  # } ]
                depth -= 1
                if depth == 0:
                    at = token.end()
                    found.append((start, at))
                elif depth < 0:
                    return (found, token.start()) if not raw[at : token.start()].strip() else None
    return None
