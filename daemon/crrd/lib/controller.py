"""One controller: sources report changed objects by key, and `handle` runs one round for a key at a time.

Rounds of different keys run side by side, and their number has no limit, because they mostly wait for calls. A round
that waits holds no slot and no lock, so one slow object delays only its own key. `kube.lanes` shares the calls.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import NoReturn

from crrd.lib.health import Health
from crrd.lib.supervise import Loop, supervise
from crrd.lib.workqueue import WorkQueue


class Controller(ABC):
    """Sources, a queue of keys, and rounds. A new leader makes a new one, so `run` is called once."""

    name = ""  # In log lines, metrics and on health pages
    round_seconds = 60.0  # Longest time of a round without progress; every call has a deadline

    def __init__(self) -> None:
        self.queue = WorkQueue(self.handle, self.name, round_seconds=self.round_seconds)
        self.sources: list[Loop] = []  # Watch objects and wake their keys; the owner fills the list before `run`

    @abstractmethod
    async def handle(self, key: str) -> float | None:
        """Run one round. Return the loop's time of the next one, or None if only a change can need one."""

    @property
    def loops(self) -> list[Loop]:
        """Everything that runs: the sources, then the rounds."""
        return [*self.sources, Loop(f"{self.name}-queue", self.queue.run, (self.queue,))]

    async def run(self, health: Health) -> NoReturn:
        """Run all loops until cancelled, and show them on the health pages meanwhile."""
        async with supervise(self.loops, health):
            await asyncio.Event().wait()
        raise AssertionError("loops run until they are cancelled")
