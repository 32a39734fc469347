"""`make soak`: runs schedules until stopped, or SCHEDULES of them, on all cores. `make soak SEED=n` shows one run.
`make soak DAYS=20` runs this many schedules of a day each, `make soak KIND=images` those of runs with an image,
`make soak KIND=pods` those with requests for whole pods, and `make soak KIND=changes` those of policies for changed
configuration.

A failed schedule is shrunk and its story printed, once for each kind of failure. The figures at the end are those of
docs/reliability.md.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from tests.simulation.schedule import Schedule

CHUNK = 25
console = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Tally:
    """The results of some schedules."""

    schedules: int = 0
    undisturbed: int = 0  # Schedules in which no fault had an effect
    seconds: float = 0.0
    active: float = 0.0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    scheduled: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.undisturbed += other.undisturbed
        self.seconds += other.seconds
        self.active += other.active
        self.steps += other.steps
        self.faults += other.faults
        self.scheduled += other.scheduled
        self.failed += other.failed


def chunk(kind: str, first: int) -> Tally:
    """Run the schedules of some seeds, or the day of one."""
    return _tally(map(_maker(kind), range(first, first + size_of(kind))))


def size_of(kind: str) -> int:
    """How many schedules a child process runs at a time."""
    return 1 if kind == "days" else CHUNK


def _maker(kind: str) -> "Callable[[int], Schedule]":
    from tests.simulation.change_plots import changes  # noqa: PLC0415 - only child processes need it
    from tests.simulation.maker import day, schedule  # noqa: PLC0415
    from tests.simulation.pod_plots import pod_restarts  # noqa: PLC0415
    from tests.simulation.shop_plots import image_run  # noqa: PLC0415

    makers = {"days": day, "images": image_run, "pods": pod_restarts, "changes": changes}
    return makers.get(kind, schedule)


def _tally(plans: Iterable["Schedule"]) -> Tally:
    from tests.simulation.world import collect, run  # noqa: PLC0415

    tally = Tally()
    for plan in plans:
        outcome = run(plan)
        quiet = not sum(outcome.faults.values())
        figures = (outcome.seconds, outcome.active, outcome.steps, outcome.faults, outcome.scheduled)
        tally.add(Tally(1, quiet, *figures))
        if outcome.broken:
            tally.failed.append((plan.seed, outcome.broken))
    collect()
    return tally


def tell(seed: int, *, shortest: bool, kind: str = "schedules") -> bool:
    """Print the story of one seed. Return whether it passed."""
    from tests.simulation.shrink import story  # noqa: PLC0415

    told, well = story(_maker(kind)(seed), shortest=shortest)
    console.print(told, markup=False)
    return well


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the first one, which then ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def soak(schedules: int | None, first: int, *, kind: str = "schedules") -> int:
    """Run schedules, show the progress and print failures. Return the exit code."""
    from tests.simulation.shrink import sort_of  # noqa: PLC0415

    step = size_of(kind)
    seeds: Iterator[int] = iter(range(first, first + schedules, step)) if schedules else count(first, step)
    total, told = Tally(), set[str]()
    began = time.perf_counter()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    pool = multiprocessing.Pool(os.cpu_count(), _leave_interrupts)
    with pool, Progress(*columns, console=console) as progress:
        bar = progress.add_task("schedules", total=schedules, rate="")
        try:
            for tally in pool.imap_unordered(partial(chunk, kind), seeds):
                total.add(tally)
                rate = total.schedules / (time.perf_counter() - began)
                progress.update(bar, completed=total.schedules, rate=f"{rate:.0f}/s, {len(total.failed)} failed")
                for seed, broken in tally.failed:
                    if sort_of(broken) not in told:
                        told.add(sort_of(broken))
                        tell(seed, shortest=True, kind=kind)
        except KeyboardInterrupt:
            pool.terminate()
    figures(total, time.perf_counter() - began)
    return 1 if total.failed else 0


def figures(total: Tally, seconds: float) -> None:
    """Print what was run, and the results."""
    table = Table(show_header=False, box=None)
    table.add_row("schedules", f"{total.schedules:,}")
    table.add_row("failed", f"{len(total.failed):,}")
    table.add_row("virtual hours, until all requests had ended", f"{total.active / 3600:,.1f}")
    table.add_row("virtual hours of quiet after that", f"{(total.seconds - total.active) / 3600:,.0f}")
    table.add_row("faults and interventions that had an effect", f"{sum(total.faults.values()):,}")
    table.add_row("of those in the schedules", f"{sum(total.scheduled.values()):,}")
    table.add_row("schedules in which none had", f"{total.undisturbed:,}")
    table.add_row("steps a second", f"{total.steps / seconds:,.0f}")
    table.add_row("schedules a second", f"{total.schedules / seconds:,.1f}")
    console.print(table)
    console.print(", ".join(f"{kind} {number:,}" for kind, number in total.faults.most_common()))
    if total.failed:
        from tests.simulation.shrink import sort_of  # noqa: PLC0415

        sorts: dict[str, list[int]] = {}
        for seed, broken in total.failed:
            sorts.setdefault(sort_of(broken), []).append(seed)
        for sort, failed in sorted(sorts.items(), key=lambda item: -len(item[1])):
            shown = " ".join(map(str, sorted(failed)[:5]))
            console.print(f"{len(failed):7} {sort}: make soak SEED={shown}", markup=False)


def main() -> int:
    """See the module's docstring."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have the same order in every run
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation"], {**os.environ, "PYTHONHASHSEED": "0"})
    days, schedules = os.environ.get("DAYS"), os.environ.get("SCHEDULES")
    kind = "days" if days else os.environ.get("KIND") or "schedules"
    if seed := os.environ.get("SEED"):
        return 0 if tell(int(seed), shortest="SHORTEST" in os.environ, kind=kind) else 1
    wanted = days or schedules
    return soak(int(wanted) if wanted else None, int(os.environ.get("FIRST", "0")), kind=kind)


if __name__ == "__main__":
    sys.exit(main())
