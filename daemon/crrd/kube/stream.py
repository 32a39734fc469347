"""Cuts what API servers send into pieces: a watch's bytes into lines, one event each, and a list into its objects."""

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from crrd.kube.errors import MalformedAnswerError, decode
from crrd.lib.jsonfields import items, mapping

_ITEMS = re.compile(rb'"items"\s*:\s*\[')
_TOKENS = re.compile(rb'[][{}]|"(?:[^"\\]++|\\.)*+"', re.DOTALL)  # Brackets, and strings, in which they mean nothing
SMALL_BYTES = 256 * 2**10  # A list of so many bytes is decoded as a whole: that is quicker
LONGEST_LINE = 16 * 2**20  # Bytes; etcd keeps no object above a few MiB, so a longer line is not an event


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The lines in a stream of chunks, without newlines and empty ones; MalformedAnswerError above LONGEST_LINE."""
    pending = bytearray()
    async for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending += chunk[start:end]
            if pending:
                yield bytes(pending)
                pending = bytearray()  # a new one gives back the memory of a long line
            start = end + 1
        pending += chunk[start:]
        if len(pending) > LONGEST_LINE:
            raise MalformedAnswerError(f"the watch sent a line of more than {LONGEST_LINE} bytes")
    if pending:
        yield bytes(pending)


def listed(raw: bytes, what: str) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    """A list's metadata, and its objects, each decoded when it is asked for: a whole list takes many times its size.

    API servers write the keys of built-in kinds with the metadata first, those of custom resources in alphabetical
    order. So the bytes are cut into objects before any is decoded; one character beyond ASCII would have a text take
    up to four bytes for each of its characters. What is no list raises MalformedAnswerError, here or as it is iterated.
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
    """Where each object of an array begins and ends, and where the array ends; None for an array of something else."""
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
