"""Cuts what API servers send into pieces: a watch's bytes into lines, one event each, and a list into its objects."""

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from json import JSONDecoder
from typing import Any

from crrd.kube.errors import MalformedAnswerError, decode
from crrd.lib.jsonfields import items, mapping

_ITEMS = re.compile(r'"items"\s*:\s*\[\s*')
_BETWEEN = re.compile(r"\s*([,\]])\s*")
_DECODER = JSONDecoder()
LONGEST_LINE = 16 * 2**20
"""Bytes; etcd keeps no object above a few MiB, so a longer line is not an event."""


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The lines in a stream of chunks, without their newlines; empty ones are left out.

    Raises:
        MalformedAnswerError: a line is longer than LONGEST_LINE.
    """
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

    API servers send the metadata first; a list that is written otherwise is decoded at once.

    Raises (and so does the iteration):
        MalformedAnswerError: it is no list.
    """
    try:
        text = raw.decode()
        begin = _ITEMS.search(text)
        head = decode(f'{text[: begin.start()]}"items":[]}}'.encode(), what) if begin else {}
    except (UnicodeDecodeError, MalformedAnswerError):
        begin, head = None, {}
    if begin is None or "metadata" not in head:
        whole = decode(raw, what)
        return mapping(whole.get("metadata")), map(mapping, items(whole.get("items")))
    return mapping(head["metadata"]), _objects(text, begin.end(), what)


def _objects(text: str, at: int, what: str) -> Iterator[Mapping[str, Any]]:
    malformed = MalformedAnswerError(f"{what}: the answer is not JSON ({len(text)} characters)")
    while not text.startswith("]", at):
        try:
            found, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise malformed from error
        between = _BETWEEN.match(text, at)
        if between is None:
            raise malformed
        yield mapping(found)
        at = between.start(1) if between[1] == "]" else between.end()
    decode(f"{{{text[at + 1 :].lstrip().removeprefix(',')}".encode(), what)
