"""The display of a run on a terminal: a live table of the pods that matter now, and a progress bar."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from crrd.core.api.time import format_duration
from crrd.core.api.types import Pin
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import Row, count_done
from crrd.core.rollout.run import Run
from crrd.lib.plain import plain
from crrd.rollout.display import new_ids, old_ids
from crrd.rollout.text import TextDisplay

_STYLES = {
    Stage.DONE: "green",
    Stage.FAILED: "bold red",
    Stage.PUT_OFF: "yellow",
    Stage.WAITING: "dim",
    Stage.SKIPPED: "dim",
}
_URGENT = (Stage.FAILED, Stage.RECREATING, Stage.SETTLING, Stage.REQUESTED)
_ORDER = (*_URGENT, Stage.PUT_OFF, Stage.WAITING, Stage.DONE, Stage.GONE, Stage.SKIPPED)
_COLUMNS = {"pod": 12, "node": 8, "old": 12, "new": 12, "phase": 10, "s": 3, "waits for": 9}
"""The columns and their minimum width."""
_DISPENSABLE = ("old", "new", "node")  # Columns that a narrow terminal leaves out, in this order
_NAMES = ("pod", "node")  # Columns of names, which differ at both ends: they get spare room, and are cut in the middle
_LONGEST = 40  # Length limit for names while a column would be left out otherwise
_GAP = 2
_COMMANDS = 3  # Pods whose wait is shown in full, with the command that shows more
_OTHER_LINES = 9 + _COMMANDS  # Lines of the terminal for title, head, bar, waits, and earlier output


class Terminal(TextDisplay):
    """A display for an interactive terminal."""

    def __init__(self, access_flags: str = "", context: str = "") -> None:
        super().__init__(access_flags, context)
        self._console = Console(highlight=False)
        self.is_dumb = self._console.is_dumb_terminal  # Whether it cannot show a live table (TERM=dumb)
        self._live = Live(console=self._console, auto_refresh=False)
        self._at_first: int | None = None  # Pods that were finished when this process began
        self._title = ""

    def begin(self, run: Run, message: str) -> None:
        """See Display."""
        self._title, self._at_first = f"run {run.name}", None
        super().begin(run, message)

    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """See Display."""
        self._live.stop()
        for line in (message, *(f"  {each}" for each in details)):
            self._console.print(self._plain(line), markup=False, soft_wrap=True)

    def show(self, plan: Plan) -> None:
        """See Display."""
        self._changes.rows(plan)
        self._live.start()
        self._live.update(self._picture(plan), refresh=True)

    def _picture(self, plan: Plan) -> Group:
        shown, hidden = self._fitting(plan.rows)
        lines = [self._cells(row) for row in shown]
        table = Table(title=self._title, title_justify="left", box=None, pad_edge=False)
        widths = _widths(lines, self._console.size.width)
        for column, width in widths.items():
            table.add_column(column, width=width, no_wrap=True, overflow="ellipsis")
        for line in lines:
            table.add_row(*(_cut(line[column], width, column) for column, width in widths.items()))
        more = Text(f"and {hidden} more pods", "dim") if hidden else Text("")
        waiting = Text(self._plain(f"waiting: {'; '.join(plan.waits)}") if plan.wait.why else "", "yellow")
        slow = [f"{row.pod} {row.wait.with_command}" for row in plan.rows if row.stage.under_way and row.wait.command]
        return Group(
            table, more, self._bar(plan.rows), waiting, *(Text(self._plain(each)) for each in slow[:_COMMANDS])
        )

    def _cells(self, row: Row) -> dict[str, Text]:
        """Return the cells of a row, by column."""
        seconds = self._changes.seconds(row) if row.stage is not Stage.DONE else None
        passed = "" if seconds is None else f"{seconds:.0f}"
        values = (row.pod, row.node, _ids(old_ids(row)), _ids(new_ids(row)), row.stage.value, passed, row.wait.why)
        cells = {column: Text(plain(each)) for column, each in zip(_COLUMNS, values, strict=True)}
        cells["phase"].stylize(_STYLES.get(row.stage, "cyan"))
        return cells

    def _fitting(self, rows: tuple[Row, ...]) -> tuple[list[Row], int]:
        """Return the most important rows that fit, sorted by name, and the number of rows that are not shown."""
        room = max(3, self._console.size.height - _OTHER_LINES)
        best = sorted(rows, key=lambda row: (_ORDER.index(row.stage), row.pod))[:room]
        return sorted(best, key=lambda row: row.pod), max(0, len(rows) - room)

    def _bar(self, rows: tuple[Row, ...]) -> Table:
        done, total = count_done(rows)
        self._at_first = done if self._at_first is None else self._at_first
        passed, here = self._changes.passed, done - self._at_first
        left = f", about {format_duration(passed / here * (total - done))} left" if here > 0 and done < total else ""
        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(total=max(1, total), completed=done, width=40), f"{done} of {total} pods{left}")
        return line


def _widths(lines: list[dict[str, Text]], room: int) -> dict[str, int]:
    """Return the columns that fit and their widths. Names get the remaining width first, then the last column."""
    *others, last = _COLUMNS
    longest = {each: max([_COLUMNS[each], *(len(line[each]) for line in lines)]) for each in others}
    widths = {each: min(width, max(_LONGEST, _COLUMNS[each])) for each, width in longest.items()}
    for column in _DISPENSABLE:
        if sum(widths.values()) + _GAP * len(widths) + _COLUMNS[last] > room:
            del widths[column]
    left = room - sum(widths.values()) - _GAP * len(widths) - _COLUMNS[last]
    for column in _NAMES:
        if column in widths:
            wider = max(_COLUMNS[column], min(longest[column], widths[column] + left))
            left -= wider - widths[column]
            widths[column] = wider
    if left < 0:
        left += widths.pop("s") + _GAP
    return widths | {last: _COLUMNS[last] + max(0, left)}


def _cut(cell: Text, width: int, column: str) -> Text:
    """Return a name that fits, without its middle: names of one workload begin alike. Other columns lose their end."""
    if column not in _NAMES or len(cell) <= width:
        return cell
    head = (width - 1) // 3
    return Text(f"{cell.plain[:head]}…{cell.plain[len(cell) - (width - 1 - head) :]}")


def _ids(found: dict[str, str]) -> str:
    return " ".join(Pin(each).bare_id[:12] for each in found.values())
