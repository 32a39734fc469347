"""Signals that stop a daemon."""

import asyncio
import signal


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets. A second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    return stop
