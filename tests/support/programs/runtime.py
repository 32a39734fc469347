"""The local container runtime."""

import argparse
import asyncio
from pathlib import Path

from crrd.lib.signals import stop_on_signals
from crrd_localnode.runtime import ProcessRuntime


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    arguments = parser.parse_args()
    ended = stop_on_signals()
    runtime = ProcessRuntime(arguments.root, arguments.socket)
    await runtime.start()
    try:
        await ended.wait()
    finally:
        await runtime.stop()


if __name__ == "__main__":
    asyncio.run(main())
