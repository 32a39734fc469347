"""`python -m tests.bench.watched_manager manager ...`: crrd, its loop watched for stalls, told at its end.

A stall is the time between two turns of a task that asks for a turn every few milliseconds, less what it asked for. It
is told beside the CPU time that this thread has used meanwhile: where that is less, the machine was busy with others.
SIGUSR2 begins anew.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

OUTPUT = "CRRD_BENCH_STALLS"
"""The variable that names the folder for the result, `<pid>.json`: the longest stalls, and their CPU time, in ms."""
ASKED_SECONDS = 0.005

stalls: list[tuple[float, float]] = []


async def _watch() -> None:
    while True:
        began, used = time.perf_counter(), time.thread_time()
        await asyncio.sleep(ASKED_SECONDS)
        late = time.perf_counter() - began - ASKED_SECONDS
        if late > 0.01:
            stalls.append((round(late * 1000, 1), round((time.thread_time() - used) * 1000, 1)))


def main() -> None:
    """Run crrd."""
    from crrd.cli.main import main as cli  # noqa: PLC0415 - after the names above, which it does not need

    real_run = asyncio.run

    def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def watched() -> Any:
            watching = asyncio.create_task(_watch())
            try:
                return await main
            finally:
                watching.cancel()

        return real_run(watched(), **options)

    asyncio.run = run
    signal.signal(signal.SIGUSR2, lambda *_: stalls.clear())
    try:
        cli()
    finally:
        out = Path(os.environ[OUTPUT]) / f"{os.getpid()}.json"
        out.write_text(json.dumps(sorted(stalls, reverse=True)[:10]), encoding="utf-8")


if __name__ == "__main__":
    main()
