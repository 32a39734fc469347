"""Carries out faults: ends or stops a process for a while, fills the disk of the logs, or steps a clock."""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.soak_cluster.collect import Collector
from tests.soak_cluster.daemons import CrrdDaemon, clock_library
from tests.soak_cluster.plan import Step
from tests.soak_cluster.processes import Process
from tests.soak_cluster.record import Fault, Kind, Part


class Faults:
    """The processes that faults can hit. A process has at most one fault at a time."""

    def __init__(
        self,
        daemons: Sequence[CrrdDaemon],
        processes: Mapping[Part, Sequence[Process]],
        runs: dict[str, asyncio.subprocess.Process],
        logs: Path,
        collector: Collector,
    ) -> None:
        self._processes = processes
        self._daemons = daemons
        self._runs = runs  # The processes of runs now
        self._logs = logs
        self._collector = collector
        self._busy: set[object] = set()

    def possible(self) -> tuple[set[Kind], set[Part]]:
        """Return what can be done here."""
        kinds = set(Kind) if clock_library() else set(Kind) - {Kind.CLOCK}
        return kinds, {*self._processes, Part.NODE, Part.MANAGER, Part.RUN}

    async def apply(self, step: Step) -> bool:
        """Carry out a fault, and return when it is over. False if what it should hit does not run now."""
        found: Sequence[CrrdDaemon | Process | asyncio.subprocess.Process]
        if step.part is Part.RUN:
            found = list(self._runs.values())
        else:
            found = [each for each in self._daemons if each.part is step.part] or self._processes.get(step.part, ())
        if not found or (target := found[step.number % len(found)]) in self._busy:
            return False
        began = time.time()
        self._busy.add(target)
        try:
            await self._hit(target, step)
        finally:
            self._busy.discard(target)
            self._collector.faults.append(Fault(began, time.time(), step.kind, step.part))
        return True

    async def _hit(self, target: CrrdDaemon | Process | asyncio.subprocess.Process, step: Step) -> None:
        if isinstance(target, asyncio.subprocess.Process):
            with suppress(ProcessLookupError):
                target.kill()
            return
        ballast = self._logs / "ballast"
        try:
            match step.kind:
                case Kind.KILL:
                    await _send(target, signal.SIGKILL)
                case Kind.FREEZE:
                    await _send(target, signal.SIGSTOP)
                case Kind.LOGS:
                    await asyncio.to_thread(_fill, ballast)
                case Kind.CLOCK if isinstance(target, CrrdDaemon):
                    target.step_clock(step.clock)
            await asyncio.sleep(step.seconds)
        finally:
            await self._heal(target, step.kind, ballast)

    async def _heal(self, target: CrrdDaemon | Process, kind: Kind, ballast: Path) -> None:
        match kind:
            case Kind.KILL if isinstance(target, CrrdDaemon):
                await target.start()
            case Kind.KILL if not isinstance(target, CrrdDaemon):
                await asyncio.to_thread(target.start)
            case Kind.FREEZE:
                await _send(target, signal.SIGCONT)
            case Kind.LOGS:
                await asyncio.to_thread(ballast.unlink, missing_ok=True)
            case Kind.CLOCK if isinstance(target, CrrdDaemon):
                target.step_clock(0)

    async def watch_over(self) -> None:
        """Start processes of the cluster again that have ended by themselves, as a service manager does."""
        while True:
            for process in (each for some in self._processes.values() for each in some):
                if process not in self._busy:
                    await asyncio.to_thread(process.start)
            await asyncio.sleep(3)


async def _send(target: CrrdDaemon | Process, number: signal.Signals) -> None:
    if isinstance(target, CrrdDaemon):
        target.send(number)
    else:
        await asyncio.to_thread(target.send, number)


def _fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
