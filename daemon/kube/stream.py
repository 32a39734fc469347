"""Cuts a watch's byte stream into lines: one line is one event, however long."""

from collections.abc import AsyncIterable, AsyncIterator

from daemon.kube.errors import MalformedAnswerError

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
