"""The time of the event loop."""

import asyncio


def loop_time() -> float:
    """Return the running event loop's monotonic time in seconds."""
    return asyncio.get_running_loop().time()
