"""What a call to an API server takes before its answer: in the benches, whose API servers would answer at once.

A real one, with etcd on the same two cores, takes about 5 ms for a write and 2 ms for a read. `LATENCY_MS=50` (of a
write; a read takes two fifths of it) is one that is far away, or busy.
"""

import asyncio
import os

WRITE_SECONDS = float(os.environ.get("LATENCY_MS", "5")) / 1000
READ_SECONDS = WRITE_SECONDS * 0.4


async def pass_time(method: str) -> None:
    """Let the time of a call with this HTTP method pass."""
    await asyncio.sleep(READ_SECONDS if method == "GET" else WRITE_SECONDS)
